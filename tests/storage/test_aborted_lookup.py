"""Lookups of aborted transactions: blocks that are skipped, and lookups in parts."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.config.topic import SEGMENT_BYTES
from kafkalite.errors import OffsetOutOfRange
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.log.committed_read import CommittedRead
from kafkalite.storage.segment import aborted_lookup, transaction_index
from kafkalite.storage.segment.aborted_lookup import (
    BUDGET,
    READ_COST,
    AbortedLookup,
    LookupBudget,
)
from kafkalite.storage.segment.transaction_index import IndexBlock, TransactionIndex
from kafkalite.storage.state.open_transactions import CompletedTransaction
from tests.simulation.disk import QuickDisk
from tests.storage.cleaning_harness import run_pass
from tests.storage.committed import read_committed, steps_of
from tests.storage.factories import NOW, close, open_log
from tests.storage.test_log_transactions import aborted, add, end

ONE_SEGMENT = {SEGMENT_BYTES: 1 << 30}
BLOCK_COUNT = 64
LONG = 1 << 20
"""The producer id of a transaction that is open meanwhile."""


def long_and_short(log, count):
    """Abort short transactions while a long one is open, then abort it."""
    add(log, LONG, 0)
    for number in range(count):
        add(log, number, 0)
        end(log, number, commit=False)
    end(log, LONG, commit=False)


def looked_up(log, offset, upper_offset, budget=BUDGET):
    """Return the result of a lookup, and the number of its steps."""
    lookup = AbortedLookup(log.segments.with_aborted(offset), offset, upper_offset)
    return lookup.found, steps_of(lookup, budget)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (aborted_lookup, transaction_index):
        monkeypatch.setattr(module, "BLOCK_COUNT", BLOCK_COUNT)


@pytest.fixture
def read_slots(monkeypatch):
    """The numbers of entries that were read from an index, one for each read."""
    counts = []
    read_entries = TransactionIndex._read_entries

    def counted(self, slot, count):
        some = read_entries(self, slot, count)
        counts.append(len(some) // self.entry_size)
        return some

    monkeypatch.setattr(TransactionIndex, "_read_entries", counted)
    return counts


def test_step_of_a_lookup_reads_a_bounded_number_of_entries(tmp_path, read_slots):
    log = open_log(tmp_path, ONE_SEGMENT)
    long_and_short(log, 10 * BLOCK_COUNT)
    budget = 2 * (READ_COST + BLOCK_COUNT)
    found = CommittedRead(log, 1, 100, log.end_offset, 1_000)
    count = 1
    while not found.step(LookupBudget(budget)):
        assert sum(read_slots) < 4 * BLOCK_COUNT
        assert found.aborted == []
        read_slots.clear()
        count += 1
    assert count == 6
    assert found.records is not None
    assert (found.aborted[0], found.aborted[-1]) == ((0, 1), (LONG, 0))


def test_read_blocks_are_not_read_again(tmp_path, read_slots):
    log = open_log(tmp_path, ONE_SEGMENT)
    long_and_short(log, 10 * BLOCK_COUNT)
    wanted = [(0, 1), (LONG, 0)]
    assert looked_up(log, 1, 3) == (wanted, 1)
    assert sum(read_slots) > 10 * BLOCK_COUNT
    read_slots.clear()
    assert looked_up(log, 1, 3) == (wanted, 1)
    assert sum(read_slots) < 3 * BLOCK_COUNT


def test_skipped_blocks_count_as_well(tmp_path, monkeypatch):
    log = open_log(tmp_path, ONE_SEGMENT)
    long_and_short(log, 10 * BLOCK_COUNT)
    looked_up(log, 1, 3)
    monkeypatch.setattr(aborted_lookup, "READ_COST", 0)
    assert looked_up(log, 1, 3, budget=1)[1] == 11


def test_segments_behind_the_range_are_not_read_again(tmp_path, read_slots):
    log = open_log(tmp_path)
    long_and_short(log, 200)
    assert len(log.segments.with_aborted(3)) > 20
    wanted = [(0, 1), (LONG, 0)]
    assert looked_up(log, 1, 3) == (wanted, 1)
    read_slots.clear()
    assert looked_up(log, 1, 3) == (wanted, 1)
    assert len(read_slots) < 10


def test_block_with_a_new_entry_is_read_again(tmp_path):
    index = TransactionIndex(tmp_path / "0.txnindex", QuickDisk())
    index.add(CompletedTransaction(1, 5, 10, 1, is_commit=False))
    index.keep_block(0, IndexBlock(5, 1))
    assert index.block(0) == (5, 1)
    index.add(CompletedTransaction(1, 3, 20, 1, is_commit=False))
    assert index.block(0) is None


def test_entries_are_read_from_the_file_and_from_the_tail(tmp_path):
    index = TransactionIndex(tmp_path / "0.txnindex", QuickDisk())
    for number in range(4):
        index.add(CompletedTransaction(number, number, number, number, is_commit=False))
        if number == 1:
            index.write()
    whole = index.entries()
    for slot in range(4):
        for behind in range(slot + 1, 6):
            entries = index.entries_between(slot, behind)
            assert entries == whole[index.entry_size * slot : index.entry_size * behind]


def test_lookup_ends_at_a_block_whose_transactions_all_begin_later(tmp_path, read_slots):
    log = open_log(tmp_path, ONE_SEGMENT)
    add(log, LONG, 0)
    for number in range(2 * BLOCK_COUNT):
        add(log, number, 0)
        end(log, number, commit=False)
    end(log, LONG, commit=True)
    for number in range(10 * BLOCK_COUNT):
        add(log, number, 1)
        end(log, number, commit=False)
    assert looked_up(log, 1, 3) == ([(0, 1)], 1)
    assert sum(read_slots) < 5 * BLOCK_COUNT


def together(log, count):
    """Open transactions, one record each, then abort them in the same order."""
    for producer_id in range(count):
        add(log, producer_id, 0)
    for producer_id in range(count):
        end(log, producer_id, commit=False)


@pytest.mark.parametrize("aborted_max", [1, 7, 20])
def test_list_of_transactions_that_were_open_together_is_bounded(tmp_path, aborted_max):
    log = open_log(tmp_path, ONE_SEGMENT)
    together(log, 200)
    offset = 0
    while offset < log.end_offset:
        found, listed = read_committed(log, offset, 1 << 20, log.end_offset, aborted_max)
        assert found is not None
        headers = [each.header for each in batches(found.read())]
        assert {each.producer_id for each in headers} == {each for each, _ in listed}
        assert len(listed) == len(headers) == min(aborted_max, log.end_offset - offset)
        offset = headers[-1].last_offset + 1


def keyed(log, key):
    log.append(build([Record(timestamp=NOW, key=key, value=b"v")]), 0)


@pytest.mark.parametrize("aborted_max", [1, 2, 3])
def test_transaction_without_a_batch_in_the_range_is_listed_after_compaction(
    tmp_path, aborted_max
):
    """The cleaner keeps the markers of aborted transactions, and not their batches."""
    log = open_log(tmp_path, ONE_SEGMENT)
    producers = range(aborted_max)
    for sequence in range(2):
        for producer_id in producers:
            if sequence:
                end(log, producer_id, commit=False)
            add(log, producer_id, sequence)
    keyed(log, b"a")
    log.roll()
    for producer_id in producers:
        add(log, producer_id, 2)
        end(log, producer_id, commit=False)
    keyed(log, b"b")
    log.roll()
    keyed(log, b"c")
    run_pass(log, segment_bytes=100)
    offset = 0
    while offset < log.end_offset:
        found, listed = read_committed(log, offset, 1 << 20, log.end_offset, aborted_max)
        assert found is not None
        headers = [each.header for each in batches(found.read())]
        last = headers[-1].last_offset
        needed = {
            (each.producer_id, each.first_offset)
            for each in aborted(log)
            if any(
                header.is_transactional
                and header.producer_id == each.producer_id
                and each.first_offset <= header.base_offset <= each.last_offset
                for header in headers
            )
        }
        assert needed <= set(listed) and len(listed) <= max(2, aborted_max)
        offset = last + 1


def test_first_partition_of_a_read_has_a_batch_in_any_case(tmp_path):
    log = open_log(tmp_path, ONE_SEGMENT)
    together(log, 20)
    found, listed = read_committed(log, 5, 1, log.end_offset, 0)
    assert found is not None
    assert [each.header.base_offset for each in batches(found.read())] == [5]
    assert listed == [(5, 5)]


def test_read_of_a_later_partition_ends_before_its_first_transaction(tmp_path):
    log = open_log(tmp_path, ONE_SEGMENT)
    add(log, 9, 0, transactional=False)
    together(log, 20)
    found = CommittedRead(log, 0, 1 << 20, log.end_offset, 0, whole_first=False)
    steps_of(found)
    assert found.records is not None
    (alone,) = batches(found.records.read())
    assert (alone.header.producer_id, found.aborted) == (9, [])
    found = CommittedRead(log, 1, 1 << 20, log.end_offset, 0, whole_first=False)
    steps_of(found)
    assert (found.records, found.aborted) == (None, [])


def test_read_begins_again_when_segments_were_removed(tmp_path):
    log = open_log(tmp_path)
    long_and_short(log, 200)
    found = CommittedRead(log, 1, 100, log.end_offset, 1_000)
    assert not found.step(LookupBudget(1))
    log.delete_records(2)
    files = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(OffsetOutOfRange):
        steps_of(found)
    found = CommittedRead(log, 100, 100, log.end_offset, 1_000)
    assert not found.step(LookupBudget(1))
    log.generation += 1
    steps_of(found)
    wanted = read_committed(log, 100, 100, log.end_offset, 1_000)
    assert found.records is not None and found.records.size == wanted[0].size
    assert found.aborted == wanted[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_truncated_index_forgets_its_blocks(tmp_path):
    index = TransactionIndex(tmp_path / "0.txnindex", QuickDisk())
    index.add(CompletedTransaction(1, 0, 1, 2, is_commit=False))
    index.write()
    index.keep_block(0, IndexBlock(0, 2))
    index.truncate_to(0)
    assert index.block(0) is None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.integers(0, 70), st.integers(1, 70), st.integers(1, 2_000), st.sampled_from([300, 1 << 30]),
)  # fmt: skip
def test_lookup_finds_what_a_search_of_all_entries_finds(
    turns, offset, size, budget, segment_bytes
):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        for module in (aborted_lookup, transaction_index):
            patch.setattr(module, "BLOCK_COUNT", 4)
        patch.setattr(aborted_lookup, "FIRST_COUNT", 3)
        log = open_log(Path(directory), {SEGMENT_BYTES: segment_bytes})
        open_count: Counter[int] = Counter()
        for producer_id in turns:
            if open_count[producer_id] % 2:
                end(log, producer_id, commit=False)
            else:
                add(log, producer_id, open_count[producer_id] // 2)
            open_count[producer_id] += 1
        wanted = [
            (each.producer_id, each.first_offset)
            for each in aborted(log)
            if each.first_offset < offset + size and each.last_offset >= offset
        ]
        for _ in range(2):
            assert looked_up(log, offset, offset + size, budget)[0] == wanted
        close(log)
