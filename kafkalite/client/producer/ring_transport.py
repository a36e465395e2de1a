"""Ring transport: batches to a node on the same host through shared memory.

    local socket   found, opened, and used to request a ring; its end is the ring's
                   (client/net/local_socket.py)
    ring           batches one way, responses the other (transport/ring.py)

A batch is written where the node reads it.  Every error of the ring is a NetworkException: the ring
is unusable then, and batches in flight are retried over TCP with the same sequences.

Not locked: sender.py holds the lock, and decides which thread sleeps on the ring.  One thread at a
time watches a ring, for as long as its lease; others do not read its responses meanwhile.
"""

from __future__ import annotations

import contextlib

from kafkalite._ext.ring import HEADER_SIZE
from kafkalite.client.net.local_socket import LocalSocket, close_all, open_local
from kafkalite.client.producer.partition_queue import Batch, BatchResponse
from kafkalite.errors import KafkaError, NetworkException
from kafkalite.protocol.schemas.local import ATTACH, ATTACHED
from kafkalite.transport.ring import ProducerRing, RingError

ATTACH_TIMEOUT_S = 2.0
CORRELATIONS = 1 << 32

WAKE_SIZE = 64 << 10
"""Bytes in a ring after which a sleeping node is woken if no thread waits for them.  A wake-up
costs as much as writing several batches, and the node handles batches together for less."""


def open_ring(
    cluster_id: str,
    node_id: int,
    port: int,
    client_id: str | None,
    transactional_id: str | None,
    timeout_ms: int,
) -> RingTransport | None:
    """Open a ring to the node with this id and port in Metadata; return None if there is none."""
    local = open_local(cluster_id, node_id, port, client_id)
    if local is None:
        return None
    try:
        local.send(ATTACH(request_id=0, transactional_id=transactional_id))
        attached = local.receive(ATTACH_TIMEOUT_S)
        if attached is not None:
            record, descriptors = attached
            if record.kind is ATTACHED and record.fields["error_code"] == 0:
                return RingTransport(node_id, local, ProducerRing(descriptors), timeout_ms)
            close_all(descriptors)
    except (KafkaError, RingError):
        pass
    local.close()
    return None


class RingTransport:
    """A ring, and the batches in flight in it."""

    def __init__(
        self, node_id: int, local: LocalSocket, ring: ProducerRing, timeout_ms: int
    ) -> None:
        self.node_id = node_id
        self._timeout_ms = timeout_ms
        self.local = local
        self.ring = ring
        self.batch_size_max = ring.writer.frame_size_max - HEADER_SIZE
        self.in_flight: dict[int, Batch] = {}
        self.full = False
        """True if a batch found no space since the last responses were handled."""
        self.leased_until_s = 0.0
        self.is_watched = False
        """True if the background thread must read responses, because a batch has callbacks."""
        self.has_responded = False
        """True if the node has responded since this was last cleared."""
        self.refused_unacked = False
        """True if the node has refused batches that have no response (acks=0)."""
        self.unwoken_size = 0
        """Bytes of batches that a sleeping node has not been woken for."""
        self._correlation = 0

    def __repr__(self) -> str:
        return f"<ring of node {self.node_id}: {len(self.in_flight)} in flight>"

    def reserve(self, size: int) -> memoryview | None:
        """Return space for a batch, or None and set `full`."""
        try:
            room = self.ring.writer.reserve(size)
        except RingError as error:
            raise self._failed(error) from None
        self.full = room is None
        if self.full:
            self.wake()
        return room

    def commit(self, batch: Batch, size: int, acks: int, now_s: float, wake_now: bool) -> None:
        """Send the batch that was written to the reserved space."""
        queue = batch.queue
        number = self._correlation
        self._correlation = (number + 1) % CORRELATIONS
        batch.sent_s = now_s
        if acks:
            self.in_flight[number] = batch
        try:
            asleep = self.ring.writer.commit(
                queue.topic.topic_id, queue.index, number, acks, self._timeout_ms, size
            )
        except RingError as error:
            raise self._failed(error) from None
        if asleep:
            self.unwoken_size += size
            if wake_now or self.unwoken_size >= WAKE_SIZE:
                self.wake()

    def wake(self) -> None:
        """Wake the node, if there are batches that it was not woken for."""
        if self.unwoken_size:
            self.unwoken_size = 0
            try:
                self.ring.wake_worker()
            except RingError as error:
                raise self._failed(error) from None

    def responses(self) -> list[BatchResponse]:
        """Return the responses that have arrived."""
        try:
            acks = self.ring.take_acks()
        except RingError as error:
            raise self._failed(error) from None
        found = []
        self.has_responded = self.has_responded or bool(acks)
        for number, error_code, base_offset, append_time_ms, _ in acks:
            batch = self.in_flight.pop(number, None)
            if batch is not None:
                found.append(BatchResponse(batch, error_code, base_offset, append_time_ms))
            elif error_code:
                self.refused_unacked = True
        if not self.in_flight:
            self.is_watched = False
        return found

    def is_overdue(self, now_s: float) -> bool:
        """Return whether the oldest batch in flight has exceeded the request timeout."""
        if not self.in_flight:
            return False
        first = next(iter(self.in_flight.values()))
        return now_s - first.sent_s > self._timeout_ms / 1000

    def spin(self, limit_ns: int) -> bool:
        """Poll for a response for up to `limit_ns`; return whether one came, or the ring ended."""
        try:
            return self.ring.writer.spin(limit_ns)
        except RingError:
            return True

    def arm_wakeup(self) -> bool:
        """Arm the wake-up before sleeping on the ring; return False if there are responses."""
        try:
            return self.ring.writer.begin_sleep()
        except RingError as error:
            raise self._failed(error) from None

    def disarm_wakeup(self) -> None:
        """Disarm the wake-up; NetworkException if the node has left the ring."""
        try:
            self.ring.writer.end_sleep()
            self.ring.clear()
        except RingError as error:
            raise self._failed(error) from None

    def _failed(self, error: RingError) -> NetworkException:
        return NetworkException(f"The ring to node {self.node_id} failed: {error}.")

    def close(self) -> None:
        self.ring.close()
        with contextlib.suppress(OSError):
            self.local.close()
