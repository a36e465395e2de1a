"""Assignment reader: first offsets, leaders and fetched record ranges of an assignment.

    fetched = reader.next_range(deadline)     the next range to decode; None when the time is up
    reader.release(fetched)                   it was decoded to its end

Runs in the thread of its client, step by step: refreshes metadata, resolves first offsets, sends
fetch requests and handles responses.  Conditions that may pass (a leader change, a restarting node,
a deleted topic) are retried with backoff; other errors are raised, and the position is unchanged.

    A  no offset yet                       resolved from `start` by the leader or the coordinator
    B  the offset is out of range          auto.offset.reset decides
    C  the leader changed or is gone       metadata request, then the new leader
    D  the topic has another topic id      it was recreated: all of the new topic is read
    E  a new partition of a topic          all of it is read, whatever auto.offset.reset says,
                                           since it was created after reading started

While a range is decoded, the next fetch is in flight; at most one per partition.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from kafkalite.client.consumer.fetch_transport import NEVER, FetchOutcome
from kafkalite.client.consumer.positions import (
    COMMITTED,
    NO_START,
    NOT_OUT_OF_RANGE,
    Assignment,
    Position,
)
from kafkalite.client.consumer.record_range import RecordRange
from kafkalite.client.consumer.transport_pool import TransportPool
from kafkalite.client.group.subscription import Subscription
from kafkalite.client.net import offset_requests
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Backoff, Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.topology import (
    NO_LEADER,
    TopicMetadata,
    TopicPartition,
    error_of,
    partition_name,
)
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import (
    ALLOW_AUTO_CREATE_TOPICS,
    AUTO_OFFSET_RESET,
    GROUP_ID,
    METADATA_MAX_AGE_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from kafkalite.errors import (
    CorruptMessage,
    FencedMemberEpoch,
    KafkaError,
    LeaderNotAvailable,
    OffsetOutOfRange,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

CALL_S_MIN = 1.0
"""Minimum timeout in seconds for requests and connection attempts, however short a poll is: with no
time at all they would never complete.  A poll is late by this time at most.
"""

LAG_S_MAX = 30.0
"""Seconds after a topic was recreated in which a node may still return the former topic id."""

RESETS = {"earliest": EARLIEST, "latest": LATEST, "none": NO_START}

log = logging.getLogger(__name__)


def no_member() -> None:
    """Return None: the partitions are not a group member's."""


class NonRetriableError(Exception):
    """An error that is raised instead of retried, although its class is retriable."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(str(error))
        self.error = error


class AssignmentReader:
    """Reads the partitions of one assignment.  One thread at a time.

    `strict`: a deleted or recreated log is an error, since the result must be complete.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ClientSettings,
        purpose: str,
        waker: Waker,
        strict: bool = False,
    ) -> None:
        self.assignment = Assignment()
        self.transports = TransportPool(cluster, settings, purpose, waker)
        self.subscription = Subscription()
        """Topics of which all partitions are read, including partitions created later."""
        self.resets = 0
        self.missed_records = 0
        """Offsets that were deleted before they were read."""
        self._cluster = cluster
        self._settings = settings
        self.member_of: Callable[[], GroupMetadata | None] = no_member
        """Returns the identity of the member whose partitions these are, if they are a member's."""
        self._waker = waker
        self._reset = NO_START if strict else RESETS[settings[AUTO_OFFSET_RESET]]
        self._strict = strict
        self._queue: deque[RecordRange] = deque()
        self._known: set[str] = set()
        """Topics for which metadata has been received."""
        self._unknown: set[str] = set()
        """Topics whose metadata must be requested before their partitions are fetched."""
        self._replaced_ids: dict[bytes, float] = {}
        """Former topic ids and when they were replaced; a node with old metadata may return them
        for a while.
        """
        self._requested_s = -NEVER
        self._backoff = Backoff(settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS])
        self._metadata_deadline = Deadline(0.0)
        """Deadline for metadata of a topic that was never seen."""

    # Subscription and assignment.

    def subscribe(self, subscription: Subscription) -> None:
        """Read all partitions of these topics and no others; current positions are kept."""
        if not self.subscription:
            self._known.clear()  # for an assigned topic only some partitions are read
        subscription.match_known(self._known)
        self.subscription = subscription
        self._read_subscribed()
        self._metadata_deadline = Deadline(self._settings.call_timeout_s)

    def _read_subscribed(self) -> None:
        """Read the partitions of the topics that match the subscription, and no others."""
        topics = set(self.subscription.topics)
        kept = [p.partition for p in self.assignment if p.partition.topic in topics]
        self.assignment.assign(kept, self._reset)
        self._known &= topics
        self._unknown = (self._unknown & topics) | (topics - self._known)
        self._unknown.update(p.partition.topic for p in self.assignment if p.leader == NO_LEADER)

    @property
    def topics(self) -> list[str]:
        """The topics that are read."""
        return list(self.subscription.topics or self.assignment.topics)

    def has_metadata_of(self, topic: str) -> bool:
        """Return whether metadata of a topic has been received."""
        return topic in self._known

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions; positions of partitions that are already read are kept."""
        grouped = self._settings[GROUP_ID] is not None
        self.subscription = Subscription()
        self.assignment.assign(partitions, COMMITTED if grouped else self._reset)
        self._known &= set(self.assignment.topics)
        self._unknown.clear()
        self._mark_unknown(p.partition.topic for p in self.assignment if p.leader == NO_LEADER)

    def assign_member(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, which a group has assigned.

        Metadata of a topic may lag behind the group coordinator's, so a missing partition is
        waited for.
        """
        self.assign(partitions)
        for position in self.assignment:
            position.is_known = True

    def assign_position(self, position: Position) -> None:
        """Read exactly the partition of this position, and from it."""
        self.assign(())
        self.assignment.put(position)
        self._mark_unknown([position.partition.topic])

    def _mark_unknown(self, topics: Iterable[str]) -> None:
        self._unknown.update(topics)
        self._metadata_deadline = Deadline(self._settings.call_timeout_s)

    def close(self) -> None:
        self._queue.clear()
        self.transports.close()

    # Steps.

    def next_range(self, deadline: Deadline) -> RecordRange | None:
        """Return the next range to decode; None when the time is up or the waker was set."""
        last_deadline = Deadline(deadline.left_s + CALL_S_MIN)

        def call_deadline() -> Deadline:
            return deadline.at_least(CALL_S_MIN).within(last_deadline.left_s)

        while True:
            while self._queue:
                if not self._queue[0].is_stale:
                    return self._queue[0]
                self._queue.popleft().close()
            if self._waker.is_set:
                return None
            wait_s = min(self.refresh(call_deadline()), self._fetch(call_deadline()))
            self._handle_outcomes(self.transports.wait(min(wait_s, deadline.left_s)))
            if self._queue:
                self._fetch(call_deadline())  # fetch ahead while this range is decoded
            elif deadline.passed:
                return None

    def release(self, record_range: RecordRange) -> None:
        """Release a range that was decoded to its end."""
        self._drop(record_range)
        if not record_range.is_stale and record_range.first_offset != record_range.end_offset:
            # Fewer records than announced: fetch the missing ones again.
            record_range.position.start_epoch()
            record_range.position.ahead = record_range.first_offset

    def refetch(self, record_range: RecordRange) -> None:
        """Fetch a range that could not be read again from the position.

        A second failure at the same offset switches the node to TCP.
        """
        self._drop(record_range)
        position = record_range.position
        if not record_range.is_stale:
            position.rewind()
            if position.short_at == position.offset:
                self.transports.read_over_tcp(position.leader)
            position.short_at = position.ahead

    def _drop(self, record_range: RecordRange) -> None:
        record_range.close()
        if self._queue and self._queue[0] is record_range:
            self._queue.popleft()

    def refresh(self, deadline: Deadline, begin: bool = True) -> float:
        """Refresh metadata, and resolve first offsets if `begin`, where due.

        Returns the seconds until that is due again.
        """
        if self._backoff.left_s:
            return self._backoff.left_s
        call_deadline = deadline.within(self._settings.call_timeout_s)
        try:
            self._refresh_metadata(call_deadline)
            if begin:
                self._resolve_offsets(call_deadline)
        except NonRetriableError as found:
            raise found.error from None
        except KafkaError as error:
            new = not self._known.issuperset(self._unknown)
            if not error.retriable or (new and self._metadata_deadline.passed):
                raise
            self._unknown.update(p.partition.topic for p in self.assignment.unresolved())
            self._back_off(error)
            return self._backoff.left_s
        if self._unknown or self._backoff.left_s:
            return self._backoff.left_s
        age_s = time.monotonic() - self._requested_s
        return max(0.0, self._settings[METADATA_MAX_AGE_MS] / 1000 - age_s)

    def _fetch(self, deadline: Deadline) -> float:
        """Send fetch requests where none is in flight.

        Returns the seconds until an unreachable node may be retried.
        """
        wait_s = self.transports.fetch((p for p in self.assignment if p.is_fetchable), deadline)
        while self.transports.unreachable:
            node_id = self.transports.unreachable.pop()
            self._unknown.update(p.partition.topic for p in self.assignment if p.leader == node_id)
        return wait_s

    def _back_off(self, error: KafkaError) -> None:
        """Start the retry backoff; errors during a backoff count as one failure."""
        if not self._backoff.left_s:
            self._backoff.failed(error)

    def await_offsets(self, positions: Iterable[Position], deadline: Deadline) -> None:
        """Wait until the metadata of all topics and the first offsets of `positions` are known.

        Raises the last error, as RequestTimedOut, if the deadline passes first.
        """
        wanted = list(positions)

        def waiting() -> bool:
            due = self._unknown or self.subscription.is_due
            return bool(due) or any(position.offset is None for position in wanted)

        while waiting():
            wait_s = self.refresh(deadline.at_least(CALL_S_MIN), begin=bool(wanted))
            if waiting():
                if deadline.passed:
                    raise RequestTimedOut(str(self._backoff.last_error()))
                self._cluster.sleep(min(wait_s, deadline.left_s))

    # Metadata.

    def _refresh_metadata(self, call_deadline: Deadline) -> None:
        age_s = time.monotonic() - self._requested_s
        if age_s >= self._settings[METADATA_MAX_AGE_MS] / 1000:
            self._requested_s = time.monotonic()
            self._unknown.update(self.topics)
            self.subscription.expire()
        if self.subscription.is_due:
            existing = self._cluster.all_topics(call_deadline.left_s)
            self.subscription.match(existing)
            self._requested_s = time.monotonic()
            self._read_subscribed()
        new = {
            name for name in self._unknown - self._known
            if not self.subscription.is_pattern_only(name)
        }  # fmt: skip
        for topics, create in ((new, not self._strict), (self._unknown - new, False)):
            if topics:
                described = self._cluster.describe(
                    sorted(topics), call_deadline.left_s, create=create
                )
                self._requested_s = time.monotonic()
                for name, topic in described.items():
                    self._update_topic(name, topic)

    def _update_topic(self, name: str, topic: TopicMetadata | KafkaError) -> None:
        if isinstance(topic, KafkaError):
            self._handle_missing(name, topic)
            return
        if time.monotonic() - self._replaced_ids.get(topic.topic_id, -NEVER) < LAG_S_MAX:
            self._back_off(
                LeaderNotAvailable(
                    f"Topic {name!r} was recreated; the node still has its former metadata."
                )
            )
            return
        self._unknown.discard(name)
        if name in self.subscription.topics:
            start = self._reset
            is_new = name in self._known or self.subscription.is_new(name)
            if is_new and self._reset != NO_START:
                start = EARLIEST
            for number in topic.partitions:
                partition = TopicPartition(name, number)
                if partition not in self.assignment:
                    self.assignment.add(partition, start)
        for position in self.assignment:
            if position.partition.topic == name:
                self._update_leader(position, topic)
        self._known.add(name)

    def _update_leader(self, position: Position, topic: TopicMetadata) -> None:
        """Update the leader of a partition, and detect a recreated topic."""
        name = partition_name(position.partition)
        if NO_ID != position.topic_id != topic.topic_id != NO_ID:
            words = f"{name}: the topic was deleted and recreated."
            if self._strict:
                raise NonRetriableError(UnknownTopicId(words))
            log.warning(
                "Topic was deleted and recreated; reading it from its start.  partition=%s",
                name,
            )
            now_s = time.monotonic()
            self._replaced_ids = {
                i: at for i, at in self._replaced_ids.items() if now_s - at < LAG_S_MAX
            }
            self._replaced_ids[position.topic_id] = now_s
            position.restart(NO_START if self._reset == NO_START else EARLIEST)
        found = topic.partitions.get(position.partition.partition)
        if found is None and not position.is_known:
            words = f"the topic has {len(topic.partitions)} partitions, counted from 0."
            raise NonRetriableError(error_of(UnknownTopicOrPartition.code, name, words))
        if topic.topic_id != NO_ID:
            position.topic_id = topic.topic_id
        position.is_known = True
        if found is None or found.leader == NO_LEADER:
            position.lose_leader()
            self._unknown.add(topic.name)
            self._back_off(LeaderNotAvailable(f"{name} has no leader."))
        else:
            position.leader, position.leader_epoch = found

    def _handle_missing(self, name: str, error: KafkaError) -> None:
        """Handle a metadata error of a topic: retry if the topic may appear, else raise."""
        known = name in self._known
        creates = self._settings[ALLOW_AUTO_CREATE_TOPICS] and not self._strict
        may_appear = error.retriable and (known or creates) and not (known and self._strict)
        if not may_appear or (not known and self._metadata_deadline.passed):
            raise NonRetriableError(error)
        for position in self.assignment:
            if position.partition.topic == name and position.leader != NO_LEADER:
                position.lose_leader()
                log.warning(
                    "Partition cannot be read; retrying.  partition=%s error=%s",
                    partition_name(position.partition), error,
                )  # fmt: skip
        self._back_off(error)

    # First offsets.

    def _resolve_offsets(self, call_deadline: Deadline) -> None:
        waiting = [p for p in self.assignment.unresolved() if p.leader != NO_LEADER]
        grouped = [p for p in waiting if p.start == COMMITTED]
        if grouped:
            self._resolve_committed(grouped, call_deadline)
        waiting = [p for p in waiting if p.offset is None and p.start != COMMITTED]
        for position in waiting:
            if position.start == NO_START:
                raise OffsetOutOfRange(
                    f"{partition_name(position.partition)}: no committed or initial offset, and"
                    f" {AUTO_OFFSET_RESET.name} is none; set the position with seek()."
                )
        # The ends first: a record appended after this request is later than any requested time.
        timed = [p for p in waiting if p.start not in (LATEST, EARLIEST)]
        ends = self._find_offsets({p.partition: LATEST for p in timed}, call_deadline)
        found = self._find_offsets({p.partition: p.start for p in waiting}, call_deadline)
        out_of_range = [p for p in waiting if p.out_of_range_at != NOT_OUT_OF_RANGE]
        lows = self._find_offsets({p.partition: EARLIEST for p in out_of_range}, call_deadline)
        for position in waiting:
            offset = found[position.partition]
            if offset < 0:
                offset = ends.get(position.partition, -1)
            if offset >= 0:
                if position.partition in lows:
                    self._count_missed(position, lows[position.partition], offset)
                position.seek(offset)

    def _resolve_committed(self, positions: list[Position], call_deadline: Deadline) -> None:
        """Set positions to the group's committed offsets, or have them begin at the reset's.

        If the coordinator refuses the member's epoch, they stay unresolved: the epoch follows with
        the next heartbeat, or the partitions are lost.
        """
        try:
            found = offset_requests.committed_offsets(
                self._cluster, str(self._settings[GROUP_ID]), [p.partition for p in positions],
                call_deadline.left_s, require_stable=True, member=self.member_of(),
            )  # fmt: skip
        except (StaleMemberEpoch, UnknownMemberId, FencedMemberEpoch) as error:
            self._back_off(error)
            return
        for position in positions:
            offset = found[position.partition]
            if offset is None:
                position.start = self._reset
            else:
                position.seek(offset)
                position.committed = offset

    def _count_missed(self, position: Position, low: int, offset: int) -> None:
        """Count the records below `low` that were deleted before they were read.

        Those between `low` and `offset` are skipped by auto.offset.reset=latest, and not counted.
        """
        before = position.out_of_range_at
        missed = max(0, min(low, offset) - before)
        if missed:
            self.missed_records += missed
            log.warning(
                "Consumer missed %d records that were deleted before it read them.  partition=%s"
                " from=%d log_start_offset=%d resumed_at=%d",
                missed, partition_name(position.partition), before, low, offset,
            )  # fmt: skip

    def _find_offsets(
        self, sought: dict[tuple[str, int], int], call_deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after each timestamp; -1 if there is none."""
        if not sought:
            return {}
        found = offset_requests.list_offsets(
            self._cluster, sought, self.transports.isolation_level, call_deadline.left_s
        )
        return {partition: at.offset for partition, at in found.items()}

    # Fetch responses.

    def _handle_outcomes(self, outcomes: list[FetchOutcome]) -> None:
        """Handle every outcome, then raise the last error among them."""
        error: KafkaError | None = None
        for outcome in outcomes:
            position = outcome.position
            if outcome.is_stale:
                continue
            if outcome.error_code:
                error = self._handle_error(outcome) or error
                continue
            if not self._unknown:
                self._backoff.succeeded()
            if outcome.record_range is not None:
                position.ahead = outcome.record_range.end_offset
                self._queue.append(outcome.record_range)
        if error is not None:
            raise error

    def _handle_error(self, outcome: FetchOutcome) -> KafkaError | None:
        """Handle a partition error: return it if it must be raised, None if it is retried."""
        position = outcome.position
        error = error_of(outcome.error_code, partition_name(position.partition), outcome.message)
        if isinstance(error, OffsetOutOfRange):
            return self._handle_out_of_range(position, outcome)
        if not error.retriable or isinstance(error, CorruptMessage):
            return error
        position.lose_leader()
        self._unknown.add(position.partition.topic)
        self._back_off(error)
        return None

    def _handle_out_of_range(self, position: Position, outcome: FetchOutcome) -> KafkaError | None:
        words = f"{partition_name(position.partition)}: offset {position.ahead} is out of range."
        if outcome.log_start_offset >= 0:
            words += f"  The log begins at {outcome.log_start_offset}."
        if self._reset == NO_START:
            return OffsetOutOfRange(words)
        self.resets += 1
        log.warning(
            "Offset out of range; resetting to the %s offset.  partition=%s offset=%d"
            " log_start_offset=%d",
            self._settings[AUTO_OFFSET_RESET], partition_name(position.partition), position.ahead,
            outcome.log_start_offset,
        )  # fmt: skip
        out_of_range_at = position.offset
        position.restart(self._reset)
        if out_of_range_at is not None:
            position.out_of_range_at = out_of_range_at
        return None
