"""BackgroundFlush: flushes logs that are otherwise left to the kernel, so that recovery is short.

With `durability=os` no request waits for a flush.  Without flushes the recovery point would not
move, and a start after a power cut would scan the whole active segment.

    at each checkpoint                      closed segments
    every log.background.flush.interval.ms  whole logs, with a producer snapshot if much was
                                            written: recovery begins where both are known

One flush is in flight at a time, so that the flusher's threads stay free for group commits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.disk import TRANSIENT_ERRORS
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_flushes import LogFlush

log = logging.getLogger("kafkalite.storage")


class BackgroundFlush:
    """The queue of background flushes of one node."""

    def __init__(self) -> None:
        self._pending: dict[Log, bool] = {}
        self._in_flight = False

    def add(self, logs: Iterable[Log], flusher: Flusher, *, closed_only: bool) -> None:
        """Flush what is not yet durable: closed segments only, or the whole logs."""
        for found in logs:
            if found.is_left_to_kernel and found.durable_offset < (
                found.active.base_offset if closed_only else found.end_offset
            ):
                self._pending[found] = closed_only and self._pending.get(found, True)
        self._begin(flusher)

    def _begin(self, flusher: Flusher) -> None:
        while self._pending and not self._in_flight:
            found = next(iter(self._pending))
            closed_only = self._pending.pop(found)
            if found.failure is not None:
                continue  # closed or damaged since it was queued
            try:
                if not closed_only:
                    found.take_snapshot_if_due()
                flush = found.flush_begin(closed_only=closed_only)
            except KafkaStorageError as error:
                log.warning("Background flush failed; a later one repeats it. error=%r", str(error))
                if (
                    isinstance(error.__cause__, OSError)
                    and error.__cause__.errno not in TRANSIENT_ERRORS
                ):
                    continue  # the error concerns this log only
                self._pending.clear()
                return
            if flush is not None:
                self._in_flight = True
                flush.done = partial(self._done, found, flusher)
                flusher.submit([flush])

    def _done(self, found: Log, flusher: Flusher, flush: LogFlush) -> None:
        self._in_flight = False
        try:
            found.flush_end(flush)
        except KafkaStorageError as error:
            log.warning("Background flush failed; a later one repeats it. error=%r", str(error))
        self._begin(flusher)
