"""Cleaner candidates: the part of a compacted log that can be cleaned, and whether it should be.

    clean                      │ cleanable              │ uncleanable
    [segment 0  ][segment 900  ][segment 4096 ]         [segment 9120 ][active]
    log start offset           first dirty offset       first uncleanable offset

Uncleanable are the active segment, what lies at or above the last stable offset or the high
watermark of a replicated log, and with min.compaction.lag.ms the first segment with a younger
record and all after it.  A pass is due if the dirty ratio exceeds min.cleanable.dirty.ratio, if a
cleanable record is older than max.compaction.lag.ms, or if it was requested.

Source: LogCleanerManager of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kafkalite.storage.compaction.cleaning_job import CleaningJob, LiveProducer, SourceSegment
from kafkalite.storage.log.log import Log
from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.transaction_index import READ_COUNT, AbortedTransaction


class CleanableRange(NamedTuple):
    """The offsets between which a log can be cleaned, and the bytes before and between them."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_size: int
    """Size of the segments before the first dirty offset."""
    cleanable_size: int
    """Size of the segments from there to the one that holds the first uncleanable offset."""
    overdue_ms: int
    """Time for which max.compaction.lag.ms has been exceeded; 0 if it is not."""

    @property
    def dirty_ratio(self) -> float:
        """Share of the cleanable bytes, from 0 to 1."""
        size = self.clean_size + self.cleanable_size
        return self.cleanable_size / size if size else 0.0


class OffsetMapLimits(NamedTuple):
    """The memory of one cleaner thread, from the broker's settings."""

    map_bytes: int
    load_factor: float
    io_buffer_bytes: int


def first_dirty_offset(log: Log) -> int:
    """Return the cleaner checkpoint of a log, or its start if the checkpoint is not in the log."""
    offset = log.cleaner_offset
    return offset if log.log_start_offset <= offset <= log.end_offset else log.log_start_offset


def cleanable_range(log: Log, last_stable_offset: int, now_ms: int) -> CleanableRange:
    """Return the range of a log that can be cleaned now; its offsets are equal if there is none."""
    segments = log.segments
    first_dirty = first_dirty_offset(log)
    dirty = segments[segments.number_of(first_dirty) : len(segments) - 1]
    uncleanable = log.committed_end(min(last_stable_offset, log.active.base_offset))
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in dirty:
            if segment.largest_timestamp > now_ms - lag_ms:
                uncleanable = min(uncleanable, segment.base_offset)
                break
    uncleanable = max(uncleanable, first_dirty)
    last_base = segments[segments.number_of(uncleanable)].base_offset
    cleanable = [segment for segment in dirty if segment.base_offset < last_base]
    return CleanableRange(
        first_dirty,
        uncleanable,
        sum(segment.size for segment in segments if segment.base_offset < first_dirty),
        sum(segment.size for segment in cleanable),
        _overdue_ms(cleanable, log.config.max_compaction_lag_ms, now_ms),
    )


def _overdue_ms(cleanable: list[LogSegment], lag_ms: int, now_ms: int) -> int:
    if lag_ms >= now_ms:
        return 0
    begins = [each.timestamp_of_first_batch() for each in cleanable if each.size]
    return max(0, now_ms - lag_ms - min((time for time in begins if time > 0), default=now_ms))


def is_due(log: Log, found: CleanableRange) -> bool:
    """Return whether a log should be cleaned without a request."""
    if not found.cleanable_size:
        return False
    return found.overdue_ms > 0 or found.dirty_ratio > log.config.min_cleanable_ratio


def job_of(
    log: Log,
    found: CleanableRange,
    limits: OffsetMapLimits,
    *,
    last_stable_offset: int,
    high_watermark: int,
    now_ms: int,
) -> CleaningJob:
    """Return a pass over a log without its producers and aborted transactions, of which there may
    be many: `live_producers` and `aborted_in` find them."""
    closed = log.segments[: len(log.segments) - 1]
    sources = [each for each in closed if each.base_offset < found.first_uncleanable_offset]
    config = log.config
    return CleaningJob(
        directory=str(log.directory),
        sources=tuple(SourceSegment(each.base_offset, each.size) for each in sources),
        sources_end=log.segments[len(sources)].base_offset,
        first_dirty_offset=found.first_dirty_offset,
        upper_offset=found.first_uncleanable_offset,
        last_stable_offset=last_stable_offset,
        high_watermark=high_watermark,
        aborted=(),
        producers={},
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        kept_free_bytes=log.kept_free_bytes,
        **limits._asdict(),
    )


def live_producers(log: Log) -> Iterator[tuple[int, LiveProducer]]:
    """Yield the producers that the log remembers now, each as of the time it is yielded.

    One that has written meanwhile has its last batch behind all sources.
    """
    for entry in [*log.producers]:
        last_offset = entry.batches[-1].last_offset if entry.batches else -1
        yield entry.producer_id, LiveProducer(last_offset, entry.epoch)


def aborted_in(segment: LogSegment, sources_end: int) -> Iterator[list[AbortedTransaction]]:
    """Yield the aborted transactions with markers in a segment and records in the sources, some at
    a time."""
    index = segment.transaction_index
    entries = index.from_offset(0) if index is not None else iter(())
    while some := [*islice(entries, READ_COUNT)]:
        yield [each for each in some if each.first_offset < sources_end]
