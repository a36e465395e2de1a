"""Tables of kafka-consumer-groups.sh and kafka-share-groups.sh, for scripts that parse them.

Their columns have Kafka's widths.

Left out: over TLS and SASL, the epochs of consumer groups and the members to be upgraded; dashes
are printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka.admin import (
    ConsumerGroupDescription,
    MemberAssignment,
    MemberDescription,
)

from kafkalite.cli.group_offsets import GroupCommit
from kafkalite.cli.reading import PartitionKey
from kafkalite.client.admin.group_requests import CONSUMER, GroupDescription, GroupListing
from kafkalite.client.admin.share_requests import ShareOffset
from kafkalite.client.net.topology import TopicPartition

MISSING = "-"
LAST = 0
"""Width of the last column, which is not padded."""

Column = tuple[str, int]


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], grow: str = "") -> str:
    """Return columns padded to their widths; those in `grow`, a list of the first words of their
    titles, fit their longest cell."""
    cells = [[MISSING if cell is None else str(cell) for cell in row] for row in rows]
    widths = [
        max([width, *(len(row[at]) for row in cells)]) if name.split()[0] in grow.split() else width
        for at, (name, width) in enumerate(columns)
    ]
    lines = [[name for name, _ in columns], *cells]
    return "\n".join(
        " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def listing(groups: Sequence[tuple[str, str, str]], with_type: bool, with_state: bool) -> str:
    """Return the groups with the requested columns."""
    width = max([15, *(len(name) for name, _, _ in groups)]) + 10
    columns = [("GROUP", width)]
    columns += [("TYPE", 20)] * with_type + [("STATE", 20)] * with_state
    rows = [[name, *[kind] * with_type, *[state] * with_state] for name, kind, state in groups]
    return table(columns, rows)


def offsets(
    group: ConsumerGroupDescription,
    committed: Mapping[PartitionKey, GroupCommit],
    ends: Mapping[PartitionKey, int],
    verbose: bool,
) -> str | None:
    """Return the group's offsets and lag by partition."""
    owned = [
        (key, member)
        for member in sorted(group.members, key=lambda each: -len(assigned(each)))
        for key in sorted(assigned(member))
    ]
    owned_partitions = {key for key, _ in owned}
    rows = []
    for key, member in [
        *owned,
        *((key, None) for key in committed if key not in owned_partitions),
    ]:
        commit, end = committed.get(key), ends.get(key)
        epoch = [commit.leader_epoch if commit else None] * verbose
        offset = commit.offset if commit else None
        lag = None if offset is None or end is None else end - offset
        owner = (member.member_id, member.host, member.client_id) if member else (None, None, None)
        rows.append([group.group_id, *key, *epoch, offset, end, lag, *owner])
    columns = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10)]
    columns += [("LEADER-EPOCH", 15)] * verbose
    columns += [("CURRENT-OFFSET", 15), ("LOG-END-OFFSET", 15), ("LAG", 15)]
    columns += [("CONSUMER-ID", 15), ("HOST", 15), ("CLIENT-ID", LAST)]
    return table(columns, rows, grow="GROUP TOPIC CONSUMER-ID HOST") if rows else None


def members(
    group: ConsumerGroupDescription, newer: GroupDescription | None, verbose: bool
) -> str:
    """Return the members of the group; verbose: with their assignments.

    `newer` is the description of a consumer group, with epochs.
    """
    details = {each.member_id: each for each in newer.members} if newer else {}
    static = any(member.group_instance_id for member in group.members)
    # A group that is being migrated has members of both protocols.
    mixed = len({each.type for each in details.values()}) > 1
    columns = [("GROUP", 15), ("CONSUMER-ID", 15)]
    columns += [("GROUP-INSTANCE-ID", 17)] * static
    # Kafka writes a space after the last column in this table only.
    columns += [("HOST", 15), ("CLIENT-ID", 15), ("#PARTITIONS", 15 if verbose else 16)]
    if verbose:
        columns += [("CURRENT-EPOCH", 15), ("CURRENT-ASSIGNMENT", 20)]
        columns += [("TARGET-EPOCH", 15), ("TARGET-ASSIGNMENT", 20)]
        columns += [("UPGRADED", LAST)] * mixed
    rows = []
    for member in sorted(group.members, key=lambda each: -len(assigned(each))):
        topic_partitions = assigned(member)
        row: list[object] = [group.group_id, member.member_id]
        row += [member.group_instance_id or ""] * static
        row += [member.host, member.client_id, str(len(topic_partitions))]
        if verbose:
            detail = details.get(member.member_id)
            row += [detail.epoch if detail else None, written(topic_partitions) or None]
            row += [newer.assignment_epoch if newer else None]
            row += [written(keys_of(member.target_assignment)) or None]
            upgraded = None if detail is None else str(detail.type == CONSUMER).lower()
            row += [upgraded] * mixed
        rows.append(row)
    grow = "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID CURRENT-ASSIGNMENT TARGET-ASSIGNMENT"
    return table(columns, rows, grow)


def state(
    group: ConsumerGroupDescription, newer: GroupDescription | None, name: str, verbose: bool
) -> str:
    """Return the group's state, of this name, with its coordinator and number of members."""
    node = group.coordinator
    columns = [("GROUP", 15), ("COORDINATOR (ID)", 25), ("ASSIGNMENT-STRATEGY", 20), ("STATE", 20)]
    columns += [("GROUP-EPOCH", 15), ("TARGET-ASSIGNMENT-EPOCH", 25)] * verbose
    columns += [("#MEMBERS", LAST)]
    epochs = [newer.epoch, newer.assignment_epoch] if newer else [None, None]
    row = [
        group.group_id,
        address(node.host, node.port, node.id),
        group.partition_assignor or MISSING,
        name,
        *epochs * verbose,
        len(group.members),
    ]
    return table(columns, [row], grow="GROUP COORDINATOR")


def share_states(groups: Sequence[GroupListing]) -> str:
    """Return the share groups with their states."""
    rows = [[group.group_id, group.state] for group in groups]
    return table([("GROUP", 15), ("STATE", LAST)], rows, grow="GROUP")


def share_offsets(
    name: str, offsets: Mapping[TopicPartition, ShareOffset], verbose: bool
) -> str | None:
    """Return the start offsets and the lag of a share group by partition."""
    columns = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10)]
    columns += [("LEADER-EPOCH", 13)] * verbose + [("START-OFFSET", 13), ("LAG", LAST)]
    rows = [
        [name, *key, *[found.leader_epoch] * verbose, found.start_offset, found.lag]
        for key, found in sorted(offsets.items())
    ]
    return table(columns, rows, grow="GROUP TOPIC") if rows else None


def share_members(group: GroupDescription, verbose: bool) -> str:
    """Return the members of a share group with their assignments."""
    columns = [("GROUP", 15), ("CONSUMER-ID", 15), ("HOST", 15), ("CLIENT-ID", 15)]
    columns += [("#PARTITIONS", 12)] + [("MEMBER-EPOCH", 13)] * verbose + [("ASSIGNMENT", LAST)]
    rows = [
        [
            *[group.group_id, member.member_id, member.host, member.client_id],
            *[len(member.partitions), *[member.epoch] * verbose, written(member.partitions)],
        ]
        for member in sorted(group.members)
    ]
    return table(columns, rows, grow="GROUP CONSUMER-ID HOST CLIENT-ID")


def share_state(group: GroupDescription, coordinator: str, verbose: bool) -> str:
    """Return a share group's state, coordinator and number of members."""
    columns = [("GROUP", 15), ("COORDINATOR (ID)", 25), ("STATE", 15)]
    columns += [("GROUP-EPOCH", 12), ("ASSIGNMENT-EPOCH", 17)] * verbose + [("#MEMBERS", LAST)]
    epochs = [group.epoch, group.assignment_epoch] * verbose
    row = [group.group_id, coordinator, group.state, *epochs, len(group.members)]
    return table(columns, [row], grow="GROUP COORDINATOR")


def address(host: str, port: int, node_id: int) -> str:
    """Return a coordinator's address as the tables have it."""
    return f"{host}:{port}  ({node_id})"


def new_offsets(rows: Sequence[tuple[str, str, int, int]]) -> str:
    """Return the new offsets of groups: group, topic, partition, offset."""
    columns = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), ("NEW-OFFSET", LAST)]
    return table(columns, rows, grow="GROUP TOPIC")


def statuses(rows: Sequence[tuple[str, int | None, str]]) -> str:
    """Return the result of each deletion of a committed offset."""
    columns = [("TOPIC", 15), ("PARTITION", 10), ("STATUS", 15)]
    return table(columns, rows, grow="TOPIC")


def topic_statuses(rows: Sequence[tuple[str, str]]) -> str:
    """Return the result of each deletion of the offsets of a share group for a topic."""
    return table([("TOPIC", 15), ("STATUS", LAST)], rows, grow="TOPIC")


def assigned(member: MemberDescription) -> list[PartitionKey]:
    return keys_of(member.assignment)


def keys_of(assignment: MemberAssignment | None) -> list[PartitionKey]:
    found = assignment.topic_partitions if assignment else []
    return [(each.topic, each.partition) for each in found]


def written(topic_partitions: Iterable[PartitionKey]) -> str:
    """Return an assignment as one word: `flights:0,1;audit:0`."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(topic_partitions):
        topics[topic].append(partition)
    return ";".join(f"{topic}:{','.join(map(str, known))}" for topic, known in topics.items())
