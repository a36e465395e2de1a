"""send_table: data frames whose rows become values in JSON, CSV and Avro."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import math
import time as time_module
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import fastavro
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite import AsyncProducer, Producer
from kafkalite.client.producer.arrow_columns import columns_of
from kafkalite.client.producer.row_encoding import records_of
from kafkalite.errors import MessageTooLarge
from kafkalite.testing import Broker
from tests.client.reading_back import read_back

# Cs: surrogates cannot be text in Arrow.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
# Arrow reads Avro's and JSON's own escapes back as characters: this makes them likely.
ESCAPED = st.text(st.sampled_from('"\\\x00\x01\x1f\n\r\t\b\f/\u2028é😀,ua0'))


def values_of(frame, format="json", **words):
    return records_of(frame, format, **words)["value"].to_pylist()


def rows_of(frame, **words):
    return [json.loads(value) for value in values_of(frame, **words)]


@given(st.lists(st.none() | TEXTS | ESCAPED), TEXTS | ESCAPED)
def test_json_text_is_read_back(cells, name):
    table = pa.table({name: pa.array(cells, pa.string())})
    assert rows_of(table) == [{name: cell} for cell in cells]


@given(st.lists(st.none() | st.floats()))
def test_json_floats_are_exact_and_null_if_not_finite(cells):
    table = pa.table({"x": pa.array(cells, pa.float64())})
    wanted = [cell if cell is not None and math.isfinite(cell) else None for cell in cells]
    assert rows_of(table) == [{"x": cell} for cell in wanted]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), st.booleans())
def test_json_integers_are_exact(cells, flag):
    table = pa.table({"n": pa.array(cells, pa.int64()), "b": pa.array([flag] * len(cells))})
    assert rows_of(table) == [{"n": cell, "b": flag} for cell in cells]


@given(st.lists(st.none() | st.lists(st.none() | ESCAPED, max_size=3)), st.integers(0, 3))
def test_json_lists_of_a_slice_are_read_back(cells, first):
    lists = pa.array(cells, pa.list_(pa.string()))
    table = pa.table({"l": lists.slice(first), "s": pa.array([{"l": c} for c in cells], pa.struct(
        [("l", pa.large_list(pa.string()))])).slice(first)})  # fmt: skip
    assert rows_of(table) == [{"l": cell, "s": {"l": cell}} for cell in cells[first:]]


def test_each_type_has_a_json_form():
    moment = datetime(2026, 11, 22, 20, 44, 41, 123456, UTC)
    table = pa.table({
        "zoned": pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")),
        "naive": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("ns")),
        "date": pa.array([date(2026, 11, 22), None]),
        "time": pa.array([time(1, 2, 3), None], pa.time32("ms")),
        "decimal": pa.array([Decimal("12345678901234567890.10"), None]),
        "binary": pa.array([b"\x00\xff", None]),
        "category": pa.array(["a\n", None]).dictionary_encode(),
        "nothing": pa.nulls(2),
        "map": pa.array([[('k"', 1.5), ("n", None)], None], pa.map_(pa.string(), pa.float64())),
        "struct": pa.array([{"at": moment, "x": [math.nan]}, None]),
        "half": pa.array([1.5, None], pa.float16()),
        "large": pa.array([2**64 - 1, None], pa.uint64()),
        "view": pa.array(["v", None], pa.string_view()),
        "pair": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
    })  # fmt: skip
    first, second = (json.loads(value, parse_float=Decimal) for value in values_of(table))
    assert first == {
        "zoned": "2026-11-22T20:44:41.123456Z",
        "naive": "2026-11-22T20:44:41.123456000Z",
        "date": "2026-11-22",
        "time": "01:02:03.000",
        "decimal": Decimal("12345678901234567890.10"),
        "binary": base64.b64encode(b"\x00\xff").decode(),
        "category": "a\n",
        "nothing": None,
        "map": {'k"': Decimal("1.5"), "n": None},
        "struct": {"at": "2026-11-22T20:44:41.123456Z", "x": [None]},
        "half": Decimal("1.5"),
        "large": 2**64 - 1,
        "view": "v",
        "pair": [1, 2],
    }
    assert second == dict.fromkeys(table.column_names)


@given(st.lists(st.tuples(st.none() | ESCAPED, st.none() | st.integers(-9, 9)), max_size=5))
def test_csv_rows_are_read_back(rows):
    kinds = pa.schema([("text", pa.string()), ("n", pa.int64())])
    table = pa.table([[t for t, _ in rows], [n for _, n in rows]], schema=kinds)
    for value, (text, number) in zip(values_of(table, "csv"), rows, strict=True):
        assert value.startswith('""') or text != ""
        (found,) = csv.reader(io.StringIO(value, newline=""), strict=True)
        assert found == [text or "", "" if number is None else str(number)]


AVRO_ROWS = pa.table({
    "id": pa.array([1, None]),
    "text": ["ä", None],
    "x": [0.5, None],
    "at": pa.array([datetime(2026, 1, 1, 12), None], pa.timestamp("us")),
    "money": pa.array([Decimal("1.25"), None]),
    "tags": pa.array([["a", None], None], pa.list_(pa.string())),
    "inner": pa.array([{"n": 1}, None]),
    "kind": pa.array(["k", None]).dictionary_encode(),
    "nothing": pa.nulls(2),
})  # fmt: skip


def test_avro_rows_are_read_back_with_the_derived_schema():
    from kafkalite.client.producer.avro_rows import derived_schema

    schema = fastavro.parse_schema(derived_schema(AVRO_ROWS.schema))
    found = [
        fastavro.schemaless_reader(io.BytesIO(value), schema, None)
        for value in values_of(AVRO_ROWS, "avro")
    ]
    wanted = AVRO_ROWS.to_pylist()
    wanted[0]["at"] = wanted[0]["at"].replace(tzinfo=UTC)
    assert found == wanted


MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123456)
NANOSECONDS = pa.timestamp("ns")


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([[MOMENT] * 2, None], pa.list_(NANOSECONDS, 2)), [[MOMENT] * 2, None]),
        (pa.array([MOMENT, None], NANOSECONDS).dictionary_encode(), [MOMENT, None]),
        (
            pa.StructArray.from_arrays([pa.array([MOMENT], NANOSECONDS).dictionary_encode()], "x"),
            [{"x": MOMENT}],
        ),
        (pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32())),
         [{"a": 1, "b": None}, None, {}]),
        (pa.array([[("a", MOMENT)]], pa.map_(pa.large_string(), NANOSECONDS)), [{"a": MOMENT}]),
        (pa.array([[[("a", [("b", 2)])]]],
                  pa.list_(pa.map_(pa.string(), pa.map_(pa.string(), pa.int8())))),
         [[{"a": {"b": 2}}]]),
        (pa.array([{"m": [("a", "x")]}, None],
                  pa.struct([("m", pa.map_(pa.string(), pa.string()))])),
         [{"m": {"a": "x"}}, None]),
    ],
)  # fmt: skip
def test_avro_maps_and_nested_timestamps_are_read_back(column, wanted, monkeypatch):
    from kafkalite.client.producer.avro_rows import derived_schema

    monkeypatch.setenv("TZ", "America/New_York")  # which must not matter
    time_module.tzset()
    table = pa.table({"c": column})
    schema = fastavro.parse_schema(derived_schema(table.schema))
    found = [
        fastavro.schemaless_reader(io.BytesIO(value), schema, None)["c"]
        for value in values_of(table, "avro")
    ]
    monkeypatch.undo()
    time_module.tzset()
    text = str(found).replace(", tzinfo=datetime.timezone.utc", "")
    assert text == str(wanted)


def test_invalid_avro_maps_are_rejected():
    twice = pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    with pytest.raises(ValueError, match="row 1 does not fit .* the same key twice"):
        records_of(pa.table({"m": twice}), "avro")
    numbers = pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int32()))
    with pytest.raises(TypeError, match="Row_m is map<.*keys of an Avro map are text"):
        records_of(pa.table({"m": numbers}), "avro")


def test_avro_accepts_a_schema_and_rejects_rows_that_do_not_fit():
    field = {"name": "n", "type": "int"}
    schema = json.dumps({"type": "record", "name": "R", "fields": [field]})
    assert values_of(pa.table({"n": [1, -1]}), "avro", schema=schema) == [b"\x02", b"\x01"]
    rows = pa.table({"n": [1] * 5_000 + [None]})
    with pytest.raises(ValueError, match=r"row 5000 does not fit .*n"):
        records_of(rows, "avro", schema=schema)
    with pytest.raises(ValueError, match="row 0 does not fit"):
        records_of(pa.table({"n": [1], "more": [2]}), "avro", schema=schema)
    with pytest.raises(ValueError, match="row 0 does not fit"):
        records_of(pa.table({"n": [2**40]}), "avro", schema=schema)
    with pytest.raises(ValueError, match="schema is not an Avro schema"):
        records_of(rows, "avro", schema='{"type": "nonsense"}')
    with pytest.raises(TypeError, match="Row_n is uint64.*give a schema"):
        records_of(pa.table({"n": pa.array([1], pa.uint64())}), "avro")


@pytest.mark.parametrize(
    ("frame", "words", "kind", "message"),
    [
        ({"a": [1]}, {"format": "xml"}, ValueError, "json, csv, avro, not 'xml'"),
        ({"a": [1]}, {"schema": {}}, ValueError, "takes no schema"),
        ({"a": [1]}, {"key": "b"}, ValueError, r"no column 'b'; their columns are \['a'\]"),
        ({"a": [1]}, {"timestamp": "b"}, ValueError, "no column 'b'"),
        ({"a": [1]}, {"columns": ["a", "b"]}, ValueError, "no column 'b'"),
        ({"a": [1]}, {"columns": ["a", "a"]}, ValueError, "'a' occurs more than once"),
        ({"a": [1]}, {"columns": "a"}, TypeError, "list of names"),
        ({"a": [1]}, {"columns": []}, ValueError, "no column is left for the values"),
        ({"a": [1.5]}, {"key": "a"}, TypeError, "'a' is double and cannot be the key"),
        ({"a": [timedelta(1)]}, {}, TypeError, r"'a' is duration.*cast it first"),
        ({"a": [[1]]}, {"format": "csv"}, TypeError, "'a' is list.*format='json'"),
        ({"a": pa.array([2**62], pa.timestamp("s"))}, {}, ValueError, "'a' has a date outside"),
    ],
)  # fmt: skip
def test_invalid_columns_and_formats_are_rejected(frame, words, kind, message):
    with pytest.raises(kind, match=message):
        records_of(pa.table(frame), **{"format": "json", **words})


@pytest.mark.parametrize("format", ["json", "csv"])
def test_polars_categories_are_decoded(format):
    cells = ["a", None, "b", "a"]
    frame = pl.DataFrame({
        "category": pl.Series(cells, dtype=pl.Categorical),
        "enum": pl.Series(cells, dtype=pl.Enum(["b", "a"])),
    })  # fmt: skip
    plain = pa.table({"category": cells, "enum": cells})
    assert values_of(frame, format) == values_of(plain, format)
    assert values_of(pa.table(frame).slice(1, 2), format) == values_of(plain.slice(1, 2), format)


def test_lists_of_polars_categories_and_binary_views_are_decoded():
    lists = [["a"], None, ["b", "a"]]
    frame = pl.DataFrame({"a": pl.Series(lists, dtype=pl.List(pl.Categorical))})
    assert rows_of(frame) == [{"a": cells} for cells in lists]
    views = pa.DictionaryArray.from_arrays([0, None], pa.array([b"\xff"], pa.binary_view()))
    assert rows_of(pa.table({"a": views})) == [{"a": "/w=="}, {"a": None}]


@pytest.mark.parametrize("series", [pl.Series("a", [1]), pd.Series([1], name="a")])
def test_series_is_rejected_with_the_way_to_a_frame(series):
    with pytest.raises(TypeError, match=r"not \S+Series: send the result of its to_frame\(\)"):
        records_of(series, "json")
    with pytest.raises(TypeError, match="Series"):
        columns_of(series)


def test_text_that_is_not_utf8_is_rejected():
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(ValueError, match=r"column 'a' \(string\).*UTF8"):
        records_of(pa.table({"a": bad}), "json")


def test_keys_are_exact_text_or_bytes():
    def keys(*cells, kind=None):
        return records_of(pa.table({"k": pa.array(cells, kind)}), "json", key="k")["key"]

    assert keys("a", None).to_pylist() == ["a", None]
    assert keys(b"\xff").to_pylist() == [b"\xff"]
    assert keys(2**63 - 1, None).to_pylist() == [str(2**63 - 1), None]
    assert keys(date(2026, 1, 1)).to_pylist() == ["2026-01-01"]


# Sent and read back.


@pytest.fixture(scope="module")
def broker():
    with Broker() as made:
        yield made


ROWS = [{"sensor": "a", "time": datetime(2026, 1, 1, tzinfo=UTC), "celsius": 20.5},
        {"sensor": "b", "time": datetime(2026, 1, 2, tzinfo=UTC), "celsius": None}]  # fmt: skip


@pytest.mark.parametrize("frame_of", [
    pd.DataFrame, pl.DataFrame, pa.Table.from_pylist, pa.RecordBatch.from_pylist,
    lambda rows: pd.DataFrame(rows).astype({"sensor": "category"}),
])  # fmt: skip
def test_frames_of_each_library_become_records(broker, frame_of):
    topic = broker.topic()
    with Producer(broker.bootstrap) as producer:
        frame = frame_of(ROWS)
        sent = producer.send_table(
            topic, frame, key="sensor", timestamp="time", columns=["sensor", "celsius"]
        )
        assert sent.result(30) == [(0, 0, 2)]
    found = read_back(broker, topic)
    assert [(m.key(), json.loads(m.value()), m.timestamp()[1]) for m in found] == [
        (row["sensor"].encode(), {"sensor": row["sensor"], "celsius": row["celsius"]},
         int(row["time"].timestamp() * 1000))
        for row in ROWS
    ]  # fmt: skip


def test_empty_frame_sends_nothing_and_an_oversized_row_rejects_all(broker):
    topic = broker.topic()
    with Producer(broker.bootstrap) as producer:
        for format in ("json", "csv", "avro"):
            empty = pa.table({"a": pa.array([], pa.int64()), "k": pa.array([], pa.string())})
            assert producer.send_table(topic, empty, format, key="k").result(30) == []
        with pytest.raises(MessageTooLarge, match="Row 1"):
            producer.send_table(topic, pa.table({"a": ["x", "x" * (2 << 20)]}))
    assert read_back(broker, topic) == []


def test_async_producer_sends_tables(broker):
    topic = broker.topic()

    async def main():
        async with AsyncProducer(broker.bootstrap) as producer:
            sent = await producer.send_table(topic, pl.DataFrame({"a": [1]}), "csv", key="a")
            assert await sent == [(0, 0, 1)]

    asyncio.run(main())
    assert [(m.key(), m.value()) for m in read_back(broker, topic)] == [(b"1", b"1")]


def test_fixed_size_binary_is_a_key():
    cells = pa.array([b"ab", None], pa.binary(2))
    for column in (cells, cells.dictionary_encode()):
        records = records_of(pa.table({"k": column}), "json", key="k", columns=["k"])
        (columns,) = columns_of(records)
        assert records["key"].to_pylist() == [b"ab", None]
        assert columns.key is not None
