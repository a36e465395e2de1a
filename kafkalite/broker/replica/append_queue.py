"""AppendQueue: appends clients' batches to their logs, per partition in the order of arrival.

Opening a batch may take longer than one tick allows (batch_opener.py).  The batch is then appended
in a later tick, and later batches for the same partition are queued behind it: producers have
several batches in flight, with consecutive sequences.  Other partitions are not delayed.

Queued batches use memory, and with acks=0 no client limits their number.  A batch that would exceed
`WAITING_SIZE_MAX` bytes queued in the node is rejected; a single batch may always be queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalite.broker.future import Future
from kafkalite.errors import KafkaError, NotLeaderOrFollower, RequestTimedOut

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import Topic
    from kafkalite.broker.replica.batch_opener import BatchOpener
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.log.log import LogAppendResult
    from kafkalite.storage.state.verification import VerificationGuard

WAITING_SIZE_MAX = 64 << 20
"""Maximum size in bytes of all queued batches, as clients sent them."""


class AppendNow(Protocol):
    """The append of a batch to the log in this tick."""

    def __call__(
        self,
        partition: Partition,
        batch: memoryview | bytes,
        guard: VerificationGuard | None,
        *,
        validated: bool = False,
    ) -> LogAppendResult:
        """Append a batch; `validated` is true if its records were decompressed and checked."""


class QueuedBatch(NamedTuple):
    """A batch behind one that is being opened."""

    batch: bytes
    guard: VerificationGuard | None
    future: Future[LogAppendResult]


class AppendQueue:
    """The batches that wait to be appended, by partition; see the module.

    `append_now` appends to the log; `leader` returns the partition that is led here now, or raises;
    `on_refused` is called with the topic id, the index, the batch and the error of one that waited.
    """

    def __init__(
        self,
        opener: BatchOpener,
        append_now: AppendNow,
        leader: Callable[[Topic, int], Partition],
        on_refused: Callable[[bytes, int, bytes, KafkaError], object] = lambda *refused: None,
    ) -> None:
        self._opener = opener
        self._append_now = append_now
        self._leader = leader
        self._on_refused = on_refused
        self._queues: dict[Partition, deque[QueuedBatch]] = {}
        self._waiting_size = 0

    def append(
        self,
        partition: Partition,
        batch: memoryview | bytes,
        guard: VerificationGuard | None = None,
    ) -> LogAppendResult | Future[LogAppendResult]:
        """Append a client's batch now or later; `guard` is that of its verification.

        Raises KafkaError if the batch is not valid.
        """
        if self._queues and (queue := self._queues.get(partition)) is not None:
            self._check_room(batch)
            future: Future[LogAppendResult] = Future()
            self._waiting_size += len(batch)
            queue.append(QueuedBatch(bytes(batch), guard, future))
            return future
        steps = partition.begin_validation(batch)
        if steps is None:
            return self._append_now(partition, batch, guard)
        self._check_room(batch)
        opened = self._opener.run(steps)
        if not isinstance(opened, Future):
            return self._append_now(partition, opened, guard, validated=True)
        self._queues[partition] = deque()
        self._waiting_size += len(batch)
        future = Future()
        opened.then(partial(self._opened, partition, len(batch), guard, future))
        return future

    def append_if_led(
        self, partition: Partition, batch: bytes, guard: VerificationGuard | None
    ) -> LogAppendResult | Future[LogAppendResult]:
        """Append a batch that has waited; raise as `append`, or if the partition has a new
        leader."""
        self._check_led(partition)
        return self.append(partition, batch, guard)

    def _check_room(self, batch: memoryview | bytes) -> None:
        """Raise RequestTimedOut if queueing this batch would exceed the limit."""
        if self._waiting_size and self._waiting_size + len(batch) > WAITING_SIZE_MAX:
            raise RequestTimedOut("Too many batches are queued for decompression; retry later.")

    def _opened(
        self,
        partition: Partition,
        size: int,
        guard: VerificationGuard | None,
        future: Future[LogAppendResult],
        opened: bytes | None,
        error: KafkaError | None,
    ) -> None:
        """Append an opened batch, then the batches queued behind it."""
        waiting = self._queues.pop(partition)
        self._waiting_size -= size
        try:
            if error is not None:
                raise error
            assert opened is not None
            self._check_led(partition)
            appended = self._append_now(partition, opened, guard, validated=True)
        except KafkaError as raised:
            if opened is not None:
                self._on_refused(partition.topic_id, partition.index, opened, raised)
            future.fail(raised)
        else:
            future.resolve(appended)
        while waiting:
            batch, guard, future = waiting.popleft()
            self._waiting_size -= len(batch)
            try:
                outcome = self.append_if_led(partition, batch, guard)
            except KafkaError as raised:
                self._on_refused(partition.topic_id, partition.index, batch, raised)
                future.fail(raised)
                continue
            future.follow(outcome)
            if (queue := self._queues.get(partition)) is not None:
                queue.extend(waiting)
                return

    def _check_led(self, partition: Partition) -> None:
        if self._leader(partition.topic_id, partition.index) is not partition:
            raise NotLeaderOrFollower()
