"""Orders: the socketpair between the launcher and the supervisor, as the launcher holds it.

Both sides say the whole of what is so, never a change: a message that comes twice, or stands for
one before it, does no harm.  What comes is checked like all that comes from outside.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable

from kafkalite.config.broker import Listener
from kafkalite.errors import KafkaError
from kafkalite.process.node_process import NodeProcess, State
from kafkalite.protocol.schemas.bus import (
    FENCE,
    HEARTBEAT,
    NODES,
    ROSTER,
    Record,
    read_frame,
    write_frame,
)
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

PACKET_MAX = 1 << 16
PACKETS_PER_TICK = 16
NODES_MAX = 1024
"""More than there can be; who names more is not believed."""

TELL_AGAIN_MS = 50
COMPLAINT_MS = 10_000

STATES = {State.READY: "ready", State.ENDING: "ending", State.BACKOFF: "backoff"}
"""How a state is told to the supervisor; every other is `starting`."""


class Orders:
    """The launcher's end; see the module."""

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
        """A new pair, for a new supervisor: its end."""
        self.close()
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.adopt(mine)
        other.setblocking(False)
        return other

    def take_over(self, descriptor: int) -> None:
        """Go on with a pair that was made before an exec."""
        os.set_inheritable(descriptor, False)
        self.adopt(socket.socket(fileno=descriptor))

    def adopt(self, mine: socket.socket) -> None:
        mine.setblocking(False)
        self.socket = mine
        self.reactor.watch(mine.fileno(), self.hear)

    def close(self) -> None:
        """There is no supervisor, or it hears no more."""
        if self.socket is not None:
            self.reactor.unwatch(self.socket.fileno())
            self.socket.close()
            self.socket = None
        self.sent = b""

    # What it says.

    def hear(self) -> None:
        """Take in what has come, as much as a tick may."""
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

    def obey(self, message: Record) -> None:
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

    # What it is told.

    def tell(
        self, nodes: Iterable[NodeProcess], address_of: Callable[[NodeProcess], Listener]
    ) -> None:
        """All the nodes there are, unless that is what it was told last."""
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
        except BlockingIOError:  # it is stopped, or busy; it hears of it as it is by then
            if not self._waits:
                self._waits = True
                self.reactor.call_later(TELL_AGAIN_MS, self.waited)
        except OSError:
            pass  # it has ended, which its process will tell

    def waited(self) -> None:
        """The tick this makes tells again."""
        self._waits = False
