"""One connection of the socket fuzzer: its bytes, its way of sending, and the allowed responses.

A conversation is made completely from its seed before it begins: requests of every kind, some of
them torn, spliced, repeated, of wrong sizes, keys and versions, one after the other; sent at once,
in pieces or byte by byte, half-closed, cut off, or without ever reading a response.

The allowed responses follow from the bytes alone.  Each valid frame has one response, in order,
with its correlation id, which decodes with the schema and ends where the schema ends; the first
invalid one ends the connection.  ApiVersions of unknown versions have a response of version 0.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from kafkalite.broker.served_apis import SERVED
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import JOIN_GROUP, SYNC_GROUP
from tests.fuzz.requests import Read, Sparing, World, request
from tests.fuzz.tearing import torn

FRAME_SIZE_MAX = 100 << 20
RECEIVED = 1 << 16
MAY_WAIT = {FETCH, JOIN_GROUP, SYNC_GROUP}
"""Requests that may wait for an event or for a timeout, which may be long."""

LEFT_S, LOST_S = 1.0, 60.0
"""Time after which such a request is abandoned, and any other counts as not answered."""

VERSIONS = [
    (handler, version)
    for handler in SERVED.values()
    for version in range(handler.low, handler.high + 1)
]
SIZES = [0, -1, -(1 << 31), (1 << 31) - 1, FRAME_SIZE_MAX + 1, 1]
AT_ONCE, PIECES, DRIPPING, HALF_CLOSED, CUT_OFF, DEAF = range(6)
MANNERS = [AT_ONCE] * 5 + [PIECES] * 2 + [DRIPPING, HALF_CLOSED, CUT_OFF, DEAF]


class Fault(AssertionError):
    """The broker violated a rule."""


class Conversation:
    """The bytes to send, piece by piece, and the expected responses."""

    def __init__(self, seed: str, world: World, stream: bytes | None = None) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        if stream is None:
            stream = b"".join(frames(self.dice, world))
        self.manner = self.dice.choice(MANNERS)
        if self.manner == CUT_OFF:
            stream = stream[: self.dice.randrange(len(stream) + 1)]
        self.stream = stream
        self.reads = [Read(frame) for frame in cut(stream)]

    @property
    def may_be_closed(self) -> bool:
        """True if the broker may close before the last response: after invalid bytes, when the
        client has half-closed, and after an error of a Produce that has no response."""
        read = sum(4 + len(frame) for frame in cut(self.stream))
        return (
            self.manner == HALF_CLOSED
            or read < len(self.stream)
            or any(read.fields is None or read.awaits_nothing for read in self.reads)
        )

    def spared_by(self, sparing: Sparing) -> bool:
        return all(sparing.spares(read) for read in self.reads)

    @property
    def must_be_closed(self) -> bool:
        """True if the stream contains an invalid frame, or an invalid size."""
        rest = self.stream[sum(4 + len(frame) for frame in cut(self.stream)) :]
        size = struct.unpack_from(">i", rest)[0] if len(rest) >= 4 else 1
        return not 0 < size <= FRAME_SIZE_MAX or any(
            read.fields is None and not unknown_api_versions(read) for read in self.reads
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield the stream as it is written to the socket, one piece per turn."""
        left = self.stream
        size = {PIECES: 100, DRIPPING: 3}.get(self.manner, len(left))
        turns = 60 if self.manner in (PIECES, DRIPPING) else 1
        while left:
            piece = left[: self.dice.randint(1, size)] if turns > 1 else left
            left, turns = left[len(piece) :], turns - 1
            yield piece

    def expected(self) -> deque[Expected]:
        """Return the expected responses, in order."""
        answers: deque[Expected] = deque()
        for read in self.reads:
            if read.fields is not None:
                answers.append(Expected(read, read.header.version))
            elif unknown_api_versions(read):
                answers.append(Expected(read, 0))
            else:
                break
        return answers


class Expected(NamedTuple):
    """The response to a frame, in this version."""

    read: Read
    version: int


def unknown_api_versions(read: Read) -> bool:
    return (
        read.header is not None and read.header.api_key == API_VERSIONS.key and read.handler is None
    )


def frames(dice: random.Random, world: World) -> Iterator[bytes]:
    """Yield a few requests with their sizes, valid and damaged."""
    careless = dice.choice([0.05, 0.3, 1.0])
    for number in range(dice.choice([1, 2, 4, 8, 16])):
        frame = request(dice, *dice.choice(VERSIONS), number, world)
        size = len(frame)
        match dice.randrange(10) if dice.random() < careless else None:
            case 0 | 1 | 2 | 3:
                frame = torn(frame, request(dice, *dice.choice(VERSIONS), 0, world), dice)
                size = len(frame)
            case 4:
                size += dice.randint(-9, 9)
            case 5:
                size = dice.choice(SIZES)
            case 6:
                other = request(dice, *dice.choice(VERSIONS), number, world)
                frame = frame[: dice.randrange(size)] + other[dice.randrange(len(other)) :]
                size = len(frame)
            case 7:
                said = (dice.choice([*SERVED, dice.randrange(-1, 100)]), dice.randrange(-1, 20))
                frame = struct.pack(">hh", *said) + frame[4:]
            case 8:
                frame = dice.randbytes(dice.randrange(60))
                size = len(frame)
            case 9:
                yield (struct.pack(">i", size) + frame) * dice.randint(1, 4)
        yield struct.pack(">i", size) + frame


def cut(stream: bytes) -> Iterator[bytes]:
    """Yield the whole frames of a stream, up to an invalid size."""
    while len(stream) >= 4:
        (size,) = struct.unpack_from(">i", stream)
        if not 0 < size <= FRAME_SIZE_MAX or len(stream) < 4 + size:
            return
        yield stream[4 : 4 + size]
        stream = stream[4 + size :]


class Tally:
    """The counts of all conversations so far."""

    def __init__(self) -> None:
        self.frames = 0
        self.outcomes: Counter[str] = Counter()
        self.answered: Counter[tuple[int, int]] = Counter()
        self.kinds: dict[tuple[Any, ...], bytes] = {}
        """A first frame for each kind of outcome: its API, and the error codes of its response."""

    def unanswered(self) -> list[tuple[int, int]]:
        """Return the (key, version) pairs that have had no response."""
        pairs = {(handler.api.key, version) for handler, version in VERSIONS}
        return sorted(pairs - self.answered.keys())


class Talk:
    """A conversation on its socket; `turn` advances it, and returns False when it has ended."""

    def __init__(self, conversation: Conversation, address: tuple[str, int], tally: Tally) -> None:
        self.conversation = conversation
        self.tally = tally
        self.pieces = conversation.pieces()
        self.unsent = b""
        self.sending = True
        self.closing = conversation.must_be_closed
        self.came = b""
        self.expected = conversation.expected()
        self.heard_s = time.monotonic()
        # The broker does not read frames after one that ends the connection.
        tally.frames += min(len(self.expected) + 1, len(conversation.reads))
        self.socket = socket.create_connection(address, timeout=LOST_S)
        self.socket.setblocking(False)

    def turn(self) -> bool:
        try:
            self.send()
            ended = self.conversation.manner != DEAF and self.hear()
        except ConnectionError:
            ended = True
        if ended:
            if self.expected and not self.conversation.may_be_closed and not self.sending:
                raise Fault(f"closed instead of answering {self.first.name}")
            return self.end("closed")
        if self.sending:
            return True
        if self.conversation.manner in (CUT_OFF, DEAF):
            return self.end("left")
        while self.expected and self.expected[0].read.awaits_nothing:
            self.expected.popleft()
        silent_s = time.monotonic() - self.heard_s
        if not self.expected:
            if not self.closing:
                return self.end("answered")
            if silent_s > LOST_S:
                raise Fault("still open after bytes that do not read")
            return True
        if self.first in MAY_WAIT and silent_s > LEFT_S:
            return self.end("waiting")
        if silent_s > LOST_S:
            raise Fault(f"no answer to {self.first.name}")
        return True

    @property
    def first(self) -> Api:
        """The API of the next expected response."""
        return SERVED[self.expected[0].read.header.api_key].api

    def send(self) -> None:
        if not self.sending:
            return
        try:
            self.unsent = self.unsent or next(self.pieces, b"")
            if self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
                self.heard_s = time.monotonic()
                return
        except BlockingIOError:
            return
        self.sending = False
        if self.conversation.manner == HALF_CLOSED:
            self.socket.shutdown(socket.SHUT_WR)

    def hear(self) -> bool:
        """Receive and check responses; return True if the broker has closed."""
        try:
            came = self.socket.recv(RECEIVED)
        except BlockingIOError:
            return False
        self.heard_s = time.monotonic()
        self.came += came
        while len(self.came) >= 4:
            (size,) = struct.unpack_from(">i", self.came)
            if not 4 <= size <= FRAME_SIZE_MAX:
                raise Fault(f"an answer of {size} bytes")
            if len(self.came) < 4 + size:
                break
            self.judge(self.came[4 : 4 + size])
            self.came = self.came[4 + size :]
        return not came

    def judge(self, answer: bytes) -> None:
        while self.expected and self.expected[0].read.awaits_nothing:
            self.expected.popleft()
        if not self.expected:
            raise Fault(f"an answer to nothing: {answer[:100].hex()}")
        read, version = self.expected.popleft()
        api = SERVED[read.header.api_key].api
        if struct.unpack_from(">i", answer)[0] != read.header.correlation_id:
            raise Fault(f"{api.name} {version}: not its correlation id, {answer[:100].hex()}")
        position = 4 + api.response_header_flexible(version)
        try:
            fields = api.response.read(version, answer, position)
        except InvalidRequest as fault:
            raise Fault(f"{api.name} {version}: {fault} {answer[:1000].hex()}") from None
        if len(api.response.write(version, fields)) != len(answer) - position:
            raise Fault(f"{api.name} {version}: bytes behind its end, {answer[:1000].hex()}")
        self.tally.answered[api.key, version] += 1
        kind = (api.key, *sorted(codes(fields)))
        self.tally.kinds.setdefault(kind, self.conversation.stream)

    def end(self, how: str) -> bool:
        self.tally.outcomes[how] += 1
        self.close()
        return False

    def close(self) -> None:
        if self.conversation.manner == CUT_OFF and self.conversation.dice.random() < 0.5:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def codes(fields: Any) -> set[int]:
    """Return all error codes in a response."""
    found: set[int] = set()
    for name, value in fields.items():
        if name.endswith("error_code"):
            found.add(value)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                found |= codes(each)
    return found
