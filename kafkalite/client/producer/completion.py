"""How a thread waits for a producer's batches: by doing what there is to do for them.

It spins on the rings for a moment, sleeps on them, takes in what came and sends what that makes
room for; no other thread has to run.  It has a ring on lease while it does: the background thread
is not woken for it, and one that was interrupted in its sleep stops nobody for longer than that.
Where there is nothing to watch (TCP, or another thread watches already) it sleeps until something
was decided.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalite.client.net.deadline import Deadline
from kafkalite.client.producer.accumulator import BufferExhausted
from kafkalite.client.producer.batch import Batch
from kafkalite.client.producer.partition_queue import Line
from kafkalite.client.producer.payload import Content
from kafkalite.client.producer.producer_node import Node
from kafkalite.errors import NetworkException

if TYPE_CHECKING:
    from kafkalite.client.producer.sender import Sender

SPIN_NS = 60_000
"""How long somebody who waits looks at the ring before sleeping on it: as long as a worker looks
for the next event.  To be woken takes longer, and costs the worker more than an answer."""

NET_S = 0.020
"""The longest sleep on a ring, should a wake-up be lost."""

LEASE_S = 0.100
WAIT_S_MAX = 1.0


class Waiting:
    """What threads do that wait for a sender."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def wait_for(self, batch: Batch, timeout_s: float | None) -> bool:
        """Wait until the batch is decided, and do what there is to do for it meanwhile."""
        nodes = self._sender.turn(self._want, batch)
        return self.work_until(lambda: batch.done, timeout_s, nodes)

    def _want(self, batch: Batch) -> list[Node]:
        """Send the batch, and watch what it went by."""
        self._sender.want(batch)
        return self._lease()

    def work_until(
        self,
        done: Callable[[], bool],
        timeout_s: float | None,
        nodes: list[Node] | None = None,
        *,
        tells: bool = True,
    ) -> bool:
        """Take turns until it is done; False: it is not, and the time is up.

        `nodes`: what is on lease already.  `tells`: run callbacks here, on the caller's stack, if
        there is no timeout that a callback could exceed.
        """
        if tells or threading.get_ident() == self._sender.background_id:
            self.check_may_wait()
        outcomes = self._sender.outcomes
        tell = outcomes.tell if tells and timeout_s is None else outcomes.tell_soon
        deadline = Deadline(threading.TIMEOUT_MAX if timeout_s is None else timeout_s)
        tell()
        while not done():
            left_s = deadline.left_s
            if not left_s:
                if nodes:
                    self._sender.turn(self._return, nodes, False)
                return False
            if nodes is None:
                nodes = self._sender.turn(self._lease)
            if nodes:
                self._watch(nodes, min(left_s, NET_S))
            else:
                self._await_progress(done, min(left_s, WAIT_S_MAX))
            tell()
            nodes = None
        if nodes:
            self._sender.turn(self._return, nodes, False)
        tell()
        return True

    def check_may_wait(self) -> None:
        """Raise RuntimeError inside a delivery callback."""
        is_background = threading.get_ident() == self._sender.background_id
        if is_background or self._sender.outcomes.is_telling:
            raise RuntimeError(
                "A delivery callback cannot wait for the producer that calls it, nor close it: call"
                " result(), flush() and close() in another thread, or after the callback."
            )

    def _lease(self) -> list[Node]:
        """The rings with something under way that nobody watches; they are watched from now on."""
        now_s = time.monotonic()
        nodes = []
        self._sender.wake_nodes()
        for node in self._sender.nodes.values():
            lane = node.ring
            if lane is None or now_s < lane.watched_until_s:
                continue
            if lane.under_way or lane.full:
                lane.watched_until_s = now_s + LEASE_S
                lane.ring.writer.woke()
                nodes.append(node)
        return nodes

    def _watch(self, nodes: list[Node], timeout_s: float) -> None:
        """Spin on leased rings for a moment, sleep on them, and take what came."""
        slept = False
        try:
            lane = nodes[0].ring
            if len(nodes) == 1 and lane is not None and lane.spin(SPIN_NS):
                return
            poll = select.poll()
            slept = True
            if self._sender.turn(self._lie_down, nodes, poll):
                poll.poll(timeout_s * 1000)
        finally:
            self._sender.turn(self._return, nodes, slept)

    def _lie_down(self, nodes: list[Node], poll: select.poll) -> bool:
        """Say on each ring that somebody sleeps; False when one has something to take."""
        for node in nodes:
            lane = node.ring
            if lane is None:
                return False
            try:
                if not lane.rest():
                    return False
            except NetworkException as fault:
                self._sender.lose_ring(node, fault)
                return False
            # The background thread sleeps on.
            self._sender.epoll.modify(lane.ring.fileno(), 0)
            poll.register(lane.ring.fileno(), select.POLLIN)
        return True

    def _return(self, nodes: list[Node], slept: bool) -> None:
        """Take what came, and give the leases back."""
        now_s = time.monotonic()
        for node in nodes:
            lane = node.ring
            if lane is None:
                continue
            lane.watched_until_s = 0.0
            try:
                if slept:
                    lane.woke()
                    self._sender.epoll.modify(lane.ring.fileno(), select.EPOLLIN)
            except NetworkException as fault:
                self._sender.lose_ring(node, fault)
                continue
            self._sender.take(node, now_s)
            if lane.listened and node.ring is lane:
                self._sender.arm(lane)
        if self._sender.outcomes.gates:
            self._sender.outcomes.open_gates()

    def _await_progress(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Sleep until another thread has decided something, or has given a ring back."""
        gate = threading.Lock()
        gate.acquire()
        # Under the lock: from here on nothing is decided without this gate's being opened.
        self._sender.turn(lambda: self._sender.outcomes.gates.append(gate))
        if not done():
            gate.acquire(timeout=timeout_s)

    # Room.

    def make_room(self, line: Line, seen: Batch | None, size: int, block_s: float) -> None:
        """Open a batch on the line instead of the one seen, once there is memory for it."""
        if self._sender.turn(self._sender.open_line, line, seen, size):
            return
        deadline = Deadline(block_s)
        while not self._sender.turn(self._sender.open_line, line, seen, size):
            self.await_room(
                lambda: self._sender.accumulator.memory_left >= size or line.open_batch is not seen,
                deadline,
            )

    def add_batch(self, line: Line, content: Content, size: int, block_s: float) -> Batch:
        """`add`, once there is memory for it."""
        batch = self._sender.turn(self._sender.add, line, content, size)
        if batch is None:
            deadline = Deadline(block_s)
            while (batch := self._sender.turn(self._sender.add, line, content, size)) is None:
                self.await_room(lambda: self._sender.accumulator.memory_left >= size, deadline)
        return batch

    def await_room(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Wait inside a send until something is so, and let nothing linger meanwhile."""
        sender = self._sender
        sender.turn(sender.want_all)
        if not self.work_until(done, deadline.left_s, tells=False):
            raise BufferExhausted(
                f"buffer.memory ({sender.accumulator.memory_size} bytes) was used up for as long"
                " as max.block.ms allows: records come faster than they are taken."
            )
