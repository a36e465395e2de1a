"""LogLoader: opens a node's logs with what is known of each, several at once where they are read.

What is known of a log comes from RecoveryPoints and goes back there once it is open.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from pathlib import Path

from kafkalite.clock import Clock
from kafkalite.config.settings import Settings
from kafkalite.storage import layout
from kafkalite.storage.disk import Disk, FreeSpace
from kafkalite.storage.doomed import Doomed
from kafkalite.storage.hand_over import Known
from kafkalite.storage.log import Log
from kafkalite.storage.open_segments import OpenSegments
from kafkalite.storage.partition_metadata import read_topic_id
from kafkalite.storage.recovery_points import RecoveryPoints

LogKey = tuple[str, int]


class LogLoader:
    """The opening of one node's logs; see the module."""

    def __init__(
        self, points: RecoveryPoints, space: FreeSpace, doomed: Doomed, clock: Clock, disk: Disk
    ) -> None:
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
    ) -> Log:
        """Open one log; with `new_id` it was just made, for the topic of that id."""
        topic_id = new_id or read_topic_id(directory)
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
            # What must always be written may use what is kept free: it deletes topics, too.
            space=None if flushes_always else self._space,
            doomed=self._doomed,
            open_segments=self._open_segments,
            disk=self._disk,
            flushes_always=flushes_always,
            new=new_id is not None,
        )
        self._points.keep(directory.name, topic_id, known, opened.damaged_to)
        if (directory / layout.HANDOVER).exists():
            self._points.left_behind(directory.name)
        return opened

    def open_all(
        self,
        directories: Mapping[LogKey, Path],
        settings: Mapping[str, Settings],
        logs: dict[LogKey, Log],
        *,
        threads: int,
    ) -> None:
        """Open all into `logs`, several at once when they must be read; the first failure is
        raised."""
        todo: queue.SimpleQueue[tuple[LogKey, Path]] = queue.SimpleQueue()
        for entry in directories.items():
            todo.put(entry)
        raised: list[Exception] = []

        def work() -> None:
            while not raised:
                try:
                    key, path = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    logs[key] = self.open(path, key, settings[key[0]])
                except Exception as error:  # raised again below, by the caller's thread
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
