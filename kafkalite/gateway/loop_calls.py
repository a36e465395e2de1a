"""LoopCalls: calls passed from other threads to the event loop."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor


class LoopCalls:
    """A thread-safe queue of calls that the event loop makes, in order."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._calls: deque[Callable[[], object]] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        reactor.watch(self._wakeup, self._run)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call this in the next tick of the loop; thread-safe, and ignored after `close`."""
        with self._lock:
            if not self._closed:
                self._calls.append(call)
                os.eventfd_write(self._wakeup, 1)

    def _run(self) -> None:
        os.eventfd_read(self._wakeup)
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        """Accept no more calls."""
        self._reactor.unwatch(self._wakeup)
        with self._lock:
            self._closed = True
            os.close(self._wakeup)
