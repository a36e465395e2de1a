"""ReadablePartition: reads of a consumer from a log that this node leads or follows.

A read ends at the high watermark that this node knows, that of a read_committed reader at the last
stable offset.  A follower does not truncate its log below its high watermark, so what is read here
stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite.errors import FencedLeaderEpoch, OffsetOutOfRange, UnknownLeaderEpoch
from kafkalite.storage.log.committed_read import CommittedRead
from kafkalite.storage.log.log_reader import available, read
from kafkalite.storage.log.segment_grants import SegmentGrant, grant

if TYPE_CHECKING:
    from kafkalite.broker.replica.delayed_operation import DelayedOperation
    from kafkalite.broker.request_metrics import TopicTraffic
    from kafkalite.errors import KafkaError
    from kafkalite.records.file_slice import FileSlice
    from kafkalite.storage.log.log import Log

READ_COMMITTED = 1
"""Kafka's isolation level for reads up to the last stable offset."""


class ReadablePartition:
    """A partition that is led or followed here, as its readers see it."""

    __slots__ = ()

    log: Log
    topic: str
    leader_epoch: int
    error: KafkaError | None
    """The reason why it cannot be read; None while it can."""
    traffic: TopicTraffic
    waiting: dict[DelayedOperation, int | None]
    """Delayed operations that wait for this partition; for a fetch, its position there."""

    @property
    def high_watermark(self) -> int:
        """The high watermark as far as this node knows it."""
        raise AssertionError("a subclass defines this")

    @property
    def last_stable_offset(self) -> int:
        """The offset at which read_committed reads end: the outcome of each transaction below it is
        known and committed."""
        transactions = self.log.producers.transactions
        if not transactions:
            return self.high_watermark
        return transactions.last_stable_offset(self.high_watermark, self.log.log_start_offset)

    def upper_offset(self, isolation_level: int) -> int:
        """Return the offset at which a consumer's reads end."""
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def read(
        self, offset: int, size_max: int, isolation_level: int, *, whole_first: bool
    ) -> FileSlice | None:
        """Return the bytes from the batch that contains `offset`, or None if there are none yet."""
        upper = self.upper_offset(isolation_level)
        if offset > upper:
            self._refuse_beyond(offset)
            return None
        return read(self.log, offset, size_max, upper, whole_first=whole_first)

    def read_committed(
        self, offset: int, size_max: int, aborted_max: int, *, whole_first: bool
    ) -> CommittedRead | None:
        """Return the read of a read_committed reader, to be completed in steps; None if there is
        nothing to read yet."""
        upper = self.last_stable_offset
        if offset > upper:
            self._refuse_beyond(offset)
            return None
        return CommittedRead(
            self.log, offset, size_max, upper, aborted_max, whole_first=whole_first
        )

    def grant(self, offset: int, size_max: int, isolation_level: int) -> SegmentGrant | None:
        """Return a segment grant of whole batches for the same range, or None if it is empty."""
        upper = self.upper_offset(isolation_level)
        if offset > upper:
            self._refuse_beyond(offset)
            return None
        return grant(self.log, offset, size_max, upper)

    def readable(self, offset: int, isolation_level: int) -> bool:
        """Return whether a read at `offset` would return any bytes."""
        if offset < self.upper_offset(isolation_level):
            return True
        self._refuse_beyond(offset)
        return False

    def available(self, offset: int, size_max: int, isolation_level: int) -> int:
        """Return the number of bytes that a read at `offset` would return."""
        if not self.readable(offset, isolation_level):
            return 0
        return available(self.log, offset, self.upper_offset(isolation_level), size_max)

    def _refuse_beyond(self, offset: int) -> None:
        # An offset between the high watermark and the log end offset is valid; it has no data yet.
        if offset > self.log.end_offset:
            raise OffsetOutOfRange()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise if the client's leader epoch is older or newer than the leader's (KIP-320).

        A negative epoch means that the client sent none.
        """
        if self.error is not None:
            raise self.error.copy()
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpoch()
        raise UnknownLeaderEpoch()
