"""One flush for many recovered logs, before any of them is served.

A single syncfs makes all logs recovered by a start durable, instead of three to five flushes for
each log, one after another: for 2,500 logs those took 4 to 12 seconds.

The file system is flushed through a descriptor opened at the process's start, which does not get an
error that was reported to another process before (file_system.py).  That process leaves a mark for
this node, so the mark is checked again after the flush.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import FAILURE_MARK, TRANSIENT_ERRORS, Disk
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.files.write_back import write_back_failed
from kafkalite.storage.log.log import Log

_log = logging.getLogger("kafkalite.storage")


def flush_recovered(
    logs: Sequence[Log], data: Path, file_system: FileSystem, disk: Disk, *, was_marked: bool
) -> None:
    """Flush logs that all await a flush; raise DiskFailed if one cannot be flushed.

    Args:
        logs: Logs that were opened with a shared flush.
        data: The node's directory.
        file_system: The file system that holds it.
        disk: Makes the system calls.
        was_marked: True if a failed flush was known when the logs were read, from the disk itself.
    """
    together = {log for log in logs if _is_on(file_system, log)}
    refused = {log for log in together if not _are_epochs_saved(log, disk)}
    if together:
        try:
            file_system.sync()
        except OSError as error:
            raise write_back_failed(disk, data / "*", error) from error
        if not was_marked and (data / FAILURE_MARK).exists():
            raise write_back_failed(disk, data / "*", OSError(errno.EIO, os.strerror(errno.EIO)))
    for log in logs:
        if log in refused:
            pass  # its next flush saves the epochs; until then its durable offset stays
        elif log in together:
            log.flushed_with_file_system()
        else:
            log.flush()  # its directory is on another file system
        log.awaits_flush = False


def _are_epochs_saved(log: Log, disk: Disk) -> bool:
    """Write a log's unsaved leader epochs; return False if the disk has no room for them."""
    if log.leader_epochs.unsaved:
        try:
            log.leader_epochs.save(disk, log.directory / layout.LEADER_EPOCHS, flushed=False)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRORS:
                raise
            _log.warning(
                "Leader epochs could not be saved; the next flush saves them. path=%s error=%r",
                log.directory, error.strerror,
            )  # fmt: skip
            return False
    return True


def _is_on(file_system: FileSystem, log: Log) -> bool:
    return os.stat(log.active.path).st_dev == file_system.device
