"""Lifetime: the end of a producer, by close(), by the garbage collector, at exit, or by a fork.

    close()        flush, end the thread, fail what is left, close descriptors
    collected      the background thread flushes, then ends and closes everything; ResourceWarning
    at exit        each producer of the process that is still open is closed in EXIT_TIMEOUT_S
    fork           the child's copy can only be dropped; its rings are closed

A Lifetime and the background thread hold no reference to the Producer, so that a Producer nobody
holds is collected.  The collector may run anywhere, also in a thread that holds the sender's lock:
the finalizer takes no lock, it sets a flag and wakes the background thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
import weakref
from typing import TYPE_CHECKING

from kafkalite.client.background import Background
from kafkalite.client.cluster import Cluster
from kafkalite.client.sender import Sender
from kafkalite.errors import RequestTimedOut

if TYPE_CHECKING:
    from kafkalite.client.producer import Producer

EXIT_TIMEOUT_S = 5.0
"""Time to send what is left at the interpreter's exit, or when an exception ends a with block."""
CLOSED = "The producer was closed before an answer came."
EXITED = "The program ended before an answer came: the producer was not closed."

_open: set[Lifetime] = set()


class Lifetime:
    """The thread, descriptors and unsent records of one producer, until they are closed."""

    def __init__(self, producer: Producer, sender: Sender, cluster: Cluster) -> None:
        self.forked = False
        self.closed = False
        self._sender = sender
        self._cluster = cluster
        self._background = Background(sender, self._drained)
        self._producer = weakref.ref(producer)
        self._finalizer = weakref.finalize(producer, self._collected, repr(producer))
        self._finalizer.atexit = False  # _at_exit sees to it
        self._background.start()
        _open.add(self)

    def flush(self, timeout: float | None) -> None:
        """Wait until everything sent so far is decided; TimeoutError when that takes longer."""
        sender = self._sender
        waiting = sender.turn(sender.want_all)
        left = iter(waiting)
        current = next(left, None)

        def done() -> bool:
            nonlocal current
            while current is not None and current.done:
                current = next(left, None)
            return current is None

        if not sender.waiting.work_until(done, timeout):
            count = sum(not batch.done for batch in waiting)
            raise TimeoutError(f"{count} batches are not decided after {timeout:g} s")

    def close(self, timeout: float | None, reason: str = CLOSED) -> None:
        """Send what is left and end; what is not decided in time has failed, for this reason."""
        if self._claim():
            try:
                with contextlib.suppress(TimeoutError):
                    self.flush(timeout)
            finally:
                self._end(reason)

    def _claim(self) -> bool:
        """Return whether this call is the one that ends it."""
        try:
            _open.remove(self)  # one step: the background thread may be here too
        except KeyError:
            return False
        self.closed = True
        self._finalizer.detach()
        producer = self._producer()
        if producer is not None:
            producer.is_open = False
        return True

    def _end(self, reason: str = CLOSED) -> None:
        sender = self._sender
        self._background.stop()
        fault = RequestTimedOut(reason)
        sender.turn(sender.abandon, fault)
        sender.outcomes.tell(final=True)
        sender.turn(sender.close)
        self._cluster.close()

    # The garbage collector.

    def _collected(self, name: str) -> None:
        if self.forked or self.closed:
            return
        self._background.drain()
        warnings.warn(
            f"{name} was dropped without close(); its records are being sent", ResourceWarning,
            stacklevel=1,
        )  # fmt: skip

    def _drained(self) -> None:
        """End a collected producer, from its background thread: all its records are decided."""
        if self._claim():
            self._end()

    # The process.

    def exit(self) -> None:
        self.close(EXIT_TIMEOUT_S, EXITED)

    def leave_to_parent(self) -> None:
        """Forget everything in a forked child but the rings, whose leases would outlive it."""
        self.forked = True
        producer = self._producer()
        if producer is not None:
            producer.is_open = False
        for node in self._sender.nodes.values():
            if node.ring is not None:
                node.ring.close()


def _at_exit() -> None:
    for lifetime in list(_open):
        lifetime.exit()


def _after_fork() -> None:
    for lifetime in list(_open):
        lifetime.leave_to_parent()
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
