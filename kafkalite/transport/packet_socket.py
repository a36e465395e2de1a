"""Packet sockets: SOCK_SEQPACKET over a Unix socket, with descriptors attached to packets.

    PacketListener     bound to a path; creates a PacketConnection for each client
    PacketConnection   packets in, one call each; packets and descriptors out

A packet arrives whole or not at all, and is no larger than `size_max`.  Descriptors are only sent:
the kernel closes those that a peer attaches, since no buffer is given to receive them.  The kernel
reports the user id of the peer (`uid`) at the time it connected.

A packet for which the peer's buffer has no room is queued with its descriptors, and until it is
sent no more is read from that peer.  The length of the queue is bounded by the number of responses
that the owner of the connection has still to send.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from kafkalite.errors import Fatal, Refusal
from kafkalite.records.file_slice import OpenFile
from kafkalite.transport.connection import Disconnect
from kafkalite.transport.rate_limited_log import RateLimitedLog, raised_at
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import file_of

PACKETS_PER_TICK = 64
"""Maximum of packets of one connection handled in one tick; the rest waits for the next tick."""
BACKLOG = 128
CREDENTIALS = struct.Struct("3i")
SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class PacketListener:
    """The listening socket; `opened(connection)` sets the handlers of each connection."""

    def __init__(
        self,
        reactor: Reactor,
        path: Path,
        opened: Callable[[PacketConnection], object],
        *,
        size_max: int,
        connections_max: int,
    ) -> None:
        self.connections: dict[PacketConnection, None] = {}
        self.refused = 0
        """Connections that were refused, or closed for an error of the peer."""
        self.errors = 0
        """Packets whose handling failed by an error of ours."""
        self._reactor = reactor
        self._path = path
        self._on_open = opened
        self._connections_max = connections_max
        self._packet = memoryview(bytearray(size_max + 1))
        self._peer_log = RateLimitedLog(reactor.clock)
        self._full = select.epoll()
        """Connections whose peer has no room for a packet; readable when one has room again."""
        reactor.watch(self._full.fileno(), self._send_queued)
        self._by_descriptor: dict[int, PacketConnection] = {}
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            path.unlink(missing_ok=True)  # the file of a killed process
            listener.bind(str(path))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            self._close_full()
            reason = error.strerror or error
            raise Refusal(f"cannot listen on the socket {path}: {reason}") from None
        self._file = file_of(path)
        self._socket_listener = reactor.admit(listener, self._open_connection, lambda: False)

    def close(self) -> None:
        """Close the listener and every connection, and remove its file if it is still its own."""
        self._socket_listener.close()
        for connection in list(self.connections):
            connection.close()
        self._close_full()
        if file_of(self._path) == self._file:
            self._path.unlink(missing_ok=True)

    def _close_full(self) -> None:
        self._reactor.unwatch(self._full.fileno())
        self._full.close()

    def _open_connection(self, accepted: socket.socket, address: object) -> None:
        if len(self.connections) >= self._connections_max:
            self.refused += 1
            self._reactor.reject(
                accepted,
                ("", 0),
                f"{self._path.name} has the maximum of {self._connections_max} connections",
            )
            return
        connection = PacketConnection(self, accepted)
        self._watch(connection)
        self.connections[connection] = None
        self._by_descriptor[connection.descriptor] = connection
        self._on_open(connection)

    # Reading.

    def _read(self, connection: PacketConnection) -> None:
        for _ in range(PACKETS_PER_TICK):
            if not connection.open or connection.is_blocked:
                return
            try:
                size = connection.socket.recv_into(self._packet)
            except BlockingIOError:
                return
            except OSError:
                size = 0  # the connection was reset
            if size == 0:
                connection.close()
                return
            self._handle(connection, size)

    def _handle(self, connection: PacketConnection, size: int) -> None:
        packet = self._packet[:size]
        try:
            if size == len(self._packet):
                raise Disconnect(f"a packet has more than {size - 1} bytes")
            connection.received(packet)
        except (AssertionError, Fatal):
            raise
        except Disconnect as broken:
            self.end(connection, str(broken), kind=raised_at(broken))
        except Exception as error:
            self.errors += 1
            self.end(connection, "handling its packet failed", kind=raised_at(error), error=error)

    def end(
        self,
        connection: PacketConnection,
        reason: str,
        *,
        kind: str,
        error: Exception | None = None,
    ) -> None:
        """Close a connection for an error of its peer or of ours, and log it."""
        self.refused += 1
        connection.close()
        sentence = f"Local connection is closed: {reason}"
        self._peer_log.warn(f"uid-{connection.uid}", sentence, kind=kind, error=error)

    # Writing.

    def pause_reading(self, connection: PacketConnection) -> None:
        """Stop reading from a connection until its queued packets are sent."""
        self._reactor.unwatch(connection.descriptor)
        self._full.register(connection.descriptor, select.EPOLLOUT)

    def _send_queued(self) -> None:
        for descriptor, _ in self._full.poll(0):
            connection = self._by_descriptor[descriptor]
            if connection.flush():
                self._full.unregister(descriptor)
                self._watch(connection)

    def _watch(self, connection: PacketConnection) -> None:
        self._reactor.watch(connection.descriptor, lambda: self._read(connection))

    def closed(self, connection: PacketConnection) -> None:
        """Unregister a connection that is about to close its descriptor."""
        del self.connections[connection]
        del self._by_descriptor[connection.descriptor]
        if connection.is_blocked:
            self._full.unregister(connection.descriptor)
        else:
            self._reactor.unwatch(connection.descriptor)


class PacketConnection:
    """One connection of a local client; see the module."""

    def __init__(self, listener: PacketListener, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, self.uid, _ = CREDENTIALS.unpack(credentials)
        self.socket = accepted
        self.descriptor = accepted.fileno()
        self.is_blocked = False
        """True if packets are queued until the peer has room."""
        self.received: Callable[[memoryview], object] = lambda packet: None
        self.on_close: Callable[[], object] = lambda: None
        self._listener = listener
        self._queue: deque[tuple[bytes, Sequence[int | OpenFile]]] = deque()

    @property
    def open(self) -> bool:
        """True if it has not been closed."""
        return self.descriptor >= 0

    def send(self, packet: bytes, descriptors: Sequence[int | OpenFile] = ()) -> None:
        """Send a packet, now or when there is room; the descriptors must stay open until then."""
        if self.open:
            self._queue.append((packet, descriptors))
            if not self.is_blocked and not self.flush() and self.open:
                self.is_blocked = True
                self._listener.pause_reading(self)

    def flush(self) -> bool:
        """Send queued packets; return True if the connection is open and the queue empty."""
        while self._queue:
            packet, files = self._queue[0]
            descriptors = [each if isinstance(each, int) else each.fileno() for each in files]
            try:
                socket.send_fds(self.socket, [packet], descriptors, SEND_FLAGS)
            except BlockingIOError:
                return False
            except ConnectionError:
                self.close()
                return False
            except OSError as error:
                # Too many descriptors in flight, or no memory for them.
                self.end(f"a response could not be sent: {error.strerror}", kind="unsent")
                return False
            self._queue.popleft()
        self.is_blocked = False
        return True

    def end(self, reason: str, kind: str) -> None:
        """Close it for an error of its peer."""
        if self.open:
            self._listener.end(self, reason, kind=kind)

    def close(self) -> None:
        """Close it at once."""
        if self.open:
            self._listener.closed(self)
            self.descriptor = -1
            self._queue.clear()
            self.socket.close()
            self.on_close()
