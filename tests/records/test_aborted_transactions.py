"""Batches of aborted transactions: the readers skip them as the twin does, and return what the
outcomes of the transactions say."""

from __future__ import annotations

from array import array

import crc32c as packaged
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkalite._ext.message_reader import RowBuilder
from kafkalite._ext.record_reader import OFFSET, ColumnBuilder
from kafkalite.client.consumer.record_range import aborted_list
from kafkalite.client.decoding.record_sets import decode_set
from kafkalite.errors import CorruptMessage
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from kafkalite.records.control import TransactionMarker
from tests.twins import record_batch as batch_twin
from tests.twins import record_reader as twin

RUNS = settings(max_examples=80, deadline=None)
PLENTY = 1 << 40
PRODUCERS = st.integers(1, 3)
# A producer writes, or ends its transaction with a commit or an abort.
STEPS = st.lists(st.tuples(PRODUCERS, st.sampled_from([0, 1, 2, "commit", "abort"])), max_size=25)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """The twin's CRC takes most of the time; test_twins.py compares it with this one."""
    monkeypatch.setattr(batch_twin, "crc", packaged.crc32c)


def marker(offset, producer_id, commit):
    batch = bytearray(TransactionMarker(producer_id, 0, commit, 0).batch(0))
    batch[:8] = offset.to_bytes(8, "big")
    return bytes(batch)


def history(steps, codec=Codec.NONE):
    """Return the batches, the aborted transactions and the offsets that are committed.

    A step of 0 is a batch outside of a transaction; transactions left open at the end are
    committed.
    """
    batches, aborted, visible, offset = [], [], [], 0
    open_offsets: dict[int, list[int]] = {}
    for producer_id, step in [*steps, (1, "commit"), (2, "commit"), (3, "commit")]:
        count = step if isinstance(step, int) else 0
        if isinstance(step, str):
            offsets = open_offsets.pop(producer_id, [])
            if step == "abort" and offsets:
                aborted.append((producer_id, offsets[0]))
            if step == "commit":
                visible += offsets
            batches.append(marker(offset, producer_id, step == "commit"))
            offset += 1
            continue
        is_transactional = count > 0
        number = max(count, 1)
        batches.append(
            build(
                [Record(timestamp=0, value=b"x")] * number, base_offset=offset, codec=codec,
                producer_id=producer_id, producer_epoch=0, base_sequence=0,
                transactional=is_transactional,
            )
        )  # fmt: skip
        offsets = list(range(offset, offset + number))
        if is_transactional:
            open_offsets.setdefault(producer_id, []).extend(offsets)
        else:
            visible += offsets
        offset += number
    return batches, aborted, sorted(visible)


def offsets_of(builder):
    if isinstance(builder, RowBuilder):
        return [message.offset for message in builder.take()]
    return array("q", bytes(builder.take()["offset"])).tolist()


def remaining(transactions):
    """Return the entries that have not ended; what is before them has no meaning."""
    return transactions and (transactions[0], transactions[1 + 2 * transactions[0] :])


@RUNS
@given(STEPS, st.integers(0, 25), st.sampled_from([1, 40, PLENTY]))
@example([(2, 1), (1, 1), (1, "abort"), (2, "abort")], 0, 1)
def test_readers_skip_as_the_twin_and_show_what_is_committed(steps, begin, size_max):
    batches, aborted, visible = history(steps)
    begin = min(begin, len(batches) - 1)
    data = b"".join(batches[begin:])
    first = int.from_bytes(data[:8], "big")
    # A fetch lists the transactions that end behind its first offset.
    listed = [each for each in aborted if marker_of(batches, each) >= first]
    for ours, twins in (
        (ColumnBuilder(OFFSET), twin.ColumnBuilder(OFFSET)),
        (RowBuilder("a topic", 0), twin.RowBuilder("a topic", 0)),
    ):
        mine, its = aborted_list(tuple(listed)), aborted_list(tuple(listed))
        position, offset, code, shown = 0, first, 0, []
        while code == 0:
            found = ours.add_set(data, position, offset, size_max, mine)
            assert found == twins.add_set(data, position, offset, size_max, its)
            assert remaining(mine) == remaining(its)
            shown += offsets_of(ours)
            twins.take()
            code, position, offset = found
        assert shown == [each for each in visible if each >= first]


def marker_of(batches, transaction):
    """Return the offset of the abort marker of a transaction."""
    producer_id, first = transaction
    for batch in batches:
        base = int.from_bytes(batch[:8], "big")
        if base > first and batch[22] & 0x20 and int.from_bytes(batch[43:51], "big") == producer_id:
            return base
    raise AssertionError


@pytest.mark.parametrize("make", [lambda crc: ColumnBuilder(OFFSET, crc),
                                  lambda crc: RowBuilder("t", 0, crc)])  # fmt: skip
def test_damaged_marker_is_found_even_without_crc_checks(make):
    batches, aborted, _ = history([(1, 2), (1, "abort"), (2, 0)])
    damaged = bytearray(b"".join(batches))
    damaged[len(batches[0]) + 70] ^= 1  # in the marker's record
    builder = make(False)
    listed = aborted_list(tuple(aborted))
    with pytest.raises(CorruptMessage):
        decode_set(builder, bytes(damaged), 0, 0, PLENTY, None, listed)


def test_compressed_batches_are_skipped_and_the_list_lasts_for_the_next_window():
    batches, aborted, visible = history(
        [(1, 2), (2, 1), (1, 1), (1, "abort"), (1, 2), (2, "abort"), (1, "commit"), (3, 0)],
        Codec.ZSTD,
    )
    listed = aborted_list(tuple(aborted))
    shown, offset = [], 0
    for batch in batches:
        builder = ColumnBuilder(OFFSET)
        _, offset = decode_set(builder, batch, 0, offset, PLENTY, None, listed)
        shown += offsets_of(builder)
    assert shown == visible
    assert listed[0] == len(aborted) == 2
