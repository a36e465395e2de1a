"""Fetched ranges: windows over a segment's file, and the records decoded from them."""

from __future__ import annotations

import os

import pytest

from kafkalite._ext.message_reader import RowBuilder
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import (
    BufferedRange,
    GrantedRange,
    ReadWindow,
    SegmentFile,
    ShortRead,
    whole_batches,
)
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import CorruptMessage, InvalidRecord
from kafkalite.records.batch import Record, RecordBatch, build, sealed
from kafkalite.records.compression import Codec

WITHOUT_BOUND = 1 << 30


def batch(first, count, size=10, **keywords):
    records = [Record(value=b"%d" % (first + n) * size) for n in range(count)]
    return build(records, base_offset=first, **keywords)


def position():
    return Position(TopicPartition("t", 0), -2)


def answer(data, first=0, end=0, aborted=()):
    return BufferedRange(position(), 0, (first, end), aborted, memoryview(data))


def granted(path, spans, memory, aborted=()):
    file = SegmentFile(os.open(path, os.O_RDONLY))
    return [GrantedRange(position(), 0, (0, 0), aborted, file, span, memory) for span in spans]


def offsets(record_range, size_max=WITHOUT_BOUND):
    builder = RowBuilder("t", 0)
    while decode(record_range, builder, size_max):
        pass
    return [message.offset for message in builder.take()]


@pytest.mark.parametrize("size", [100, 333, 1000, 100_000])
def test_segment_grant_is_read_through_a_window_of_any_size(tmp_path, size):
    data = b"".join(batch(first, 7) for first in range(0, 70, 7))
    path = tmp_path / "segment"
    path.write_bytes(b"before" + data + b"behind")
    (grant,) = granted(path, [(6, 6 + len(data))], ReadWindow(size))
    assert offsets(grant) == list(range(70))
    assert grant.first_offset == 70


def test_grants_that_share_a_window_read_their_own_records(tmp_path):
    pieces = [b"".join(batch(first, 3) for first in range(base, base + 30, 3)) for base in (0, 500)]
    path = tmp_path / "segment"
    path.write_bytes(b"".join(pieces))
    middle = len(pieces[0])
    one, other = granted(path, [(0, middle), (middle, middle + len(pieces[1]))], ReadWindow(300))
    builders = RowBuilder("t", 0), RowBuilder("t", 0)
    going = True
    while going:
        going = decode(one, builders[0], builders[0].size + 1)
        going = decode(other, builders[1], builders[1].size + 1) or going
    assert [m.offset for m in builders[0].take()] == list(range(30))
    assert [m.offset for m in builders[1].take()] == list(range(500, 530))


def test_truncated_segment_raises_short_read_after_its_records(tmp_path):
    data = [batch(first, 5) for first in range(10, 60, 5)]
    path = tmp_path / "segment"
    path.write_bytes(b"".join(data))
    (grant,) = granted(path, [(0, path.stat().st_size)], ReadWindow(len(data[0]) * 3))
    builder = RowBuilder("t", 0)
    assert decode(grant, builder, 1)
    os.truncate(path, 0)
    with pytest.raises(ShortRead):
        while decode(grant, builder, builder.size + 1):
            builder.take()
    assert grant.first_offset == 25


def test_batch_beyond_the_grant_is_not_read(tmp_path):
    data = batch(0, 5) + batch(5, 5)
    path = tmp_path / "segment"
    path.write_bytes(data)
    (grant,) = granted(path, [(0, len(data) - 1)], ReadWindow())
    builder = RowBuilder("t", 0)
    assert decode(grant, builder, 1)
    assert [message.offset for message in builder.take()] == list(range(5))
    with pytest.raises(
        CorruptMessage, match="t-0: At offset 5: .*longer than the range that the node granted"
    ):
        decode(grant, builder, 1)


def test_descriptor_is_closed_with_its_last_reader(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(batch(0, 5))
    (grant,) = granted(path, [(0, path.stat().st_size)], ReadWindow())
    descriptor = grant._file.descriptor
    grant.window()
    os.fstat(descriptor)
    grant.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_whole_batches_end_before_an_incomplete_or_invalid_batch():
    first, second = batch(0, 3), batch(3, 4)
    whole = memoryview(first + second)
    assert whole_batches(whole) == (len(whole), 7)
    assert whole_batches(whole[:-1]) == (len(first), 3)
    assert whole_batches(whole[:60]) == (0, -1)
    invalid = first[:8] + b"\xff\xff\xff\xff" + first[12:]
    assert whole_batches(memoryview(second + invalid)) == (len(second), 7)


@pytest.mark.parametrize("codec", list(Codec))
def test_damaged_batch_raises_with_its_offset(codec):
    damaged = bytearray(batch(5, 5, codec=codec))
    damaged[-1] ^= 1
    record_range = answer(batch(0, 5) + damaged)
    builder = RowBuilder("t", 0)
    assert decode(record_range, builder, WITHOUT_BOUND)
    assert [message.offset for message in builder.take()] == list(range(5))
    for _ in range(2):
        with pytest.raises(CorruptMessage, match="t-0: At offset 5"):
            decode(record_range, builder, WITHOUT_BOUND)


def test_response_without_a_whole_batch_raises_corrupt_message():
    with pytest.raises(CorruptMessage, match="the batch is incomplete"):
        offsets(answer(batch(0, 5)[:-1]))


# Transactions.


def marker(first, producer_id, commit):
    key = b"\0\0" + (b"\0\1" if commit else b"\0\0")
    return build(
        [Record(key=key, value=b"\0\0\0\0\0\0")],
        base_offset=first, producer_id=producer_id, producer_epoch=0,
        transactional=True, control=True,
    )  # fmt: skip


def sent(first, count, producer_id, **keywords):
    return batch(
        first, count, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        transactional=True, **keywords,
    )  # fmt: skip


LOG = (
    sent(0, 2, 7), sent(2, 2, 8), marker(4, 7, False), sent(5, 2, 7), marker(7, 8, True),
    batch(8, 2), marker(10, 7, True), sent(11, 1, 7), marker(12, 7, False), batch(13, 1),
)  # fmt: skip


@pytest.mark.parametrize("size_max", [1, WITHOUT_BOUND])
def test_records_of_aborted_transactions_are_skipped(size_max):
    record_range = answer(b"".join(LOG), aborted=((7, 11), (7, 0)))
    builder = RowBuilder("t", 0)
    found = []
    while decode(record_range, builder, size_max):
        found += [message.offset for message in builder.take()]
    found += [message.offset for message in builder.take()]
    assert found == [2, 3, 5, 6, 8, 9, 13]
    assert record_range.first_offset == 14


def test_control_batches_are_skipped():
    assert offsets(answer(b"".join(LOG))) == [0, 1, 2, 3, 5, 6, 8, 9, 11, 13]


def test_compressed_batch_of_an_aborted_transaction_is_not_decompressed():
    garbage = sent(0, 3, 7, codec=Codec.ZSTD)
    record_range = answer(garbage + marker(3, 7, False) + batch(4, 1), aborted=((7, 0),))
    assert offsets(record_range) == [4]


def test_control_batch_emptied_by_compaction_ends_no_transaction():
    header = RecordBatch(marker(2, 7, False)).header._replace(count=0)
    log = sent(0, 2, 7) + sealed(header, b"") + sent(3, 1, 7) + marker(4, 7, False) + batch(5, 1)
    assert offsets(answer(log, aborted=((7, 0),))) == [5]


def test_invalid_control_batch_raises():
    lying = build(
        [Record(key=b"", value=b"")], base_offset=2, producer_id=7, producer_epoch=0,
        transactional=True, control=True,
    )  # fmt: skip
    record_range = answer(sent(0, 2, 7) + lying, aborted=((7, 0),))
    with pytest.raises((CorruptMessage, InvalidRecord), match="t-0"):
        offsets(record_range)


def test_damaged_producer_id_of_an_aborted_transaction_raises():
    other = bytearray(sent(0, 2, 8))
    other[50] = 7  # the producer id
    record_range = answer(bytes(other) + marker(2, 7, False), aborted=((7, 0),))
    with pytest.raises(CorruptMessage, match="t-0: At offset 0"):
        offsets(record_range)
