"""Batches decoded to columns and rows, against the twin: from any writer, valid or damaged."""

from __future__ import annotations

import gc
import pickle
import random
import struct
from array import array
from concurrent.futures import ThreadPoolExecutor

import crc32c as packaged
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext import record_batch, record_reader
from kafkalite._ext.message_reader import Message, RowBuilder
from kafkalite._ext.record_reader import AT_END, COMPRESSED, FULL, ColumnBuilder
from kafkalite.client.decoding.record_sets import decode_set
from kafkalite.errors import CorruptMessage, InvalidRecord, KafkaError, MessageTooLarge
from kafkalite.records.batch import Record, RecordBatch, TimestampType, build
from kafkalite.records.compression import Codec
from tests.records.test_other_clients import EACH, RECORDS, theirs
from tests.twins import record_batch as batch_twin
from tests.twins import record_reader as twin
from tests.twins import records as records_twin


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """The twin's CRC takes most of the time; test_twins.py compares it with this one."""
    monkeypatch.setattr(batch_twin, "crc", packaged.crc32c)


NOW = 1_700_000_000_000
ALL = 63
WANTED = st.just(ALL) | st.integers(0, ALL)
TICKS = st.sampled_from([1, 1_000, 1_000_000])
PLENTY = 1 << 40
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Sizes at which a varint gets longer, or a copy takes another step or path.
LENGTHS = st.sampled_from([0, 1, 31, 32, 33, 63, 64, 65, 100, 512, 513])
FIELD = st.none() | st.binary(max_size=40) | LENGTHS.map(lambda size: b"x" * size)
NAME = st.binary(max_size=12).map(lambda name: name.decode("utf-8", "surrogateescape"))
HEADERS = st.lists(st.tuples(NAME, FIELD), max_size=3).map(tuple)
TIME = st.integers(NOW, NOW + 100_000) | st.sampled_from([-1, 0, 1 << 62])
GAP = st.sampled_from([0, 0, 0, 1, 7, 200])
ROW = st.tuples(GAP, TIME, FIELD, FIELD, HEADERS)
ROWS = st.lists(ROW, min_size=1, max_size=12)


def built(rows, base_offset, **words):
    """Return one batch whose offsets have these gaps in them."""
    records, offset = [], base_offset
    for gap, *fields in rows:
        offset += gap
        records.append(Record(offset, *fields))
        offset += 1
    return build(records, base_offset=base_offset, **words)


def emptied(base_offset):
    """Return a batch as compaction leaves it when all its records are removed."""
    return bytes(batch_twin.build(b"", base_offset=base_offset, last_offset_delta=3, count=0))


OPEN = st.builds(
    lambda rows, appended: lambda base: built(rows, base, timestamp_type=TimestampType(appended)),
    ROWS,
    st.booleans(),
)
CONTROL = st.builds(lambda rows: lambda base: built(rows, base, control=True), ROWS)
PACKED = st.builds(
    lambda rows, codec: lambda base: built(rows, base, codec=codec), ROWS, st.sampled_from(Codec)
)
UNPACKED = OPEN | OPEN | CONTROL | st.just(emptied)


@st.composite
def record_sets(draw, kinds=UNPACKED, size_max=5):
    """Draw consecutive batches, with gaps in the offsets between them."""
    record_set, offset = b"", draw(st.integers(0, 1 << 40))
    for kind in draw(st.lists(kinds, max_size=size_max)):
        record_set += kind(offset)
        offset = last_offset(record_set) + 1 + draw(GAP)
    return record_set


def last_offset(record_set):
    place, last = 0, -1
    while place < len(record_set):
        base, length = struct.unpack_from(">qi", record_set, place)
        last = base + struct.unpack_from(">i", record_set, place + 23)[0]
        place += length + 12
    return last


def exact(data):
    """Return a copy without spare memory at its end, so that a sanitizer detects an overread."""
    return memoryview(array("B", data))


def plain(columns):
    return {
        name: bytes(value) if isinstance(value, record_reader.Memory) else value
        for name, value in columns.items()
    }


def timestamp_of(message):
    return -1 if message.timestamp is None else message.timestamp


def plain_rows(messages):
    return [
        (m.topic, m.partition, m.offset, m.timestamp, m.timestamp_type, m.key, m.value,
         tuple(m.headers))
        for m in messages
    ]  # fmt: skip


def both(*words, rows=False):
    """Return our builder and the twin's."""
    if rows:
        return RowBuilder("a topic", 3, *words), twin.RowBuilder("a topic", 3, *words)
    return ColumnBuilder(*words), twin.ColumnBuilder(*words)


def agree(ours, twins):
    """Assert that both hold the same records, and take them."""
    assert (ours.count, ours.size) == (twins.count, twins.size)
    made = ours.take()
    assert (plain(made) if isinstance(made, dict) else plain_rows(made)) == twins.take()
    assert ours.count == ours.size == 0


def read_both(data, first_offset, size_max=PLENTY, *, wanted=ALL, ticks=1, check_crcs=True):
    """Read from the beginning, step by step, and compare every code with the twin's."""
    for ours, twins in (both(wanted, check_crcs, ticks), both(check_crcs, rows=True)):
        position, offset, code = 0, first_offset, 0
        while code == 0 and position <= len(data):
            found = ours.add_set(exact(data), position, offset, size_max)
            assert found == twins.add_set(data, position, offset, size_max)
            agree(ours, twins)
            code, position, offset = found
            if not size_max:
                break


# Whole batches.


@given(record_sets(), st.integers(-3, 12), WANTED, TICKS, st.booleans())
def test_record_set_is_read_as_by_the_twin(data, skipped, wanted, ticks, check_crcs):
    base = int.from_bytes(data[:8], "big")
    read_both(data, base + skipped, wanted=wanted, ticks=ticks, check_crcs=check_crcs)


@given(record_sets(size_max=8), st.sampled_from([0, 1, 50, 300, 3_000]), WANTED)
def test_record_set_is_read_in_the_steps_of_the_twin(data, size_max, wanted):
    read_both(data, 0, size_max, wanted=wanted)


@given(record_sets(OPEN | PACKED), st.integers(0, 4_000))
def test_truncated_record_set_is_read_as_by_the_twin(data, end):
    read_both(data[: end % (len(data) + 1)], 0)


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=90), st.integers(0, 90))
def test_nulls_at_any_bit_are_read_as_by_the_twin(fields, first_offset):
    rows = [(0, NOW, key, value, (("h", key),)) for key, value in fields]
    read_both(built(rows, 0), first_offset)


@given(st.lists(st.integers(1, 90), min_size=2, max_size=6), st.sampled_from([1, 30, 1 << 30]))
def test_columns_of_many_batches_equal_the_twin(counts, size_max):
    data, base = b"", 0
    for count in counts:
        row = (0, NOW + count, b"k" * count, None if count % 3 else b"v" * count, (("n", b"h"),))
        data += built([row] * count, base)
        base += count
    ours, twins = both(ALL)
    position = offset = code = 0
    while code == 0:
        found = ours.add_set(data, position, offset, ours.size + size_max)
        assert found == twins.add_set(data, position, offset, twins.size + size_max)
        code, position, offset = found
    assert code == AT_END and position == len(data)
    agree(ours, twins)


def test_large_record_set_is_read_as_by_the_twin():
    # Larger than the size above which the GIL is released, and than a column's first allocation.
    rows = [(at % 3, NOW + at, b"%d" % at, b"v" * (at % 700), ()) for at in range(300)]
    data = b"".join(built(rows, base) for base in (0, 10_000, 20_000))
    read_both(data, 123)
    read_both(data, 123, 70_000)


@given(st.binary(max_size=40))
def test_header_name_that_is_not_utf8_is_decoded_with_replacement(name):
    body = b"\0\0\0\1\1" + records_twin.varint(1) + records_twin.field(name) + b"\1"
    payload = records_twin.varint(len(body)) + body
    builder = ColumnBuilder(record_reader.HEADERS)
    assert builder.add(exact(batch_twin.build(payload)), None, 0) == 0
    assert bytes(builder.take()["header_key_data"]) == name.decode("utf-8", "replace").encode()


@pytest.mark.parametrize("ticks", [1_000, 1_000_000])
def test_timestamp_beyond_the_unit_is_clamped(ticks):
    times = [-(1 << 63), -1, 0, NOW, (1 << 63) - 1]
    rows = [(0, time, None, None, ()) for time in times[2:]]
    builder = ColumnBuilder(record_reader.TIMESTAMP, True, ticks)
    assert builder.add(built(rows, 0), None, 0) == 0
    early = batch_twin.build(records_twin.encode([(0, 0, None, None, ())]), base_timestamp=times[0])
    assert builder.add(early, None, 0) == 0
    found = struct.unpack("<4q", builder.take()["timestamp"])
    assert found == (0, NOW * ticks, (1 << 63) - 1, -(1 << 63))


# Damaged batches.


def resealed(batch):
    """Return the batch with a valid CRC."""
    batch = bytearray(batch)
    struct.pack_into(">I", batch, 17, record_batch.crc32c(batch[21:]))
    return bytes(batch)


@given(ROWS, ROWS, st.integers(0, 1_000), st.integers(1, 255), st.booleans(), WANTED)
def test_batch_with_changed_byte_is_read_as_by_the_twin(rows, others, at, flip, seal, wanted):
    damaged = bytearray(built(rows, 500))
    damaged[at % len(damaged)] ^= flip
    if seal:
        damaged = resealed(damaged)
    good = built(others, 0)
    data = good + bytes(damaged) + built(others, 100_000)
    for check_crcs in (True, False):
        read_both(data, 0, wanted=wanted, check_crcs=check_crcs)


@given(ROWS, ROWS, st.integers(1, 60))
def test_rejected_batch_leaves_columns_unchanged(rows, damaged, less):
    """The last record is cut short, so all others were decoded before the error is found."""
    payload = bytes(RecordBatch(built(damaged, 0)).payload())
    bad = batch_twin.build(
        payload[: -min(less, len(payload))], count=len(damaged), last_offset_delta=10_000
    )
    for ours, twins in (both(ALL), both(rows=True)):
        for data in (built(rows, 0), bad, built(rows, 0), built(damaged, 0), bad):
            assert ours.add(exact(data), None, 0) == twins.add(bytes(data), None, 0)
        agree(ours, twins)


@given(
    rows=ROWS,
    fields=st.fixed_dictionaries(
        {},
        optional={
            "base_offset": st.sampled_from([-1, 0, (1 << 63) - 2, (1 << 63) - 1]) | I64,
            "batch_length": st.integers(-1, 200) | st.integers(-(1 << 31), (1 << 31) - 1),
            "magic": st.integers(-128, 127),
            "attributes": st.sampled_from([0, 8, 16, 32, 64]) | st.integers(-(1 << 15), 32_767),
            "last_offset_delta": st.integers(-2, 12) | st.integers(-(1 << 31), (1 << 31) - 1),
            "base_timestamp": I64,
            "max_timestamp": I64,
            "count": st.integers(-1, 14) | st.integers(-(1 << 31), (1 << 31) - 1),
        },
    ),
    more=st.binary(max_size=80),
)
def test_header_fields_with_valid_crc_are_read_as_by_the_twin(rows, fields, more):
    given_fields = {"count": len(rows), "last_offset_delta": 10_000} | fields
    data = batch_twin.build(RecordBatch(built(rows, 0)).payload(), **given_fields)
    for end in (b"", more):
        for check_crcs in (True, False):
            read_both(bytes(data) + end, 0, check_crcs=check_crcs)


@given(st.lists(st.sampled_from([0, 1, 2, 3, 6, 12, 14, 16, 0x7F, 0x80, 0xFF]), max_size=40))
def test_bytes_like_lengths_are_read_as_by_the_twin(digits):
    for count in range(4):
        read_both(bytes(batch_twin.build(bytes(digits), count=count, last_offset_delta=9)), 0)


@given(record_sets(), st.integers(0, 10))
def test_descending_offsets_are_not_repeated(data, skipped):
    read_both(data + data, skipped)
    builder = RowBuilder("t", 0)
    assert builder.add_set(data + data, 0, skipped, PLENTY)[0] == AT_END
    seen = [message.offset for message in builder.take()]
    assert len(seen) == len(set(seen))


def test_add_accepts_exactly_one_batch():
    good = built([(0, NOW, b"k", b"v", ())], 7)
    for builder in (ColumnBuilder(ALL), RowBuilder("t", 0)):
        for bad in (b"", good[:-1], good + b"\0", good + good, good[:60]):
            assert builder.add(bad, None, 0) == CorruptMessage.code
        assert builder.count == 0
        assert builder.add(good, None, 8) == 0 == builder.count
        assert builder.add(good, None, 7) == 0
        assert builder.count == 1


@given(record_sets(UNPACKED | PACKED), st.integers(0, 4_000), st.integers(1, 255), st.booleans())
def test_whole_batches_end_where_the_twin_finds_them(data, at, flip, spoil):
    data = bytearray(data)
    if spoil and data:
        data[at % len(data)] ^= flip
    cut = data[: at % (len(data) + 1)]
    for each in (data, cut):
        assert record_reader.whole_batches(exact(each)) == twin.whole_batches(bytes(each))


# Bounds of a builder.


@pytest.mark.parametrize("wanted", [0, record_reader.OFFSET, ALL])
def test_full_builder_returns_full(wanted):
    batch = built([(0, NOW, b"k", b"v" * 50, ())], 0)
    payload_size = len(batch) - 61
    for times in (1, 2, 3):
        room = times * payload_size + 3
        ours, twins = both(wanted, True, 1, room)
        data = b"".join(built([(0, NOW, b"k", b"v" * 50, ())], base) for base in range(5))
        found = ours.add_set(data, 0, 0, PLENTY)
        assert found == twins.add_set(data, 0, 0, PLENTY) == (0, times * len(batch), times)
        assert ours.add(batch, None, 0) == twins.add(batch, None, 0) == FULL
        agree(ours, twins)
        assert ours.add(batch, None, 0) == 0


def test_batch_above_the_capacity_is_too_large():
    batch = built([(0, NOW, b"k", b"v" * 50, ())], 0)
    builder = ColumnBuilder(ALL, True, 1, 20)
    assert builder.add(batch, None, 0) == MessageTooLarge.code
    assert builder.add_set(batch, 0, 0, PLENTY) == (MessageTooLarge.code, 0, 0)
    with pytest.raises(MessageTooLarge):
        decode_set(builder, batch, 0, 0, PLENTY)


def test_capacity_keeps_column_offsets_in_32_bits():
    with pytest.raises(AssertionError):
        ColumnBuilder(ALL, True, 1, 1 << 31)
    # Names may become three times as long when decoded, so they get a third of the bound.
    name = "\udcff" * 9
    row = (0, NOW, None, None, ((name, None),))
    builder = ColumnBuilder(record_reader.HEADERS)
    assert builder.add(built([row], 0), None, 0) == 0
    assert builder.size == 4 + 8 + 3 * len(name)


def test_taken_batch_outlives_its_builder():
    builder = ColumnBuilder(ALL)
    assert builder.add(built([(0, NOW, b"k", b"v" * 500, ())], 0), None, 0) == 0
    columns = builder.take()
    assert builder.add(built([(0, NOW, b"k", b"w" * 500, ())], 0), None, 0) == 0
    del builder
    value = memoryview(columns["value_data"])
    del columns
    assert bytes(value) == b"v" * 500
    assert value.readonly


def test_pooled_memory_is_never_reused_while_exported():
    """Columns large enough for the memory pool, allocated and freed by several threads in turn."""

    def decode(seed):
        dice, builder, held = random.Random(seed), ColumnBuilder(ALL), []
        for turn in range(60):
            value = bytes([dice.randrange(256)]) * dice.choice([300, 3_000])
            rows = [(0, NOW, b"%d" % turn, value, ())] * dice.choice([100, 400])
            assert builder.add(built(rows, 0), None, 0) == 0
            held.append((builder.take(), value, len(rows)))
            if dice.random() < 0.6:
                columns, value, count = held.pop(dice.randrange(len(held)))
                assert bytes(columns["value_data"]) == value * count
                offsets = struct.unpack(f"<{count + 1}i", columns["value_offsets"])
                assert offsets == tuple(range(0, count * len(value) + 1, len(value)))
        return all(bytes(columns["value_data"]) == value * n for columns, value, n in held)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(decode, range(4)))


# Batches of other writers.


@EACH
def test_batches_of_other_clients_are_read_from_any_offset(package, codec):
    data = theirs(package, codec)
    for first in (0, 3, len(RECORDS)):
        wanted = [r for r in RECORDS if r.offset >= first]
        rows, columns, twins = RowBuilder("t", 1), ColumnBuilder(ALL), twin.ColumnBuilder(ALL)
        for builder in (rows, columns):
            end = decode_set(builder, data, 0, first, PLENTY)
            assert end == (len(data), max(first, len(RECORDS)))
        assert rows.take() == [
            Message("t", 1, r.offset, r.timestamp, 0, r.key, r.value, r.headers) for r in wanted
        ]
        opened = build(RECORDS)
        assert twins.add(opened, None, first) == 0
        agree(columns, twins)


@settings(max_examples=60, deadline=None)
@given(record_sets(PACKED | OPEN | CONTROL), st.sampled_from([1, 200, PLENTY]))
def test_compressed_and_uncompressed_batches_are_read_in_order(data, size_max):
    builder, seen = RowBuilder("t", 0), []
    position = offset = 0
    while position < len(data):
        position, offset = decode_set(builder, data, position, offset, size_max)
        seen += [
            (m.offset, timestamp_of(m), m.key, m.value, tuple(m.headers)) for m in builder.take()
        ]
    expected, place = [], 0
    while place < len(data):
        size = int.from_bytes(data[place + 8 : place + 12], "big") + 12
        batch = RecordBatch(data[place : place + size])
        expected += [] if batch.header.is_control else map(tuple, batch.records())
        place += size
    assert seen == expected


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_invalid_compressed_batch_error_names_its_offset(codec):
    rows = [(0, NOW, b"k", b"v" * 90, ())] * 5
    good, batch = built(rows, 0), built(rows, 40, codec=codec)
    fewer, damaged = bytearray(batch), bytearray(batch)
    fewer[57:61] = struct.pack(">i", 4)
    damaged[70] ^= 0xFF
    del damaged[-3:]
    damaged[8:12] = struct.pack(">i", len(damaged) - 12)
    for bad, error in ((resealed(fewer), InvalidRecord), (resealed(damaged), CorruptMessage)):
        for builder in (RowBuilder("t", 0), ColumnBuilder(ALL)):
            end = decode_set(builder, good + bad, 0, 0, PLENTY)
            assert (end, builder.count) == ((len(good), 5), 5)
            builder.take()
            with pytest.raises(error, match="At offset 5: "):
                decode_set(builder, good + bad, *end, PLENTY)
            assert builder.count == 0


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_decompressed_size_of_a_batch_is_limited(codec):
    batch = built([(0, NOW, None, bytes(1 << 20), ())] * 20, 0, codec=codec)
    for builder in (RowBuilder("t", 0), ColumnBuilder(ALL)):
        with pytest.raises(MessageTooLarge):
            decode_set(builder, batch, 0, 0, PLENTY)
        assert decode_set(builder, batch, 0, 0, PLENTY, 30 << 20) == (len(batch), 20)


def test_add_set_stops_at_compressed_batch_and_rejects_unknown_codec():
    good = built([(0, NOW, b"k", b"v", ())], 0)
    batch = built([(0, NOW, b"k", b"v", ())], 1, codec=Codec.ZSTD)
    unknown = resealed(batch[:22] + b"\7" + batch[23:])
    for builder in (RowBuilder("t", 0), ColumnBuilder(ALL)):
        assert builder.add_set(good + batch, 0, 0, PLENTY) == (COMPRESSED, len(good), 1)
        assert builder.add_set(unknown, 0, 0, PLENTY) == (76, 0, 0)
        assert builder.add(unknown, b"", 0) == 76


def test_incomplete_first_batch_raises_corrupt_message():
    batch = built([(0, NOW, b"k", b"v", ())], 9)
    builder = RowBuilder("t", 0)
    assert decode_set(builder, b"", 0, 9, PLENTY) == (0, 9)
    with pytest.raises(CorruptMessage, match="At offset 9: the batch is incomplete"):
        decode_set(builder, batch[:-1], 0, 9, PLENTY)
    assert decode_set(builder, batch + batch[:-1], 0, 9, PLENTY) == (2 * len(batch) - 1, 10)


@given(record_sets(OPEN | PACKED, size_max=3), st.integers(0, 4_000), st.integers(1, 255))
def test_damaged_record_set_raises_kafka_errors_only(data, at, flip):
    damaged = bytearray(data or b"\0")
    damaged[at % len(damaged)] ^= flip
    for builder in (RowBuilder("t", 0, False), ColumnBuilder(ALL, False)):
        try:
            decode_set(builder, exact(damaged), 0, 0, PLENTY)
        except KafkaError as error:
            assert str(error).startswith("At offset ")


# Messages.


def message(**others):
    fields = {"topic": "t", "partition": 1, "offset": 5, "timestamp": NOW, "key": b"k"}
    return Message(**fields | others)


def test_messages_with_equal_fields_are_equal():
    parts = {"value": b"v", "headers": [("h", None)]}
    one = message(**parts)
    assert one == message(**parts) and hash(one) == hash(message(**parts))
    for other in ({}, parts | {"offset": 6}, parts | {"headers": [("h", b"")]}):
        assert one != message(**other)
    assert one != one.offset


def test_message_survives_pickle_and_repr():
    one = message(value=None, headers=[("h", b"1"), ("\udcff", None)], timestamp_type=1)
    assert pickle.loads(pickle.dumps(one)) == one
    assert eval(repr(one)) == one


def test_message_is_immutable():
    one = message(headers=[("h", None)])
    for name in ("topic", "partition", "offset", "timestamp", "key", "value", "headers"):
        with pytest.raises(AttributeError):
            setattr(one, name, None)
    one.headers.append(("other", None))
    assert one.headers == [("h", None)]
    with pytest.raises(AttributeError):
        one.other = 1


def test_message_is_not_tracked_by_the_garbage_collector():
    assert not gc.is_tracked(message(headers=[("h", None)]))


@pytest.mark.parametrize("bad", [{"key": "text"}, {"value": 5}, {"headers": [("h", "text")]}])
def test_message_rejects_fields_that_are_not_bytes(bad):
    with pytest.raises(TypeError):
        message(**bad)
