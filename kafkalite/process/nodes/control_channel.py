"""ControlChannel: the launcher's end of the control channel, a socket pair to the supervisor.

Both sides always send the whole state, never a change: a message may be repeated or skip earlier
ones without harm.  Messages are validated like any input from outside the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable

from kafkalite.config.listener import Listener
from kafkalite.errors import KafkaError
from kafkalite.process.nodes.node_process import NodeProcess, NodeProcessState
from kafkalite.protocol.schemas.bus import (
    BROKER_ENDS,
    DEMAND_SERVICE,
    DESIRED_NODES,
    FENCE,
    HEARTBEAT,
    NODES,
    TypedRecord,
    read_frame,
    write_frame,
)
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

PACKET_MAX = 1 << 16
PACKETS_PER_TICK = 16
NODES_MAX = 1024
"""More nodes than there can be; a longer list is refused."""

RESEND_MS = 50
LOG_INTERVAL_MS = 10_000

STATES = {
    NodeProcessState.READY: "ready",
    NodeProcessState.ENDING: "ending",
    NodeProcessState.BACKOFF: "backoff",
}
"""Names of the states in messages to the supervisor; every other state is `starting`."""


class ControlChannel:
    """The launcher's end of the control channel; see the module."""

    def __init__(
        self,
        reactor: Reactor,
        on_nodes: Callable[[set[int], frozenset[int]], None],
        on_fence: Callable[[int, int], None],
        on_heartbeat: Callable[[], None] = lambda: None,
        on_demand: Callable[[str], None] = lambda key: None,
    ) -> None:
        self.reactor = reactor
        self.on_nodes = on_nodes
        self.on_demand = on_demand
        self.on_fence = on_fence
        self.on_heartbeat = on_heartbeat
        self.socket: socket.socket | None = None
        self.sent = b""
        self._is_waiting = False
        self._silent_until_ms = 0

    def open(self) -> socket.socket:
        """Create a new pair for a new supervisor and return the supervisor's end."""
        self.close()
        launcher_end, supervisor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.adopt(launcher_end)
        supervisor_end.setblocking(False)
        return supervisor_end

    def take_over(self, descriptor: int) -> None:
        """Adopt a pair that was created before an exec."""
        os.set_inheritable(descriptor, False)
        self.adopt(socket.socket(fileno=descriptor))

    def adopt(self, launcher_end: socket.socket) -> None:
        launcher_end.setblocking(False)
        self.socket = launcher_end
        self.reactor.watch(launcher_end.fileno(), self.receive)

    def close(self) -> None:
        """Close the channel, because the supervisor has ended or closed its end."""
        if self.socket is not None:
            self.reactor.unwatch(self.socket.fileno())
            self.socket.close()
            self.socket = None
        self.sent = b""

    # Messages of the supervisor.

    def receive(self) -> None:
        """Read and handle a limited number of messages for one tick."""
        for _ in range(PACKETS_PER_TICK):
            if self.socket is None:
                return
            try:
                packet = self.socket.recv(PACKET_MAX)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self.close()
                return
            try:
                self.handle(read_frame(packet))
            except KafkaError as error:
                self.log_invalid(str(error))

    def handle(self, message: TypedRecord) -> None:
        fields = message.fields
        if message.kind is DESIRED_NODES:
            node_ids, dedicated = set(fields["node_ids"]), frozenset(fields["dedicated"])
            if len(node_ids) > NODES_MAX or any(node_id < 0 for node_id in node_ids):
                self.log_invalid(f"a list of {len(node_ids)} nodes")
            else:
                self.on_nodes(node_ids, dedicated)
        elif message.kind is FENCE:
            self.on_fence(fields["node_id"], fields["incarnation"])
        elif message.kind is HEARTBEAT:
            self.on_heartbeat()
        elif message.kind is DEMAND_SERVICE:
            self.on_demand(fields["key"])
        else:
            self.log_invalid(f"a message {message.kind}")

    def log_invalid(self, reason: str) -> None:
        """Log an invalid message, at a limited rate."""
        now_ms = self.reactor.clock.monotonic_ms()
        if now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + LOG_INTERVAL_MS
            log.error(
                "Control channel ignores an invalid message of the supervisor. reason=%r", reason
            )

    # Messages to the supervisor.

    def send_nodes(
        self, nodes: Iterable[NodeProcess], address_of: Callable[[NodeProcess], Listener]
    ) -> None:
        """Send the list of all node processes, unless it is the last list sent."""
        if self.socket is None:
            return
        entries = [
            {
                "node_id": node.node_id,
                "incarnation": node.incarnation,
                "pid": node.pid,
                **address_of(node)._asdict(),
                "state": STATES.get(node.state, "starting"),
            }
            for node in sorted(nodes, key=lambda node: node.node_id)
        ]
        frame = write_frame(NODES(nodes=entries))
        if frame == self.sent:
            return
        try:
            self.socket.send(frame)
            self.sent = frame
        except BlockingIOError:  # stopped or busy: it gets the list that is current by then
            if not self._is_waiting:
                self._is_waiting = True
                self.reactor.call_later(RESEND_MS, self.end_wait)
        except OSError:
            pass  # it has ended, which its pidfd reports

    def send_broker_ends(self) -> None:
        """Tell the supervisor, before the workers end, that the whole broker does.

        If it cannot be told, the workers wait for other leaders, for a bounded time.
        """
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.send(write_frame(BROKER_ENDS()))

    def end_wait(self) -> None:
        """Do nothing but cause a tick, in which the launcher calls `send_nodes` again."""
        self._is_waiting = False
