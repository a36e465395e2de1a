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
messages wait.  So messages are read until none is left (MessageReader), and after every send, which
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
from kafkalite.transport.rate_limited_log import RateLimitedLog, raised_at
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import file_of

QUEUED_MAX = 1_000
"""Maximum of messages queued for one peer: in our queue, and the same again in the peer's."""
MESSAGES_PER_TICK = 64
SIZE_PER_TICK = 4 << 20
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


def peer_name(identity: bytes) -> str:
    """Return an identity as log lines name it."""
    peer = peer_of(identity)
    return f"node-{peer.node_id}.{peer.incarnation}" if peer else "command"


class BusServer:
    """The supervisor's end of the bus."""

    def __init__(
        self, reactor: Reactor, path: Path, received: Callable[[bytes, TypedRecord], object]
    ) -> None:
        self._received = received
        self._path = path
        self._socket = BusSocket(reactor, zmq.ROUTER)
        socket = self._socket.socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        for uid in {os.geteuid(), ROOT_UID}:
            socket.setsockopt(zmq.IPC_FILTER_UID, uid)
        try:
            socket.bind(f"ipc://{path}")  # replaces the socket file of a killed server
        except zmq.ZMQError as error:
            self._socket.close()
            reason = os.strerror(error.errno or 0)
            raise Refusal(f"cannot bind the bus to {path}: {reason}") from None
        self._file = file_of(path)
        self._socket.listen(self._on_message)

    @property
    def refused(self) -> int:
        """Number of messages dropped because they cannot be decoded."""
        return self._socket.refused

    @property
    def errors(self) -> int:
        """Number of messages whose handling failed."""
        return self._socket.errors

    def send(self, identity: bytes, message: TypedRecord, *, quiet: bool = False) -> bool:
        """Queue a message to a client; return False if it is not connected or its queue is full.

        `quiet` suppresses the log line in that case.
        """
        return self._socket.send(peer_name(identity), [identity], message, quiet)

    def close(self) -> None:
        """Close at once and drop unsent messages; waits until ZeroMQ's threads have ended."""
        if self._socket.is_open:
            self._socket.close()
            if file_of(self._path) == self._file:
                self._path.unlink(missing_ok=True)

    def _on_message(self, parts: Parts) -> None:
        identity = parts[0]
        self._socket.handle(
            peer_name(identity), parts[1:], lambda message: self._received(identity, message)
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
        self._socket = BusSocket(reactor, zmq.DEALER)
        socket = self._socket.socket
        if identity is not None:
            socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS_MIN)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = MessageReader(reactor, monitor, self._connection_event)
        socket.connect(f"ipc://{path}")
        self._socket.listen(self._on_message)

    @property
    def refused(self) -> int:
        """Number of messages dropped because they cannot be decoded."""
        return self._socket.refused

    @property
    def errors(self) -> int:
        """Number of messages whose handling failed."""
        return self._socket.errors

    def send(self, message: TypedRecord) -> bool:
        """Queue a message to the server, which may be down; return False if the queue is full."""
        return self._socket.send("supervisor", [], message)

    def close(self) -> None:
        """Close at once and drop unsent messages; waits until ZeroMQ's threads have ended."""
        if self._socket.is_open:
            self._socket.socket.disable_monitor()
            self._monitor.close()
            self._socket.close()

    def _on_message(self, parts: Parts) -> None:
        self._socket.handle("supervisor", parts, self._received)

    def _connection_event(self, parts: Parts) -> None:
        (event,) = struct.unpack_from("=H", parts[0])
        connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if connected != self.connected:
            self.connected = connected
            if self._changed is not None:
                self._changed(connected)


class BusSocket:
    """One end of the bus: a context, its socket, and the validation of received messages."""

    def __init__(self, reactor: Reactor, kind: int) -> None:
        self.refused = self.errors = 0
        self.is_open = True
        self._reactor = reactor
        self._peer_log = RateLimitedLog(reactor.clock)
        self._reader: MessageReader | None = None
        self._zmq = zmq.Context(io_threads=1)
        self.socket = self._zmq.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_SIZE_MAX)
        self.socket.setsockopt(zmq.SNDHWM, QUEUED_MAX)
        self.socket.setsockopt(zmq.RCVHWM, QUEUED_MAX)

    def listen(self, on_message: Callable[[Parts], object]) -> None:
        """Pass received messages to `on_message` from now on."""
        self._reader = MessageReader(self._reactor, self.socket, on_message)

    def send(self, peer: str, address: Parts, message: TypedRecord, quiet: bool = False) -> bool:
        """Queue a message and return True if that succeeded; never waits, never raises."""
        assert self.is_open and self._reader is not None, "the bus is closed"
        frame = write_frame(message)
        if len(frame) > FRAME_SIZE_MAX:
            reason = f"it has {len(frame)} bytes, more than {FRAME_SIZE_MAX}"
        else:
            try:
                self.socket.send_multipart([*address, frame], zmq.NOBLOCK)
                return True
            except zmq.ZMQError as error:
                if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                    raise
                full = error.errno == errno.EAGAIN
                reason = "the queue of its peer is full" if full else "its peer is not connected"
            finally:
                self._reader.poll()
        if not quiet:
            sentence = f"{message.kind} message was not sent: {reason}"
            self._peer_log.warn(peer, sentence, kind="unsent")
        return False

    def handle(self, peer: str, parts: Parts, handle: Callable[[TypedRecord], object]) -> None:
        """Decode and handle a message; count and log it if either fails."""
        try:
            if len(parts) != 1:
                raise CorruptMessage("A message of the bus must be one frame.")
            message = read_frame(parts[0])
        except (CorruptMessage, UnsupportedVersion) as error:
            self.refused += 1
            self._peer_log.warn(peer, f"Message is dropped: {error}", kind="refused")
            return
        try:
            handle(message)
        except (AssertionError, Fatal):
            raise
        except Exception as error:
            self.errors += 1
            sentence = f"Handling a {message.kind} message failed"
            self._peer_log.warn(peer, sentence, kind=raised_at(error), error=error)

    def close(self) -> None:
        self.is_open = False
        if self._reader is not None:
            self._reader.close()
        self.socket.close(0)
        self._zmq.term()


class MessageReader:
    """Reads a ZeroMQ socket until no message is left, a limited number in each tick.

    ZeroMQ's descriptor wakes the event loop for events since its state was last checked; an eventfd
    wakes it for messages that were noticed and not yet read.
    """

    def __init__(
        self, reactor: Reactor, socket: zmq.Socket[bytes], on_message: Callable[[Parts], object]
    ) -> None:
        self._reactor = reactor
        self._socket = socket
        self._on_message = on_message
        self._is_reading = False
        self._event_descriptor = socket.fileno()
        self._more_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.watch(self._event_descriptor, self._read_batch)
        reactor.watch(self._more_event, self._continue)
        self.poll()

    @property
    def is_open(self) -> bool:
        return self._more_event >= 0

    def poll(self) -> None:
        """Schedule a read in the next tick if messages wait; call this after each use of the
        socket, which consumes its events."""
        if not self._is_reading and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            os.eventfd_write(self._more_event, 1)

    def _continue(self) -> None:
        os.eventfd_read(self._more_event)
        self._read_batch()

    def _read_batch(self) -> None:
        drained = False
        self._is_reading = True
        try:
            drained = self._read_some()
        finally:
            self._is_reading = False
            if not drained and self.is_open:
                os.eventfd_write(self._more_event, 1)

    def _read_some(self) -> bool:
        """Read up to the limits of a tick; return True if no message is left."""
        size = 0
        for _ in range(MESSAGES_PER_TICK):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._on_message(parts)
            size += sum(map(len, parts))
            if not self.is_open:
                return True
            if size >= SIZE_PER_TICK:
                break
        return False

    def close(self) -> None:
        """Stop watching the socket and close it."""
        self._reactor.unwatch(self._event_descriptor)
        self._reactor.unwatch(self._more_event)
        os.close(self._more_event)
        self._more_event = -1
        self._socket.close(0)
