"""kafkalite config: show and change the configuration of topics, nodes, groups and the cluster.

A resource is `topic NAME`, `node ID`, `cluster` (the default of all nodes), `group NAME`,
`client-metrics NAME` or `logger ID` (the log levels of a node).  Works with any Kafka broker;
`keys` lists the keys of this version of kafkalite.
"""

from __future__ import annotations

import fnmatch
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from kafkalite.cli.clients import CONNECTION, ClusterClients, ConnectionArguments
from kafkalite.cli.command import (
    UsageError,
    argument,
    columns,
    command,
    nearest,
    print_stderr,
    utf8,
)
from kafkalite.cli.resource import (
    APPEND,
    KINDS,
    SET,
    SUBTRACT,
    UNSET,
    DescribedValue,
    ResourceConfigs,
    ResourceName,
    ValueChange,
    listed,
)
from kafkalite.config.client import SCOPES as CLIENT_SCOPES
from kafkalite.config.key import ConfigKey
from kafkalite.config.resources import SCOPES
from kafkalite.errors import Refusal

HIDDEN = "(hidden)"
OPERATIONS = {SET: "set", UNSET: "unset", APPEND: "append", SUBTRACT: "subtract"}
SIGNS = {SET: "=", APPEND: "+=", SUBTRACT: "-="}

KIND = argument("kind", metavar="KIND", choices=list(KINDS), help=", ".join(KINDS))
JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
DRY_RUN = argument("--dry-run", action="store_true", help="validate the change without making it")


@command(
    KIND,
    argument(
        "arguments",
        nargs="*",
        type=utf8,
        metavar="NAME KEY",
        help="name of the resource, then keys or patterns",
    ),
    argument("-a", "--all", action="store_true", dest="whole", help="include defaults"),
    argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show all sources and the documentation of each key",
    ),
    JSON,
    *CONNECTION,
    name="get",
)
def values(
    kind: str,
    arguments: Sequence[str],
    whole: bool,
    verbose: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Show the effective values of the given keys, or of all keys that are not defaults.

    The source of a value is the topic, node, cluster or group on which it was set, `start` (config
    file or flag of kafkalite start), or `default`.

    Examples:
      kafkalite config get topic flights
      kafkalite config get topic flights retention.ms -v
      kafkalite config get node 0 'log.*' --json
      kafkalite config get cluster
    """
    resource, keys = addressed(kind, arguments)
    entries = ResourceConfigs(ClusterClients(**connection)).of(resource, documented=verbose)
    found = chosen(resource, entries, keys, whole)
    if as_json:
        described = [entry_fields(entry, verbose) for entry in found]
        print(json.dumps({"kind": kind, "name": resource.name, "configs": described}))
    elif verbose:
        print("\n\n".join("\n".join(entry_page(entry)) for entry in found))
    else:
        rows = [[entry.name, shown(entry), entry.source] for entry in found]
        print(columns(["KEY", "VALUE", "SOURCE"], rows))
    if not found:
        hint = "; show the defaults with --all" if entries else ""
        print_stderr(f"no values are set on {resource}{hint}")


@command(
    KIND,
    argument(
        "arguments",
        nargs="*",
        type=utf8,
        metavar="NAME KEY=VALUE",
        help="name of the resource, then values to set",
    ),
    DRY_RUN,
    JSON,
    *CONNECTION,
    name="set",
)
def set_values(
    kind: str,
    arguments: Sequence[str],
    dry_run: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Set keys, all or none; KEY+=VALUE and KEY-=VALUE add to and remove from a list.

    Examples:
      kafkalite config set topic flights retention.ms=3600000 max.message.bytes=2000000
      kafkalite config set cluster log.retention.hours=24
      kafkalite config set node 1 max.connections=500 --dry-run
      kafkalite config set logger 0 kafkalite.broker=DEBUG
      kafkalite config set client-metrics slow match=client_id=web.* interval.ms=5000
    """
    resource, assignments = addressed(kind, arguments)
    if not assignments:
        raise UsageError(f"specify what to set on {resource}: KEY=VALUE")
    changed(resource, list(map(change, assignments)), dry_run, as_json, connection)


@command(
    KIND,
    argument(
        "arguments",
        nargs="*",
        type=utf8,
        metavar="NAME KEY",
        help="name of the resource, then keys",
    ),
    DRY_RUN,
    JSON,
    *CONNECTION,
)
def unset(
    kind: str,
    arguments: Sequence[str],
    dry_run: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Remove values that were set; the next source, or the default, becomes effective.

    Examples:
      kafkalite config unset topic flights retention.ms
      kafkalite config unset cluster log.retention.hours
    """
    resource, keys = addressed(kind, arguments)
    if not keys:
        raise UsageError(f"specify the keys to unset on {resource}")
    changed(resource, [ValueChange(key, UNSET) for key in keys], dry_run, as_json, connection)


@command(
    argument(
        "kind", metavar="KIND", nargs="?", choices=list(KINDS), help="only resources of this kind"
    ),
    JSON,
    *CONNECTION,
    name="list",
)
def resources(kind: str | None, as_json: bool, **connection: Unpack[ConnectionArguments]) -> None:
    """List the resources that have configuration: topics, nodes, and others with values set.

    Examples:
      kafkalite config list
      kafkalite config list client-metrics
    """
    found = listed(ClusterClients(**connection), kind)
    if as_json:
        print(json.dumps([each._asdict() for each in found]))
    else:
        print(columns(["KIND", "NAME"], found))


@command(
    argument(
        "pattern",
        metavar="KEY",
        nargs="?",
        default="*",
        help="part of a key's name, or a pattern with * and ?",
    ),
    argument("--json", dest="as_json", action="store_true", help="print a JSON list"),
    *CONNECTION,
)
def keys(pattern: str, as_json: bool, **connection: Unpack[ConnectionArguments]) -> None:
    """List all configuration keys with type, default and documentation.

    The keys are those of this version of kafkalite; connection flags are accepted and ignored.

    Examples:
      kafkalite config keys
      kafkalite config keys retention
      kafkalite config keys 'log.*.ms' --json
    """
    found = [
        (scope.owner, key)
        for scope in (*SCOPES.values(), *CLIENT_SCOPES)
        for key in scope.values()
        if fnmatch.fnmatchcase(key.name, pattern) or pattern in key.name
    ]
    if not found:
        raise Refusal(f"no key matches {pattern!r} (see: kafkalite config keys)")
    if as_json:
        print(json.dumps([described(owner, key) for owner, key in found], indent=2))
    else:
        print("\n\n".join("\n".join(page(owner, key)) for owner, key in found))


def addressed(kind: str, arguments: Sequence[str]) -> tuple[ResourceName, Sequence[str]]:
    """Return the resource that the first words name, and the remaining words."""
    if kind == "cluster":
        return ResourceName(kind, ""), arguments
    if not arguments or not arguments[0].isprintable() or not arguments[0]:
        raise UsageError(f"specify the {kind}, as in: kafkalite config get {kind} NAME")
    return ResourceName(kind, arguments[0]), arguments[1:]


def change(word: str) -> ValueChange:
    """Return the change that KEY=VALUE, KEY+=VALUE or KEY-=VALUE describes."""
    parts = re.fullmatch(r"([^=]+?)([+-]?)=(.*)", word, flags=re.DOTALL)
    if not parts:
        raise UsageError(f"{word!r} is not of the form KEY=VALUE")
    key, sign, value = parts.groups()
    return ValueChange(key, {"": SET, "+": APPEND, "-": SUBTRACT}[sign], value)


def changed(
    resource: ResourceName,
    changes: Sequence[ValueChange],
    dry_run: bool,
    as_json: bool,
    connection: ConnectionArguments,
) -> None:
    """Change the keys and print the changes."""
    ResourceConfigs(ClusterClients(**connection)).change(resource, changes, dry_run)
    if as_json:
        change_fields = [
            {"key": key, "operation": OPERATIONS[operation], "value": value}
            for key, operation, value in changes
        ]
        fields = {"kind": resource.kind, "name": resource.name, "changes": change_fields}
        print(json.dumps({**fields, "dry_run": dry_run}))
        return
    for key, operation, value in changes:
        what = f"{key} unset" if operation == UNSET else f"{key}{SIGNS[operation]}{value}"
        print(f"{resource}: {what}{' (not set: --dry-run)' if dry_run else ''}")


def chosen(
    resource: ResourceName, entries: Sequence[DescribedValue], requested: Sequence[str], whole: bool
) -> list[DescribedValue]:
    """Return the requested entries; raise Refusal if a key does not exist."""
    if not requested:
        return [entry for entry in entries if whole or entry.source != "default"]
    found = []
    for word in requested:
        matching = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, word)]
        if not matching:
            hint = nearest(word, [entry.name for entry in entries])
            raise Refusal(f"{resource} has no key {word}{hint}")
        found += matching
    return sorted(set(found))


def shown(entry: DescribedValue) -> str | None:
    return HIDDEN if entry.sensitive else entry.value


def entry_fields(entry: DescribedValue, verbose: bool) -> dict[str, Any]:
    """Return an entry as JSON fields."""
    fields: dict[str, Any] = {
        "key": entry.name,
        "value": entry.value,
        "source": entry.source,
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "synonyms": [
            {"key": each.name, "value": each.value, "source": each.source}
            for each in entry.synonyms
        ],
    }
    return {**fields, "type": entry.type, "doc": entry.doc} if verbose else fields


def entry_page(entry: DescribedValue) -> Iterator[str]:
    """Yield the lines of an entry, with all its details."""
    fixed = "; cannot be changed while the broker runs" if entry.read_only else ""
    yield f"{entry.name} = {shown(entry) or ''}  ({entry.source}{fixed})"
    for each in entry.synonyms:
        value = HIDDEN if entry.sensitive else each.value
        yield f"    {each.source:<8} {each.name} = {value or ''}"
    if entry.doc:
        yield textwrap.fill(entry.doc, 96, initial_indent="    ", subsequent_indent="    ")


def described(owner: str, key: ConfigKey[object]) -> dict[str, object]:
    """Return a key as JSON fields."""
    return {
        "name": key.name,
        "scope": owner,
        "type": key.type.name.lower(),
        "default": None if key.default is None else key.format(key.default),
        "valid": key.check.words if key.check else None,
        "overrides": list(key.overrides),
        "dynamic": key.dynamic,
        "doc": key.doc,
    }


def page(owner: str, key: ConfigKey[object]) -> Iterator[str]:
    """Yield the lines of a key's description."""
    shown = key.format(key.default)
    default = f"default {shown}" if shown else "no default"
    valid = f"; must be {key.check.words}" if key.check else ""
    yield f"{key.name}  ({owner}; {key.type.name.lower()}; {default}{valid})"
    yield textwrap.fill(key.doc, 96, initial_indent="    ", subsequent_indent="    ")
    if key.overrides and key.overrides != (key.name,):
        yield f"    Overrides the broker's {', '.join(key.overrides)}."
