"""CheckpointSnapshots: producer snapshots between two segments, taken at checkpoints.

Recovery after a crash begins at the newest one at or before the recovery point, and need not scan
from the segment's first batch.
"""

from __future__ import annotations

import logging

from kafkalite.storage.files.disk import ERRORS_OF_ONE_LOG, TRANSIENT_ERRORS, Disk, failed
from kafkalite.storage.log.recovery import SAVED_SIZE_MIN
from kafkalite.storage.segment.segments import Segments
from kafkalite.storage.state.producer_state import ProducerStateManager

log = logging.getLogger("kafkalite.storage")

SNAPSHOT_EVERY = SAVED_SIZE_MIN
SNAPSHOT_EVERY_PRODUCER = 4 << 10
"""Bytes written, and further bytes for each producer, after which a producer snapshot is taken
between two segments: scanning them again would take longer than writing it."""


class CheckpointSnapshots:
    """The producer snapshots of one log at its checkpoints."""

    __slots__ = ("_disk", "_offset", "_producers", "_segments", "_written_size")

    def __init__(self, segments: Segments, producers: ProducerStateManager, disk: Disk) -> None:
        self._segments = segments
        self._producers = producers
        self._disk = disk
        self._written_size = 0
        """Number of bytes written to the log by this process at the last snapshot."""
        self._offset = 0
        """The offset of the last snapshot."""

    def lower(self, end_offset: int) -> None:
        """Note that the log was truncated to this end."""
        self._offset = min(self._offset, end_offset)

    def take_if_due(self, written_size: int, end_offset: int, durable_offset: int) -> None:
        """Take a producer snapshot and write the index entries once enough was written since the
        last one, so that recovery after a crash need not scan from further back."""
        due = SNAPSHOT_EVERY + SNAPSHOT_EVERY_PRODUCER * len(self._producers)
        if written_size - self._written_size < due:
            return
        if self._offset > durable_offset:
            return  # no recovery point has reached the last snapshot, so the one before is needed
        self._written_size = written_size
        self._segments.active.write_index_page(size_min=0)
        between = [
            offset
            for offset in self._producers.snapshots()
            if not self._segments.has_base_offset(offset)
        ]
        try:
            # The last snapshot is needed until a recovery point reaches the new one.
            for offset in between[:-1]:
                self._disk.unlink(self._producers.snapshot_path(offset))
            self._producers.take_snapshot(end_offset)
            self._offset = end_offset
        except OSError as error:
            directory = self._segments.directory
            if error.errno not in TRANSIENT_ERRORS | ERRORS_OF_ONE_LOG:
                failed(error, f"{directory} cannot be written")
            log.warning(
                "Producer snapshot could not be written; the next checkpoint writes one."
                " path=%s error=%r", directory, error.strerror,
            )  # fmt: skip
