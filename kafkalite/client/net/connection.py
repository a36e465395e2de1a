"""Connection: one TCP connection to one broker; requests and responses, in order.

    connection = Connection(("127.0.0.1", 9092), settings)
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.frame_reader import ANSWER_SIZE_MAX, Inbox
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.topology import Address, spoken
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

FIRST_ANSWER_SIZE_MAX = 1 << 20
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


class Identity(NamedTuple):
    """The broker expected at an address, as far as it is known."""

    cluster_id: str | None = None
    node_id: int = -1


NOBODY_IN_PARTICULAR = Identity()


class Awaited(NamedTuple):
    """A request without a response yet."""

    correlation_id: int
    tagged: bool


class Connection:
    """A connection; `open` connects it."""

    def __init__(
        self,
        place: Address,
        settings: ClientSettings,
        identity: Identity = NOBODY_IN_PARTICULAR,
    ) -> None:
        self.place = place
        self.same_host = False
        self.versions: dict[int, tuple[int, int]] = {}
        self.used_at_s = time.monotonic()
        self._settings = settings
        self._identity = identity
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._ending = threading.Lock()
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._inbox = Inbox()
        self._answers: deque[memoryview] = deque()
        self._awaited: deque[Awaited] = deque()
        self._correlation_id = 0
        self._closed_because = ""

    def __repr__(self) -> str:
        return f"<connection to {spoken(self.place)}>"

    # Open and close.

    def open(self, timeout_s: float | None = None) -> None:
        """Connect, and request the versions; does nothing if it is open."""
        patience = Deadline(self._settings[SOCKET_CONNECTION_SETUP_TIMEOUT_MS] / 1000)
        deadline = patience if timeout_s is None else patience.within(timeout_s)
        if self.opened:
            return
        host, port = self.place
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, ValueError) as fault:
            self._lose(f"{host!r} has no address: {words_of(fault)}")
        with self._entered(deadline):
            if self.opened:
                return
            self._check_open()
            try:
                self._connect(found, deadline)
                self._learn_versions(deadline)
            except OSError as fault:
                self._lose(words_of(fault))
            except BaseException as fault:
                self._end(words_of(fault))
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
        return len(self._awaited)

    def alive(self) -> bool:
        """Return whether it is usable, after checking whether the broker has closed it."""
        if self.closed or not self.opened:
            return not self.closed
        with LockGuard(self._turn, 0) as is_locked:
            if is_locked and not self._awaited and self._socket is not None:
                self._poll.modify(self._socket, select.POLLIN)
                if self._poll.poll(0):
                    self._end("the broker closed the connection")
        return not (is_locked and self.closed)

    def fileno(self) -> int:
        """Return the descriptor, for poll; readable when `take` may return a response."""
        if self._socket is None:
            self._lose(self._closed_because or "the connection is not open")
        return self._socket.fileno()

    def close(self) -> None:
        """Close it, and end the waits of other threads.  A second call does nothing."""
        if os.getpid() != self._pid:
            if self._socket is not None:
                self._socket.close()
            return
        with LockGuard(self._ending):
            self._closed_because = self._closed_because or "the connection was closed"
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the broker closed it first
                    self._socket.shutdown(socket.SHUT_RDWR)
        with LockGuard(self._turn):
            self._end(self._closed_because)

    # Versions.

    def version(self, api: Api, at_most: int | None = None) -> int:
        """Return the newest common version; UnsupportedVersion if there is none."""
        ours_low, ours_high = api.versions
        low, high = self.versions.get(api.key, (0, -1))
        newest = min(ours_high, high, ours_high if at_most is None else at_most)
        if newest < max(low, ours_low):
            raise UnsupportedVersion(
                f"{spoken(self.place)} does not serve {api.name} as we know it."
            )
        return newest

    # Requests.

    def send(
        self,
        api: Api,
        version: int,
        body: dict[str, Any] | Sequence[Piece],
        *,
        answered: bool = True,
        timeout_s: float | None = None,
    ) -> int:
        """Send a request and return its correlation id; `answered`: False with acks=0.

        The body is its fields, or its bytes in pieces, which are not copied.
        """
        with self._entered(self._deadline(timeout_s)) as deadline:
            return self._send(api, version, body, answered, deadline)

    def receive(self, timeout_s: float | None = None) -> tuple[int, memoryview]:
        """Wait for the next response; return its correlation id and body.

        After a timeout, the part that has arrived is kept for the next call.
        """
        with self._entered(self._deadline(timeout_s)) as deadline:
            return self._receive(deadline)

    def take(self) -> tuple[int, memoryview] | None:
        """Return the next response if it has arrived, without waiting."""
        with self._entered(self._deadline(None)):
            self._check_open()
            with self._broken_off():
                if not self._answers:
                    self._take_in()
                return self._next()

    def request(
        self,
        api: Api,
        body: dict[str, Any],
        timeout_s: float | None = None,
        at_most: int | None = None,
    ) -> Fields:
        """Send a request in the newest common version, and wait for the response."""
        with self._entered(self._deadline(timeout_s)) as deadline:
            self._check_open()
            assert not self._awaited, "answers are outstanding: take them first"
            version = self.version(api, at_most)
            return self._ask(api, version, body, deadline)

    def _ask(self, api: Api, version: int, body: dict[str, Any], deadline: Deadline) -> Fields:
        self._send(api, version, body, True, deadline)
        try:
            _, answer = self._receive(deadline)
        except RequestTimedOut as fault:
            self._end(words_of(fault))
            raise
        return self.believed(lambda: api.response.read(version, answer))

    def believed(self, read: Callable[[], T]) -> T:
        """Return the response that `read` decodes; an invalid one closes the connection."""
        try:
            return read()
        except InvalidRequest as fault:
            self._disbelieve(str(fault))

    def _send(
        self,
        api: Api,
        version: int,
        body: dict[str, Any] | Sequence[Piece],
        answered: bool,
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
        if answered:
            self._awaited.append(Awaited(number, api.response_header_flexible(version)))
        self.used_at_s = time.monotonic()
        with self._broken_off():
            try:
                self._write([FRAME_SIZE.pack(size) + header, *pieces], deadline)
            except RequestTimedOut as fault:
                self._end(words_of(fault))
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
                    self._take_in()
                continue
            while first < len(pieces) and sent >= byte_count(pieces[first]):
                sent -= byte_count(pieces[first])
                first += 1
            if sent:
                pieces[first] = memoryview(pieces[first]).cast("B")[sent:]

    def _receive(self, deadline: Deadline) -> tuple[int, memoryview]:
        self._check_open()
        assert self._awaited, "nothing was asked"
        while not self._answers:
            with self._broken_off():
                self._wait(select.POLLIN, deadline)
                self._take_in()
        with self._broken_off():
            answer = self._next()
        assert answer is not None
        return answer

    def _next(self) -> tuple[int, memoryview] | None:
        if not self._answers:
            return None
        answer = self._answers.popleft()
        if not self._awaited:
            raise InvalidRequest("an answer nobody asked for")
        awaited = self._awaited.popleft()
        (number,) = CORRELATION_ID.unpack_from(answer)
        if number != awaited.correlation_id:
            raise InvalidRequest(f"an answer to {number} where {awaited.correlation_id} was asked")
        self.used_at_s = time.monotonic()
        return number, answer[body_position(answer, awaited.tagged) :]

    def _take_in(self) -> None:
        """Read what has arrived, without waiting."""
        assert self._socket is not None
        try:
            taken = self._inbox.fill(self._socket)
        except BlockingIOError:
            return
        if not taken:
            when = "" if self.versions else " at once; does it want TLS or a login?"
            raise ConnectionResetError(f"the broker closed the connection{when}")
        while (answer := self._inbox.take()) is not None:
            self._answers.append(answer)

    # Errors.

    @contextlib.contextmanager
    def _entered(self, deadline: Deadline) -> Iterator[Deadline]:
        """Hold the connection for this thread; RuntimeError in a forked child."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self!r} was made by another process, before a fork")
        wait_s = min(deadline.left_s, threading.TIMEOUT_MAX)
        with LockGuard(self._turn, wait_s) as is_locked:
            if not is_locked:
                raise RequestTimedOut(f"{spoken(self.place)} is busy with other requests.")
            yield deadline

    @contextlib.contextmanager
    def _broken_off(self) -> Iterator[None]:
        """Close the connection on an error that leaves a frame partly read or written."""
        try:
            yield
        except RequestTimedOut:
            raise
        except OSError as fault:
            self._lose(words_of(fault))
        except InvalidRequest as fault:
            self._disbelieve(str(fault))
        except BaseException as fault:
            self._end(words_of(fault))
            raise

    def _check_open(self) -> None:
        if self._closed_because:
            self._lose(self._closed_because)

    def _lose(self, words: str) -> NoReturn:
        self._end(words)
        raise NetworkException(f"{spoken(self.place)}: {self._closed_because}") from None

    def _disbelieve(self, words: str) -> NoReturn:
        self._end(f"it does not answer as Kafka does: {words}")
        raise InvalidRequest(f"{spoken(self.place)}: {self._closed_because}") from None

    def _end(self, words: str) -> None:
        with LockGuard(self._ending):
            self._closed_because = self._closed_because or words
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            self._answers.clear()
            self._awaited.clear()

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
            raise RequestTimedOut(f"{spoken(self.place)} did not answer in time.")
        return ready[0][1]

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(
            self._settings[REQUEST_TIMEOUT_MS] / 1000 if timeout_s is None else timeout_s
        )

    # Connect.

    def _connect(self, found: Sequence[tuple[Any, ...]], deadline: Deadline) -> None:
        """Connect to the first of the host's addresses that accepts."""
        faults = []
        for family, kind, protocol, _, place in found:
            with LockGuard(self._ending):
                self._socket = socket.socket(family, kind, protocol)
            try:
                self._reach(self._socket, place, deadline)
                return
            except OSError as fault:
                faults.append(words_of(fault))
                with LockGuard(self._ending):
                    self._poll.unregister(self._socket)
                    self._socket.close()
                    self._socket = None
                self._check_open()
        self._lose(" and ".join(dict.fromkeys(faults)))

    def _reach(self, made: socket.socket, place: Any, deadline: Deadline) -> None:
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
            made.connect(place)
        self._wait(select.POLLOUT, deadline)
        self._settle(made)

    def _settle(self, made: socket.socket) -> None:
        """Check the result of a connect."""
        fault = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if fault:
            raise OSError(fault, os.strerror(fault))
        here, there = made.getsockname(), made.getpeername()
        if here[:2] == there[:2]:
            # TCP self-connect: no process listens, and this end got the very same port.
            raise ConnectionRefusedError("nobody listens there")
        self.same_host = here[0] == there[0]

    def _learn_versions(self, deadline: Deadline) -> None:
        """Send ApiVersions, in the newest version that the broker has."""
        self._inbox.size_max = FIRST_ANSWER_SIZE_MAX
        words = {
            "client_software_name": SOFTWARE,
            "client_software_version": __version__,
            "cluster_id": self._identity.cluster_id,
            "node_id": self._identity.node_id,
        }
        version = API_VERSIONS.versions[1]
        answer = self._first_answer(version, words, deadline)
        (code,) = ERROR_CODE.unpack_from(answer)
        if code == UnsupportedVersion.code:
            # Sent in version 0, whatever the request's; before Kafka 2.4 without the versions.
            served = self._served(0, answer)
            version = min(served.get(API_VERSIONS.key, (0, 0))[1], version - 1)
            answer = self._first_answer(version, words, deadline)
            (code,) = ERROR_CODE.unpack_from(answer)
        raise_for(code)
        self._inbox.size_max = ANSWER_SIZE_MAX
        self.versions = self._served(version, answer)
        if not self.versions:
            self._disbelieve("it serves nothing")

    def _served(self, version: int, answer: memoryview) -> dict[int, tuple[int, int]]:
        """Return the versions of each API, by its key."""
        told = self.believed(lambda: API_VERSIONS.response.read(version, answer))
        return {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}

    def _first_answer(self, version: int, words: dict[str, Any], deadline: Deadline) -> memoryview:
        self._send(API_VERSIONS, version, words, True, deadline)
        _, answer = self._receive(deadline)
        if len(answer) < ERROR_CODE.size:
            self._disbelieve("an empty answer")
        return answer


def body_position(answer: memoryview, tagged: bool) -> int:
    """Return the position of the body behind the header, whose tagged fields are skipped."""
    position = CORRELATION_ID.size
    if tagged:
        count, position = unsigned_varint(answer, position)
        for _ in range(count):
            _, position = unsigned_varint(answer, position)
            size, position = unsigned_varint(answer, position)
            position += size
            if position > len(answer):
                raise InvalidRequest("a header that ends after its answer")
    return position


def unsigned_varint(answer: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it and the position behind it."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(answer):
            break
        byte = answer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidRequest("a header that does not read")


def byte_count(piece: Piece) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def words_of(fault: BaseException) -> str:
    """Return an exception's message, as the end of a sentence."""
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror
    return str(fault) or type(fault).__name__
