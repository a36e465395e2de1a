"""Accumulator: topics, their partition queues, and the memory that batches take.

As in Kafka, `buffer.memory` counts the capacity given to batches, not their content; a record
larger than `batch.size` has a batch to itself.  Threads that find no memory wait in completion.py,
up to `max.block.ms`.

No I/O; called with the sender's lock.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kafkalite._ext.gathering import OpenTopic
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import BatchBuilder, keep_memory, record_size_max
from kafkalite.client.producer.batch import Batch
from kafkalite.client.producer.partition_queue import Line
from kafkalite.client.producer.payload import Rows
from kafkalite.errors import MessageTooLarge, RequestTimedOut
from kafkalite.ids import NO_ID

if TYPE_CHECKING:
    from kafkalite.client.producer.sender import Sender

WIDENED_MAX = 8
"""Limit, in multiples of batch.size, for a batch that grows while those before it are in flight;
see CHUNK_SIZE_MAX in column_batches.py for the reason."""


class BufferExhausted(RequestTimedOut):
    """buffer.memory was used up for max.block.ms."""


class Topic(OpenTopic):
    """A topic that records are sent to."""

    __slots__ = ("sender", "topic_id")

    def __init__(self, name: str, sender: Sender) -> None:
        super().__init__(name)
        self.sender = sender
        self.topic_id = NO_ID

    def wait(self, batch: Batch, timeout_s: float | None) -> bool:
        """Wait for the outcome of the batch; return False if the timeout has passed."""
        return self.sender.waiting.wait_for(batch, timeout_s)

    def listen(self, batch: Batch) -> None:
        """Have a response read for a batch in flight that has callbacks."""
        self.sender.listen(batch)

    def look_at(self, batch: Batch) -> None:
        """Register that a batch's outcome was requested."""
        self.sender.look_at(batch)

    def owe(self, batch: Batch) -> None:
        """Have the background thread run a callback that was added after its batch completed."""
        self.sender.outcomes.owe(batch)

    def drop_lines(self, count: int) -> list[Line]:
        """Keep only `count` partition queues; return the others, which take no more records."""
        dropped: list[Line] = self.lines[count:]
        del self.lines[count:]
        for line in dropped:
            line.dropped = True
        if self.sticky in dropped:
            self.sticky = None
        return dropped

    def stick(self) -> Line:
        """Choose another partition that has a leader for records without a key."""
        lines = self.lines
        if len(lines) == 1:
            self.sticky = lines[0]
            return lines[0]  # type: ignore[no-any-return]
        led = [line for line in lines if line.leader >= 0] or lines
        if len(led) > 1:
            led = [line for line in led if line is not self.sticky]
        chosen: Line = random.choice(led)
        self.sticky = chosen
        return chosen


class Accumulator:
    """The memory of a producer, and the batches that use it."""

    def __init__(self, batch_size: int, linger_s: float, memory_size: int, record_size_max: int):
        self.linger_s = linger_s
        self.memory_size = memory_size
        self.memory_left = memory_size
        self.batch_size = min(batch_size, memory_size)
        self.record_size_max = record_size_max
        self.widest = min(WIDENED_MAX * self.batch_size, record_size_max, memory_size)
        """Maximum size in bytes of a batch that grows while it waits."""

        keep_memory(1)

    def close(self) -> None:
        """Release the memory that is kept for the next batches; call it once."""
        keep_memory(-1)

    def room_for(
        self,
        key: bytes | None,
        value: object,
        headers: object,
    ) -> int:
        """Return the capacity of a batch for this record; MessageTooLarge if over the limits."""
        size = HEADER_SIZE + record_size_max(key, value, headers)  # type: ignore[arg-type]
        if size > self.record_size_max:
            raise MessageTooLarge(
                f"The record takes {size} bytes, and max.request.size is {self.record_size_max}."
            )
        if size > self.memory_size:
            raise MessageTooLarge(
                f"The record takes {size} bytes, and buffer.memory is {self.memory_size}."
            )
        return max(size, self.batch_size)

    def take(self, size: int) -> bool:
        """Reserve memory; return False if there is not enough."""
        if size > self.memory_left:
            return False
        self.memory_left -= size
        return True

    def widen(self, batch: Batch, size: int) -> bool:
        """Let a full batch that cannot be sent yet grow, instead of opening another.

        A large batch costs the broker as much as a small one, so a long backlog is sent faster.
        """
        content = batch.content
        wider = min(2 * batch.memory_size, self.widest)
        if not isinstance(content, Rows) or wider - batch.memory_size < size:
            return False
        if not self.take(wider - batch.memory_size):
            return False
        content.widen(wider)
        batch.memory_size = wider
        return True

    def give_back(self, batch: Batch) -> None:
        """Release the memory of a batch."""
        self.memory_left += batch.memory_size
        batch.memory_size = 0

    def begin(self, line: Line, size: int, now_s: float) -> Batch:
        """Open a batch in memory that was reserved, on a partition queue without an open batch."""
        builder = BatchBuilder(size - HEADER_SIZE)
        batch = Batch(line, Rows(builder), now_s, now_s + self.linger_s, size)
        line.batches.append(batch)
        line.begin_batch(batch, builder.append, builder.append_table)
        return batch
