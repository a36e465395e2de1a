"""Group offsets loaded from a compacted log: any commits and transactions, cleaned at any point."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.broker.coordinator.journal_loader import JournalLoader, RecordCodec
from kafkalite.config import topic as keys
from kafkalite.coordination.committed_offsets import UNSTABLE
from kafkalite.coordination.group_coordinator import GroupCoordinator
from kafkalite.coordination.machine import TransactionalRecord, TransactionEnd
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.group_records import OffsetCommitValue, OffsetKey, offset_record
from kafkalite.records.batch import Record, build
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log import Log
from kafkalite.storage.verification import NOT_REQUIRED
from tests.coordination.groups import LIMITS
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
        st.just(("clean",)),
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
        return GroupCoordinator(LIMITS, lambda beginning: beginning)

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

    def clean(self) -> None:
        """Clean twice, the second time past the delete horizons of the first."""
        run_pass(self.log, now_ms=NOW)
        run_pass(self.log, now_ms=NOW + 2 * DELETE_RETENTION_MS)

    def check_load(self) -> None:
        """Compare the offsets with those of a coordinator that loads the log."""
        loaded = self.new()
        partition = SimpleNamespace(log=self.log)
        for _ in JournalLoader(partition, CODEC, loaded).steps():  # type: ignore[arg-type]
            pass
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
        for name, *arguments in [*steps, ("roll",), ("clean",)]:
            getattr(offsets, name)(*arguments)
            if name == "clean":
                offsets.check_load()
        close(log)
