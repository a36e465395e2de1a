"""RecoveryPoints: what a node knows of its logs before it opens them.

    recovery-checkpoint  (.previous)   log → [recovery point, log start, topic id], and the boot
    clean-shutdown                     log → [end, size of its last segment, …]  (KnownEnd)
    write-failed                       a flush failed: pages may differ from the disk
    flights-0/handover                 the same of one log, by the node that had it before

The recovery point is what was durable at the last checkpoint, so a crash costs a scan of what was
written since.  It speaks of one topic id: of a topic made again under the same name it would
claim records that never were.

It also says in which boot of the machine it was written, once every log here was opened in that
boot, and is led in a new epoch if it may have lost its tail: what was written since is there.
Until then it names no boot, and the next start opens them as after a power cut.

A log that was handed over is judged by what its last owner said, not by what this node remembers
of an earlier time; but its records never begin earlier than anybody knew.  The owner's word goes
when the checkpoint has taken it over.  A power cut may take it earlier, or bring back an older
one: so after an end that was not clean the checkpoints of all the nodes are asked, which keep what
they knew of logs that left them.  What was once durable, or deleted, is so for good.

A clean-shutdown file is believed once: it is removed before the first log is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.ids import NO_ID, read_id, written_id
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage import checkpoint, layout
from kafkalite.storage import partition_transfer as hand_over
from kafkalite.storage.disk import FAILURE_MARK, PASSING, Disk, put_file, sync_directory
from kafkalite.storage.partition_transfer import Known
from kafkalite.storage.recovery import KnownEnd

log = logging.getLogger("kafkalite.storage")

BOOT_ID = "boot_id"
"""The checkpoint's key for the boot in which it was written; no log has this name."""

Point = list[Any]
"""A recovery point, a log start, and the id of the topic they were said of, as letters."""


class RecoveryPoints:
    """One node's; see the module."""

    def __init__(self, data: Path, directory: Path, disk: Disk) -> None:
        self.directory = directory
        self._data = data
        self._elsewhere: list[dict[str, Point]] | None = None
        self._disk = disk
        self._path = directory / layout.RECOVERY_CHECKPOINT
        self._clean: dict[str, list[Any]] = {}
        self._words: set[str] = set()
        self._same_boot, self._points = _read_points(self._path)
        self._pending: set[str] = set()
        self._all_are_known = False
        self._written: tuple[bool, dict[str, Point]] | None = None
        if self._same_boot and self._path.exists():
            self._written = True, dict(self._points)
        self.found_some = bool(self._points)
        """Whether there were logs here before."""
        self.ended_cleanly = False
        try:
            clean = directory / layout.CLEAN_SHUTDOWN
            self._clean = checkpoint.unsealed(clean.read_bytes())
            self.ended_cleanly = True
        except (OSError, ValueError):
            pass
        self._asks_others = not self.ended_cleanly
        self.drop_cache = (directory / FAILURE_MARK).exists()

    def is_of(self, name: str, topic_id: bytes) -> bool:
        """Whether something is known of a log of this name and topic."""
        return name in self._points and _speaks_of(self._points[name], topic_id)

    def believe_once(self) -> None:
        """From here on the logs change: no start after this one may believe in a clean end."""
        clean = self.directory / layout.CLEAN_SHUTDOWN
        if clean.exists():
            self._disk.unlink(clean)
            sync_directory(self._disk, self.directory)

    def known(self, directory: Path, topic_id: bytes) -> Known:
        """What is known of the log in this directory."""
        name = directory.name
        known = Known(drop_cache=self.drop_cache, same_boot=self._same_boot)
        point = self._points.get(name)
        if point is not None and _speaks_of(point, topic_id):
            known = known._replace(recovery_point=point[0], log_start_offset=point[1])
        if name in self._clean:
            known = known._replace(end=KnownEnd(*self._clean[name]))
        if self._asks_others:
            known = self._known_elsewhere(known, name, topic_id)
        left = hand_over.read(directory)
        if left is not None and left[0].is_also(topic_id):
            known = _handed_over(known, left[1])
        return known

    def _known_elsewhere(self, known: Known, name: str, topic_id: bytes) -> Known:
        """The same, should another node have had the log later than this one remembers."""
        if self._elsewhere is None:
            directories = layout.node_directories(self._data).values()
            self._elsewhere = [
                _read_points(directory / layout.RECOVERY_CHECKPOINT)[1]
                for directory in directories
                if directory != self.directory
            ]
        for points in self._elsewhere:
            if name in points and points[name][2] == written_id(topic_id) != written_id(NO_ID):
                known = known._replace(
                    recovery_point=max(known.recovery_point, points[name][0]),
                    log_start_offset=max(known.log_start_offset, points[name][1]),
                )
        return known

    def keep(self, name: str, topic_id: bytes, known: Known, damaged_to: int = 0) -> None:
        """This is known of a log that was opened, or left, until a checkpoint says more; where it
        is damaged, no later start may cut it either."""
        recovery_point = max(known.recovery_point, damaged_to)
        self._points[name] = [recovery_point, known.log_start_offset, written_id(topic_id)]
        self._clean.pop(name, None)

    def forget(self, name: str) -> None:
        """The log is no more."""
        self._points.pop(name, None)
        self._clean.pop(name, None)
        self._pending.discard(name)

    def set_pending(self, name: str, pending: bool) -> None:
        """True if a log here was not opened in this boot, or may have lost its tail and leads in no
        new epoch yet."""
        if pending:
            self._pending.add(name)
        else:
            self._pending.discard(name)

    def all_are_known(self) -> None:
        """Every log here is open, or pending."""
        self._all_are_known = True

    @property
    def is_of_this_boot(self) -> bool:
        """True if the next checkpoint may say that the logs are of this boot of the machine."""
        return self._all_are_known and not self._pending

    @property
    def says_this_boot(self) -> bool:
        """True if the checkpoint on the disk says so."""
        return self._written is not None and self._written[0]

    def forget_deleted(self, is_in_a_topic: Callable[[str, int, bytes], bool]) -> None:
        """Forget logs that left, and whose topics are deleted."""
        for name, (_, _, of) in list(self._points.items()):
            key = layout.partition_of(name)
            if key is not None and not (self.directory / name).exists():
                if not is_in_a_topic(*key, read_id(of)):
                    del self._points[name]

    def left_behind(self, name: str) -> None:
        """There is word in this log's directory that goes when a checkpoint says as much."""
        self._words.add(name)

    def all_opened(self) -> None:
        """Every log was recovered, and flushed with that."""
        self._clean = {}
        self._elsewhere = None
        self._asks_others = False
        if self.drop_cache:
            self._disk.unlink(self.directory / FAILURE_MARK)
            self.drop_cache = False

    # -- writing -----------------------------------------------------------------------------

    def note(self, name: str, point: Point) -> None:
        """This is known of an open log from the next checkpoint on."""
        self._points[name] = point

    def begin_write(self) -> CheckpointWrite | None:
        """What must be written so that the checkpoint says all that is known; None if it does."""
        words, self._words = self._words, set()
        of_this_boot = self.is_of_this_boot
        if self._written == (of_this_boot, self._points):
            self._take_words_away(words)
            return None
        return CheckpointWrite(self._path, dict(self._points), words, of_this_boot=of_this_boot)

    def written(self, write: CheckpointWrite) -> None:
        """It was written, or could not be for now."""
        if write.refused is not None:
            log.warning(
                "%s cannot be written: %s; the one before stays in force",
                write.where, write.refused.strerror,
            )  # fmt: skip
            self._words |= write.words
            return
        self._written = write.of_this_boot, write.points
        self._take_words_away(write.words)

    def _take_words_away(self, names: set[str]) -> None:
        """The checkpoint says what the last owners of these logs said."""
        for name in names:
            try:
                self._disk.unlink(self.directory / name / layout.HANDOVER)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("%s keeps its handover file: %s", name, error)

    def write_end(self, ends: dict[str, KnownEnd]) -> None:
        """Tell the next start that this was a clean end."""
        put_file(self._disk, self.directory / layout.CLEAN_SHUTDOWN, checkpoint.sealed(ends))


class CheckpointWrite:
    """A checkpoint to be written, on whatever thread (flusher.Flushable)."""

    def __init__(
        self, path: Path, points: dict[str, Point], words: set[str], *, of_this_boot: bool
    ) -> None:
        self.where = path
        self.of_this_boot = of_this_boot
        self.points = points
        self.words = words
        """The logs whose last owners' word may go then."""
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self.refused: OSError | None = None
        self.done: Callable[[CheckpointWrite], None] | None = None

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Write it; a full disk may have room for the next one."""
        try:
            boot_id = hand_over.boot_id() if self.of_this_boot else ""
            checkpoint.write(disk, self.where, {BOOT_ID: boot_id, **self.points})
        except OSError as error:
            if error.errno in PASSING:
                self.refused = error
            else:
                self.error = error


def _read_points(path: Path) -> tuple[bool, dict[str, Point]]:
    """Return whether a checkpoint was written in this boot of the machine, and its points."""
    content = checkpoint.read(path)
    boot_id = content.pop(BOOT_ID, "") if isinstance(content, dict) else ""
    return boot_id == hand_over.boot_id() != "", _checked(content)


def _checked(content: Any) -> dict[str, Point]:
    points: dict[str, Point] = {}
    for name, point in content.items() if isinstance(content, dict) else ():
        match point:
            case [int(), int(), str()] if is_id(point[2]):
                points[name] = point
            case [int(), int()]:  # as written before topics' ids were
                points[name] = [*point, written_id(NO_ID)]
            case _:
                log.warning("of %s nothing is known that could be read: %s", name, point)
    return points


def is_id(text: str) -> bool:
    try:
        return len(read_id(text)) == len(NO_ID)
    except ValueError:
        return False


def _speaks_of(point: Point, topic_id: bytes) -> bool:
    # A log whose id was lost, then or now, is more likely the same than another.
    return topic_id == NO_ID or point[2] in (written_id(topic_id), written_id(NO_ID))


def _handed_over(own: Known, last_owners: Known) -> Known:
    """What the log's last owner said, with what this node knows to be later."""
    return last_owners._replace(
        log_start_offset=max(own.log_start_offset, last_owners.log_start_offset),
        # A clean end of this node's came after it took the log up.
        end=own.end or last_owners.end,
        drop_cache=own.drop_cache or last_owners.drop_cache,
    )
