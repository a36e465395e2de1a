"""The input and the result of a cleaning pass: plain values, which may cross processes.

    the log's owner                              the log cleaner
    CleaningJob ───────────────────────────────▶ cleaning.clean(job, throttle)
                                                 reads the sources, writes .cleaned files, flushes
    Log.replace_segments(group) for each group ◀── CleaningResult

The owner builds the job from the log as it is.  While it is being cleaned, the log may grow; it is
cancelled if the log is truncated, transferred or deleted, or if retention removes a source.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.storage.segment.transaction_index import AbortedTransaction


class SourceSegment(NamedTuple):
    """A closed segment to be cleaned."""

    base_offset: int
    size: int


class LiveProducer(NamedTuple):
    """A producer that the log remembers."""

    last_data_offset: int
    """Last offset of its last data batch; -1 if only its markers are remembered."""
    epoch: int


class CleaningJob(NamedTuple):
    """One pass over one log."""

    directory: str
    sources: tuple[SourceSegment, ...]
    """All closed segments that begin below `upper_offset`, from the first one of the log on."""
    sources_end: int
    """Base offset of the segment after the last source."""
    first_dirty_offset: int
    """Offset up to which the log was cleaned before: the cleaner checkpoint, or the log start."""
    upper_offset: int
    """The first uncleanable offset."""
    last_stable_offset: int
    high_watermark: int
    aborted: tuple[AbortedTransaction, ...]
    """The aborted transactions with records in the sources, wherever their markers are."""
    producers: dict[int, LiveProducer]
    """The producers that the log remembers, by producer id."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """Memory of the offset map (log.cleaner.dedupe.buffer.size / threads)."""
    load_factor: float
    io_buffer_bytes: int
    """Size of the window that is read at a time, and about that of a write."""
    kept_free_bytes: int = 0
    """Size of the disk space that the pass must leave free, for appends."""

    def spans(self) -> list[tuple[SourceSegment, int]]:
        """Return the sources, each with the base offset of the segment after it."""
        ends = [*(source.base_offset for source in self.sources[1:]), self.sources_end]
        return list(zip(self.sources, ends, strict=False))


class CleanedSegment(NamedTuple):
    """A segment that was written, as .cleaned files."""

    base_offset: int
    end_offset: int
    size: int
    aborted_count: int = 0
    """Number of entries of its transaction index, which has a file if there are any."""


class CleanedGroup(NamedTuple):
    """Neighbouring segments and those that replace them; both cover the same offsets."""

    sources: tuple[SourceSegment, ...]
    segments: tuple[CleanedSegment, ...]


class CleaningCounts(NamedTuple):
    """Totals of a pass: records and bytes read and written."""

    records_read: int = 0
    records_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    map_records_read: int = 0
    map_bytes_read: int = 0
    keyless_dropped: int = 0
    map_utilization: float = 0.0
    """Share of the offset map's capacity that was used, from 0 to 1."""


class CleaningResult(NamedTuple):
    """The result of a pass; with no groups there was nothing to clean."""

    end_offset: int
    """Offset up to which the log is clean once every group has replaced its sources."""
    groups: tuple[CleanedGroup, ...]
    counts: CleaningCounts
