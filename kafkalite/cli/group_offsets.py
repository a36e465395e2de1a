"""Offsets of consumer groups: committed offsets, lag, and changes of both.

groups = GroupOffsets(cluster)
groups.committed("readers")                     # {("flights", 0): GroupCommit(offset=5, …), …}
groups.commit("readers", {("flights", 0): 0})
"""

from __future__ import annotations

import csv
import re
import time
from argparse import ArgumentTypeError
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import NamedTuple, TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ConsumerGroupDescription, OffsetSpec

from kafkalite.cli import start_position
from kafkalite.cli.clients import (
    REQUEST_TIMEOUT_S,
    ClusterClients,
    clean_error,
    kafka_errors_as_refusals,
    listed_offsets,
)
from kafkalite.cli.command import print_stderr, printable
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.wire import WireClient
from kafkalite.errors import KafkaError as ErrorResponse
from kafkalite.errors import Refusal, raise_for
from kafkalite.protocol.schemas.groups import OFFSET_DELETE

ResultT = TypeVar("ResultT")

COORDINATOR_STARTING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Errors while a coordinator starts, which it does at the first request for a group."""

STATES: dict[Enum, str] = {
    ConsumerGroupState.UNKNOWN: "Unknown",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
"""Names of the states in Kafka, of those that librdkafka knows."""
STATE_NAMES = (*STATES.values(), "Assigning", "Reconciling")
"""Names of all states; the last two are of consumer groups only (KIP-848)."""

PARTITION_LIST = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")
NUMBER = re.compile(r"[0-9]{1,18}")
PARTITIONS_MAX = 100_000


class GroupCommit(NamedTuple):
    """A group's committed offset of a partition."""

    offset: int
    leader_epoch: int | None
    metadata: str | None


class PartitionSelection(NamedTuple):
    """A topic and the selected partitions; None selects all."""

    topic: str
    partitions: tuple[int, ...] | None


class GroupOffsets:
    """Reads and changes the offsets of a cluster's groups."""

    def __init__(self, cluster: ClusterClients) -> None:
        self.cluster = cluster
        with kafka_errors_as_refusals():
            self.admin = cluster.admin()
            self.topics = {
                name: sorted(topic.partitions)
                for name, topic in cluster.metadata(self.admin).topics.items()
            }

    def described(self, group: str) -> ConsumerGroupDescription | None:
        """Return a group's state and members, or None if it does not exist."""
        try:
            found = with_retries(lambda: self.admin.describe_consumer_groups([group])[group])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise Refusal(f"group {group}: {clean_error(error.args[0].str())}") from None
        return None if found.state is ConsumerGroupState.DEAD else found

    def existing(self, group: str) -> ConsumerGroupDescription:
        """Return a group's state and members; raise Refusal if it does not exist."""
        found = self.described(group)
        if found is None:
            raise Refusal(f"group {group} does not exist (see: kafkalite group list)")
        return found

    def committed(self, group: str) -> dict[PartitionKey, GroupCommit]:
        """Return the group's committed offsets, sorted by partition.

        Call it for a group that was described: librdkafka aborts the process when the request fails
        for the group as a whole.
        """
        requested = [ConsumerGroupTopicPartitions(group)]
        with kafka_errors_as_refusals():
            found = with_retries(lambda: self.admin.list_consumer_group_offsets(requested)[group])
        return {
            (each.topic, each.partition): GroupCommit(each.offset, each.leader_epoch, each.metadata)
            for each in sorted(found.topic_partitions)
            if each.error is None and each.offset >= 0
        }

    def bounds(
        self, topic_partitions: Collection[PartitionKey], spec: OffsetSpec
    ) -> dict[PartitionKey, int]:
        """Return the start or end offsets of partitions; unknown ones are left out."""
        requested = {
            TopicPartition(topic, partition): spec
            for topic, partition in topic_partitions
            if partition in self.topics.get(topic, ())
        }
        return listed_offsets(self.admin, requested)

    def commit(self, group: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Commit these offsets for the group."""
        partitions = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        requested = [ConsumerGroupTopicPartitions(group, partitions)]
        with kafka_errors_as_refusals():
            done = with_retries(lambda: self.admin.alter_consumer_group_offsets(requested)[group])
        errors = [each for each in done.topic_partitions if each.error is not None]
        if errors:
            messages = [
                f"{each.topic} [{each.partition}]: {clean_error(each.error.str())}"
                for each in errors
            ]
            raise Refusal(f"group {group}: {'; '.join(messages)}")

    def delete_offsets(
        self, group: ConsumerGroupDescription, topic_partitions: Iterable[PartitionKey]
    ) -> None:
        """Delete the group's committed offsets of these partitions."""
        topics = defaultdict(list)
        for topic, partition in topic_partitions:
            topics[topic].append({"partition_index": partition})
        request = {
            "group_id": group.group_id,
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        at = group.coordinator.host, group.coordinator.port
        response = WireClient(self.cluster).request(OFFSET_DELETE, request, at)
        try:
            raise_for(response.error_code)
            for topic in response.topics:
                for partition in topic.partitions:
                    raise_for(partition.error_code)
        except ErrorResponse as error:
            raise Refusal(f"group {group.group_id}: {error}") from None

    def selected(self, spans: Iterable[PartitionSelection]) -> list[PartitionKey]:
        """Return the selected partitions; raise Refusal if one does not exist."""
        topic_partitions = []
        for topic, selection in spans:
            known = self.topics.get(topic)
            if known is None:
                raise Refusal(f"topic {topic!r} does not exist (see: kafkalite topic list)")
            for partition in selection or ():
                if partition not in known:
                    raise Refusal(
                        f"topic {topic!r} has no partition {partition};"
                        f" it has {len(known)} partitions"
                    )
            topic_partitions += [
                (topic, partition) for partition in (known if selection is None else selection)
            ]
        return list(dict.fromkeys(topic_partitions))

    def destinations(
        self,
        topic_partitions: Sequence[PartitionKey],
        where: Destination,
        committed: Mapping[PartitionKey, GroupCommit],
    ) -> dict[PartitionKey, int]:
        """Return the offset that `where` stands for in each partition, as of now."""
        starts = self.bounds(topic_partitions, OffsetSpec.earliest())
        ends = self.bounds(topic_partitions, OffsetSpec.latest())
        for topic, partition in topic_partitions:
            if (topic, partition) not in starts or (topic, partition) not in ends:
                raise Refusal(
                    f"cannot read the offsets of {topic} [{partition}]; check that it has a leader"
                    f" (see: kafkalite topic describe {topic}), and retry"
                )
        now_ms = time.time_ns() // 1_000_000
        match where:
            case start_position.AtOffset(offset):
                new_offsets = dict.fromkeys(topic_partitions, offset)
            case start_position.LastRecords(distance):
                new_offsets = {
                    key: max(starts[key], ends[key] - distance) for key in topic_partitions
                }
            case start_position.SinceTimestamp(start_position.BEGINNING):
                new_offsets = starts
            case start_position.SinceTimestamp(start_position.END):
                new_offsets = ends
            case start_position.SinceTimestamp(timestamp_ms):
                new_offsets = ends | self._since(topic_partitions, timestamp_ms)
            case start_position.SinceAge(age_ms):
                new_offsets = ends | self._since(topic_partitions, max(0, now_ms - age_ms))
            case CurrentPosition():
                new_offsets = ends | {key: committed[key].offset for key in committed}
            case ShiftedPosition(distance):
                new_offsets = shifted(topic_partitions, distance, committed)
            case ListedOffsets(offsets):
                new_offsets = dict(offsets)
        return {
            key: clamped(
                key,
                new_offsets[key],
                starts[key],
                ends[key],
            )
            for key in topic_partitions
        }

    def _since(
        self, topic_partitions: Collection[PartitionKey], timestamp_ms: int
    ) -> dict[PartitionKey, int]:
        """Return the first offset at or after a timestamp, where there is one."""
        found = self.bounds(topic_partitions, OffsetSpec.for_timestamp(timestamp_ms))
        return {key: offset for key, offset in found.items() if offset >= 0}


class CurrentPosition(NamedTuple):
    """The committed offset, or the end of the partition if there is none."""


class ShiftedPosition(NamedTuple):
    """The committed offset plus a distance, which may be negative."""

    distance: int


class ListedOffsets(NamedTuple):
    """An offset for each partition."""

    offsets: Mapping[PartitionKey, int]


Destination = start_position.StartPosition | CurrentPosition | ShiftedPosition | ListedOffsets


def shifted(
    topic_partitions: Sequence[PartitionKey],
    distance: int,
    committed: Mapping[PartitionKey, GroupCommit],
) -> dict[PartitionKey, int]:
    for topic, partition in topic_partitions:
        if (topic, partition) not in committed:
            raise Refusal(f"{topic} [{partition}] has no committed offset to shift; use --to")
    return {key: committed[key].offset + distance for key in topic_partitions}


def clamped(key: PartitionKey, offset: int, start: int, end: int) -> int:
    """Return the nearest offset within the partition's range, with a message if it differs."""
    nearest = min(max(offset, start), end)
    if nearest != offset:
        topic, partition = key
        print_stderr(
            f"{topic} [{partition}] has offsets {start} to {end}: using {nearest}, not {offset}"
        )
    return nearest


def with_retries(request: Callable[[], Future[ResultT]]) -> ResultT:
    """Return a coordinator's response; retry for a while during its start."""
    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return request().result(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_STARTING or time.monotonic() > deadline_s:
                raise
        except TimeoutError:
            raise Refusal(
                f"request to the group coordinator timed out after {REQUEST_TIMEOUT_S:.0f} s"
            ) from None
        time.sleep(0.05)


def span(text: str) -> PartitionSelection:
    """Parse TOPIC or TOPIC:0,2-5; an argument type."""
    topic, colon, partition_list = printable(text).partition(":")
    if not colon:
        return PartitionSelection(topic, None)
    if not topic or not PARTITION_LIST.fullmatch(partition_list):
        raise ArgumentTypeError(
            f"{text!r} is not of the form TOPIC or TOPIC:PARTITIONS (flights:0,2-5)"
        )
    partitions: list[int] = []
    for part in partition_list.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high - low > PARTITIONS_MAX:
            raise ArgumentTypeError(f"{text!r} selects more than {PARTITIONS_MAX:,} partitions")
        partitions += range(low, high + 1)
    return PartitionSelection(topic, tuple(dict.fromkeys(partitions)))


def destination(text: str) -> Destination:
    """Parse a start position, or `current`; an argument type."""
    if text == "current":
        return CurrentPosition()
    try:
        return start_position.start(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(str(error).replace("beginning,", "beginning, current,")) from None


def read_offsets(
    name: str, lines: Iterable[str], groups: Sequence[str]
) -> dict[str, dict[PartitionKey, int]]:
    """Return the offsets in lines of `[group,]topic,partition,offset`, by group."""
    found: dict[str, dict[PartitionKey, int]] = {group: {} for group in groups}
    for number, row in enumerate(csv.reader(lines), 1):
        if not row:
            continue
        fields = [groups[0], *row] if len(row) == 3 and len(groups) == 1 else row
        if len(fields) != 4 or not all(map(NUMBER.fullmatch, fields[2:])):
            columns = "topic,partition,offset"
            columns = columns if len(groups) == 1 else f"group,{columns}"
            raise Refusal(f"{name}, line {number}: expected {columns}, found {','.join(row)!r}")
        group, topic, partition, offset = fields
        if group not in found:
            raise Refusal(f"{name}, line {number}: group {group} is not on the command line")
        found[group][topic, int(partition)] = int(offset)
    return found
