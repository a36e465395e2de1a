"""Decoding of a fetched range: all of it except aborted records, and nothing after damage."""

from __future__ import annotations

import struct

import pytest

from kafkalite._ext.message_reader import RowBuilder
from kafkalite._ext.record_batch import crc32c
from kafkalite._ext.record_reader import KEY, VALUE, ColumnBuilder
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import BufferedRange
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import CorruptMessage
from kafkalite.protocol.schemas.offsets import EARLIEST
from kafkalite.records.batch import Record, build

NOW = 1_700_000_000_000
PLENTY = 1 << 30
ABORT, COMMIT = 0, 1
CRC, ATTRIBUTES, LAST_OFFSET_DELTA = 17, 21, 23


def batch(offset, producer_id=-1, **words):
    transactional = producer_id >= 0
    producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    return build(
        [Record(-1, NOW, b"k", b"%d" % (offset + at)) for at in range(2)],
        base_offset=offset,
        transactional=transactional,
        **(producer if transactional else {}) | words,
    )


def marker(offset, producer_id, kind):
    record = Record(-1, NOW, struct.pack(">hh", 0, kind), bytes(6))
    return build(
        [record], base_offset=offset, transactional=True, control=True, producer_id=producer_id
    )


def damaged(data):
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def range_of(*found, aborted=()):
    position = Position(TopicPartition("t", 0), EARLIEST)
    return BufferedRange(position, 0, (0, 1_000), tuple(aborted), memoryview(b"".join(found)))


def read(record_range, size_max=PLENTY):
    """Decode a fetched range step by step to its end, and return the offsets."""
    builder, steps = RowBuilder("t", 0), []
    while True:
        more = decode(record_range, builder, size_max)
        steps.append([message.offset for message in builder.take()])
        if not more:
            return [offset for step in steps for offset in step]


WRITTEN = [
    batch(0), batch(2, producer_id=7), batch(4, producer_id=8), batch(6),
    marker(8, 8, COMMIT), marker(9, 7, ABORT), batch(10, producer_id=7), marker(12, 7, COMMIT),
]  # fmt: skip


@pytest.mark.parametrize("size_max", [1, 100, PLENTY])
def test_aborted_records_are_skipped(size_max):
    everything = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert read(range_of(*WRITTEN), size_max) == everything
    given = read(range_of(*WRITTEN, aborted=[(7, 2)]), size_max)
    assert given == [offset for offset in everything if offset not in (2, 3)]


@pytest.mark.parametrize("aborted", [(), [(99, 0)]], ids=["none aborted", "some aborted"])
def test_damaged_batch_raises_after_the_records_before_it(aborted):
    record_range = range_of(batch(0), batch(2), damaged(batch(4)), batch(6), aborted=aborted)
    builder = RowBuilder("t", 0)
    assert decode(record_range, builder, PLENTY)
    assert [message.offset for message in builder.take()] == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(CorruptMessage, match="t-0: At offset 4"):
            decode(record_range, builder, PLENTY)
        assert builder.count == 0


@pytest.mark.parametrize("builder", [RowBuilder("t", 0), ColumnBuilder(KEY | VALUE)])
def test_batch_with_compacted_end_is_skipped(builder):
    """Compaction does not change a batch's last offset."""
    size_max = 1_000
    large = [Record(-1, NOW, b"k", bytes(size_max)) for _ in range(2)]
    gone_from = bytearray(build(large, base_offset=0))
    struct.pack_into(">i", gone_from, LAST_OFFSET_DELTA, 9)
    struct.pack_into(">I", gone_from, CRC, crc32c(memoryview(gone_from)[ATTRIBUTES:]))
    position = Position(TopicPartition("t", 0), EARLIEST)
    records = memoryview(bytes(gone_from) + batch(10))
    record_range = BufferedRange(position, 0, (5, 12), (), records)
    assert not decode(record_range, builder, size_max)
    assert (builder.count, record_range.first_offset) == (2, 12)
