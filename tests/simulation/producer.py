"""A Sender without a thread, a socket or a ring: its transport is a list, its broker a model.

The model validates batches with the broker's own ProducerStateManager.  A test can make it lose
responses, reject batches, or lose a transport with the batches in it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from pathlib import Path
from typing import Any

from kafkalite._ext.ring import HEADER_SIZE
from kafkalite.client.net.producer_identity import ProducerIdentity
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.net.topology import PartitionMetadata, TopicMetadata
from kafkalite.client.producer.accumulator import Accumulator
from kafkalite.client.producer.background_wakeup import BackgroundWakeup
from kafkalite.client.producer.batch_waiter import BatchWaiter
from kafkalite.client.producer.column_sender import ColumnSender
from kafkalite.client.producer.partition_queue import (
    Batch,
    BatchResponse,
    PartitionQueue,
    ProducerTopic,
)
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.ring_transport import RingTransport
from kafkalite.client.producer.sender import Sender
from kafkalite.client.producer.state import ProducerState
from kafkalite.errors import KafkaError
from kafkalite.records.batch import RecordBatch
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.state.producer_state import ProducerStateManager

NODE = 1


class ModelBroker:
    """One partition of a broker: its log and its producer state."""

    def __init__(self, directory: Path) -> None:
        self.log: list[bytes] = []
        self.producers = ProducerStateManager(directory, Disk())

    def append(self, written: bytes) -> tuple[int, int]:
        """Return (error code, base offset) of a batch."""
        batch = RecordBatch(written)
        header = batch.header
        if header.producer_id >= 0:
            try:
                known = self.producers.check_batch(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_offset_delta,
                    transactional=0,
                    guard=None,
                )
            except KafkaError as fault:
                return fault.code, -1
            if known is not None:
                return 0, known.base_offset
        base_offset = len(self.log)
        self.log += [record.value or b"" for record in batch]
        if header.producer_id >= 0:
            self.producers.replay(
                base_offset, header.last_offset_delta, 0, header.max_timestamp,
                header.producer_id, header.producer_epoch, header.base_sequence,
            )  # fmt: skip
        return 0, base_offset


class NoRing:
    """A stand-in for the ring of a RingTransport."""

    class writer:
        frame_size_max = (1 << 20) + HEADER_SIZE

        @staticmethod
        def woke() -> None: ...

    @staticmethod
    def fileno() -> int:
        return -1

    @staticmethod
    def close() -> None: ...


class ListLane(RingTransport):
    """A transport whose ring is a list of frames."""

    def __init__(self) -> None:
        super().__init__(NODE, NoRing(), NoRing(), 30_000)  # type: ignore[arg-type]
        self.frames: deque[tuple[Batch, bytes]] = deque()
        self.came: list[BatchResponse] = []
        self._room = bytearray(1 << 20)
        self.frames_max = 1_000

    def reserve(self, size: int) -> memoryview | None:
        self.full = len(self.frames) >= self.frames_max
        return None if self.full else memoryview(self._room)[:size]

    def commit(self, batch: Batch, size: int, acks: int, now_s: float, wake_now: bool) -> None:
        batch.sent_s = now_s
        self.frames.append((batch, bytes(self._room[:size])))

    def responses(self) -> list[BatchResponse]:
        came, self.came = self.came, []
        return came

    def arm_wakeup(self) -> bool:
        return True

    def disarm_wakeup(self) -> None: ...

    def close(self) -> None: ...


class Harness:
    """A Sender with one topic of one partition, and methods that run its steps."""

    def __init__(self, directory: Path, **keywords: Any) -> None:
        words = {"retry.backoff.ms": 0, "retry.backoff.max.ms": 0, "linger.ms": 0} | keywords
        settings = producer_settings(None, words)
        self.broker = ModelBroker(directory)
        self.accumulator = Accumulator(int(keywords.get("batch.size", 200)), 0.0, 1 << 20, 1 << 20)
        self.topics: dict[str, Any] = {}
        self.state = ProducerState(settings, self.accumulator, self.topics, BackgroundWakeup())
        self.sender = Sender(self.state)
        topic = self.topics["t"] = ProducerTopic("t", BatchWaiter(self.sender))
        self.columns = ColumnSender(self.sender, BatchWaiter(self.sender))
        self.sender.update_metadata(
            topic, TopicMetadata("t", b"i" * 16, {0: PartitionMetadata(NODE, 0)})
        )
        self.queue: PartitionQueue = topic.queues[0]
        self.node: ProducerNode = self.sender.nodes[NODE]
        self.node.ring_tried = True
        self.node.ring = self.transport = ListLane()
        self.ids = itertools.count(1)
        self.batches: list[Batch] = []
        self.sent: list[tuple[bytes, Batch]] = []
        self.identify()

    def close(self) -> None:
        self.sender.close()

    def identify(self) -> None:
        """Assign a producer id, as the background thread does when there is none."""
        if self.state.needs_producer_id:
            self.state.identity = ProducerIdentity(next(self.ids), 0)

    def gather(self, value: bytes) -> None:
        """Append a record to the open batch, or to a new one when it does not fit."""
        while True:
            batch = self.queue.open_batch
            if batch is not None and batch.content.builder.append(None, value, None, 1) >= 0:
                self.sent.append((value, batch))
                return
            assert self.sender.locked(self.sender.open_batch_in, self.queue, batch, 200, 0)
            if self.queue.open_batch not in self.batches and self.queue.open_batch is not None:
                self.batches.append(self.queue.open_batch)

    def begin(self) -> None:
        """Write a first batch, as each partition queue does before several are in flight."""
        self.gather(b"the first")
        self.finish()
        self.sent.clear()
        self.batches.clear()

    @property
    def log(self) -> list[bytes]:
        """The values written since `begin`."""
        return [value for value in self.broker.log if value != b"the first"]

    def push(self) -> None:
        self.identify()
        self.sender.locked(self.sender.send_ready_now, self.queue)

    def serve(self, code: int = 0, *, written: bool = True, has_responded: bool = True) -> bool:
        """Process a frame as the broker; a `code` is its response, `written` or not."""
        if not self.transport.frames:
            return False
        batch, frame = self.transport.frames.popleft()
        told, base_offset = self.broker.append(frame) if written else (code, -1)
        if told == 0 and code:
            told, base_offset = code, -1
        if has_responded:
            self.transport.came.append(BatchResponse(batch, told, base_offset, -1))
        return True

    def hear(self) -> None:
        """Process the responses that have arrived."""
        self.identify()
        self.sender.locked(self.sender.read_ring, self.node, time.monotonic())

    def lose(self) -> None:
        """Lose the transport and the batches in it; a new one replaces it at once."""
        lost = self.transport
        self.transport = ListLane()
        self.sender.locked(self._lost, lost)
        self.push()

    def _lost(self, lost: ListLane) -> None:
        self.state.handle_responses(lost.responses(), 0.0)
        self.node.ring = self.transport
        self.state.retry_in_flight(lost)

    def finish(self) -> None:
        """Run without faults until all batches are delivered."""
        for _ in range(1_000):
            self.push()
            self.serve()
            self.hear()
            if not self.queue.batches:
                return
        raise AssertionError(f"the sender does not finish: {self.queue}, {self.queue.batches}")
