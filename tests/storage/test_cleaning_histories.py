"""The log cleaner against a dictionary: any history keeps the latest value of each key (P8, P9)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.config import topic as keys
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from kafkalite.storage.compaction.cleaning import clean
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.simulation.disk import QuickDisk
from tests.storage import cleaning_harness as harness
from tests.storage.cleaning_harness import (
    DELETE_RETENTION_MS,
    Killed,
    KillingDisk,
    files_of,
    job_of,
    latest,
    no_throttle,
    read_committed,
    records_of,
    run_pass,
)
from tests.storage.factories import NOW, close, open_log
from tests.storage.factories import settings as topic_settings
from tests.storage.test_cleaning import COMPACT, KEYS, end_txn


class History:
    """A log, and everything that was appended to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = self.opened()
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.visible: dict[int, Record] = {}
        """The records that are not aborted, by offset."""
        self.appended: dict[int, Record] = {}
        self.now_ms = NOW
        self.tombstones: dict[int, int] = {}
        """Time of the first pass that met a tombstone, by offset."""
        self.count = 0
        self.last_sent: dict[int, tuple[bytes, int]] = {}

    def opened(self, cleaner_offset: int = -1) -> Log:
        """Open the log of a topic that is compacted, and was not when keyless records came."""
        log = open_log(self.directory, COMPACT, cleaner_offset=cleaner_offset)
        log.reconfigure(topic_settings({keys.SEGMENT_BYTES: 600}))
        return log

    def append(self, producer_id: int, mode: int, codec: Codec, content: list[Any]) -> None:
        """Append a batch of a producer, or of none; `mode` 2 is transactional."""
        records = []
        for key, has_value in content:
            self.count += 1
            value = b"%d" % self.count if has_value else None
            records.append(Record(timestamp=self.now_ms + self.count, key=key, value=value))
        how: dict[str, Any] = {}
        if mode:
            if mode == 1 and producer_id in self.open:
                mode = 2
            sequence = self.sequences.get(producer_id, 0)
            how = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            self.sequences[producer_id] = sequence + len(records)
        batch = build(records, codec=codec, transactional=mode == 2, **how)
        base = self.log.append(batch, 0, guard=NOT_REQUIRED).base_offset
        if mode:
            self.last_sent[producer_id] = batch, base
        offsets = range(base, base + len(records))
        for offset, record in zip(offsets, records, strict=True):
            self.appended[offset] = record._replace(offset=offset)
        if mode == 2:
            self.open.setdefault(producer_id, []).extend(offsets)
        else:
            self.visible |= {offset: self.appended[offset] for offset in offsets}

    def end(self, producer_id: int, *, commit: bool) -> None:
        offsets = self.open.pop(producer_id, [])
        end_txn(self.log, producer_id, commit=commit)
        if commit:
            self.visible |= {offset: self.appended[offset] for offset in offsets}

    def clean(self, slots: int, later_ms: int) -> None:
        self.now_ms += later_ms
        before = {record.offset for record in records_of(self.log)}
        result = run_pass(self.log, now_ms=self.now_ms, slots=slots)
        for offset in before:
            if offset < result.end_offset and self.appended[offset].value is None:
                self.tombstones.setdefault(offset, self.now_ms)
        self.check()

    def kill(self, slots: int, kill_at: int) -> None:
        """Kill the process while it swaps the segments that a pass has written."""
        result = clean(job_of(self.log, self.now_ms, slots), no_throttle, QuickDisk())
        disk = self.log._disk = KillingDisk(kill_at)
        for segment in self.log.segments:
            segment._disk = disk
        before = self.last_batches()
        try:
            for group in result.groups:
                self.log.replace_segments(group)
        except Killed:
            pass
        for record in self.appended.values():
            if record.offset < result.end_offset and record.value is None:
                self.tombstones.setdefault(record.offset, self.now_ms)
        end_offset = self.log.end_offset
        self.log = self.opened(self.log.cleaner_offset)
        assert self.log.failure is None
        assert self.log.end_offset == end_offset
        assert self.last_batches() == before
        self.check()

    def retry(self, producer_id: int) -> None:
        """Send a producer's last batch again."""
        last = self.last_sent.get(producer_id)
        if last is not None and len(last[0]) and producer_id not in self.open:
            end_offset = self.log.end_offset
            result = self.log.append(last[0], 0, guard=NOT_REQUIRED)
            assert (result.duplicate, result.base_offset) == (True, last[1])
            assert self.log.end_offset == end_offset

    def reopen(self) -> None:
        """Open the log again, as after a crash, without its snapshots."""
        producers = self.last_batches()
        offset, size = self.log.cleaner_offset, self.log.end_offset
        close(self.log)
        for path in self.directory.glob("*.snapshot"):
            path.unlink()
        self.log = self.opened(offset)
        assert self.log.failure is None
        assert self.log.end_offset == size
        assert self.last_batches() == producers
        self.check()

    def last_batches(self) -> dict[int, tuple[int, ...]]:
        """Return epoch, sequences and offsets of each producer's last batch."""
        return {
            each.producer_id: (each.epoch, *each.batches[-1][:4])
            for each in self.log.producers
            if each.batches
        }

    def check(self) -> None:
        """Compare what readers get with the dictionary."""
        stable = harness.stable_offset(self.log)
        found = read_committed(self.log)
        expected = {o: record for o, record in self.visible.items() if o < stable}
        for record in found:
            assert record == expected[record.offset]
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        present = {record.offset for record in found}
        for record in latest([expected[offset] for offset in sorted(expected)]).values():
            if record.offset not in present:
                assert record.value is None
                assert self.now_ms >= self.tombstones[record.offset] + DELETE_RETENTION_MS
        clean_to = self.log.cleaner_offset
        assert all(record.key is not None for record in found if record.offset < clean_to)
        below = [record for record in found if record.offset < clean_to]
        assert len(latest(below)) == len(below)
        everything = records_of(self.log, committed=False)
        in_open = {offset for offsets in self.open.values() for offset in offsets}
        for record in everything:
            if record.offset < clean_to:
                assert record.offset in self.visible or record.offset in in_open


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.integers(1, 3), st.integers(0, 2), st.sampled_from(Codec),
            st.lists(
                st.tuples(st.sampled_from([*KEYS[:4], None]), st.booleans()),
                min_size=1, max_size=6,
            ),
        ),
        st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(
            st.just("clean"), st.sampled_from([2, 3, 4, 100]), st.sampled_from([0, 600, 1500])
        ),
        st.tuples(st.just("kill"), st.sampled_from([2, 4, 100]), st.integers(1, 40)),
        st.tuples(st.just("retry"), st.integers(1, 3)),
        st.tuples(st.just("reopen")),
    ),
    min_size=5, max_size=40,
)  # fmt: skip


@given(operations=operations)
@settings(max_examples=60, deadline=None)
def test_any_history_keeps_the_latest_value_of_each_key(operations):
    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory))
        for name, *arguments in operations:
            if name == "roll":
                history.log.roll()
            elif name == "end":
                history.end(arguments[0], commit=arguments[1])
            else:
                getattr(history, name)(*arguments)
        for producer_id in list(history.open):
            history.end(producer_id, commit=True)
        history.log.roll()
        for _ in range(3):  # until nothing is left to be dropped
            history.log.cleaner_offset = 0
            history.clean(100, 2 * DELETE_RETENTION_MS)
        history.reopen()
        assert all(record.value is not None for record in records_of(history.log))
        settled(history)


def settled(history: History) -> None:
    """Check that passes without new input end in the same bytes."""
    for _ in range(8):
        before = files_of(history.directory)
        history.log.cleaner_offset = 0
        history.clean(100, 0)
        if files_of(history.directory) == before:
            return
    raise AssertionError("passes without new input change the files")
