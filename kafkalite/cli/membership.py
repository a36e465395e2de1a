"""A member of a consumer group, which shares the topics' partitions with the other members.

    with GroupMember(cluster, "readers", ["flights"], BEGINNING) as member:
        for batch in member.batches(to_end=True, count=None):
            write(batch)

A batch counts as processed when the next one is requested; a signal takes effect then.  Offsets are
committed every few seconds, before partitions are revoked, and at the end: delivery is at least
once, and a record may be printed twice after a member was killed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kafkalite.cli.clients import ClusterClients, StallWarning, clean_error
from kafkalite.cli.command import print_stderr, warn
from kafkalite.cli.member_positions import MemberPositions
from kafkalite.cli.reading import NO_RECORDS, PartitionKey, batches
from kafkalite.cli.signal_handling import SignalHandling

UNASSIGNED: PartitionKey = ("", -1)
"""Placeholder in the set of unread partitions until the first assignment."""

SETTINGS = {
    "enable.auto.commit": True,
    # A member that does not poll for longer is removed from the group.
    "max.poll.interval.ms": 300_000,
}

EXPECTED_ERRORS = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._NO_OFFSET,
)
"""Errors of a commit after partitions moved to another member, which are expected."""


class GroupMember:
    """A member of a group, from joining to leaving."""

    def __init__(
        self,
        cluster: ClusterClients,
        group: str,
        topics: Sequence[str],
        begin: str,
        verbose: bool = False,
        protocol: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.topics = topics
        self.verbose = verbose
        self.unfinished = {UNASSIGNED}
        self.signals = SignalHandling()
        self.consumer: Consumer = cluster.consumer(
            {
                **SETTINGS,
                **({} if protocol is None else {"group.protocol": protocol}),
                "group.id": group,
                "auto.offset.reset": begin,
                "on_commit": self._on_commit,
            }
        )
        self.positions = MemberPositions(self.consumer)

    def __enter__(self) -> GroupMember:
        for topic in self.topics:
            if not topic.startswith("^"):  # a pattern may match topics that are created later
                self.cluster.topic(self.consumer, topic)
        self.consumer.subscribe(
            list(self.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Commit, and leave the group."""
        self.consumer.close()

    def batches(self, to_end: bool, count: int | None) -> Iterator[list[Message]]:
        """Yield records of the assigned partitions, up to the count or the end of all of them."""
        stall_warning = StallWarning(self.cluster, f"group {self.group}", NO_RECORDS)
        check_signal = self.signals.check
        with self.signals.deferred():
            for batch in batches(
                self.consumer, self.unfinished, stall_warning, to_end, count, check_signal
            ):
                yield batch
                self.positions.store(batch)

    def _on_assign(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        self.unfinished.discard(UNASSIGNED)
        self.unfinished |= {
            (topic_partition.topic, topic_partition.partition)
            for topic_partition in topic_partitions
        }
        self._change("assigned", topic_partitions)

    def _on_revoke(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        self._remove("revoked", topic_partitions)

    def _on_lost(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        self._remove("lost", topic_partitions)

    def _remove(self, what: str, topic_partitions: list[TopicPartition]) -> None:
        self.unfinished -= {
            (topic_partition.topic, topic_partition.partition)
            for topic_partition in topic_partitions
        }
        self._change(what, topic_partitions)

    def _change(self, what: str, topic_partitions: list[TopicPartition]) -> None:
        self.positions.change(topic_partitions)
        if self.verbose:
            text = format_partitions(by_topic(topic_partitions)) or "no partitions"
            print_stderr(f"group {self.group}, member {self.consumer.memberid()}: {what} {text}")

    def _on_commit(self, error: KafkaError | None, topic_partitions: list[TopicPartition]) -> None:
        if error is None:
            error = next(
                (
                    topic_partition.error
                    for topic_partition in topic_partitions
                    if topic_partition.error is not None
                ),
                None,
            )
        if error is not None and error.code() not in EXPECTED_ERRORS:
            warn(f"offset commit of group {self.group} failed: {clean_error(error.str())}")


def by_topic(topic_partitions: Iterable[TopicPartition | PartitionKey]) -> dict[str, list[int]]:
    """Return partition numbers by topic."""
    keys = [
        (each.topic, each.partition) if isinstance(each, TopicPartition) else each
        for each in topic_partitions
    ]
    topics = defaultdict(list)
    for topic, partition in sorted(keys):
        topics[topic].append(partition)
    return dict(topics)


def format_partitions(topics: Mapping[str, Sequence[int]]) -> str:
    """Return partitions in short form: `flights:0-2,5 audit:0`."""
    text = []
    for topic, partitions in topics.items():
        parts = []
        # In a run of consecutive partitions, partition minus index is constant.
        for _, run in itertools.groupby(enumerate(partitions), lambda each: each[1] - each[0]):
            row = [partition for _, partition in run]
            parts.append(f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]))
        text.append(f"{topic}:{','.join(parts)}")
    return " ".join(text)
