"""kafka-configs.sh: configuration of topics, brokers and groups, SCRAM credentials of users.

Left out: quotas of users, clients and addresses; broker loggers; --bootstrap-controller, since the
brokers serve these requests.  With TLS or SASL, synonyms of the same name are merged, and the
cluster-wide defaults and client metrics are not supported (resource.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kafkalite.cli.resource import (
    SET,
    UNSET,
    DescribedValue,
    ResourceConfigs,
    ResourceName,
    ValueChange,
    listed,
)
from kafkalite.cli.shell_tools import logins
from kafkalite.cli.shell_tools.cluster import CONNECTION, ToolCluster, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool
from kafkalite.cli.shell_tools.java_properties import properties_in
from kafkalite.errors import Refusal

NOT_SUPPORTED = "is not supported: quotas and loggers cannot be configured with this tool"


class EntityKind(NamedTuple):
    """A kind of entity: its noun, its kind in resource.py, and its own source."""

    noun: str
    kind: str
    own: str


KINDS = {
    "topics": EntityKind("topic", "topic", "topic"),
    "brokers": EntityKind("broker", "node", "node"),
    "groups": EntityKind("group", "group", "group"),
    "client-metrics": EntityKind("client-metric", "client-metrics", "client-metrics"),
    "users": EntityKind("user", "", ""),
}
DEFAULTS = EntityKind("broker", "cluster", "cluster")
SHORT = {
    "topic": "topics",
    "broker": "brokers",
    "group": "groups",
    "client-metrics": "client-metrics",
    "user": "users",
}
"""The flag that selects an entity of a type."""

SOURCES = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "node": "DYNAMIC_BROKER_CONFIG",
    "cluster": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "start": "STATIC_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
    "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
    "group": "DYNAMIC_GROUP_CONFIG",
}


def entity_type(text: str) -> str:
    """Parse the argument of --entity-type."""
    if text in ("clients", "ips", "broker-loggers"):
        raise Refusal(f"--entity-type {text} {NOT_SUPPORTED}")
    if text not in KINDS:
        raise ValueError(f"one of {', '.join(KINDS)}")
    return text


FLAGS = (
    *CONNECTION,
    Flag("describe", help="describe the configs"),
    Flag("alter", help="set or delete configs"),
    Flag("topic", "NAME", "the topic"),
    Flag("broker", "ID", "the broker"),
    Flag("broker-defaults", help="the default configs of all brokers"),
    Flag("group", "ID", "the group"),
    Flag("client-metrics", "NAME", "the client metrics subscription"),
    Flag("user", "NAME", "the user, for SCRAM credentials"),
    Flag("entity-type", "TYPE", f"one of {', '.join(KINDS)}", entity_type),
    Flag("entity-name", "NAME", "name of the entity (default: all entities of the type)"),
    Flag("entity-default", help="the default configs of all brokers"),
    Flag("all", help="with --describe: include configs from other sources and defaults"),
    Flag("add-config", "KEY=VALUE,…", "set configs; KEY=[A,B] for a value with commas"),
    Flag("add-config-file", "FILE", "set the configs in a properties file"),
    Flag("delete-config", "KEY,…", "delete these configs"),
    *(Flag(name, "NAME", refused=NOT_SUPPORTED) for name in ("client", "ip", "broker-logger")),
    *(
        Flag(name, refused=NOT_SUPPORTED)
        for name in ("client-defaults", "ip-defaults", "user-defaults")
    ),
    Flag("bootstrap-controller", "HOST:PORT", refused="is not supported: use --bootstrap-server"),
)


def run(options: ParsedFlags) -> int | None:
    """Describe and alter the configs of topics, brokers and groups.

    Examples:
      kafka-configs.sh --bootstrap-server localhost:9092 --describe --topic flights
      kafka-configs.sh --bootstrap-server localhost:9092 --alter --topic flights \\
          --add-config 'retention.ms=3600000,cleanup.policy=[compact,delete]'
    """
    options.requires("bootstrap-server")
    action = options.action("describe", "alter")
    kind, name = selected_entity(options)
    options.only_with("all", "describe")
    for flag in ("add-config", "add-config-file", "delete-config"):
        options.only_with(flag, "alter")
    options.excludes("add-config-file", ["add-config"])
    with errors_as_refusals():
        if action == "describe":
            describe(brokers(options), kind, name, every="all" in options)
        else:
            alter(brokers(options), kind, name, changes(options))
    return None


def selected_entity(options: ParsedFlags) -> tuple[EntityKind, str | None]:
    """Return the kind and name of the entity; the name None selects all."""
    types = [kind for flag, kind in SHORT.items() if flag in options]
    types += ["brokers"] * ("broker-defaults" in options)
    types += [options.one("entity-type")] * ("entity-type" in options)
    if len(types) != 1:
        flags = ", ".join(f"--{flag}" for flag in SHORT)
        raise Refusal(f"specify exactly one of {flags}, --broker-defaults, --entity-type")
    names = [options.one(flag) for flag in (*SHORT, "entity-name") if flag in options]
    defaults = [flag for flag in ("broker-defaults", "entity-default") if flag in options]
    if len(names) + len(defaults) > 1:
        raise Refusal("specify either one name or the defaults, not both")
    if names == [""]:
        raise Refusal("the name of an entity must not be empty")
    if defaults:
        if types != ["brokers"]:
            raise Refusal(f"{types[0]} have no default configs; use --entity-name")
        return DEFAULTS, ""
    return KINDS[types[0]], names[0] if names else None


def changes(options: ParsedFlags) -> list[ValueChange]:
    """Return the changes of --add-config and --delete-config."""
    added: dict[str, str] = {}
    if "add-config-file" in options:
        added = dict(properties_in(options.one("add-config-file")))
    elif "add-config" in options:
        added = dict(pairs(options.one("add-config")))
    deleted = [name.strip() for name in options.one("delete-config", "").split(",") if name.strip()]
    if not added and not deleted:
        raise Refusal("--alter requires --add-config, --add-config-file or --delete-config")
    return [
        *(ValueChange(key, SET, value) for key, value in added.items()),
        *(ValueChange(key, UNSET) for key in deleted),
    ]


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Split `a=1,b=[2,3]` at commas outside brackets."""
    for part in parted(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise Refusal(f"--add-config must be KEY=VALUE or KEY=[A,B], not {part!r}")
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        yield key.strip(), value


def parted(text: str) -> Iterator[str]:
    part, depth = "", 0
    for letter in text:
        if letter == "," and not depth:
            yield part
            part = ""
        else:
            depth += (letter == "[") - (letter == "]" and depth > 0)
            part += letter
    if part.strip():
        yield part


def alter(
    cluster: ToolCluster, kind: EntityKind, name: str | None, changes_made: list[ValueChange]
) -> None:
    if name is None:
        raise Refusal(f"specify the {kind.noun} to alter with --entity-name")
    if kind is KINDS["users"]:
        logins.change(cluster.connected_admin(), name, changes_made)
    else:
        ResourceConfigs(cluster).change(ResourceName(kind.kind, name), changes_made)
    default = "default config for brokers in the cluster"
    print(f"Completed updating {f'config for {kind.noun} {name}' if name else default}.")


# -- describe --------------------------------------------------------------------------------------


def describe(cluster: ToolCluster, kind: EntityKind, name: str | None, every: bool) -> None:
    if kind is KINDS["users"]:
        logins.describe(cluster.connected_admin(), name)
        return
    configs = ResourceConfigs(cluster)
    known = names(cluster, configs, kind)
    if name is not None and name not in known:
        print(f"The {kind.noun} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    for each in known if name is None else [name]:
        show(cluster, configs, kind, each, every)
    if name is None and kind is KINDS["brokers"]:
        show(cluster, configs, DEFAULTS, "", every)


def names(cluster: ToolCluster, configs: ResourceConfigs, kind: EntityKind) -> list[str]:
    """Return the names of all entities of a kind."""
    if kind is DEFAULTS:
        return [""]
    if kind is KINDS["topics"]:
        return sorted(cluster.metadata(configs.admin).topics)
    if kind is KINDS["brokers"]:
        return [*map(str, sorted(configs.nodes))]
    configured = {resource.name for resource in listed(cluster, kind.kind)}
    if kind is KINDS["groups"]:
        groups = configs.admin.list_consumer_groups().result().valid
        configured |= {group.group_id for group in groups}
    return sorted(configured)


def show(
    cluster: ToolCluster, configs: ResourceConfigs, kind: EntityKind, name: str, every: bool
) -> None:
    if kind is DEFAULTS:
        print("Default configs for brokers in the cluster are:")
    else:
        print(f"{'All' if every else 'Dynamic'} configs for {kind.noun} {name} are:")
    for entry in configs.of(ResourceName(kind.kind, name), documented=cluster.is_plaintext):
        print("".join(lines(kind, entry, every)), end="")


def lines(kind: EntityKind, entry: DescribedValue, every: bool) -> Iterable[str]:
    """Yield the line of an entry, if the flags select it."""
    own = any(each.source == kind.own for each in entry.synonyms) or entry.source == kind.own
    if not own and (not every or kind is DEFAULTS):
        return
    known = [
        f"{SOURCES.get(each.source, 'UNKNOWN')}:{each.name}={text(each.value)}"
        for each in entry.synonyms
        if kind is not DEFAULTS or each.source == kind.own
    ]
    sensitive = "true" if entry.sensitive else "false"
    shown = f"sensitive={sensitive} synonyms={{{', '.join(known)}}}"
    yield f"  {entry.name}={text(entry.value)} {shown}\n"


def text(value: str | None) -> str:
    return "null" if value is None else value


TOOL = ShellTool(FLAGS, run)
