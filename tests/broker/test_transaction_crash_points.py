"""Crash points of a transaction before its end is decided, and of what follows it at a leader.

tests/faults/test_fault_table.py lists the points and the tests of each.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.broker.controller.remote_controller import RemoteController
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.errors import KafkaStorageError, UnstableOffsetCommit
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR, OFFSET_FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transaction_records import TransactionState
from kafkalite.protocol.schemas.transactions import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from kafkalite.records.batch import Record, build
from tests.broker.conftest import Clients
from tests.broker.transacting import is_stable, markers
from tests.simulation.cluster import ClientRequest

RETRIABLE = {-1, 3, 6, 14, 15, 16, 19, 51}
"""Error codes after which clients repeat a request; -1 stands for a lost connection."""
ID = "id"
TIMEOUT_MS = 60_000
VERIFYING, ADDING = 11, 12
ENDED = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
ABORTED, COMMITTED = False, True


class Application:
    """A transactional producer whose requests reach the nodes as a client's do."""

    def __init__(self, cluster: Clients) -> None:
        self.cluster = cluster
        self.pair = ProducerEpoch(-1, -1)

    def repeated(self, send: Any, code_of: Any) -> Any:
        """Send a request until its error is not retriable; return the response."""
        found: list[Any] = []

        def is_answered() -> bool:
            pending = send()
            self.cluster.until(lambda: pending.is_done)
            code = -1 if pending.closed else code_of(pending.response)
            found[:] = [] if code in RETRIABLE else [pending.response]
            return bool(found)

        self.cluster.until(is_answered, pace_ms=20)
        assert code_of(found[0]) == 0
        return found[0]

    def init(self) -> None:
        response = self.repeated(
            lambda: self.cluster.send(
                0, INIT_PRODUCER_ID, 5, transactional_id=ID, transaction_timeout_ms=TIMEOUT_MS,
                producer_id=-1, producer_epoch=-1,
            ),
            lambda found: found.error_code,
        )  # fmt: skip
        self.pair = ProducerEpoch(response.producer_id, response.producer_epoch)

    def send_added(self, partition: int = 0) -> ClientRequest:
        return self.cluster.send(
            0, ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.pair[0], v3_and_below_producer_epoch=self.pair[1],
            v3_and_below_topics=[{"name": "t", "partitions": [partition]}],
        )  # fmt: skip

    def send_records(self, version: int = ADDING) -> ClientRequest:
        batch = build(
            [Record(timestamp=self.cluster.clock.wall_ms(), value=b"v")],
            producer_id=self.pair[0], producer_epoch=self.pair[1], base_sequence=0,
            transactional=True,
        )  # fmt: skip
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
        return self.cluster.send(
            1, PRODUCE, version, transactional_id=ID, acks=-1, timeout_ms=5_000, topic_data=data
        )

    def send_offset(self) -> ClientRequest:
        entry = {"partition_index": 0, "committed_offset": 7, "committed_metadata": None}
        topics = [{"name": "t", "partitions": [entry]}]
        return self.cluster.send(
            0, TXN_OFFSET_COMMIT, 5, transactional_id=ID, group_id="g", producer_id=self.pair[0],
            producer_epoch=self.pair[1], member_id="", topics=topics,
        )  # fmt: skip

    def send_end(self, is_commit: bool) -> ClientRequest:
        return self.cluster.send(
            0, END_TXN, 5, transactional_id=ID, producer_id=self.pair[0],
            producer_epoch=self.pair[1], committed=is_commit,
        )  # fmt: skip

    def add(self) -> None:
        self.repeated(
            self.send_added,
            lambda found: found.results_by_topic_v3_and_below[0]
            .results_by_partition[0].partition_error_code,
        )  # fmt: skip

    def produce(self, version: int = ADDING) -> None:
        def code(response: Any) -> int:
            return int(response.responses[0].partition_responses[0].error_code)

        self.repeated(lambda: self.send_records(version), code)

    def commit_offset(self) -> None:
        self.repeated(self.send_offset, lambda found: found.topics[0].partitions[0].error_code)

    def end(self, is_commit: bool = COMMITTED) -> None:
        """Send EndTxn, and wait until its markers are written."""
        self.repeated(lambda: self.send_end(is_commit), lambda found: found.error_code)
        self.cluster.until(lambda: self.state in ENDED, pace_ms=20)

    @property
    def stored(self) -> Any:
        return self.cluster.node(0).transactions.host_of(ID).machine.describe(ID)

    @property
    def state(self) -> TransactionState:
        return self.stored.state

    def kill(self, *nodes: int) -> None:
        """Kill nodes, and wait until they are back."""
        for node_id in nodes:
            self.cluster.kill(node_id)
        self.cluster.until(lambda: 0 in self.cluster.running and self.cluster.is_settled())

    def offset(self, *, require_stable: bool = True) -> tuple[int, int]:
        """Return the error code and the committed offset of the group."""
        topics = [{"name": "t", "partition_indexes": [0]}]
        found = self.cluster.request(
            0, OFFSET_FETCH, 7, group_id="g", topics=topics, require_stable=require_stable
        )
        (partition,) = found.topics[0].partitions
        return partition.error_code, partition.committed_offset


@pytest.fixture
def application(begun):
    """Return a function that starts an application beside a cluster whose worker 1 leads t-0."""

    def begin(**settings):
        cluster = begun(1, **settings)
        cluster.create("t", at=0)
        cluster.until(lambda: cluster.leader("t") == 1)
        for key_type in (0, 1):
            keys = {"key_type": key_type, "coordinator_keys": [ID]}
            found = cluster.request(0, FIND_COORDINATOR, 4, **keys)
            assert found.coordinators[0].error_code == 0
        cluster.settle()
        made = Application(cluster)
        made.init()
        return made

    return begin


def leader_log(cluster):
    return cluster.node(1).replicas.leader("t", 0).log


def test_partition_lost_by_the_supervisor_before_its_commit_is_added_again(application):
    app = application(durability="fsync")
    cluster = app.cluster
    cluster.running[0].flusher.held = True
    sent = app.send_added()
    cluster.until(lambda: app.state is ONGOING)
    assert not sent.is_done
    app.kill(0)
    assert app.state in (EMPTY, ONGOING)
    app.add()
    app.produce(VERIFYING)
    app.end()
    assert cluster.values("t")[0] == b"v" and is_stable(cluster, "t")
    assert [each[2] for each in markers(cluster, "t")] == [COMMITTED]


def test_partition_added_by_a_worker_that_died_is_verified_again(application):
    app = application()
    cluster = app.cluster
    sent = app.send_records()
    while app.state is EMPTY:
        cluster.tick(1)
        for identity in [*cluster.bus.to_server]:
            cluster.deliver_up(identity)
    assert not leader_log(cluster).end_offset
    app.kill(1)
    assert sent.closed
    # The partition is in the transaction, without any record.
    assert app.stored.partitions == {("t", 0)} and cluster.values("t") == []
    app.produce()
    app.end()
    assert cluster.values("t")[0] == b"v" and is_stable(cluster, "t")
    assert len(cluster.values("t")) == 2  # the record and the marker


@pytest.mark.parametrize("is_commit", [ABORTED, COMMITTED])
def test_first_records_of_a_worker_that_died_are_appended_once(application, is_commit):
    app = application(durability="fsync")
    cluster = app.cluster
    cluster.running[1].flusher.held = True
    sent = app.send_records()
    cluster.until(lambda: leader_log(cluster).end_offset)
    assert not sent.is_done
    app.kill(1)
    assert sent.closed
    # The process is dead, the machine is not: the records are in the page cache.
    assert cluster.values("t") == [b"v"] and not is_stable(cluster, "t")
    app.produce()
    assert cluster.values("t") == [b"v"]
    app.end(is_commit)
    assert is_stable(cluster, "t") and [each[2] for each in markers(cluster, "t")] == [is_commit]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_end_lost_by_the_supervisor_is_repeated_or_times_out(application, is_repeated, monkeypatch):
    app = application()
    cluster = app.cluster
    app.produce()

    def refuse(*_: Any, **__: Any) -> None:
        raise KafkaStorageError("the process dies here")

    host = cluster.node(0).transactions.host_of(ID)
    monkeypatch.setattr(host.partition.log, "append", refuse)
    sent = app.send_end(COMMITTED)
    app.kill(0)
    assert sent.closed or sent.response.error_code in RETRIABLE
    assert app.state is ONGOING and not is_stable(cluster, "t")
    if is_repeated:
        app.end()
    else:
        cluster.clock.advance(TIMEOUT_MS)
        cluster.until(lambda: app.state in ENDED, pace_ms=20)
    assert is_stable(cluster, "t") and [each[2] for each in markers(cluster, "t")] == [is_repeated]


def test_index_entry_lost_by_a_worker_is_rebuilt_from_the_marker(application):
    app = application()
    cluster = app.cluster
    app.produce()
    app.end(ABORTED)
    aborted = [(app.pair[0], 0)]
    assert not [*cluster.directory.rglob("*.txnindex")], "the entry is in memory only"
    cluster.kill(1)
    first: list[Any] = []

    def is_served() -> bool:
        """Keep the first response with records: it must name the aborted transaction."""
        if 1 not in cluster.running:
            return False
        pending = cluster.send(
            1, FETCH, 12, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20,
            isolation_level=1, session_epoch=-1, topics=[{
                "topic": "t",
                "partitions": [
                    {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
                ],
            }],
        )  # fmt: skip
        cluster.until(lambda: pending.is_done)
        (entry,) = () if pending.closed else pending.response.responses[0].partitions
        first[:] = [entry] if entry.error_code == 0 else []
        return bool(first)

    cluster.until(is_served)
    assert first[0].last_stable_offset == 2
    found = [(each.producer_id, each.first_offset) for each in first[0].aborted_transactions]
    assert found == aborted


def test_offset_lost_by_the_supervisor_leaves_nothing_pending(application):
    app = application(durability="fsync")
    cluster = app.cluster
    cluster.running[0].flusher.held = True
    app.send_offset()
    cluster.until(lambda: app.state is ONGOING)
    (partition,) = app.stored.partitions
    assert partition[0] == "__consumer_offsets"
    app.kill(0)
    # In the transaction, and nothing is pending: the marker has no effect.
    assert app.stored.partitions == {partition}
    assert app.offset() == (0, -1)
    app.end()
    assert app.offset() == (0, -1) and is_stable(cluster, *partition)
    app.init()
    app.commit_offset()
    assert app.offset() == (UnstableOffsetCommit.code, -1)
    app.end()
    cluster.until(lambda: app.offset() == (0, 7))


def test_worker_of_older_code_gets_the_markers_when_it_is_replaced(application, monkeypatch):
    """In a rolling upgrade the supervisor is the first; a worker drops messages it cannot know."""
    app = application()
    cluster = app.cluster
    app.produce()
    known = dict(RemoteController._HANDLERS)
    monkeypatch.setattr(RemoteController, "_HANDLERS", {
        key: handle for key, handle in known.items() if key != bus.WRITE_MARKERS.key
    })  # fmt: skip
    app.repeated(lambda: app.send_end(COMMITTED), lambda found: found.error_code)
    for _ in range(100):
        cluster.step()
        cluster.clock.advance(100)
    assert app.state is TransactionState.PREPARE_COMMIT and not markers(cluster, "t")
    monkeypatch.undo()
    app.kill(1)
    cluster.until(lambda: app.state in ENDED, pace_ms=20)
    assert is_stable(cluster, "t") and [each[2] for each in markers(cluster, "t")] == [COMMITTED]
