"""SegmentScan: the check of every batch of a segment, in steps, and its results.

A step covers at most 32 MiB, so that a caller can do other work between two steps.  Its result is
the state from which the next one continues.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite._ext import segment_walk
from kafkalite._ext.segment_walk import WHOLE

LEADER_EPOCHS_KNOWN = (1 << 31) - 1
"""A leader epoch that is not older than any batch's."""

OFFSET_MAX = (1 << 63) - 1


class SegmentScan(NamedTuple):
    """The state of a scan, and the results of its last step (segment_walk.scan)."""

    code: int
    """WHOLE if the scan continues at `position`; else why it ends there."""
    position: int
    next_offset: int
    size_since_entry: int
    max_timestamp: int
    offset_of_max: int
    indexed_timestamp: int
    leader_epoch: int
    batch_count: int
    offset_entries: bytes
    time_entries: bytes
    produced: list[tuple[int, int, int, int, int, int, int, int, int]]
    began: list[tuple[int, int]]

    @classmethod
    def begin(
        cls,
        position: int,
        next_offset: int,
        size_since_entry: int = 0,
        max_timestamp: int = 0,
        offset_of_max: int = 0,
        indexed_timestamp: int = 0,
        leader_epoch: int = LEADER_EPOCHS_KNOWN,
    ) -> SegmentScan:
        """Return the state before the first step."""
        return cls(
            WHOLE, position, next_offset, size_since_entry, max_timestamp, offset_of_max,
            indexed_timestamp, leader_epoch, 0, b"", b"", [], [],
        )  # fmt: skip

    def step(
        self,
        descriptor: int,
        end: int,
        base_offset: int,
        index_interval: int = 0,
        gaps_to: int = OFFSET_MAX,
    ) -> SegmentScan:
        """Return the state after the next step through a segment's batches before `end`.

        Above `gaps_to` no offset may be missing.
        """
        return SegmentScan(
            *segment_walk.scan(
                descriptor, self.position, end, base_offset, self.next_offset, index_interval,
                self.size_since_entry, self.max_timestamp, self.offset_of_max,
                self.indexed_timestamp, self.leader_epoch, gaps_to,
            )
        )  # fmt: skip
