"""Segment swap: cleaned segments replace their sources; a crash leaves the old or the new ones.

    1  <base>.log.cleaned, its indexes        written and flushed by the cleaner (cleaning.py)
    2  .cleaned  ──▶ .swap                    highest base offset first
    3  sources   ──▶ .deleted                 removed after file.delete.delay.ms
    4  .swap     ──▶ plain names              records first
    5  directory flushed, then the cleaner checkpoint is written (cleaner_checkpoint.py)

The commit point is the rename of the last .cleaned file.  A start (`complete`) deletes every .swap
at or above the lowest .cleaned file, and all .cleaned files.  The .swap files that are left were
committed: they replace what is in their range of offsets.

Before the commit point an error undoes the swap.  After it a failed rename is tried once more, and
then stops the log: the next start completes the swap.

Source: Log.replaceSegments and LogLoader.completeSwapOperations of Apache Kafka.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from kafkalite._ext import segment_walk
from kafkalite._ext.segment_walk import AT_END, WHOLE
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.compaction.cleaning_job import CleanedGroup, CleanedSegment
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.segment.segment import LogSegment

log = logging.getLogger("kafkalite.storage")

CHECK_STEP_BYTES = 32 << 20
"""Bytes of a cleaned segment whose headers are checked in one step."""


def commit(disk: Disk, directory: Path, group: CleanedGroup) -> None:
    """Rename the .cleaned files of a group, which is then committed; raise OSError if it is not,
    and then its files are deleted."""
    try:
        if any(name.endswith(layout.SWAP) for name in os.listdir(directory)):
            raise FileExistsError(errno.EEXIST, "files of an earlier swap are left")
        for segment in sorted(group.segments, reverse=True):
            for name in _names(segment):
                target = directory / (name + layout.SWAP)
                disk.rename(directory / (name + layout.CLEANED), target)
    except OSError:
        discard(disk, directory)
        raise


def purge(
    disk: Disk, directory: Path, kinds: tuple[str, ...] = (layout.SWAP, layout.CLEANED)
) -> None:
    """Delete the files of a pass that was cancelled; raise OSError if that fails.

    Only the log's owner, which renames the files, may delete .swap files.
    """
    names = os.listdir(directory)
    # While a .cleaned file is left, a start deletes both kinds.
    for kind in kinds:
        for name in sorted((name for name in names if name.endswith(kind)), reverse=True):
            disk.unlink(directory / name)


def discard(
    disk: Disk, directory: Path, kinds: tuple[str, ...] = (layout.SWAP, layout.CLEANED)
) -> None:
    """Delete the files of a pass that was cancelled; what cannot be deleted is left to the next
    start.  Nothing may be committed."""
    try:
        purge(disk, directory, kinds)
    except OSError as error:
        log.warning(
            "Files of a cancelled cleaning cannot be deleted; the next start deletes them."
            " path=%s error=%r", directory, error.strerror,
        )  # fmt: skip


def put_in_place(disk: Disk, directory: Path, group: CleanedGroup) -> None:
    """Give committed files their plain names; the sources must have given theirs up."""
    for segment in group.segments:
        for name in _names(segment):
            rename_again(disk, directory / (name + layout.SWAP), directory / name)


def _names(segment: CleanedSegment) -> list[str]:
    """Return the names of a segment's files, the records first."""
    suffixes = layout.SEGMENT_FILES if segment.aborted_count else layout.SEGMENT_FILES[:-1]
    return [layout.file_name(segment.base_offset, suffix) for suffix in suffixes]


def set_sources_aside(disk: Disk, sources: list[LogSegment]) -> list[Path]:
    """Rename the files of segments that were replaced; return the paths to delete later."""
    paths = []
    for segment in sources:
        try:
            paths += segment.mark_deleted()
        except OSError:
            paths += segment.mark_deleted()
    return paths


def rename_again(disk: Disk, source: Path, target: Path) -> None:
    """Rename a file, with one retry: what was committed cannot be undone."""
    try:
        disk.rename(source, target)
    except OSError:
        disk.rename(source, target)


def check(directory: Path, group: CleanedGroup) -> Iterator[None]:
    """Check, in steps, that the .cleaned files of a group cover the offsets of its sources; raise
    KafkaStorageError if they do not."""
    for segment in group.segments:
        path = directory / layout.file_name(segment.base_offset, layout.LOG + layout.CLEANED)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise KafkaStorageError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            size = os.fstat(descriptor).st_size
            if size != segment.size:
                raise KafkaStorageError(f"{path} has {size} bytes, not {segment.size}")
            code, position, next_offset = WHOLE, 0, segment.base_offset
            while code == WHOLE:
                yield
                code, position, next_offset = segment_walk.walk_seams(
                    descriptor, position, segment.size, segment.base_offset, next_offset,
                    CHECK_STEP_BYTES,
                )  # fmt: skip
            if code != AT_END or next_offset != segment.end_offset:
                raise KafkaStorageError(f"{path} is damaged at byte {position}")
        finally:
            os.close(descriptor)


# -- at a start ----------------------------------------------------------------------------------


def complete(disk: Disk, directory: Path, names: set[str]) -> set[str]:
    """Undo or complete a swap that a crash interrupted; return the names in the directory.

    Raises KafkaStorageError if a committed segment is damaged.
    """
    cleaned = _bases(names, layout.CLEANED)
    swapped = _bases(names, layout.SWAP)
    if not cleaned and not swapped:
        return names
    if cleaned:
        lowest = min(cleaned.values())
        uncommitted = [name for name, base in swapped.items() if base >= lowest]
        for name in [*uncommitted, *cleaned]:
            disk.unlink(directory / name)
        swapped = {name: base for name, base in swapped.items() if base < lowest}
    if swapped:
        log.info("Segment swap is completed after a crash. path=%s", directory)
        _set_replaced_aside(disk, directory, names, swapped)
        # The records first: they show that the files in their range are still the old ones.
        for name in sorted(swapped, key=_place):
            disk.rename(directory / name, directory / name.removesuffix(layout.SWAP))
    return set(os.listdir(directory))


def _bases(names: set[str], kind: str) -> dict[str, int]:
    """Return the base offsets of the segment files of one kind, by name."""
    found: dict[str, int] = {}
    for name in names:
        if name.endswith(kind):
            plain = name.removesuffix(kind)
            for suffix in layout.SEGMENT_FILES:
                if (base := layout.offset_of(plain, suffix)) is not None:
                    found[name] = base
    return found


def _place(name: str) -> tuple[int, int]:
    digits, _, suffix = name.removesuffix(layout.SWAP).partition(".")
    return int(digits), layout.SEGMENT_FILES.index(f".{suffix}")


def _set_replaced_aside(
    disk: Disk, directory: Path, names: set[str], swapped: dict[str, int]
) -> None:
    """Rename the files of the segments in the range of the committed ones."""
    records = {
        name: base for name, base in swapped.items() if name.endswith(layout.LOG + layout.SWAP)
    }
    if not records:
        return
    first = min(records.values())
    end = max(_end_of(directory / name, base) for name, base in records.items())
    for name, base in _bases(names, "").items():
        if first <= base < end:
            disk.rename(directory / name, directory / (name + layout.DELETED))


def _end_of(path: Path, base: int) -> int:
    """Return the offset after the last batch of a committed segment."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        code, position, end, _, _ = segment_walk.walk_to_end(descriptor, 0, size)
    finally:
        os.close(descriptor)
    if code != AT_END:
        raise KafkaStorageError(f"{path} is damaged at byte {position}")
    return max(base + 1, end)
