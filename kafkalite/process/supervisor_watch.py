"""SupervisorWatch: notices that the supervisor hangs, as the supervisor does for the workers.

    supervisor ─▶ Heartbeat, over the orders' socket     from its event loop
    no heartbeat for broker.session.timeout.ms:  killed if it is stopped
                 for broker.tick.timeout.ms:     killed whatever it does

The launcher then starts it again.  The heartbeats come over the orders' socket rather than as
answers at the listener, which a crowd of connections may keep from being accepted.

A heartbeat is only sent when the launcher has read all before it: one that is stopped finds the
last one when it goes on, and the socket keeps room for orders, which must not fail.

Watching begins with the first heartbeat: until then the supervisor is recovering logs, or runs
older code that sends none.  Left out: workers=0, where no other process watches the only one.
"""

from __future__ import annotations

import fcntl
import logging
import socket
import struct
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalite.config.broker import BROKER_SESSION_TIMEOUT_MS, BROKER_TICK_TIMEOUT_MS
from kafkalite.process.process_state import is_running

if TYPE_CHECKING:
    from kafkalite.config.settings import Settings
    from kafkalite.process.node_process import NodeProcess
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

LOOK_MS_MAX = 1_000
LOOKS = 4
"""In one session timeout."""


def send_unless_unread(orders: socket.socket, packet: bytes) -> bool:
    """Send a packet over a Unix socket if its peer has read all before it; whether it was sent."""
    (unread,) = struct.unpack("i", fcntl.ioctl(orders, termios.TIOCOUTQ, bytes(4)))
    if unread:
        return False
    try:
        orders.send(packet)
    except BlockingIOError:
        return False
    return True


class SupervisorWatch:
    """Watches the supervisor's heartbeats; see the module."""

    def __init__(
        self, reactor: Reactor, settings: Settings, supervisor: Callable[[], NodeProcess]
    ) -> None:
        self._reactor = reactor
        self._supervisor = supervisor
        self._session_timeout_ms = settings[BROKER_SESSION_TIMEOUT_MS]
        self._tick_timeout_ms = settings[BROKER_TICK_TIMEOUT_MS]
        self._look_ms = max(1, min(LOOK_MS_MAX, self._session_timeout_ms // LOOKS))
        self._heard_ms: int | None = None
        self._incarnation = -1
        self._warned = False
        self._looked_ms = reactor.clock.monotonic_ms()
        reactor.call_later(self._look_ms, self._look)

    def heard(self) -> None:
        """Take a heartbeat of the supervisor that runs now."""
        self._heard_ms = self._reactor.clock.monotonic_ms()
        self._incarnation = self._supervisor().incarnation
        self._warned = False

    def _look(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        late_ms = now_ms - self._looked_ms - self._look_ms
        self._looked_ms = now_ms
        self._reactor.call_later(self._look_ms, self._look)
        node = self._supervisor()
        if self._heard_ms is None or not node.runs or node.incarnation != self._incarnation:
            return
        if late_ms > self._look_ms:
            # This process itself was stopped: what was sent meanwhile is read first.
            self._heard_ms = min(now_ms, self._heard_ms + late_ms)
        silent_ms = now_ms - self._heard_ms
        if silent_ms <= self._session_timeout_ms:
            return
        running = is_running(node.pid)
        if running and silent_ms <= self._tick_timeout_ms:
            self._warn(node, silent_ms)
            return
        log.error(
            "Supervisor missed its heartbeats and is killed. pid=%d silent_ms=%d running=%s",
            node.pid, silent_ms, running,
        )  # fmt: skip
        self._heard_ms = None
        node.kill()

    def _warn(self, node: NodeProcess, silent_ms: int) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "Supervisor misses its heartbeats, but its process runs; waiting."
                " pid=%d silent_ms=%d tick_timeout_ms=%d",
                node.pid, silent_ms, self._tick_timeout_ms,
            )  # fmt: skip
