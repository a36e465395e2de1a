"""LogLoader: opens a node's logs, several in parallel if they must be recovered.

The state known of a log before it is opened comes from RecoveryPoints, and is kept there again once
it is open.  Logs opened together share one flush if the file system can be flushed as a whole.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

from kafkalite.clock import Clock
from kafkalite.config.settings import Settings
from kafkalite.storage import layout
from kafkalite.storage.deferred_delete import Doomed
from kafkalite.storage.disk import Disk, FreeSpace
from kafkalite.storage.file_system import FileSystem
from kafkalite.storage.log import Log
from kafkalite.storage.open_segments import OpenSegments
from kafkalite.storage.opening_lock import OpeningLock
from kafkalite.storage.partition_metadata import Owner, read_topic_id
from kafkalite.storage.partition_transfer import Known
from kafkalite.storage.recovery_points import RecoveryPoints
from kafkalite.storage.shared_flush import flush_recovered

LogKey = tuple[str, int]


class LogLoader:
    """The loader of one node's logs."""

    def __init__(
        self,
        data: Path,
        file_system: FileSystem,
        points: RecoveryPoints,
        space: FreeSpace,
        doomed: Doomed,
        clock: Clock,
        disk: Disk,
    ) -> None:
        self._data = data
        self._file_system = file_system
        self._points = points
        self._space = space
        self._doomed = doomed
        self._open_segments = OpenSegments()
        self._clock = clock
        self._disk = disk

    def open(
        self,
        directory: Path,
        key: LogKey,
        settings: Settings,
        *,
        flushes_always: bool = False,
        new_id: bytes | None = None,
        owner: Owner | None = None,
        shares_flush: bool = False,
        opening_lock: OpeningLock | None = None,
    ) -> Log:
        """Open one log; with `new_id` it was just made, for the topic with that id."""
        topic_id = new_id or (owner.topic_id if owner else read_topic_id(directory))
        known = Known() if new_id else self._points.known(directory, topic_id)
        opened = Log.open(
            directory,
            topic=key[0],
            partition=key[1],
            topic_id=topic_id,
            config=settings,
            clock=self._clock,
            recovery_point=known.recovery_point,
            log_start_offset=known.log_start_offset,
            clean=known.end,
            drop_cache=known.drop_cache,
            same_boot=known.same_boot,
            # The metadata log may use the reserved space, since deleting topics writes to it.
            space=None if flushes_always else self._space,
            doomed=self._doomed,
            open_segments=self._open_segments,
            disk=self._disk,
            flushes_always=flushes_always,
            shares_flush=shares_flush,
            opening_lock=opening_lock,
            new=new_id is not None,
        )
        self._points.keep(directory.name, topic_id, known, opened.damaged_to)
        self._points.set_pending(directory.name, opened.may_have_lost_tail)
        if os.path.exists(directory / layout.HANDOVER):
            self._points.left_behind(directory.name)
        return opened

    def open_all(
        self,
        directories: Mapping[Path, Owner],
        settings: Mapping[str, Settings],
        logs: dict[LogKey, Log],
        *,
        threads: int,
    ) -> None:
        """Open all logs into `logs`, several in parallel if they must be recovered, and flush the
        recovered ones; raise the first error."""
        was_marked = self._points.drop_cache
        shares_flush = self._file_system.can_sync and not was_marked
        todo: queue.SimpleQueue[tuple[Path, Owner]] = queue.SimpleQueue()
        for entry in directories.items():
            todo.put(entry)
        raised: list[Exception] = []
        lock = OpeningLock()

        def work() -> None:
            with lock:
                while not raised:
                    try:
                        path, owner = todo.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        logs[owner.key] = self.open(
                            path,
                            owner.key,
                            settings[owner.topic],
                            owner=owner,
                            shares_flush=shares_flush,
                            opening_lock=lock,
                        )
                    except Exception as error:  # raised again below, on the calling thread
                        raised.append(error)

        count = 1 if self._points.ended_cleanly else threads
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
        flush_recovered(
            [log for log in logs.values() if log.awaits_flush],
            self._data,
            self._file_system,
            self._disk,
            was_marked=was_marked,
        )
