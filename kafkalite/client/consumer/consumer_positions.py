"""Consumer positions: reads and moves the positions of a consumer's partitions.

Each method holds the consumer's lock.  A position that is moved drops what was fetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.fetch_buffer import FetchBuffer
from kafkalite.client.net.arguments import checked_offset
from kafkalite.client.net.topology import TopicPartition


class ConsumerPositions:
    """The positions of one consumer."""

    def __init__(self, buffer: FetchBuffer) -> None:
        self._buffer = buffer

    def position(self, partition: tuple[str, int], timeout: float | None) -> int:
        """Return the offset of the next message of a partition."""
        with self._buffer.locked() as buffer:
            buffer.settle()
            (position,) = buffer.known(timeout, [partition], resolved=True)
            assert position.offset is not None
            return position.offset

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Set the position of a partition."""
        offset = checked_offset(offset, "an offset")
        with self._buffer.locked() as buffer:
            (position,) = buffer.known(None, [partition])
            buffer.discard(position)
            position.seek(offset)

    def restart(self, start: int, partitions: Sequence[tuple[str, int]]) -> None:
        """Set positions to the offsets that a timestamp, EARLIEST or LATEST stands for."""
        with self._buffer.locked() as buffer:
            for position in buffer.known(None, partitions):
                buffer.discard(position)
                position.restart(start)
            buffer.known(None, partitions, resolved=True)

    def pause(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Stop fetching these partitions, or all."""
        with self._buffer.locked() as buffer:
            for position in buffer.known(None, partitions):
                buffer.discard(position)
                position.rewind()
                position.paused = True

    def resume(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Fetch these partitions again, or all."""
        with self._buffer.locked() as buffer:
            for position in buffer.known(None, partitions):
                position.paused = False

    def rewind_to(self, messages: Sequence[Message]) -> None:
        """Rewind to the first of these messages, which were not returned to the application."""
        with self._buffer.locked() as buffer:
            for message in reversed(messages):
                position = buffer.assignment_reader.assignment[
                    TopicPartition(message.topic, message.partition)
                ]
                buffer.discard(position)
                position.seek(message.offset)
