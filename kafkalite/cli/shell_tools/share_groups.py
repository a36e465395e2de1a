"""kafka-share-groups.sh: list, describe, reset and delete share groups (KIP-932).

A failure exits with code 1, also where Kafka's tool prints it and exits with 0.

Left out: connections with TLS or SASL, which the native client does not support.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkalite.cli import start_position
from kafkalite.cli.clients import REQUEST_TIMEOUT_S
from kafkalite.cli.command import print_stderr, warn
from kafkalite.cli.group_offsets import Destination, GroupOffsets
from kafkalite.cli.native_groups import NativeGroups
from kafkalite.cli.shell_tools import group_tables
from kafkalite.cli.shell_tools.cluster import (
    CONNECTION,
    ToolCluster,
    brokers,
    errors_as_refusals,
)
from kafkalite.cli.shell_tools.consumer_groups import (
    moment,
    named,
    print_deletions,
    timeout,
    topic,
)
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool
from kafkalite.client.admin.admin import Admin
from kafkalite.client.admin.group_requests import SHARE, GroupDescription
from kafkalite.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidGroupId,
    KafkaError,
    NonEmptyGroup,
    Refusal,
)

ACTIONS = ("list", "describe", "reset-offsets", "delete", "delete-offsets")
VIEWS = ("offsets", "members", "state")
STATES = {"empty": "Empty", "stable": "Stable", "dead": "Dead"}
GROUP_ERRORS = (GroupAuthorizationFailed, GroupIdNotFound, InvalidGroupId, NonEmptyGroup)
"""Errors of a deletion of offsets that concern the group and not one of the topics."""


def states(text: str) -> list[str]:
    """Parse the argument of --state: names of states, in any case."""
    names = [part.strip().lower() for part in text.split(",")]
    if not set(names) <= STATES.keys():
        raise ValueError(f"a list of {', '.join(STATES.values())}")
    return [STATES[name] for name in names]


POSITIONS: dict[str, Destination] = {
    "to-earliest": start_position.SinceTimestamp(start_position.BEGINNING),
    "to-latest": start_position.SinceTimestamp(start_position.END),
}
DESTINATIONS = (*POSITIONS, "to-datetime")
FLAGS = (
    *CONNECTION,
    Flag("list", help="list the share groups"),
    Flag("describe", help="describe share groups with their start offsets and lag"),
    Flag("reset-offsets", help="reset start offsets with --execute, or print them with --dry-run"),
    Flag("delete", help="delete share groups and their offsets"),
    Flag("delete-offsets", help="delete the offsets of a share group for topics"),
    Flag("group", "ID", "id of the share group; may be repeated", repeated=True),
    Flag("all-groups", help="all share groups"),
    Flag("topic", "NAME[:ID,…]", "topic, or partitions of it; may be repeated", topic, True),
    Flag("all-topics", help="all topics with offsets of the group"),
    Flag("offsets", help="with --describe: start offsets and lag (default)"),
    Flag("members", help="with --describe: the members"),
    Flag("state", "STATE,…", "with --describe: the state; with --list: filter by state", states,
         optional=True),
    Flag("verbose", help="with --describe: more columns"),
    Flag("to-earliest", help="reset to the earliest offset"),
    Flag("to-latest", help="reset to the latest offset"),
    Flag("to-datetime", "WHEN", "reset to YYYY-MM-DDThh:mm:ss.sss (UTC without a zone)", moment),
    Flag("dry-run", help="print the new offsets"),
    Flag("execute", help="set the new offsets"),
    Flag("timeout", "MS", "time limit of the requests", timeout),
)  # fmt: skip


def run(options: ParsedFlags) -> int | None:
    """List, describe, reset and delete share groups.

    Examples:
      kafka-share-groups.sh --bootstrap-server localhost:9092 --describe --group workers
      kafka-share-groups.sh --bootstrap-server localhost:9092 --reset-offsets --group workers \\
          --topic jobs --to-earliest --execute
    """
    options.requires("bootstrap-server")
    action = options.action(*ACTIONS)
    check(options, action)
    timeout_s = options.one("timeout", REQUEST_TIMEOUT_S * 1000) / 1000
    try:
        with errors_as_refusals():
            cluster = brokers(options)
            cluster.connected_admin()
            with NativeGroups(cluster, timeout_s).admin() as admin:
                return VERBS[action](cluster, admin, options)
    except Refusal as refusal:
        # Kafka writes errors to stdout, where scripts read them; users expect them on stderr.
        print(f"\nError: Executing share group command failed due to {refusal}")
        warn(str(refusal))
        return refusal.exit_code


def check(options: ParsedFlags, action: str) -> None:
    for name in ("all-topics", "execute", "dry-run", *DESTINATIONS):
        options.only_with(name, "reset-offsets")
    for name in ("offsets", "members", "verbose"):
        options.only_with(name, "describe")
    options.only_with("state", "describe", "list")
    options.only_with("topic", "reset-offsets", "delete-offsets")
    options.only_with("all-groups", "describe", "delete")
    if action == "list":
        options.excludes("list", ["group"])
    elif action in ("describe", "delete"):
        options.action("group", "all-groups")
    else:
        options.requires("group")
        if len(options.all("group")) > 1:
            raise Refusal(f"--{action} accepts only one --group")
    if action == "describe":
        if len([name for name in VIEWS if name in options]) > 1:
            raise Refusal(f"specify at most one of --{', --'.join(VIEWS)}")
        if options.one("state"):
            raise Refusal("--state does not take a value with --describe")
    if action == "delete-offsets":
        options.requires("topic")
        if any(ids is not None for _, ids in options.all("topic")):
            raise Refusal("--delete-offsets deletes the offsets of whole topics: omit :ID")
    if action == "reset-offsets":
        options.action(*DESTINATIONS)
        options.action("execute", "dry-run")
        options.action("topic", "all-topics")


def names(admin: Admin, options: ParsedFlags) -> list[str]:
    """Return the selected groups, each once."""
    if "all-groups" in options:
        return [group.group_id for group in admin.list_groups([SHARE])]
    return list(dict.fromkeys(options.all("group")))


def list_groups(cluster: ToolCluster, admin: Admin, options: ParsedFlags) -> int:
    found = admin.list_groups([SHARE], options.one("state") or ())
    if "state" in options:
        print(group_tables.share_states(found))
    elif found:
        print("\n".join(group.group_id for group in found))
    return 0


def described(admin: Admin, name: str) -> GroupDescription | None:
    """Return a share group, or None if there is none of this name."""
    try:
        found = admin.describe_group(name)
    except GroupIdNotFound:
        return None
    return found if found.type == SHARE else None


def describe(cluster: ToolCluster, admin: Admin, options: ParsedFlags) -> int:
    verbose = "verbose" in options
    for name in names(admin, options):
        group = described(admin, name)
        if group is None:
            raise Refusal(f"Group {name} not found.")
        if "state" in options:
            node = cluster.metadata(cluster.admin()).brokers[group.coordinator]
            at = group_tables.address(str(node.host), node.port, node.id)
            shown: str | None = group_tables.share_state(group, at, verbose)
        elif "members" in options:
            shown = group_tables.share_members(group, verbose) if group.members else None
        else:
            offsets = group_tables.share_offsets(name, admin.share_offsets(name), verbose)
            shown = offsets or f"Share group '{name}' has no offset information."
        if not group.members and ("state" in options or "members" in options):
            print_stderr(f"\nShare group '{name}' has no active members.")
        if shown is not None:
            print(f"\n{shown}", flush=True)
    return 0


def reset(cluster: ToolCluster, admin: Admin, options: ParsedFlags) -> int:
    (name,) = options.all("group")
    groups = GroupOffsets(cluster)
    group = described(admin, name)
    if group is not None and group.members:
        raise Refusal(f"Share group '{name}' is not empty.")
    chosen = list(named(groups, options)) if "topic" in options else list(admin.share_offsets(name))
    flag = next(flag for flag in DESTINATIONS if flag in options)
    where: Destination = POSITIONS[flag] if flag in POSITIONS else options.one(flag)
    offsets = groups.destinations(chosen, where, {})
    if "execute" in options:
        admin.alter_share_offsets(name, offsets)
    rows = [(name, *key, offset) for key, offset in sorted(offsets.items())]
    print(f"\n{group_tables.new_offsets(rows)}")
    return 0


def delete(cluster: ToolCluster, admin: Admin, options: ParsedFlags) -> int:
    found = {group.group_id: group.state for group in admin.list_groups([SHARE])}
    done: list[str] = []
    errors: dict[str, str] = {}
    for name in names(admin, options):
        if name not in found:
            errors[name] = f"Group '{name}' is not a share group."
            continue
        try:
            admin.delete_group(name)
            done.append(name)
        except NonEmptyGroup:
            errors[name] = f"Share group '{name}' is not EMPTY."
        except KafkaError as error:
            errors[name] = str(error)
    return print_deletions("share", done, errors)


def delete_offsets(cluster: ToolCluster, admin: Admin, options: ParsedFlags) -> int:
    (name,) = options.all("group")
    rows: list[tuple[str, str]] = []
    group_error: KafkaError | None = None
    for each in sorted({each for each, _ in options.all("topic")}):
        try:
            admin.delete_share_offsets(name, [each])
            rows.append((each, "Successful"))
        except KafkaError as error:
            rows.append((each, f"Error: {error}"))
            if isinstance(error, GROUP_ERRORS):
                group_error = error
    if group_error:
        print(f"\nError: {group_error}")
    print(f"\n{group_tables.topic_statuses(rows)}")
    return 0 if all(status == "Successful" for _, status in rows) else 1


VERBS: dict[str, Callable[[ToolCluster, Admin, ParsedFlags], int]] = {
    "list": list_groups,
    "describe": describe,
    "reset-offsets": reset,
    "delete": delete,
    "delete-offsets": delete_offsets,
}
TOOL = ShellTool(FLAGS, run)
