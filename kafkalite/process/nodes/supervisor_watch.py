"""SupervisorWatch: the launcher kills the supervisor when its heartbeats stop.

    supervisor ─▶ Heartbeat, over the control channel     from its event loop
    no heartbeat for broker.session.timeout.ms:  killed if its process is stopped
                 for broker.tick.timeout.ms:     killed in any case

The launcher then restarts it.  Heartbeats use the control channel rather than requests at the
listener, which may not accept them while it has many connections to accept.

A heartbeat is sent only when the launcher has read every earlier message.  So a launcher that was
stopped finds one heartbeat when it continues, and the socket keeps space for messages that must
not fail.

Watching begins with the first heartbeat: until then the supervisor recovers logs, or runs an older
version that sends none.

Left out: workers=0, where no other process watches the only one.
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
from kafkalite.process.nodes.process_state import is_running

if TYPE_CHECKING:
    from kafkalite.config.settings import Settings
    from kafkalite.process.nodes.node_process import NodeProcess
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

CHECK_MS_MAX = 1_000
CHECKS_PER_SESSION = 4
"""Number of checks in one session timeout."""


def send_if_all_read(channel: socket.socket, packet: bytes) -> bool:
    """Send a packet over a Unix socket if its peer has read every earlier one; return True if
    it was sent."""
    (unread,) = struct.unpack("i", fcntl.ioctl(channel, termios.TIOCOUTQ, bytes(4)))
    if unread:
        return False
    try:
        channel.send(packet)
    except BlockingIOError:
        return False
    return True


class SupervisorWatch:
    """The deadline of the supervisor's heartbeats, checked in the launcher."""

    def __init__(
        self, reactor: Reactor, settings: Settings, supervisor: Callable[[], NodeProcess]
    ) -> None:
        self._reactor = reactor
        self._supervisor = supervisor
        self._session_timeout_ms = settings[BROKER_SESSION_TIMEOUT_MS]
        self._tick_timeout_ms = settings[BROKER_TICK_TIMEOUT_MS]
        self._check_ms = max(1, min(CHECK_MS_MAX, self._session_timeout_ms // CHECKS_PER_SESSION))
        self._heartbeat_ms: int | None = None
        self._incarnation = -1
        self._warned = False
        self._checked_ms = reactor.clock.monotonic_ms()
        reactor.call_later(self._check_ms, self._check)

    def record_heartbeat(self) -> None:
        """Record a heartbeat of the current supervisor process."""
        self._heartbeat_ms = self._reactor.clock.monotonic_ms()
        self._incarnation = self._supervisor().incarnation
        self._warned = False

    def _check(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        late_ms = now_ms - self._checked_ms - self._check_ms
        self._checked_ms = now_ms
        self._reactor.call_later(self._check_ms, self._check)
        node = self._supervisor()
        if self._heartbeat_ms is None or node.incarnation != self._incarnation:
            return
        if not node.is_running:
            return
        if late_ms > self._check_ms:
            # This process itself was stopped: read what was sent meanwhile before deciding.
            self._heartbeat_ms = min(now_ms, self._heartbeat_ms + late_ms)
        silent_ms = now_ms - self._heartbeat_ms
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
        self._heartbeat_ms = None
        node.kill()

    def _warn(self, node: NodeProcess, silent_ms: int) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "Supervisor misses its heartbeats, but its process runs; waiting."
                " pid=%d silent_ms=%d tick_timeout_ms=%d",
                node.pid, silent_ms, self._tick_timeout_ms,
            )  # fmt: skip
