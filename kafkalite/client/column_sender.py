"""Columns on their way: written where they go by the thread that has them (arrow_sending.py)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kafkalite.client.arrow_sending import CHUNK_SIZE_MAX, Run, stretch_of
from kafkalite.client.batch import NOBODY, Batch
from kafkalite.client.line import Line
from kafkalite.client.native import RingLane
from kafkalite.client.patience import Deadline
from kafkalite.errors import MessageTooLarge, NetworkException
from kafkalite.records.compression import Codec

if TYPE_CHECKING:
    from kafkalite.client.sender import Sender


class ColumnSender:
    """Sends runs, stretch by stretch."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        accumulator = sender.accumulator
        self.chunk_size = min(
            max(CHUNK_SIZE_MAX, accumulator.batch_size),
            accumulator.record_size_max,
            accumulator.memory_size,
        )

    def send(self, run: Run, now_ms: int, block_s: float) -> list[Batch]:
        """Send rows of columns, in as many batches as they take; waits for room."""
        batches = []
        line = run.line
        while run.first < run.end:
            batch = self._sender.turn(self._send_stretch, run, now_ms)
            if batch is None:
                deadline = Deadline(block_s)
                while (batch := self._sender.turn(self._send_stretch, run, now_ms)) is None:
                    self._sender.waiting.await_room(lambda: self._may_send(line), deadline)
            batches.append(batch)
            run = run._replace(first=run.first + batch.count)
        return batches

    def _ring_of(self, line: Line) -> RingLane | None:
        node = self._sender.nodes.get(line.leader)
        if node is None or self._sender.codec is not Codec.NONE:
            return None
        return node.ring_for(line)

    def _may_send(self, line: Line) -> bool:
        """Whether a stretch would find room now, as far as one can tell without trying."""
        sender = self._sender
        node = sender.nodes.get(line.leader)
        if node is None or not node.ring_tried:
            return False
        if sender.numbered and sender.identity == NOBODY:
            return False
        lane = self._ring_of(line)
        if lane is None:
            return sender.accumulator.memory_left >= self.chunk_size
        return not lane.full and line.is_free

    def _send_stretch(self, run: Run, now_ms: int) -> Batch | None:
        """Send as many rows as one batch takes; None: there is no room now."""
        line, now_s, sender = run.line, time.monotonic(), self._sender
        if line.open_batch is not None:
            sender.close_open(line, now_s)
        if line.under_way:
            sender.take_unwatched(line, now_s)
        lane = self._ring_of(line)
        if not self._may_send(line):
            return None
        if lane is None or (line.under_way and line.lane is not lane):
            return self._keep_stretch(run, now_ms)
        try:
            room = lane.reserve(min(lane.batch_size_max, self.chunk_size))
            if room is None:
                return None
            stretch = stretch_of(run, room, now_ms)
            if stretch is None:
                return self._keep_stretch(run, now_ms)
            batch = sender.enter(line, stretch, 0, now_s)
            line.number(batch, sender.identity)
            stretch.seal(room, *batch.identity, batch.sequence)
            sender.go(batch, lane, stretch.size, now_s)
        except NetworkException as fault:
            sender.lose_ring(sender.nodes.get(line.leader), fault)
            return None
        return batch

    def _keep_stretch(self, run: Run, now_ms: int) -> Batch | None:
        """Put the rows of one batch into memory of their own; None: there is none."""
        accumulator = self._sender.accumulator
        size = self.chunk_size
        if not accumulator.take(size):
            return None
        buffer = bytearray(size)
        stretch = stretch_of(run, buffer, now_ms)
        if stretch is None and size < accumulator.record_size_max:
            accumulator.memory_left -= accumulator.record_size_max - size
            size = accumulator.record_size_max
            buffer = bytearray(size)
            stretch = stretch_of(run, buffer, now_ms)
        if stretch is None:
            accumulator.memory_left += size
            raise MessageTooLarge(f"Row {run.first} is larger than max.request.size allows.")
        content = stretch.of_buffer(buffer)
        accumulator.memory_left += size - content.size
        now_s = time.monotonic()
        batch = self._sender.enter(run.line, content, content.size, now_s)
        self._sender.pump(run.line, now_s)
        return batch
