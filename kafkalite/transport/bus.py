"""The bus: messages between the supervisor and its workers, over ZeroMQ on a Unix socket.

    supervisor   BusServer   ROUTER, bound to a path in the run directory
    worker       BusClient   DEALER, its identity NODE.INCARNATION
    a command    BusClient   DEALER, its identity chosen by the server

Guarantees: a message arrives whole and validated (protocol/schemas/bus.py) or not at all.  Messages
of one sender to one receiver arrive in the order they were sent, while both processes run.

There is no delivery confirmation: `send` returns True when the message is in the queue of its peer.
A client's queue is kept while the server is down; messages that a server had received and not read
when it ended are lost.  A server knows a client from its connection on; messages queued to a client
that has just ended are lost.  So requests need a timeout, and the receiver of a retried request
checks the identity of the sender: a new process has a new incarnation and so a new identity.  Of
two connections with one identity the newer one gets it (ZMQ_ROUTER_HANDOVER): its process has
connected again before the end of the old connection was noticed.

Access: processes of this user and of root.  The directory admits no other user, and the server
checks the user id of each connection.  Messages are validated all the same: one that cannot be
decoded is dropped, counted in `refused` and logged at a limited rate.  A message larger than
FRAME_SIZE_MAX ends its connection before it is received, and is not counted.

ZeroMQ in an event loop of our own: its descriptor becomes readable after an event, not while
messages wait.  So messages are read until none is left (Drain), and after every send, which
consumes events as well, the socket's state is checked.  A context has threads, so it is created
after the fork.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zmq

from kafkalite.errors import CorruptMessage, Fatal, Refusal, UnsupportedVersion
from kafkalite.protocol.schemas.bus import FRAME_SIZE_MAX, TypedRecord, read_frame, write_frame
from kafkalite.transport.reactor import Complaints, Reactor, raised_at
from kafkalite.transport.run_directory import file_of

QUEUED_MAX = 1_000
"""Maximum of messages queued for one peer: in our queue, and the same again in the peer's."""
TAKEN_PER_TICK = 64
TAKEN_SIZE_PER_TICK = 4 << 20
"""Limits of the messages handled in one tick; the rest waits for the next tick."""
RECONNECT_MS_MIN, RECONNECT_MS_MAX = 10, 50
BACKLOG = 1_024

NODE_ID_MAX = 2**31 - 1
INCARNATION_MAX = 2**63 - 1
ROOT_UID = 0

Parts = list[bytes]
"""A ZeroMQ multipart message."""


class Peer(NamedTuple):
    """One process of a node; the launcher increments the incarnation with every fork."""

    node_id: int
    incarnation: int


def identity_of(peer: Peer) -> bytes:
    """Return the identity of a node's process on the bus."""
    return b"%d.%d" % peer


def peer_of(identity: bytes) -> Peer | None:
    """Return the node process with this identity; None for a command or an invalid identity."""
    found = re.fullmatch(rb"(0|[1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,18})", identity)
    if found is None:
        return None
    peer = Peer(int(found[1]), int(found[2]))
    fits = peer.node_id <= NODE_ID_MAX and peer.incarnation <= INCARNATION_MAX
    return peer if fits else None


def shown(identity: bytes) -> str:
    """Return an identity as log lines name it."""
    peer = peer_of(identity)
    return f"node {peer.node_id} ({peer.incarnation})" if peer else "a command on the bus"


class BusServer:
    """The supervisor's end of the bus."""

    def __init__(
        self, reactor: Reactor, path: Path, received: Callable[[bytes, TypedRecord], object]
    ) -> None:
        self._received = received
        self._path = path
        self._end = End(reactor, zmq.ROUTER)
        socket = self._end.socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        for uid in {os.geteuid(), ROOT_UID}:
            socket.setsockopt(zmq.IPC_FILTER_UID, uid)
        try:
            socket.bind(f"ipc://{path}")  # replaces the socket file of a killed server
        except zmq.ZMQError as fault:
            self._end.close()
            reason = os.strerror(fault.errno or 0)
            raise Refusal(f"the processes cannot meet at {path}: {reason}") from None
        self._file = file_of(path)
        self._end.listen(self._take)

    @property
    def refused(self) -> int:
        """Number of messages dropped because they cannot be decoded."""
        return self._end.refused

    @property
    def faults(self) -> int:
        """Number of messages whose handling failed."""
        return self._end.faults

    def send(self, identity: bytes, message: TypedRecord, *, quiet: bool = False) -> bool:
        """Queue a message to a client; return False if it is not connected or its queue is full.

        `quiet` suppresses the log line in that case.
        """
        return self._end.send(shown(identity), [identity], message, quiet)

    def close(self) -> None:
        """Close at once and drop unsent messages; waits until ZeroMQ's threads have ended."""
        if self._end.is_open:
            self._end.close()
            if file_of(self._path) == self._file:
                self._path.unlink(missing_ok=True)

    def _take(self, parts: Parts) -> None:
        identity = parts[0]
        self._end.hear(
            shown(identity), parts[1:], lambda message: self._received(identity, message)
        )


class BusClient:
    """A client's end of the bus: a worker's, or a command's, which has no identity of its own.

    It reconnects without limit.  `changed(True)` is called when the server is reached, and
    `changed(False)` when the connection is lost; messages sent in between stay queued.
    """

    def __init__(
        self,
        reactor: Reactor,
        path: Path,
        identity: bytes | None,
        received: Callable[[TypedRecord], object],
        changed: Callable[[bool], object] | None = None,
    ) -> None:
        self.connected = False
        self._received = received
        self._changed = changed
        self._end = End(reactor, zmq.DEALER)
        socket = self._end.socket
        if identity is not None:
            socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS_MIN)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        news = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._news = Drain(reactor, news, self._learn)
        socket.connect(f"ipc://{path}")
        self._end.listen(self._take)

    @property
    def refused(self) -> int:
        """Number of messages dropped because they cannot be decoded."""
        return self._end.refused

    @property
    def faults(self) -> int:
        """Number of messages whose handling failed."""
        return self._end.faults

    def send(self, message: TypedRecord) -> bool:
        """Queue a message to the server, which may be down; return False if the queue is full."""
        return self._end.send("the supervisor", [], message)

    def close(self) -> None:
        """Close at once and drop unsent messages; waits until ZeroMQ's threads have ended."""
        if self._end.is_open:
            self._end.socket.disable_monitor()
            self._news.close()
            self._end.close()

    def _take(self, parts: Parts) -> None:
        self._end.hear("the supervisor", parts, self._received)

    def _learn(self, parts: Parts) -> None:
        (event,) = struct.unpack_from("=H", parts[0])
        connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if connected != self.connected:
            self.connected = connected
            if self._changed is not None:
                self._changed(connected)


class End:
    """One end of the bus: a context, its socket, and the validation of received messages."""

    def __init__(self, reactor: Reactor, kind: int) -> None:
        self.refused = self.faults = 0
        self.is_open = True
        self._reactor = reactor
        self._complaints = Complaints(reactor.clock)
        self._drain: Drain | None = None
        self._zmq = zmq.Context(io_threads=1)
        self.socket = self._zmq.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)
        self.socket.setsockopt(zmq.SNDHWM, QUEUED_MAX)
        self.socket.setsockopt(zmq.RCVHWM, QUEUED_MAX)

    def listen(self, take: Callable[[Parts], object]) -> None:
        """Pass received messages to `take` from now on."""
        self._drain = Drain(self._reactor, self.socket, take)

    def send(self, peer: str, address: Parts, message: TypedRecord, quiet: bool = False) -> bool:
        """Queue a message and return True if that succeeded; never waits, never raises."""
        assert self.is_open and self._drain is not None, "the bus is closed"
        frame = write_frame(message)
        if len(frame) > FRAME_SIZE_MAX:
            why = f"it has {len(frame)} bytes"
        else:
            try:
                self.socket.send_multipart([*address, frame], zmq.NOBLOCK)
                return True
            except zmq.ZMQError as fault:
                if fault.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                    raise
                full = fault.errno == errno.EAGAIN
                why = "its queue is full" if full else "it is not there"
            finally:
                self._drain.look()
        if not quiet:
            self._complaints.about(peer, f"was not sent a {message.kind}: {why}", kind="unsent")
        return False

    def hear(self, peer: str, parts: Parts, handle: Callable[[TypedRecord], object]) -> None:
        """Decode and handle a message; count and log it if either fails."""
        try:
            if len(parts) != 1:
                raise CorruptMessage("A message of the bus is one frame.")
            message = read_frame(parts[0])
        except (CorruptMessage, UnsupportedVersion) as fault:
            self.refused += 1
            self._complaints.about(peer, f"was not heard: {fault}", kind="refused")
            return
        try:
            handle(message)
        except (AssertionError, Fatal):
            raise
        except Exception as error:
            self.faults += 1
            said = f"handling its {message.kind} failed"
            self._complaints.about(peer, said, kind=raised_at(error), error=error)

    def close(self) -> None:
        self.is_open = False
        if self._drain is not None:
            self._drain.close()
        self.socket.close(0)
        self._zmq.term()


class Drain:
    """Reads a ZeroMQ socket until no message is left, a limited number in each tick.

    ZeroMQ's descriptor wakes the event loop for events since its state was last checked; an eventfd
    wakes it for messages that were noticed and not yet read.
    """

    def __init__(
        self, reactor: Reactor, socket: zmq.Socket[bytes], take: Callable[[Parts], object]
    ) -> None:
        self._reactor = reactor
        self._socket = socket
        self._take = take
        self._taking = False
        self._happened = socket.fileno()
        self._rest = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.watch(self._happened, self._take_in)
        reactor.watch(self._rest, self._take_on)
        self.look()

    @property
    def is_open(self) -> bool:
        return self._rest >= 0

    def look(self) -> None:
        """Schedule a read in the next tick if messages wait; call this after each use of the
        socket, which consumes its events."""
        if not self._taking and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            os.eventfd_write(self._rest, 1)

    def _take_on(self) -> None:
        os.eventfd_read(self._rest)
        self._take_in()

    def _take_in(self) -> None:
        drained = False
        self._taking = True
        try:
            drained = self._take_some()
        finally:
            self._taking = False
            if not drained and self.is_open:
                os.eventfd_write(self._rest, 1)

    def _take_some(self) -> bool:
        """Read up to the limits of a tick; return True if no message is left."""
        size = 0
        for _ in range(TAKEN_PER_TICK):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._take(parts)
            size += sum(map(len, parts))
            if not self.is_open:
                return True
            if size >= TAKEN_SIZE_PER_TICK:
                break
        return False

    def close(self) -> None:
        """Stop watching the socket and close it."""
        self._reactor.unwatch(self._happened)
        self._reactor.unwatch(self._rest)
        os.close(self._rest)
        self._rest = -1
        self._socket.close(0)
