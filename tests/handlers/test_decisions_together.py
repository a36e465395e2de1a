"""Requests of one tick to a transaction coordinator: their decisions share a batch, all or none."""

from __future__ import annotations

import shutil

import pytest

from kafkalite import errors
from kafkalite.coordination.transaction_coordinator import TransactionCoordinator
from kafkalite.protocol.schemas.transaction_records import TransactionState
from kafkalite.protocol.schemas.transactions import END_TXN
from kafkalite.records.batch import batches
from kafkalite.storage.log.log_reader import read
from tests.handlers.conftest import InProcess
from tests.handlers.grouping import find
from tests.handlers.transacting import add, end, hold_markers, host, init, stored

IDS = ["a", "b", "c"]
WHERE = ("t", 0)
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
BUSY = errors.ConcurrentTransactions.code


@pytest.fixture
def ongoing(transactional):
    """Return a node with an open transaction of each id."""
    find(transactional, key_type=1)
    transactional.create("t")
    transactional.pairs = {}
    for name in IDS:
        _, *transactional.pairs[name] = init(transactional, name=name)
        add(transactional, 3, transactional.pairs[name], WHERE, name=name)
    return transactional


def send_end(broker, name, committed=True):
    producer_id, epoch = broker.pairs[name]
    return broker.send(
        END_TXN, 5, transactional_id=name, producer_id=producer_id, producer_epoch=epoch,
        committed=committed,
    )  # fmt: skip


def codes(broker, *wires):
    broker.until(lambda: all(wire.sent is not None for wire in wires))
    return [broker.response(wire, END_TXN, 5).error_code for wire in wires]


def states(broker):
    return [stored(broker, name).state for name in IDS]


def counts_after(broker, offset):
    """Return the number of records in each batch of the coordinator's log from an offset on."""
    log = host(broker).partition.log
    found = read(log, offset, 1 << 20, log.end_offset)
    return [batch.header.count for batch in batches(found.read())]


def test_ends_of_a_tick_share_a_batch(ongoing):
    hold_markers(ongoing)
    before = host(ongoing).partition.log.end_offset
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [0, 0, 0]
    assert states(ongoing) == [PREPARE_COMMIT] * 3
    assert counts_after(ongoing, before) == [3]


def test_transactions_are_complete_in_the_tick_of_their_ends(ongoing):
    """Their producers get the responses after it, and have nothing to wait for."""
    before = host(ongoing).partition.log.end_offset
    wires = [send_end(ongoing, name) for name in IDS]
    ongoing.reactor.tick(0)
    assert all(wire.sent is not None for wire in wires)
    assert states(ongoing) == [COMPLETE_COMMIT] * 3
    assert counts_after(ongoing, before) == [3, 3]


def test_requests_about_the_same_id_are_decided_in_their_order(ongoing):
    hold_markers(ongoing)
    before = host(ongoing).partition.log.end_offset
    committed, other, aborted = (
        send_end(ongoing, "a"), send_end(ongoing, "b"), send_end(ongoing, "a", False)
    )  # fmt: skip
    assert codes(ongoing, committed, other) == [0, 0]
    assert codes(ongoing, aborted)[0] in (BUSY, errors.InvalidTxnState.code)
    assert states(ongoing) == [PREPARE_COMMIT, PREPARE_COMMIT, ONGOING]
    assert counts_after(ongoing, before) == [2]


def test_refused_decision_leaves_those_of_the_same_tick(ongoing):
    hold_markers(ongoing)
    ongoing.pairs["b"] = [ongoing.pairs["b"][0], 99]
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [0, errors.ProducerFenced.code, 0]
    assert states(ongoing) == [PREPARE_COMMIT, ONGOING, PREPARE_COMMIT]


def test_decision_about_all_ids_follows_those_that_wait(ongoing):
    hold_markers(ongoing)
    wire = send_end(ongoing, "a")
    assert states(ongoing) == [ONGOING] * 3
    seen = host(ongoing).read(lambda machine: machine.describe("a").state)
    seen.then(lambda state, _: check_prepared(state))
    assert seen.settled and codes(ongoing, wire) == [0]


def check_prepared(state):
    assert state is PREPARE_COMMIT


def test_many_requests_of_a_tick_have_several_batches(ongoing, monkeypatch):
    hold_markers(ongoing)
    monkeypatch.setattr("kafkalite.broker.coordinator.coordinator_host.TOGETHER_MAX", 2)
    before = host(ongoing).partition.log.end_offset
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [0, 0, 0]
    assert counts_after(ongoing, before) == [2, 1]


def test_large_decisions_do_not_wait_for_the_end_of_the_tick(ongoing, monkeypatch):
    """The time for them is that for reading requests, which a tick bounds."""
    hold_markers(ongoing)
    where = "kafkalite.broker.coordinator.coordinator_host.BATCH_UNITS_MAX"
    monkeypatch.setattr(where, 4, raising=False)
    ongoing.create("u", 3)
    add(ongoing, 3, ongoing.pairs["b"], *[("u", index) for index in range(3)], name="b")
    send_end(ongoing, "a")
    assert states(ongoing) == [ONGOING] * 3
    send_end(ongoing, "b")
    assert states(ongoing) == [PREPARE_COMMIT, PREPARE_COMMIT, ONGOING]


def test_batch_that_cannot_be_appended_fails_all_its_decisions(ongoing, monkeypatch):
    hold_markers(ongoing)
    log = host(ongoing).partition.log
    before = log.end_offset

    def refuse(*_, **__):
        raise errors.KafkaStorageError("the disk is full")

    monkeypatch.setattr(log, "append", refuse)
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [errors.NotCoordinator.code] * 3
    assert states(ongoing) == [ONGOING] * 3 and log.end_offset == before
    monkeypatch.undo()
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [0, 0, 0]


def test_unexpected_error_fails_the_requests_and_not_the_node(ongoing, monkeypatch):
    hold_markers(ongoing)

    def fail(*_):
        raise ValueError("unexpected")

    monkeypatch.setattr(TransactionCoordinator, "end", fail)
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [errors.UnknownServerError.code] * 3
    monkeypatch.undo()
    assert end(ongoing, 5, ongoing.pairs["a"], "a")[0] == 0


@pytest.mark.parametrize("is_whole", [False, True])
def test_crash_keeps_all_decisions_of_a_batch_or_none(ongoing, is_whole):
    hold_markers(ongoing)
    wires = [send_end(ongoing, name) for name in IDS]
    assert codes(ongoing, *wires) == [0, 0, 0]
    log = host(ongoing).partition.log
    path, size = log.active.path.relative_to(ongoing.directory), log.active.size
    copy = ongoing.directory.with_name("copy")
    shutil.copytree(ongoing.directory, copy, ignore=shutil.ignore_patterns("*.tmp"))
    with (copy / path).open("r+b") as file:
        file.truncate(size if is_whole else size - 1)
    restarted = InProcess(copy)
    restarted.until(lambda: [*restarted.node.transactions])
    if is_whole:
        restarted.until(lambda: states(restarted) == [COMPLETE_COMMIT] * 3)
    else:
        assert states(restarted) == [ONGOING] * 3
    restarted.close()
