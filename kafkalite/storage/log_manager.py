"""LogManager: the logs of one node, from the start to a clean end.

    data/  (a worker's: data/nodes/1/)
      .lock  meta.properties                        log_directory.py
      recovery-checkpoint  (.previous)              log → [recovery point, log start, topic id]
      clean-shutdown                                log → [end, size of its last segment]
      write-failed                                  a flush failed: pages may differ from the disk
      __cluster_metadata-0/  flights-0/  …          a directory a log (layout.py)
      flights-1.6d0c…-delete/  -stray/              deleted, removed a while later; nobody's, kept

A clean-shutdown file is believed once: it is removed before the first log is opened.  Without it
each log is recovered from its recovery point on, several at once.  The recovery point is what was
durable at the last checkpoint, so a crash costs a scan of what was written since.  It speaks of
one topic id: of a topic made again under the same name it would claim records that never were.

Deleting a log renames its directory first, so that a crash never brings back half of a topic.
"""

from __future__ import annotations

import heapq
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kafkalite.clock import Clock
from kafkalite.config.broker import (
    LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS,
    LOG_RETENTION_CHECK_INTERVAL_MS,
    NUM_RECOVERY_THREADS_PER_DATA_DIR,
    STORAGE_MIN_FREE_BYTES,
)
from kafkalite.config.settings import Settings
from kafkalite.config.topic import FILE_DELETE_DELAY_MS
from kafkalite.errors import KafkaStorageError, Refusal
from kafkalite.ids import METADATA_ID, METADATA_TOPIC, NO_ID, read_id, written_id
from kafkalite.storage import checkpoint, layout
from kafkalite.storage.disk import (
    DISK,
    FAILURE_MARK,
    PASSING,
    Disk,
    DiskFailed,
    FreeSpace,
    failed,
    put_file,
    sync_directory,
    write_file,
)
from kafkalite.storage.flusher import Flusher, flush_all
from kafkalite.storage.log import Log
from kafkalite.storage.log_directory import open_node_directory
from kafkalite.storage.recovery import KnownEnd

log = logging.getLogger("kafkalite.storage")

RECOVERY_CHECKPOINT = "recovery-checkpoint"
CLEAN_SHUTDOWN = "clean-shutdown"

MIN_FREE_MAX = 1 << 30
MIN_FREE_SHARE = 20
"""Without a setting, a twentieth of the disk stays free, at most this much."""

FINISHED_AT_ONCE = 16
"""How many logs are flushed together at the end; each may need three descriptors more."""

REMOVED_AT_ONCE_MAX = 64
"""How many directories of deleted logs a tick removes; each is a handful of files."""

LogKey = tuple[str, int]
Point = list[Any]
"""A recovery point, a log start, and the id of the topic they were said of, as letters."""


class LogManager:
    """The logs of one node; see the module."""

    def __init__(self, data: Path, settings: Settings, clock: Clock, disk: Disk = DISK) -> None:
        self.data = Path(data)
        """The data directory; once it is opened, the node's own part of it."""
        self.cluster_id = ""
        self.flusher: Flusher | None = None
        """Given by the node: what is flushed in the background without anybody waiting."""
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._logs: dict[LogKey, Log] = {}
        self._points: dict[str, Point] = {}
        self._clean: dict[str, list[int]] | None = None
        self._drop_cache = False
        self._space: FreeSpace | None = None
        self._doomed: list[tuple[int, Path]] = []
        now_ms = clock.monotonic_ms()
        self._retention_due_ms = now_ms + settings[LOG_RETENTION_CHECK_INTERVAL_MS]
        self._checkpoint_due_ms = now_ms + settings[LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS]

    @property
    def logs(self) -> dict[LogKey, Log]:
        """The logs that are open, the metadata log among them."""
        return self._logs

    # -- starting ----------------------------------------------------------------------------

    def open_directory(self, cluster_id: str, node_id: int) -> None:
        """Take this node's part of a data directory that is locked (LogDirectory), and learn how
        its last run ended; Refusal says why not."""
        self.cluster_id = cluster_id
        self.data = open_node_directory(self._disk, self.data, cluster_id, node_id)
        self._space = FreeSpace(self.data, self._min_free(), self._disk)
        points = checkpoint.read(self.data / RECOVERY_CHECKPOINT)
        self._points = points if isinstance(points, dict) else {}
        clean = self.data / CLEAN_SHUTDOWN
        try:
            self._clean = checkpoint.unsealed(clean.read_bytes())
        except (OSError, ValueError):
            self._clean = None
        if clean.exists():
            self._disk.unlink(clean)
            sync_directory(self._disk, self.data)
        self._drop_cache = (self.data / FAILURE_MARK).exists()

    def _min_free(self) -> int:
        wanted = self._settings[STORAGE_MIN_FREE_BYTES]
        if wanted >= 0:
            return wanted
        found = os.statvfs(self.data)
        return min(MIN_FREE_MAX, found.f_blocks * found.f_frsize // MIN_FREE_SHARE)

    def open_metadata(self) -> Log:
        """The cluster's own log; every append to it is flushed, whatever the settings."""
        key = (METADATA_TOPIC, 0)
        if key not in self._logs:
            directory = self.data / layout.directory_name(*key)
            new_id = None
            if not directory.exists():
                if self._points:
                    raise Refusal(
                        f"{self.data} has lost its metadata log, {directory.name}, and nobody else"
                        " knows its topics; restore it from a copy, or start with another --data"
                    )
                new_id = METADATA_ID
                self._make(directory, new_id)
            self._logs[key] = self._open(
                directory, key, self._settings, flushes_always=True, new_id=new_id
            )
        return self._logs[key]

    def load(self, settings_of: Callable[[str], Settings]) -> dict[LogKey, Log]:
        """Open every log but the metadata log's, given each topic's settings."""
        directories: list[tuple[Path, LogKey]] = []
        for path in sorted(self.data.iterdir()):
            key = layout.partition_of(path.name)
            if layout.is_set_aside(path.name, layout.DELETE_DIRECTORY):
                self._doom(path, self._settings)
            elif key is not None and path.is_dir() and key[0] != METADATA_TOPIC:
                directories.append((path, key))
        settings = {topic: settings_of(topic) for topic in {key[0] for _, key in directories}}
        self._each(directories, lambda path, key: self._open(path, key, settings[key[0]]))
        if self._drop_cache:
            self._disk.unlink(self.data / FAILURE_MARK)
            self._drop_cache = False
        self._clean = None
        return {key: found for key, found in self._logs.items() if key[0] != METADATA_TOPIC}

    def _each(
        self, directories: list[tuple[Path, LogKey]], open_one: Callable[[Path, LogKey], Log]
    ) -> None:
        """Open all, several at once when they must be scanned; the first failure is raised."""
        todo: queue.SimpleQueue[tuple[Path, LogKey]] = queue.SimpleQueue()
        for entry in directories:
            todo.put(entry)
        raised: list[Exception] = []

        def work() -> None:
            while not raised:
                try:
                    path, key = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._logs[key] = open_one(path, key)
                except Exception as error:  # raised again below, by the caller's thread
                    raised.append(error)

        count = self._settings[NUM_RECOVERY_THREADS_PER_DATA_DIR] if self._clean is None else 1
        helpers = [
            threading.Thread(target=work, name="recovery")
            for _ in range(min(count, len(directories)) - 1)
        ]
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()
        if raised:
            raise raised[0]

    def _open(
        self,
        directory: Path,
        key: LogKey,
        settings: Settings,
        *,
        flushes_always: bool = False,
        new_id: bytes | None = None,
    ) -> Log:
        topic, partition = key
        topic_id = new_id or read_partition_metadata(directory)
        recovery_point, log_start_offset = self._point_of(directory.name, topic_id)
        clean = self._clean.get(directory.name) if self._clean is not None else None
        return Log.open(
            directory,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            config=settings,
            clock=self._clock,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=KnownEnd(*clean) if clean else None,
            drop_cache=self._drop_cache,
            # What must always be written may use what is kept free: it deletes topics, too.
            space=None if flushes_always else self._space,
            disk=self._disk,
            flushes_always=flushes_always,
            new=new_id is not None,
        )

    def _point_of(self, name: str, topic_id: bytes) -> tuple[int, int]:
        recovery_point, log_start_offset, of = self._points.get(name, (0, 0, ""))
        # A log whose id was lost, then or now, is more likely the same than another.
        if of in (written_id(topic_id), written_id(NO_ID)) or topic_id == NO_ID:
            return recovery_point, log_start_offset
        return 0, 0

    # -- making and removing -----------------------------------------------------------------

    def create(self, topic: str, topic_id: bytes, partition: int, config: Settings) -> Log:
        """Make a partition's log, empty.

        A log of another topic id in its place is set aside; one whose id was lost is taken for
        this topic's.
        """
        key = (topic, partition)
        directory = self.data / layout.directory_name(topic, partition)
        present = self._logs.get(key)
        if present is not None and present.topic_id == NO_ID:
            present.topic_id = topic_id
            put_file(self._disk, directory / layout.PARTITION_METADATA, metadata_text(topic_id))
            present.reconfigure(config)
            return present
        try:
            if present is not None:
                self.set_stray(present)
            elif directory.exists():
                self._rename_aside(directory, key, layout.STRAY_DIRECTORY)
                self._sync_names()
        except OSError as error:
            failed(error, f"{directory} cannot be made")
        try:
            self._make(directory, topic_id)
            made = self._open(directory, key, config, new_id=topic_id)
        except OSError as error:
            # Half a log would be somebody's to the next who looks.
            if directory.exists():
                remove_tree(self._disk, directory)
            failed(error, f"{directory} cannot be made")
        self._logs[key] = made
        return made

    def _make(self, directory: Path, topic_id: bytes) -> None:
        # Not flushed: the first flush of records takes these files and names with it.
        self._points.pop(directory.name, None)
        self._disk.mkdir(directory)
        metadata = directory / layout.PARTITION_METADATA
        write_file(self._disk, metadata, metadata_text(topic_id))
        write_file(self._disk, directory / layout.LEADER_EPOCHS, b"")

    def delete(self, *logs: Log) -> None:
        """Take logs out of service; their files go after file.delete.delay.ms.

        A topic may have thousands, so one flush of the directory takes all their names.
        """
        for deleted in logs:
            if self._forget(deleted):
                try:
                    aside = self._aside(deleted, layout.DELETE_DIRECTORY)
                except OSError as error:
                    # The next start finds that it is nobody's.
                    log.error("%s cannot be renamed: %s", deleted.directory, error)
                else:
                    self._doom(aside, deleted.config)
        self._sync_names()

    def set_stray(self, log: Log) -> None:
        """Take a log that belongs to nobody out of service, and keep its files."""
        if self._forget(log):
            self._aside(log, layout.STRAY_DIRECTORY)
            self._sync_names()

    def _sync_names(self) -> None:
        try:
            sync_directory(self._disk, self.data)
        except OSError as error:
            if error.errno not in PASSING:
                raise DiskFailed(f"{self.data} cannot be flushed: {error.strerror}") from error
            log.warning("%s could not be flushed: %s", self.data, error.strerror)

    def _forget(self, log: Log) -> bool:
        key = (log.topic, log.partition)
        if self._logs.get(key) is not log:
            return False
        del self._logs[key]
        self._points.pop(log.directory.name, None)
        log.release()
        return True

    def _aside(self, log: Log, suffix: str) -> Path:
        return self._rename_aside(log.directory, (log.topic, log.partition), suffix)

    def _rename_aside(self, directory: Path, key: LogKey, suffix: str) -> Path:
        aside = self.data / layout.set_aside(*key, suffix)
        self._disk.rename(directory, aside)
        return aside

    def _doom(self, directory: Path, settings: Settings) -> None:
        due_ms = self._clock.monotonic_ms() + settings[FILE_DELETE_DELAY_MS]
        heapq.heappush(self._doomed, (due_ms, directory))

    # -- while it runs -----------------------------------------------------------------------

    def tick(self, now_ms: int) -> int:
        """Do what is due at this monotonic time; in how many milliseconds to come again."""
        if self._space is not None:
            self._space.measure()
        self._flush_closed()
        if now_ms >= self._retention_due_ms:
            self._retention_due_ms = now_ms + self._settings[LOG_RETENTION_CHECK_INTERVAL_MS]
            self._retain()
        if now_ms >= self._checkpoint_due_ms:
            self.checkpoint()
        due = [self._retention_due_ms, self._checkpoint_due_ms]
        for found in self._logs.values():
            doomed_ms = found.remove_doomed()
            if doomed_ms is not None:
                due.append(doomed_ms)
        for _ in range(REMOVED_AT_ONCE_MAX):
            if not self._doomed or self._doomed[0][0] > now_ms:
                break
            remove_tree(self._disk, heapq.heappop(self._doomed)[1])
        if self._doomed:
            due.append(self._doomed[0][0])
        return max(1, min(due) - now_ms)

    def _retain(self) -> None:
        for found in self._logs.values():
            if found.topic == METADATA_TOPIC:
                continue  # its snapshots decide what may go
            try:
                found.retain()
            except (OSError, KafkaStorageError) as fault:
                log.error("%s: retention failed: %s", found.directory, fault)

    def _flush_closed(self) -> None:
        """Flush segments that were closed and that nobody else will ask to flush."""
        if self.flusher is None:
            return
        flushes = []
        for found in self._logs.values():
            try:
                flush = found.flush_closed_begin()
            except KafkaStorageError as fault:
                log.warning("%s", fault)
                break
            if flush is not None:
                flush.done = found.flush_end
                flushes.append(flush)
        self.flusher.submit(flushes)

    def checkpoint(self) -> None:
        """Write down how far each log is durable and where it starts."""
        self._checkpoint_due_ms = (
            self._clock.monotonic_ms() + self._settings[LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS]
        )
        points = dict(self._points)
        try:
            for found in self._logs.values():
                if found.quarantined:
                    continue  # what was known of it stays known
                found.leave_snapshot()
                points[found.directory.name] = [
                    found.durable_offset, found.log_start_offset, written_id(found.topic_id),
                ]  # fmt: skip
            if points != self._points or not (self.data / RECOVERY_CHECKPOINT).exists():
                checkpoint.write(self._disk, self.data / RECOVERY_CHECKPOINT, points)
        except OSError as error:
            try:
                failed(error, f"{self.data / RECOVERY_CHECKPOINT} cannot be written")
            except KafkaStorageError as fault:
                log.warning("%s; the one before stays in force", fault)
                return
        self._points = points

    # -- ending ------------------------------------------------------------------------------

    def close(self) -> None:
        """End cleanly: everything flushed, and the next start told so.

        After a failed flush nothing is flushed again and the next start reads every log.
        """
        try:
            if (self.data / FAILURE_MARK).exists():
                log.error("the end is not a clean one: a flush has failed")
            else:
                self._end_cleanly()
        except OSError as error:
            log.error("the end is not a clean one: %s", error)
        finally:
            for found in self._logs.values():
                found.release()
            self._logs.clear()

    def _end_cleanly(self) -> None:
        ends: dict[str, KnownEnd] = {}
        logs = list(self._logs.values())
        for first in range(0, len(logs), FINISHED_AT_ONCE):
            ends |= self._finish(logs[first : first + FINISHED_AT_ONCE])
        self.checkpoint()
        put_file(self._disk, self.data / CLEAN_SHUTDOWN, checkpoint.sealed(ends))

    def _finish(self, logs: Sequence[Log]) -> dict[str, KnownEnd]:
        """End some logs cleanly, and let go of their files."""
        ends: dict[str, KnownEnd] = {}
        flushes = []
        for found in logs:
            try:
                end = found.finish()
                flush = found.flush_begin() if end is not None else None
            except KafkaStorageError as fault:
                log.error("%s is read again at the next start: %s", found.directory, fault)
                continue
            if end is not None:
                ends[found.directory.name] = end
            if flush is not None:
                flushes.append(flush)
        flush_all(flushes, self._disk)
        for flush in flushes:
            if flush.error is not None:
                raise DiskFailed(f"{flush.log.directory} could not be flushed: {flush.error}")
            flush.log.flush_end(flush)
        for found in logs:
            found.release()
        return ends


def metadata_text(topic_id: bytes) -> bytes:
    """The content of partition.metadata, as Kafka writes it."""
    return f"version: 0\ntopic_id: {written_id(topic_id)}".encode()


def read_partition_metadata(directory: Path) -> bytes:
    """The topic id a log's directory bears; zeros when its file is missing or damaged."""
    path = directory / layout.PARTITION_METADATA
    try:
        lines = dict(line.split(": ", 1) for line in path.read_text("ascii").splitlines())
        if lines["version"] != "0":
            raise ValueError(f"version {lines['version']}")
        return read_id(lines["topic_id"])
    except (OSError, ValueError, KeyError) as fault:
        log.warning("%s does not say whose log it is (%s)", path, fault)
        return NO_ID


def remove_tree(disk: Disk, directory: Path) -> None:
    """Remove a deleted log's directory and its files; what cannot go now goes at a later start."""
    try:
        for path in children(directory):
            disk.unlink(path)
        disk.rmdir(directory)
    except OSError as error:
        log.warning("%s cannot be removed: %s", directory, error)


def children(directory: Path) -> Iterable[Path]:
    return list(directory.iterdir())
