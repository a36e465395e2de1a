"""RecoveryPoints: the state of a node's logs that is known before they are opened.

    recovery-checkpoint  (.previous)   log → [recovery point, log start, topic id, …], and the boot
    clean-shutdown                     log → [end, size of its last segment, …]  (KnownEnd)
    write-failed                       a flush failed: the page cache may differ from the disk
    flights-0/handover                 the same for one log, from the node that had it before

The recovery point is the durable offset at the last checkpoint, so a crash costs a scan of what was
written since.  It is valid for one topic id only: for a topic that was created again under the same
name it would claim records that never existed.

The checkpoint holds the boot id of the machine in which it was written, once every log here was
opened in that boot and is led in a new epoch if it may have lost its tail: all writes since are
present.  Until then it has no boot id, and the next start recovers the logs as after a power cut.

For a log that was transferred, the old owner's handover file counts, not older points of this node;
but the log start offset is the greatest one known.  The handover file is removed once the
checkpoint holds its points.  A power cut may remove it earlier, or bring back an older one, so
after an unclean shutdown the checkpoints of all nodes are read, which keep the points of logs
transferred away.  A durable offset and a log start offset never decrease, so the greatest is right.
This holds for the one log of a partition.  The replicas of a partition with several have points of
their own, which are marked in the checkpoint: they never count for the log of another node.

Only a truncation lowers a durable offset (log_truncation.py), and has the checkpoint written at
once, unless no version of it that a start may read has a greater one.

A clean-shutdown file is used once: it is removed before the first log is opened.

Left out: the greater point of a log that was transferred here before it was truncated stays in the
checkpoint of its earlier node, and after an unclean shutdown such a log is not served.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.errors import KafkaStorageError
from kafkalite.ids import NO_ID, read_id, written_id
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import (
    FAILURE_MARK,
    TRANSIENT_ERRORS,
    Disk,
    failed,
    put_file,
    sync_directory,
)
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.state.known_state import KnownEnd, KnownLogState

log = logging.getLogger("kafkalite.storage")

BOOT_ID = "boot_id"
"""The checkpoint's key for the boot id; no log has this name."""

Point = list[Any]
"""A recovery point, a log start offset, and the topic id they are valid for, as text; the offset up
to which offsets are missing between segments, if there are any; and true for a replica of several.
"""

IsReplicated = Callable[[str, int, bytes], bool]
"""Returns whether a partition (topic, number, topic id) has several replicas."""

NEVER_REPLICATED: IsReplicated = lambda *_: False  # noqa: E731


class RecoveryPoints:
    """The recovery points of one node."""

    def __init__(self, data: Path, directory: Path, disk: Disk) -> None:
        self.directory = directory
        self._data = data
        self._other_points: list[dict[str, Point]] | None = None
        self._disk = disk
        self._path = directory / layout.RECOVERY_CHECKPOINT
        self._clean: dict[str, list[Any]] = {}
        self._handover_files: set[str] = set()
        self._same_boot, self._points = _read_points(self._path)
        self._pending: set[str] = set()
        self._is_all_known = False
        self._write_order = WriteOrder()
        _, previous = _read_points(checkpoint.previous(self._path))
        self._versions = CheckpointVersions(dict(self._points), previous)
        self._written: tuple[bool, dict[str, Point]] | None = None
        if self._same_boot and self._path.exists():
            self._written = True, dict(self._points)
        self.has_earlier_logs = bool(self._points)
        """True if there were logs here before."""
        self.ended_cleanly = False
        try:
            clean = directory / layout.CLEAN_SHUTDOWN
            self._clean = checkpoint.unsealed(clean.read_bytes())
            self.ended_cleanly = True
        except (OSError, ValueError):
            pass
        self._reads_other_nodes = not self.ended_cleanly
        self.drop_cache = (directory / FAILURE_MARK).exists()
        self.is_replicated = NEVER_REPLICATED

    def has_point(self, name: str, topic_id: bytes) -> bool:
        """Return whether something is known of a log of this name and topic."""
        return name in self._points and _is_of_topic(self._points[name], topic_id)

    def is_of_replica(self, name: str, topic_id: bytes) -> bool:
        """Return whether a log was a replica of several at the last checkpoint."""
        point = self._points.get(name)
        return point is not None and _is_of_topic(point, topic_id) and _is_of_replica(point)

    def consume_clean_shutdown(self) -> None:
        """Remove the clean-shutdown file: from here on the logs change."""
        clean = self.directory / layout.CLEAN_SHUTDOWN
        if clean.exists():
            self._disk.unlink(clean)
            sync_directory(self._disk, self.directory)

    def known_state(self, directory: Path, topic_id: bytes) -> KnownLogState:
        """Return the known state of the log in a directory."""
        name = directory.name
        key = layout.partition_of(name)
        is_replicated = key is not None and self.is_replicated(*key, topic_id)
        known = KnownLogState(drop_cache=self.drop_cache, same_boot=self._same_boot)
        point = self._points.get(name)
        if point is not None and _is_of_topic(point, topic_id):
            known = known._replace(
                recovery_point=point[0], log_start_offset=point[1], gaps_to=_gaps_to(point)
            )
        if name in self._clean:
            known = known._replace(end=KnownEnd(*self._clean[name]))
        if self._reads_other_nodes and not is_replicated:
            known = self._with_other_points(known, name, topic_id)
        handover = partition_transfer.read(directory)
        if handover is not None and handover[0].is_also(topic_id):
            known = _with_handover(known, handover[1])
        return known._replace(is_replicated=is_replicated)

    def _with_other_points(self, known: KnownLogState, name: str, topic_id: bytes) -> KnownLogState:
        """Return `known` with greater offsets from the checkpoints of other nodes, which may have
        had the log later."""
        if self._other_points is None:
            directories = layout.node_directories(self._data).values()
            self._other_points = [
                _read_points(directory / layout.RECOVERY_CHECKPOINT)[1]
                for directory in directories
                if directory != self.directory
            ]
        for points in self._other_points:
            if name not in points or _is_of_replica(points[name]):
                continue
            if points[name][2] == written_id(topic_id) != written_id(NO_ID):
                known = known._replace(
                    recovery_point=max(known.recovery_point, points[name][0]),
                    log_start_offset=max(known.log_start_offset, points[name][1]),
                    gaps_to=max(known.gaps_to or 0, _gaps_to(points[name])),
                )
        return known

    def record_state(
        self, name: str, topic_id: bytes, known: KnownLogState, damaged_to: int = 0
    ) -> None:
        """Record the state of a log that was opened or transferred, until a checkpoint has newer
        points; a damaged log is not truncated below `damaged_to` by later starts either."""
        recovery_point = max(known.recovery_point, damaged_to)
        self._points[name] = new_point(
            recovery_point, known.log_start_offset, topic_id, known.gaps_to or 0,
            is_replicated=known.is_replicated,
        )  # fmt: skip
        self._clean.pop(name, None)

    def remove(self, name: str) -> None:
        """Remove the points of a log that was removed."""
        self._points.pop(name, None)
        self._clean.pop(name, None)
        self._pending.discard(name)

    def set_pending(self, name: str, pending: bool) -> None:
        """Set whether a log here was not opened in this boot, or may have lost its tail and is not
        yet led in a new epoch."""
        if pending:
            self._pending.add(name)
        else:
            self._pending.discard(name)

    def note_all_known(self) -> None:
        """Note that every log here is open or pending."""
        self._is_all_known = True

    @property
    def was_of_this_boot(self) -> bool:
        """True if the checkpoint of the last run has the boot id of this boot."""
        return self._same_boot

    @property
    def is_of_this_boot(self) -> bool:
        """True if the next checkpoint may have the boot id of this boot."""
        return self._is_all_known and not self._pending

    @property
    def is_boot_id_written(self) -> bool:
        """True if the checkpoint on the disk has the boot id of this boot."""
        return self._written is not None and self._written[0]

    def remove_deleted(self, is_in_a_topic: Callable[[str, int, bytes], bool]) -> None:
        """Remove the points of logs that were transferred away and whose topics are deleted."""
        for name, (_, _, of, *_) in list(self._points.items()):
            key = layout.partition_of(name)
            if key is not None and not (self.directory / name).exists():
                if not is_in_a_topic(*key, read_id(of)):
                    del self._points[name]

    def note_handover_file(self, name: str) -> None:
        """Note that this log has a handover file, to be removed after the next checkpoint."""
        self._handover_files.add(name)

    def note_all_opened(self) -> None:
        """Note that every log was recovered and flushed."""
        self._clean = {}
        self._other_points = None
        self._reads_other_nodes = False
        if self.drop_cache:
            self._disk.unlink(self.directory / FAILURE_MARK)
            self.drop_cache = False

    # -- writing -----------------------------------------------------------------------------

    def set_point(self, name: str, point: Point) -> None:
        """Set the point that the next checkpoint has for an open log."""
        self._points[name] = point

    def begin_write(self) -> CheckpointWrite | None:
        """Return the write that brings the checkpoint up to date; None if it is."""
        handover_files, self._handover_files = self._handover_files, set()
        of_this_boot = self.is_of_this_boot
        if self._written == (of_this_boot, self._points):
            self._remove_handover_files(handover_files)
            return None
        write = CheckpointWrite(
            self._path, dict(self._points), handover_files, self._write_order,
            of_this_boot=of_this_boot,
        )  # fmt: skip
        self._versions.begun(write)
        return write

    def write_lowered(self, name: str) -> None:
        """Write the checkpoint synchronously because the point of a log was lowered, or allows
        more gaps: twice, so that its previous version has that point too.  Versions that a start
        may read, and whose point is not greater, need no write.

        Raises KafkaStorageError if it could not be written, or DiskFailed.
        """
        for _ in range(self._versions.writes_needed(name, self._points[name])):
            self._written = None
            write = self.begin_write()
            assert write is not None, "the points differ from nothing"
            write.run(self._disk)
            if write.error is not None:
                failed(write.error, f"{write.where} cannot be written")
            self.written(write)
            if write.refused is not None:
                raise KafkaStorageError(
                    f"{write.where} cannot be written: {write.refused.strerror}"
                )

    def written(self, write: CheckpointWrite) -> None:
        """Take the result of a write, which may have failed for lack of space."""
        is_latest = self._versions.ended(write)
        if write.is_superseded:
            self._handover_files |= write.handover_files
            return
        if write.refused is not None:
            log.warning(
                "Checkpoint cannot be written; the previous one stays valid. path=%s error=%r",
                write.where, write.refused.strerror,
            )  # fmt: skip
            self._handover_files |= write.handover_files
            return
        if is_latest:
            self._written = write.of_this_boot, write.points
        self._remove_handover_files(write.handover_files)

    def _remove_handover_files(self, names: set[str]) -> None:
        """Remove handover files whose points the checkpoint holds."""
        for name in names:
            try:
                self._disk.unlink(self.directory / name / layout.HANDOVER)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning(
                    "Handover file cannot be removed. log=%s error=%r", name, error.strerror
                )

    def write_end(self, ends: dict[str, KnownEnd]) -> None:
        """Write the clean-shutdown file."""
        put_file(self._disk, self.directory / layout.CLEAN_SHUTDOWN, checkpoint.sealed(ends))


class WriteOrder:
    """The order of the checkpoint's writes: one that runs late must not replace a later one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held by the thread that writes."""
        self.begun = 0
        """Number of the write that was begun last."""
        self.written = 0
        """Number of the last write that ran."""


class CheckpointVersions:
    """The points in all versions of the checkpoint that a start may read: the file, its previous
    version, and writes whose end is not known.  Points are None if a write failed half-way."""

    def __init__(self, current: dict[str, Point], previous: dict[str, Point]) -> None:
        self._current: dict[str, Point] | None = current
        self._previous: dict[str, Point] | None = previous
        self._current_number = self._previous_number = 0
        self._in_flight: dict[int, CheckpointWrite] = {}

    def begun(self, write: CheckpointWrite) -> None:
        """Note that a write may run from now on."""
        self._in_flight[write.number] = write

    def ended(self, write: CheckpointWrite) -> bool:
        """Note that a write has ended; return whether none that was begun later has run."""
        del self._in_flight[write.number]
        if write.is_superseded:
            return False
        if write.refused is not None:
            self._current = self._previous = None
            self._current_number = max(self._current_number, write.number)
            return False
        if write.number > self._current_number:
            self._previous, self._previous_number = self._current, self._current_number
            self._current, self._current_number = write.points, write.number
            return True
        if write.number > self._previous_number:
            self._previous, self._previous_number = write.points, write.number
        return False

    def writes_needed(self, name: str, point: Point) -> int:
        """Return how many writes leave no version that a truncated log would not agree with."""
        latest = [self._current, *(write.points for write in self._in_flight.values())]
        if not all(_is_covered(points, name, point) for points in latest):
            return 2
        return 0 if _is_covered(self._previous, name, point) else 1


def _is_covered(points: dict[str, Point] | None, name: str, point: Point) -> bool:
    """Return whether offsets in a version are at most those of the point, and gaps as far."""
    if points is None:
        return False
    known = points.get(name)
    if known is None:
        return not _gaps_to(point)
    return known[0] <= point[0] and known[1] <= point[1] and _gaps_to(known) >= _gaps_to(point)


class CheckpointWrite:
    """A write of the checkpoint, on any thread (flusher.Flushable)."""

    def __init__(
        self,
        path: Path,
        points: dict[str, Point],
        handover_files: set[str],
        order: WriteOrder,
        *,
        of_this_boot: bool,
    ) -> None:
        self.where = path
        self.of_this_boot = of_this_boot
        self.points = points
        self.handover_files = handover_files
        """The logs whose handover files can be removed once it is written."""
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self.refused: OSError | None = None
        self.done: Callable[[CheckpointWrite], None] | None = None
        self.is_superseded = False
        """True if a later write ran before this one, which then wrote nothing."""
        self._order = order
        order.begun += 1
        self.number = order.begun

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Write the checkpoint; on a full disk a later one may succeed."""
        with self._order.lock:
            if self.number < self._order.written:
                self.is_superseded = True
                return
            self._order.written = self.number
            self._run(disk)

    def _run(self, disk: Disk) -> None:
        try:
            boot_id = partition_transfer.boot_id() if self.of_this_boot else ""
            checkpoint.write(disk, self.where, {BOOT_ID: boot_id, **self.points})
        except OSError as error:
            if error.errno in TRANSIENT_ERRORS:
                self.refused = error
            else:
                self.error = error


def _read_points(path: Path) -> tuple[bool, dict[str, Point]]:
    """Return whether a checkpoint was written in this boot of the machine, and its points."""
    content = checkpoint.read(path)
    boot_id = content.pop(BOOT_ID, "") if isinstance(content, dict) else ""
    return boot_id == partition_transfer.boot_id() != "", _checked(content)


def _checked(content: Any) -> dict[str, Point]:
    points: dict[str, Point] = {}
    for name, point in content.items() if isinstance(content, dict) else ():
        match point:
            case [int(), int(), str(), *rest] if is_id(point[2]) and _are_valid(rest):
                points[name] = point
            case [int(), int()]:  # as written before topics' ids were
                points[name] = [*point, written_id(NO_ID)]
            case _:
                log.warning(
                    "Checkpoint entry is invalid; ignoring it. log=%s entry=%r", name, point
                )
    return points


def _are_valid(rest: list[Any]) -> bool:
    match rest:
        case [] | [int()] | [int(), bool()]:
            return True
    return False


def new_point(
    recovery_point: int,
    log_start_offset: int,
    topic_id: bytes,
    gaps_to: int,
    *,
    is_replicated: bool = False,
) -> Point:
    """Return a point; without gaps as it is in most logs, so that the checkpoint stays small."""
    point: Point = [recovery_point, log_start_offset, written_id(topic_id)]
    if is_replicated:
        return [*point, gaps_to, True]
    return [*point, gaps_to] if gaps_to else point


def _is_of_replica(point: Point) -> bool:
    return len(point) > 4 and bool(point[4])


def _gaps_to(point: Point) -> int:
    return int(point[3]) if len(point) > 3 else 0


def is_id(text: str) -> bool:
    try:
        return len(read_id(text)) == len(NO_ID)
    except ValueError:
        return False


def _is_of_topic(point: Point, topic_id: bytes) -> bool:
    # A log whose topic id was lost, then or now, is more likely the same log than another.
    return topic_id == NO_ID or point[2] in (written_id(topic_id), written_id(NO_ID))


def _with_handover(own: KnownLogState, last_owners: KnownLogState) -> KnownLogState:
    """Return the points of the log's last owner, with those of this node that are newer."""
    return last_owners._replace(
        log_start_offset=max(own.log_start_offset, last_owners.log_start_offset),
        # A clean shutdown of this node came after it took up the log.
        end=own.end or last_owners.end,
        drop_cache=own.drop_cache or last_owners.drop_cache,
    )
