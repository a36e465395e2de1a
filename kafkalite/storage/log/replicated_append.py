"""Replicated batches: the record batches that a leader sends, checked by its follower.

They are appended as they are: the leader has assigned their offsets and leader epochs, and has
validated their sequences.  A follower checks that each one is whole (CRC, magic, length), that
offsets increase from its log end offset on, and that leader epochs do not decrease.

    log end offset 40       40 ─ 44 │ 45 ─ 45 │ 52 ─ 60 │ …      46 to 51: removed by compaction

Consecutive batches are written with one call, up to the next roll.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite._ext.record_batch import (
    CONTROL,
    HEADER_SIZE,
    PREFIX_SIZE,
    check,
    control_record,
    header,
)
from kafkalite.errors import BY_CODE, CorruptMessage
from kafkalite.storage.segment.segment import BatchPosition
from kafkalite.storage.segment.segments import Segments
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from kafkalite.storage.state.producer_state import ProducerStateManager

GAP_RESERVE = 1 << 20
"""Number of offsets by which a checkpoint is ahead of the gaps that it allows, so that one is
written per this many offsets of a compacted log."""

OFFSET_MAX = (1 << 63) - 2
"""Maximum offset of a record: the log end offset is one greater."""


class ReplicatedAppendResult(NamedTuple):
    """The result of a replicated append."""

    batch_count: int
    end_offset: int
    """The log end offset after it."""


class InvalidReplicatedBatch(CorruptMessage):
    """A batch is invalid: those before it were appended, it and those after it were not."""

    def __init__(self, reason: str, appended: ReplicatedAppendResult) -> None:
        super().__init__(f"The batch after offset {appended.end_offset - 1} is invalid: {reason}.")
        self.appended = appended


class ReplicatedBatches(NamedTuple):
    """The valid batches at the start of what a leader has sent."""

    positions: list[BatchPosition]
    headers: list[tuple[int, ...]]
    reason: str
    """Why the batch after them is invalid; empty if there is none."""


def checked(view: memoryview, end_offset: int, leader_epoch: int) -> ReplicatedBatches:
    """Check batches up to the first invalid one; those must follow a log with this end offset and
    latest leader epoch.  An incomplete last batch is ignored, as in any fetch, if others are
    whole."""
    positions: list[BatchPosition] = []
    headers: list[tuple[int, ...]] = []
    position = 0
    while position < len(view):
        left = len(view) - position
        if left < PREFIX_SIZE and positions:
            break
        if left < HEADER_SIZE:
            whole = int.from_bytes(view[position + 8 : position + PREFIX_SIZE], "big")
            if positions and whole + PREFIX_SIZE > left:
                break
            return ReplicatedBatches(positions, headers, f"only {left} bytes of it were sent")
        fields = header(view[position : position + HEADER_SIZE])
        size = fields[1] + PREFIX_SIZE
        if size > left and positions:
            break
        reason = _error_of(view[position : position + size] if size >= HEADER_SIZE else view[:0])
        base_offset, last_offset = fields[0], fields[0] + fields[6]
        if not reason and not end_offset <= base_offset <= last_offset <= OFFSET_MAX:
            reason = f"it has offsets {base_offset} to {last_offset}, the log ends at {end_offset}"
        if not reason and fields[2] < leader_epoch:
            reason = f"it has leader epoch {fields[2]}, the log has {leader_epoch}"
        if reason:
            return ReplicatedBatches(positions, headers, reason)
        positions.append(BatchPosition(position, size, base_offset, last_offset, fields[8]))
        headers.append(fields)
        end_offset, leader_epoch = last_offset + 1, fields[2]
        position += size
    return ReplicatedBatches(positions, headers, "")


def _error_of(batch: memoryview) -> str:
    """Return what is wrong with a batch by itself; empty if nothing is."""
    if not batch:
        return "its length is invalid"
    code = check(batch)
    if not code:
        return ""
    error_class = BY_CODE[code]
    return error_class.__doc__ or error_class.name


def last_gap(positions: list[BatchPosition], end_offset: int, gaps_to: int) -> int:
    """Return the base offset of the last batch with a gap before it that is above `gaps_to`; 0 if
    there is none."""
    found = 0
    for batch in positions:
        if batch.base_offset > max(end_offset, gaps_to):
            found = batch.base_offset
        end_offset = batch.last_offset + 1
    return found


def replay(
    view: memoryview,
    positions: list[BatchPosition],
    headers: list[tuple[int, ...]],
    segments: Segments,
    producers: ProducerStateManager,
    epochs: LeaderEpochCache,
) -> None:
    """Note batches that were written in the state of producers, transactions and epochs."""
    for place, fields in zip(positions, headers, strict=True):
        (base_offset, _, leader_epoch, _, _, attributes, last_offset_delta, _, max_timestamp,
         producer_id, producer_epoch, base_sequence, count) = fields  # fmt: skip
        if leader_epoch != epochs.latest:
            epochs.assign(leader_epoch, base_offset)
        if producer_id < 0:
            continue
        control: tuple[int, ...] = ()
        if attributes & CONTROL and count:
            control = control_record(view[place.position : place.position + place.size])
        completed = producers.replay(
            base_offset, last_offset_delta, attributes, max_timestamp, producer_id,
            producer_epoch, base_sequence, *control,
        )  # fmt: skip
        if completed is not None:
            segments.note_completed(completed)
