"""Locked section: a step of a producer that runs under its lock, and leaves no partial state.

An exception inside a section (KeyboardInterrupt, for example) may leave the state as no step leaves
it.  The next section recovers before its own step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kafkalite._ext.locking import LockGuard
from kafkalite.errors import KafkaError

T = TypeVar("T")


class LockedSection:
    """The lock of a producer, and the state of the section that runs under it."""

    def __init__(self, recover: Callable[[], None], interrupted: Callable[[], None]) -> None:
        """Create a lock; `recover` repairs the state, `interrupted` is called when it must."""
        self.lock = threading.RLock()
        self.is_entered = False
        self._recover = recover
        self._interrupted = interrupted
        self._needs_recovery = False

    def run(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run a step in a locked section; after any error but a KafkaError, repair the state."""
        with LockGuard(self.lock):
            if self.is_entered:
                raise RuntimeError(
                    "The producer cannot be used here: this code, a signal handler or finalizer,"
                    " has interrupted one of its calls."
                )
            self.is_entered = True
            try:
                if self._needs_recovery:
                    self._recover()
                    self._needs_recovery = False
                return step(*arguments)
            except KafkaError:
                raise
            except BaseException:
                self._needs_recovery = True
                self._interrupted()
                raise
            finally:
                self.is_entered = False
