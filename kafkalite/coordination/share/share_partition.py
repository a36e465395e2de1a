"""SharePartition: the records of a partition that are in flight in a share group (KIP-932).

    start offset ────────────────── window ────────────────── end offset
    before: acknowledged    available, acquired, acknowledged    never fetched
    or archived             and archived records

             acquire: member, lock, count + 1              accept
    Available ────────────────────────────────▶ Acquired ──────────▶ Acknowledged
        ▲                                           │ reject, gap, or the limit is reached
        ╰─── release, lock expired, session ended ──┴──────────────▶ Archived

It belongs to the leader of the partition, has no I/O, and time is an argument.  A change has two
steps: `acknowledge` returns a StateWrite, the leader has the share coordinator store it, and
`complete` or `fail` ends the transition.  Until then the records can be neither acquired nor
acknowledged.  An expired lock or an ended session changes the state at once, and is stored
afterwards: a restart would have made the records available as well.  `acquire` stores nothing.

The start offset passes acknowledged and archived records.  A delivery count is never taken back.

With dead letters, records that are rejected or whose deliveries are used up are Archiving until the
dead letter is written (KIP-1191): `take_archiving`, then `archive`.

Differs from Kafka: offsets without a record (compacted or control batches) are archived here when
they are fetched, instead of by an acknowledgement of the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby, pairwise
from typing import NamedTuple

from kafkalite.coordination.share.acquisition import (
    AcquiredRange,
    AcquireLimits,
    Acquisition,
    ShareLimits,
)
from kafkalite.coordination.share.delivery_states import TERMINAL, add_batch
from kafkalite.coordination.share.in_flight_ranges import (
    NO_WRITE,
    InFlightRange,
    InFlightRanges,
)
from kafkalite.errors import InvalidRecordState, InvalidRequest
from kafkalite.protocol.schemas.share_records import DeliveryState, StateBatch


class AcknowledgeType(IntEnum):
    """The types of an acknowledgement, with their ids in requests."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgementBatch(NamedTuple):
    """Offsets, both bounds included, with one type for all of them or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class FetchedBatch(NamedTuple):
    """The offsets of a record batch in the log; a skipped one is not delivered."""

    base_offset: int
    last_offset: int
    is_skipped: bool = False


class ArchivingRange(NamedTuple):
    """Offsets, both bounds included, of records that need a dead letter."""

    first_offset: int
    last_offset: int
    delivery_count: int
    is_rejected: bool
    """False: their deliveries are used up."""


class StateWrite(NamedTuple):
    """A change of the state for the share coordinator."""

    write_id: int
    start_offset: int
    delivery_complete_count: int
    """The number of records in the window that are acknowledged or archived."""
    batches: Sequence[StateBatch]


Span = tuple[int, int, AcknowledgeType]


class ShareProgress(NamedTuple):
    """The progress of a share group in a partition, at the partition's leader.

    Args:
        end_offset: The high watermark of the partition.
        in_flight_count: Number of records that are acquired by members.
        delivery_count: Greatest delivery count of the records that are not done; 0 if none was
            delivered.  Both counts are UNKNOWN_PROGRESS if the share partition is not loaded.
    """

    end_offset: int
    in_flight_count: int
    delivery_count: int


UNKNOWN_PROGRESS = -1


class SharePartition:
    """The in-flight records of one partition in one share group; see the module."""

    def __init__(
        self,
        start_offset: int,
        batches: Iterable[StateBatch] = (),
        limits: ShareLimits | None = None,
    ) -> None:
        self.limits = limits if limits is not None else ShareLimits()
        self._ranges = InFlightRanges(start_offset)
        self._writes: dict[int, Sequence[tuple[int, int]]] = {}
        """The offsets of each transition that is not written yet, by write id."""
        self._last_write_id = NO_WRITE
        self._has_overlapped = False
        """True if a write began while another one was in flight, since the last final write."""
        self.next_due_ms: int | None = None
        """No lock expires before this time."""
        for batch in batches:
            if batch.last_offset >= start_offset:
                # Offsets between stored batches were available when they were stored.
                self._ranges.extend(batch.first_offset - 1, DeliveryState.AVAILABLE)
                state = DeliveryState(batch.delivery_state)
                self._ranges.extend(batch.last_offset, state, batch.delivery_count)
        for each in self._ranges:
            # The reason is not stored.
            is_used_up = each.delivery_count >= self.limits.delivery_count_max
            each.is_rejected = each.state is DeliveryState.ARCHIVING and not is_used_up
        self._advance()

    def __iter__(self) -> Iterator[InFlightRange]:
        """Return the ranges of the window."""
        return iter(self._ranges)

    @property
    def start_offset(self) -> int:
        """The first offset that is not acknowledged or archived (SPSO)."""
        return self._ranges.start_offset

    @property
    def range_count(self) -> int:
        """The number of ranges in the window."""
        return len(self._ranges)

    def delivery_counts(self) -> tuple[int, int]:
        """Return the number of acquired records, and the greatest delivery count of those that are
        not done."""
        in_flight = deliveries = 0
        for each in self._ranges:
            if each.state is DeliveryState.ACQUIRED:
                in_flight += len(each)
            if not each.is_terminal and each.delivery_count > deliveries:
                deliveries = each.delivery_count
        return in_flight, deliveries

    @property
    def end_offset(self) -> int:
        """The offset after the last record that was fetched."""
        return self._ranges.end_offset

    @property
    def next_fetch_offset(self) -> int | None:
        """The offset to read from; None while the window is full and nothing in it available."""
        offset = self._ranges.first_available()
        if offset is not None:
            return offset
        return None if self._is_full else self.end_offset

    @property
    def _is_full(self) -> bool:
        """True if no record after the window may be acquired."""
        return self._ranges.count >= self.limits.in_flight_max

    # -- acquiring ---------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetch_offset: int,
        batches: Iterable[FetchedBatch],
        wanted: AcquireLimits,
        now_ms: int,
    ) -> list[AcquiredRange]:
        """Acquire the available records of the batches that were read from `fetch_offset` on.

        `batches` are in the order of the log; the first one may begin before `fetch_offset`.
        Offsets between two batches have no record.
        """
        offset = begin = max(fetch_offset, self.start_offset)
        deadline_ms = now_ms + self.limits.lock_ms
        acquired = Acquisition(self._ranges, self.limits, member_id, deadline_ms, wanted)
        for batch in batches:
            if batch.last_offset < offset:
                continue
            if acquired.is_complete:
                break
            first_offset = max(offset, batch.base_offset)
            if first_offset > offset and not self._skip(offset, first_offset - 1):
                break
            if batch.is_skipped:
                if not self._skip(first_offset, batch.last_offset):
                    break
            elif not acquired.acquire(first_offset, batch.last_offset):
                break
            offset = batch.last_offset + 1
            if offset >= self.end_offset and self._is_full:
                break  # the next batch is not read from the log
        self._ranges.join(begin, self.end_offset)
        self._advance()
        if acquired.ranges:
            self._expect(deadline_ms)
        return acquired.ranges

    def _skip(self, first_offset: int, last_offset: int) -> bool:
        """Archive offsets that have no record to deliver; return False if the window is full."""
        if last_offset < first_offset:
            return True
        if last_offset >= self.end_offset:
            if self._is_full:
                return False
            self._ranges.extend(last_offset, DeliveryState.ARCHIVED)
        for each in self._ranges.between(first_offset, last_offset):
            if each.is_available:
                self._ranges.move(each, DeliveryState.ARCHIVED)
        return True

    # -- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], now_ms: int
    ) -> StateWrite | None:
        """Begin the transitions of all these batches or of none; return the write, if any.

        Raises:
            InvalidRequest: An offset was never fetched.
            InvalidRecordState: A record is not acquired by this member, or is in transition.
        """
        spans = [span for batch in batches for span in self._checked(member_id, batch)]
        if any(after[0] <= before[1] for before, after in pairwise(spans)):
            raise InvalidRecordState("An offset is acknowledged twice in one request.")
        write_id = self._last_write_id + 1
        changed: list[tuple[int, int]] = []
        done_count = 0
        for first_offset, last_offset, kind in spans:
            for each in self._ranges.between(first_offset, last_offset):
                if kind is AcknowledgeType.RENEW:
                    each.deadline_ms = now_ms + self.limits.lock_ms
                    self._expect(each.deadline_ms)
                else:
                    each.target = self._outcome(kind, each.delivery_count)
                    each.write_id = write_id
                    each.is_rejected = kind is AcknowledgeType.REJECT
                    done_count += len(each) if each.target in TERMINAL else 0
            if kind is not AcknowledgeType.RENEW:
                if changed and changed[-1][1] + 1 == first_offset:
                    first_offset = changed.pop()[0]
                changed.append((first_offset, last_offset))
        if spans:
            self._ranges.join(spans[0][0], spans[-1][1])
        if not changed:
            return None
        self._last_write_id = write_id
        self._writes[write_id] = changed
        return self._write(write_id, changed, done_count)

    def _checked(self, member_id: str, batch: AcknowledgementBatch) -> Iterator[Span]:
        """Yield the parts of a batch with the same type, without those before the start offset."""
        first_offset, last_offset, types = batch
        if last_offset < self.start_offset:
            return
        if last_offset >= self.end_offset:
            raise InvalidRequest(f"Offset {last_offset} was not fetched by this share group.")
        begin = max(first_offset, self.start_offset)
        for each in self._ranges.overlapping(begin, last_offset):
            if not each.is_held or each.member_id != member_id:
                raise InvalidRecordState(
                    f"Offsets {each.first_offset} to {each.last_offset} are not acquired by this"
                    " member."
                )
        if AcknowledgeType.RENEW in types and not self.limits.allows_renewal:
            raise InvalidRecordState("share.renew.acknowledge.enable is false.")
        if len(types) == 1:
            yield begin, last_offset, AcknowledgeType(types[0])
            return
        for kind, run in groupby(
            range(begin, last_offset + 1), lambda at: types[at - first_offset]
        ):
            offsets = [*run]
            yield offsets[0], offsets[-1], AcknowledgeType(kind)

    def _outcome(self, kind: AcknowledgeType, delivery_count: int) -> DeliveryState:
        match kind:
            case AcknowledgeType.ACCEPT:
                return DeliveryState.ACKNOWLEDGED
            case AcknowledgeType.RELEASE:
                return self._released(delivery_count)
            case AcknowledgeType.REJECT:
                return self.limits.archived_state
            case _:
                return DeliveryState.ARCHIVED

    def _released(self, delivery_count: int) -> DeliveryState:
        if delivery_count >= self.limits.delivery_count_max:
            return self.limits.archived_state
        return DeliveryState.AVAILABLE

    def complete(self, write_id: int) -> None:
        """End a transition: its write is stored."""
        for each in self._end_write(write_id):
            assert each.target is not None
            self._ranges.move(each, each.target)
        self._advance()

    def fail(self, write_id: int) -> None:
        """Undo a transition: its write was refused, or its outcome is unknown."""
        for each in self._end_write(write_id):
            each.target, each.write_id, each.is_rejected = None, NO_WRITE, False
            self._expect(each.deadline_ms)

    def _end_write(self, write_id: int) -> Iterator[InFlightRange]:
        spans = self._writes.pop(write_id, ())
        for first_offset, last_offset in spans:
            # After a truncation of the log, some may be gone.
            for each in self._ranges.overlapping(first_offset, last_offset):
                if each.write_id == write_id:
                    yield each
        self._ranges.join_spans(spans)

    # -- locks -------------------------------------------------------------------------------

    def _expect(self, deadline_ms: int) -> None:
        if self.next_due_ms is None or deadline_ms < self.next_due_ms:
            self.next_due_ms = deadline_ms

    def expire(self, now_ms: int) -> StateWrite | None:
        """Release the records whose locks have expired; return what is to be written, or None."""
        held = [each for each in self._ranges if each.is_held]
        expired = [each for each in held if each.deadline_ms <= now_ms]
        self.next_due_ms = min(
            (each.deadline_ms for each in held if each.deadline_ms > now_ms), default=None
        )
        return self._release(expired)

    def release(self, member_id: str) -> StateWrite | None:
        """Release the records that a member has acquired; return what is to be written, or None."""
        return self._release(
            [each for each in self._ranges if each.is_held and each.member_id == member_id]
        )

    def _release(self, held: Sequence[InFlightRange]) -> StateWrite | None:
        if not held:
            return None
        for each in held:
            self._ranges.move(each, self._released(each.delivery_count))
        return self._changed([(each.first_offset, each.last_offset) for each in held])

    def _changed(self, spans: Sequence[tuple[int, int]]) -> StateWrite:
        """Return the write of ranges that have changed already."""
        write = self._write(NO_WRITE, spans)
        self._ranges.join_spans(spans)
        self._advance()
        return write

    # -- dead letters ------------------------------------------------------------------------

    @property
    def has_archiving(self) -> bool:
        """True if records may need a dead letter (`take_archiving`)."""
        return bool(self._ranges.archiving)

    def take_archiving(self, count_max: int) -> list[ArchivingRange]:
        """Return at most `count_max` records that need a dead letter, each once, in the order of
        their offsets."""
        taken: list[ArchivingRange] = []
        waiting = self._ranges.archiving
        while waiting and count_max > 0:
            first_offset, last_offset = waiting.popleft()
            first_offset = max(first_offset, self.start_offset)
            if last_offset < first_offset:
                continue  # the log has deleted them
            if last_offset >= first_offset + count_max:
                waiting.appendleft((first_offset + count_max, last_offset))
                last_offset = first_offset + count_max - 1
            for each in self._ranges.between(first_offset, last_offset):
                if each.state is DeliveryState.ARCHIVING and each.target is None:
                    each.target = DeliveryState.ARCHIVED
                    count_max -= len(each)
                    taken.append(
                        ArchivingRange(
                            each.first_offset,
                            each.last_offset,
                            each.delivery_count,
                            each.is_rejected,
                        )
                    )
        # Records may be rejected in any order.
        return sorted(taken)

    def archive(self, ranges: Iterable[ArchivingRange]) -> StateWrite | None:
        """Archive records whose dead letters are written, or cannot be; return what is to be
        written, or None."""
        archiving = [
            each
            for taken in ranges
            for each in self._ranges.between(taken.first_offset, taken.last_offset)
            if each.state is DeliveryState.ARCHIVING
        ]
        if not archiving:
            return None
        for each in archiving:
            self._ranges.move(each, DeliveryState.ARCHIVED)
        return self._changed([(each.first_offset, each.last_offset) for each in archiving])

    # -- the start of the window -------------------------------------------------------------

    def advance_to(self, log_start_offset: int) -> bool:
        """Drop the records that the log has deleted; return whether the start offset moved."""
        if log_start_offset <= self.start_offset:
            return False
        self._ranges.start_at(log_start_offset)
        self._advance()
        return True

    def _advance(self) -> None:
        offset = self._start_after(NO_WRITE)
        if offset > self.start_offset:
            self._ranges.start_at(offset)

    def _start_after(self, write_id: int) -> int:
        """Return the start offset once this write is stored, and no other one."""
        offset = self.start_offset
        for each in self._ranges:
            if each.state_after(write_id) not in TERMINAL:
                break
            offset = each.last_offset + 1
        return offset

    def final_write(self) -> StateWrite | None:
        """Return the write of the start offset and the number of done records once no transition is
        left, if some overlapped; otherwise None.

        Each of those was written as if the others had failed.
        """
        if self._writes or not self._has_overlapped:
            return None
        self._has_overlapped = False
        return self._write(NO_WRITE, ())

    def _write(
        self, write_id: int, spans: Sequence[tuple[int, int]], done_count: int = 0
    ) -> StateWrite:
        """Return a write of these offsets; it completes `done_count` records."""
        self._has_overlapped |= len(self._writes) > (write_id in self._writes)
        start_offset = self._start_after(write_id)
        batches: list[StateBatch] = []
        for first_offset, last_offset in spans:
            for each in self._ranges.overlapping(max(first_offset, start_offset), last_offset):
                add_batch(
                    batches,
                    StateBatch(
                        max(each.first_offset, first_offset, start_offset),
                        min(each.last_offset, last_offset),
                        each.state_after(write_id),
                        each.delivery_count,
                    ),
                )
        # All that the start offset passes is done.
        done = self._ranges.done_count + done_count - (start_offset - self.start_offset)
        return StateWrite(write_id, start_offset, done, batches)
