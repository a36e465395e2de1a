"""Post: calls passed from other threads to the event loop."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor


class Post:
    """A thread-safe queue of calls that the event loop makes, in order."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._calls: deque[Callable[[], object]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        reactor.watch(self._bell, self._run)

    def leave(self, call: Callable[[], object]) -> None:
        """Call this in the next tick of the loop; thread-safe, and ignored after `close`."""
        with self._lock:
            if not self._closed:
                self._calls.append(call)
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        os.eventfd_read(self._bell)
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        """Accept no more calls."""
        self._reactor.unwatch(self._bell)
        with self._lock:
            self._closed = True
            os.close(self._bell)
