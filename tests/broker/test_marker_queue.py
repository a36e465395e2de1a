"""MarkerQueue: with nodes that die, respond late or twice, and leaders that move.

The model of a leader appends what it receives in order.  Whatever happens: no marker is sent before
its transaction is added, every transaction completes once all can be reached, each of its
partitions then has its marker, and none gets one after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite import errors
from kafkalite.broker.coordinator.marker_queue import (
    REQUEST_SIZE_MAX,
    REQUESTS_MAX,
    RESPONSE_MS_MAX,
    RETRY_MS,
    MarkerQueue,
    PartitionLeader,
    PreparedTransaction,
)
from kafkalite.broker.replica.marker_writer import MarkerTargets
from kafkalite.protocol.schemas.transaction_records import Transaction, TransactionState

NODES = 3
PARTITIONS = 5


@dataclass
class Coordinator:
    complete: Callable[[Sequence[PreparedTransaction]], None]
    coordinator_epoch: int = 0
    is_closed: bool = False


@dataclass
class Leader:
    """A node, with the requests and responses on their way."""

    node_id: int
    is_alive: bool = True
    requests: deque[tuple[int, list[MarkerTargets]]] = field(default_factory=deque)
    responses: deque[tuple[int, list[int]]] = field(default_factory=deque)


class Model:
    """The queue with a model of the leaders and their logs."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.coordinator = Coordinator(self.complete)
        self.nodes = [Leader(node_id) for node_id in range(NODES)]
        self.leaders = {("t", index): index % NODES for index in range(PARTITIONS)}
        self.logs: dict[tuple[str, int], list[int]] = {each: [] for each in self.leaders}
        self.failing = 0
        """The error code of appends, or 0."""
        self.added: dict[str, Transaction] = {}
        self.completed: list[str] = []
        self.queue = MarkerQueue(self.leader_of, self.send)

    def leader_of(self, partition):
        leader = self.leaders.get(partition)
        return None if leader is None else PartitionLeader(b"t" * 16, leader)

    def send(self, node_id, request_id, targets) -> bool:
        for marker, partitions in targets:
            sent_for = self.added[f"id-{marker.producer_id}"]
            assert marker.is_commit == (sent_for.state is TransactionState.PREPARE_COMMIT)
            assert {("t", index) for _, index in partitions} <= sent_for.partitions
            assert marker.coordinator_epoch == self.coordinator.coordinator_epoch
        assert sum(len(each.partitions) for each in targets) <= REQUEST_SIZE_MAX
        node = self.nodes[node_id]
        if not node.is_alive:
            return False
        node.requests.append((request_id, targets))
        return True

    def complete(self, transactions) -> None:
        for each in transactions:
            assert each.transactional_id not in self.completed
            for partition in each.prepared.partitions:
                assert partition not in self.leaders or (
                    each.prepared.producer_id in self.logs[partition]
                ), "completed without its marker"
            self.completed.append(each.transactional_id)

    def add(self, partitions, is_commit: bool = True) -> None:
        number = len(self.added)
        state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        prepared = Transaction(
            number, 3, 1_000, state, frozenset(("t", index) for index in partitions)
        )
        self.added[f"id-{number}"] = prepared
        self.queue.add(self.coordinator, f"id-{number}", prepared)

    def handle(self, node: Leader) -> None:
        """Have a leader handle the oldest request."""
        if not node.requests:
            return
        request_id, targets = node.requests.popleft()
        codes = []
        for marker, partitions in targets:
            for _, index in partitions:
                partition = ("t", index)
                if self.leaders.get(partition) != node.node_id:
                    codes.append(errors.NotLeaderOrFollower.code)
                    continue
                if self.failing:
                    codes.append(self.failing)
                    continue
                assert f"id-{marker.producer_id}" not in self.completed, "a late marker"
                self.logs[partition].append(marker.producer_id)
                codes.append(0)
        node.responses.append((request_id, codes))

    def handle_all(self, node_id: int) -> None:
        while self.nodes[node_id].requests:
            self.handle(self.nodes[node_id])

    def respond(self, node: Leader, *, twice: bool = False) -> None:
        """Deliver the oldest response, and leave it to be delivered again."""
        if node.responses:
            response = node.responses[0] if twice else node.responses.popleft()
            self.queue.received(node.node_id, *response, self.now_ms)

    def kill(self, node: Leader) -> None:
        node.is_alive = False
        node.requests.clear()
        node.responses.clear()

    def start(self, node: Leader) -> None:
        if not node.is_alive:
            node.is_alive = True
            self.queue.node_connected(node.node_id)

    def work(self, count: int = 1) -> None:
        for _ in range(count):
            due_ms = self.queue.next_due_ms(self.now_ms)
            if due_ms is None or due_ms > self.now_ms:
                return
            self.queue.step(self.now_ms)

    def heal(self) -> None:
        """Bring everything up, and run until nothing is left to do."""
        self.failing = 0
        for node in self.nodes:
            self.start(node)
        for _ in range(500):
            self.work(50)
            for node in self.nodes:
                self.handle(node)
                self.respond(node)
            if not len(self.queue):
                return
            self.now_ms += 100
        raise AssertionError("some transaction does not complete")


EVENT = st.one_of(
    st.tuples(
        st.just("add"),
        st.sets(st.integers(0, PARTITIONS - 1), max_size=PARTITIONS),
        st.booleans(),
    ),
    st.tuples(st.sampled_from(["handle", "respond", "repeat", "kill", "start"]),
              st.integers(0, NODES - 1), st.none()),
    st.tuples(st.just("move"), st.integers(0, PARTITIONS - 1), st.integers(0, NODES - 1)),
    st.tuples(st.just("delete"), st.integers(0, PARTITIONS - 1), st.none()),
    st.tuples(st.just("fail"), st.sampled_from([0, 3, 7, 19, 20, 56, 100, -1]), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([1, RETRY_MS, RESPONSE_MS_MAX]), st.none()),
    st.tuples(st.just("work"), st.integers(1, 5), st.none()),
)  # fmt: skip


def run(model: Model, event) -> None:
    kind, first, second = event
    match kind:
        case "add":
            model.add(first, second)
        case "handle":
            model.handle(model.nodes[first])
        case "respond":
            model.respond(model.nodes[first])
        case "repeat":
            model.respond(model.nodes[first], twice=True)
        case "kill":
            model.kill(model.nodes[first])
        case "start":
            model.start(model.nodes[first])
        case "move":
            # A leader handles what it has received before it applies the change.
            if ("t", first) in model.leaders:
                model.handle_all(model.leaders["t", first])
                model.leaders["t", first] = second
                model.queue.wake()
        case "delete":
            model.leaders.pop(("t", first), None)
            model.queue.wake()
        case "fail":
            model.failing = first
        case "wait":
            model.now_ms += first
        case "work":
            model.work(first)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=60))
def test_every_transaction_completes_with_a_marker_in_each_partition(events):
    model = Model()
    for event in events:
        run(model, event)
    model.heal()
    assert sorted(model.completed) == sorted(model.added)


def test_large_queue_is_sent_in_bounded_requests():
    model = Model()
    for _ in range(2_000):
        model.add(range(PARTITIONS))
    steps = 0
    while (due_ms := model.queue.next_due_ms(0)) is not None and due_ms <= 0:
        model.queue.step(0)
        steps += 1
    assert steps >= 2_000 * PARTITIONS / REQUEST_SIZE_MAX
    assert [len(node.requests) for node in model.nodes] == [REQUESTS_MAX] * NODES
    assert model.queue.waiting_counts() == {0: 4_000, 1: 4_000, 2: 2_000}
    model.heal()
    assert len(model.completed) == 2_000


def test_transaction_with_many_partitions_is_sent_in_several_requests():
    model = Model()
    model.leaders = {("t", index): 0 for index in range(1_000)}
    model.logs = {each: [] for each in model.leaders}
    model.add(range(1_000))
    model.heal()
    assert all(log == [0] for log in model.logs.values())


def test_response_after_the_markers_were_sent_again_is_ignored():
    model = Model()
    model.add([0])
    model.work(10)
    model.now_ms += RESPONSE_MS_MAX
    model.work(10)
    node = model.nodes[0]
    assert len(node.requests) == 2
    model.handle(node)
    model.respond(node)
    model.work(10)
    assert not model.completed
    model.handle(node)
    model.respond(node)
    model.work(10)
    assert model.completed == ["id-0"]


def test_refused_markers_wait_longer_each_time():
    model = Model()
    model.failing = errors.KafkaStorageError.code
    model.add([0])
    sent = []
    for _ in range(10_000):
        model.work(10)
        if model.nodes[0].requests:
            sent.append(model.now_ms)
            model.handle(model.nodes[0])
            model.respond(model.nodes[0])
        model.now_ms += 1
    waits = [after - before for before, after in zip(sent, sent[1:], strict=False)]
    assert waits[:7] == [100, 200, 400, 800, 1_600, 3_000, 3_000]


def test_transaction_of_a_fenced_coordinator_stays_prepared():
    model = Model()
    model.failing = errors.TransactionCoordinatorFenced.code
    model.add([0, 1])
    model.work(10)
    model.handle(model.nodes[0])
    model.respond(model.nodes[0])
    model.failing = 0
    model.handle(model.nodes[1])
    model.respond(model.nodes[1])
    model.now_ms += 10 * RESPONSE_MS_MAX
    model.work(10)
    assert not model.completed and not len(model.queue)
    assert model.queue.fenced_count == 1
    assert model.queue.next_due_ms(model.now_ms) is None


def test_marker_for_a_newer_producer_epoch_counts_as_written():
    model = Model()
    model.failing = errors.InvalidProducerEpoch.code
    model.logs["t", 0].append(0)  # before the coordinator lost its records
    model.add([0])
    model.work(10)
    model.handle(model.nodes[0])
    model.respond(model.nodes[0])
    model.work(10)
    assert model.completed == ["id-0"]


def test_response_of_another_node_or_size_is_ignored():
    model = Model()
    model.add([0])
    model.work(10)
    ((request_id, _),) = model.nodes[0].requests
    model.queue.received(1, request_id, [0], 0)
    model.queue.received(0, request_id + 1, [0], 0)
    model.queue.received(0, request_id, [0, 0], 0)
    model.work(10)
    assert not model.completed
    model.heal()
    assert model.completed == ["id-0"]


def test_transactions_of_a_closed_coordinator_are_dropped():
    model = Model()
    model.add([0])
    model.coordinator.is_closed = True
    model.work(10)
    assert not len(model.queue) and not model.nodes[0].requests


def test_same_transaction_is_added_once():
    model = Model()
    model.add([0])
    prepared = model.added["id-0"]
    model.queue.add(model.coordinator, "id-0", prepared)
    model.heal()
    assert model.completed == ["id-0"] and model.logs["t", 0] == [0]
