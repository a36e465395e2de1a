"""Tables of kafka-consumer-groups.sh, with Kafka's column widths, for scripts that parse them.

Left out: the epochs of consumer groups, which librdkafka does not return; dashes are printed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription, MemberDescription

from kafkalite.cli.group_offsets import STATES, GroupCommit
from kafkalite.cli.reading import PartitionKey

MISSING = "-"
LAST = 0
"""Width of the last column, which is not padded."""

Column = tuple[str, int]


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], grow: str = "") -> str:
    """Return columns padded to their widths; those in `grow` fit their longest cell."""
    cells = [[MISSING if cell is None else str(cell) for cell in row] for row in rows]
    widths = [
        max([width, *(len(row[at]) for row in cells)]) if name in grow.split() else width
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
        ((each.topic, each.partition), member)
        for member in sorted(group.members, key=lambda each: -len(assigned(each)))
        for each in sorted(assigned(member))
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


def members(group: ConsumerGroupDescription, verbose: bool) -> str:
    """Return the members of the group; verbose: with their assignments."""
    static = any(member.group_instance_id for member in group.members)
    columns = [("GROUP", 15), ("CONSUMER-ID", 15)]
    columns += [("GROUP-INSTANCE-ID", 17)] * static
    # Kafka writes a space after the last column in this table only.
    columns += [("HOST", 15), ("CLIENT-ID", 15), ("#PARTITIONS", 15 if verbose else 16)]
    if verbose:
        columns += [("CURRENT-EPOCH", 15), ("CURRENT-ASSIGNMENT", 20)]
        columns += [("TARGET-EPOCH", 15), ("TARGET-ASSIGNMENT", 20)]
    rows = []
    for member in sorted(group.members, key=lambda each: -len(assigned(each))):
        topic_partitions = assigned(member)
        row = [group.group_id, member.member_id, *[member.group_instance_id or ""] * static]
        row += [member.host, member.client_id, str(len(topic_partitions))]
        if verbose:
            target = member.target_assignment
            target_text = written(target.topic_partitions) if target else MISSING
            row += [MISSING, written(topic_partitions), MISSING, target_text]
        rows.append(row)
    return table(columns, rows, grow="GROUP CONSUMER-ID HOST CLIENT-ID")


def state(group: ConsumerGroupDescription, verbose: bool) -> str:
    """Return the group's state, coordinator and number of members."""
    node = group.coordinator
    columns = [("GROUP", 15), ("COORDINATOR (ID)", 25), ("ASSIGNMENT-STRATEGY", 20), ("STATE", 20)]
    columns += [("GROUP-EPOCH", 15), ("TARGET-ASSIGNMENT-EPOCH", 25)] * verbose
    columns += [("#MEMBERS", LAST)]
    row = [
        group.group_id,
        f"{node.host}:{node.port}  ({node.id})",
        group.partition_assignor or MISSING,
        STATES.get(group.state, "Unknown"),
        *[MISSING, MISSING] * verbose,
        len(group.members),
    ]
    return table(columns, [row], grow="GROUP COORDINATOR (ID)")


def new_offsets(rows: Sequence[tuple[str, str, int, int]]) -> str:
    """Return the new offsets of groups: group, topic, partition, offset."""
    columns = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), ("NEW-OFFSET", LAST)]
    return table(columns, rows, grow="GROUP TOPIC")


def statuses(rows: Sequence[tuple[str, int | None, str]]) -> str:
    """Return the result of each deletion of a committed offset."""
    columns = [("TOPIC", 15), ("PARTITION", 10), ("STATUS", 15)]
    return table(columns, rows, grow="TOPIC")


def assigned(member: MemberDescription) -> list[TopicPartition]:
    return list(member.assignment.topic_partitions) if member.assignment else []


def written(topic_partitions: Iterable[TopicPartition]) -> str:
    """Return an assignment as one word: `flights:0,1;audit:0`."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for each in sorted(topic_partitions):
        topics[each.topic].append(each.partition)
    texts = [f"{topic}:{','.join(map(str, known))}" for topic, known in topics.items()]
    return ";".join(texts) or MISSING
