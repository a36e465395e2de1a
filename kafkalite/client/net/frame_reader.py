"""Answers, cut out of what arrives on a connection.

    size int32 · that many bytes: correlation id, header, body

Small answers are cut from one buffer that is filled by one system call, as many at a time as have
come, and copied.  A large one gets a buffer of its own, which grows as bytes arrive and never by a
claimed length.  Such buffers are used again once nobody looks at them any more.
"""

from __future__ import annotations

import socket
import struct

from kafkalite.errors import InvalidRequest

ROOM_SIZE = 64 << 10
ANSWER_SIZE_MIN = 4
ANSWER_SIZE_MAX = (1 << 29) - 1
"""Less than four letters of text are as a number: whoever speaks HTTP, or greets, is found out."""

BUFFERS_KEPT_MAX = 2
BUFFER_SIZE_KEPT_MAX = 64 << 20

SIZE = struct.Struct(">i")


class Inbox:
    """What has arrived on a connection and was not taken yet."""

    def __init__(self) -> None:
        self.size_max = ANSWER_SIZE_MAX
        self._room = bytearray(ROOM_SIZE)
        self._begin = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_size = 0
        self._large_end = 0
        self._kept: list[bytearray] = []

    @property
    def has_part(self) -> bool:
        """Whether bytes of an answer have come that is not whole."""
        return self._large is not None or self._begin < self._end

    def fill(self, connection: socket.socket) -> int:
        """Take in what has arrived, as much as there is room for; how much: 0 is the end of it.

        There is always room after `take` has answered None.
        """
        if self._large is None:
            with memoryview(self._room) as view:
                taken = connection.recv_into(view[self._end :])
            self._end += taken
            return taken
        if self._large_end == len(self._large):
            more = min(len(self._large), self._large_size - len(self._large))
            self._large += bytes(more)
        with memoryview(self._large) as view:
            taken = connection.recv_into(view[self._large_end : self._large_size])
        self._large_end += taken
        return taken

    def take(self) -> memoryview | None:
        """The next answer if it is whole, without its size; InvalidRequest when it cannot be one.

        It is the caller's for as long as they hold it.
        """
        if self._large is not None:
            return self._take_large() if self._large_end == self._large_size else None
        begin, held = self._begin, self._end - self._begin
        if held < SIZE.size:
            self._make_room(SIZE.size)
            return None
        (size,) = SIZE.unpack_from(self._room, begin)
        if not ANSWER_SIZE_MIN <= size <= self.size_max:
            raise InvalidRequest(f"an answer of {size:,} bytes{in_letters(size)}")
        whole = SIZE.size + size
        if held < whole:
            if whole <= ROOM_SIZE:
                self._make_room(whole)
            else:
                self._begin_large(size)
            return None
        answer = bytes(memoryview(self._room)[begin + SIZE.size : begin + whole])
        self._begin += whole
        if self._begin == self._end:
            self._begin = self._end = 0
        return memoryview(answer)

    def _make_room(self, size: int) -> None:
        if self._begin + size > ROOM_SIZE:
            held = self._room[self._begin : self._end]
            self._room[: len(held)] = held
            self._begin, self._end = 0, len(held)

    def _begin_large(self, size: int) -> None:
        arrived = self._room[self._begin + SIZE.size : self._end]
        self._begin = self._end = 0
        large = self._unused() or bytearray(ROOM_SIZE)
        large[: len(arrived)] = arrived
        self._large, self._large_size, self._large_end = large, size, len(arrived)

    def _take_large(self) -> memoryview:
        large, self._large = self._large, None
        assert large is not None
        kept = any(buffer is large for buffer in self._kept)
        if not kept and len(self._kept) < BUFFERS_KEPT_MAX and len(large) <= BUFFER_SIZE_KEPT_MAX:
            self._kept.append(large)
        return memoryview(large)[: self._large_size]

    def _unused(self) -> bytearray | None:
        """Return a kept buffer without a view, or None.

        A bytearray counts its views and refuses to change its size while there is one.
        """
        for buffer in self._kept:
            try:
                buffer.append(buffer.pop())
            except BufferError:
                continue
            return buffer
        return None


def in_letters(size: int) -> str:
    """A size that is four letters of text, as who speaks another protocol sends."""
    letters = SIZE.pack(size)
    return (
        f", or {letters.decode()!r}"
        if letters.decode("latin-1").isprintable() and letters.isascii()
        else ""
    )
