"""FlushState: the durable offset of a log, shared by its active segment and its flushes.

Not thread-safe: used on the event loop of the worker that owns the log, except `lock`, `error`,
`truncation_count` and `is_released`, which the thread that runs a flush uses too.
"""

from __future__ import annotations

import threading


class FlushState:
    """The part of a log that is durable, and the state of the flushes in flight."""

    __slots__ = ("durable_offset", "durable_position", "error", "flushed_size", "in_flight",
                 "is_released", "lock", "truncation_count")  # fmt: skip

    def __init__(self, durable_offset: int, durable_position: int) -> None:
        self.durable_offset = durable_offset
        """The offset below which the log is durable."""
        self.durable_position = durable_position
        """Position of the durable offset in the active segment."""
        self.flushed_size = 0
        """Number of bytes written by this process that were flushed."""
        self.in_flight = 0
        """Number of flushes and truncations that were begun and have not ended."""
        self.lock = threading.Lock()
        """Held by the thread that runs a flush or a truncation: those of one log run one after
        another."""
        self.error: OSError | None = None
        """The error of a failed flush, which all later flushes repeat."""
        self.truncation_count = 0
        """Number of truncations of the log that were begun; no flush that was begun before counts,
        nor writes once the truncation has `lock`."""
        self.is_released = False
        """True once the log is closed: it may be deleted or transferred, and is not flushed."""
