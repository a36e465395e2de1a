"""MarkerChannel: has the markers of decided transactions written, and completes the transactions.

    Prepare committed ─▶ MarkerQueue ─┬▶ WriteMarkers over the bus ─▶ worker ─╮
                                      ╰▶ MarkerWriter of this node ───────────┴▶ Complete record

One channel serves all transaction coordinators of a node.  The coordinator epoch in a marker is the
leader epoch of the coordinator's partition, which each start of the node raises (Node.open), so a
marker of an earlier process never outranks one of this.

With version 2 a producer continues once it has the response to EndTxn, and has to wait if its last
transaction is not complete then.  So what is due is done before the responses of the tick are
written, and what a worker has written is completed before its next requests are handled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkalite.broker.coordinator.marker_queue import (
    MarkerQueue,
    PartitionLeader,
    PreparedTransaction,
)
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.transaction import PREPARED
from kafkalite.errors import KafkaError, RequestTimedOut

if TYPE_CHECKING:
    from kafkalite.broker.coordinator.coordinator_host import CoordinatorHost
    from kafkalite.broker.coordinator.marker_queue import Send
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.marker_writer import MarkerTargets, MarkerWriter
    from kafkalite.coordination.transaction_coordinator import TransactionCoordinator
    from kafkalite.protocol.schemas.transaction_records import (
        TopicPartition,
        Transaction,
        TransactionRecord,
    )
    from kafkalite.transport.reactor import Reactor, Timer

STEP_MS, STEP_PAUSE_MS = 5, 1
"""Time for the queue's steps in a tick, and the pause before the next ones."""
COMPLETE_RETRY_MS = 500

log = logging.getLogger("kafkalite.broker")


class CoordinatedTransactions:
    """One transaction coordinator, as the queue sees it; completes its transactions."""

    def __init__(self, host: CoordinatorHost[TransactionCoordinator], reactor: Reactor) -> None:
        self._host = host
        self._reactor = reactor

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the coordinator's partition."""
        return self._host.partition.leader_epoch

    @property
    def is_closed(self) -> bool:
        """True if the partition is no longer led here."""
        return self._host.is_closed

    def complete(self, transactions: Sequence[PreparedTransaction]) -> None:
        """Write the Complete records of these transactions in one batch."""
        if self.is_closed:
            return
        wall_ms = self._reactor.clock.wall_ms()

        def decide(machine: TransactionCoordinator) -> DecisionResult[None]:
            decisions = (
                machine.complete(each.transactional_id, each.prepared, wall_ms)
                for each in transactions
            )
            return DecisionResult(None, [r for decision in decisions for r in decision.records])

        def decided(_: None, error: KafkaError | None) -> None:
            if error is None:
                return
            log.warning(
                "Transactions cannot be completed now; retrying. partition=%s transactions=%d"
                " error=%r",
                self._host.partition, len(transactions), str(error),
            )  # fmt: skip
            self._reactor.call_later(COMPLETE_RETRY_MS, lambda: self.complete(transactions))

        self._host.decide(decide).then(decided)
        self._host.schedule()


class MarkerChannel:
    """The transaction markers of a node's coordinators; see the module."""

    def __init__(self, metadata: MetadataCache, writer: MarkerWriter, reactor: Reactor) -> None:
        self._metadata = metadata
        self._writer = writer
        self._reactor = reactor
        self._send_to_worker: Send | None = None
        self._timer: Timer | None = None
        self._due_ms = 0
        self.queue = MarkerQueue(self._leader_of, self._send)

    def attach(self, host: CoordinatorHost[TransactionCoordinator]) -> None:
        """Have the markers of a coordinator's transactions written, from its load on."""
        coordinator = CoordinatedTransactions(host, self._reactor)

        def add(transactional_id: str, transaction: Transaction | None) -> None:
            if transaction is not None and transaction.state in PREPARED:
                self.queue.add(coordinator, transactional_id, transaction)

        def on_change(records: Sequence[TransactionRecord], _: int) -> None:
            for record in records:
                add(record.transactional_id, record.transaction)
            self._schedule()

        def add_all(prepared: Sequence[tuple[str, Transaction]]) -> Work[None]:
            for transactional_id, transaction in prepared:
                add(transactional_id, transaction)
                yield
            self._schedule()

        def loaded(prepared: Sequence[tuple[str, Transaction]] | None, _: object) -> None:
            in_steps(self._reactor, add_all(prepared or ()))

        host.on_change(on_change)
        # What was loaded may not be committed yet.
        host.read_committed(lambda machine: [*machine.prepared()]).then(loaded)

    # -- the nodes ---------------------------------------------------------------------------

    def connect(self, send: Send) -> None:
        """Send markers to workers by `send(node_id, request_id, targets)` from now on."""
        self._send_to_worker = send
        self.wake()

    def written(self, node_id: int, request_id: int, codes: Sequence[int]) -> None:
        """Handle a worker's response."""
        self.queue.received(node_id, request_id, codes, self._now_ms())
        self._schedule()
        self.run_due()

    def node_connected(self, node_id: int) -> None:
        """Handle the welcome of a worker, which may have lost what was sent before."""
        self.queue.node_connected(node_id)
        self._schedule()

    def wake(self) -> None:
        """Send delayed markers now: leaders may have changed."""
        self.queue.wake()
        self._schedule()

    def _leader_of(self, partition: TopicPartition) -> PartitionLeader | None:
        name, index = partition
        topic = self._metadata.topic(name)
        found = topic.partitions.get(index) if topic is not None else None
        if topic is None or found is None:
            return None
        return PartitionLeader(topic.topic_id, found.leader)

    def _send(self, node_id: int, request_id: int, targets: Sequence[MarkerTargets]) -> bool:
        if node_id != self._metadata.node_id:
            send = self._send_to_worker
            return send is not None and send(node_id, request_id, targets)

        def respond(codes: Sequence[int] | None, _: object) -> None:
            failed = [RequestTimedOut.code] * sum(len(each.partitions) for each in targets)
            written = failed if codes is None else codes
            self.queue.received(node_id, request_id, written, self._now_ms())
            self._schedule()

        self._writer.write(targets).then(respond)
        return True

    # -- the timer ---------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._reactor.clock.monotonic_ms()

    def _schedule(self, pause_ms: int = 0) -> None:
        """Set the timer to the queue's next step, after a pause."""
        now_ms = self._now_ms()
        next_ms = self.queue.next_due_ms(now_ms)
        if next_ms is None:
            return
        due_ms = max(next_ms, now_ms + pause_ms)
        if self._timer is None or due_ms < self._due_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._due_ms = due_ms
            self._timer = self._reactor.call_later(due_ms - now_ms, self._run)

    def run_due(self) -> None:
        """Run the steps that are due; called at the end of each tick, too."""
        if self._timer is not None and self._due_ms <= self._now_ms():
            self._timer.cancel()
            self._run()

    def _run(self) -> None:
        """Run the queue's steps for STEP_MS; run the rest in later ticks."""
        clock = self._reactor.clock
        end_ns = clock.monotonic_ns() + STEP_MS * 1_000_000
        now_ms = self._due_ms = self._now_ms()
        while (due_ms := self.queue.next_due_ms(now_ms)) is not None and due_ms <= now_ms:
            self.queue.step(now_ms)
            if clock.monotonic_ns() >= end_ns:
                break
        self._timer = None
        self._schedule(STEP_PAUSE_MS)
