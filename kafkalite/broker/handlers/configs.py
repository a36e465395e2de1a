"""Configs: describe, alter and list.

DescribeConfigs           v1–v4   v3 returns types and documentation
AlterConfigs              v0–v2   replaces all configs set on a resource
IncrementalAlterConfigs   v0–v1   sets, deletes, appends to lists and subtracts from them
ListConfigResources       v0–v1   v0 lists client-metrics subscriptions only

Each resource of a request succeeds or fails on its own.  The controller validates alterations and
computes their result (coordination/configs.py).  As in Kafka, a node describes only itself, and
clients request each node's configs from that node; any node accepts alterations.

A node's `listeners`, `advertised.listeners`, `node.id` and `log.dirs` are reported with their
actual values; the config file may leave them to be chosen at start.

Left out: plug-ins' own keys; an unknown key is refused, for brokers as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from socket import socket
from typing import Any, NamedTuple, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.controller.decisions import DecisionSequence
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.node_settings import logger_levels
from kafkalite.broker.security import (
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_NAME,
    DESCRIBE_CONFIGS,
    GROUP,
    TOPIC,
    AclOperation,
)
from kafkalite.broker.served_apis import EncodedResponse, Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.config.broker import ADVERTISED_LISTENERS, LISTENERS, LOG_DIRS, NODE_ID
from kafkalite.config.key import ConfigKey
from kafkalite.config.resources import SCOPES, Resource
from kafkalite.config.settings import ConfigSynonym, Settings, Source, value_text
from kafkalite.coordination import topic_names
from kafkalite.coordination.configs import ConfigAlteration, ConfigChange, broker_id, check_kind
from kafkalite.coordination.image import NodeImage
from kafkalite.errors import InvalidRequest, KafkaError, UnsupportedVersion
from kafkalite.protocol.schemas import configs as schemas
from kafkalite.storage.files import layout
from kafkalite.storage.manager.log_manager import LogManager


def _authorize(client: ClientContext, operation: AclOperation, kind: Resource, name: str) -> None:
    """Raise an authorization error unless the principal may do this to the resource's configs."""
    if kind is Resource.TOPIC:
        client.must(operation, TOPIC, name)
    elif kind is Resource.GROUP:
        client.must(operation, GROUP, name)
    else:
        client.must(operation, CLUSTER, CLUSTER_NAME)


# -- DescribeConfigs -----------------------------------------------------------------------------


class ConfigEntry(NamedTuple):
    """One key of a resource, with its value, as described to clients."""

    key: ConfigKey[Any]
    value: str | None
    synonyms: list[ConfigSynonym]
    source: Source


class ConfigsNode(HandlerNode, Protocol):
    """The components that config requests use."""

    listener: socket
    logs: LogManager

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node."""


@serves(schemas.DESCRIBE_CONFIGS, versions="1-4", at=ServingNode.ANY)
def describe_configs(
    node: ConfigsNode, request: Any, client: ClientContext
) -> Work[EncodedResponse]:
    """Return the configs in force on resources, and their sources."""
    description = ConfigDescriptions(node, request, client)
    # A resource named several times is described once: clients match results by resource.
    wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
    for resource in wanted.values():
        description.add(resource)
        yield
    return description.encoded()


class ConfigDescriptions:
    """The response to one DescribeConfigs, encoded resource by resource: a topic costs 40 µs."""

    def __init__(self, node: ConfigsNode, request: Any, client: ClientContext) -> None:
        self._node = node
        self._client = client
        self._synonyms = request.include_synonyms
        self._documentation = request.include_documentation
        self._shared_configs: SharedConfigs = {}
        self._results: list[bytes] = []
        self._errors: list[Response] = []

    def add(self, resource: Any) -> None:
        """Encode and append the result for one resource."""
        result = self._result(resource)
        if "error_code" in result:
            self._errors.append(result)
        encoded = schemas.DESCRIBED_RESOURCES.write_element(self._client.version, result)
        self._results.append(encoded)

    def encoded(self) -> EncodedResponse:
        """Return the whole encoded response."""
        body = schemas.DESCRIBED_RESOURCES.write(self._client.version, self._results)
        return EncodedResponse(body, {"results": self._errors})

    def _result(self, wanted: Any) -> Response:
        identity = {"resource_type": wanted.resource_type, "resource_name": wanted.resource_name}
        try:
            kind = check_kind(wanted.resource_type)
            _authorize(self._client, DESCRIBE_CONFIGS, kind, wanted.resource_name)
            configs = self._configs(kind, wanted.resource_name, wanted.configuration_keys)
        except KafkaError as error:
            return {**identity, **error_fields(error)}
        return {**identity, "error_message": None, "configs": configs}

    def _configs(self, kind: Resource, name: str, keys: Sequence[str] | None) -> list[Response]:
        """Return the entries of one resource; topics with equal configs share theirs."""
        shared_key: tuple[Any, ...] | None = None
        if kind is Resource.TOPIC:
            topic_names.check(name)
            overrides = self._node.metadata.config_of(self._node.image.topic(name))
            shared_key = tuple(overrides.items()), tuple(keys or ())
            if shared_key in self._shared_configs:
                return self._shared_configs[shared_key]
            settings = self._node.metadata.settings_of(overrides)
            entries = _effective_entries(SCOPES[kind].values(), settings)
        else:
            entries = _DESCRIBE[kind](self._node, self._client, name)
        if keys:
            named = {entry.key.name: entry for entry in entries}
            entries = [named[key] for key in dict.fromkeys(keys) if key in named]
        configs = [_entry(entry, self._synonyms, self._documentation) for entry in entries]
        if shared_key is not None:
            self._shared_configs[shared_key] = configs
        return configs


SharedConfigs = dict[tuple[Any, ...], list[Response]]
"""Descriptions that topics share, by their config and the requested keys."""


def _entry(entry: ConfigEntry, synonyms: bool, documentation: bool) -> Response:
    key = entry.key
    return {
        "name": key.name,
        "value": entry.value,
        "read_only": not key.dynamic,
        "config_source": entry.source,
        "is_sensitive": key.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.text, "source": synonym.source}
            for synonym in (entry.synonyms if synonyms else ())
        ],
        "config_type": key.type,
        "documentation": key.doc if documentation else None,
    }


def _effective_entries(keys: Iterable[ConfigKey[Any]], settings: Settings) -> Iterable[ConfigEntry]:
    for key in keys:
        synonyms = list(settings.synonyms(key))
        yield ConfigEntry(key, value_text(key, settings[key]), synonyms, settings.source(key))


def _broker_entries(node: ConfigsNode, client: ClientContext, name: str) -> Iterable[ConfigEntry]:
    keys = SCOPES[Resource.BROKER]
    if not name:
        # Only what is set cluster-wide, nothing else.
        configs = node.image.config_of(Resource.BROKER, "")
        dynamic = {key: text for key, text in configs.items() if key in keys}
        settings = Settings.of(Source.DYNAMIC_DEFAULT_BROKER, keys, dynamic)
        for key in _effective_entries([keys[name] for name in dynamic], settings):
            yield key._replace(synonyms=key.synonyms[:1])
        return
    _check_own_id(node, name)
    facts = _listener_values(node, client)
    for key in _effective_entries(keys.values(), node.settings):
        yield key._replace(value=facts.get(key.key, key.value))


def _listener_values(node: ConfigsNode, client: ClientContext) -> Mapping[ConfigKey[Any], str]:
    host, port, *_ = node.listener.getsockname()
    here = NodeImage(node.node_id, host, port)
    return {
        NODE_ID: str(node.node_id),
        LISTENERS: _url(host, port),
        ADVERTISED_LISTENERS: _url(*node.metadata.advertised(client, here)),
        LOG_DIRS: str(layout.log_directory(node.logs.data)),
    }


def _url(host: str, port: int) -> str:
    return f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}"


def _check_own_id(node: ConfigsNode, name: str) -> None:
    if broker_id(name) != node.node_id:
        raise InvalidRequest(
            f"This is broker {node.node_id}; request the configs of broker {name} from that broker."
        )


def _logger_entries(node: ConfigsNode, client: ClientContext, name: str) -> Iterable[ConfigEntry]:
    _check_own_id(node, name)
    for logger, level in logger_levels().items():
        yield ConfigEntry(SCOPES[Resource.BROKER_LOGGER][logger], level, [], Source.BROKER_LOGGER)


def _subscription_entries(
    node: ConfigsNode, client: ClientContext, name: str
) -> Iterable[ConfigEntry]:
    keys = SCOPES[Resource.CLIENT_METRICS]
    return _effective_entries(
        keys.values(),
        Settings.of(Source.CLIENT_METRICS, keys, _texts(node, Resource.CLIENT_METRICS, name)),
    )


def _group_entries(node: ConfigsNode, client: ClientContext, name: str) -> Iterable[ConfigEntry]:
    settings = node.settings.for_group(_texts(node, Resource.GROUP, name))
    return _effective_entries(SCOPES[Resource.GROUP].values(), settings)


def _texts(node: ConfigsNode, kind: Resource, name: str) -> Mapping[str, str]:
    """Return what is set on a resource that exists by its configs only."""
    if not name:
        raise InvalidRequest("The resource name is empty.")
    return node.image.config_of(kind, name)


_DESCRIBE: dict[Resource, Callable[[ConfigsNode, ClientContext, str], Iterable[ConfigEntry]]] = {
    Resource.BROKER: _broker_entries,
    Resource.BROKER_LOGGER: _logger_entries,
    Resource.CLIENT_METRICS: _subscription_entries,
    Resource.GROUP: _group_entries,
}


# -- AlterConfigs, IncrementalAlterConfigs -------------------------------------------------------


@serves(schemas.ALTER_CONFIGS, versions="0-2", at=ServingNode.CONTROLLER, is_cancellable=False)
def alter_configs(node: ConfigsNode, request: Any, client: ClientContext) -> Work[Future[Response]]:
    """Replace all configs set on resources; with `validate_only`, only validate."""
    wanted = []
    for requested in request.resources:
        changes = [ConfigChange(config.name, config.value) for config in requested.configs]
        wanted.append(
            ConfigAlteration(
                requested.resource_type, requested.resource_name, changes, replaces=True
            )
        )
        yield
    return (yield from _alter(node, client, wanted, request.validate_only))


@serves(
    schemas.INCREMENTAL_ALTER_CONFIGS,
    versions="0-1",
    at=ServingNode.CONTROLLER,
    is_cancellable=False,
)
def incremental_alter_configs(
    node: ConfigsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Change single keys of resources; with `validate_only`, only validate."""
    wanted = []
    for requested in request.resources:
        changes = [
            ConfigChange(config.name, config.value, config.config_operation)
            for config in requested.configs
        ]
        wanted.append(ConfigAlteration(requested.resource_type, requested.resource_name, changes))
        yield
    return (yield from _alter(node, client, wanted, request.validate_only))


def _alter(
    node: ConfigsNode, client: ClientContext, wanted: list[ConfigAlteration], validate_only: bool
) -> Work[Future[Response]]:
    """Submit the authorized alterations to the controller; respond in the order of the request."""
    counts: Counter[tuple[int, str]] = Counter()
    for alteration in wanted:
        counts[alteration.resource] += 1
        yield
    results: dict[tuple[int, str], Response] = {}
    authorized = []
    for alteration in wanted:
        try:
            if counts[alteration.resource] > 1:
                raise InvalidRequest("The request has the same resource more than once.")
            _authorize(client, ALTER_CONFIGS, check_kind(alteration.kind), alteration.name)
            if alteration.replaces and alteration.kind == Resource.BROKER_LOGGER:
                raise InvalidRequest("Log levels can be altered only with IncrementalAlterConfigs.")
            authorized.append(alteration)
        except KafkaError as error:
            results[alteration.resource] = _result(alteration.resource, error)
        yield

    def on_decided(outcomes: Mapping[tuple[int, str], KafkaError | None]) -> None:
        results.update((resource, _result(resource, error)) for resource, error in outcomes.items())

    return (
        DecisionSequence(
            node.local_controller,
            authorized,
            lambda controller, batch: controller.alter_configs(
                batch, node.settings, validate_only=validate_only
            ),
            name_of=lambda alteration: alteration.resource,
            weigh=lambda alteration: 1 + len(alteration.changes),
            on_decided=on_decided,
        )
        .begin()
        .map(lambda _: {"responses": [results[each.resource] for each in wanted]})
    )


def _result(resource: tuple[int, str], error: KafkaError | None) -> Response:
    identity = {"resource_type": resource[0], "resource_name": resource[1]}
    return (
        {**identity, "error_message": None}
        if error is None
        else {**identity, **error_fields(error)}
    )


# -- ListConfigResources -------------------------------------------------------------------------


@serves(schemas.LIST_CONFIG_RESOURCES, versions="0-1", at=ServingNode.ANY)
def list_config_resources(node: ConfigsNode, request: Any, client: ClientContext) -> Response:
    """Return the resources that have configs or may have some."""
    client.must(DESCRIBE_CONFIGS, CLUSTER, CLUSTER_NAME)
    kinds = [Resource.CLIENT_METRICS]
    if client.version >= 1:
        unknown = [kind for kind in request.resource_types if kind not in SCOPES]
        if unknown:
            raise UnsupportedVersion(f"Unsupported resource type {unknown[0]}.")
        kinds = [Resource(kind) for kind in dict.fromkeys(request.resource_types)] or [*Resource]
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind in kinds
            for name in _names(node, kind)
        ]
    }


def _names(node: ConfigsNode, kind: Resource) -> Iterable[str]:
    if kind is Resource.TOPIC:
        return list(node.image.topics)
    if kind in (Resource.BROKER, Resource.BROKER_LOGGER):
        return [str(dynamic.node_id) for dynamic in node.image.nodes.values() if dynamic.port]
    return [name for of_kind, name in node.image.configs if of_kind == kind]
