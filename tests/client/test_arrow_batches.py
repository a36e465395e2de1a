"""Fetched records as Arrow: always one schema, the decoder's own memory, no row lost or moved."""

from __future__ import annotations

import datetime

import pandas
import polars
import pyarrow as pa
import pyarrow.compute
import pytest

from kafkalite._ext.record_writer import encode_columns, seal
from kafkalite.client.decoding import arrow_batches as arrow_out
from kafkalite.client.decoding.arrow_batches import COLUMNS, ColumnReader
from kafkalite.client.producer.arrow_columns import columns_of
from kafkalite.errors import InvalidConfig, MessageTooLarge
from kafkalite.records.batch import Record, RecordBatch, TimestampType, build
from kafkalite.records.compression import Codec

NOW = 1_700_000_000_000
PLENTY = 1 << 30
RECORDS = [
    Record(0, NOW, b"key", b"value", (("one", b"1"), ("one", None))),
    Record(1, NOW + 5, None, b"", ()),
    Record(2, -1, b"", None, (("", b""),)),
    Record(3, NOW - 5, b"k" * 100, b"\xff" * 1_000, (("not\udcfftext", b"h"),)),
]
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_type", pa.int8()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def batch_of(records=RECORDS, reader=None, topic="a topic", partition=3, **words):
    reader = reader or ColumnReader()
    data = build(records, **words)
    assert reader.decode(data, 0, 0, PLENTY)[0] == len(data)
    (batch,) = reader.take(topic, partition)
    batch.validate(full=True)
    return batch


def row_of(record, appended=None):
    return {
        "key": record.key,
        "value": record.value,
        "topic": "a topic",
        "partition": 3,
        "offset": record.offset,
        "timestamp": appended or (None if record.timestamp == -1 else record.timestamp),
        "timestamp_type": 0 if appended is None else 1,
        "headers": [
            {"key": name.replace("\udcff", "\ufffd"), "value": value}
            for name, value in record.headers
        ],
    }


def rows_of(batch):
    """Return the rows, with their times as numbers: Python's datetime cannot hold all of them."""
    place = batch.schema.get_field_index("timestamp")
    times = batch.column(place).cast(pa.int64())
    return batch.set_column(place, "timestamp", times).to_pylist()


def test_batch_has_the_documented_schema():
    assert ColumnReader().schema.equals(SCHEMA, check_metadata=True)
    assert batch_of().schema.equals(SCHEMA, check_metadata=True)


@pytest.mark.parametrize("codec", Codec)
def test_every_record_is_a_row_with_all_columns(codec):
    assert rows_of(batch_of(codec=codec)) == [row_of(record) for record in RECORDS]


def test_append_time_is_the_timestamp():
    batch = batch_of(timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert rows_of(batch) == [row_of(record, appended=NOW + 5) for record in RECORDS]


@pytest.mark.parametrize("name", COLUMNS)
def test_single_column_equals_the_column_of_a_full_batch(name):
    alone = batch_of(reader=ColumnReader([name]))
    assert alone.schema.names == [name]
    assert alone.schema.field(name).equals(SCHEMA.field(name))
    assert alone.column(0).equals(batch_of().column(name))


def test_columns_have_the_requested_order():
    names = list(reversed(COLUMNS))
    assert batch_of(reader=ColumnReader(names)).schema.names == names


def test_only_requested_columns_are_decoded():
    reader = ColumnReader(["topic", "offset"])
    assert reader.decode(build(RECORDS), 0, 0, PLENTY)
    assert reader.builder.size == 8 * len(RECORDS)
    assert set(reader.builder.take()) == {"offset"}


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_timestamps_have_the_requested_unit(unit):
    batch = batch_of(RECORDS[:2], ColumnReader(["timestamp"], unit))
    assert batch.schema.field("timestamp").type == pa.timestamp(unit, "UTC")
    wanted = datetime.datetime.fromtimestamp(NOW / 1000, datetime.UTC)
    assert batch.column(0)[0].as_py() == wanted


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"columns": ["value", "colour"]}, "there is no column 'colour': key, value,"),
        ({"columns": ["key", "key"]}, "different names"),
        ({"columns": []}, "different names"),
        ({"columns": "key"}, "different names, not 'key'"),
        ({"timestamp_unit": "s"}, "one of ms, us, ns, not 's'"),
    ],
)
def test_invalid_column_or_unit_is_rejected_by_name(words, complaint):
    with pytest.raises(InvalidConfig, match=complaint):
        ColumnReader(**words)


def test_reader_is_empty_after_take():
    reader = ColumnReader()
    assert reader.take("t", 0) == []
    first = batch_of(RECORDS, reader)
    second = batch_of([Record(7, NOW, b"other", b"row")], reader, "another", 4)
    assert reader.take("t", 0) == []
    assert rows_of(first) == [row_of(record) for record in RECORDS]
    (row,) = rows_of(second)
    assert (row["key"], row["topic"], row["partition"], row["offset"]) == (
        b"other",
        "another",
        4,
        7,
    )


def test_rows_outlive_reader_and_source_bytes():
    data = bytearray(build(RECORDS))
    reader = ColumnReader()
    reader.decode(data, 0, 0, PLENTY)
    (batch,) = reader.take("a topic", 3)
    data[:] = bytes(len(data))
    del reader
    assert rows_of(batch) == [row_of(record) for record in RECORDS]


def test_decoded_memory_is_passed_to_arrow_without_a_copy():
    reader = ColumnReader(["value"])
    reader.decode(build(RECORDS), 0, 0, PLENTY)
    buffers = reader.builder.take()
    column = arrow_out._column(buffers, "value", pa.binary(), 0, len(RECORDS))
    ours = pa.py_buffer(buffers["value_data"])
    assert column.buffers()[2].address == ours.address
    assert not column.buffers()[2].is_mutable


def test_rows_above_the_topic_column_limit_are_split_into_batches(monkeypatch):
    monkeypatch.setattr(arrow_out, "_ROWS_MAX", 3)
    records = [Record(n, NOW, b"%d" % n, None, (("h", b"%d" % n),) * (n % 3)) for n in range(8)]
    reader = ColumnReader()
    reader.decode(build(records), 0, 0, PLENTY)
    batches = reader.take("a topic", 3)
    assert [batch.num_rows for batch in batches] == [3, 3, 2]
    for batch in batches:
        batch.validate(full=True)
    assert [row for batch in batches for row in rows_of(batch)] == list(map(row_of, records))


def test_constant_columns_are_kept_for_any_batch_size(monkeypatch):
    reader = ColumnReader(["topic", "partition", "headers"])
    one, other, again, many = (
        batch_of([Record(n, NOW) for n in range(count)], reader)
        for count in (1_000, 1, 1_000, 1_025)
    )
    for name in ("topic", "partition"):
        address = one.column(name).buffers()[-1].address
        assert other.column(name).buffers()[-1].address == address
        assert again.column(name).buffers()[-1].address == address
        assert many.column(name).buffers()[-1].address != address
    for batch in (one, other, again, many):
        count = batch.num_rows
        assert batch.column("topic").to_pylist() == ["a topic"] * count
        assert batch.column("headers").to_pylist() == [[]] * count
    monkeypatch.setattr(arrow_out, "_KEPT_ROWS_MAX", 10)
    large = batch_of([Record(n, NOW) for n in range(11)], reader)
    assert large.column("partition").to_pylist() == [3] * 11


def test_kept_columns_belong_to_one_topic_and_partition(monkeypatch):
    monkeypatch.setattr(arrow_out, "_KEPT_COLUMNS_MAX", 3)
    reader = ColumnReader(["topic", "partition"])
    for _ in range(2):
        for topic, partition in (("a", 0), ("b", 0), ("b", 1), ("a", 1)):
            batch = batch_of([Record(0, NOW)], reader, topic=topic, partition=partition)
            assert batch.to_pylist() == [{"topic": topic, "partition": partition}]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_records_with_and_without_a_timestamp_follow_each_other(unit):
    reader = ColumnReader(["timestamp"], timestamp_unit=unit)
    for times in ([NOW, -1, 0], [-2, NOW], [-1], [5]):
        batch = batch_of([Record(n, time) for n, time in enumerate(times)], reader)
        found = batch.column("timestamp").cast(pa.int64()).to_pylist()
        ticks = arrow_out._TICKS[unit]
        assert found == [None if time == -1 else time * ticks for time in times]


def test_decompressed_batch_size_is_limited():
    data = build([Record(-1, NOW, None, bytes(1 << 20))] * 3, codec=Codec.ZSTD)
    reader = ColumnReader()
    with pytest.raises(MessageTooLarge):
        reader.decode(data, 0, 0, PLENTY, 1 << 20)
    assert reader.decode(data, 0, 0, PLENTY, 4 << 20) == (len(data), 3)


def test_read_batch_is_encoded_for_send_unchanged():
    """A timestamp of -1 is read as null, which is sent as the current time."""
    assert any(record.timestamp == -1 for record in RECORDS)
    given = batch_of().select(["key", "value", "timestamp", "headers"])
    (columns,) = columns_of(given)
    out = bytearray(1 << 16)
    count, size, base, newest = encode_columns(
        out, 0, columns.row_count, None, *columns[1:5], NOW + 1
    )
    size = seal(out, size, count, base, newest, 0, -1, -1, -1)
    sent = list(RecordBatch(out[:size]))
    assert [(one.key, one.value) for one in sent] == [(one.key, one.value) for one in RECORDS]
    assert [one.timestamp for one in sent] == [NOW, NOW + 5, NOW + 1, NOW - 5]
    assert [one.headers for one in sent] == [
        *(record.headers for record in RECORDS[:3]),
        (("not\ufffdtext", b"h"),),  # keys of headers are text in Arrow
    ]


def test_pandas_and_polars_read_the_batch():
    batch = batch_of()
    frame = batch.to_pandas()
    assert list(frame["key"]) == [record.key for record in RECORDS]
    assert frame["timestamp"][0] == pandas.Timestamp(NOW, unit="ms", tz="UTC")
    frame = polars.from_arrow(batch)
    assert frame["value"].to_list() == [record.value for record in RECORDS]
    assert frame["headers"][0].to_list() == rows_of(batch)[0]["headers"]
