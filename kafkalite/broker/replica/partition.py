"""Partition: who may append to a log, and up to where others may read it.

    log start ──────────── last stable offset ──── high watermark ──── log end
                            read_committed ends     consumers end       followers end

The leader here is alone (replication comes later), so a record is committed as soon as the disk's
promise holds for it: in `fsync` mode when a flush has passed it, otherwise once the write call has
returned.

Left out: followers and Isr; transactions, so the last stable offset is the high watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite.broker.request_metrics import Traffic
from kafkalite.config.topic import DURABILITY
from kafkalite.errors import FencedLeaderEpoch, KafkaError, OffsetOutOfRange, UnknownLeaderEpoch
from kafkalite.storage.segment_grants import Loan, lend

if TYPE_CHECKING:
    from kafkalite.broker.replica.purgatory import Delayed
    from kafkalite.config.settings import Settings
    from kafkalite.records.file_slice import FileSlice
    from kafkalite.records.opening import Steps
    from kafkalite.storage.log import Appended, Log

READ_COMMITTED = 1
"""The isolation level that ends at the last stable offset."""


class Partition:
    """One partition led by this node."""

    __slots__ = ("fault", "flush_timer", "flushes_always", "flushing", "high_watermark", "index",
                 "leader_epoch", "log", "topic", "topic_id", "traffic", "waiting")  # fmt: skip

    def __init__(
        self, log: Log, leader_epoch: int, settings: Settings, traffic: Traffic | None = None
    ) -> None:
        self.log = log
        self.traffic = traffic or Traffic()
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = log.topic_id
        # A log may end behind what is durable, after a move.
        fsync = settings[DURABILITY] == "fsync"
        self.high_watermark = min(log.end_offset, log.durable_offset) if fsync else log.end_offset
        self.lead(leader_epoch)
        self.waiting: dict[Delayed, int | None] = {}
        """Requests that wait for it; a fetch with the position this partition has in it."""
        self.fault: KafkaError | None = None
        self.flushing = False
        self.flush_timer: object | None = None
        self.reconfigure(settings)

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    def lead(self, leader_epoch: int) -> None:
        """Lead it in this epoch from now on."""
        self.leader_epoch = leader_epoch
        if leader_epoch > self.log.leader_epochs.latest:
            self.log.leader_epochs.assign(leader_epoch, self.log.end_offset)

    def reconfigure(self, settings: Settings) -> None:
        """Take new topic settings."""
        self.flushes_always = settings[DURABILITY] == "fsync"
        self.advance()

    @property
    def last_stable_offset(self) -> int:
        """Where a read_committed consumer's reading ends."""
        return self.high_watermark

    def opening(self, batch: memoryview | bytes) -> Steps[bytes] | None:
        """Return the steps that open a client's batch for `append`, or None if it needs none."""
        if self.fault is not None:
            raise self.fault.again()
        return self.log.opening(batch)

    def append(
        self, batch: memoryview | bytes, *, from_client: bool = True, opened: bool = False
    ) -> Appended:
        """Place a batch at the log's end; raises what the log finds wrong with it."""
        if self.fault is not None:
            raise self.fault.again()
        appended = self.log.append(
            batch, self.leader_epoch, from_client=from_client, opened=opened
        )
        if not self.flushes_always:
            self.high_watermark = self.log.end_offset
        traffic = self.traffic
        traffic.messages_in += appended.last_offset - appended.base_offset + 1
        traffic.bytes_in += len(batch)
        return appended

    def advance(self) -> bool:
        """Move the high watermark as far as the promise holds; whether it moved."""
        reached = self.log.durable_offset if self.flushes_always else self.log.end_offset
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def upper_offset(self, isolation_level: int) -> int:
        """The offset before which a consumer's reading ends."""
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def read(
        self, offset: int, size_max: int, isolation_level: int, *, whole_first: bool
    ) -> FileSlice | None:
        """The bytes from the batch that holds `offset` on; None where there is nothing yet."""
        upper = self.upper_offset(isolation_level)
        if offset > upper:
            self._refuse_beyond(offset)
            return None
        return self.log.read(offset, size_max, upper, whole_first=whole_first)

    def lend(self, offset: int, size_max: int, isolation_level: int) -> Loan | None:
        """The same for who reads the file itself: whole batches, and where they end."""
        upper = self.upper_offset(isolation_level)
        if offset > upper:
            self._refuse_beyond(offset)
            return None
        return lend(self.log, offset, size_max, upper)

    def readable(self, offset: int, isolation_level: int) -> bool:
        """Whether such a read would give anything."""
        if offset < self.upper_offset(isolation_level):
            return True
        self._refuse_beyond(offset)
        return False

    def available(self, offset: int, size_max: int, isolation_level: int) -> int:
        """How many bytes such a read would give."""
        if not self.readable(offset, isolation_level):
            return 0
        return self.log.available(offset, self.upper_offset(isolation_level), size_max)

    def _refuse_beyond(self, offset: int) -> None:
        # Between the high watermark and the log's end an offset is not wrong, only early.
        if offset > self.log.end_offset:
            raise OffsetOutOfRange()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose metadata is older or newer than this leader (KIP-320).

        A negative epoch is none, and not checked.
        """
        if self.fault is not None:
            raise self.fault.again()
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpoch()
        raise UnknownLeaderEpoch()
