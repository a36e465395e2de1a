"""Frame reader: cuts the responses from the bytes that arrive on a connection.

    size int32 · that many bytes: correlation id, header, body

Small responses are copied from one buffer, which one system call fills with as many as have
arrived.  A large one gets a buffer of its own, which grows as bytes arrive and never by the size it
claims.  Such buffers are reused once no view of them is left.

    begin of the next response ─▶ buffer of small ones     its first HEAD_SIZE bytes
                               ─▶ buffer to reuse          the others, at their place in it

Where large responses come one at a time, one system call thus receives as much of one as has
arrived.
"""

from __future__ import annotations

import socket
import struct

from kafkalite.errors import InvalidRequest

ROOM_SIZE = 64 << 10
HEAD_SIZE = 64
RESPONSE_SIZE_MIN = 4
RESPONSE_SIZE_MAX = (1 << 29) - 1
"""Less than any four ASCII letters read as a size, so that HTTP or a greeting is detected."""

BUFFERS_KEPT_MAX = 2
BUFFER_SIZE_KEPT_MAX = 64 << 20

SIZE = struct.Struct(">i")


class FrameReader:
    """The bytes of a connection that have arrived and were not taken yet."""

    def __init__(self) -> None:
        self.size_max = RESPONSE_SIZE_MAX
        self._room = bytearray(ROOM_SIZE)
        self._begin = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_size = 0
        self._large_end = 0
        self._kept: list[bytearray] = []

    @property
    def has_part(self) -> bool:
        """True if a part of a response has arrived."""
        return self._large is not None or self._begin < self._end

    def fill(self, connection: socket.socket, *, is_last: bool = False) -> int:
        """Read what has arrived, as far as there is space; return the bytes read, 0 at the end.

        There is always space after `take` has returned None.  `is_last`: at most one response
        follows; InvalidRequest if there is more.
        """
        if self._large is None and is_last and not self._end and (spare := self._unused()):
            return self._fill_spare(connection, spare)
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

    def _fill_spare(self, connection: socket.socket, spare: bytearray) -> int:
        """Read the begin of a response, with `spare` as its buffer if it is a large one."""
        with memoryview(self._room) as room, memoryview(spare) as large:
            taken = connection.recvmsg_into([room[:HEAD_SIZE], large[HEAD_SIZE - SIZE.size :]])[0]
            if taken <= HEAD_SIZE:
                self._end = taken
                return taken
            (size,) = SIZE.unpack_from(room)
            whole = SIZE.size + size
            if not RESPONSE_SIZE_MIN <= size <= self.size_max:
                self._end = HEAD_SIZE  # refused by `take`
            elif taken > whole:
                raise InvalidRequest("it sent a response without a request")
            elif whole <= ROOM_SIZE:
                room[HEAD_SIZE:taken] = large[HEAD_SIZE - SIZE.size : taken - SIZE.size]
                self._end = taken
            else:
                large[: HEAD_SIZE - SIZE.size] = room[SIZE.size : HEAD_SIZE]
                self._large, self._large_size, self._large_end = spare, size, taken - SIZE.size
        return taken

    def take(self) -> memoryview | None:
        """Return the next complete response without its size, or None; InvalidRequest if invalid.

        Its buffer is not reused while a view of it exists.
        """
        if self._large is not None:
            return self._take_large() if self._large_end == self._large_size else None
        begin, held = self._begin, self._end - self._begin
        if held < SIZE.size:
            self._make_room(SIZE.size)
            return None
        (size,) = SIZE.unpack_from(self._room, begin)
        if not RESPONSE_SIZE_MIN <= size <= self.size_max:
            raise InvalidRequest(f"a response of {size:,} bytes{ascii_suffix(size)}")
        whole = SIZE.size + size
        if held < whole:
            if whole <= ROOM_SIZE:
                self._make_room(whole)
            else:
                self._begin_large(size)
            return None
        response = bytes(memoryview(self._room)[begin + SIZE.size : begin + whole])
        self._begin += whole
        if self._begin == self._end:
            self._begin = self._end = 0
        return memoryview(response)

    def _make_room(self, size: int) -> None:
        if self._begin + size > ROOM_SIZE:
            held = self._room[self._begin : self._end]
            self._room[: len(held)] = held
            self._begin, self._end = 0, len(held)

    def _begin_large(self, size: int) -> None:
        begin, end = self._begin + SIZE.size, self._end
        self._begin = self._end = 0
        large = self._unused() or bytearray(ROOM_SIZE)
        # Through views, since a slice of a bytearray is copied before it is assigned.
        with memoryview(large) as target, memoryview(self._room) as source:
            target[: end - begin] = source[begin:end]
        self._large, self._large_size, self._large_end = large, size, end - begin

    def _take_large(self) -> memoryview:
        large, self._large = self._large, None
        assert large is not None
        kept = any(buffer is large for buffer in self._kept)
        if not kept and len(self._kept) < BUFFERS_KEPT_MAX and len(large) <= BUFFER_SIZE_KEPT_MAX:
            self._kept.append(large)
        return memoryview(large)[: self._large_size]

    def _unused(self) -> bytearray | None:
        """Return a kept buffer without a view, or None.

        A bytearray counts its views and cannot be resized while there is one.
        """
        for buffer in self._kept:
            try:
                buffer.append(buffer.pop())
            except BufferError:
                continue
            return buffer
        return None


def ascii_suffix(size: int) -> str:
    """Return a suffix with the size as four ASCII letters, if another protocol sent it."""
    letters = SIZE.pack(size)
    return (
        f", or {letters.decode()!r}"
        if letters.decode("latin-1").isprintable() and letters.isascii()
        else ""
    )
