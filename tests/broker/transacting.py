"""A transactional producer of a cluster, which asks the coordinator's machine directly."""

from __future__ import annotations

from typing import Any

from kafkalite.broker.node import Node
from kafkalite.coordination.transaction import NO_PRODUCER, ProducerEpoch
from kafkalite.coordination.transaction_coordinator import InitOptions, TransactionCoordinator
from kafkalite.ids import new_id
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transaction_records import Transaction, TransactionState
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.log.log_reader import read
from tests.broker.conftest import Clients

STATE_TOPIC = "__transaction_state"
UNVERIFIED = {"transaction.partition.verification.enable": "false"}

TIMEOUT_MS = 60_000


def create_state_topic(node: Node, partitions: int = 1) -> None:
    """Have node 0 create the topic of the coordinators."""
    node.local_controller.execute(
        lambda machine: machine.create_internal_topic(STATE_TOPIC, new_id(), partitions, {})
    )


def create_coordinator(cluster: Clients) -> None:
    """Create the topic of the coordinator in a cluster."""
    create_state_topic(cluster.node(0))
    cluster.settle()


class Transactions:
    """One transactional id of a cluster."""

    def __init__(self, cluster: Clients, transactional_id: str = "id", version: int = 2) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.version = version
        self.producer = NO_PRODUCER

    @property
    def host(self) -> Any:
        return self.cluster.node(0).transactions.host_of(self.transactional_id)

    def begin_request(self, name: str, *arguments: Any, **times: bool) -> list[Any]:
        """Send a request to the machine; the response or the error is put in the list."""
        outcome: list[Any] = []

        def decide(machine: TransactionCoordinator, token: Any, now_ms: int, wall_ms: int) -> Any:
            clocks = [now_ms, wall_ms] if name == "add_partitions" else [wall_ms]
            return getattr(machine, name)(self.transactional_id, *arguments, token, *clocks)

        self.host.request(decide).then(lambda response, error: outcome.append(response or error))
        return outcome

    def request(self, name: str, *arguments: Any) -> Any:
        outcome = self.begin_request(name, *arguments)
        self.cluster.until(lambda: outcome)
        assert isinstance(outcome[0], dict), outcome[0]
        return outcome[0]

    def init(self, timeout_ms: int = TIMEOUT_MS, *, enable_2pc: bool = False) -> int:
        """Send InitProducerId and return the error code."""
        # The first one may find no producer id at hand.
        options = InitOptions(timeout_ms, enable_2pc)
        outcome = self.begin_request("init_producer_id", NO_PRODUCER, options)
        self.cluster.until(lambda: outcome)
        if not isinstance(outcome[0], dict):
            self.cluster.steps(20)
            return self.init(timeout_ms, enable_2pc=enable_2pc)
        if not outcome[0]["error_code"]:
            self._take(outcome[0])
        return int(outcome[0]["error_code"])

    def _take(self, response: dict[str, int]) -> None:
        self.producer = ProducerEpoch(response["producer_id"], response["producer_epoch"])

    def add(self, *partitions: tuple[str, int]) -> None:
        """Add partitions to the transaction."""
        added = frozenset(partitions)
        self.request("add_partitions", self.producer, added, self.version)

    def produce(self, topic: str, partition: int = 0, value: bytes = b"v") -> None:
        """Append a record of the transaction at the partition's leader."""
        batch = build(
            [Record(timestamp=self.cluster.clock.wall_ms(), value=value)],
            producer_id=self.producer.producer_id, producer_epoch=self.producer.epoch,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        response = self.cluster.request(
            self.cluster.leader(topic, partition), PRODUCE, 9, topic_data=data, acks=-1,
            timeout_ms=5_000, transactional_id=self.transactional_id,
        )  # fmt: skip
        (entry,) = response.responses[0].partition_responses
        assert entry.error_code == 0

    def begin_end(self, is_commit: bool = True) -> list[Any]:
        return self.begin_request("end", self.producer, is_commit, self.version)

    def end(self, is_commit: bool = True) -> None:
        """Send EndTxn, and continue with the pair in the response."""
        self._take(self.request("end", self.producer, is_commit, self.version))

    def stored(self) -> Transaction:
        return self.host.machine.describe(self.transactional_id)

    @property
    def state(self) -> TransactionState:
        return self.stored().state

    def wait_for(self, state: TransactionState) -> None:
        self.cluster.until(lambda: self.state is state)


def markers(cluster: Clients, topic: str, partition: int = 0) -> list[tuple[int, int, bool]]:
    """Return (producer epoch, coordinator epoch, is commit) of the markers in a leader's log."""
    log = cluster.node(cluster.leader(topic, partition)).replicas.leader(topic, partition).log
    found = read(log, log.log_start_offset, 1 << 20, log.end_offset)
    return [
        (
            batch.header.producer_epoch,
            int.from_bytes(record.value[2:6], "big"),
            record.key[2:4] == b"\x00\x01",
        )
        for batch in (batches(found.read()) if found is not None else ())
        if batch.header.is_control
        for record in batch
    ]


def is_stable(cluster: Clients, topic: str, partition: int = 0) -> bool:
    """Return whether the last stable offset is the log end offset."""
    found = cluster.node(cluster.leader(topic, partition)).replicas.leader(topic, partition)
    return found.last_stable_offset == found.log.end_offset
