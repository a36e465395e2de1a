"""Lifetime: the end of a producer by close(), the garbage collector, interpreter exit, or a fork.

    close()        flush, fail the rest, end the thread, which closes the descriptors
    collected      the background thread flushes, ends and closes everything; ResourceWarning
    at exit        each open producer of the process is closed within EXIT_TIMEOUT_S
    fork           the child's copy is unusable; its rings are closed

A close with a timeout returns within END_TIMEOUT_S after it, even while a delivery callback blocks:
callbacks then run in the background thread, which closes the descriptors when they return.

A Lifetime and the background thread hold no reference to the Producer, so that an unreferenced
Producer is collected.  The collector may run anywhere, even in a thread that holds the sender's
lock: the finalizer takes no lock, it sets a flag and wakes the background thread.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import warnings
import weakref

from kafkalite._ext.gathering import Gatherer
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.producer.background import BackgroundThread
from kafkalite.client.producer.batch_completion import BatchCompletion
from kafkalite.client.producer.batch_waiter import BatchWaiter
from kafkalite.client.producer.sender import Sender
from kafkalite.errors import RequestTimedOut

END_TIMEOUT_S = 1.0
"""Seconds after the timeout of a close for the last callbacks and the end of the thread."""
EXIT_TIMEOUT_S = 5.0
"""Seconds to send the rest at interpreter exit, or when an exception ends a with block."""
CLOSED = "The producer was closed before a response arrived."
FORKED = "A producer cannot be used after a fork; create a new one in the child."
EXITED = "The program exited before a response arrived, because the producer was not closed."

log = logging.getLogger(__name__)

_open: set[ProducerLifetime] = set()


class ProducerLifetime:
    """The thread, descriptors and unsent records of one producer, until they are closed."""

    def __init__(self, producer: Gatherer, waiter: BatchWaiter, sender: Sender, cluster: Cluster):
        self.forked = False
        self.closed = False
        self._waiter = waiter
        self._sender = sender
        self._cluster = cluster
        self._background = BackgroundThread(sender, cluster, self._finish)
        self._producer = weakref.ref(producer)
        self._finalizer = weakref.finalize(producer, self._collected, repr(producer))
        self._finalizer.atexit = False  # _at_exit closes it instead
        self._background.start()
        _open.add(self)

    def flush(self, timeout: float | None) -> None:
        """Wait until all batches are completed and their callbacks have run, or TimeoutError."""
        sender = self._sender
        self._waiter.check_may_wait()
        callbacks = sender.state.callbacks
        waiting = list(
            dict.fromkeys([*callbacks.pending_batches(), *sender.locked(sender.flush_lingering)])
        )
        left = iter(waiting)
        current = next(left, None)

        def is_done(batch: BatchCompletion) -> bool:
            return batch.done and callbacks.callbacks_done(batch)

        def done() -> bool:
            nonlocal current
            while current is not None and is_done(current):
                current = next(left, None)
            return current is None

        if not self._waiter.work_until(done, timeout):
            count = sum(not batch.done for batch in waiting)
            raise TimeoutError(
                f"After {timeout:g} s {count} batches are neither delivered nor failed"
                if count else f"After {timeout:g} s delivery callbacks still run"
            )  # fmt: skip

    def close(self, timeout: float | None, reason: str = CLOSED) -> None:
        """Flush, end the thread and close; batches not completed in time fail with this reason."""
        sender = self._sender
        if self.closed:
            return
        self._waiter.check_may_wait()
        sender.locked(sender.flush_lingering)  # raises in a locked section: nothing is closed
        if not self._begin_close():
            return
        deadline = Deadline(math.inf if timeout is None else timeout)
        try:
            with contextlib.suppress(TimeoutError):
                self.flush(timeout)
        except BaseException:  # Ctrl-C, perhaps because a callback blocks
            deadline = Deadline(0)
            raise
        finally:
            sender.locked(sender.state.fail_all, RequestTimedOut(reason))
            sender.locked(self._background.stop)
            self._cluster.close()  # aborts the requests of the background thread
            left_s = deadline.left_s + END_TIMEOUT_S
            if not self._background.join(left_s if left_s < math.inf else None):
                log.warning(
                    "A delivery callback has not returned; the producer is closed when it does."
                    "  timeout_s=%g",
                    left_s,
                )

    def _begin_close(self) -> bool:
        """Return True for the one call that ends the producer."""
        try:
            _open.remove(self)  # atomic: the background thread may call this too
        except KeyError:
            return False
        self.closed = True
        self._finalizer.detach()
        producer = self._producer()
        if producer is not None:
            producer.is_open = False
        return True

    # In the background thread.

    def _finish(self) -> None:
        """Run the last callbacks and close the descriptors.

        Every batch is completed: close() flushed or abandoned it, or it was drained.
        """
        self._begin_close()
        sender, callbacks = self._sender, self._sender.state.callbacks
        while callbacks.has_work:
            try:
                callbacks.run_callbacks(final=True)
            except BaseException:  # SystemExit in a callback; the others must still run
                log.exception("A delivery callback failed.")
        sender.locked(sender.state.fail_all, RequestTimedOut(CLOSED))
        sender.locked(sender.close)
        self._cluster.close()

    # The garbage collector.

    def _collected(self, name: str) -> None:
        if self.forked or self.closed:
            return
        self._background.drain()
        warnings.warn(
            f"{name} was garbage collected without close(); its records are still sent",
            ResourceWarning,
            stacklevel=1,
        )

    # The process.

    def close_at_exit(self) -> None:
        self.close(EXIT_TIMEOUT_S, EXITED)

    def close_in_child(self) -> None:
        """Close the rings in a forked child, which would keep their leases alive; keep the rest."""
        self.forked = True
        producer = self._producer()
        if producer is not None:
            producer.is_open = False
        for node in self._sender.nodes.values():
            if node.ring is not None:
                node.ring.close()


def exit_timeout_s(kind: type[BaseException] | None) -> float | None:
    """Return the timeout of the close at the end of a with block that `kind` ends."""
    if kind is None or issubclass(kind, (SystemExit, GeneratorExit)):
        return None
    return EXIT_TIMEOUT_S


def _at_exit() -> None:
    for lifetime in list(_open):
        lifetime.close_at_exit()


def _after_fork() -> None:
    for lifetime in list(_open):
        lifetime.close_in_child()
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
