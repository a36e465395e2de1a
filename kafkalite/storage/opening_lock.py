"""OpeningLock: lets the threads that open logs work one at a time, and scan at once.

Two threads that open small logs take the interpreter's lock from each other at every system call:
2,500 logs of 2 MB took 1.4 s with two threads and 0.6 s with one.  Scans are compiled and run
without that lock, so large ones are done at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

SCANNED_FROM = 8 << 20
"""Number of bytes whose scan is worth another thread's turn: some milliseconds.  Above the space
that is set aside ahead of a log's end."""


class OpeningLock:
    """Held by the thread that opens logs, and released while a large part of one is scanned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def scanning(self, size: int) -> Iterator[None]:
        """Let other threads open logs meanwhile, if so many bytes take long to scan.

        The calling thread holds the lock, and holds it again afterwards.
        """
        if size < SCANNED_FROM:
            yield
            return
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
