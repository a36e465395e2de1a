"""TransactionHarness: runs a TransactionCoordinator, without a log and a node."""

from __future__ import annotations

from itertools import count
from typing import Any

from kafkalite.coordination.machine import Reply
from kafkalite.coordination.transaction import NO_PRODUCER, ProducerEpoch
from kafkalite.coordination.transaction_coordinator import (
    Decision,
    InitOptions,
    TransactionCoordinator,
    TransactionLimits,
)
from kafkalite.errors import ConcurrentTransactions, CoordinatorNotAvailable
from kafkalite.protocol.schemas import transaction_records
from kafkalite.protocol.schemas.transaction_records import TransactionRecord, TransactionState

LIMITS = TransactionLimits(900_000, 604_800_000, 3_600_000, 2)
TIMEOUT_MS = 60_000
A, B = frozenset({("a", 0)}), frozenset({("b", 0), ("b", 1)})
BEGIN_WALL_MS = 1_700_000_000_000


class TransactionHarness:
    """Runs a machine as its host does: replays records at once, or loses them."""

    def __init__(self, limits: TransactionLimits = LIMITS) -> None:
        self.producer_ids = count(100)
        self.now_ms, self.wall_ms = 1_000, BEGIN_WALL_MS
        self.log: list[TransactionRecord] = []
        self.machine = TransactionCoordinator(limits, self.take_producer_id)
        self.machine.loaded(self.now_ms, self.wall_ms)
        self.has_producer_ids = True
        self.kept: tuple[int | None, int | None] = (None, None)
        """The pair of the Ongoing transaction in the last response to `init`."""

    def take_producer_id(self) -> int:
        if not self.has_producer_ids:
            raise CoordinatorNotAvailable()
        return next(self.producer_ids)

    def write(self, decision: Decision) -> list[Reply]:
        for record in decision.records:
            key, value = transaction_records.write(record)
            assert transaction_records.read(key, value) is not None
            self.machine.replay(record)
            self.log.append(record)
        return decision.response

    def respond(self, decision: Decision) -> dict[str, Any]:
        (reply,) = self.write(decision)
        assert reply.token == "token"
        return reply.response

    def init(self, current: ProducerEpoch = NO_PRODUCER, **options: Any) -> ProducerEpoch:
        name = options.pop("name", "id")
        requested = InitOptions(**{"timeout_ms": TIMEOUT_MS, **options})
        response = self.respond(
            self.machine.init_producer_id(name, current, requested, "token", self.wall_ms)
        )
        if response["error_code"]:
            assert response == {
                "error_code": ConcurrentTransactions.code, "producer_id": -1, "producer_epoch": -1,
            }  # fmt: skip
            raise ConcurrentTransactions()
        self.kept = (
            response.get("ongoing_txn_producer_id"),
            response.get("ongoing_txn_producer_epoch"),
        )
        return ProducerEpoch(response["producer_id"], response["producer_epoch"])

    def add(self, producer: ProducerEpoch, partitions: frozenset = A, name: str = "id") -> None:
        response = self.respond(
            self.machine.add_partitions(
                name, producer, partitions, 2, "token", self.now_ms, self.wall_ms
            )
        )
        assert response == {"error_code": 0}

    def end(
        self, producer: ProducerEpoch, is_commit: bool, version: int = 2, name: str = "id"
    ) -> ProducerEpoch:
        response = self.respond(
            self.machine.end(name, producer, is_commit, version, "token", self.wall_ms)
        )
        assert response["error_code"] == 0
        return ProducerEpoch(response["producer_id"], response["producer_epoch"])

    def complete(self, name: str = "id") -> None:
        prepared = self.machine.describe(name)
        assert self.write(self.machine.complete(name, prepared, self.wall_ms)) == []

    def tick(self, milliseconds: int = 0) -> int:
        """Advance the clocks and handle what is due; return the number of records."""
        self.now_ms += milliseconds
        self.wall_ms += milliseconds
        decision = self.machine.tick(self.now_ms, self.wall_ms)
        assert self.write(decision) == []
        return len(decision.records)

    def reload(self) -> None:
        """Replace the machine by one that replays the bytes of the last record of each id."""
        latest = {transaction_records.write(each)[0]: each for each in self.log}
        self.machine = TransactionCoordinator(self.machine.limits, self.take_producer_id)
        for record in latest.values():
            found = transaction_records.read(*transaction_records.write(record))
            assert found is not None
            self.machine.replay(found)
        self.machine.loaded(self.now_ms, self.wall_ms)

    def state(self, name: str = "id") -> TransactionState:
        return self.machine.describe(name).state
