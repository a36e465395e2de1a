"""Transactions in a simulated cluster under random faults: processes, messages and moves.

Clients of both transaction versions send one request at a time and repeat what has no response, as
real ones do.  Each transaction writes its number to some partitions, and most commit it as their
group's offset.  Once the cluster is healed and each transaction has ended, by its client or by its
timeout: no partition has an open transaction, each transaction has the same outcome in all its
partitions and in the group's offset, and what the client knows about it holds.  One seed gives one
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kafkalite.coordination.placement import PartitionMove
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR, OFFSET_FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS
from kafkalite.protocol.schemas.transaction_records import TransactionState
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.log.log_reader import read
from tests.simulation.cluster import ClientRequest, Cluster, internal_factors
from tests.simulation.faults import ClusterFaults

PARTITIONS = 4
TIMEOUT_MS = 20_000
GROUP, TRANSACTIONAL_ID = 0, 1
RETRIABLE = {3, 5, 6, 7, 14, 15, 16, 19, 51}
ENDED = {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


class TransactionFailed(Exception):
    """The client cannot continue its transaction; the outcome is open."""


class TransactionalClient:
    """A producer with a transactional id; `step` sends its next request if it has a response."""

    def __init__(self, cluster: Cluster, name: str, version: int) -> None:
        self.cluster = cluster
        self.name = name
        self.version = version
        self.outcomes: dict[bytes, bool] = {}
        """By transaction: True if committed, False if aborted; without those of unknown outcome."""
        self.acknowledged: dict[bytes, set[int]] = {}
        """The partitions in which the records of a transaction were acknowledged."""
        self.offset_commits: list[bytes] = []
        """The transactions with an acknowledged offset commit, in order."""
        self.is_stopping = False
        self._pair = (-1, -1)
        self._sequences: Counter[int] = Counter()
        self._number = 0
        self._pending: ClientRequest | None = None
        self._again: Callable[[], ClientRequest] = self._init
        self._run = self._requests()
        self._read: Callable[[Any], int] = lambda _: 0
        next(self._run)

    @property
    def is_idle(self) -> bool:
        return self.is_stopping and self._run.gi_frame is None

    def step(self) -> None:
        """Handle the response, if there is one, and send the next request."""
        if self._pending is not None:
            if not self._pending.is_done:
                return
            pending, self._pending = self._pending, None
            code = -1 if pending.closed else self._read(pending.response)
            if pending.closed or code in RETRIABLE:
                self._pending = self._again()
                return
            try:
                self._run.send((code, pending.response))
            except StopIteration:
                return
        elif self.is_idle:
            return
        self._pending = self._again()

    def _requests(self) -> Iterator[Any]:
        """Run transactions; yield for each request, and receive its response."""
        yield
        while not self.is_stopping:
            try:
                if self._pair[0] < 0:
                    yield from self._begin()
                yield from self._transaction()
            except TransactionFailed:
                self._pair = (-1, -1)

    def _begin(self) -> Iterator[Any]:
        self._again, self._read = self._init, lambda response: response.error_code
        code, response = yield
        if code:
            raise TransactionFailed
        self._pair = response.producer_id, response.producer_epoch
        self._sequences.clear()

    def _transaction(self) -> Iterator[Any]:
        random = self.cluster.random
        self._number += 1
        key = f"{self.name}-{self._number}".encode()
        acknowledged = self.acknowledged.setdefault(key, set())
        for partition in random.sample(range(PARTITIONS), random.randint(1, 3)):
            if self.version < 2:
                yield from self._checked(lambda p=partition: self._add(p), added_code)
            yield from self._checked(lambda p=partition: self._produce(key, p), produced_code)
            acknowledged.add(partition)
            self._sequences[partition] += 1
        if random.random() < 0.7:
            if self.version < 2:
                yield from self._checked(self._add_offsets, lambda r: r.error_code)
            yield from self._checked(self._commit_offset, offset_code)
            self.offset_commits.append(key)
        is_commit = random.random() < 0.7
        response = yield from self._checked(lambda: self._end(is_commit), lambda r: r.error_code)
        self.outcomes[key] = is_commit
        if self.version >= 2:
            pair = response.producer_id, response.producer_epoch
            assert pair[1] > self._pair[1] or pair[0] != self._pair[0], "the epoch was not raised"
            self._pair = pair
            self._sequences.clear()

    def _checked(self, send: Callable[[], ClientRequest], read_code: Any) -> Iterator[Any]:
        self._again, self._read = send, read_code
        code, response = yield
        if code:
            raise TransactionFailed
        return response

    # -- requests ----------------------------------------------------------------------------

    def _init(self) -> ClientRequest:
        return self._send(
            0, INIT_PRODUCER_ID, 5, transactional_id=self.name,
            transaction_timeout_ms=TIMEOUT_MS, producer_id=-1, producer_epoch=-1,
        )  # fmt: skip

    def _add(self, partition: int) -> ClientRequest:
        return self._send(
            0, ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._pair[0], v3_and_below_producer_epoch=self._pair[1],
            v3_and_below_topics=[{"name": "t", "partitions": [partition]}],
        )  # fmt: skip

    def _produce(self, key: bytes, partition: int) -> ClientRequest:
        batch = build(
            [Record(timestamp=self.cluster.clock.wall_ms(), value=key)],
            producer_id=self._pair[0], producer_epoch=self._pair[1],
            base_sequence=self._sequences[partition], transactional=True,
        )  # fmt: skip
        data = [{"name": "t", "partition_data": [{"index": partition, "records": batch}]}]
        leader = 0
        if 0 in self.cluster.running:
            leader = self.cluster.leader("t", partition)
        return self._send(
            leader, PRODUCE, 12 if self.version >= 2 else 11, topic_data=data, acks=-1,
            timeout_ms=5_000, transactional_id=self.name,
        )  # fmt: skip

    def _add_offsets(self) -> ClientRequest:
        return self._send(
            0, ADD_OFFSETS_TO_TXN, 3, transactional_id=self.name, producer_id=self._pair[0],
            producer_epoch=self._pair[1], group_id=self.name,
        )  # fmt: skip

    def _commit_offset(self) -> ClientRequest:
        partitions = [
            {"partition_index": 0, "committed_offset": self._number, "committed_metadata": None}
        ]
        return self._send(
            0, TXN_OFFSET_COMMIT, 5 if self.version >= 2 else 3, transactional_id=self.name,
            group_id=self.name, producer_id=self._pair[0], producer_epoch=self._pair[1],
            member_id="", topics=[{"name": "t", "partitions": partitions}],
        )  # fmt: skip

    def _end(self, is_commit: bool) -> ClientRequest:
        return self._send(
            0, END_TXN, 5 if self.version >= 2 else 4, transactional_id=self.name,
            producer_id=self._pair[0], producer_epoch=self._pair[1], committed=is_commit,
        )  # fmt: skip

    def _send(self, node_id: int, api: Api, version: int, **request: Any) -> ClientRequest:
        return self.cluster.send(node_id, api, version, **request)


def added_code(response: Any) -> int:
    (topic,) = response.results_by_topic_v3_and_below
    return int(topic.results_by_partition[0].partition_error_code)


def offset_code(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def produced_code(response: Any) -> int:
    code = int(response.responses[0].partition_responses[0].error_code)
    return 0 if code == 46 else code  # a duplicate was appended before


class TransactionSimulation:
    """One run."""

    def __init__(self, directory: Path, seed: int, replicas: int = 1, **settings: str) -> None:
        """`replicas` is the number of those of the internal topics; with several, node 0 may lose
        its logs of them."""
        settings |= internal_factors(replicas)
        self.cluster = cluster = Cluster(directory, workers=2, seed=seed, **settings)
        self.faults = faults = ClusterFaults(cluster)
        self._create()
        self.clients = [
            TransactionalClient(cluster, f"id-{number}", version)
            for number, version in enumerate((0, 2, 2))
        ]
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[int, Callable[[], object]]] = [
            (120, self.run_undisturbed),
            (6, self.advance_clock),
            (6, self.move_partition),
            (1, faults.restart_broker),
            (5, faults.kill_process),
            (2, faults.shut_down_process),
            (8, faults.allow_restart),
            (3, faults.pause_process),
            (8, faults.resume_processes),
            (2, faults.break_connection),
            (4, faults.lose_message),
            (4, faults.duplicate_message),
            (4, faults.reorder_messages),
            (3, faults.hold_flushes),
            (8, faults.release_flushes),
        ]
        if replicas > 1:
            faults.keeps_workers = True
            self.events.append((2, faults.lose_coordinator_logs))

    def _create(self) -> None:
        topic = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1, "configs": []}
        created = self.cluster.request(0, CREATE_TOPICS, 7, topics=[topic], timeout_ms=5_000)
        assert created.topics[0].error_code == 0
        for key_type in (GROUP, TRANSACTIONAL_ID):
            found = self.cluster.request(
                0, FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=["id-0"]
            )
            assert found.coordinators[0].error_code == 0, found.coordinators[0].error_message
        self.cluster.settle()

    def run(self, steps: int) -> None:
        """Run `steps` random events, heal the cluster, end all transactions, and check them."""
        weights = [weight for weight, _ in self.events]
        for event in self.cluster.random.choices([e for _, e in self.events], weights, k=steps):
            event()
            self.counts[event.__name__] += 1
            self._step()
        for client in self.clients:
            client.is_stopping = True
        self.faults.heal()
        self.cluster.until(self._has_ended, pace_ms=25)
        self._check()
        self.cluster.close()

    def _step(self) -> None:
        self.cluster.launch()
        for client in self.clients:
            client.step()
        assert not self.cluster.deaths, self.cluster.deaths
        assert not self.cluster.faults, self.cluster.faults

    def _has_ended(self) -> bool:
        """Return whether the cluster has settled and no transaction is open or prepared."""
        self._step()
        return (
            self.cluster.is_settled()
            and all(client.is_idle for client in self.clients)
            and all(
                transaction.state in ENDED
                for host in self.cluster.node(0).transactions
                for _, transaction in host.machine.transactions()
            )
            and not len(self.cluster.node(0).transactions.markers.queue)
        )

    # -- events ------------------------------------------------------------------------------

    def run_undisturbed(self) -> None:
        for _ in range(self.cluster.random.randint(1, 20)):
            self.cluster.step()
            self._step()

    def advance_clock(self) -> None:
        self.cluster.clock.advance(self.cluster.random.choice([5, 100, 600, 2_500, TIMEOUT_MS]))
        self.cluster.connect()

    def move_partition(self) -> None:
        if 0 not in self.cluster.running or self.cluster.running[0].paused:
            return
        topic = self.cluster.image.topics["t"]
        partition = self.cluster.random.randrange(PARTITIONS)
        leader = topic.partitions[partition].leader
        target = self.cluster.random.choice(self.cluster.image.workers or [leader])
        if target != leader:
            self.cluster.supervisor.reassigner.plan(
                [PartitionMove(topic.topic_id, partition, leader, target)]
            )

    # -- checks ------------------------------------------------------------------------------

    def _check(self) -> None:
        for there in self.cluster.running.values():
            for partition in there.node.replicas:
                stable, end = partition.last_stable_offset, partition.high_watermark
                assert stable == end, f"{partition} is stable to {stable} of {end}"
        outcomes: dict[bytes, dict[int, bool]] = {}
        for index in range(PARTITIONS):
            node = self.cluster.node(self.cluster.leader("t", index))
            partition = node.replicas.leader("t", index)
            for key, is_commit in read_outcomes(partition.log):
                assert index not in outcomes.setdefault(key, {}), f"{key!r} is twice in t-{index}"
                outcomes[key][index] = is_commit
        for client in self.clients:
            for key, acknowledged in client.acknowledged.items():
                found = outcomes.get(key, {})
                assert len({*found.values()}) <= 1, f"{key!r} is torn: {found}"
                assert acknowledged <= found.keys(), f"{key!r} has lost records"
                if key in client.outcomes and found:
                    assert {*found.values()} == {client.outcomes[key]}, f"{key!r}: {found}"
            self._check_offset(client, outcomes)

    def _check_offset(
        self, client: TransactionalClient, outcomes: dict[bytes, dict[int, bool]]
    ) -> None:
        """Check that the group's offset is that of the last commit, stable or not."""
        committed = {key for key, found in outcomes.items() if True in found.values()}
        expected = [key for key in client.offset_commits if key in committed]
        for require_stable in (False, True):
            fetched = self.cluster.request(
                0, OFFSET_FETCH, 7, group_id=client.name, topics=None, require_stable=require_stable
            )
            assert fetched.error_code == 0
            offsets = [topic.partitions[0].committed_offset for topic in fetched.topics]
            key = f"{client.name}-{offsets[0]}".encode() if offsets else b""
            # The response to a later offset commit may have been lost.
            assert not offsets or key in committed, f"{key!r} was not committed"
            last = int(expected[-1].rpartition(b"-")[2]) if expected else 0
            assert max(offsets, default=0) >= last, f"offset {offsets} instead of {last}"


def read_outcomes(log: Any) -> Iterator[tuple[bytes, bool]]:
    """Yield the value of each transactional record with whether it is committed."""
    pending: dict[int, list[bytes]] = {}
    found = read(log, log.log_start_offset, 1 << 30, log.end_offset)
    for batch in batches(found.read()) if found is not None else ():
        producer_id = batch.header.producer_id
        for record in batch:
            if not batch.header.is_control:
                pending.setdefault(producer_id, []).append(record.value or b"")
            else:
                is_commit = (record.key or b"")[2:4] == b"\x00\x01"
                for value in pending.pop(producer_id, ()):
                    yield value, is_commit
    assert not pending
