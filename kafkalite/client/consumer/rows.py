"""Decoded messages that are being returned, and the position that follows them.

Messages are taken from a list iterator, which costs next to nothing per message.  So the number
taken is not counted but read from the iterator when it is needed.  Once the position has another
epoch (the topic was recreated, its log start offset moved) they no longer change it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.positions import Position


class DecodedRows:
    """Decoded messages of one partition, in order; `next_offset` follows the last one."""

    __slots__ = ("_messages", "_next_offset", "_epoch", "iterator", "position")

    def __init__(
        self, position: Position | None, messages: list[Message], next_offset: int
    ) -> None:
        self.position = position
        self._epoch = position.epoch if position is not None else -1
        self._messages = messages
        self._next_offset = next_offset
        self.iterator: Iterator[Message] = iter(messages)

    @property
    def left(self) -> int:
        return self.iterator.__length_hint__()  # type: ignore[attr-defined, no-any-return]

    def settle(self) -> None:
        """Set the position to the offset after the last message that was taken."""
        if self.position is None or self.position.epoch != self._epoch:
            return
        left = self.left
        taken = len(self._messages) - left
        if not left:
            self.position.offset = self._next_offset
        elif taken:
            self.position.offset = self._messages[taken - 1].offset + 1

    def drop(self) -> None:
        """Drop the messages that were not taken; an iteration over them ends."""
        self.settle()
        if self.position is not None and self.left:
            self.position.rewind()
        self.position = None
        self._messages.clear()


NO_ROWS = DecodedRows(None, [], -1)
