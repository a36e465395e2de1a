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
    """Mark the directories of all nodes of this data directory; return the error to raise.

    All of them are on one file system, since partitions are transferred by a rename.
    """
    for directory in layout.sibling_directories(where.parent):
        try:
            disk.open(directory / FAILURE_MARK, os.O_WRONLY | os.O_CREAT).close()
        except OSError:
            pass  # the failed disk may not accept the mark
    reason = f"{where} could not be flushed: {error.strerror}"
    return WriteBackFailed(f"{reason}; the processes that write to this file system must end")


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
