"""Configuration of resources: describe and change that of a topic, a node, a group or all nodes.

    configs = ResourceConfigs(cluster)
    configs.of(ResourceName("topic", "flights"))        # described values and sources
    configs.change(ResourceName("cluster", ""), [ValueChange("log.retention.ms", SET, "60000")])

librdkafka sends the requests that it supports.  It does not support cluster-wide values, client
metrics subscriptions and documentation: wire.py sends these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from kafkalite.cli.clients import (
    CHANGE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    ClusterClients,
    kafka_errors_as_refusals,
)
from kafkalite.cli.command import nearest, warn
from kafkalite.cli.wire import WireClient
from kafkalite.client.net.topology import Address
from kafkalite.errors import KafkaError, Refusal, raise_for
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.configs import (
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)

SET, UNSET, APPEND, SUBTRACT = range(4)
"""Operations on a key; the last two are for lists."""

KINDS = {"topic": 2, "node": 4, "cluster": 4, "group": 32, "client-metrics": 16, "logger": 8}
"""Kinds of resource and their numbers in the protocol.

The cluster is the broker resource with an empty name; a logger is named by its node's id.
"""

LIBRDKAFKA_KINDS = {
    "topic": ConfigResource.Type.TOPIC,
    "node": ConfigResource.Type.BROKER,
    "group": ConfigResource.Type.GROUP,
}
"""Kinds that librdkafka supports."""

SOURCES = {
    0: "unknown",
    1: "topic",
    2: "node",
    3: "cluster",
    4: "start",
    5: "default",
    6: "logger",
    7: "client-metrics",
    8: "group",
}
"""Sources of a value; `start` is the configuration file or a flag of kafkalite start."""

TYPES = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}

HINT = "; did you mean "
PREFIXED = "listener.name."
"""Prefix of a key that applies to one listener."""


class ResourceName(NamedTuple):
    """Kind and name of a resource that has configuration."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class ValueSynonym(NamedTuple):
    """A value of a key in one of its sources."""

    name: str
    value: str | None
    source: str


class DescribedValue(NamedTuple):
    """A key of a resource and its effective value."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    synonyms: tuple[ValueSynonym, ...]
    """In order of precedence: the effective value first, the default last."""
    type: str | None = None
    doc: str | None = None


class ValueChange(NamedTuple):
    """A change of a key."""

    key: str
    operation: int
    value: str | None = None


class ResourceConfigs:
    """Reads and changes the configuration of a cluster's resources."""

    def __init__(self, cluster: ClusterClients) -> None:
        self.cluster = cluster
        with kafka_errors_as_refusals():
            self.admin = cluster.admin()
            self.nodes = cluster.metadata(self.admin).brokers

    def of(self, resource: ResourceName, documented: bool = False) -> list[DescribedValue]:
        """Return every key of a resource, sorted by name."""
        at = self._address(resource)
        if not documented and resource.kind in LIBRDKAFKA_KINDS:
            requested = ConfigResource(LIBRDKAFKA_KINDS[resource.kind], resource.name)
            with refusals_for(resource):
                response = self.admin.describe_configs([requested])[requested].result(
                    REQUEST_TIMEOUT_S
                )
            return sorted(map(entry_of, response.values()))
        requested_resource = {
            "resource_type": KINDS[resource.kind],
            "resource_name": resource.name,
            "configuration_keys": None,
        }
        request = {
            "resources": [requested_resource],
            "include_synonyms": True,
            "include_documentation": True,
        }
        with refusals_for(resource):
            (result,) = WireClient(self.cluster).request(DESCRIBE_CONFIGS, request, at).results
            raise_for(result.error_code, result.error_message)
        return sorted(map(entry_read, result.configs))

    def change(
        self, resource: ResourceName, changes: Sequence[ValueChange], dry_run: bool = False
    ) -> None:
        """Change keys of a resource, all or none; a dry run only validates."""
        at = self._address(resource)
        hint = self._near_miss(resource, changes)
        try:
            if resource.kind in LIBRDKAFKA_KINDS:
                self._change(resource, changes, dry_run)
            else:
                self._change_by_wire(resource, changes, dry_run, at)
        except Refusal as refusal:
            raise Refusal(f"{refusal}{'' if HINT in str(refusal) else hint}") from None
        if hint:  # Kafka stores unknown keys, for plugins
            warn(f"{resource}: the broker stored an unknown key{hint}")

    def _change(
        self, resource: ResourceName, changes: Sequence[ValueChange], dry_run: bool
    ) -> None:
        requested = ConfigResource(LIBRDKAFKA_KINDS[resource.kind], resource.name)
        for key, operation, value in changes:
            entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType(operation))
            requested.add_incremental_config(entry)
        with refusals_for(resource, CHANGE_TIMEOUT_S):
            futures = self.admin.incremental_alter_configs([requested], validate_only=dry_run)
            futures[requested].result(CHANGE_TIMEOUT_S)

    def _change_by_wire(
        self,
        resource: ResourceName,
        changes: Sequence[ValueChange],
        dry_run: bool,
        at: Address | None,
    ) -> None:
        configs = [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ]
        requested_resource = {
            "resource_type": KINDS[resource.kind],
            "resource_name": resource.name,
            "configs": configs,
        }
        request = {"resources": [requested_resource], "validate_only": dry_run}
        with refusals_for(resource):
            wire = WireClient(self.cluster, CHANGE_TIMEOUT_S)
            response = wire.request(INCREMENTAL_ALTER_CONFIGS, request, at)
            for result in response.responses:
                raise_for(result.error_code, result.error_message)

    def _address(self, resource: ResourceName) -> Address | None:
        """Return the address of the node that must handle a request, or None for any."""
        if resource.kind not in ("node", "logger"):
            return None
        node = self.nodes.get(int(resource.name)) if resource.name.isdecimal() else None
        if node is None or node.host is None:
            known = ", ".join(map(str, sorted(self.nodes)))
            raise Refusal(f"node {resource.name} does not exist; the nodes are {known}")
        return node.host, node.port

    def _near_miss(self, resource: ResourceName, changes: Iterable[ValueChange]) -> str:
        """Return a hint at a similar key if the resource does not have this one."""
        if resource.kind == "cluster":
            resource = ResourceName("node", str(min(self.nodes)))
        try:
            known = [entry.name for entry in self.of(resource)]
        except Refusal:
            return ""
        wrong = [
            each.key
            for each in changes
            if each.key not in known and not each.key.startswith(PREFIXED)
        ]
        return next(filter(None, (nearest(key, known) for key in wrong)), "")


@contextmanager
def refusals_for(
    resource: ResourceName, timeout_s: float = REQUEST_TIMEOUT_S
) -> Iterator[None]:
    """Turn an error or a timeout into a Refusal that names the resource."""
    try:
        with kafka_errors_as_refusals():
            yield
    except (Refusal, KafkaError) as error:
        raise Refusal(f"{resource}: {str(error).rstrip('.')}") from None
    except TimeoutError:
        raise Refusal(f"{resource}: request timed out after {timeout_s:.0f} s") from None


def entry_of(found: Any) -> DescribedValue:
    """Return an entry from librdkafka's; its source is a number, although declared an enum."""
    synonyms = (
        ValueSynonym(each.name, each.value, SOURCES.get(each.source, "unknown"))
        for each in found.synonyms.values()
    )
    return DescribedValue(
        found.name,
        found.value,
        SOURCES.get(found.source, "unknown"),
        found.is_read_only,
        found.is_sensitive,
        tuple(synonyms),
    )


def entry_read(found: Fields) -> DescribedValue:
    """Return an entry from the response's, with type and documentation."""
    synonyms = (
        ValueSynonym(each.name, each.value, SOURCES.get(each.source, "unknown"))
        for each in found.synonyms
    )
    return DescribedValue(
        found.name,
        found.value,
        SOURCES.get(found.config_source, "unknown"),
        found.read_only,
        found.is_sensitive,
        tuple(synonyms),
        TYPES.get(found.config_type),
        found.documentation,
    )


def listed(cluster: ClusterClients, kind: str | None) -> list[ResourceName]:
    """Return the resources of a kind, or of all kinds."""
    with kafka_errors_as_refusals():
        cluster.metadata(cluster.admin())
    kinds = {number: name for name, number in KINDS.items() if name != "cluster"}
    numbers = [number for number, name in kinds.items() if kind in (None, name)]
    if not numbers:
        return [ResourceName("cluster", "")]
    response = WireClient(cluster).request(LIST_CONFIG_RESOURCES, {"resource_types": numbers})
    raise_for(response.error_code)
    return sorted(
        ResourceName(kinds[each.resource_type], each.resource_name)
        for each in response.config_resources
        if each.resource_type in kinds
    )
