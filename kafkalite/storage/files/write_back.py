"""Write-back failures: marks every node's directory, so that its next start recovers the logs.

The kernel reports a lost page to few descriptors and marks it clean afterwards (disk.py), so no
process that writes to the file system may continue.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import (
    FAILURE_MARK,
    SHORTAGE_ERRORS,
    Disk,
    WriteBackFailed,
    sync_directory,
)

log = logging.getLogger("kafkalite.storage")


def write_back_failed(disk: Disk, where: Path, error: OSError) -> WriteBackFailed:
    """Mark what the broker has on this file system; return the error to raise.

    That are the directories of nodes, and the log directories with their copies of the metadata
    log.
    """
    for directory in _on_file_system_of(where.parent):
        try:
            disk.open(directory / FAILURE_MARK, os.O_WRONLY | os.O_CREAT).close()
        except OSError:
            pass  # the failed disk may not accept the mark
    reason = f"{where} could not be flushed: {error.strerror}"
    return WriteBackFailed(f"{reason}; the processes that write to this file system must end")


def _on_file_system_of(directory: Path) -> list[Path]:
    """Return the directories of nodes, and the log directories that hold them, which are on the
    file system of a node's directory."""
    try:
        nodes = layout.sibling_directories(directory)
        found = dict.fromkeys([*nodes, *map(layout.log_directory, nodes)])
    except OSError:
        return [directory]  # the data directory has failed, too
    return [path for path in found if share_file_system(path, directory)]


def share_file_system(one: Path, other: Path) -> bool:
    """Return whether the directories of two nodes are on one file system.

    One that cannot be examined, because its disk has failed or is not mounted any more, is taken to
    be on that of others which cannot be examined, and of those in the same log directory.
    """
    devices = _device(one), _device(other)
    if None not in devices or devices == (None, None):
        return devices[0] == devices[1]
    try:
        return layout.log_directory(one) == layout.log_directory(other)
    except OSError:
        return True


def _device(path: Path) -> int | None:
    try:
        return path.stat().st_dev
    except OSError:
        return None


def flush_directory(disk: Disk, directory: Path) -> None:
    """Flush the entries of a directory; if descriptors are short, the next flush does it.

    A lack of space is not deferred: fsync reports it for data that was written before and is lost.
    """
    try:
        sync_directory(disk, directory)
    except OSError as error:
        if error.errno not in SHORTAGE_ERRORS:
            raise write_back_failed(disk, directory / "*", error) from error
        log.warning(
            "Directory could not be flushed; the next flush does it. path=%s error=%r",
            directory, error.strerror,
        )  # fmt: skip
