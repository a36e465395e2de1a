"""kafkalite group: show consumer and share groups and their lag, reset and delete their offsets.

Works with any Kafka broker.  Left out: other groups, such as those of Kafka Connect.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from confluent_kafka import ConsumerGroupType, KafkaError
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, OffsetSpec

from kafkalite.cli.clients import (
    CONNECTION,
    REQUEST_TIMEOUT_S,
    ClusterClients,
    ConnectionArguments,
    kafka_errors_as_refusals,
    node_error,
    settled,
)
from kafkalite.cli.command import UsageError, argument, columns, command, print_stderr, printable
from kafkalite.cli.group_offsets import (
    STATE_NAMES,
    STATES,
    Destination,
    GroupCommit,
    GroupOffsets,
    ListedOffsets,
    PartitionSelection,
    ShiftedPosition,
    destination,
    read_offsets,
    span,
)
from kafkalite.cli.membership import by_topic, format_partitions
from kafkalite.cli.native_groups import NativeGroups, epochs, share_page, state_of
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.topic import raise_errors
from kafkalite.client.admin.group_requests import SHARE, GroupListing
from kafkalite.errors import Refusal

NAMES = argument("names", nargs="+", metavar="GROUP", type=printable, help="name of a group")
JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")
SPANS = argument(
    "-t",
    "--topic",
    dest="spans",
    type=span,
    action="append",
    default=[],
    metavar="TOPIC[:PARTITIONS]",
    help="only this topic, or these partitions of it (flights:0,2-5); may be repeated",
)
TYPES = {
    "classic": ConsumerGroupType.CLASSIC,
    "consumer": ConsumerGroupType.CONSUMER,
    "share": None,
}
"""librdkafka's names of the types; it does not know share groups."""


@command(
    argument("pattern", nargs="?", default="", help="only groups whose name contains this"),
    argument(
        "--state",
        dest="states",
        action="append",
        choices=STATE_NAMES,
        metavar="STATE",
        help=f"only groups in this state; may be repeated ({', '.join(STATE_NAMES)})",
    ),
    argument("--type", dest="type", choices=list(TYPES), help="only groups of this protocol"),
    argument(
        "--names", action="store_true", dest="only_names", help="print only the names, one per line"
    ),
    JSON,
    *CONNECTION,
    name="list",
)
def list_groups(
    pattern: str,
    states: Sequence[str] | None,
    type: str | None,
    only_names: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """List the groups with their states and types.

    Examples:
      kafkalite group list
      kafkalite group list --type share
      kafkalite group list --state Empty --names | xargs kafkalite group delete
    """
    cluster = ClusterClients(**connection)
    groups: list[dict[str, Any]] = []
    errors: list[str] = []
    admin = cluster.connected_admin()
    newer: Mapping[str, GroupListing] = {}
    try:
        newer = NativeGroups(cluster).listed()
    except Refusal as refusal:
        errors.append(str(refusal))
    if type != "share":
        groups, others = listed(admin, TYPES[type] if type else None, newer)
        errors += others
    if type in (None, "share"):
        groups += [
            {"name": each.group_id, "state": each.state, "type": each.type, "simple": False}
            for each in newer.values()
            if each.type == SHARE
        ]
    groups = sorted(
        (
            group
            for group in groups
            if pattern in group["name"] and (not states or group["state"] in states)
        ),
        key=lambda group: group["name"],
    )
    if as_json:
        print(json.dumps(groups))
    elif only_names:
        print("".join(f"{group['name']}\n" for group in groups), end="")
    else:
        rows = [[group["name"], group["state"], group["type"]] for group in groups]
        print(columns(["GROUP", "STATE", "TYPE"], rows))
    if errors:
        raise Refusal(f"the list is incomplete, a node did not respond: {errors[0]}")


def listed(
    admin: AdminClient, type: ConsumerGroupType | None, newer: Mapping[str, GroupListing]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the groups that librdkafka knows, and the errors of nodes.

    The states are those of `newer` if it has them: librdkafka does not know all.
    """
    filters: dict[str, Any] = {"request_timeout": REQUEST_TIMEOUT_S}
    if type:
        filters["types"] = {type}
    with kafka_errors_as_refusals():
        found = admin.list_consumer_groups(**filters).result()
    groups = [
        {
            "name": group.group_id,
            "state": state_of(newer.get(group.group_id)) or STATES[group.state],
            "type": group.type.name.lower(),
            "simple": group.is_simple_consumer_group,
        }
        for group in found.valid
    ]
    return groups, [node_error(error) for error in found.errors]


@command(NAMES, JSON, *CONNECTION)
def describe(
    names: Sequence[str], as_json: bool, **connection: Unpack[ConnectionArguments]
) -> None:
    """Describe groups: state, members, committed offsets and lag of each partition.

    Examples:
      kafkalite group describe readers
      kafkalite group describe readers --json | jq '.[0].lag'
    """
    groups = GroupOffsets(ClusterClients(**connection))
    native = NativeGroups(groups.cluster)
    found, missing = [], []
    for name in names:
        group = groups.described(name)
        share_group = native.share_group(name) if group is None else None
        if group is not None:
            found.append(described(groups, group, native))
        elif share_group is not None:
            found.append(share_group)
        else:
            missing.append(name)
    if as_json:
        print(json.dumps(found))
    elif found:
        pages = (share_page(each) if each["type"] == SHARE else page(each) for each in found)
        print("\n\n".join(pages))
    if missing:
        raise Refusal(f"group {', '.join(missing)} does not exist (see: kafkalite group list)")


@command(
    NAMES,
    SPANS,
    argument("--if-exists", action="store_true", help="skip groups that do not exist"),
    JSON,
    *CONNECTION,
)
def delete(
    names: Sequence[str],
    spans: Sequence[PartitionSelection],
    if_exists: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Delete groups without members, or their committed offsets of a topic.

    Examples:
      kafkalite group delete readers
      kafkalite group delete readers -t flights -t audit:0
    """
    groups = GroupOffsets(ClusterClients(**connection))
    if spans:
        delete_offsets(groups, names, spans, if_exists, as_json)
        return
    with kafka_errors_as_refusals():
        for name in names:
            groups.described(name)  # waits until the coordinator has loaded the group
        deleted, errors = settled(groups.admin.delete_consumer_groups(list(dict.fromkeys(names))))
    tolerated = {
        name
        for name, error in errors.items()
        if if_exists and error.code() == KafkaError.GROUP_ID_NOT_FOUND
    }
    if as_json:
        print(json.dumps([{"name": name, "deleted": name in deleted} for name in names]))
    else:
        for name in names:
            if name in deleted or name in tolerated:
                print(f"{name} {'deleted' if name in deleted else 'did not exist'}")
    raise_errors(
        {f"group {name}": error for name, error in errors.items() if name not in tolerated}
    )


def delete_offsets(
    groups: GroupOffsets,
    names: Sequence[str],
    spans: Sequence[PartitionSelection],
    if_exists: bool,
    as_json: bool,
) -> None:
    """Delete committed offsets of groups, and print them."""
    rows: list[tuple[Any, ...]] = []
    native = NativeGroups(groups.cluster)
    for name in names:
        group = groups.described(name)
        share_group = native.share_group(name) if group is None else None
        if share_group is not None:
            rows += deleted_share_offsets(native, share_group, spans)
            continue
        if group is None and not if_exists:
            groups.existing(name)  # raises the refusal
        if group is None:
            continue
        topic_partitions = []
        committed = groups.committed(name)
        for topic, partitions in spans:
            matching = [key for key in committed if key[0] == topic]
            topic_partitions += [
                key for key in matching if partitions is None or key[1] in partitions
            ]
        if not topic_partitions:
            raise Refusal(f"group {name} has no committed offsets for the selected partitions")
        groups.delete_offsets(group, topic_partitions)
        rows += [(name, *key, committed[key].offset) for key in topic_partitions]
    if as_json:
        fields = ("group", "topic", "partition", "offset")
        print(json.dumps([dict(zip(fields, row, strict=True)) for row in rows]))
    else:
        print(columns(["GROUP", "TOPIC", "PARTITION", "DELETED"], rows))


def deleted_share_offsets(
    native: NativeGroups, group: Mapping[str, Any], spans: Sequence[PartitionSelection]
) -> list[tuple[Any, ...]]:
    """Delete the state of topics of a share group; return the deleted rows."""
    name = group["name"]
    if any(partitions is not None for _, partitions in spans):
        raise Refusal(f"group {name} is a share group: only whole topics can be deleted from it")
    topics = [topic for topic, _ in spans]
    found = [each for each in group["partitions"] if each["topic"] in topics]
    if not found:
        raise Refusal(f"group {name} has no offsets for the selected topics")
    native.delete_offsets(name, sorted({each["topic"] for each in found}))
    return [(name, each["topic"], each["partition"], each["start"]) for each in found]


@command(
    NAMES,
    SPANS,
    argument(
        "--all-topics",
        action="store_true",
        help="all partitions for which the group has committed offsets",
    ),
    argument(
        "--to",
        dest="where",
        type=destination,
        metavar="WHERE",
        help="beginning, end, current, OFFSET, -COUNT, @-10m, @2013-01-01T09:30, s@MILLISECONDS",
    ),
    argument(
        "--shift-by",
        type=int,
        metavar="COUNT",
        help="add COUNT to the committed offsets; it may be negative",
    ),
    argument(
        "--from-file", metavar="FILE", help="read CSV lines topic,partition,offset; - is stdin"
    ),
    argument(
        "--dry-run", action="store_true", help="print the new offsets without committing them"
    ),
    argument("--export", action="store_true", help="print CSV for --from-file, in Kafka's format"),
    JSON,
    *CONNECTION,
)
def reset(
    names: Sequence[str],
    spans: Sequence[PartitionSelection],
    all_topics: bool,
    where: Destination | None,
    shift_by: int | None,
    from_file: str | None,
    dry_run: bool,
    export: bool,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Reset the committed offsets of groups without members.

    An offset outside the partition's range is replaced by the nearest valid one.  A group that does
    not exist is created.

    Examples:
      kafkalite group reset readers --all-topics --to beginning --dry-run
      kafkalite group reset readers -t flights --to @-10m
      kafkalite group reset readers -t flights:0,2-5 --shift-by -100
      kafkalite group reset readers --all-topics --to current --dry-run --export > offsets.csv
      kafkalite group reset readers --from-file offsets.csv
    """
    if [where, shift_by, from_file].count(None) != 2:
        raise UsageError("specify exactly one of --to WHERE, --shift-by COUNT, --from-file FILE")
    if (bool(spans) + all_topics + (from_file is not None)) != 1:
        raise UsageError("specify exactly one of -t TOPIC, --all-topics, --from-file FILE")
    if export and as_json:
        raise UsageError("--export and --json exclude each other")
    if shift_by is not None:
        where = ShiftedPosition(shift_by)
    listed = offsets_in(from_file, names) if from_file is not None else {}
    groups = GroupOffsets(ClusterClients(**connection))
    plans = [
        plan(groups, name, spans, ListedOffsets(listed[name]) if listed else where)
        for name in dict.fromkeys(names)
    ]
    if not dry_run:
        for each in plans:
            each.commit(groups)
    else:
        print_stderr("dry run: no offsets were committed")
    rows = [row for each in plans for row in each.rows()]
    if as_json:
        fields = ("group", "topic", "partition", "old_offset", "new_offset")
        print(json.dumps([dict(zip(fields, row, strict=True)) for row in rows]))
    elif export:
        lines = [[row[0], row[1], row[2], row[4]][len(plans) == 1 :] for row in rows]
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
    else:
        print(columns(["GROUP", "TOPIC", "PARTITION", "OLD", "NEW"], rows))


class ResetPlan(NamedTuple):
    """The new offsets of a group."""

    group: str
    committed: Mapping[PartitionKey, int | None]
    offsets: Mapping[PartitionKey, int]
    is_share_group: bool

    def commit(self, groups: GroupOffsets) -> None:
        """Set the new offsets."""
        if self.is_share_group:
            NativeGroups(groups.cluster).reset(self.group, self.offsets)
        else:
            groups.commit(self.group, self.offsets)

    def rows(self) -> Iterator[tuple[str, str, int, int | None, int]]:
        for key, offset in sorted(self.offsets.items()):
            yield self.group, *key, self.committed.get(key), offset


def plan(
    groups: GroupOffsets, name: str, spans: Sequence[PartitionSelection], where: Destination | None
) -> ResetPlan:
    """Return the new offsets of a group; raise Refusal if it has members."""
    assert where is not None
    found = groups.described(name)
    share_group = NativeGroups(groups.cluster).share_group(name) if found is None else None
    if found is not None:
        check_empty(name, STATES[found.state], len(found.members))
        committed = groups.committed(name)
    elif share_group is not None:
        check_empty(name, share_group["state"], len(share_group["members"]))
        committed = {
            (each["topic"], each["partition"]): GroupCommit(each["start"] or 0, None, None)
            for each in share_group["partitions"]
        }
    else:
        committed = {}
    if isinstance(where, ListedOffsets):
        spans = [PartitionSelection(topic, (partition,)) for topic, partition in where.offsets]
    topic_partitions = groups.selected(spans) if spans else list(committed)
    if not topic_partitions:
        raise Refusal(f"group {name} has no committed offsets; select topics with -t")
    offsets = groups.destinations(topic_partitions, where, committed)
    old_offsets = {key: commit.offset for key, commit in committed.items()}
    return ResetPlan(name, old_offsets, offsets, share_group is not None)


def check_empty(name: str, state: str, count: int) -> None:
    """Raise Refusal if a group has members."""
    if count:
        raise Refusal(
            f"group {name} is {state} with {count} member{'' if count == 1 else 's'};"
            " stop its members before resetting it"
        )


def offsets_in(file: str, names: Sequence[str]) -> dict[str, dict[PartitionKey, int]]:
    """Return the offsets in a file, by group."""
    if file == "-":
        return read_offsets("stdin", sys.stdin, names)
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            return read_offsets(file, lines, names)
    except UnicodeDecodeError:
        raise Refusal(f"{file} is not valid UTF-8") from None


def described(
    groups: GroupOffsets, group: ConsumerGroupDescription, native: NativeGroups
) -> dict[str, Any]:
    """Return a group's description as `--json` prints it."""
    has_epochs = group.type is ConsumerGroupType.CONSUMER
    details = native.described(group.group_id) if has_epochs else None
    member_epochs = {each.member_id: each.epoch for each in details.members} if details else {}
    committed = groups.committed(group.group_id)
    owners = {
        (each.topic, each.partition): member
        for member in group.members
        for each in member.assignment.topic_partitions
    }
    topic_partitions = sorted({*committed, *owners})
    ends = groups.bounds(topic_partitions, OffsetSpec.latest())
    partitions = []
    for key in topic_partitions:
        commit, end, owner = (
            committed.get(key),
            ends.get(key),
            owners.get(key),
        )
        partitions.append(
            {
                "topic": key[0],
                "partition": key[1],
                "committed": commit.offset if commit else None,
                "end": end,
                "lag": max(0, end - commit.offset) if commit and end is not None else None,
                "metadata": commit.metadata if commit else None,
                "member": owner.member_id if owner else None,
            }
        )
    return {
        "name": group.group_id,
        "state": state_of(details) or STATES[group.state],
        "type": group.type.name.lower(),
        "assignor": group.partition_assignor,
        **epochs(details),
        "coordinator": {
            "id": group.coordinator.id,
            "host": group.coordinator.host,
            "port": group.coordinator.port,
        },
        "lag": sum(each["lag"] or 0 for each in partitions),
        "partitions": partitions,
        "members": [
            {
                "id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "epoch": member_epochs.get(member.member_id),
                "partitions": by_topic(member.assignment.topic_partitions),
            }
            for member in sorted(group.members, key=lambda member: member.member_id)
        ],
    }


def page(group: Mapping[str, Any]) -> str:
    """Return a group's description as text."""
    node = group["coordinator"]
    assignor = f", {group['assignor']}" if group["assignor"] else ""
    if group["epoch"] is not None:
        assignor += f", epoch {group['epoch']}"
    uncommitted = sum(each["committed"] is None for each in group["partitions"])
    lines = [
        f"group {group['name']}",
        f"state {group['state']} ({group['type']}{assignor})",
        f"coordinator node {node['id']} at {node['host']}:{node['port']}",
        f"lag {group['lag']}" + (f", partitions uncommitted: {uncommitted}" if uncommitted else ""),
    ]
    if group["partitions"]:
        titles = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
        keys = ["topic", "partition", "committed", "end", "lag", "member"]
        lines += [
            "",
            columns(titles, ([each[key] for key in keys] for each in group["partitions"])),
        ]
    if group["members"]:
        has_epochs = group["epoch"] is not None
        titles = ["MEMBER", "CLIENT", "HOST", "INSTANCE", *["EPOCH"] * has_epochs, "PARTITIONS"]
        rows = [
            [
                member["id"],
                member["client_id"],
                member["host"],
                member["instance_id"],
                *[member["epoch"]] * has_epochs,
                format_partitions(member["partitions"]) or None,
            ]
            for member in group["members"]
        ]
        lines += ["", columns(titles, rows)]
    return "\n".join(lines)
