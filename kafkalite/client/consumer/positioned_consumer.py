"""PositionedConsumer: topics, positions, offsets and group of a consumer, without its records.

Consumer adds the methods that return records.  Everything here may also be called by a rebalance
callback, and moves or reads positions only.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Self, Unpack

from kafkalite.client.consumer.consumer_offsets import ConsumerOffsets, Watermarks
from kafkalite.client.consumer.consumer_positions import ConsumerPositions
from kafkalite.client.consumer.fetch_buffer import FetchBuffer
from kafkalite.client.consumer.group_reading import RebalanceCallback, RebalanceCallbacks
from kafkalite.client.consumer.tables import timestamp_ms
from kafkalite.client.group.subscription import Topics
from kafkalite.client.net.arguments import OffsetsToCommit, checked_partition
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.config.client_keywords import ConsumerConfig
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

CLOSE_TIMEOUT_S = 5.0
"""Default seconds for a member to leave its group when it is closed."""


class PositionedConsumer:
    """The part of a consumer that returns no records."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: Topics | None = None,
        group: str | None = None,
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        **settings: Unpack[ConsumerConfig],
    ) -> None:
        """Create a consumer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys
                ("fetch.max.bytes": 1048576).
            topics: Topics to read, as for subscribe().  None: assign() or subscribe() follows.
            group: Group to join with the topics, or whose offsets assign() begins at (group.id).
            on_assign: Function of a list of partitions, called when a group has assigned them and
                before their first record is returned; it may seek.
            on_revoke: The same before partitions are given to other members, after the automatic
                commit; it may commit.
            on_lost: The same for partitions that other members may read already, because a timeout
                of this member has passed; without it, on_revoke is called.
            settings: Kafka's keys with underscores (`auto_offset_reset="earliest"`).

        Raises:
            InvalidConfig: A setting is unknown, invalid or given twice, or a topic pattern is not a
                regular expression.
            TypeError: `topics` is not a name or a list of names.
        """
        callbacks = RebalanceCallbacks(on_assign, on_revoke, on_lost)
        self.buffer = FetchBuffer(bootstrap, topics, group, settings, callbacks)
        """Shared with AsyncConsumer."""
        self._positions = ConsumerPositions(self.buffer)
        self._offsets = ConsumerOffsets(self.buffer)

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """Close the consumer, from any thread; a second call does nothing.

        A member commits, calls on_revoke and leaves its group, if the thread that closes it is the
        one that called for records last, and not in a callback; otherwise the session timeout ends
        its membership.  At the end of a with block that an exception ends, nothing more is
        committed automatically.

        Args:
            timeout: Seconds to leave the group.
        """
        deadline = Deadline(self.buffer.limit_s(timeout))
        try:
            if not self.buffer.is_in_callback and self.buffer.begin_leave(closes=True):
                self._end_leave(deadline)
        finally:
            self.buffer.close()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self.buffer.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.buffer.stop_commits()
        self.close()

    def _apply_changes(self) -> None:
        """Apply the changes of a group, and run their callbacks."""
        self.buffer.check_no_callback()
        while (call := self.buffer.prepare()) is not None:
            self.buffer.begin(call)
            try:
                returned = call.function(call.partitions)
            finally:
                self.buffer.finish(call)
            if isinstance(returned, Coroutine):
                returned.close()
                raise TypeError(
                    f"The callback {call.function!r} is a coroutine function, which only an"
                    " AsyncConsumer awaits."
                )

    def _end_leave(self, deadline: Deadline) -> None:
        """Revoke the partitions and leave the group, also if a callback raises."""
        try:
            self._apply_changes()
        finally:
            with self.buffer.locked() as buffer:
                buffer.end_leave(deadline)

    # Subscription and positions.

    def subscribe(self, topics: Topics) -> None:
        """Read these topics instead of the current ones: all partitions, or those of a group.

        Partitions that are already read keep their positions.  A consumer with a group joins it
        with the next call for records.

        Args:
            topics: Names or patterns of topics.  A name that starts with ^ is a regular expression,
                searched for in the names of all topics; a compiled re.Pattern matches whole names.
                Patterns are matched again every metadata.max.age.ms, or, by the consumer protocol,
                by the broker, with internal topics as well; without a group a topic that appears
                later is read from its first record.

        Raises:
            InvalidConfig: A pattern is not a regular expression, or has the flag re.VERBOSE.
            ValueError: There are no topics, and the consumer is a member of a group.
        """
        with self.buffer.locked() as buffer:
            buffer.subscribe(topics)

    def unsubscribe(self) -> None:
        """Read nothing; a member commits, calls on_revoke and leaves its group.

        Raises:
            RuntimeError: Another thread uses the consumer, or a rebalance callback calls this.
        """
        self.buffer.check_no_callback()
        self.buffer.begin_leave(closes=False)
        self._end_leave(Deadline(CLOSE_TIMEOUT_S))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the current ones.

        Partitions that are already read keep their positions.  Others start at the group's
        committed offset if there is one, else where auto.offset.reset sets it.

        Args:
            partitions: (topic, partition) pairs.

        Raises:
            TypeError: An element is not such a pair.
            RuntimeError: The consumer is a member of a group; unsubscribe() first.
        """
        wanted = [checked_partition(each) for each in partitions]
        with self.buffer.locked() as buffer:
            buffer.assign(wanted)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, as far as they are known."""
        return [position.partition for position in self.buffer.assignment_reader.assignment]

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [p.partition for p in self.buffer.assignment_reader.assignment if p.paused]

    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """Return the offset of the next message of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            timeout: Seconds to find the first offset.

        Returns:
            The position; it counts messages that were returned, not those fetched ahead.

        Raises:
            ValueError: The partition is not assigned.
            RequestTimedOut: The first offset was not found in time.
        """
        return self._positions.position(partition, timeout)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Set the position of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            offset: Offset of the next message, 0 to 2**63 - 1.

        Raises:
            ValueError: The partition is not assigned, or the offset is out of these bounds.
        """
        self._positions.seek(partition, offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the log start offsets of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        self._positions.restart(EARLIEST, partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the current ends of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        self._positions.restart(LATEST, partitions)

    def seek_to_time(self, when: datetime | int, *partitions: tuple[str, int]) -> None:
        """Set the positions to the first record at or after a time.

        Args:
            when: A datetime with a time zone, or milliseconds since 1970.
            partitions: Partitions to seek; none: all of the assignment.  A partition without such a
                record is set to its end.

        Raises:
            ValueError: The datetime has no time zone, or a partition is not assigned.
        """
        self._positions.restart(timestamp_ms(when), partitions)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no messages of these partitions, or of all, until they are resumed.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        self._positions.pause(partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume these partitions, or all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        self._positions.resume(partitions)

    # Watermarks and lag.

    def watermarks(self, partition: tuple[str, int], timeout: float | None = None) -> Watermarks:
        """Return the current first and end offsets of a partition.

        Args:
            partition: (topic, partition); need not be assigned.
            timeout: Seconds to wait.

        Returns:
            Watermarks(low, high).  With isolation.level=read_committed, `high` is the last stable
            offset.

        Raises:
            UnknownTopicOrPartition: The topic or partition does not exist.
        """
        return self._offsets.watermarks(partition, timeout)

    def lag(self, *partitions: tuple[str, int], timeout: float | None = None) -> int:
        """Return the current number of offsets between the positions and the ends.

        Args:
            partitions: Partitions to sum over; none: all of the assignment.
            timeout: Seconds to wait.

        Returns:
            The sum over the partitions; offsets without a record count as well.

        Raises:
            UnknownTopicOrPartition: A topic does not exist.
            ValueError: A partition is not assigned.
        """
        return self._offsets.lag(partitions, timeout)

    def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], datetime | int],
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt | None]:
        """Return the first record at or after each time.

        Args:
            times: For each (topic, partition) a datetime with a time zone, or milliseconds since
                1970.
            timeout: Seconds to wait.

        Returns:
            OffsetAt(offset, timestamp) by partition; None if there is no such record.

        Raises:
            UnknownTopicOrPartition: A topic or partition does not exist.
            ValueError: A datetime has no time zone.
        """
        timestamps: dict[tuple[str, int], int] = {
            checked_partition(partition): timestamp_ms(when) for partition, when in times.items()
        }
        return self._offsets.at_timestamps(timestamps, timeout)

    # Committed offsets.

    def commit(
        self,
        offsets: OffsetsToCommit | None = None,
        timeout: float | None = None,
        *,
        offsets_to_keep: OffsetsToCommit | None = None,
    ) -> None:
        """Commit offsets for the group.

        Args:
            offsets: For each (topic, partition) the offset of the next message, or (offset,
                metadata).  None: all current positions.
            timeout: Seconds to wait.
            offsets_to_keep: Former name of `offsets`.

        Raises:
            InvalidGroupId: The consumer has no group.
            UnknownMemberId, IllegalGeneration, FencedMemberEpoch, StaleMemberEpoch,
                RebalanceInProgress: Other members may commit now, and this consumer may not.
        """
        if None not in (offsets, offsets_to_keep):
            raise TypeError("pass either offsets or offsets_to_keep, its former name, not both")
        self._offsets.commit(offsets_to_keep if offsets is None else offsets, timeout)

    def committed(
        self, *partitions: tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of the group; wait for transactions that may change them.

        Args:
            partitions: Partitions to look up; none: all of the assignment.
            timeout: Seconds to wait.

        Returns:
            Offsets by partition; None where nothing is committed.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return self._offsets.committed(partitions, timeout)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the current positions, without a request.

        Returns:
            The offset of the next message, of each partition that has a position.
        """
        return self._offsets.positions()

    def group_metadata(self) -> GroupMetadata:
        """Return what a transaction needs to commit offsets of this consumer's group.

        Returns:
            The group, and the membership in it if the consumer is a member.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return self._offsets.identity()

    def metrics(self) -> dict[str, Any]:
        """Return the consumer's metrics.

        Returns:
            `transports`: the transport of each node id, "direct" or "tcp" (also under its
            former name); `offset_resets`: how often auto.offset.reset was used;
            `missed_records`: offsets deleted before they were read.
        """
        return self.buffer.metrics()
