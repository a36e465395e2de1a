"""Requests that read and change the configuration of topics, brokers, groups and clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafkalite.client.admin.topic_requests import final_error
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.topology import error_of
from kafkalite.config.resources import Resource
from kafkalite.errors import InvalidRequest, KafkaError
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS

SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

SOURCES = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "static",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
"""Names of the sources in DescribeConfigs."""


class ConfigValue(NamedTuple):
    """The value of one configuration key of a resource.

    Args:
        value: The value as text; None if it is not set or secret.
        source: Where it was set: "topic", "group", "client metrics", "broker", "cluster" (for all
            brokers), "static" (at start), "broker logger", or "default".
        is_read_only: True if it cannot be changed while the broker runs.
        is_sensitive: True if the value is secret.
    """

    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool


def resource_of(kind: str) -> Resource:
    """Return a kind of resource by its name; raise ValueError for another one."""
    try:
        return Resource[kind.upper().replace("-", "_")]
    except (AttributeError, KeyError):
        kinds = ", ".join(each.name.lower().replace("_", "-") for each in Resource)
        raise ValueError(f"a kind of resource is one of {kinds}, not {kind!r}") from None


def config_text(value: Any) -> str:
    """Return a configuration value as text, as Kafka's keys are written."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return ",".join(map(config_text, value))
    raise TypeError(f"a configuration value is text, a number, a bool or a list, not {value!r}")


def describe_config(
    cluster: Cluster, resource: Resource, name: str, timeout_s: float | None = None
) -> dict[str, ConfigValue]:
    """Return the configuration of one resource."""
    body = {
        "resources": [
            {"resource_type": resource, "resource_name": name, "configuration_keys": None}
        ]
    }

    found = _requested(cluster, DESCRIBE_CONFIGS, body, "results", resource, name, timeout_s)
    return {
        entry.name: ConfigValue(
            entry.value,
            SOURCES.get(entry.config_source, "unknown"),
            entry.read_only,
            entry.is_sensitive,
        )
        for entry in found.configs
    }


def alter_config(
    cluster: Cluster,
    resource: Resource,
    name: str,
    values: Mapping[str, str | None],
    timeout_s: float | None = None,
) -> None:
    """Set keys of one resource, or delete those whose value is None."""
    changes = [
        {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in values.items()
    ]
    body = {
        "resources": [{"resource_type": resource, "resource_name": name, "configs": changes}],
        "validate_only": False,
    }

    if changes:
        api = INCREMENTAL_ALTER_CONFIGS
        _requested(cluster, api, body, "responses", resource, name, timeout_s)


def _requested(
    cluster: Cluster,
    api: Api,
    body: dict[str, Any],
    results: str,
    resource: Resource,
    name: str,
    timeout_s: float | None,
) -> Fields:
    """Return the result of a resource; raise its error."""
    node_id = _node(resource, name)
    subject = f"{resource.name.lower().replace('_', ' ')} {name!r}"

    def attempt(deadline: Deadline) -> Fields | KafkaError:
        response = cluster.request(node_id, api, body, timeout_s=deadline.left_s)
        entries: list[Fields] = response[results]
        for result in entries:
            if result.resource_type == resource and result.resource_name == name:
                if not result.error_code:
                    return result
                return final_error(error_of(result.error_code, subject, result.error_message))
        raise InvalidRequest(f"The response has no entry for {subject}.")

    found = cluster.retry(timeout_s, attempt)
    if isinstance(found, KafkaError):
        raise found
    return found


def _node(resource: Resource, name: str) -> int | None:
    """Return the only node that can serve this resource; None if any can."""
    if resource not in (Resource.BROKER, Resource.BROKER_LOGGER) or not name:
        return None
    try:
        return int(name)
    except ValueError:
        raise ValueError(f"a broker is named by its node id, or '' for all, not {name!r}") from None
