"""Lookups of aborted transactions: blocks that are skipped, and lookups in parts."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.config.topic import SEGMENT_BYTES
from kafkalite.storage.log import log_reader
from kafkalite.storage.segment import aborted_lookup, transaction_index
from kafkalite.storage.segment.aborted_lookup import aborted_between
from kafkalite.storage.segment.transaction_index import BLOCK_COUNT, TransactionIndex
from kafkalite.storage.state.open_transactions import CompletedTransaction
from tests.simulation.disk import QuickDisk
from tests.storage.factories import close, open_log
from tests.storage.test_log_transactions import aborted, add, end

ONE_SEGMENT = {SEGMENT_BYTES: 1 << 30}
LONG = 1 << 20
"""The producer id of a transaction that is open meanwhile."""


def long_and_short(log, count):
    """Abort short transactions while a long one is open, then abort it."""
    add(log, LONG, 0)
    for number in range(count):
        add(log, number, 0)
        end(log, number, commit=False)
    end(log, LONG, commit=False)


def looked_up(log, offset, upper_offset):
    """Repeat a lookup until it is complete; return its result, and the number of repetitions."""
    aborting = log.segments.with_aborted(offset)
    for count in range(100):
        found = aborted_between(aborting, offset, upper_offset)
        if found is not None:
            return found, count
    pytest.fail("the lookup never ends")


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


def test_lookup_reads_a_bounded_number_of_entries(tmp_path, monkeypatch, read_slots):
    monkeypatch.setattr(aborted_lookup, "BLOCKS_MAX", 2)
    log = open_log(tmp_path, ONE_SEGMENT)
    long_and_short(log, 10 * BLOCK_COUNT)
    repeated = 0
    while True:
        read_slots.clear()
        found, listed = log_reader.read_committed(log, 1, 100, log.end_offset, 1_000)
        assert sum(read_slots) < 5 * BLOCK_COUNT
        if found is not None:
            break
        assert listed == []
        repeated += 1
    assert repeated == 4
    assert (listed[0], listed[-1]) == ((0, 1), (LONG, 0))


def test_computed_blocks_are_not_read_again(tmp_path, read_slots):
    log = open_log(tmp_path, ONE_SEGMENT)
    long_and_short(log, 10 * BLOCK_COUNT)
    wanted = [(0, 1), (LONG, 0)]
    assert looked_up(log, 1, 3) == (wanted, 0)
    assert sum(read_slots) > 10 * BLOCK_COUNT
    read_slots.clear()
    assert looked_up(log, 1, 3) == (wanted, 0)
    assert sum(read_slots) < 3 * BLOCK_COUNT


def test_segments_behind_the_range_are_not_read_again(tmp_path, read_slots):
    log = open_log(tmp_path)
    long_and_short(log, 200)
    assert len(log.segments.with_aborted(3)) > 20
    wanted = [(0, 1), (LONG, 0)]
    assert looked_up(log, 1, 3) == (wanted, 0)
    read_slots.clear()
    assert looked_up(log, 1, 3) == (wanted, 0)
    assert len(read_slots) < 10


def test_block_with_a_new_entry_is_computed_again(tmp_path):
    index = TransactionIndex(tmp_path / "0.txnindex", QuickDisk())
    for first_offset, marker in ((5, 10), (3, 20)):
        index.add(CompletedTransaction(1, first_offset, marker, 1, is_commit=False))
        assert index.block(0) is None
        assert index.compute_block(0) == index.block(0) == (first_offset, 1)


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
    assert looked_up(log, 1, 3) == ([(0, 1)], 0)
    assert sum(read_slots) < 5 * BLOCK_COUNT


def test_truncated_index_forgets_its_blocks(tmp_path):
    index = TransactionIndex(tmp_path / "0.txnindex", QuickDisk())

    def fill(first_offset):
        for number in range(BLOCK_COUNT):
            at = first_offset + 2 * number
            index.add(CompletedTransaction(number, at, at + 1, at + 2, is_commit=False))

    fill(0)
    index.write()
    assert index.compute_block(0) == index.block(0) == (0, 2 * BLOCK_COUNT)
    index.truncate_to(0)
    assert index.block(0) is None
    fill(1_000)
    assert index.compute_block(0).first_offset == 1_000


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.integers(0, 70), st.integers(1, 70), st.integers(1, 3), st.sampled_from([300, 1 << 30]),
)  # fmt: skip
def test_lookup_finds_what_a_search_of_all_entries_finds(
    turns, offset, size, blocks_max, segment_bytes
):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        for module in (aborted_lookup, transaction_index):
            patch.setattr(module, "BLOCK_COUNT", 4)
        patch.setattr(aborted_lookup, "READ_COUNT", 3)
        patch.setattr(aborted_lookup, "BLOCKS_MAX", blocks_max)
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
        assert looked_up(log, offset, offset + size)[0] == wanted
        close(log)
