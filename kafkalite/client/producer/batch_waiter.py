"""Waiting for the outcomes of a producer's batches, by doing the work that they need.

A waiting thread spins on the rings briefly, sleeps on them, handles responses and sends the batches
that those make room for; no other thread has to run.  Meanwhile it holds a lease on the rings: the
background thread is not woken for them, and a thread that is interrupted blocks the others only
until its lease expires.  If there is no ring to lease (TCP, or another thread has the lease) it
sleeps until another thread has made progress.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

from kafkalite.client.net.deadline import Deadline
from kafkalite.client.producer.partition_queue import Batch, PartitionQueue
from kafkalite.client.producer.payload import BatchContent
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.sender import Sender
from kafkalite.errors import BufferExhausted, NetworkException

SPIN_NS = 60_000
"""Time to poll a ring before sleeping on it; the same as a worker's.  A wake-up takes longer, and
costs the worker more than a response."""

SLEEP_S_MAX = 0.020
"""The longest sleep on a ring, in case a wake-up is lost."""

LEASE_S = 0.100
WAIT_S_MAX = 1.0


class BatchWaiter:
    """The work of threads that wait for a sender; the driver of its batches."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._state = sender.state

    def wait_for(self, batch: Batch, timeout_s: float | None) -> bool:
        """Wait for the batch's outcome, sending and handling responses meanwhile."""
        nodes = self._sender.locked(self._send_now_and_lease, batch)
        return self.work_until(lambda: batch.done, timeout_s, nodes)

    def send_now(self, batch: Batch) -> None:
        self._sender.locked(self._sender.send_now, batch)
        self._state.callbacks.run_callbacks_soon()

    def listen(self, batch: Batch) -> None:
        self._sender.listen(batch)

    def request_outcome(self, batch: Batch) -> None:
        self._sender.request_outcome(batch)

    def schedule_callbacks(self, batch: Batch) -> None:
        self._state.callbacks.schedule_callbacks(batch)

    def _send_now_and_lease(self, batch: Batch) -> list[ProducerNode]:
        """Stop lingering for the batch, and lease the rings."""
        self._sender.send_now(batch)
        return self._lease()

    def work_until(
        self,
        done: Callable[[], bool],
        timeout_s: float | None,
        nodes: list[ProducerNode] | None = None,
        *,
        runs_callbacks: bool = True,
    ) -> bool:
        """Work until `done()`; return False if the timeout has passed.

        `nodes`: those whose rings are leased already.  `runs_callbacks`: run callbacks in this
        thread if there is no timeout that a callback could exceed.
        """
        if runs_callbacks or threading.get_ident() == self._sender.background_id:
            self.check_may_wait()
        callbacks = self._state.callbacks
        run_callbacks = (
            callbacks.run_callbacks
            if runs_callbacks and timeout_s is None
            else callbacks.run_callbacks_soon
        )
        deadline = Deadline(threading.TIMEOUT_MAX if timeout_s is None else timeout_s)
        run_callbacks()
        while not done():
            left_s = deadline.left_s
            if not left_s:
                if nodes:
                    self._sender.locked(self._release, nodes, False)
                return False
            if nodes is None:
                nodes = self._sender.locked(self._lease)
            if nodes:
                self._sleep_on_rings(nodes, min(left_s, SLEEP_S_MAX))
            else:
                self._await_progress(done, min(left_s, WAIT_S_MAX))
            run_callbacks()
            nodes = None
        if nodes:
            self._sender.locked(self._release, nodes, False)
        run_callbacks()
        return True

    def check_may_wait(self) -> None:
        """Raise RuntimeError inside a delivery callback."""
        is_background = threading.get_ident() == self._sender.background_id
        if is_background or self._state.callbacks.is_in_callback:
            raise RuntimeError(
                "A delivery callback cannot wait for the producer that calls it, nor close it: call"
                " result(), flush() and close() in another thread, or after the callback."
            )

    def _lease(self) -> list[ProducerNode]:
        """Lease the rings in use that no other thread has leased; return their nodes."""
        now_s = time.monotonic()
        nodes = []
        self._sender.wake_nodes()
        for node in self._sender.nodes.values():
            transport = node.ring
            if transport is None or now_s < transport.leased_until_s:
                continue
            if transport.in_flight or transport.full:
                transport.leased_until_s = now_s + LEASE_S
                transport.ring.writer.end_sleep()
                nodes.append(node)
        return nodes

    def _sleep_on_rings(self, nodes: list[ProducerNode], timeout_s: float) -> None:
        """Spin on leased rings briefly, sleep on them, and handle their responses."""
        slept = False
        try:
            transport = nodes[0].ring
            if len(nodes) == 1 and transport is not None and transport.spin(SPIN_NS):
                return
            poll = select.poll()
            slept = True
            if self._sender.locked(self._arm_wakeups, nodes, poll):
                poll.poll(timeout_s * 1000)
        finally:
            self._sender.locked(self._release, nodes, slept)

    def _arm_wakeups(self, nodes: list[ProducerNode], poll: select.poll) -> bool:
        """Arm the wake-up of each ring; return False if one has responses or has ended."""
        for node in nodes:
            transport = node.ring
            if transport is None:
                return False
            try:
                if not transport.arm_wakeup():
                    return False
            except NetworkException as error:
                self._sender.abandon_ring(node, error)
                return False
            # Do not wake the background thread for this ring.
            self._sender.epoll.modify(transport.ring.fileno(), 0)
            poll.register(transport.ring.fileno(), select.POLLIN)
        return True

    def _release(self, nodes: list[ProducerNode], slept: bool) -> None:
        """Handle responses, and release the leases."""
        now_s = time.monotonic()
        for node in nodes:
            transport = node.ring
            if transport is None:
                continue
            transport.leased_until_s = 0.0
            try:
                if slept:
                    transport.disarm_wakeup()
                    self._sender.epoll.modify(transport.ring.fileno(), select.EPOLLIN)
            except NetworkException as error:
                self._sender.abandon_ring(node, error)
                continue
            self._sender.read_ring(node, now_s)
            if transport.is_watched and node.ring is transport:
                self._sender.arm_wakeup(transport)
        if self._state.callbacks.gates:
            self._state.callbacks.open_gates()

    def _await_progress(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Sleep until another thread has completed a batch or released a ring."""
        gate = threading.Lock()
        gate.acquire()
        # Under the lock: every batch completed after this opens the gate.
        self._sender.locked(lambda: self._state.callbacks.gates.append(gate))
        if not done():
            gate.acquire(timeout=timeout_s)

    # Memory.

    def open_batch(
        self,
        queue: PartitionQueue,
        seen: Batch | None,
        size: int,
        block_s: float,
        transaction_number: int,
    ) -> None:
        """Open a batch in place of `seen` once there is memory for it."""
        wanted = queue, seen, size, transaction_number
        if self._sender.locked(self._sender.open_batch_in, *wanted):
            return
        deadline = Deadline(block_s)
        while not self._sender.locked(self._sender.open_batch_in, *wanted):
            self.await_memory(
                lambda: self._state.accumulator.memory_left >= size or queue.open_batch is not seen,
                deadline,
            )

    def add_batch(
        self,
        queue: PartitionQueue,
        content: BatchContent,
        size: int,
        block_s: float,
        transaction_number: int,
    ) -> Batch:
        """Queue a complete batch once there is memory for it."""
        wanted = queue, content, size, transaction_number
        batch = self._sender.locked(self._sender.add_batch, *wanted)
        if batch is None:
            deadline = Deadline(block_s)
            while (batch := self._sender.locked(self._sender.add_batch, *wanted)) is None:
                self.await_memory(lambda: self._state.accumulator.memory_left >= size, deadline)
        return batch

    def await_memory(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Wait in a send until `done()`, without lingering; BufferExhausted after the deadline."""
        self._sender.locked(self._sender.flush_lingering)
        if not self.work_until(done, deadline.left_s, runs_callbacks=False):
            memory_size = self._state.accumulator.memory_size
            raise BufferExhausted(
                f"buffer.memory ({memory_size} bytes) was used up for max.block.ms: records are"
                " sent faster than the brokers write them.  Raise buffer.memory or max.block.ms, or"
                " wait for deliveries with flush()."
            )
