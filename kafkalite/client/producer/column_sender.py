"""Column sender: sends rows of send_arrow, encoded in the calling thread (column_batches.py)."""

from __future__ import annotations

import sys
import time
from functools import partial

from kafkalite._ext.gathering import Piece
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.producer.arrow_columns import ArrowColumns
from kafkalite.client.producer.batch_waiter import BatchWaiter
from kafkalite.client.producer.column_batches import (
    CHANGED_COLUMNS,
    CHUNK_SIZE_MAX,
    PartitionRows,
    column_content,
)
from kafkalite.client.producer.partition_queue import Batch, PartitionQueue
from kafkalite.client.producer.payload import BuilderContent
from kafkalite.client.producer.ring_transport import RingTransport
from kafkalite.client.producer.sender import Sender
from kafkalite.errors import InvalidRecord, NetworkException
from kafkalite.records.compression import Codec

GATHERED_SIZE_MAX = 128 << 10
"""Runs up to this size are appended to an open batch, which copies their bytes once more but saves
the worker a batch."""

KEPT_SIZE = 1 << 10
"""Memory of a batch besides its bytes: a Batch, its Content, and their list entries."""


class ColumnSender:
    """Sends runs: small ones in open batches, large ones in batches of their own."""

    def __init__(self, sender: Sender, waiter: BatchWaiter) -> None:
        self._sender = sender
        self._state = sender.state
        self._waiter = waiter
        accumulator = sender.state.accumulator
        self.record_size_max = min(accumulator.record_size_max, accumulator.memory_size)
        """Maximum size of a batch with one record."""
        self.chunk_size = min(max(CHUNK_SIZE_MAX, accumulator.batch_size), self.record_size_max)

    def send(
        self,
        run: PartitionRows,
        now_ms: int,
        transaction_number: int,
        block_s: float,
        pieces: list[Piece],
    ) -> None:
        """Send a run in as many batches as needed, and append its pieces to the list."""
        if self._is_small(run):
            self._send_gathered(run, now_ms, transaction_number, block_s, pieces)
            return
        locked, send = self._sender.locked, self._send_through_ring
        while run.first < run.end:
            batch = locked(send, run, now_ms, transaction_number)
            if batch is None:
                deadline = Deadline(block_s)
                while (batch := locked(send, run, now_ms, transaction_number)) is None:
                    self._waiter.await_memory(partial(self._may_send, run), deadline)
            pieces.append(Piece(batch, 0, batch.count))
            run = run._replace(first=run.first + batch.count)

    # Few rows: in the open batch, beside other records.

    def _is_small(self, run: PartitionRows) -> bool:
        columns = run.columns
        return columns.size_max * (run.end - run.first) <= GATHERED_SIZE_MAX * columns.row_count

    def _send_gathered(
        self,
        run: PartitionRows,
        now_ms: int,
        transaction_number: int,
        block_s: float,
        pieces: list[Piece],
    ) -> None:
        """Append rows to open batches, as send() does; only opening a batch takes the lock."""
        queue, first = run.queue, run.first
        while True:
            if self._state.transaction_number != transaction_number:
                self._state.check_transaction(transaction_number)
            batch: Batch | None = queue.open_batch
            content = None if batch is None else batch.content
            if batch is not None and isinstance(content, BuilderContent):
                place, count = content.builder.append_columns(
                    first, run.end, run.rows, *run.columns[1:5], now_ms, run.columns.size_max
                )
                if count:
                    pieces.append(Piece(batch, place, count))
                    first += count
                elif not place and self._would_fit(run, batch, content):
                    raise InvalidRecord(CHANGED_COLUMNS)
            if first == run.end:
                break
            self._waiter.open_batch(
                queue, batch, self._open_size(run), block_s, transaction_number
            )
        if not self._state.accumulator.linger_s:
            self._sender.locked(self._sender.send_ready_now, queue)

    def _would_fit(self, run: PartitionRows, batch: Batch, content: BuilderContent) -> bool:
        """Return whether every row, as it was measured, fits this empty batch."""
        return not content.builder.closed and batch.memory_size >= run.columns.largest[0]

    def _open_size(self, run: PartitionRows) -> int:
        """Return the maximum size of a batch that is opened for a run.

        The open batches of a topic's partitions take at most a quarter of buffer.memory, if
        batch.size allows that.
        """
        accumulator, transport = self._state.accumulator, self._ring_of(run.queue)
        size = min(self.chunk_size, accumulator.memory_size // (4 * len(run.queue.topic.queues)))
        if transport is not None:
            size = min(size, transport.batch_size_max)
        return max(size, accumulator.batch_size, run.columns.largest[0])

    # Many rows: in their own batches.

    def _ring_of(self, queue: PartitionQueue) -> RingTransport | None:
        node = self._sender.nodes.get(queue.leader)
        if node is None or self._state.codec is not Codec.NONE:
            return None
        return node.ring_for(queue)

    def _buffer_size(self, columns: ArrowColumns) -> int:
        """Return the maximum size of a batch of these columns; the largest row always fits."""
        return max(min(columns.size_max, self.chunk_size), columns.largest[0])

    def _reserved_size(self, columns: ArrowColumns) -> int:
        """Return the bytes of buffer.memory that a batch outside the ring may take."""
        memory_size = self._state.accumulator.memory_size
        return min(self._buffer_size(columns) + KEPT_SIZE, memory_size)

    def _may_send(self, run: PartitionRows) -> bool:
        """Return whether a batch would probably find space now."""
        queue, state = run.queue, self._state
        node = self._sender.nodes.get(queue.leader)
        if node is None or not node.ring_tried:
            return False
        if state.transaction is not None and not state.transaction.is_writable:
            return True  # sending raises the error
        if not state.may_send(queue):
            return False
        transport = self._ring_of(queue)
        if transport is not None:
            if transport.full or not queue.can_send_now:
                return False
            if run.columns.largest[0] <= min(transport.batch_size_max, self.chunk_size):
                return True
        return state.accumulator.memory_left >= self._reserved_size(run.columns)

    def _send_through_ring(
        self, run: PartitionRows, now_ms: int, transaction_number: int
    ) -> Batch | None:
        """Send as many rows as one batch takes; return None if there is no space now."""
        sender, state = self._sender, self._state
        queue, now_s = run.queue, time.monotonic()
        state.check_open(queue, transaction_number)
        if queue.open_batch is not None:
            sender.close_open_batch(queue, now_s)
        if queue.in_flight:
            sender.read_unleased_ring(queue, now_s)
        if not self._may_send(run):
            return None
        transport = self._ring_of(queue)
        if transport is None or (queue.in_flight and queue.transport is not transport):
            return self._send_buffered(run, now_ms)
        try:
            room = transport.reserve(
                min(run.columns.size_max, transport.batch_size_max, self.chunk_size)
            )
            if room is None:
                return None
            content = column_content(run, room, now_ms)
            if content is None:
                return self._send_buffered(run, now_ms)
            batch = state.append_batch(queue, content, 0, now_s)
            queue.assign_sequence(batch, state.identity)
            content.seal(room, *batch.identity, batch.sequence, state.attributes)
            sender.commit(batch, transport, content.size, now_s)
        except NetworkException as error:
            sender.abandon_ring(sender.nodes.get(queue.leader), error)
            return None
        return batch

    def _send_buffered(self, run: PartitionRows, now_ms: int) -> Batch | None:
        """Encode the rows of one batch into a buffer; return None if memory is used up.

        buffer.memory counts the size of the buffer: it is cut to what the rows take.
        """
        accumulator = self._state.accumulator
        reserved = self._reserved_size(run.columns)
        if not accumulator.reserve(reserved):
            return None
        try:
            buffer = bytearray(self._buffer_size(run.columns))
            content = column_content(run, buffer, now_ms)
            if content is None:
                raise InvalidRecord(CHANGED_COLUMNS)
            del buffer[content.size :]
        except BaseException:
            accumulator.memory_left += reserved
            raise
        kept = min(reserved, sys.getsizeof(buffer) + KEPT_SIZE)
        accumulator.memory_left += reserved - kept
        now_s = time.monotonic()
        batch = self._state.append_batch(run.queue, content.of_buffer(buffer), kept, now_s)
        self._sender.send_ready(run.queue, now_s)
        return batch
