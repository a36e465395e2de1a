"""Housekeeping: periodic maintenance of a node's logs, a little at each tick.

retention          some logs per tick, so that thousands of logs do not block the event loop
checkpoint         each log's durable offset and start offset: noted for some logs per tick, and
                   written off the event loop
background flush   of logs left to the kernel, so that their recovery points advance
deferred deletes   files whose delay is over, deleted off the event loop
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from kafkalite.clock import Clock
from kafkalite.config.broker import (
    LOG_BACKGROUND_FLUSH_INTERVAL_MS,
    LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS,
    LOG_RETENTION_CHECK_INTERVAL_MS,
)
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaStorageError
from kafkalite.ids import METADATA_TOPIC
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.files.disk import Disk, failed
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.log.background_flush import BackgroundFlush
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.recovery_points import CheckpointWrite, RecoveryPoints, new_point

log = logging.getLogger("kafkalite.storage")

LOGS_PER_RETENTION_STEP = 64
"""Number of logs that retention checks per tick; removing a segment renames it."""

STEP_MS = 10
"""Maximum duration of a step of retention or of a checkpoint's notes; a step covers one log at
least."""

CHECKPOINT_MS_MIN = 1_000
CHECKPOINT_MS_PER_LOG = 5
"""Delay from a flush by clients to a checkpoint: a second, or longer with many logs, so that about
a thousandth of the time is spent on checkpoints."""


class Housekeeping:
    """The maintenance of a set of logs."""

    def __init__(
        self,
        logs: Mapping[tuple[str, int], Log],
        points: RecoveryPoints,
        settings: Settings,
        clock: Clock,
        disk: Disk,
    ) -> None:
        self.deferred_deletes = DeferredDeletes(clock, disk)
        self._logs = logs
        self._points = points
        self._disk = disk
        self._clock = clock
        now_ms = clock.monotonic_ms()
        self._retention_due_ms = now_ms + settings[LOG_RETENTION_CHECK_INTERVAL_MS]
        self._checkpoint_due_ms = now_ms + settings[LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS]
        self._settings = settings
        self._retention_queue: deque[Log] = deque()
        self.trimmed: list[Log] = []
        """Logs whose start offset retention moved, until the node has taken them."""
        self._checkpoint_queue: deque[Log] | None = None
        self._is_writing = False
        """True from a checkpoint's first note until it is written."""
        self._checked_ms = now_ms
        self._durable_offset_sum = 0
        self._look_due_ms = 0
        self._looked_count = 0
        self._are_flushed = False
        self._background = BackgroundFlush()
        self._flush_due_ms = now_ms + settings[LOG_BACKGROUND_FLUSH_INTERVAL_MS]

    def reconfigure(self, settings: Settings) -> None:
        """Apply new intervals; a due time later than the new interval allows is moved up."""
        self._settings = settings
        now_ms = self._clock.monotonic_ms()
        self._retention_due_ms = min(
            self._retention_due_ms, now_ms + settings[LOG_RETENTION_CHECK_INTERVAL_MS]
        )
        self._checkpoint_due_ms = min(
            self._checkpoint_due_ms, now_ms + settings[LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS]
        )
        self._flush_due_ms = min(
            self._flush_due_ms, now_ms + settings[LOG_BACKGROUND_FLUSH_INTERVAL_MS]
        )

    def tick(self, now_ms: int, flusher: Flusher | None) -> int:
        """Do part of the work that is due; return the time of the next call."""
        if now_ms >= self._retention_due_ms:
            self._retention_due_ms = now_ms + self._settings[LOG_RETENTION_CHECK_INTERVAL_MS]
            self._retention_queue = deque(self._logs.values())
        if now_ms >= self._flush_due_ms:
            self._flush_due_ms = now_ms + self._settings[LOG_BACKGROUND_FLUSH_INTERVAL_MS]
            if flusher is not None:
                self._background.add(self._logs.values(), flusher, closed_only=False)
        if now_ms >= self._checkpoint_due_ms or self._has_durable_offset_moved(now_ms):
            interval_ms = self._settings[LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS]
            self._checkpoint_due_ms = now_ms + interval_ms
            self._begin_checkpoint(flusher)
        if self._checkpoint_queue is not None and flusher is not None:
            self._add_points(self._checkpoint_queue, flusher)
        self._apply_retention()
        due = [self._retention_due_ms, self._checkpoint_due_ms, self._flush_due_ms]
        if self._has_flushed_logs(now_ms):
            due.append(self._checked_ms + self._check_interval_ms())
        if self._retention_queue or self._checkpoint_queue is not None:
            due.append(now_ms)
        deletes_due_ms = self.deferred_deletes.remove_due(flusher)
        if deletes_due_ms is not None:
            due.append(deletes_due_ms)
        return min(due)

    def _has_flushed_logs(self, now_ms: int) -> bool:
        """Return whether there are logs that are not left to the kernel, as of the last look."""
        count = len(self._logs)
        if now_ms >= self._look_due_ms or count != self._looked_count:
            self._look_due_ms = now_ms + self._check_interval_ms()
            self._looked_count = count
            self._are_flushed = any(not found.is_left_to_kernel for found in self._logs.values())
        return self._are_flushed

    def _check_interval_ms(self) -> int:
        return max(CHECKPOINT_MS_MIN, CHECKPOINT_MS_PER_LOG * len(self._logs))

    def _has_durable_offset_moved(self, now_ms: int) -> bool:
        """Return whether a check is due and more is durable than at the last check."""
        if now_ms - self._checked_ms < self._check_interval_ms():
            return False
        self._checked_ms = now_ms
        before = self._durable_offset_sum
        self._durable_offset_sum = sum(found.durable_offset for found in self._logs.values())
        return self._durable_offset_sum != before

    def _apply_retention(self) -> None:
        end_ns = self._clock.monotonic_ns() + STEP_MS * 1_000_000
        for _ in range(min(LOGS_PER_RETENTION_STEP, len(self._retention_queue))):
            found = self._retention_queue.popleft()
            if found.topic == METADATA_TOPIC:
                continue  # retention of the metadata log is decided by its snapshots
            before = found.log_start_offset
            try:
                found.retain()
            except (OSError, KafkaStorageError) as error:
                log.error(
                    "Retention failed; the next check repeats it. path=%s error=%r",
                    found.directory, str(error),
                )  # fmt: skip
            if found.log_start_offset != before:
                self.trimmed.append(found)
            if self._clock.monotonic_ns() >= end_ns:
                break

    # -- checkpoints -------------------------------------------------------------------------

    def checkpoint_soon(self) -> None:
        """Have the next tick begin a checkpoint."""
        self._checkpoint_due_ms = self._clock.monotonic_ms()

    def checkpoint(self) -> None:
        """Write the durable offset and start offset of each log, synchronously."""
        for found in self._logs.values():
            self._add_point(found)
        write = self._points.begin_write()
        if write is not None:
            write.run(self._disk)
            if write.error is not None:
                failed(write.error, f"{write.where} cannot be written")
            self._points.written(write)

    def checkpoint_lowered(self, lowered: Log) -> None:
        """Write the lower point of a log that is about to be truncated, synchronously, unless the
        checkpoint has none that is greater; raise KafkaStorageError or DiskFailed if it could not
        be written."""
        self._set_point(lowered)
        self._points.write_lowered(lowered.directory.name)

    def _begin_checkpoint(self, flusher: Flusher | None) -> None:
        """Begin a checkpoint: a step per tick, written off the event loop if there is a flusher."""
        if flusher is None:
            self.checkpoint()
            return
        self._background.add(self._logs.values(), flusher, closed_only=True)
        if self._is_writing:
            return  # a slow disk is still writing the previous checkpoint
        self._is_writing = True
        self._checkpoint_queue = deque(self._logs.values())

    def _add_points(self, queue: deque[Log], flusher: Flusher) -> None:
        """Note the points of some logs; after the last one, begin to write the checkpoint."""
        end_ns = self._clock.monotonic_ns() + STEP_MS * 1_000_000
        while queue:
            found = queue.popleft()
            if self._logs.get((found.topic, found.partition)) is found:
                self._add_point(found)
            if self._clock.monotonic_ns() >= end_ns:
                break
        if queue:
            return
        self._checkpoint_queue = None
        write = self._points.begin_write()
        if write is None:
            self._is_writing = False
        else:
            write.done = self._end_write
            flusher.submit([write])

    def _end_write(self, write: CheckpointWrite) -> None:
        self._is_writing = False
        self._points.written(write)

    def _add_point(self, found: Log) -> None:
        if found.is_quarantined:
            return  # its known point stays
        if not found.is_left_to_kernel:  # the others take a snapshot with their flush
            found.take_snapshot_if_due()
        self._set_point(found)

    def _set_point(self, found: Log) -> None:
        point = new_point(
            found.flush_state.durable_offset,  # of records; recovery finds the epochs again
            found.log_start_offset, found.topic_id, found.gaps_to,
            is_replicated=found.is_replicated,
        )  # fmt: skip
        self._points.set_point(found.directory.name, point)
