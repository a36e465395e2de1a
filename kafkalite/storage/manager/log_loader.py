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

from kafkalite.config.settings import Settings
from kafkalite.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from kafkalite.storage.files import layout
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.files.opening_lock import OpeningLock
from kafkalite.storage.log.log import RECOVERED, Log, OpenOptions
from kafkalite.storage.log.shared_flush import flush_recovered
from kafkalite.storage.manager.high_watermarks import HighWatermarks
from kafkalite.storage.manager.recovery_points import RecoveryPoints
from kafkalite.storage.state.known_state import NOTHING_KNOWN
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition

LogKey = tuple[str, int]


class LogLoader:
    """The loader of one node's logs."""

    def __init__(
        self,
        data: Path,
        file_system: FileSystem,
        points: RecoveryPoints,
        cleaner_checkpoint: CleanerCheckpoint,
        high_watermarks: HighWatermarks,
        environment: LogEnvironment,
    ) -> None:
        self._data = data
        self._file_system = file_system
        self._points = points
        self._cleaner_checkpoint = cleaner_checkpoint
        self._high_watermarks = high_watermarks
        self._environment = environment

    def open(
        self,
        directory: Path,
        identity: TopicIdPartition,
        config: LogConfig,
        options: OpenOptions = RECOVERED,
    ) -> Log:
        """Open one log."""
        known = NOTHING_KNOWN
        if not options.is_new:
            known = self._points.known_state(directory, identity.topic_id)
            if known.cleaner_offset < 0:
                offset = self._cleaner_checkpoint.offset_of(*identity.key)
                known = known._replace(cleaner_offset=offset)
        environment = self._environment
        if config.is_metadata_log:  # deleting topics writes to it, which must not need free space
            environment = environment.without_reserve(directory)
        opened = Log.open(directory, identity, config, environment, known, options)
        if opened.is_replicated:
            opened.high_watermark_at_start = self._high_watermarks.at_start(opened)
        if opened.cleaner_offset >= 0:
            self._cleaner_checkpoint.set(*identity.key, opened.cleaner_offset)
        known = known._replace(gaps_to=opened.gaps_to)
        self._points.record_state(directory.name, identity.topic_id, known, opened.damaged_to)
        self._points.set_pending(directory.name, opened.may_have_lost_tail)
        if os.path.exists(directory / layout.HANDOVER):
            self._points.note_handover_file(directory.name)
        return opened

    def open_all(
        self,
        directories: Mapping[Path, TopicIdPartition],
        settings: Mapping[str, Settings],
        logs: dict[LogKey, Log],
        *,
        threads: int,
    ) -> None:
        """Open all logs into `logs`, several in parallel if they must be recovered, and flush the
        recovered ones; raise the first error."""
        was_marked = self._points.drop_cache
        shares_flush = self._file_system.can_sync and not was_marked
        todo: queue.SimpleQueue[tuple[Path, TopicIdPartition]] = queue.SimpleQueue()
        for entry in directories.items():
            todo.put(entry)
        raised: list[Exception] = []
        lock = OpeningLock()
        options = OpenOptions(shares_flush=shares_flush, lock=lock)

        def work() -> None:
            with lock:
                while not raised:
                    try:
                        path, identity = todo.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        config = LogConfig.of(settings[identity.topic])
                        logs[identity.key] = self.open(path, identity, config, options)
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
            self._environment.disk,
            was_marked=was_marked,
        )
