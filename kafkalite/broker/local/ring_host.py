"""RingHost: the shared-memory rings through which producers of the same host write.

    eventfd readable ─▶ consume frames, at most one share of each ring a tick ─▶ append, as for TCP
    settle           ─▶ write responses into the rings, wake each sleeping producer once

A frame is a batch for one partition.  It is appended by the same function as Produce uses, with
the same authorization, validation and durability.  With acks=1 the response is written in the tick
of the append, with acks=-1 when the high watermark has passed the batch or the request has timed
out, and with acks=0 only if the batch was rejected.  Transactional batches need a ring that was
attached with the transactional id; they add their partition to the transaction, as Produce 12 does.

Each ring has a share of each tick.  A ring with more frames continues in the next tick, triggered
by an eventfd of this node: the producer also holds the ring's own descriptors, so a write to them
could block.  An idle producer costs nothing.  If a wake-up is lost, its frames are found by a poll
of all rings after POLL_MS, or after up to POLL_MS_MAX if no frames came for a while: a poll of idle
rings costs a sleeping process as much as a request.  Without rings there is no poll.

A ring that violates the layout is closed along with its connection, and its contents are dropped.
When the connection ends, frames committed before are still consumed, like the last bytes of a
socket; no responses are written for them.
"""

from __future__ import annotations

import logging
import os
import resource
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalite.broker.future import Future
from kafkalite.broker.local.direct_reads import DESCRIPTORS_RESERVED
from kafkalite.broker.replica.delayed_produce import DelayedProduce, UncommittedAppend
from kafkalite.broker.replica.replica_manager import ACKS_ALL, append_result
from kafkalite.broker.replica.transaction_verifier import RequestTransaction
from kafkalite.config.broker import NATIVE_RING_BYTES, NATIVE_RINGS_BYTES_MAX
from kafkalite.errors import Fatal, KafkaError, KafkaStorageError, ThrottlingQuotaExceeded
from kafkalite.protocol.results import PartitionAppendResult
from kafkalite.transport.ring import REASONS, WorkerRing, frame_size_max

if TYPE_CHECKING:
    from kafkalite.broker.client_context import ClientContext
    from kafkalite.broker.local.local_node import LocalNode
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.log.log import LogAppendResult
    from kafkalite.transport.reactor import Timer

log = logging.getLogger("kafkalite.broker")

FRAMES_PER_TICK = 64
SIZE_PER_TICK = 384 << 10
"""Number of bytes after which a ring's share of a tick ends; the last frame is consumed whole.
Responses are written at the end of a tick, and a producer has five batches of a partition in
flight: with a larger share, it waits for the response to the first batch while the worker processes
the fifth, and then the worker waits for the producer."""

POLL_MS, POLL_MS_MAX = 20, 160
"""Poll interval for frames without a wake-up: with recent frames, and the maximum when idle."""


class RingHost:
    """The rings of a node; see the module."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        self.rings: dict[HostedRing, None] = {}
        self.size = 0
        """Size of all rings in bytes."""
        self.counts: Counter[str] = Counter()
        self.errors: Counter[int] = Counter()
        """Number of error responses by error code."""
        self.closed_counts: Counter[str] = Counter()
        """Number of rings closed by this node, by reason: "violation" or "fault"."""
        self._scratch = bytearray()
        self._responding: dict[HostedRing, None] = {}
        self._scheduled: dict[HostedRing, None] = {}
        """Rings to be consumed in the next tick."""
        self._schedule_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll_timer: Timer | None = None
        self._poll_interval_ms = POLL_MS
        self._polled_frames = 0
        node.reactor.watch(self._schedule_event, self._consume_scheduled)

    def attach(
        self,
        client: ClientContext,
        transactional_id: str | None,
        on_error: Callable[[str], object],
    ) -> HostedRing:
        """Create a ring for a producer; `on_error(reason)` is called when this node closes it.

        The client may write with this transactional id, if it is given.

        Raises ThrottlingQuotaExceeded if native.rings.bytes.max is used up, and KafkaStorageError
        if the ring cannot be created or descriptors are short.
        """
        size = self.node.settings[NATIVE_RING_BYTES]
        size_max = self.node.settings[NATIVE_RINGS_BYTES_MAX]
        if self.size + size > size_max:
            self.counts["refused"] += 1
            raise ThrottlingQuotaExceeded(
                f"Other rings use {self.size} bytes of native.rings.bytes.max={size_max}; raise"
                " that key, or write over TCP."
            )
        if len(self._scratch) < frame_size_max(size):
            self._scratch = bytearray(frame_size_max(size))
        try:
            worker_ring = WorkerRing.make(size, self._scratch)
        except OSError as error:
            self.counts["refused"] += 1
            raise KafkaStorageError(f"A ring could not be created: {error.strerror}.") from None
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if max(worker_ring.descriptors) >= descriptors - DESCRIPTORS_RESERVED:
            worker_ring.close()
            self.counts["refused"] += 1
            raise KafkaStorageError("Too few file descriptors for a ring; raise ulimit -n.")
        transaction = None if transactional_id is None else RequestTransaction(transactional_id)
        ring = HostedRing(self, worker_ring, size, client, transaction, on_error)
        self.rings[ring] = None
        self.size += size
        self.counts["attached"] += 1
        if self._poll_timer is None:
            self._poll_timer = self.node.reactor.call_later(POLL_MS, self._poll)
        return ring

    def _poll(self) -> None:
        for ring in list(self.rings):
            ring.poll()
        if not self.rings:
            self._poll_timer = None
            return
        frames = self.counts["frames"]
        slower_ms = min(2 * self._poll_interval_ms, POLL_MS_MAX)
        self._poll_interval_ms = POLL_MS if frames != self._polled_frames else slower_ms
        self._polled_frames = frames
        self._poll_timer = self.node.reactor.call_later(self._poll_interval_ms, self._poll)

    def schedule(self, ring: HostedRing) -> None:
        """Consume this ring in the next tick, without a wake-up by the producer."""
        if not self._scheduled:
            os.eventfd_write(self._schedule_event, 1)
        self._scheduled[ring] = None

    def is_scheduled(self, ring: HostedRing) -> bool:
        """Return whether this ring is to be consumed in the next tick."""
        return ring in self._scheduled

    def _consume_scheduled(self) -> None:
        os.eventfd_read(self._schedule_event)
        scheduled, self._scheduled = self._scheduled, {}
        for ring in scheduled:
            ring.consume_share()

    def schedule_responses(self, ring: HostedRing) -> None:
        """Schedule the ring's responses for the end of the tick."""
        self._responding[ring] = None

    def settle(self) -> None:
        """Write the responses of the tick into the rings."""
        if self._responding:
            responding, self._responding = self._responding, {}
            for ring in responding:
                ring.write_responses()
            self.node.reactor.request_busy_poll()

    def remove(self, ring: HostedRing) -> None:
        """Remove a closed ring."""
        del self.rings[ring]
        self._responding.pop(ring, None)
        self._scheduled.pop(ring, None)
        self.size -= ring.size

    def close(self) -> None:
        """Close all rings without consuming them."""
        for ring in list(self.rings):
            ring.close()
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        self.node.reactor.unwatch(self._schedule_event)
        os.close(self._schedule_event)


class HostedRing:
    """The worker's end of one producer's ring."""

    def __init__(
        self,
        host: RingHost,
        ring: WorkerRing,
        size: int,
        client: ClientContext,
        transaction: RequestTransaction | None,
        on_error: Callable[[str], object],
    ) -> None:
        self.size = size
        self.frame_size_max = ring.reader.frame_size_max
        self._host = host
        self._node = host.node
        self._ring = ring
        self._reader = ring.reader
        self._client = client
        self._transaction = transaction
        self._on_error = on_error
        self._responses: list[tuple[int, PartitionAppendResult]] = []
        """(correlation id, result) of the responses of this tick."""
        self._refusals: list[tuple[int, int]] = []
        self._waiting: dict[int, Future[Any]] = {}
        self._count = 0
        self._waiting_size = 0
        """Size in bytes of the batches that are being opened on a thread, or verified."""
        self._is_wake_due = False
        """True if the producer is to be woken at the end of the tick."""
        self._is_idle = False
        self._drain_size: int | None = None
        """Number of bytes still to consume at most after the producer disconnected; else None."""
        host.node.reactor.watch(ring.fileno(), self._woken)
        host.schedule(self)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors to send to the producer."""
        return self._ring.descriptors

    def sent(self) -> None:
        """Note that the descriptors were sent."""
        self._ring.sent()

    # -- consuming ---------------------------------------------------------------------------

    def poll(self) -> None:
        """Schedule the ring if it has frames for which no wake-up came."""
        if self._is_idle and not self._reader.begin_sleep():
            self._host.counts["found_late"] += 1
            self._is_idle = False
            self._host.schedule(self)

    def _woken(self) -> None:
        # Cleared before the ring is read, so that no wake-up for a later frame is lost.
        self._ring.clear()
        if not self._host.is_scheduled(self):
            self.consume_share()

    def consume_share(self) -> None:
        """Consume one tick's share of the ring."""
        if self._ring.closed:
            return
        try:
            self._consume()
        except (AssertionError, Fatal):
            raise
        except Exception:
            log.exception(
                "Ring of %s is closed: its frames could not be consumed. principal=%s",
                self._client.principal, self._client.principal,
            )  # fmt: skip
            self._close_for_error("consuming its frames failed", "fault")

    def _consume(self) -> None:
        if self._waiting_size >= self.size:
            return  # continues when some of these batches are appended
        if self._is_idle:
            self._is_idle = False
            self._reader.end_sleep()
        take = self._reader.take
        size = 0
        for _ in range(FRAMES_PER_TICK):
            frame = take()
            if frame is None:
                break
            if isinstance(frame, int):
                self._close_for_error(REASONS[frame], "violation")
                return
            size += len(frame[-1])
            self._append(*frame)
            if size >= SIZE_PER_TICK:
                break
        self._host.counts["bytes"] += size
        self._is_wake_due = self._reader.is_space_awaited() or self._is_wake_due
        if self._is_wake_due:
            self._host.schedule_responses(self)
        if self._drain_size is not None:
            self._drain_size -= size
            if frame is None or self._drain_size <= 0:
                self.close()
                return
        elif frame is None:
            self._is_idle = self._reader.begin_sleep()
        if not self._is_idle:
            self._host.schedule(self)

    def _append(
        self,
        topic_id: bytes,
        index: int,
        correlation: int,
        acks: int,
        timeout_ms: int,
        batch: memoryview,
    ) -> None:
        self._host.counts["frames"] += 1
        try:
            partition, appended = self._node.replicas.append(
                self._client, acks, topic_id, index, batch, self._transaction
            )
        except KafkaError as error:
            self._refused(correlation, acks, topic_id, len(batch), error)
            return
        if isinstance(appended, Future):
            self._waiting_size += len(batch)
            appended.then(partial(self._settled, correlation, acks, timeout_ms, len(batch),
                                  partition))  # fmt: skip
            return
        self._appended(correlation, acks, timeout_ms, partition, appended)

    def _settled(
        self,
        correlation: int,
        acks: int,
        timeout_ms: int,
        size: int,
        partition: Partition,
        appended: LogAppendResult | None,
        error: KafkaError | None,
    ) -> None:
        """Respond to a batch that was appended or rejected in a later tick."""
        self._waiting_size -= size
        if not self._ring.closed:
            self._host.schedule(self)
        if appended is not None:
            self._appended(correlation, acks, timeout_ms, partition, appended)
        else:
            assert error is not None
            self._refused(correlation, acks, partition.topic_id, size, error)

    def _refused(
        self, correlation: int, acks: int, topic_id: bytes, size: int, error: KafkaError
    ) -> None:
        self._node.replicas.traffic_of(topic_id).batch_rejected(error, size)
        self._host.errors[error.code] += 1
        if self._ring.closed:
            return
        if acks:
            self._respond(correlation, PartitionAppendResult.failed(-1, error))
        else:
            self._refusals.append((correlation, error.code))
            self._host.schedule_responses(self)

    def _appended(
        self, correlation: int, acks: int, timeout_ms: int, partition: Partition,
        appended: LogAppendResult,
    ) -> None:  # fmt: skip
        if not acks or self._ring.closed:
            return
        result = append_result(partition, appended)
        if acks == ACKS_ALL and partition.high_watermark <= appended.last_offset:
            results = [result]
            uncommitted = UncommittedAppend(partition, appended.last_offset, results, 0)
            number = self._count = self._count + 1
            future = self._node.replicas.purgatory.watch(
                DelayedProduce([uncommitted]), max(0, timeout_ms)
            )
            self._waiting[number] = future
            future.then(lambda _, error: self._committed(number, correlation, results[0]))
        else:
            self._respond(correlation, result)

    def _committed(self, number: int, correlation: int, result: PartitionAppendResult) -> None:
        self._waiting.pop(number, None)
        if result.error_code:
            self._host.errors[result.error_code] += 1
        self._respond(correlation, result)

    # -- responses ---------------------------------------------------------------------------

    def _respond(self, correlation: int, result: PartitionAppendResult) -> None:
        self._responses.append((correlation, result))
        self._host.schedule_responses(self)

    def write_responses(self) -> None:
        """Write the responses of the tick into the ring, and wake the producer if it sleeps."""
        wakes, self._is_wake_due = self._is_wake_due, False
        for correlation, result in self._responses:
            wakes = (
                self._reader.respond(
                    correlation,
                    result.error_code,
                    result.base_offset,
                    result.log_append_time_ms,
                    result.log_start_offset,
                )
                or wakes
            )
        for refusal in self._refusals:
            wakes = self._reader.reject(*refusal) or wakes
        self._responses.clear()
        self._refusals.clear()
        if wakes:
            self._ring.wake()

    # -- closing -----------------------------------------------------------------------------

    def _close_for_error(self, reason: str, kind: str) -> None:
        self._host.closed_counts[kind] += 1
        self.close()
        self._on_error(reason)

    def end(self) -> None:
        """Consume what the disconnected producer had committed, at most the ring's size."""
        if not self._ring.closed and self._drain_size is None:
            self._abandon_waiting()
            self._drain_size = self.size
            self._host.schedule(self)

    def _abandon_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.abandon()

    def close(self) -> None:
        """Close the ring immediately."""
        if not self._ring.closed:
            self._abandon_waiting()
            self._node.reactor.unwatch(self._ring.fileno())
            self._host.remove(self)
            self._ring.close()
