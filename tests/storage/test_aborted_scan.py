"""Compiled scans for aborted transactions against their twins, on valid and on changed files."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext import aborted_scan
from kafkalite._ext.segment_walk import AT_END, WHOLE
from kafkalite.records.control import TransactionMarker
from tests.storage.factories import batch
from tests.storage.test_segment_walk import File, segments
from tests.twins import aborted_scan as twin

OFFSETS = st.integers(0, 40)
IDS = st.integers(0, 12) | st.integers(0, (1 << 63) - 1)
ENTRIES = st.lists(st.tuples(st.just(0), IDS | st.just(-1), OFFSETS, OFFSETS, OFFSETS), max_size=30)


@st.composite
def transactions(draw: st.DrawFn) -> bytes:
    """Draw batches and markers of transactions that overlap."""
    content = bytearray()
    for offset in range(draw(st.integers(0, 20))):
        producer_id = draw(IDS)
        if draw(st.booleans()):
            marker = bytearray(TransactionMarker(producer_id, 0, draw(st.booleans()), 0).batch(0))
            struct.pack_into(">q", marker, 0, offset)
            content += marker
        else:
            content += batch(
                b"v", base_offset=offset, producer_id=producer_id, producer_epoch=0,
                base_sequence=0, transactional=draw(st.booleans()),
            )  # fmt: skip
    return bytes(content)


def ids_in(table: bytes) -> set[int]:
    found = [each for (each,) in struct.iter_unpack("=q", table) if each != -1]
    assert len(found) == len(set(found)) <= len(table) // 16
    return set(found)


@given(
    transactions() | segments(), st.integers(0, 1 << 11), st.integers(-1, 12),
    st.integers(0, 1 << 11), st.integers(0, 3),
)  # fmt: skip
def test_walk_of_transactions_equals_the_twin(content, size, count_max, at, flip):
    changed = bytearray(content)
    if flip and content:
        changed[at % len(content)] ^= flip
    with File(bytes(changed)) as fd:
        *found, table = aborted_scan.walk_transactions(fd, 0, len(content), size, count_max)
    *wanted, ids = twin.walk_transactions(bytes(changed), 0, size, count_max)
    assert (found, ids_in(table)) == (wanted, ids)


@given(ENTRIES, OFFSETS, st.integers(1, 40), st.none() | st.sets(IDS, max_size=20))
def test_search_of_entries_equals_the_twin(entries, upper_offset, count_max, ids):
    packed = b"".join(twin.ENTRY.pack(*each) for each in entries)
    table = None
    if ids is not None:
        content = b"".join(
            TransactionMarker(each, 0, False, 0).batch(0) for each in sorted(ids)
        )
        with File(content) as fd:
            *_, table = aborted_scan.walk_transactions(fd, 0, len(content), 1 << 20, 1 << 20)
        assert ids_in(table) == ids
    found = aborted_scan.find_aborted(packed, upper_offset, count_max, table)
    assert found == twin.find_aborted(packed, upper_offset, count_max, ids)


@pytest.mark.parametrize("count_max", [0, 1, 2, 3, 1 << 40])
def test_walk_ends_before_a_transaction_too_many(count_max):
    content = b"".join(
        batch(b"v", base_offset=offset, producer_id=producer_id, producer_epoch=0,
              base_sequence=offset, transactional=True)
        for offset, producer_id in enumerate([5, 5, 6, 5, 7])
    )  # fmt: skip
    with File(content) as fd:
        code, position, next_offset, table = aborted_scan.walk_transactions(
            fd, 0, len(content), 1 << 20, count_max
        )
    count = {0: 0, 1: 2, 2: 4}.get(count_max, 5)
    assert code == (AT_END if count == 5 else WHOLE)
    assert position == len(content) // 5 * count
    assert next_offset == (count or -1)
    assert ids_in(table) == {*[5, 5, 6, 5, 7][:count]}
