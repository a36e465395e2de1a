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

from kafkalite.cli import offset_words
from kafkalite.cli.clients import ANSWER_TIMEOUT_S, ClusterClients, plain, sentences
from kafkalite.cli.command import printable, say
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.wire import WireClient
from kafkalite.errors import KafkaError as KafkaFault
from kafkalite.errors import Refusal, raise_for
from kafkalite.protocol.schemas.groups import OFFSET_DELETE

ResultT = TypeVar("ResultT")

WAKING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""What is said while a coordinator comes up, which the first group's does when it is asked for."""

STATES: dict[Enum, str] = {
    ConsumerGroupState.UNKNOWN: "Unknown",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
"""Kafka's own words."""

LINE = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")
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
        with sentences():
            self.admin = cluster.admin()
            self.topics = {
                name: sorted(topic.partitions)
                for name, topic in cluster.metadata(self.admin).topics.items()
            }

    def described(self, group: str) -> ConsumerGroupDescription | None:
        """Return a group's state and members, or None if it does not exist."""
        try:
            found = awake(lambda: self.admin.describe_consumer_groups([group])[group])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise Refusal(f"group {group}: {plain(error.args[0].str())}") from None
        return None if found.state is ConsumerGroupState.DEAD else found

    def must(self, group: str) -> ConsumerGroupDescription:
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
        asked = [ConsumerGroupTopicPartitions(group)]
        with sentences():
            found = awake(lambda: self.admin.list_consumer_group_offsets(asked)[group])
        return {
            (each.topic, each.partition): GroupCommit(each.offset, each.leader_epoch, each.metadata)
            for each in sorted(found.topic_partitions)
            if each.error is None and each.offset >= 0
        }

    def bounds(self, places: Collection[PartitionKey], spec: OffsetSpec) -> dict[PartitionKey, int]:
        """Return the start or end offsets of partitions; unknown ones are left out."""
        asked = {
            TopicPartition(topic, partition): spec
            for topic, partition in places
            if partition in self.topics.get(topic, ())
        }
        found = {}
        for place, future in (self.admin.list_offsets(asked) if asked else {}).items():
            try:
                offset = future.result(ANSWER_TIMEOUT_S).offset
            except (KafkaException, TimeoutError):
                continue
            found[place.topic, place.partition] = offset
        return found

    def commit(self, group: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Commit these offsets for the group."""
        partitions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group, partitions)]
        with sentences():
            done = awake(lambda: self.admin.alter_consumer_group_offsets(asked)[group])
        errors = [each for each in done.topic_partitions if each.error is not None]
        if errors:
            words = [
                f"{each.topic} [{each.partition}]: {plain(each.error.str())}" for each in errors
            ]
            raise Refusal(f"group {group}: {'; '.join(words)}")

    def forget(self, group: ConsumerGroupDescription, places: Iterable[PartitionKey]) -> None:
        """Delete the group's committed offsets of these partitions."""
        topics = defaultdict(list)
        for topic, partition in places:
            topics[topic].append({"partition_index": partition})
        request = {
            "group_id": group.group_id,
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        at = group.coordinator.host, group.coordinator.port
        answer = WireClient(self.cluster).ask(OFFSET_DELETE, request, at)
        try:
            raise_for(answer.error_code)
            for topic in answer.topics:
                for partition in topic.partitions:
                    raise_for(partition.error_code)
        except KafkaFault as error:
            raise Refusal(f"group {group.group_id}: {error}") from None

    def meant(self, spans: Iterable[PartitionSelection]) -> list[PartitionKey]:
        """Return the selected partitions; raise Refusal if one does not exist."""
        places = []
        for topic, wanted in spans:
            there = self.topics.get(topic)
            if there is None:
                raise Refusal(f"topic {topic!r} does not exist (see: kafkalite topic list)")
            for partition in wanted or ():
                if partition not in there:
                    raise Refusal(
                        f"topic {topic!r} has no partition {partition}: it has {len(there)}"
                    )
            places += [(topic, partition) for partition in (there if wanted is None else wanted)]
        return list(dict.fromkeys(places))

    def destinations(
        self,
        places: Sequence[PartitionKey],
        where: Destination,
        committed: Mapping[PartitionKey, GroupCommit],
    ) -> dict[PartitionKey, int]:
        """Return the offset that `where` stands for in each partition, as of now."""
        starts = self.bounds(places, OffsetSpec.earliest())
        ends = self.bounds(places, OffsetSpec.latest())
        for topic, partition in places:
            if (topic, partition) not in starts or (topic, partition) not in ends:
                raise Refusal(f"{topic} [{partition}] does not say what it holds; try again")
        now_ms = time.time_ns() // 1_000_000
        match where:
            case offset_words.AtOffset(offset):
                wanted = dict.fromkeys(places, offset)
            case offset_words.LastRecords(distance):
                wanted = {place: max(starts[place], ends[place] - distance) for place in places}
            case offset_words.SinceTimestamp(offset_words.BEGINNING):
                wanted = starts
            case offset_words.SinceTimestamp(offset_words.END):
                wanted = ends
            case offset_words.SinceTimestamp(timestamp_ms):
                wanted = ends | self._since(places, timestamp_ms)
            case offset_words.SinceAge(age_ms):
                wanted = ends | self._since(places, max(0, now_ms - age_ms))
            case CurrentPosition():
                wanted = ends | {place: committed[place].offset for place in committed}
            case ShiftedPosition(distance):
                wanted = shifted(places, distance, committed)
            case ListedOffsets(offsets):
                wanted = dict(offsets)
        return {place: held(place, wanted[place], starts[place], ends[place]) for place in places}

    def _since(
        self, places: Collection[PartitionKey], timestamp_ms: int
    ) -> dict[PartitionKey, int]:
        """Return the first offset at or after a timestamp, where there is one."""
        found = self.bounds(places, OffsetSpec.for_timestamp(timestamp_ms))
        return {place: offset for place, offset in found.items() if offset >= 0}


class CurrentPosition(NamedTuple):
    """The committed offset, or the end of the partition if there is none."""


class ShiftedPosition(NamedTuple):
    """The committed offset plus a distance, which may be negative."""

    distance: int


class ListedOffsets(NamedTuple):
    """A given offset for each partition."""

    offsets: Mapping[PartitionKey, int]


Destination = offset_words.StartPosition | CurrentPosition | ShiftedPosition | ListedOffsets


def shifted(
    places: Sequence[PartitionKey], distance: int, committed: Mapping[PartitionKey, GroupCommit]
) -> dict[PartitionKey, int]:
    for topic, partition in places:
        if (topic, partition) not in committed:
            raise Refusal(f"{topic} [{partition}] has nothing committed that could be shifted")
    return {place: committed[place].offset + distance for place in places}


def held(place: PartitionKey, offset: int, start: int, end: int) -> int:
    """Return the nearest offset that the partition holds, and print if it is another one."""
    nearest = min(max(offset, start), end)
    if nearest != offset:
        topic, partition = place
        say(f"{topic} [{partition}] holds {start} to {end}, not {offset}: {nearest} is taken")
    return nearest


def awake(ask: Callable[[], Future[ResultT]]) -> ResultT:
    """Return a coordinator's response; retry for a while during its start."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return ask().result(ANSWER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in WAKING or time.monotonic() > deadline_s:
                raise
        except TimeoutError:
            raise Refusal(
                f"the coordinator does not answer within {ANSWER_TIMEOUT_S:.0f} s"
            ) from None
        time.sleep(0.05)


def span(text: str) -> PartitionSelection:
    """Parse TOPIC or TOPIC:0,2-5; an argument type."""
    topic, colon, line = printable(text).partition(":")
    if not colon:
        return PartitionSelection(topic, None)
    if not topic or not LINE.fullmatch(line):
        raise ArgumentTypeError(f"{text!r} is neither TOPIC nor TOPIC:PARTITIONS, as flights:0,2-5")
    partitions: list[int] = []
    for part in line.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high - low > PARTITIONS_MAX:
            raise ArgumentTypeError(f"{text!r} has too many partitions")
        partitions += range(low, high + 1)
    return PartitionSelection(topic, tuple(dict.fromkeys(partitions)))


def destination(text: str) -> Destination:
    """Parse a start position, or `current`; an argument type."""
    if text == "current":
        return CurrentPosition()
    try:
        return offset_words.start(text)
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
            raise Refusal(f"{name}, line {number}: {','.join(row)!r} is not {columns}")
        group, topic, partition, offset = fields
        if group not in found:
            raise Refusal(f"{name}, line {number}: group {group} was not named")
        found[group][topic, int(partition)] = int(offset)
    return found
