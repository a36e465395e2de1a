"""HighWatermarks: replication-offset-checkpoint, the high watermarks of a node's replicated logs.

A replica that starts has no leader to ask yet, so it begins with the high watermark of the file, or
its log end offset if that is lower.  The file is Kafka's (offset_checkpoint.py).  It is written
every `replica.high.watermark.checkpoint.interval.ms`, off the event loop, and at a clean shutdown.

A high watermark that is too low is corrected by the next fetch.  One that is too high would show
records that are not committed.  So before a log is truncated below its entry, and before a log is
made under the name of an older one, the file is written with the lower entry or without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout, offset_checkpoint
from kafkalite.storage.files.disk import TRANSIENT_ERRORS, Disk, failed, put_file
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.recovery_points import WriteOrder

log = logging.getLogger("kafkalite.storage")

LogKey = tuple[str, int]


class HighWatermarks:
    """The high watermark checkpoint of one node."""

    def __init__(
        self, directory: Path, disk: Disk, logs: Mapping[LogKey, Log], interval_ms: int
    ) -> None:
        self.source: Callable[[], Mapping[LogKey, int]] = dict
        """Returns the high watermarks of the replicated logs that are served; set by the node."""
        self._path = directory / layout.HIGH_WATERMARK_CHECKPOINT
        self._disk = disk
        self._logs = logs
        self._interval_ms = interval_ms
        self._offsets = _read(self._path)
        self._written = dict(self._offsets)
        self._in_flight: HighWatermarkWrite | None = None
        self._order = WriteOrder()
        self._due_ms = 0

    def at_start(self, found: Log) -> int:
        """Return the high watermark with which a replica begins."""
        offset = self._offsets.get((found.topic, found.partition), 0)
        return max(found.log_start_offset, min(offset, found.end_offset))

    def tick(self, now_ms: int, flusher: Flusher | None) -> int | None:
        """Begin a write if one is due; return the time of the next, or None without any replica."""
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            self._collect()
            if flusher is None:
                self.write()
            elif self._in_flight is None and self._offsets != self._written:
                self._in_flight = self._begun()
                self._in_flight.done = self._end
                flusher.submit([self._in_flight])
        return self._due_ms if self._offsets or self._written else None

    def write_at_end(self) -> None:
        """Write the file at a clean shutdown; on a full disk it stays as it is."""
        self._collect()
        if self._in_flight is None and self._offsets == self._written:
            return
        write = self._begun()
        write.run(self._disk)
        if write.error is not None:
            failed(write.error, f"{self._path} cannot be written")
        self._end(write)

    def write(self) -> None:
        """Write the file synchronously if it differs; raise KafkaStorageError on a full disk."""
        if self._in_flight is None and self._offsets == self._written:
            return
        write = self._begun()
        write.run(self._disk)
        error = write.error or write.refused
        if error is not None:
            failed(error, f"{self._path} cannot be written")
        self._written = write.offsets

    def lower(self, key: LogKey, end_offset: int) -> None:
        """Lower the entry of a log that is about to be truncated to this end; raise
        KafkaStorageError if that cannot be written."""
        if max(offsets.get(key, 0) for offsets in self._versions()) > end_offset:
            self._offsets[key] = min(self._offsets.get(key, 0), end_offset)
            self.write()

    def remove(self, key: LogKey) -> None:
        """Remove the entry of a log that was removed; the next write omits it."""
        self._offsets.pop(key, None)

    def forget(self, key: LogKey) -> None:
        """Remove the entry of an older log from the file, before one of this name is made."""
        self.remove(key)
        if any(key in offsets for offsets in self._versions()):
            self.write()

    def _versions(self) -> list[offset_checkpoint.Offsets]:
        """Return the entries now, those of the file, and those that may be written at any time."""
        in_flight = [] if self._in_flight is None else [self._in_flight.offsets]
        return [self._offsets, self._written, *in_flight]

    def _collect(self) -> None:
        """Take the high watermarks of the logs that are served; others keep their entries."""
        for key in [key for key in self._offsets if key in self._logs]:
            if not self._logs[key].is_replicated:
                del self._offsets[key]
        for key, offset in self.source().items():
            found = self._logs.get(key)
            # One that begins beyond its former end may still have all records after a crash.
            if found is not None and found.is_replicated and not found.is_truncating:
                self._offsets[key] = max(0, min(offset, found.end_offset))

    def _begun(self) -> HighWatermarkWrite:
        return HighWatermarkWrite(self._path, dict(self._offsets), self._order)

    def _end(self, write: HighWatermarkWrite) -> None:
        self._in_flight = None
        if write.refused is not None:
            log.warning(
                "High watermark checkpoint cannot be written; the next write repeats it."
                " path=%s error=%r", write.where, write.refused.strerror,
            )  # fmt: skip
        elif not write.is_superseded:
            self._written = write.offsets


class HighWatermarkWrite:
    """A write of the file, on any thread (flusher.Flushable)."""

    def __init__(self, path: Path, offsets: offset_checkpoint.Offsets, order: WriteOrder) -> None:
        self.where = path
        self.offsets = offsets
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self.refused: OSError | None = None
        self.done: Callable[[HighWatermarkWrite], None] | None = None
        self.is_superseded = False
        """True if a later write ran before this one, which then wrote nothing."""
        self._order = order
        order.begun += 1
        self._number = order.begun

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Write the file; on a full disk a later write may succeed."""
        with self._order.lock:
            if self._number < self._order.written:
                self.is_superseded = True
                return
            self._order.written = self._number
            try:
                put_file(disk, self.where, offset_checkpoint.encoded(self.offsets))
            except OSError as error:
                if error.errno in TRANSIENT_ERRORS:
                    self.refused = error
                else:
                    self.error = error


def _read(path: Path) -> offset_checkpoint.Offsets:
    try:
        return offset_checkpoint.read(path)
    except (OSError, ValueError) as error:
        log.warning(
            "High watermark checkpoint is damaged; replicas begin with their log start offsets."
            " path=%s error=%r", path, str(error),
        )  # fmt: skip
        return {}
