"""Configuration of resources: describe and change that of a topic, a node, a group or all nodes.

    configs = ResourceConfigs(cluster)
    configs.of(ResourceName("topic", "flights"))        # described values and sources
    configs.change(ResourceName("cluster", ""), [ValueChange("log.retention.ms", SET, "60000")])

librdkafka is asked where it has the words.  It has none for what is set on the whole cluster, for
subscriptions to clients' metrics and for documentation: these go over the wire (wire.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from kafkalite.cli.clients import ANSWER_TIMEOUT_S, ClusterClients, sentences
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
"""What may happen to a key; the last two are for lists."""

KINDS = {"topic": 2, "node": 4, "cluster": 4, "group": 32, "client-metrics": 16, "logger": 8}
"""What has configs, and the wire's number for it; the cluster is the broker without a name, and a
logger goes by its node's."""

SPOKEN = {
    "topic": ConfigResource.Type.TOPIC,
    "node": ConfigResource.Type.BROKER,
    "group": ConfigResource.Type.GROUP,
}
"""Those that librdkafka knows."""

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
"""Where a value comes from; `start` is the config file, or a flag at the start."""

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
"""What comes before another key's name, for one listener."""


class ResourceName(NamedTuple):
    """One thing that has configs."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class ValueSynonym(NamedTuple):
    """A place where a value was looked for, and found."""

    name: str
    value: str | None
    source: str


class DescribedValue(NamedTuple):
    """A key of a resource, and the value in force."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    synonyms: tuple[ValueSynonym, ...]
    """From what is in force to the default, that included."""
    type: str | None = None
    doc: str | None = None


class ValueChange(NamedTuple):
    """What is to happen to a key."""

    key: str
    operation: int
    value: str | None = None


class ResourceConfigs:
    """The configs of everything in a cluster."""

    def __init__(self, cluster: ClusterClients) -> None:
        self.cluster = cluster
        with sentences():
            self.admin = cluster.admin()
            self.nodes = cluster.metadata(self.admin).brokers

    def of(self, resource: ResourceName, documented: bool = False) -> list[DescribedValue]:
        """Every key of a resource, by name."""
        at = self._address(resource)
        if not documented and resource.kind in SPOKEN:
            asked = ConfigResource(SPOKEN[resource.kind], resource.name)
            with answered(resource):
                answer = self.admin.describe_configs([asked])[asked].result(ANSWER_TIMEOUT_S)
            return sorted(map(entry_of, answer.values()))
        wanted = {
            "resource_type": KINDS[resource.kind],
            "resource_name": resource.name,
            "configuration_keys": None,
        }
        request = {"resources": [wanted], "include_synonyms": True, "include_documentation": True}
        with answered(resource):
            (result,) = WireClient(self.cluster).ask(DESCRIBE_CONFIGS, request, at).results
            raise_for(result.error_code, result.error_message)
        return sorted(map(entry_read, result.configs))

    def change(
        self, resource: ResourceName, changes: Sequence[ValueChange], dry_run: bool = False
    ) -> None:
        """Change keys of a resource, all of them or none; or only see whether that could be."""
        at = self._address(resource)
        hint = self._near_miss(resource, changes)
        try:
            if resource.kind in SPOKEN:
                self._change(resource, changes, dry_run)
            else:
                self._change_by_wire(resource, changes, dry_run, at)
        except Refusal as refusal:
            raise Refusal(f"{refusal}{'' if HINT in str(refusal) else hint}") from None
        if hint:  # Kafka keeps it for what may be plugged in
            warn(f"{resource}: the broker took a key that it does not know{hint}")

    def _change(
        self, resource: ResourceName, changes: Sequence[ValueChange], dry_run: bool
    ) -> None:
        asked = ConfigResource(SPOKEN[resource.kind], resource.name)
        for key, operation, value in changes:
            entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType(operation))
            asked.add_incremental_config(entry)
        with answered(resource):
            futures = self.admin.incremental_alter_configs([asked], validate_only=dry_run)
            futures[asked].result(ANSWER_TIMEOUT_S)

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
        wanted = {
            "resource_type": KINDS[resource.kind],
            "resource_name": resource.name,
            "configs": configs,
        }
        request = {"resources": [wanted], "validate_only": dry_run}
        with answered(resource):
            answer = WireClient(self.cluster).ask(INCREMENTAL_ALTER_CONFIGS, request, at)
            for result in answer.responses:
                raise_for(result.error_code, result.error_message)

    def _address(self, resource: ResourceName) -> Address | None:
        """Where a node listens, who alone knows its own; anybody knows the others'."""
        if resource.kind not in ("node", "logger"):
            return None
        node = self.nodes.get(int(resource.name)) if resource.name.isdecimal() else None
        if node is None or node.host is None:
            known = ", ".join(map(str, sorted(self.nodes)))
            raise Refusal(f"there is no node {resource.name}; there are {known}")
        return node.host, node.port

    def _near_miss(self, resource: ResourceName, changes: Iterable[ValueChange]) -> str:
        """What may have been meant by a key that the resource does not have."""
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
def answered(resource: ResourceName) -> Iterator[None]:
    """What the broker refuses, or does not answer, becomes a sentence about the resource."""
    try:
        with sentences():
            yield
    except (Refusal, KafkaError) as fault:
        raise Refusal(f"{resource}: {str(fault).rstrip('.')}") from None
    except TimeoutError:
        raise Refusal(f"{resource}: no answer within {ANSWER_TIMEOUT_S:.0f} s") from None


def entry_of(found: Any) -> DescribedValue:
    """An entry as librdkafka has it, whose source is declared an enum and is a number."""
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
    """An entry as the wire has it, with type and documentation."""
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
    """What there is to name: topics and nodes, and what else has configs."""
    with sentences():
        cluster.metadata(cluster.admin())
    kinds = {number: name for name, number in KINDS.items() if name != "cluster"}
    wanted = [number for number, name in kinds.items() if kind in (None, name)]
    if not wanted:
        return [ResourceName("cluster", "")]
    answer = WireClient(cluster).ask(LIST_CONFIG_RESOURCES, {"resource_types": wanted})
    raise_for(answer.error_code)
    return sorted(
        ResourceName(kinds[each.resource_type], each.resource_name)
        for each in answer.config_resources
        if each.resource_type in kinds
    )
