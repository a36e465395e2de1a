"""Broker connection: one TCP connection to one broker; requests and responses, in order.

    connection = BrokerConnection(("127.0.0.1", 9092), settings)
    connection.open(timeout_s)
    answer = connection.request(METADATA, {"topics": []}, timeout_s)

or with several in flight:

    number = connection.send(FETCH, version, body)
    number, answer = connection.receive(timeout_s)

The first request is ApiVersions, whose response names the versions of all other requests; Kafka 2.1
and newer are supported.  One thread uses a connection at a time, others wait for it.  `close` may
be called by any thread and ends the waits of others.

Network errors are a NetworkException, which is retriable; a timeout is a RequestTimedOut; a
response that is not valid Kafka an InvalidRequest.  The connection is closed after the first and
the last, and after a request() whose response did not come in time.  A forked child may only close
it, which leaves the parent's connection open.

Left out: TLS and SASL; a deadline for the resolver, which has none.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.frame_reader import RESPONSE_SIZE_MAX, FrameReader
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.topology import Address, address_text
from kafkalite.config.client import (
    CLIENT_ID,
    RECEIVE_BUFFER_BYTES,
    REQUEST_TIMEOUT_MS,
    SEND_BUFFER_BYTES,
    SOCKET_CONNECTION_SETUP_TIMEOUT_MS,
    SOFTWARE,
)
from kafkalite.errors import (
    InvalidRequest,
    NetworkException,
    RequestTimedOut,
    UnsupportedVersion,
    raise_for,
)
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.version import __version__

FIRST_RESPONSE_SIZE_MAX = 1 << 20
"""Far more than any ApiVersions response, and less than a TLS alert read as a size."""

PIECES_MAX = 512
"""Buffers per system call; the kernel takes 1,024."""

WAIT_S_MAX = 1e6

CORRELATION_ID = struct.Struct(">i")
ERROR_CODE = struct.Struct(">h")
FRAME_SIZE = struct.Struct(">i")
CORRELATION_IDS = 1 << 31

T = TypeVar("T")

Piece = bytes | bytearray | memoryview


class BrokerIdentity(NamedTuple):
    """The broker expected at an address, as far as it is known."""

    cluster_id: str | None = None
    node_id: int = -1


ANY_BROKER = BrokerIdentity()


class FinalizedFeatures(NamedTuple):
    """The features that are finalized in the cluster, as of a metadata epoch; -1: not known."""

    epoch: int
    levels: dict[str, int]


class AwaitedResponse(NamedTuple):
    """A request without a response yet."""

    correlation_id: int
    tagged: bool


class ErrorGuard:
    """Context manager that calls a function with the error that its body raises.

    The function may raise another error instead.  It costs less than a generator, for each part of
    a response that arrives.
    """

    __slots__ = ("_on_error",)

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error

    def __enter__(self) -> None:
        """Begin the body."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if error is not None:
            self._on_error(error)


class BrokerConnection:
    """A connection; `open` connects it."""

    def __init__(
        self,
        address: Address,
        settings: ClientSettings,
        identity: BrokerIdentity = ANY_BROKER,
    ) -> None:
        self.address = address
        self.same_host = False
        self.versions: dict[int, tuple[int, int]] = {}
        self.features = FinalizedFeatures(-1, {})
        self.used_at_s = time.monotonic()
        self._settings = settings
        self._identity = identity
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._frames = FrameReader()
        self._responses: deque[memoryview] = deque()
        self._in_flight: deque[AwaitedResponse] = deque()
        self._correlation_id = 0
        self._closed_because = ""

    def __repr__(self) -> str:
        return f"<connection to {address_text(self.address)}>"

    # Open and close.

    def open(self, timeout_s: float | None = None) -> None:
        """Connect, and request the versions; does nothing if it is open."""
        connect_deadline = Deadline(self._settings[SOCKET_CONNECTION_SETUP_TIMEOUT_MS] / 1000)
        deadline = connect_deadline if timeout_s is None else connect_deadline.within(timeout_s)
        if self.opened:
            return
        host, port = self.address
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, ValueError) as error:
            self._fail(f"{host!r} has no address: {reason_of(error)}")
        with self._locked(deadline):
            if self.opened:
                return
            self._check_open()
            try:
                self._connect(found, deadline)
                self._request_versions(deadline)
            except OSError as error:
                self._fail(reason_of(error))
            except BaseException as error:
                self._end(reason_of(error))
                raise

    @property
    def opened(self) -> bool:
        """True if it is usable, as far as known without a system call."""
        return bool(self.versions) and not self._closed_because

    @property
    def closed(self) -> bool:
        return bool(self._closed_because)

    @property
    def outstanding(self) -> int:
        """Number of responses expected."""
        return len(self._in_flight)

    def is_alive(self) -> bool:
        """Return whether it is usable, after checking whether the broker has closed it."""
        if self.closed or not self.opened:
            return not self.closed
        with LockGuard(self._lock, 0) as is_locked:
            if is_locked and not self._in_flight and self._socket is not None:
                self._poll.modify(self._socket, select.POLLIN)
                if self._poll.poll(0):
                    self._end("the broker closed the connection")
        return not (is_locked and self.closed)

    def fileno(self) -> int:
        """Return the descriptor, for poll; readable when `take` may return a response."""
        if self._socket is None:
            self._fail(self._closed_because or "the connection is not open")
        return self._socket.fileno()

    def close(self) -> None:
        """Close it, and end the waits of other threads.  A second call does nothing."""
        if os.getpid() != self._pid:
            if self._socket is not None:
                self._socket.close()
            return
        with LockGuard(self._close_lock):
            self._closed_because = self._closed_because or "the connection was closed"
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the broker closed it first
                    self._socket.shutdown(socket.SHUT_RDWR)
        with LockGuard(self._lock):
            self._end(self._closed_because)

    # Versions.

    def version(self, api: Api, at_most: int | None = None) -> int:
        """Return the newest common version; UnsupportedVersion if there is none."""
        ours_low, ours_high = api.versions
        low, high = self.versions.get(api.key, (0, -1))
        newest = min(ours_high, high, ours_high if at_most is None else at_most)
        if newest < max(low, ours_low):
            raise UnsupportedVersion(
                f"{address_text(self.address)} does not support {api.name} in any version that this"
                " client supports."
            )
        return newest

    # Requests.

    def send(
        self,
        api: Api,
        version: int,
        body: dict[str, Any] | Sequence[Piece],
        *,
        expects_response: bool = True,
        timeout_s: float | None = None,
    ) -> int:
        """Send a request and return its correlation id; `expects_response`: False with acks=0.

        The body is its fields, or its bytes in pieces, which are not copied.
        """
        with self._locked(self._deadline(timeout_s)) as deadline:
            return self._send(api, version, body, expects_response, deadline)

    def receive(self, timeout_s: float | None = None) -> tuple[int, memoryview]:
        """Wait for the next response; return its correlation id and body.

        After a timeout, the part that has arrived is kept for the next call.
        """
        with self._locked(self._deadline(timeout_s)) as deadline:
            return self._receive(deadline)

    def take(self) -> tuple[int, memoryview] | None:
        """Return the next response if it has arrived, without waiting."""
        with self._locked(self._deadline(None)):
            self._check_open()
            with self._closing_on_error():
                if not self._responses:
                    self._read_arrived()
                return self._next()

    def request(
        self,
        api: Api,
        body: dict[str, Any],
        timeout_s: float | None = None,
        at_most: int | None = None,
    ) -> Fields:
        """Send a request in the newest common version, and wait for the response."""
        with self._locked(self._deadline(timeout_s)) as deadline:
            self._check_open()
            assert not self._in_flight, "responses are outstanding: take them first"
            version = self.version(api, at_most)
            return self._exchange(api, version, body, deadline)

    def _exchange(self, api: Api, version: int, body: dict[str, Any], deadline: Deadline) -> Fields:
        self._send(api, version, body, True, deadline)
        try:
            _, response = self._receive(deadline)
        except RequestTimedOut as error:
            self._end(reason_of(error))
            raise
        return self.validated(lambda: api.response.read(version, response))

    def validated(self, read: Callable[[], T]) -> T:
        """Return the response that `read` decodes; an invalid one closes the connection."""
        try:
            return read()
        except InvalidRequest as error:
            self._fail_invalid(str(error))

    def _send(
        self,
        api: Api,
        version: int,
        body: dict[str, Any] | Sequence[Piece],
        expects_response: bool,
        deadline: Deadline,
    ) -> int:
        self._check_open()
        pieces = [api.request.write(version, body)] if isinstance(body, dict) else body
        number = self._correlation_id
        header = write_header(
            api.key,
            version,
            number,
            self._settings[CLIENT_ID],
            api.request_header_flexible(version),
        )
        size = len(header) + sum(map(byte_count, pieces))
        self._correlation_id = (number + 1) % CORRELATION_IDS
        if expects_response:
            self._in_flight.append(AwaitedResponse(number, api.response_header_flexible(version)))
        self.used_at_s = time.monotonic()
        with self._closing_on_error():
            try:
                self._write([FRAME_SIZE.pack(size) + header, *pieces], deadline)
            except RequestTimedOut as error:
                self._end(reason_of(error))
                raise
        return number

    def _write(self, pieces: list[Piece], deadline: Deadline) -> None:
        assert self._socket is not None
        first = 0
        while first < len(pieces):
            try:
                sent = self._socket.sendmsg(pieces[first : first + PIECES_MAX])
            except BlockingIOError:
                # Read too: a broker that blocks on its responses would never read the request.
                if self._wait(select.POLLOUT | select.POLLIN, deadline) & ~select.POLLOUT:
                    self._read_arrived()
                continue
            while first < len(pieces) and sent >= byte_count(pieces[first]):
                sent -= byte_count(pieces[first])
                first += 1
            if sent:
                pieces[first] = memoryview(pieces[first]).cast("B")[sent:]

    def _receive(self, deadline: Deadline) -> tuple[int, memoryview]:
        self._check_open()
        assert self._in_flight, "no request is in flight"
        while not self._responses:
            with self._closing_on_error():
                self._wait(select.POLLIN, deadline)
                self._read_arrived()
        with self._closing_on_error():
            response = self._next()
        assert response is not None
        return response

    def _next(self) -> tuple[int, memoryview] | None:
        if not self._responses:
            return None
        response = self._responses.popleft()
        if not self._in_flight:
            raise InvalidRequest("it sent a response without a request")
        expected = self._in_flight.popleft()
        (number,) = CORRELATION_ID.unpack_from(response)
        if number != expected.correlation_id:
            raise InvalidRequest(
                f"it sent the correlation id {number} instead of {expected.correlation_id}"
            )
        self.used_at_s = time.monotonic()
        return number, response[body_position(response, expected.tagged) :]

    def _read_arrived(self) -> None:
        """Read what has arrived, without waiting."""
        assert self._socket is not None
        try:
            taken = self._frames.fill(self._socket, is_last=len(self._in_flight) == 1)
        except BlockingIOError:
            return
        if not taken:
            when = (
                ""
                if self.versions
                else " at once; it may require TLS or SASL, which are not supported yet"
            )
            raise ConnectionResetError(f"the broker closed the connection{when}")
        while (response := self._frames.take()) is not None:
            self._responses.append(response)

    # Errors.

    def _locked(self, deadline: Deadline) -> LockGuard[Deadline]:
        """Hold the connection for this thread; RuntimeError in a forked child."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self!r} was created by another process, before a fork; create a new one"
            )

        def entered(is_locked: bool) -> Deadline:
            if not is_locked:
                raise RequestTimedOut(
                    f"{address_text(self.address)} did not respond in time to an earlier request on"
                    " this connection."
                )
            return deadline

        return LockGuard(self._lock, min(deadline.left_s, threading.TIMEOUT_MAX), entered)

    def _closing_on_error(self) -> ErrorGuard:
        """Close the connection on an error that leaves a frame partly read or written."""
        return ErrorGuard(self._close_after)

    def _close_after(self, error: BaseException) -> None:
        if isinstance(error, RequestTimedOut):
            return
        if isinstance(error, OSError):
            self._fail(reason_of(error))
        if isinstance(error, InvalidRequest):
            self._fail_invalid(str(error))
        self._end(reason_of(error))

    def _check_open(self) -> None:
        if self._closed_because:
            self._fail(self._closed_because)

    def _fail(self, words: str) -> NoReturn:
        self._end(words)
        raise NetworkException(f"{address_text(self.address)}: {self._closed_because}") from None

    def _fail_invalid(self, words: str) -> NoReturn:
        self._end(f"its response is not valid in the Kafka protocol: {words}")
        raise InvalidRequest(f"{address_text(self.address)}: {self._closed_because}") from None

    def _end(self, words: str) -> None:
        with LockGuard(self._close_lock):
            self._closed_because = self._closed_because or words
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            self._responses.clear()
            self._in_flight.clear()

    def _wait(self, events: int, deadline: Deadline) -> int:
        """Wait for events of the socket, and return them."""
        assert self._socket is not None
        ready: list[tuple[int, int]] = []
        if not self._closed_because:
            self._poll.modify(self._socket, events)
            ready = self._poll.poll(math.ceil(min(deadline.left_s, WAIT_S_MAX) * 1000))
        if self._closed_because:  # by another thread, which woke this one
            raise ConnectionAbortedError(self._closed_because)
        if not ready:
            raise RequestTimedOut(f"{address_text(self.address)} did not respond in time.")
        return ready[0][1]

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(
            self._settings[REQUEST_TIMEOUT_MS] / 1000 if timeout_s is None else timeout_s
        )

    # Connect.

    def _connect(self, found: Sequence[tuple[Any, ...]], deadline: Deadline) -> None:
        """Connect to the first of the host's addresses that accepts."""
        errors = []
        for family, kind, protocol, _, address in found:
            with LockGuard(self._close_lock):
                self._socket = socket.socket(family, kind, protocol)
            try:
                self._connect_to(self._socket, address, deadline)
                return
            except OSError as error:
                errors.append(reason_of(error))
                with LockGuard(self._close_lock):
                    self._poll.unregister(self._socket)
                    self._socket.close()
                    self._socket = None
                self._check_open()
        self._fail(" and ".join(dict.fromkeys(errors)))

    def _connect_to(self, made: socket.socket, address: Any, deadline: Deadline) -> None:
        made.setblocking(False)
        self._poll.register(made, select.POLLIN)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, key in (
            (socket.SO_SNDBUF, SEND_BUFFER_BYTES),
            (socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES),
        ):
            if self._settings[key] >= 0:
                made.setsockopt(socket.SOL_SOCKET, option, self._settings[key])
        with contextlib.suppress(BlockingIOError):
            made.connect(address)
        self._wait(select.POLLOUT, deadline)
        self._check_connected(made)

    def _check_connected(self, made: socket.socket) -> None:
        """Check the result of a connect."""
        error = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        here, there = made.getsockname(), made.getpeername()
        if here[:2] == there[:2]:
            # TCP self-connect: no process listens, and this end got the very same port.
            raise ConnectionRefusedError("no process listens on the port")
        self.same_host = here[0] == there[0]

    def _request_versions(self, deadline: Deadline) -> None:
        """Send ApiVersions, in the newest version that the broker has."""
        self._frames.size_max = FIRST_RESPONSE_SIZE_MAX
        words = {
            "client_software_name": SOFTWARE,
            "client_software_version": __version__,
            "cluster_id": self._identity.cluster_id,
            "node_id": self._identity.node_id,
        }
        version = API_VERSIONS.versions[1]
        response = self._first_response(version, words, deadline)
        (code,) = ERROR_CODE.unpack_from(response)
        if code == UnsupportedVersion.code:
            # Sent in version 0, whatever the request's; before Kafka 2.4 without the versions.
            served = self._versions_in(0, response)
            version = min(served.get(API_VERSIONS.key, (0, 0))[1], version - 1)
            response = self._first_response(version, words, deadline)
            (code,) = ERROR_CODE.unpack_from(response)
        raise_for(code)
        self._frames.size_max = RESPONSE_SIZE_MAX
        self.versions = self._versions_in(version, response)
        if not self.versions:
            self._fail_invalid("it supports no API")

    def _versions_in(self, version: int, response: memoryview) -> dict[int, tuple[int, int]]:
        """Return the versions of each API, by its key."""
        found = self.validated(lambda: API_VERSIONS.response.read(version, response))
        levels = {each.name: each.max_version_level for each in found.finalized_features}
        self.features = FinalizedFeatures(found.finalized_features_epoch, levels)
        return {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}

    def _first_response(
        self, version: int, words: dict[str, Any], deadline: Deadline
    ) -> memoryview:
        self._send(API_VERSIONS, version, words, True, deadline)
        _, response = self._receive(deadline)
        if len(response) < ERROR_CODE.size:
            self._fail_invalid("an empty response")
        return response


def body_position(response: memoryview, tagged: bool) -> int:
    """Return the position of the body behind the header, whose tagged fields are skipped."""
    position = CORRELATION_ID.size
    if tagged:
        count, position = unsigned_varint(response, position)
        for _ in range(count):
            _, position = unsigned_varint(response, position)
            size, position = unsigned_varint(response, position)
            position += size
            if position > len(response):
                raise InvalidRequest("a response header longer than the response")
    return position


def unsigned_varint(response: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it and the position behind it."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(response):
            break
        byte = response[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidRequest("an invalid varint in a response header")


def byte_count(piece: Piece) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def reason_of(error: BaseException) -> str:
    """Return an exception's message, as the end of a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
