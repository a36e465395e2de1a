"""Orders: the launcher's end of the control channel, a socket pair to the supervisor.

Both sides always send the whole state, never a change: a message may be repeated or skip earlier
ones without harm.  Messages are validated like any input from outside the process.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable

from kafkalite.config.broker import Listener
from kafkalite.errors import KafkaError
from kafkalite.process.nodes.node_process import NodeProcess, State
from kafkalite.protocol.schemas.bus import (
    FENCE,
    HEARTBEAT,
    NODES,
    ROSTER,
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

TELL_AGAIN_MS = 50
COMPLAINT_MS = 10_000

STATES = {State.READY: "ready", State.ENDING: "ending", State.BACKOFF: "backoff"}
"""Names of the states in messages to the supervisor; every other state is `starting`."""


class Orders:
    """The launcher's end of the control channel; see the module."""

    def __init__(
        self,
        reactor: Reactor,
        roster: Callable[[set[int], frozenset[int]], None],
        fence: Callable[[int, int], None],
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self.reactor = reactor
        self.roster = roster
        self.fence = fence
        self.heartbeat = heartbeat
        self.socket: socket.socket | None = None
        self.sent = b""
        self._waits = False
        self._quiet_until_ms = 0

    def open(self) -> socket.socket:
        """Create a new pair for a new supervisor and return the supervisor's end."""
        self.close()
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.adopt(mine)
        other.setblocking(False)
        return other

    def take_over(self, descriptor: int) -> None:
        """Adopt a pair that was created before an exec."""
        os.set_inheritable(descriptor, False)
        self.adopt(socket.socket(fileno=descriptor))

    def adopt(self, mine: socket.socket) -> None:
        mine.setblocking(False)
        self.socket = mine
        self.reactor.watch(mine.fileno(), self.hear)

    def close(self) -> None:
        """Close the channel, because the supervisor has ended or closed its end."""
        if self.socket is not None:
            self.reactor.unwatch(self.socket.fileno())
            self.socket.close()
            self.socket = None
        self.sent = b""

    # Messages of the supervisor.

    def hear(self) -> None:
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
                self.obey(read_frame(packet))
            except KafkaError as fault:
                self.complain(str(fault))

    def obey(self, message: TypedRecord) -> None:
        fields = message.fields
        if message.kind is ROSTER:
            roster, dedicated = set(fields["node_ids"]), frozenset(fields["dedicated"])
            if len(roster) > NODES_MAX or any(node_id < 0 for node_id in roster):
                self.complain(f"a roster of {len(roster)} nodes")
            else:
                self.roster(roster, dedicated)
        elif message.kind is FENCE:
            self.fence(fields["node_id"], fields["incarnation"])
        elif message.kind is HEARTBEAT:
            self.heartbeat()
        else:
            self.complain(f"a message {message.kind}")

    def complain(self, about: str) -> None:
        now_ms = self.reactor.clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + COMPLAINT_MS
            log.error("what the supervisor sent is not obeyed: %s", about)

    # Messages to the supervisor.

    def tell(
        self, nodes: Iterable[NodeProcess], address_of: Callable[[NodeProcess], Listener]
    ) -> None:
        """Send the list of all node processes, unless it is the last list sent."""
        if self.socket is None:
            return
        told = [
            {
                "node_id": node.node_id,
                "incarnation": node.incarnation,
                "pid": node.pid,
                **address_of(node)._asdict(),
                "state": STATES.get(node.state, "starting"),
            }
            for node in sorted(nodes, key=lambda node: node.node_id)
        ]
        frame = write_frame(NODES(nodes=told))
        if frame == self.sent:
            return
        try:
            self.socket.send(frame)
            self.sent = frame
        except BlockingIOError:  # stopped or busy: it gets the list that is current by then
            if not self._waits:
                self._waits = True
                self.reactor.call_later(TELL_AGAIN_MS, self.waited)
        except OSError:
            pass  # it has ended, which its pidfd reports

    def waited(self) -> None:
        """Do nothing but cause a tick, in which the launcher calls `tell` again."""
        self._waits = False
