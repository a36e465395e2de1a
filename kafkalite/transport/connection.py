"""Connection: one client; frames in, answers out.

Whoever serves a connection is called as `serve(connection, frame)` for every frame and returns

    a list      the whole answer: bytes and FileSlices, without the size, which is put before it
    an Answer   taken from `connection.expect()`, to be sent once, later; its `abandoned`, if
                set, is called should the connection be gone before that
    None        no answer (Produce with acks=0)

Answers leave in the order of their requests.  The frame is good during the call only.  Raising
Disconnect closes the connection once the answers before it were sent; an AssertionError or a Fatal
ends the process; any other exception is logged and closes this connection.

The moving of the bytes is compiled (ext/loop.pyx); here is what is known about the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kafkalite._ext.loop import Answer, Channel
from kafkalite.records.file_slice import FileSlice

__all__ = ["Address", "Answer", "Chunks", "Connection", "Disconnect", "Serve"]

Address: TypeAlias = tuple[str, int]
Chunks: TypeAlias = list[bytes | FileSlice]


class Disconnect(Exception):
    """The peer broke the protocol; its connection is closed, and the reason goes to the log."""


class Connection(Channel):
    """One accepted connection."""

    __slots__ = ("_begun_since", "_on_close", "_still_since_ms", "id", "local", "peer")

    def __init__(self, connection_id: int, peer: Address, local: Address) -> None:
        self.id = connection_id
        self.peer = peer
        self.local = local
        self._on_close: list[Callable[[], object]] = []
        self._still_since_ms: int | None = None
        self._begun_since: tuple[int, int] = (-1, 0)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called once when the connection is gone."""
        assert self.open, "the connection is closed already"
        self._on_close.append(callback)

    def closed(self) -> None:
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    def still_ms(self, now_ms: int) -> int:
        """For how long no byte has moved, as far as who asks now and then can know.

        While the peer waits for an answer it is not its turn, and it is not still.
        """
        if self.moved or self.awaited or self._still_since_ms is None:
            self.moved = False
            self._still_since_ms = now_ms
        return now_ms - self._still_since_ms

    def begun_ms(self, now_ms: int) -> int:
        """For how long one and the same frame has been coming; 0 when none has begun."""
        frame, since_ms = self._begun_since
        if not self.begun or frame != self.frames:
            since_ms = now_ms
            self._begun_since = (self.frames, now_ms)
        return now_ms - since_ms

    def __repr__(self) -> str:
        return f"Connection({self.id}, {self.peer[0]}:{self.peer[1]})"


Serve: TypeAlias = Callable[[Connection, memoryview], Chunks | Answer | None]
