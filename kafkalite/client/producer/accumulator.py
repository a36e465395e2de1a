"""Where records wait: topics, their lines, and the memory all of it may take.

`buffer.memory` is counted by the room that batches were given, not by what is in it, as Kafka
does; a record larger than `batch.size` has a batch to itself.  Whoever finds no room waits in
sender.py, up to `max.block.ms`.

No I/O; its owner has the lock.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kafkalite._ext.gathering import OpenTopic
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import BatchBuilder, record_size_max
from kafkalite.client.producer.batch import Batch
from kafkalite.client.producer.partition_queue import Line
from kafkalite.client.producer.payload import Rows
from kafkalite.errors import MessageTooLarge, RequestTimedOut
from kafkalite.ids import NO_ID

if TYPE_CHECKING:
    from kafkalite.client.producer.sender import Sender

WIDENED_MAX = 8
"""How many times batch.size a batch may grow to while those before it are under way; see
CHUNK_SIZE_MAX in arrow_sending.py for why not more."""


class BufferExhausted(RequestTimedOut):
    """There was no room in buffer.memory for as long as max.block.ms allows."""


class Topic(OpenTopic):
    """A topic that is written to."""

    __slots__ = ("sender", "topic_id")

    def __init__(self, name: str, sender: Sender) -> None:
        super().__init__(name)
        self.sender = sender
        self.topic_id = NO_ID

    def wait(self, batch: Batch, timeout_s: float | None) -> bool:
        """Wait until the batch is decided; False: it is not, and the time is up."""
        return self.sender.waiting.wait_for(batch, timeout_s)

    def listen(self, batch: Batch) -> None:
        """Somebody wants to hear of a batch that is under way without waiting for it."""
        self.sender.listen(batch)

    def look_at(self, batch: Batch) -> None:
        """Somebody asks for a batch's outcome."""
        self.sender.look_at(batch)

    def owe(self, batch: Batch) -> None:
        """Have the background thread run a callback that was added after the batch was decided."""
        self.sender.outcomes.owe(batch)

    def drop_lines(self, count: int) -> list[Line]:
        """Keep only `count` lines; return the others, which take no more records."""
        dropped: list[Line] = self.lines[count:]
        del self.lines[count:]
        for line in dropped:
            line.dropped = True
        if self.sticky in dropped:
            self.sticky = None
        return dropped

    def stick(self) -> Line:
        """Another partition for what has no key: any that has a leader, but not the last one."""
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
    """The room there is, and batches put into it."""

    def __init__(self, batch_size: int, linger_s: float, memory_size: int, record_size_max: int):
        self.linger_s = linger_s
        self.memory_size = memory_size
        self.memory_left = memory_size
        self.batch_size = min(batch_size, memory_size)
        self.record_size_max = record_size_max
        self.widest = min(WIDENED_MAX * self.batch_size, record_size_max, memory_size)
        """What a batch may become that has to wait."""

    def room_for(
        self,
        key: bytes | None,
        value: object,
        headers: object,
    ) -> int:
        """The room of a batch that has this record in it; MessageTooLarge when nothing would do."""
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
        """Take so much room, if there is."""
        if size > self.memory_left:
            return False
        self.memory_left -= size
        return True

    def widen(self, batch: Batch, size: int) -> bool:
        """Let a full batch that cannot go yet grow instead of beginning another.

        One large batch costs the broker what a small one does, so a backlog is worked off the
        sooner the longer it is.
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
        self.memory_left += batch.memory_size
        batch.memory_size = 0

    def begin(self, line: Line, size: int, now_s: float) -> Batch:
        """Open a batch on a line that has none, in room that was taken."""
        builder = BatchBuilder(size - HEADER_SIZE)
        batch = Batch(line, Rows(builder), now_s, now_s + self.linger_s, size)
        line.batches.append(batch)
        line.begin_batch(batch, builder.append)
        return batch
