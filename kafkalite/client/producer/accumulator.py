"""Accumulator: the memory that a producer's batches take.

As in Kafka, `buffer.memory` counts the capacity given to batches, not their content; a record
larger than `batch.size` has a batch to itself.  Threads that find no memory wait up to
`max.block.ms`, in batch_waiter.py.

No I/O; called with the sender's lock.
"""

from __future__ import annotations

from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import BatchBuilder, record_size_max, use_block_cache
from kafkalite.client.producer.partition_queue import Batch, PartitionQueue
from kafkalite.client.producer.payload import BuilderContent
from kafkalite.errors import MessageTooLarge

WIDENED_MAX = 8
"""Limit, in multiples of batch.size, for a batch that grows while those before it are in flight;
see CHUNK_SIZE_MAX in column_batches.py for the reason."""


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

        use_block_cache(1)

    def close(self) -> None:
        """Release the memory that is kept for the next batches; call it once."""
        use_block_cache(-1)

    def batch_size_for(
        self,
        key: bytes | None,
        value: object,
        headers: object,
    ) -> int:
        """Return the capacity of a batch for this record; MessageTooLarge if over the limits."""
        size = HEADER_SIZE + record_size_max(key, value, headers)  # type: ignore[arg-type]
        if size > self.record_size_max:
            raise MessageTooLarge(
                f"The record takes {size} bytes; max.request.size allows {self.record_size_max}."
            )
        if size > self.memory_size:
            raise MessageTooLarge(
                f"The record takes {size} bytes; buffer.memory allows {self.memory_size}."
            )
        return max(size, self.batch_size)

    def reserve(self, size: int) -> bool:
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
        if not isinstance(content, BuilderContent) or wider - batch.memory_size < size:
            return False
        if not self.reserve(wider - batch.memory_size):
            return False
        content.widen(wider)
        batch.memory_size = wider
        return True

    def release(self, batch: Batch) -> None:
        """Release the memory of a batch."""
        self.memory_left += batch.memory_size
        batch.memory_size = 0

    def begin(self, queue: PartitionQueue, size: int, now_s: float) -> Batch:
        """Open a batch in memory that was reserved, on a partition queue without an open batch."""
        builder = BatchBuilder(size - HEADER_SIZE)
        batch = Batch(queue, BuilderContent(builder), now_s, now_s + self.linger_s, size)
        queue.batches.append(batch)
        queue.begin_batch(batch, builder.append, builder.append_table)
        return batch
