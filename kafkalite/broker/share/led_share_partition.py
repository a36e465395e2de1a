"""LedSharePartition: a share partition whose log this node leads, with its stored state.

    loading ── state read ──▶ active ── fenced, or the state cannot be read ──▶ failed
       ╰─ the coordinator is unavailable: read again

It has the records in flight (coordination/share/share_partition.py), sends their changes to the
share coordinator, and releases records whose locks expire.  Fetches without records to acquire wait
for it and for its log.  A failed one is dropped; the next request loads the state again.

Records that are Archiving are taken in parts of ARCHIVED_AT_ONCE: their dead letters are written,
and they are archived whether that has succeeded or not, as in Kafka.  After a restart or a move the
ones that are left are taken when the state is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.broker.future import Future
from kafkalite.broker.replica.delayed_fetch import ABORTED_MAX
from kafkalite.broker.replica.readable_partition import READ_COMMITTED
from kafkalite.broker.share.dead_letter_queue import DeadLetterQueue
from kafkalite.broker.share.fetched_batches import FetchedBatches, ReadAhead
from kafkalite.config.share_group import duration_ms
from kafkalite.coordination.share.acquisition import AcquiredRange, AcquireLimits
from kafkalite.coordination.share.share_partition import (
    AcknowledgementBatch,
    ArchivingRange,
    SharePartition,
    StateWrite,
)
from kafkalite.coordination.share.state_requests import Outcome, StateChange, StateRead
from kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    FencedStateEpoch,
    GroupIdNotFound,
    KafkaError,
    NotCoordinator,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.share_records import NO_OFFSET, SharePartitionKey, ShareSnapshot
from kafkalite.storage.log.timestamps import TimestampOffset, search_timestamp

if TYPE_CHECKING:
    from kafkalite.broker.replica.batch_opener import BatchOpener
    from kafkalite.broker.replica.delayed_operation import DelayedOperation
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.purgatory import Purgatory
    from kafkalite.broker.share.persister import SharePersister
    from kafkalite.coordination.share.share_settings import ShareGroupSettings
    from kafkalite.records.file_slice import FileSlice
    from kafkalite.storage.log.committed_read import CommittedRead
    from kafkalite.storage.segment.aborted_lookup import LookupBudget
    from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.broker")

READ_UNCOMMITTED = 0
ARCHIVED_AT_ONCE = 500
"""Number of records whose dead letters are written, and which are archived, together."""
RANGES_PER_UNIT = 16
"""Number of released ranges, or share partitions, that count as one unit of the purgatory."""
LOAD_RETRY_MS = 100
"""Time after which the state is read again, while its coordinator is unavailable."""
READS_MAX = 8
"""Maximum number of slices that a fetch reads until one has records to deliver."""

UNAVAILABLE = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    RequestTimedOut,
)
FENCED = (FencedLeaderEpoch, FencedStateEpoch)
KNOWN_TO_CLIENTS = (GroupIdNotFound, UnknownTopicOrPartition)


def client_error(error: KafkaError) -> KafkaError:
    """Return the error that clients of share groups get for one of the share coordinator."""
    if isinstance(error, FENCED):
        return NotLeaderOrFollower(str(error))
    if isinstance(error, UNAVAILABLE):
        return CoordinatorNotAvailable(str(error))
    return error if isinstance(error, KNOWN_TO_CLIENTS) else UnknownServerError(str(error))


class ShareServices(NamedTuple):
    """The components of a node that its share partitions use."""

    settings_of: Callable[[str], ShareGroupSettings]
    """Returns the settings of a group that are in force."""
    persister: SharePersister
    dead_letters: DeadLetterQueue
    opener: BatchOpener
    purgatory: Purgatory
    reactor: Reactor


class LedSharePartition:
    """One share partition; see the module."""

    def __init__(
        self, key: SharePartitionKey, partition: Partition, services: ShareServices
    ) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.records: SharePartition | None = None
        """The records in flight; None while the state is loaded."""
        self.error: KafkaError | None = None
        """Set once, when the share partition has failed."""
        self.waiting: dict[DelayedOperation, int | None] = {}
        """Fetches that wait for records that are released."""
        self.leaving: set[str] = set()
        """Members whose sessions have ended, and whose records are not released yet."""
        self._settings_of = services.settings_of
        self._persister = services.persister
        self._dead_letters = services.dead_letters
        self._opener = services.opener
        self._purgatory = services.purgatory
        self._reactor = services.reactor
        self._state_epoch = 0
        self._unfinished: CommittedRead | None = None
        """The read whose lookup of aborted transactions takes more steps."""
        self._ahead: ReadAhead | None = None
        """What the last fetch left of the slice that it read: no lookup is needed to continue."""
        self._is_writing_dead_letters = False
        self._timer: Timer | None = None
        self._due_ms = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"LedSharePartition({self.key.group_id}:{self.partition})"

    @property
    def settings(self) -> ShareGroupSettings:
        """The settings of the group now."""
        return self._settings_of(self.key.group_id)

    @property
    def isolation_level(self) -> int:
        """The isolation level of the group's reads."""
        return READ_COMMITTED if self.settings.is_read_committed else READ_UNCOMMITTED

    @property
    def is_usable(self) -> bool:
        """True while this node leads the partition in the epoch of the state's last read."""
        is_led = self.partition.error is None and self.partition.leader_epoch == self.leader_epoch
        return self.error is None and is_led

    # -- loading -----------------------------------------------------------------------------

    def load(self) -> None:
        """Begin to read the state."""
        self._timer = None
        self._persister.submit(StateRead(self.key, self.leader_epoch)).then(self._loaded)

    def _loaded(self, outcome: Outcome, _: object) -> None:
        if isinstance(outcome, UNAVAILABLE) and self.is_usable:
            # Clients do not retry after this error of a fetch.
            if not self._is_closed:
                self._timer = self._reactor.call_later(LOAD_RETRY_MS, self.load)
            return
        if not isinstance(outcome, ShareSnapshot):
            self.fail(outcome if outcome is not None else UnknownServerError())
            return
        self._state_epoch = outcome.state_epoch
        if outcome.start_offset != NO_OFFSET:
            self._begin(outcome, outcome.start_offset)
            return
        reset = self.settings.offset_reset
        age_ms = duration_ms(reset)
        if age_ms is not None:
            timestamp = self._reactor.clock.wall_ms() - age_ms
            found = self._opener.search(search_timestamp(self.partition.log, timestamp))
            if isinstance(found, Future):
                found.then(lambda found, error: self._found(outcome, found, error))
            else:
                self._found(outcome, found, None)
        elif reset == "earliest":
            self._begin(outcome, self.partition.log.log_start_offset)
        else:
            self._begin(outcome, self.partition.upper_offset(self.isolation_level))

    def _found(
        self, state: ShareSnapshot, found: TimestampOffset | None, error: KafkaError | None
    ) -> None:
        if error is not None:
            self.fail(error)
        elif found is None:
            self._begin(state, self.partition.upper_offset(self.isolation_level))
        else:
            self._begin(state, found.offset)

    def _begin(self, state: ShareSnapshot, start_offset: int) -> None:
        limits = self.settings.limits
        self.records = SharePartition(start_offset, state.state_batches, limits)
        self._purgatory.wake(self)
        self._write_dead_letters()

    def fail(self, error: KafkaError) -> None:
        """Refuse all requests from now on."""
        if self.error is None:
            self.error = client_error(error)
            log.info(
                "Share partition failed; its state is loaded again. group=%r partition=%s error=%r",
                self.key.group_id, self.partition, str(error),
            )  # fmt: skip
            self._purgatory.wake(self)

    def check(self) -> None:
        """Raise the error of a share partition that cannot be used."""
        if self.error is not None:
            raise self.error.copy()
        if self.partition.error is not None:
            raise self.partition.error.copy()
        if not self.is_usable:
            raise NotLeaderOrFollower()

    # -- fetching ----------------------------------------------------------------------------

    def available(self, size_max: int) -> int:
        """Return the number of bytes that a fetch would find; raise as `check`."""
        self.check()
        if self.records is None:
            return 0
        self.records.advance_to(self.partition.log.log_start_offset)
        offset = self.records.next_fetch_offset
        if offset is None or offset > self.partition.log.end_offset:
            return 0
        return self.partition.available(offset, size_max, self.isolation_level)

    def fetch(
        self,
        member_id: str,
        wanted: AcquireLimits,
        size_max: int,
        budget: LookupBudget,
        *,
        whole_first: bool,
    ) -> tuple[FileSlice | None, list[AcquiredRange]]:
        """Acquire records for a member; return the batches that contain them, and their offsets;
        none if there are none yet, or while `is_looking_up`."""
        unfinished, self._unfinished = self._unfinished, None
        self.check()
        records = self.records
        if records is None:
            return None, []
        if self.leaving:
            self.release_leaving()
        settings = self.settings
        records.limits = settings.limits
        records.advance_to(self.partition.log.log_start_offset)
        for _ in range(READS_MAX):
            offset = records.next_fetch_offset
            if offset is None:
                break
            ahead = self._take_ahead(offset, size_max, settings)
            try:
                read = (
                    (ahead, ())
                    if ahead is not None
                    else self._read(
                        offset,
                        size_max,
                        budget,
                        unfinished=unfinished,
                        is_read_committed=settings.is_read_committed,
                        whole_first=whole_first,
                    )
                )
            except OffsetOutOfRange:
                break  # the log was truncated
            unfinished = None
            if read is None:
                break
            batches = FetchedBatches(*read)
            now_ms = self._reactor.clock.monotonic_ms()
            ranges = records.acquire(member_id, offset, batches, wanted, now_ms)
            self._write_dead_letters()  # of a group with a lower limit than before
            if ranges:
                self._schedule()
                covered = batches.covering(ranges)
                if not settings.is_read_committed:
                    self._ahead = batches.after(covered)
                return covered, ranges
            if ahead is None and records.next_fetch_offset == offset:
                break
        return None, []

    def _take_ahead(
        self, offset: int, size_max: int, settings: ShareGroupSettings
    ) -> FileSlice | None:
        """Return what the last fetch left of its slice, if this one continues there; it may be a
        part of a batch only."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.offset != offset or settings.is_read_committed:
            return None
        log = self.partition.log
        is_there = log.failure is None and offset < log.end_offset
        return ahead.slice(size_max) if is_there else None

    @property
    def is_looking_up(self) -> bool:
        """True if the last fetch returned nothing only because its lookup of aborted transactions
        takes more steps; the next one continues it."""
        return self._unfinished is not None

    def _read(
        self,
        offset: int,
        size_max: int,
        budget: LookupBudget,
        *,
        unfinished: CommittedRead | None,
        is_read_committed: bool,
        whole_first: bool,
    ) -> tuple[FileSlice, Sequence[tuple[int, int]]] | None:
        """Return the batches that the group may read from an offset on, and aborted transactions in
        them; None if there are none yet."""
        if not is_read_committed:
            found = self.partition.read(offset, size_max, READ_UNCOMMITTED, whole_first=whole_first)
            return None if found is None else (found, ())
        read = unfinished
        if read is None or read.offset != offset:
            read = self.partition.read_committed(
                offset, size_max, ABORTED_MAX, whole_first=whole_first
            )
        if read is None:
            return None
        if not read.step(budget):
            self._unfinished = read
            return None
        return None if read.records is None else (read.records, read.aborted)

    # -- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch]
    ) -> Future[KafkaError | None]:
        """Acknowledge records; return None or the error once the change is stored."""
        self.check()
        if self.records is None:
            raise CoordinatorNotAvailable("The share partition is loading.")
        if self.leaving:
            self.release_leaving()
        self.records.limits = self.settings.limits
        now_ms = self._reactor.clock.monotonic_ms()
        write = self.records.acknowledge(member_id, batches, now_ms)
        self._schedule()
        return self._write(write) if write is not None else Future.of(None)

    def release_leaving(self) -> int:
        """Release what members have acquired whose sessions have ended; wake no fetch.  Return the
        number of ranges that were released."""
        leaving, self.leaving = self.leaving, set()
        count = 0
        if self.records is not None and not self._is_closed:
            for member_id in leaving:
                write = self.records.release(member_id)
                if write is not None:
                    count += len(write.batches)
                    self._write(write)
        return count

    def _write(self, write: StateWrite) -> Future[KafkaError | None]:
        records = self.records
        assert records is not None
        change = StateChange(
            self.key,
            self._state_epoch,
            self.leader_epoch,
            write.start_offset,
            write.delivery_complete_count,
            write.batches,
        )

        def written(outcome: Outcome) -> KafkaError | None:
            if not isinstance(outcome, KafkaError):
                records.complete(write.write_id)
                self._purgatory.wake(self)
                final = records.final_write()
                if final is not None:
                    self._write(final)
                self._write_dead_letters()
                return None
            log.warning(
                "State of a share partition could not be written. group=%r partition=%s error=%r",
                self.key.group_id, self.partition, str(outcome),
            )  # fmt: skip
            records.fail(write.write_id)
            self._schedule()
            if isinstance(outcome, FENCED):
                self.fail(outcome)
            self._write_dead_letters()  # of records whose locks have expired
            return client_error(outcome)

        return self._persister.submit(change).map(written)

    # -- dead letters ------------------------------------------------------------------------

    def _write_dead_letters(self) -> None:
        """Write the next dead letters in a later tick, unless some are being written."""
        records = self.records
        if records is not None and records.has_archiving and not self._is_writing_dead_letters:
            self._is_writing_dead_letters = True
            self._dead_letters.add_step(self._take_archiving)

    def _take_archiving(self) -> None:
        assert self.records is not None
        taken = self.records.take_archiving(ARCHIVED_AT_ONCE) if self.is_usable else []
        if taken:
            written = self._dead_letters.write(self.key.group_id, self.partition, taken)
            written.then(lambda _, error: self._archive(taken, error))
        else:
            self._is_writing_dead_letters = False

    def _archive(self, taken: Sequence[ArchivingRange], error: KafkaError | None) -> None:
        self._is_writing_dead_letters = False
        if error is not None and isinstance(self.partition.error, NotLeaderOrFollower):
            return
        if error is not None:
            log.error(
                "Dead letters cannot be written; their records are archived. group=%r partition=%s"
                " first_offset=%d last_offset=%d error=%r",
                self.key.group_id, self.partition, taken[0].first_offset, taken[-1].last_offset,
                str(error),
            )  # fmt: skip
        if self.records is not None and self.error is None:
            write = self.records.archive(taken)
            if write is not None:
                self._write(write)
                self._purgatory.wake(self)  # the window has room again
        self._write_dead_letters()

    # -- locks -------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Set the timer to the time at which the next lock expires."""
        due_ms = self.records.next_due_ms if self.records is not None else None
        if due_ms is None or self._is_closed:
            return
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        wait_ms = max(0, due_ms - self._reactor.clock.monotonic_ms())
        self._timer = self._reactor.call_later(wait_ms, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # The locks of thousands of share partitions may end at the same time.
        self._purgatory.add(self._release_expired())

    def _release_expired(self) -> Iterator[int]:
        if self.error is not None or self.records is None or self._is_closed:
            return
        write = self.records.expire(self._reactor.clock.monotonic_ms())
        if write is not None:
            self._write(write)
            self._purgatory.wake(self)
        self._schedule()
        units = len(write.batches) // RANGES_PER_UNIT if write is not None else 0
        if units:
            yield units

    def close(self) -> None:
        """End the locks of a share partition that is dropped; its last changes may be in flight."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
