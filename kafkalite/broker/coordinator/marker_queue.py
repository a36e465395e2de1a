"""MarkerQueue: the transaction markers that are to be written, sent, and without a response yet.

    Prepare committed ─▶ routed ─▶ waits for its node ─▶ sent ─▶ written ─▶ last one: completed
                           ▲                              │
                           ╰─── delayed ◀── refused, or no response in time

Each marker is sent to the leader of its partition until the leader has written it or the partition
is deleted.  A partition may get a marker twice, which changes nothing there.  Only the response to
the last request for a marker counts: leaders handle requests in order, so no marker of an earlier
request can follow, and the producer's next transaction may begin.

A leader that knows a newer epoch of the producer refuses.  There is one coordinator, which raises
an epoch only once all markers are written; so the marker was written before, and a power cut took
the coordinator's records of it.  A leader that knows a newer epoch of the coordinator refuses too;
the transaction is then left for a coordinator with a higher epoch, which a restart has.

No work is done but in `step`, which handles a bounded number of markers.  The class has no clock,
network or timer: times are passed in, and messages go through `send`.

Source: KIP-98; TransactionMarkerChannelManager of Apache Kafka.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple, Protocol

from kafkalite.broker.replica.marker_writer import MarkerTargets
from kafkalite.errors import (
    BY_CODE,
    InvalidProducerEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    TransactionCoordinatorFenced,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.transaction_records import (
    TopicPartition,
    Transaction,
    TransactionState,
)
from kafkalite.records.control import TransactionMarker

log = logging.getLogger("kafkalite.broker")

REQUEST_SIZE_MAX = 200
"""Maximum number of markers in a request, and of markers that one step routes."""
REQUESTS_MAX = 8
"""Maximum number of requests to a node without a response."""
RESPONSE_MS_MAX = 2_000
"""Time after which markers are sent again; the leader responds after one second at most."""
RETRY_MS, RETRY_MS_MAX = 100, 3_000
"""Time after which refused markers are sent again; doubled each time, up to the maximum."""
COMPLETED_COUNT_MAX = 50
"""Maximum number of transactions that are completed together."""

WRITTEN = {0, UnsupportedVersion.code, UnsupportedForMessageFormat.code, InvalidProducerEpoch.code}
RETRIABLE = {
    UnknownTopicOrPartition.code,
    UnknownTopicId.code,
    NotLeaderOrFollower.code,
    RequestTimedOut.code,
    NotEnoughReplicas.code,
    NotEnoughReplicasAfterAppend.code,
    KafkaStorageError.code,
}


class MarkerCoordinator(Protocol):
    """The coordinator of a transaction."""

    @property
    def coordinator_epoch(self) -> int:
        """The epoch of the coordinator."""

    @property
    def is_closed(self) -> bool:
        """True if the transactions are no longer coordinated here."""

    def complete(self, transactions: Sequence[PreparedTransaction]) -> None:
        """Record that these transactions have all their markers."""


class PartitionLeader(NamedTuple):
    """The leader of a partition, and the id of its topic."""

    topic_id: bytes
    node_id: int


@dataclass(slots=True, eq=False)
class PreparedTransaction:
    """A transaction whose outcome is decided, and its partitions without the marker."""

    coordinator: MarkerCoordinator
    transactional_id: str
    prepared: Transaction
    unwritten: set[TopicPartition]
    attempts: int = 0
    is_current: bool = True
    """False once it is completed, fenced or replaced."""

    def marker(self) -> TransactionMarker:
        prepared = self.prepared
        return TransactionMarker(
            prepared.producer_id,
            prepared.producer_epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
            self.coordinator.coordinator_epoch,
            prepared.transaction_version,
        )


class QueuedMarker(NamedTuple):
    """The marker of a transaction for one partition."""

    transaction: PreparedTransaction
    partition: TopicPartition
    topic_id: bytes


class SentRequest(NamedTuple):
    """Markers that were sent to a node."""

    node_id: int
    markers: Sequence[QueuedMarker]
    deadline_ms: int


@dataclass(slots=True)
class NodeQueue:
    """The markers for one node that are not sent yet, and the number of open requests."""

    markers: deque[QueuedMarker] = field(default_factory=deque)
    request_count: int = 0


Unrouted = tuple[PreparedTransaction, Sequence[TopicPartition]]

Send = Callable[[int, int, Sequence[MarkerTargets]], bool]
"""`send(node_id, request_id, targets)`: False if the node cannot receive a request now."""


class MarkerQueue:
    """The markers of the transactions that this node coordinates; see the module."""

    def __init__(
        self,
        leader_of: Callable[[TopicPartition], PartitionLeader | None],
        send: Send,
    ) -> None:
        """Create an empty queue.

        Args:
            leader_of: Returns the leader of a partition; None if the partition does not exist.
            send: Sends markers to a node.
        """
        self.fenced_count = 0
        """Metrics: the number of transactions whose coordinator a leader has fenced."""
        self._leader_of = leader_of
        self._send = send
        self._transactions: dict[str, PreparedTransaction] = {}
        self._unrouted: deque[Unrouted] = deque()
        self._nodes: dict[int, NodeQueue] = {}
        self._requests: dict[int, SentRequest] = {}
        self._request_ids = itertools.count(1)
        self._delayed: list[tuple[int, int, Unrouted]] = []
        self._delay_numbers = itertools.count()  # so that transactions are never compared
        self._completed: deque[PreparedTransaction] = deque()

    def __len__(self) -> int:
        """Return the number of transactions that wait for a marker."""
        return len(self._transactions)

    def waiting_counts(self) -> Counter[int]:
        """Return the number of markers that wait for each node, sent or not."""
        counts = Counter({node_id: len(node.markers) for node_id, node in self._nodes.items()})
        for request in self._requests.values():
            counts[request.node_id] += len(request.markers)
        return counts

    @property
    def delayed_count(self) -> int:
        """The number of transactions with markers that no leader can take now."""
        return len(self._delayed)

    # -- input -------------------------------------------------------------------------------

    def add(
        self, coordinator: MarkerCoordinator, transactional_id: str, prepared: Transaction
    ) -> None:
        """Write the markers of a transaction whose Prepare record is committed."""
        known = self._transactions.get(transactional_id)
        if known is not None:
            if known.prepared == prepared and known.coordinator is coordinator:
                return
            known.is_current = False
        added = PreparedTransaction(
            coordinator, transactional_id, prepared, set(prepared.partitions)
        )
        self._transactions[transactional_id] = added
        if added.unwritten:
            self._unrouted.append((added, [*added.unwritten]))
        else:
            self._completed.append(added)

    def received(
        self, node_id: int, request_id: int, error_codes: Sequence[int], now_ms: int
    ) -> None:
        """Handle a response; one to a request that is not open is ignored."""
        request = self._requests.get(request_id)
        if request is None or request.node_id != node_id:
            return
        self._close(request_id)
        if len(error_codes) != len(request.markers):
            log.error(
                "Response to transaction markers has %d error codes instead of %d; sending the"
                " markers again. node=%d",
                len(error_codes), len(request.markers), node_id,
            )  # fmt: skip
            error_codes = [RequestTimedOut.code] * len(request.markers)
        refused: list[QueuedMarker] = []
        for marker, code in zip(request.markers, error_codes, strict=True):
            if not marker.transaction.is_current:
                continue
            if code in WRITTEN:
                if code == InvalidProducerEpoch.code:
                    _log_older_epoch(marker)
                self._written(marker.transaction, marker.partition)
            elif code == TransactionCoordinatorFenced.code:
                self._fenced(marker)
            else:
                refused.append(marker)
                if code not in RETRIABLE and not marker.transaction.attempts:
                    log.error(
                        "Transaction marker failed unexpectedly; retrying. transactional_id=%r"
                        " partition=%s-%d error=%s",
                        marker.transaction.transactional_id, *marker.partition, _error_name(code),
                    )  # fmt: skip
        self._delay(refused, now_ms)

    def node_connected(self, node_id: int) -> None:
        """Send again what was sent to a node, which may have restarted since."""
        for request_id, request in [*self._requests.items()]:
            if request.node_id == node_id:
                self._close(request_id)
                self._route_again(request.markers)
        self.wake()

    def wake(self) -> None:
        """Route the delayed markers now: leaders may have changed."""
        self._unrouted.extend(unrouted for _, _, unrouted in self._delayed)
        self._delayed.clear()

    # -- work --------------------------------------------------------------------------------

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return the time of the next `step` that has work, or None."""
        if self._unrouted or self._completed or any(map(_can_send, self._nodes.values())):
            return now_ms
        due = [request.deadline_ms for request in islice(self._requests.values(), 1)]
        due += [each[0] for each in self._delayed[:1]]
        return min(due, default=None)

    def step(self, now_ms: int) -> None:
        """Do a bounded part of the work that is due: route, then send, then complete."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            self._unrouted.append(heapq.heappop(self._delayed)[2])
        overdue = [
            request_id
            for request_id, request in islice(self._requests.items(), REQUESTS_MAX)
            if request.deadline_ms <= now_ms
        ]
        for request_id in overdue:
            self._route_again(self._close(request_id).markers)
        if self._unrouted:
            self._route(now_ms)
        else:
            for node_id, node in self._nodes.items():
                if _can_send(node):
                    self._send_to(node_id, node, now_ms)
                    break
        if self._completed:
            self._complete_some()

    def _route(self, now_ms: int) -> None:
        """Queue REQUEST_SIZE_MAX markers for their leaders."""
        left = REQUEST_SIZE_MAX
        while self._unrouted and left > 0:
            transaction, partitions = self._unrouted.popleft()
            if transaction.coordinator.is_closed:
                self._remove(transaction)
            if not transaction.is_current:
                left -= 1
                continue
            if len(partitions) > left:
                self._unrouted.appendleft((transaction, partitions[left:]))
                partitions = partitions[:left]
            left -= len(partitions)
            for partition in partitions:
                leader = self._leader_of(partition)
                if leader is None:
                    self._written(transaction, partition)  # it was deleted
                    continue
                node = self._nodes.get(leader.node_id)
                if node is None:
                    node = self._nodes[leader.node_id] = NodeQueue()
                node.markers.append(QueuedMarker(transaction, partition, leader.topic_id))

    def _send_to(self, node_id: int, node: NodeQueue, now_ms: int) -> None:
        """Send one request to a node."""
        markers: list[QueuedMarker] = []
        while node.markers and len(markers) < REQUEST_SIZE_MAX:
            marker = node.markers.popleft()
            if marker.transaction.is_current:
                markers.append(marker)
        if not markers:
            return
        targets = [
            MarkerTargets(
                transaction.marker(), [(each.topic_id, each.partition[1]) for each in of_one]
            )
            for transaction, of_one in groupby(markers, attrgetter("transaction"))
        ]
        request_id = next(self._request_ids)
        node.request_count += 1
        self._requests[request_id] = SentRequest(node_id, markers, now_ms + RESPONSE_MS_MAX)
        if not self._send(node_id, request_id, targets):
            self._close(request_id)
            self._delay(markers, now_ms)

    def _complete_some(self) -> None:
        """Complete transactions of one coordinator."""
        coordinator = self._completed[0].coordinator
        completed: list[PreparedTransaction] = []
        while (
            self._completed
            and self._completed[0].coordinator is coordinator
            and len(completed) < COMPLETED_COUNT_MAX
        ):
            transaction = self._completed.popleft()
            if transaction.is_current:
                self._remove(transaction)
                completed.append(transaction)
        if completed and not coordinator.is_closed:
            coordinator.complete(completed)

    # -- internals ---------------------------------------------------------------------------

    def _close(self, request_id: int) -> SentRequest:
        request = self._requests.pop(request_id)
        self._nodes[request.node_id].request_count -= 1
        return request

    def _written(self, transaction: PreparedTransaction, partition: TopicPartition) -> None:
        transaction.unwritten.discard(partition)
        if not transaction.unwritten:
            self._completed.append(transaction)

    def _fenced(self, marker: QueuedMarker) -> None:
        self.fenced_count += 1
        transaction = marker.transaction
        self._remove(transaction)
        log.error(
            "Transaction cannot be completed: a leader knows a newer coordinator epoch. It stays in"
            " %s until the next start. transactional_id=%r producer_id=%d coordinator_epoch=%d"
            " partition=%s-%d",
            transaction.prepared.state.title, transaction.transactional_id,
            transaction.prepared.producer_id, transaction.coordinator.coordinator_epoch,
            *marker.partition,
        )  # fmt: skip

    def _remove(self, transaction: PreparedTransaction) -> None:
        transaction.is_current = False
        if self._transactions.get(transaction.transactional_id) is transaction:
            del self._transactions[transaction.transactional_id]

    def _route_again(self, markers: Sequence[QueuedMarker]) -> None:
        for transaction, of_one in groupby(markers, attrgetter("transaction")):
            self._unrouted.append((transaction, [each.partition for each in of_one]))

    def _delay(self, markers: Sequence[QueuedMarker], now_ms: int) -> None:
        """Route markers again after a time that grows with the transaction's attempts."""
        for transaction, of_one in groupby(markers, attrgetter("transaction")):
            wait_ms = min(RETRY_MS << min(transaction.attempts, 5), RETRY_MS_MAX)
            transaction.attempts += 1
            unrouted = (transaction, [each.partition for each in of_one])
            entry = (now_ms + wait_ms, next(self._delay_numbers), unrouted)
            heapq.heappush(self._delayed, entry)


def _can_send(node: NodeQueue) -> bool:
    return bool(node.markers) and node.request_count < REQUESTS_MAX


def _log_older_epoch(marker: QueuedMarker) -> None:
    transaction = marker.transaction
    log.warning(
        "Transaction marker is not needed: the leader knows a newer producer epoch."
        " transactional_id=%r producer_id=%d producer_epoch=%d partition=%s-%d",
        transaction.transactional_id, transaction.prepared.producer_id,
        transaction.prepared.producer_epoch, *marker.partition,
    )  # fmt: skip


def _error_name(code: int) -> str:
    error = BY_CODE.get(code)
    return error.name if error is not None else str(code)
