"""Coordinators loaded from a compacted log: any records and transactions, cleaned at any point,
also during a load."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.broker.coordinator import journal_loader
from kafkalite.broker.coordinator.journal_loader import JournalLoader, RecordCodec
from kafkalite.config import topic as keys
from kafkalite.coordination.groups.group_coordinator import GroupCoordinator
from kafkalite.coordination.groups.offsets.committed_offsets import UNSTABLE
from kafkalite.coordination.machine import TransactionalRecord, TransactionEnd
from kafkalite.coordination.transaction_coordinator import (
    TransactionCoordinator,
    TransactionLimits,
)
from kafkalite.protocol.schemas import group_records, transaction_records
from kafkalite.protocol.schemas.group_records import OffsetCommitValue, OffsetKey, offset_record
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kafkalite.records.batch import Record, build
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.coordination.groups.harness import LIMITS, coordinator
from tests.storage.cleaning_harness import DELETE_RETENTION_MS, run_pass
from tests.storage.factories import NOW, close, open_log

CODEC = RecordCodec(group_records.write, group_records.read, is_transactional=True)
COMPACT = {keys.CLEANUP_POLICY: ("compact",)}
INDEXES = st.integers(0, 1)
PRODUCERS = st.integers(1, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), INDEXES),
        st.tuples(st.just("delete"), INDEXES),
        st.tuples(st.just("pend"), INDEXES, PRODUCERS),
        st.tuples(st.just("end"), st.booleans(), PRODUCERS),
        st.just(("roll",)),
        st.tuples(st.just("clean"), st.integers(0, 4)),
    ),
    min_size=5,
    max_size=30,
)


class CompactedOffsets:
    """A group coordinator, and its log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.groups = self.new()
        self.count = 0

    def new(self) -> GroupCoordinator:
        return coordinator(LIMITS)

    def append(self, record: Any, **how: Any) -> None:
        key, value = group_records.write(record)
        batch = build([Record(timestamp=NOW, key=key, value=value)], **how)
        self.log.append(batch, 0, from_client=False, guard=NOT_REQUIRED)

    def commit(self, index: int) -> None:
        self.count += 1
        record = offset_record(OffsetKey("g", "t", index), OffsetCommitValue(self.count, 0, "", 0))
        self.append(record)
        self.groups.replay(record)

    def delete(self, index: int) -> None:
        record = offset_record(OffsetKey("g", "t", index), None)
        self.append(record)
        self.groups.replay(record)

    def pend(self, index: int, producer_id: int) -> None:
        self.count += 1
        record = offset_record(OffsetKey("g", "t", index), OffsetCommitValue(self.count, 0, "", 0))
        self.append(record, producer_id=producer_id, producer_epoch=0, transactional=True)
        self.groups.replay(TransactionalRecord(record, producer_id, 0))

    def end(self, is_commit: bool, producer_id: int) -> None:
        self.log.append_marker(TransactionMarker(producer_id, 0, is_commit, 0), 0)
        self.groups.replay(TransactionEnd(producer_id, is_commit))

    def roll(self) -> None:
        self.log.roll()

    def clean(self, step: int) -> None:
        """Clean twice, the second time past the delete horizons of the first.

        The first pass ends after some steps of a load, and another load follows both.
        """
        self.check_load(step)
        run_pass(self.log, now_ms=NOW + 2 * DELETE_RETENTION_MS)
        self.check_load()

    def check_load(self, clean_at: int | None = None) -> None:
        """Compare the offsets with those of a coordinator that loads the log in small steps."""
        loaded = self.new()
        partition = SimpleNamespace(log=self.log)
        steps = JournalLoader(partition, CODEC, loaded).steps()  # type: ignore[arg-type]
        with mock.patch.object(journal_loader, "READ_SIZE", 1):
            for number, _ in enumerate(steps):
                if number == clean_at:
                    run_pass(self.log, now_ms=NOW)
                    clean_at = None
        if clean_at is not None:
            run_pass(self.log, now_ms=NOW)
        assert offsets_of(loaded) == offsets_of(self.groups)


def offsets_of(groups: GroupCoordinator) -> dict[int, tuple[int | None, bool]]:
    """Return the committed offset of each partition, and whether it is unstable."""
    wanted = {"t": [0, 1]}
    committed = groups.fetch_offsets("g", wanted).get("t", {})
    stable = groups.fetch_offsets("g", wanted, require_stable=True).get("t", {})
    return {
        index: (
            committed[index].offset if index in committed else None,
            stable.get(index) is UNSTABLE,
        )
        for index in (0, 1)
    }


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_load_of_a_compacted_log_restores_the_offsets(steps):
    with tempfile.TemporaryDirectory() as directory:
        log = open_log(Path(directory) / "log", COMPACT)
        offsets = CompactedOffsets(log)
        for name, *arguments in [*steps, ("roll",), ("clean", 0)]:
            getattr(offsets, name)(*arguments)
        close(log)


IDS = st.sampled_from(["a", "b"])
STATES = st.none() | st.sampled_from(TransactionState)


@given(steps=st.lists(st.tuples(IDS, STATES) | st.integers(0, 4), min_size=5, max_size=30))
@settings(max_examples=40, deadline=None)
def test_load_of_a_compacted_log_restores_the_transactional_ids(steps):
    """A number is a step of a load at which the log is cleaned."""
    codec = RecordCodec(transaction_records.write, transaction_records.read)
    limits = TransactionLimits(1, 1, 1, 2)
    with tempfile.TemporaryDirectory() as directory:
        log = open_log(Path(directory) / "log", COMPACT)
        expected = {}
        for producer_id, step in enumerate([*steps, 0]):
            if not isinstance(step, int):
                name, state = step
                transaction = None if state is None else Transaction(producer_id, 0, 1, state)
                key, value = transaction_records.write(TransactionRecord(name, transaction))
                log.append(build([Record(timestamp=NOW, key=key, value=value)]), 0)
                expected[name] = transaction
                continue
            log.roll()
            machine = TransactionCoordinator(limits, lambda: 0)
            partition = SimpleNamespace(log=log)
            loader = JournalLoader(partition, codec, machine)  # type: ignore[arg-type]
            with mock.patch.object(journal_loader, "READ_SIZE", 1):
                for number, _ in enumerate(loader.steps()):
                    if number == step:
                        run_pass(log, now_ms=NOW + producer_id * 2 * DELETE_RETENTION_MS)
            found = dict(machine.transactions())
            assert found == {name: each for name, each in expected.items() if each is not None}
        close(log)
