"""Shutdown: a worker that ends lets other nodes lead its replicated partitions first.

    SIGTERM ─▶ ShutDownNode ─▶ others lead, and every node knows ─▶ the process ends

It ends at once if its supervisor cannot be reached, on a second SIGTERM, and if no partition of it
has several replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite.broker.controller.remote_controller import RemoteController

log = logging.getLogger("kafkalite.process")

LEAVE_MS_MAX = 15_000
"""Maximum wait for other leaders: 10 s for other replicas to be in sync, and 5 s for the change."""


class Shutdown:
    """The end of a worker's process; see the module."""

    def __init__(self, controller: RemoteController, stop: Callable[[], None]) -> None:
        self._controller = controller
        self._stop = stop
        self._has_begun = False

    def begin(self) -> None:
        """Begin to leave; end at once if this is repeated."""
        if self._has_begun or self._controller.node_epoch is None:
            self._stop()
            return
        self._has_begun = True
        self._controller.shut_down(LEAVE_MS_MAX).then(lambda _, error: self._stop())

    def connection_changed(self, connected: bool) -> None:
        """Pass on the state of the connection to the supervisor; without one there is no wait."""
        self._controller.connection_changed(connected)
        if self._has_begun and not connected:
            self._stop()
