"""Failures of write-back: every node on the file system is told, by a mark for its next start.

The kernel reports a lost page to few, and takes it for clean afterwards (disk.py), so no process
that writes to the file system may go on.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kafkalite.storage import layout
from kafkalite.storage.disk import FAILURE_MARK, SHORTAGES, Disk, WriteBackFailed, sync_directory

log = logging.getLogger("kafkalite.storage")


def write_back_failed(disk: Disk, where: Path, error: OSError) -> WriteBackFailed:
    """Mark the directories of all nodes of this data directory; return the error to raise.

    A node's directory is on the file system of the others', since partitions move by a rename.
    """
    for directory in layout.sibling_directories(where.parent):
        try:
            disk.open(directory / FAILURE_MARK, os.O_WRONLY | os.O_CREAT).close()
        except OSError:
            pass  # The disk that failed may take nothing any more.
    reason = f"{where} could not be flushed: {error.strerror}"
    return WriteBackFailed(f"{reason}; the processes that write to this file system must end")


def sync_names(disk: Disk, directory: Path) -> None:
    """Make the names in this directory survive a power cut, where that may wait.

    A lack of descriptors leaves it to the next flush of the directory.  A lack of room does not:
    fsync reports it for what was written before and is lost.
    """
    try:
        sync_directory(disk, directory)
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise write_back_failed(disk, directory / "*", error) from error
        log.warning(
            "Directory could not be flushed; the next flush does it. path=%s error=%r",
            directory, error.strerror,
        )  # fmt: skip
