"""Connection: one client connection; request frames in, responses out.

Every frame is passed to `serve(connection, frame)`, which returns

    a list               the whole response: bytes and FileSlices, without the size, which is added
    a DeferredResponse   from `connection.defer()`, sent once, later; its `abandoned`, if set, is
                         called if the connection closes before that
    None                 no response (Produce with acks=0)

Responses are sent in the order of their requests.  The frame is valid during the call only.  A
Disconnect closes the connection once the earlier responses were sent; an AssertionError or a Fatal
ends the process; any other exception is logged and closes this connection.

The transfer of bytes is compiled (ext/net/loop.pyx); this class holds the state of the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kafkalite._ext.loop import Channel, DeferredResponse
from kafkalite.records.file_slice import FileSlice

__all__ = ["Address", "DeferredResponse", "Chunks", "Connection", "Disconnect", "Serve"]

Address: TypeAlias = tuple[str, int]
Chunks: TypeAlias = list[bytes | FileSlice]


class Disconnect(Exception):
    """The peer violated the protocol; its connection is closed and the reason is logged."""


class Connection(Channel):
    """One accepted connection."""

    __slots__ = ("_frame_since", "_on_close", "_idle_since_ms", "id", "local", "peer")

    def __init__(self, connection_id: int, peer: Address, local: Address) -> None:
        self.id = connection_id
        self.peer = peer
        self.local = local
        self._on_close: list[Callable[[], object]] = []
        self._idle_since_ms: int | None = None
        self._frame_since: tuple[int, int] = (-1, 0)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Register `callback()` to be called once when the connection closes."""
        assert self.open, "the connection is closed already"
        self._on_close.append(callback)

    def closed(self) -> None:
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    def idle_ms(self, now_ms: int) -> int:
        """Return how long no byte has moved, as far as periodic calls of this method can tell.

        A connection whose peer waits for a response is not idle, unless the peer has ended its
        sending: it has probably closed the connection, which is noticed only when it is read.
        """
        is_awaited = self.has_deferred and not self.ended
        if self.has_traffic or is_awaited or self._idle_since_ms is None:
            self.has_traffic = False
            self._idle_since_ms = now_ms
        return now_ms - self._idle_since_ms

    def frame_age_ms(self, now_ms: int) -> int:
        """Return how long the current frame has been arriving; 0 if none has begun."""
        frame, since_ms = self._frame_since
        if not self.has_buffered_bytes or frame != self.frames:
            since_ms = now_ms
            self._frame_since = (self.frames, now_ms)
        return now_ms - since_ms

    def __repr__(self) -> str:
        return f"Connection({self.id}, {self.peer[0]}:{self.peer[1]})"


Serve: TypeAlias = Callable[[Connection, memoryview], Chunks | DeferredResponse | None]
