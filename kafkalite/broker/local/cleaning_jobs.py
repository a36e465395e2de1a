"""CleaningJobs: the passes of the log cleaner over a node's logs, from the offer to the swap.

    OFFER ──▶ the dirtiest log that is due          cleaner_candidates.py
    TAKE_JOB ▶ state CLEANING; the job in a file    cleaning_files.py
    CLEANED ─▶ the results are checked, and replace the segments, group by group in several ticks
    SWAPPED ◀─ the cleaner checkpoint is set

Each replica of a partition is cleaned on its own, by its node, as in Kafka.  A pass is cancelled
when its partition is deleted, moved, or changes between leading and following, when its topic is
not compacted any more, when its log is truncated, and at the end of the cleaner's connection.  Its
.cleaned files are deleted then, and again when the cleaner has stopped: until that the state is
ABORTING, and no other pass begins.
Records may be deleted during a pass; the swap then finds other segments, and the pass is repeated.

A log that cannot be cleaned for an unexpected reason is UNCLEANABLE until the node restarts; other
logs are cleaned.  After a full disk the pass is repeated.

Left out: the state `paused` of Kafka.  What it is for there, truncation and deletion of segments,
happens here in one step of the event loop.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalite.broker.future import Future
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, Work, in_steps
from kafkalite.config.log_cleaner import (
    LOG_CLEANER_DEDUPE_BUFFER_SIZE,
    LOG_CLEANER_ENABLE,
    LOG_CLEANER_IO_BUFFER_LOAD_FACTOR,
    LOG_CLEANER_IO_BUFFER_SIZE,
    LOG_CLEANER_THREADS,
)
from kafkalite.errors import (
    CorruptMessage,
    InvalidConfig,
    KafkaError,
    KafkaStorageError,
    PolicyViolation,
    RequestTimedOut,
    UnknownServerError,
)
from kafkalite.protocol.schemas.cleaning import CleaningState
from kafkalite.storage.compaction import cleaning_files, segment_swap
from kafkalite.storage.compaction.cleaning_job import CleaningCounts, CleaningJob, CleaningResult
from kafkalite.storage.manager import cleaner_candidates
from kafkalite.storage.manager.cleaner_candidates import CleanableRange, OffsetMapLimits

if TYPE_CHECKING:
    from kafkalite.broker.local.local_node import LocalNode
    from kafkalite.storage.log.log import Log

log = logging.getLogger("kafkalite.broker")

CHECK_MS = 1_000
"""Interval of checks whether a pass must be cancelled."""

RETRY_MS = 15_000
"""Delay before a log is offered again after a pass that failed."""


class CleanedPartition(Protocol):
    """A partition that is led or followed here, as the log cleaner uses it."""

    log: Log
    error: KafkaError | None
    is_loading: bool

    @property
    def high_watermark(self) -> int:
        """The high watermark as far as this node knows it."""

    @property
    def last_stable_offset(self) -> int:
        """The offset below which the outcome of each transaction is known and committed."""


class CleaningOffer(NamedTuple):
    """A log that should be cleaned."""

    partition: CleanedPartition
    range: CleanableRange
    is_requested: bool


class LastPass(NamedTuple):
    """The last pass over a log that succeeded."""

    number: int
    """Number of passes since the node started."""
    ended_ms: int
    """Wall-clock time."""
    duration_ms: int
    counts: CleaningCounts


class ActivePass:
    """A pass that a cleaner works on."""

    __slots__ = ("cancel", "descriptor", "is_swapping", "job", "partition", "reason", "start_ms",
                 "truncation_count")  # fmt: skip

    def __init__(
        self,
        partition: CleanedPartition,
        job: CleaningJob,
        start_ms: int,
        cancel: Callable[[str], object],
    ) -> None:
        self.partition = partition
        self.job = job
        self.start_ms = start_ms
        self.truncation_count = partition.log.truncation_count
        self.cancel = cancel
        """Function that stops the cleaner, with the reason."""
        self.descriptor = os.memfd_create("cleaning-job", os.MFD_CLOEXEC)
        self.is_swapping = False
        self.reason = ""
        """Why it was cancelled; empty if it was not."""

    def close(self) -> None:
        """Close the file of the job."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class CleaningJobs:
    """The passes over the logs of one node; see the module."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._passes: dict[Log, ActivePass] = {}
        self._requested: dict[Log, None] = {}
        self._retry_ms: dict[Log, int] = {}
        self._last: dict[Log, LastPass] = {}
        self._failures: dict[Log, str] = {}
        self.uncleanable: dict[Log, str] = {}
        """Logs that cannot be cleaned until the node restarts, with the reasons."""
        self.cleaners: dict[object, Callable[[], object]] = {}
        """The connected cleaner threads, with the functions that wake them up."""
        self.last_offer_ms = -1
        """Monotonic time of the last offer; -1 if no cleaner has requested one yet."""
        self.max_dirty_ratio = 0.0
        self.max_overdue_ms = 0
        """The largest dirty ratio and delay of all compacted logs, when they were last offered."""
        self.last_pass: LastPass | None = None
        self._is_checking = False

    # -- choosing ----------------------------------------------------------------------------

    def _compacted(self) -> Iterator[CleanedPartition]:
        """Yield the partitions that the log cleaner compacts."""
        for partition in [*self._node.replicas, *self._node.replication.followed]:
            if partition.log.config.compacts:
                yield partition

    def _of(self, topic_id: bytes, index: int) -> CleanedPartition | None:
        """Return a partition that is led or followed here."""
        led = self._node.replicas.of_topic(topic_id).get(index)
        return led or self._node.replication.followed.of_topic(topic_id).get(index)

    def _is_current(self, partition: CleanedPartition) -> bool:
        key = partition.log.topic_id, partition.log.partition
        return partition.error is None and self._of(*key) is partition

    def best_offer(self) -> CleaningOffer | None | Future[CleaningOffer | None]:
        """Return the log with the largest dirty ratio that is due, or one that was requested."""
        return in_steps(self._node.reactor, self._choose())

    def _choose(self) -> Work[CleaningOffer | None]:
        best: CleaningOffer | None = None
        ratio, overdue_ms = 0.0, 0
        self._forget()
        now_ms = self._node.clock.wall_ms()
        for partition in self._compacted():
            yield
            if not self._is_free(partition):
                continue
            try:
                found = self._range(partition, now_ms)
            except (OSError, KafkaStorageError) as error:
                self._failed(partition, f"The log cannot be read: {error}", retriable=True)
                continue
            ratio = max(ratio, found.dirty_ratio)
            overdue_ms = max(overdue_ms, found.overdue_ms)
            offer = CleaningOffer(partition, found, partition.log in self._requested)
            if offer.is_requested and not found.cleanable_size:
                self._requested.pop(partition.log)  # there is nothing that may be cleaned
                continue
            due = offer.is_requested or (
                cleaner_candidates.is_due(partition.log, found) and not self._is_waiting(partition)
            )
            if due and (best is None or _urgency(offer) > _urgency(best)):
                best = offer
        self.max_dirty_ratio, self.max_overdue_ms = ratio, overdue_ms
        self.last_offer_ms = self._node.clock.monotonic_ms()
        return best

    def _is_free(self, partition: CleanedPartition) -> bool:
        return (
            self._is_current(partition)
            and partition.log not in self._passes
            and partition.log not in self.uncleanable
            and partition.log.failure is None
            and not partition.log.is_truncating
            and not partition.is_loading
        )

    def _is_waiting(self, partition: CleanedPartition) -> bool:
        due_ms = self._retry_ms.get(partition.log)
        return due_ms is not None and self._node.clock.monotonic_ms() < due_ms

    def _range(self, partition: CleanedPartition, now_ms: int) -> CleanableRange:
        return cleaner_candidates.cleanable_range(
            partition.log, partition.last_stable_offset, now_ms
        )

    # -- requests of the command line --------------------------------------------------------

    def request(self, topic_id: bytes, index: int) -> None:
        """Roll a log and have it cleaned soon, whatever its dirty ratio; raise KafkaError if it is
        not compacted or the cleaner is disabled."""
        partition = self._node.replicas.leader(topic_id, index)
        if not self._node.settings[LOG_CLEANER_ENABLE]:
            raise PolicyViolation(f"{LOG_CLEANER_ENABLE.name} is false: no log is compacted.")
        if not partition.log.config.compacts:
            raise InvalidConfig(
                f"{partition.topic} is not compacted: its cleanup.policy has no `compact`."
            )
        if partition.log.failure is not None:
            raise KafkaStorageError(partition.log.failure)
        if partition.log in self.uncleanable:
            raise KafkaStorageError(
                f"{_name(partition)} cannot be compacted until node {self._node.node_id} restarts:"
                f" {self.uncleanable[partition.log]}"
            )
        partition.log.roll()
        self._requested[partition.log] = None
        self._retry_ms.pop(partition.log, None)
        for wake_up in list(self.cleaners.values()):
            wake_up()

    def status(self, topic_id: bytes, index: int) -> dict[str, object]:
        """Return the fields of CLEANER_STATUS that describe a partition."""
        partition = self._node.replicas.leader(topic_id, index)
        found = self._range(partition, self._node.clock.wall_ms())
        last = self._last.get(partition.log)
        return {
            "state": self.state_of(partition),
            "reason": self.uncleanable.get(partition.log) or self._failures.get(partition.log),
            "is_requested": partition.log in self._requested,
            "cleaners": len(self.cleaners),
            "dirty_ratio": found.dirty_ratio,
            "log_size": partition.log.size,
            "cleanable_size": found.cleanable_size,
            "first_dirty_offset": found.first_dirty_offset,
            "first_uncleanable_offset": found.first_uncleanable_offset,
            "passes": last.number if last else 0,
            "last_cleaned_ms": last.ended_ms if last else -1,
        }

    def state_of(self, partition: CleanedPartition) -> CleaningState:
        """Return the state of a partition."""
        active = self._passes.get(partition.log)
        if active is not None:
            return CleaningState.ABORTING if active.reason else CleaningState.CLEANING
        if partition.log in self.uncleanable:
            return CleaningState.UNCLEANABLE
        return CleaningState.NONE

    # -- passes ------------------------------------------------------------------------------

    def begin(self, topic_id: bytes, index: int, cancel: Callable[[str], object]) -> ActivePass:
        """Begin a pass over a log; raise KafkaError if it is not possible."""
        partition = self._of(topic_id, index) or self._node.replicas.leader(topic_id, index)
        if not self._is_free(partition) or not partition.log.config.compacts:
            raise RequestTimedOut(
                f"{_name(partition)} cannot be cleaned now: it is being cleaned, or has failed, or"
                " is not compacted any more."
            )
        now_ms = self._node.clock.wall_ms()
        found = self._range(partition, now_ms)
        if not found.cleanable_size:
            raise RequestTimedOut(f"{_name(partition)} has no cleanable segment.")
        job = cleaner_candidates.job_of(
            partition.log, found, self._limits(),
            last_stable_offset=partition.last_stable_offset,
            high_watermark=partition.high_watermark, now_ms=now_ms,
        )  # fmt: skip
        partition.log.discard_cleaned()  # of a pass that was cancelled
        active = ActivePass(partition, job, self._node.clock.monotonic_ms(), cancel)
        self._passes[partition.log] = active
        partition.log.is_being_cleaned = True
        self._check_later()
        return active

    def write_job(self, active: ActivePass) -> None | Future[None]:
        """Write the job of a pass to its file, now or in later ticks."""
        return in_steps(self._node.reactor, self._write_job(active))

    def _write_job(self, active: ActivePass) -> Work[None]:
        producers, aborted = bytearray(), bytearray()
        live = cleaner_candidates.live_producers(active.partition.log)
        while some := [*islice(live, ENTRIES_AT_ONCE)]:
            producers += cleaning_files.packed_producers(some)
            yield
        try:
            for segment in active.partition.log.segments.with_aborted(0):
                for found in cleaner_candidates.aborted_in(segment, active.job.sources_end):
                    aborted += cleaning_files.packed(found)
                    yield
                    self._check_sources(active)
            cleaning_files.write_job(active.descriptor, active.job, producers, aborted)
        except OSError as error:
            raise KafkaStorageError(
                f"The cleaning job cannot be written: {error.strerror}"
            ) from None

    @staticmethod
    def _check_sources(active: ActivePass) -> None:
        """Raise RequestTimedOut if records were deleted with their segments since the pass began:
        to read the transaction index of such a segment would create an empty file."""
        if not _has_sources(active):
            raise RequestTimedOut("The oldest segment was deleted meanwhile.")

    def _limits(self) -> OffsetMapLimits:
        settings = self._node.settings
        threads = settings[LOG_CLEANER_THREADS]
        return OffsetMapLimits(
            map_bytes=settings[LOG_CLEANER_DEDUPE_BUFFER_SIZE] // threads,
            load_factor=settings[LOG_CLEANER_IO_BUFFER_LOAD_FACTOR],
            io_buffer_bytes=settings[LOG_CLEANER_IO_BUFFER_SIZE] // threads,
        )

    def finish(self, active: ActivePass) -> None | Future[None]:
        """Replace the segments by those of a pass that the cleaner has completed.

        Raises KafkaError, also through the Future, if it was cancelled or its result is not valid.
        """
        active.is_swapping = True
        try:
            return in_steps(self._node.reactor, self._swap(active), is_cancellable=False)
        except KafkaError as error:
            self.refuse(active, error)
            raise
        except Exception as error:
            self.refuse(active, UnknownServerError(repr(error)))
            raise

    def _swap(self, active: ActivePass) -> Work[None]:
        partition = active.partition
        result = cleaning_files.read_result(active.descriptor)
        if not active.job.first_dirty_offset <= result.end_offset <= active.job.upper_offset:
            raise CorruptMessage(
                f"The result for {_name(partition)} ends at offset {result.end_offset}, outside of"
                f" {active.job.first_dirty_offset} to {active.job.upper_offset}."
            )
        self._check(active)
        if result.groups and partition.log.cleaner_offset < 0:
            # Recovery accepts missing offsets in a log that was cleaned in part, too, also once
            # its topic is not compacted any more.
            self._node.logs.note_cleaned(partition.log, active.job.first_dirty_offset)
        for group in result.groups:
            for _ in segment_swap.check(partition.log.directory, group):
                self._check(active)
                yield
            self._check(active)
            partition.log.replace_segments(group)
            yield
        self._check(active)
        self._node.logs.note_cleaned(partition.log, result.end_offset)
        self._node.replicas.log_was_cleaned(partition.log)
        self._succeeded(active, result)

    def _check(self, active: ActivePass) -> None:
        """Raise RequestTimedOut if a pass must not go on."""
        reason = active.reason or self._reason_to_cancel(active)
        if reason:
            raise RequestTimedOut(f"The cleaning was cancelled: {reason}.")

    def _succeeded(self, active: ActivePass, result: CleaningResult) -> None:
        partition, clock = active.partition, self._node.clock
        before, counts = self._last.get(partition.log), result.counts
        last = LastPass(
            before.number + 1 if before else 1,
            clock.wall_ms(),
            clock.monotonic_ms() - active.start_ms,
            counts,
        )
        self._last[partition.log] = self.last_pass = last
        self._failures.pop(partition.log, None)
        self._retry_ms.pop(partition.log, None)
        if result.end_offset >= active.job.upper_offset or not result.groups:
            self._requested.pop(partition.log, None)
        self._end(active)
        log.info(
            "Log was compacted. partition=%s end_offset=%d bytes_read=%d bytes_written=%d"
            " records_read=%d records_written=%d duration_ms=%d",
            _name(partition), result.end_offset, counts.bytes_read, counts.bytes_written,
            counts.records_read, counts.records_written, last.duration_ms,
        )  # fmt: skip

    def fail(self, active: ActivePass, reason: str, *, retriable: bool) -> None:
        """End a pass that has failed in the cleaner."""
        self._discard(active)
        self._end(active)
        if not active.reason:
            # The file of a removed segment is truncated in time, which looks like damage.
            retriable = retriable or not _has_sources(active)
            self._failed(active.partition, reason, retriable=retriable)

    def abandon(self, active: ActivePass) -> None:
        """End a pass whose cleaner has disconnected; an outstanding swap is not affected."""
        if not active.is_swapping:
            self._discard(active)
            self._end(active)

    def refuse(self, active: ActivePass, error: KafkaError) -> None:
        """End a pass whose result was not accepted."""
        self._discard(active)
        self._end(active)
        if not active.reason and not isinstance(error, RequestTimedOut):
            retriable = isinstance(error, KafkaStorageError)
            self._failed(active.partition, str(error), retriable=retriable)

    def _failed(self, partition: CleanedPartition, reason: str, *, retriable: bool) -> None:
        self._failures[partition.log] = reason
        self._requested.pop(partition.log, None)
        if retriable:
            self._retry_ms[partition.log] = self._node.clock.monotonic_ms() + RETRY_MS
            log.warning(
                "Log cannot be compacted now; retrying. partition=%s error=%r",
                _name(partition), reason,
            )  # fmt: skip
            return
        self.uncleanable[partition.log] = reason
        log.error(
            "Log cannot be compacted until the node restarts. partition=%s error=%r",
            _name(partition), reason,
        )  # fmt: skip

    def _discard(self, active: ActivePass) -> None:
        """Delete the files that the cleaner has written."""
        if not active.partition.log.is_released:
            active.partition.log.discard_cleaned()

    def _end(self, active: ActivePass) -> None:
        active.close()
        active.partition.log.is_being_cleaned = False
        if self._passes.get(active.partition.log) is active:
            del self._passes[active.partition.log]

    # -- cancelling --------------------------------------------------------------------------

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._node.reactor.call_later(CHECK_MS, self._check_passes)

    def _check_passes(self) -> None:
        """Cancel the passes that must not go on."""
        self._is_checking = False
        for active in list(self._passes.values()):
            reason = self._reason_to_cancel(active)
            if reason and not active.reason:
                log.info(
                    "Compaction is cancelled. partition=%s reason=%r",
                    _name(active.partition), reason,
                )  # fmt: skip
                active.reason = reason
                self._discard(active)
                active.cancel(reason)
        if self._passes:
            self._check_later()

    def _forget(self) -> None:
        """Forget the logs that are not led or followed here any more."""
        for known in (
            self._requested, self._retry_ms, self._last, self._failures, self.uncleanable,
        ):  # fmt: skip
            for gone in [each for each in known if not self._has(each)]:
                del known[gone]

    def _has(self, cleaned: Log) -> bool:
        partition = self._of(cleaned.topic_id, cleaned.partition)
        return partition is not None and partition.log is cleaned

    def _reason_to_cancel(self, active: ActivePass) -> str:
        """Return why a pass must not go on; empty if it may."""
        partition = active.partition
        if not self._is_current(partition):
            return "the partition is deleted or moved, or its leader has changed"
        if partition.log.failure is not None:
            return partition.log.failure
        if not partition.log.config.compacts:
            return "the topic is not compacted any more"
        if (
            partition.log.is_truncating
            or partition.log.truncation_count != active.truncation_count
        ):
            return "the log was truncated"
        return ""


def _has_sources(active: ActivePass) -> bool:
    """Return whether the segments of a pass are still in the log; the first is deleted first."""
    return active.partition.log.segments.has_base_offset(active.job.sources[0].base_offset)


def _name(partition: CleanedPartition) -> str:
    return f"{partition.log.topic}-{partition.log.partition}"


def _urgency(offer: CleaningOffer) -> tuple[bool, float]:
    return offer.is_requested, offer.range.dirty_ratio
