"""Tables of every kind: converted to the columns of records, or rejected with the reason."""

from __future__ import annotations

import struct
import warnings
from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext import records as record_bytes
from kafkalite._ext.gathering import Gatherer, OpenQueue, OpenTopic
from kafkalite._ext.record_writer import BatchBuilder, encode_columns, seal
from kafkalite.client.producer.arrow_columns import columns_of, layout_of
from kafkalite.records.batch import RecordBatch

RUNS = settings(max_examples=100, deadline=None)
NOW = 1_700_000_000_000
PAIRS = pa.struct({"key": pa.string(), "value": pa.binary()})
FIELD = st.none() | st.text(max_size=20).map(str.encode)
TEXTS = [
    pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(),
    pa.string_view(),
]  # fmt: skip


def rows_of(rows):
    """Return key, value, headers and time of each row, and its partition, as a consumer reads."""
    found, partitions = [], []
    for columns in columns_of(rows):
        out = bytearray(1 << 16)
        taken, size, base, newest = encode_columns(
            out, 0, columns.row_count, None, *columns[1:5], NOW
        )
        assert taken == columns.row_count
        size = seal(out, size, taken, base, newest, 0, -1, -1, -1)
        found += [(r.key, r.value, r.headers, r.timestamp) for r in RecordBatch(out[:size])]
        if columns.partitions is not None:
            partitions += struct.unpack(f"{taken}i", columns.partitions)
    return found, partitions


def values_in(rows):
    found, partitions = rows_of(rows)
    assert not partitions
    assert all(row[0] is None and row[2:] == ((), NOW) for row in found)
    return [row[1] for row in found]


@RUNS
@given(st.lists(st.tuples(FIELD, FIELD), max_size=9), st.sampled_from(TEXTS), st.integers(0, 9))
def test_sliced_keys_and_values_of_each_type_are_converted(drawn, kind, start):
    table = pa.table(
        {
            "key": pa.array([key for key, _ in drawn], kind),
            "value": pa.array([value for _, value in drawn], kind),
        }
    )
    wanted = [(key, value, (), NOW) for key, value in drawn[start:]]
    assert rows_of(table.slice(start)) == (wanted, [])


def test_chunked_table_is_converted_chunk_by_chunk():
    value = pa.chunked_array([[b"a", b"b"], [], [b"c"]], pa.binary())
    key = pa.chunked_array([["1"], ["2", "3"]], pa.string())
    table = pa.table({"value": value, "key": key})
    assert [columns.row_count for columns in columns_of(table)] == [1, 1, 1]
    assert [row[:2] for row in rows_of(table)[0]] == [(b"1", b"a"), (b"2", b"b"), (b"3", b"c")]
    assert columns_of(table.slice(3)) == []


def test_plain_column_is_not_copied():
    array = pa.array([b"a", b"b"])
    (columns,) = columns_of(pa.table({"value": array}))
    assert columns.value[2].address == array.buffers()[2].address


@pytest.mark.parametrize(
    "headers",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.large_string(), pa.string_view()),
        pa.list_(PAIRS),
        pa.list_(pa.struct({"value": pa.large_binary(), "key": pa.binary()})),
        pa.large_list(PAIRS),
    ],
    ids=str,
)
def test_sliced_headers_of_each_type_are_converted(headers):
    drawn = [[("out", b"of slice")], None, [], [("a", b"1"), ("a", None)], [("", b"")]]
    cells = drawn
    if not pa.types.is_map(headers):
        cells = [
            None if cell is None else [{"key": k, "value": v} for k, v in cell] for cell in drawn
        ]
    table = pa.table({"value": ["v"] * 5, "headers": pa.array(cells, headers)})[1:]
    wanted = [(None, b"v", tuple(cell or ()), NOW) for cell in drawn[1:]]
    assert rows_of(table) == (wanted, [])


def test_header_values_may_be_of_null_type():
    headers = pa.array([[{"key": "a", "value": None}], None])
    found, _ = rows_of(pa.table({"value": ["v", "w"], "headers": headers}))
    assert [row[2] for row in found] == [(("a", None),), ()]


def test_null_header_is_rejected():
    headers = pa.array([[{"key": "a", "value": b""}, None]], pa.list_(PAIRS))
    with pytest.raises(ValueError, match=r"column headers: the name of a header is null \(row 0\)"):
        columns_of(pa.table({"value": ["v"], "headers": headers}))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Vienna"])
def test_timestamp_of_any_unit_is_converted_to_milliseconds(unit, zone):
    factor = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    # 1.5 microseconds more, in the units that can hold it, is still the same millisecond.
    drawn = [0, None, 1_700_000_000 * factor + (factor * 3 // 2_000_000)]
    times = pa.array([5, *drawn], pa.int64()).cast(pa.timestamp(unit, zone))
    found, _ = rows_of(pa.table({"value": ["v"] * 4, "timestamp": times})[1:])
    assert [row[3] for row in found] == [0, NOW, 1_700_000_000_000]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint64()], ids=str)
def test_integer_timestamp_is_in_milliseconds(kind):
    found, _ = rows_of(pa.table({"value": ["v"] * 2, "timestamp": pa.array([7, None], kind)}))
    assert [row[3] for row in found] == [7, NOW]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64()], ids=str)
def test_null_partition_is_left_to_the_partitioner(kind):
    partitions = pa.array([9, 1, None, 0], kind)[1:]
    table = pa.table({"value": ["v"] * 3, "partition": partitions})
    assert rows_of(table)[1] == [1, -1, 0]


def test_null_columns_are_converted():
    nothing = pa.nulls(2)
    table = pa.table(dict.fromkeys(["value", "key", "headers", "timestamp", "partition"], nothing))
    assert rows_of(table) == ([(None, None, (), NOW)] * 2, [])


def test_data_frames_are_accepted_as_tables():
    assert values_in(pl.DataFrame({"value": ["a", None, "long enough to be no view" * 9]})) == [
        b"a", None, b"long enough to be no view" * 9,
    ]  # fmt: skip
    frame = pd.DataFrame({"value": ["a", "b", "c"], "timestamp": datetime(2024, 5, 5, tzinfo=UTC)})
    found, _ = rows_of(frame[frame.value != "a"])
    assert [(row[1], row[3]) for row in found] == [
        (b"b", 1_714_867_200_000), (b"c", 1_714_867_200_000),
    ]  # fmt: skip
    assert values_in(pa.RecordBatch.from_pydict({"value": ["x"]})) == [b"x"]
    assert values_in(pa.table({"value": ["y"]}).to_reader()) == [b"y"]


def test_polars_lists_of_structs_are_headers():
    frame = pl.DataFrame({"value": [b"v"], "headers": [[{"key": "a", "value": b"1"}]]})
    assert rows_of(frame)[0] == [(None, b"v", (("a", b"1"),), NOW)]


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"value": pa.array([1])}, "column value is int64: it must be binary or string"),
        ({"value": ["a"], "key": [1.5]}, "column key is double: it must be binary or string"),
        (
            {"value": pa.array([1]).dictionary_encode()},
            "column value is dictionary<.*>: it must be binary or string, or a dictionary of them",
        ),
        ({"value": ["a"], "headers": ["b"]}, "column headers is string: it must be map<"),
        (
            {"value": ["a"], "headers": [[{"name": "b", "value": b"c"}]]},
            "column headers is list<.*>: it must be map<",
        ),
        (
            {"value": ["a"], "headers": [[{"key": 5, "value": b"c"}]]},
            "column headers is int64: it must be binary or string",
        ),
        (
            {"value": ["a"], "headers": pa.array([[]], pa.list_view(PAIRS))},
            "column headers is list_view<.*>: it must be map<",
        ),
        ({"value": ["a"], "timestamp": ["b"]}, "column timestamp is string: it must be a timestam"),
        ({"value": ["a"], "timestamp": [1.5]}, "column timestamp is double"),
        ({"value": ["a"], "partition": [0.0]}, "column partition is double: it must be an integer"),
        ({"value": ["a"], "offset": [5]}, r"column offset \(int64\) is not a column of records"),
        ({"key": ["a"]}, r"no column value; their columns are \['key'\]"),
    ],
)
def test_unsupported_column_type_is_rejected_with_name_and_type(columns, complaint):
    with pytest.raises(TypeError, match=complaint):
        columns_of(pa.table(columns))


CATEGORIES = ["a", None, "b", "a", ""]


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", ["key", "value"])
def test_dictionary_encoded_column_is_decoded(kind, name):
    dictionary = pa.array(["", "a", None, "b"], kind)
    indices = pa.array([1, 2, 3, 1, 0], pa.int8())
    array = pa.DictionaryArray.from_arrays(indices, dictionary)
    rows, _ = rows_of(pa.table({"value": CATEGORIES, name: array}).slice(1))
    cells = [None if cell is None else cell.encode() for cell in CATEGORIES[1:]]
    assert [row["key value".split().index(name)] for row in rows] == cells


@pytest.mark.parametrize("name", ["key", "value"])
def test_fixed_size_binary_is_accepted_plain_and_dictionary_encoded(name):
    cells = pa.array([b"ab", None, b"cd"], pa.binary(2))
    for column in (cells, cells[1:], cells.dictionary_encode()):
        found, _ = rows_of(pa.table({"value": ["x"] * len(column)} | {name: column}))
        assert [row[name == "value"] for row in found] == column.to_pylist()


def test_categorical_columns_are_keys():
    cells = [None if cell is None else cell.encode() for cell in CATEGORIES]
    values = ["v"] * len(CATEGORIES)
    names = ["", "a", "b"]
    for key in (
        pl.Series(CATEGORIES, dtype=pl.Categorical),
        pl.Series(CATEGORIES, dtype=pl.Enum(names)),
    ):
        assert [row[0] for row in rows_of(pl.DataFrame({"value": values, "key": key}))[0]] == cells
    frame = pd.DataFrame({"value": values, "key": pd.Categorical(CATEGORIES)})
    assert [row[0] for row in rows_of(frame)[0]] == cells


def test_dictionary_index_out_of_bounds_is_rejected():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a"]), safe=False)
    with pytest.raises(ValueError, match="column key .*out of bounds"):
        columns_of(pa.table({"value": ["a", "b"], "key": array}))


@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (NOW // 1000, "seconds"),
        (NOW * 1_000, "microseconds"),
        (NOW * 1_000_000, "nanoseconds"),
        (NOW, None),
        (0, None),
        (5, None),
    ],
)
def test_integer_timestamps_of_another_unit_raise_a_warning(time, unit):
    rows = pa.table({"value": ["a", "b"], "timestamp": pa.array([None, time])})
    pieces = pa.concat_tables([rows, rows])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        columns_of(pieces)
    assert len(found) == (unit is not None)
    if unit is not None:
        assert found[0].category is UserWarning
        assert unit in str(found[0].message) and str(time) in str(found[0].message)


def test_timestamps_with_a_unit_raise_no_warning():
    seconds = pa.array([NOW // 1000, 5], pa.timestamp("s"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns_of(pa.table({"value": ["a", "b"], "timestamp": seconds}))


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ([{"value": "a"}], r"pa\.Table\.from_pylist"),
        ({"value": ["a"]}, r"pa\.table"),
        (pl.LazyFrame({"value": ["a"]}), r"collect\(\)"),
    ],
)
def test_rejection_of_other_types_names_the_conversion(given, remedy):
    with pytest.raises(TypeError, match=remedy):
        columns_of(given)


def test_duplicate_column_is_rejected():
    with pytest.raises(TypeError, match=r"column value \(string\) occurs more than once"):
        columns_of(pa.table([["a"], ["b"]], names=["value", "value"]))


@pytest.mark.parametrize("given", [None, [{"value": b"a"}], {"value": [b"a"]}, b"a"])
def test_rejection_of_other_types_names_the_type(given):
    with pytest.raises(TypeError, match=f"not builtins.{type(given).__name__}"):
        columns_of(given)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"timestamp": [-1]}, "column timestamp: a timestamp is negative"),
        ({"timestamp": pa.array([1 << 62], pa.timestamp("s"))}, "column timestamp"),
        ({"timestamp": pa.array([1 << 63], pa.uint64())}, "column timestamp"),
        ({"partition": [-1]}, "column partition: -1 is not a partition"),
        ({"partition": [1 << 31]}, "column partition"),
    ],
)
def test_values_no_record_can_hold_are_rejected(columns, complaint):
    with pytest.raises(ValueError, match=complaint):
        columns_of(pa.table({"value": ["a"], **columns}))


def test_array_with_invalid_offsets_is_rejected():
    offsets = pa.py_buffer(struct.pack("<iii", 0, 999, 3))
    lying = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(ValueError, match=r"column value: an offset decreases .* \(row 0\)"):
        columns_of(pa.table({"value": lying}))
    honest = pa.array([b"a", b"b"])
    with pytest.raises(ValueError, match="column key"):
        columns_of(pa.table({"value": honest, "key": lying}))


def test_view_beyond_its_buffer_is_rejected():
    view = struct.pack("<iiii", 20, 0, 0, 1 << 20)
    lying = pa.Array.from_buffers(
        pa.binary_view(), 1, [None, pa.py_buffer(view), pa.py_buffer(bytes(20))]
    )
    with pytest.raises(ValueError, match=r"column value \(binary_view\)"):
        columns_of(pa.table({"value": lying}))


def test_large_list_with_invalid_offsets_is_rejected():
    pairs = pa.array([{"key": "a", "value": b"b"}], PAIRS)
    offsets = pa.py_buffer(struct.pack("<qqq", 0, 1 << 40, 1))
    lying = pa.Array.from_buffers(pa.large_list(PAIRS), 2, [None, offsets], children=[pairs])
    with pytest.raises(ValueError, match="column headers"):
        columns_of(pa.table({"value": ["v", "w"], "headers": lying}))


# Small tables: appended by compiled code, to the same bytes.


class Table(Gatherer):
    """A Gatherer of one topic `t` with an open batch of its own."""

    def __init__(self, partitions=1):
        super().__init__(None)
        self.builder = BatchBuilder(1 << 16)
        topic = self.topics["t"] = OpenTopic("t")
        topic.queues.extend(OpenQueue(index) for index in range(partitions))
        topic.sticky = topic.queues[-1]
        self.batch = object()
        topic.sticky.begin_batch(self.batch, self.builder.append, self.builder.append_table)
        self.gather_tables(pa.Table, layout_of, 1 << 16, 1 << 16)
        self.is_open = True


def general(rows, before):
    """Return the payload that the general path makes of a record and these rows."""
    builder = BatchBuilder(1 << 16)
    builder.append(*before)
    for columns in columns_of(rows):
        builder.append_columns(0, columns.row_count, None, *columns[1:5], NOW, columns.size_max)
    return bytes(builder.payload()), builder.count, builder.max_timestamp


TIMES = st.integers(NOW - 100_000, NOW + 100_000)


@RUNS
@given(
    st.lists(st.tuples(FIELD, FIELD, TIMES), max_size=9),
    st.sampled_from(TEXTS),
    st.sampled_from(TEXTS),
    st.sampled_from([pa.timestamp("ms"), pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("us")]),
    st.permutations(["key", "value", "timestamp"]),
    st.integers(0, 9),
    st.booleans(),
)
def test_small_table_is_appended_as_by_the_general_path(
    drawn, value_kind, key_kind, time_kind, names, start, is_chunked
):
    keys, values, times = zip(*drawn, strict=True) if drawn else ((), (), ())
    arrays = {
        "key": pa.array(keys, key_kind),
        "value": pa.array(values, value_kind),
        "timestamp": pa.array(times, pa.timestamp("ms")).cast(time_kind),
    }
    table = pa.table({name: arrays[name] for name in names})
    table = pa.concat_tables([table, table]) if is_chunked else table
    table = table.slice(start)
    gatherer, before = Table(), (b"k", b"before", None, NOW - 5)
    gatherer.builder.append(*before)
    piece = gatherer.gather_table("t", table)
    is_plain = {value_kind, key_kind}.isdisjoint((pa.binary_view(), pa.string_view()))
    is_plain = is_plain and time_kind.unit == "ms" and table.num_rows > 0
    is_one_chunk = all(column.num_chunks == 1 for column in table.columns)
    assert (piece is not None) == (is_plain and is_one_chunk)
    if piece is not None:
        assert (piece.batch, piece.place, piece.row_count) == (gatherer.batch, 1, len(table))
        made = gatherer.builder
        found = bytes(made.payload()), made.count, made.max_timestamp
        assert found == general(table, before)


@pytest.mark.parametrize("kind", TEXTS[:4])
def test_cached_layout_is_not_used_for_another_schema(kind):
    gatherer = Table()
    for names in (("value",), ("key", "value"), ("value", "key"), ("value",)):
        for other in (kind, pa.large_string(), pa.binary()):
            cells = {
                name: pa.array([name + str(other)], other if name == "key" else kind)
                for name in names
            }
            assert gatherer.gather_table("t", pa.table(cells)) is not None
    payload = bytes(gatherer.builder.payload())
    found = record_bytes.decode(payload, gatherer.builder.count)
    for (_, _, key, value, _), names in zip(
        found, [names for names in ("v", "kv", "kv", "v") for _ in range(3)], strict=True
    ):
        assert value.startswith(b"value") and (key is None) == (names == "v")
        assert key is None or key.startswith(b"key")


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"value": [1]}),
        pa.table({"value": ["v"], "other": ["x"]}),
        pa.table([["v"], ["v"]], names=["value", "value"]),
        pa.table({"key": ["k"]}),
        pa.table({"value": ["v"], "headers": pa.array([None], pa.map_(pa.string(), pa.binary()))}),
        pa.table({"value": ["v"], "partition": [0]}),
        pa.table({"value": ["v"], "timestamp": [NOW]}),
        pa.table({"value": pa.array(["v"]).dictionary_encode()}),
        pa.table({"value": ["v" * 100_000]}),
        pa.record_batch({"value": ["v"]}),
        pd.DataFrame({"value": ["v"]}),
        [{"value": "v"}],
    ],
)
def test_unsupported_small_table_uses_the_general_path(rows):
    gatherer = Table()
    assert gatherer.gather_table("t", rows) is None
    assert gatherer.builder.count == 0


def test_small_table_with_choice_of_partition_uses_the_general_path():
    keyed, plain = pa.table({"value": ["v"], "key": ["k"]}), pa.table({"value": ["v"]})
    several = Table(partitions=3)
    assert several.gather_table("t", keyed) is None
    assert several.gather_table("t", plain).row_count == 1
    assert several.gather_table("unknown", plain) is None
    several.topics["t"].sticky.end_batch()
    assert several.gather_table("t", plain) is None
    chosen = Table()
    chosen.partitioner = lambda topic, key, count: 0
    assert chosen.gather_table("t", plain) is None
    closed = Table()
    closed.is_open = False
    assert closed.gather_table("t", plain) is None


def test_small_table_with_invalid_offsets_uses_the_general_path():
    offsets = pa.py_buffer(struct.pack("<iii", 0, 999, 3))
    lying = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    honest = pa.array([b"a", b"b"])
    gatherer = Table()
    for columns in ({"value": lying}, {"value": honest, "key": lying}):
        assert gatherer.gather_table("t", pa.table(columns)) is None
        assert gatherer.builder.count == 0
    assert gatherer.gather_table("t", pa.table({"value": honest})) is not None
