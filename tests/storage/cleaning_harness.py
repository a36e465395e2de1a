"""Logs that are cleaned, and what their readers get: shared by the tests of the log cleaner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafkalite.records.batch import Record, RecordBatch, batches
from kafkalite.storage.compaction import segment_swap
from kafkalite.storage.compaction.cleaning import clean
from kafkalite.storage.compaction.cleaning_job import (
    CleaningJob,
    CleaningResult,
    LiveProducer,
    SourceSegment,
)
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from tests.simulation.disk import QuickDisk
from tests.storage.committed import aborted_between
from tests.storage.factories import NOW

SLOT_SIZE = 24
DELETE_RETENTION_MS = 1000


def job_of(log: Log, now_ms: int = NOW, slots: int = 1000, **fields: Any) -> CleaningJob:
    """Return the job that cleans all closed segments of a log, as its owner builds it."""
    upper = min(log.active.base_offset, stable_offset(log))
    sources = [segment for segment in log.segments[:-1] if segment.base_offset < upper]
    ends = [segment.base_offset for segment in log.segments[1:]]
    aborted = [
        entry
        for segment in log.segments.with_aborted(0)
        if segment.transaction_index is not None
        for entry in segment.transaction_index.from_offset(0)
        if entry.first_offset < upper
    ]
    job = CleaningJob(
        directory=str(log.directory),
        sources=tuple(SourceSegment(each.base_offset, each.size) for each in sources),
        sources_end=ends[len(sources) - 1] if sources else log.segments[0].base_offset,
        first_dirty_offset=max(log.cleaner_offset, log.log_start_offset),
        upper_offset=upper,
        last_stable_offset=stable_offset(log),
        high_watermark=log.end_offset,
        aborted=tuple(aborted),
        producers={
            producer.producer_id: LiveProducer(
                producer.batches[-1].last_offset if producer.batches else -1, producer.epoch
            )
            for producer in log.producers
        },
        now_ms=now_ms,
        delete_retention_ms=DELETE_RETENTION_MS,
        segment_bytes=log.config.segment_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        map_bytes=SLOT_SIZE * slots,
        load_factor=0.9,
        io_buffer_bytes=1 << 19,
    )
    return job._replace(**fields)


def stable_offset(log: Log) -> int:
    return log.producers.transactions.last_stable_offset(log.end_offset, log.log_start_offset)


def no_throttle(_: int) -> None:
    """Neither wait nor cancel."""


def run_pass(log: Log, disk: Disk | None = None, **fields: Any) -> CleaningResult:
    """Clean a log, and replace its segments."""
    result = clean(job_of(log, **fields), no_throttle, disk or QuickDisk())
    replace(log, result)
    return result


def replace(log: Log, result: CleaningResult) -> None:
    for group in result.groups:
        for _ in segment_swap.check(log.directory, group):
            pass
        log.replace_segments(group)
    log.cleaner_offset = result.end_offset


def clean_all(log: Log, **fields: Any) -> None:
    """Run passes until nothing is dirty."""
    while True:
        before = log.cleaner_offset
        if run_pass(log, **fields).end_offset == before:
            return


def batches_of(log: Log, offset: int | None = None) -> Iterator[RecordBatch]:
    """Yield every batch from an offset on, read slice by slice as a consumer does."""
    offset = log.log_start_offset if offset is None else offset
    while (piece := read(log, offset, 300, log.end_offset)) is not None:
        start = offset
        for batch in batches(piece.read()):
            yield batch
            offset = batch.header.last_offset + 1
        assert offset > start, "a read did not advance"
    assert offset >= log.end_offset


def records_of(log: Log, *, committed: bool = True) -> list[Record]:
    """Return the records of a log, without those of aborted transactions."""
    found: list[Record] = []
    aborted: dict[int, list[tuple[int, int]]] = {}
    for segment in log.segments:
        if segment.transaction_index is not None:
            for entry in segment.transaction_index.from_offset(0):
                span = entry.first_offset, entry.last_offset
                aborted.setdefault(entry.producer_id, []).append(span)
    for batch in batches_of(log):
        header = batch.header
        if header.is_control:
            continue
        if header.is_transactional and committed:
            if any(
                first <= header.base_offset <= last
                for first, last in aborted.get(header.producer_id, ())
            ):
                continue
        found += batch.records()
    return [record for record in found if record.offset >= log.log_start_offset]


def read_committed(log: Log) -> list[Record]:
    """Return what a read_committed consumer gets: it learns of aborted transactions by its
    reads."""
    found: list[Record] = []
    upper = stable_offset(log)
    offset = log.log_start_offset
    while (piece := read(log, offset, 300, upper)) is not None:
        whole = [batch for batch in batches(piece.read()) if batch.header.last_offset < upper]
        end = whole[-1].header.last_offset + 1
        pending = aborted_between(log.segments.with_aborted(offset), offset, end)
        for batch in whole:
            found += _visible(batch, pending)
        offset = end
    return found


def _visible(batch: RecordBatch, pending: list[tuple[int, int]]) -> list[Record]:
    header = batch.header
    open_ones = [each for each in pending if each[1] <= header.last_offset]
    mine = [each for each in open_ones if each[0] == header.producer_id]
    if header.is_control:
        if mine and header.count and is_abort(batch):
            pending.remove(mine[0])
        return []
    return [] if mine and header.is_transactional else batch.records()


def is_abort(batch: RecordBatch) -> bool:
    key = batch.records()[0].key
    return key is not None and key[3] == 0


def latest(records: list[Record]) -> dict[bytes, Record]:
    """Return the last record of each key; tombstones too."""
    return {record.key: record for record in records if record.key is not None}


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the content of the segment files in a directory, by name."""
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    }


class Killed(BaseException):
    """The process ends at this call."""


class KillingDisk(QuickDisk):
    """A disk at whose N-th rename or unlink the process is killed."""

    def __init__(self, kill_at: int) -> None:
        self.left = kill_at

    def rename(self, source, target) -> None:
        self._count()
        os.rename(source, target)

    def unlink(self, path) -> None:
        self._count()
        os.unlink(path)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed
