"""Rows and columns encoded to batches, against the twin, and read by other readers.

Columns come as Arrow buffers, some of them of inconsistent arrays.
"""

from __future__ import annotations

import struct
from array import array
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext import record_batch, record_writer
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.records.batch import Record, RecordBatch
from tests.records.test_other_clients import Aiokafka, KafkaPython, read_by
from tests.twins import record_writer as twin

RUNS = settings(max_examples=200, deadline=None)

NOW = 1_700_000_000_000
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Sizes at which a copy takes another step, or a varint gets longer.
LENGTHS = st.sampled_from([0, 1, 3, 4, 8, 15, 16, 31, 32, 33, 63, 64, 65, 100, 1024, 1025, 8192])
FIELD = st.none() | st.binary(max_size=40) | LENGTHS.map(lambda size: b"x" * size)
NAME = st.text(max_size=12)
HEADERS = st.lists(st.tuples(NAME, FIELD), max_size=3).map(tuple)
TIME = st.integers(NOW - 100_000, NOW + 100_000) | st.integers(0, (1 << 63) - 1)
ROW = st.tuples(FIELD, FIELD, HEADERS, TIME)
ROWS = st.lists(ROW, min_size=1, max_size=12)
PRODUCER = {"attributes": 0x10, "producer_id": 4_000, "producer_epoch": 3, "base_sequence": 12}
PAIRS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


def column(array):
    validity, offsets, content = array.buffers()
    return validity, offsets, content, array.offset, "large" in str(array.type)


def headers_column(array):
    names, contents = array.values.flatten()
    return (*array.buffers()[:2], array.offset, column(names), column(contents))


def times_column(array):
    return (*array.buffers(), array.offset)


def columns_of(rows, kind, before=0, after=0):
    """Return value, key, headers, timestamps, as slices of larger arrays."""
    padded = [(b"no", b"nor this", (("n", b"o"),), 5)] * before + rows
    padded = padded + [(None, b"not this either", (), 6)] * after
    keys, values, headers, times = zip(*padded, strict=True)
    cells = [[{"key": n, "value": v} for n, v in each] or None for each in headers]
    arrays = (
        pa.array(values, kind), pa.array(keys, kind), pa.array(cells, PAIRS),
        pa.array(times, pa.int64()),
    )  # fmt: skip
    value, key, headers, times = (array[before : before + len(rows)] for array in arrays)
    return column(value), column(key), headers_column(headers), times_column(times)


def encoded(columns, first, end, *, rows=None, room=1 << 18, now_ms=NOW, **fields):
    """Return the number of rows encoded, and the batch of them."""
    out = bytearray(61 + room)
    taken, size, base, newest = record_writer.encode_columns(
        out, first, end, rows, *columns, now_ms
    )
    if not taken:
        assert (size, base, newest) == (0, -1, -1)
        return 0, b""
    given = {"attributes": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    size = record_writer.seal(out, size, taken, base, newest, **(given | fields))
    assert not any(out[size:]), "nothing is written behind the batch"
    return taken, bytes(out[:size])


def built(rows, **fields):
    """Return the batch of these rows, made by a builder."""
    builder = record_writer.BatchBuilder(1 << 18)
    for place, (key, value, headers, time) in enumerate(rows):
        assert builder.append(key, value, headers, time) == place
    out = bytearray(61 + builder.size)
    given = {"attributes": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    assert builder.seal_into(out, **(given | fields)) == len(out)
    with builder.payload() as payload:
        assert payload == out[61:]
    return bytes(out)


def read_back(batch):
    return [(r.key, r.value, r.headers, r.timestamp) for r in RecordBatch(batch)]


# Rows.


@RUNS
@given(ROWS)
def test_rows_are_encoded_as_by_the_twin(rows):
    batch = built(rows, **PRODUCER)
    assert batch == twin.build(rows, **PRODUCER)
    assert record_batch.check_client_batch(batch) == 0
    assert read_back(batch) == rows


@RUNS
@given(ROWS, st.integers(1, 600))
def test_append_accepts_exactly_the_rows_that_fit(rows, capacity):
    builder = record_writer.BatchBuilder(capacity)
    fits = twin.fitting(rows, capacity)
    for place, (key, value, headers, time) in enumerate(rows[: fits + 1]):
        size = builder.size
        assert builder.append(key, value, headers, time) == (place if place < fits else -1)
        assert place < fits or builder.size == size
    assert builder.count == fits
    with builder.payload() as payload:
        assert payload == twin.payload(rows[:fits])


@RUNS
@given(ROW)
def test_record_size_max_is_a_close_upper_bound(row):
    key, value, headers, time = row
    bound = record_writer.record_size_max(key, value, headers)
    size = len(twin.payload([row]))
    assert size <= bound <= size + 50 + 10 * len(headers)
    assert record_writer.BatchBuilder(bound).append(key, value, headers, time) == 0


@RUNS
@given(st.lists(st.tuples(FIELD, FIELD, HEADERS, I64), min_size=1, max_size=4))
def test_extreme_timestamps_wrap_as_in_the_twin(rows):
    assert built(rows) == twin.build(rows)
    columns = columns_of(rows, pa.binary())
    assert encoded(columns, 0, len(rows)) == (len(rows), twin.build(rows))


def test_reset_builder_is_empty():
    builder = record_writer.BatchBuilder(1 << 10)
    builder.append(b"old", b"older", None, 7)
    builder.reset()
    assert (builder.count, builder.size) == (0, 0)
    assert (builder.base_timestamp, builder.max_timestamp) == (-1, -1)
    builder.append(None, b"new", [("a", None)], NOW)
    builder.append(None, b"newer", (), NOW - 5)
    assert (builder.base_timestamp, builder.max_timestamp) == (NOW, NOW)
    with builder.payload() as payload:
        assert payload == twin.payload(
            [(None, b"new", (("a", None),), NOW), (None, b"newer", (), NOW - 5)]
        )


def test_closed_builder_accepts_no_record_until_reset():
    builder = record_writer.BatchBuilder(1 << 10)
    builder.append(None, b"x", None, NOW)
    builder.close()
    assert builder.closed
    assert builder.append(None, b"y", None, NOW) == -1
    assert builder.count == 1
    builder.reset()
    assert not builder.closed
    assert builder.append(None, b"y", None, NOW) == 0


def test_headers_iterator_may_close_or_append_to_the_builder():
    builder = record_writer.BatchBuilder(1 << 10)

    def appending():
        yield "a", b"1"
        builder.append(b"inner", None, [("c", b"3")] * 20, NOW - 7)
        yield "b", b"2"

    def closing():
        builder.close()
        yield "a", b"1"

    assert builder.append(b"outer", None, appending(), NOW) == 1
    inner = (b"inner", None, (("c", b"3"),) * 20, NOW - 7)
    rows = [inner, (b"outer", None, (("a", b"1"), ("b", b"2")), NOW)]
    assert builder.append(b"late", None, closing(), NOW) == -1
    with builder.payload() as payload:
        assert payload == twin.payload(rows)


def test_widened_builder_accepts_more_and_is_never_narrowed():
    builder = record_writer.BatchBuilder(100)
    assert builder.append(None, b"x" * 80, None, NOW) == 0
    assert builder.append(None, b"y" * 80, None, NOW) == -1
    builder.widen(200)
    assert builder.append(None, b"y" * 80, None, NOW) == 1
    for capacity in (199, 0, 1 << 31):
        with pytest.raises(ValueError, match="cannot be changed"):
            builder.widen(capacity)


def test_exported_payload_blocks_reallocation_and_is_read_only():
    builder = record_writer.BatchBuilder(1 << 20)
    builder.append(None, b"x", None, NOW)
    with builder.payload() as payload:
        before = bytes(payload)
        with pytest.raises(BufferError):
            builder.append(None, b"x" * 100_000, None, NOW)
        with pytest.raises(BufferError):
            builder.reset()
        assert payload == before
        with pytest.raises(TypeError):
            payload[0] = 1
    assert builder.append(None, b"x" * 100_000, None, NOW) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("naïve", "naïve".encode()),
        ("\udcff", b"\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (pa.py_buffer(b"arrow"), b"arrow"),
    ],
)
def test_text_and_buffers_are_written_as_bytes(given, expected):
    rows = [(given, given, [("n", given)], NOW)]
    assert built(rows) == twin.build([(expected, expected, (("n", expected),), NOW)])
    assert record_writer.record_size_max(*rows[0][:3]) >= len(twin.payload([(b"", b"", (), 0)]))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ((5, b"", None), "a key must be bytes, str or None, not int"),
        ((b"", 5.0, None), "a value must be bytes, str or None, not float"),
        ((b"", b"", [("n", [1])]), "a header's value must be bytes, str or None, not list"),
        ((b"", b"", [(b"n", b"")]), "a header's name must be str, not bytes"),
        ((b"", b"", [(None, b"")]), "a header's name must be str, not NoneType"),
        ((b"", b"", ["ab"]), r"a header must be a \(name, value\) pair, not 'ab'"),
        ((b"", b"", [b"ab"]), r"a header must be a \(name, value\) pair, not b'ab'"),
        ((b"", b"", [("n", b"", 1)]), r"a header must be a \(name, value\) pair, not \('n'"),
        ((b"", b"", [None]), r"a header must be a \(name, value\) pair, not None"),
    ],
)
def test_append_rejects_other_types_and_writes_nothing(row, complaint):
    builder = record_writer.BatchBuilder(1 << 10)
    with pytest.raises(TypeError, match=complaint):
        builder.append(*row, NOW)
    assert (builder.count, builder.size) == (0, 0)


@pytest.mark.parametrize("capacity", [0, -1, 1 << 31, (1 << 31) - 49])
def test_invalid_capacity_raises_value_error(capacity):
    with pytest.raises(ValueError, match="a batch's payload"):
        record_writer.BatchBuilder(capacity)


# Columns.


@RUNS
@given(
    ROWS,
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.integers(0, 9),
    st.integers(0, 2),
)
def test_columns_are_encoded_as_by_the_twin(rows, kind, before, after):
    columns = columns_of(rows, kind, before, after)
    record_writer.measure_columns(len(rows), *columns)
    taken, batch = encoded(columns, 0, len(rows), **PRODUCER)
    assert taken == len(rows)
    assert batch == twin.build(rows, **PRODUCER)
    assert read_back(batch) == rows


@RUNS
@given(ROWS, st.integers(0, 9))
def test_measured_column_sizes_equal_the_written_sizes(rows, before):
    columns = columns_of(rows, pa.large_binary(), before)
    largest, place, all_of_them, newest = record_writer.measure_columns(len(rows), *columns)
    alone = [len(twin.build([each])) - HEADER_SIZE for each in rows]
    assert largest == max(alone, default=0)
    assert place == (alone.index(largest) if rows else -1)
    written = len(twin.build(rows)) - HEADER_SIZE if rows else 0
    assert written <= all_of_them <= written + 20 * len(rows)
    assert newest == max((time for *_, time in rows), default=-1)


@RUNS
@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=100), st.integers(0, 9),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)  # fmt: skip
def test_measured_sizes_of_a_value_column_equal_the_written_sizes(values, before, kind):
    rows = [(None, value, (), NOW) for value in values]
    cells = pa.array([b"before"] * before + values, kind)[before:]
    columns = ((*cells.buffers(), before, kind == pa.large_binary()), None, None, None)
    largest, place, all_of_them, newest = record_writer.measure_columns(len(rows), *columns)
    alone = [len(twin.build([each])) - HEADER_SIZE for each in rows]
    assert (largest, place, newest) == (max(alone), alone.index(largest), -1)
    written = len(twin.build(rows)) - HEADER_SIZE
    assert written <= all_of_them <= written + 20 * len(rows)


@RUNS
@given(
    ROWS, ROWS, st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(1, 900),
    st.integers(0, 5), st.booleans(),
)  # fmt: skip
def test_append_columns_appends_the_rows_of_the_twin(rows, more, kind, capacity, before, chosen):
    builder = record_writer.BatchBuilder(capacity)
    taken = twin.fitting(rows, capacity)
    for row in rows[:taken]:
        assert builder.append(*row) >= 0
    columns = columns_of(more, kind, before=before, after=2)
    size_max = record_writer.measure_columns(len(more), *columns)[2]
    index = array("i", range(len(more))) if chosen else None
    together = rows[:taken] + more
    wanted = twin.fitting(together, capacity) - taken
    found = builder.append_columns(0, len(more), index, *columns, NOW, size_max)
    assert found == (taken, wanted)
    assert builder.append_columns(wanted, len(more), index, *columns, NOW, size_max)[1] == 0
    together = together[: taken + wanted]
    assert bytes(builder.payload()) == (twin.payload(together) if together else b"")
    assert builder.count == taken + wanted
    if together:
        times = [row[3] for row in together]
        assert (builder.base_timestamp, builder.max_timestamp) == (times[0], max(times))
    builder.close()
    assert builder.append_columns(0, len(more), None, *columns, NOW, size_max)[1] == 0


def test_append_of_invalid_columns_leaves_builder_unchanged():
    builder = record_writer.BatchBuilder(1000)
    builder.append(None, b"first", None, 5)
    before = bytes(builder.payload())
    value = (None, array("i", [0, 2, 9]), b"abc", 0, False)
    with pytest.raises(ValueError, match="column value: an offset decreases"):
        builder.append_columns(0, 2, None, value, None, None, None, NOW, 100)
    assert (bytes(builder.payload()), builder.count, builder.max_timestamp) == (before, 1, 5)
    for first, end in ((-1, 1), (0, 3)):
        with pytest.raises(ValueError, match="fewer rows than requested"):
            builder.append_columns(first, end, None, value, None, None, None, NOW, 100)


@RUNS
@given(ROWS, st.integers(0, 600))
def test_encoded_columns_continue_after_the_rows_that_fit(rows, room):
    columns = columns_of(rows, pa.binary())
    first = 0
    while first < len(rows):
        fits = twin.fitting(rows[first:], room)
        taken, batch = encoded(columns, first, len(rows), room=room)
        assert taken == fits
        if not fits:
            return
        assert batch == twin.build(rows[first : first + fits])
        first += fits


@RUNS
@given(ROWS, st.lists(st.integers(0, 11), min_size=1, max_size=20), st.integers(0, 3))
def test_rows_may_be_selected_by_an_index(rows, drawn, first):
    chosen = [place % len(rows) for place in drawn]
    first = min(first, len(chosen) - 1)
    index = struct.pack(f"<{len(chosen)}i", *chosen)
    columns = columns_of(rows, pa.binary(), before=3)
    taken, batch = encoded(columns, first, len(chosen), rows=index)
    assert taken == len(chosen) - first
    assert batch == twin.build([rows[place] for place in chosen[first:]])


@pytest.mark.parametrize("room_less", [0, 1])
def test_last_record_fits_a_buffer_of_exact_size(room_less):
    rows = [(None, b"v" * 100, (), NOW)] * 1000
    room = len(twin.payload(rows)) - room_less
    columns = (column(pa.array([row[1] for row in rows])), None, None, None)
    taken, batch = encoded(columns, 0, 1000, room=room)
    assert taken == 1000 - room_less
    assert batch == twin.build(rows[:taken])


def test_large_batch_of_columns_equals_the_rows():
    values = [b"%d" % place * (place % 60) for place in range(20_000)]
    rows = [(None, value, (), NOW) for value in values]
    columns = (column(pa.array(values)), None, None, None)
    taken, batch = encoded(columns, 0, len(rows), room=4 << 20)
    assert taken == len(rows)
    assert read_back(batch) == rows
    assert built(rows[:1000]) == encoded(columns, 0, 1000, room=4 << 20)[1]


def test_missing_column_is_null_and_missing_timestamp_is_now():
    assert encoded((None, None, None, None), 0, 3, now_ms=NOW + 1) == (
        3, twin.build([(None, None, (), NOW + 1)] * 3),
    )  # fmt: skip


@pytest.mark.parametrize("before", [0, 1, 9])
def test_null_timestamp_is_now(before):
    times = times_column(pa.array([7] * before + [5, None, 9], pa.int64())[before:])
    rows = [(None, None, (), 5), (None, None, (), NOW), (None, None, (), 9)]
    assert encoded((None, None, None, times), 0, 3) == (3, twin.build(rows))


def test_null_and_empty_header_lists_are_no_headers():
    cells = [None, [], [{"key": "", "value": None}], [{"key": "a", "value": b""}]]
    rows = [(None, None, tuple((h["key"], h["value"]) for h in cell or ()), NOW) for cell in cells]
    columns = (None, None, headers_column(pa.array(cells, PAIRS)), None)
    assert encoded(columns, 0, 4) == (4, twin.build(rows))


@pytest.mark.parametrize("package", [KafkaPython, Aiokafka])
@settings(max_examples=50, deadline=None)
@given(rows=ROWS)
def test_appended_records_are_read_by_other_clients(package, rows):
    wanted = [
        Record(place, time, key, value, headers)
        for place, (key, value, headers, time) in enumerate(rows)
    ]
    columns = columns_of(rows, pa.large_binary(), before=1)
    assert read_by(package, encoded(columns, 0, len(rows))[1]) == wanted
    assert read_by(package, built(rows)) == wanted


# Inconsistent columns.


def raw_column(offsets, content=b"abc", wide=False, validity=None, start=0):
    form = "q" if wide else "i"
    return validity, struct.pack(f"<{len(offsets)}{form}", *offsets), content, start, wide


OFFSETS = st.lists(
    st.integers(-2, 12) | st.sampled_from([1 << 30, -(1 << 31), (1 << 31) - 1]), max_size=6
)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("offsets", [[0, 11], [-1, 3], [4, 3], [11, 11], [3, 1 << 30], [3, -1]])
@pytest.mark.parametrize("place", [0, 1])
def test_cell_offsets_outside_the_column_are_rejected(offsets, wide, place):
    # The memory after the bytes is readable too, so only the check protects it.
    content = memoryview(b"0123456789" + b"secret" * 9)[:10]
    given = raw_column([0] * place + offsets, content, wide)
    for name, columns in (("value", (given, None)), ("key", (None, given))):
        with pytest.raises(ValueError, match=f"column {name}: an offset decreases"):
            record_writer.measure_columns(place + 1, *columns, None, None)
        with pytest.raises(ValueError, match=f"column {name}: an offset decreases"):
            encoded((*columns, None, None), 0, place + 1)


@pytest.mark.parametrize("short", ["names", "contents"])
@pytest.mark.parametrize("lists", [[0, 3], [3, 3], [2, 3]])
def test_header_list_beyond_its_names_or_values_is_rejected(short, lists):
    whole = raw_column([0, 1, 2, 3, 3])
    cut = (None, memoryview(whole[1])[:12], *whole[2:])
    names, contents = (cut, whole) if short == "names" else (whole, cut)
    headers = (None, raw_column(lists)[1], 0, names, contents)
    with pytest.raises(ValueError, match="column headers"):
        record_writer.measure_columns(1, None, None, headers, None)
    with pytest.raises(ValueError, match="column headers"):
        encoded((None, None, headers, None), 0, 1)


@RUNS
@given(
    OFFSETS,
    st.booleans(),
    st.binary(max_size=1) | st.none(),
    st.sampled_from([0, 0, 0, 1, 2, 4, -1]),
    st.sampled_from([0, 0, 0, 1, -1]),
)
def test_column_offsets_must_ascend_within_the_bytes(offsets, wide, validity, start, more):
    count = max(len(offsets) - 1 - start + more, 0)
    content = b"0123456789"
    given = raw_column(offsets, content, wide, validity, start)
    cells = cells_of(offsets, content, validity, start, count)
    for columns in ((given, None, None, None), (None, given, None, None)):
        if cells is None:
            with pytest.raises(ValueError):
                record_writer.measure_columns(count, *columns)
            with pytest.raises(ValueError):
                encoded(columns, 0, count)
        else:
            record_writer.measure_columns(count, *columns)
            rows = [
                (None, cell, (), NOW) if columns[0] else (cell, None, (), NOW) for cell in cells
            ]
            batch = bytes(twin.build(rows)) if rows else b""
            assert encoded(columns, 0, count) == (count, batch)


def cells_of(offsets, content, validity, start, count):
    """Return the cells of consistent buffers, or None for others."""
    slots = max(len(offsets) - 1, 0)
    if validity is not None:
        slots = min(slots, 8 * len(validity))
    if not 0 <= start <= slots or start + count > slots:
        return None
    cells = []
    for place in range(start, start + count):
        begin, end = offsets[place : place + 2]
        if validity is not None and not validity[place // 8] >> place % 8 & 1:
            cells.append(None)
        elif 0 <= begin <= end <= len(content):
            cells.append(content[begin:end])
        else:
            return None
    return cells


@RUNS
@given(OFFSETS, OFFSETS, OFFSETS)
def test_header_offsets_must_ascend_within_the_bytes(lists, names, contents):
    headers = (
        None,
        raw_column(lists)[1],
        0,
        raw_column(names, b"n" * 9),
        raw_column(contents, b"c" * 9),
    )
    count = max(len(lists) - 1, 0)

    def sound(offsets, size):
        return all(0 <= begin <= end <= size for begin, end in pairwise(offsets))

    inner = max(min(len(names), len(contents)) - 1, 0)
    honest = sound(lists, inner)
    if honest:
        for begin, end in pairwise(lists):
            honest &= sound(names[begin : end + 1], 9) and sound(contents[begin : end + 1], 9)
    columns = (None, None, headers, None)
    if honest:
        record_writer.measure_columns(count, *columns)
        assert encoded(columns, 0, count)[0] == count
    else:
        with pytest.raises(ValueError, match="column headers"):
            record_writer.measure_columns(count, *columns)
        with pytest.raises(ValueError, match="column headers"):
            encoded(columns, 0, count)


def test_null_header_name_is_rejected():
    columns = (None, None, headers_column(pa.array([[{"key": None, "value": b""}]], PAIRS)), None)
    with pytest.raises(ValueError, match=r"column headers: the name of a header is null \(row 0\)"):
        record_writer.measure_columns(1, *columns)
    with pytest.raises(ValueError, match="the name of a header is null"):
        encoded(columns, 0, 1)


@pytest.mark.parametrize("buffer", ["validity", "values", "start"])
def test_timestamp_column_beyond_its_buffers_is_rejected(buffer):
    times = {"validity": b"\xff", "values": bytes(64), "start": 0}
    times[buffer] = {"validity": b"", "values": bytes(63), "start": 9}[buffer]
    columns = (None, None, None, tuple(times.values()))
    with pytest.raises(ValueError, match="row"):
        record_writer.measure_columns(8, *columns)
    with pytest.raises(ValueError, match="row"):
        encoded(columns, 0, 8)


def test_measure_columns_rejects_negative_timestamp():
    times = times_column(pa.array([0, 5, -1], pa.int64()))
    with pytest.raises(ValueError, match=r"a timestamp is negative \(row 2\)"):
        record_writer.measure_columns(3, None, None, None, times)
    record_writer.measure_columns(2, None, None, None, times)


@pytest.mark.parametrize("chosen", [[0, 3], [-1], [1 << 30], [-(1 << 31)]])
def test_row_index_beyond_the_columns_is_rejected(chosen):
    index = struct.pack(f"<{len(chosen)}i", *chosen)
    columns = (column(pa.array([b"a", b"b", b"c"])), None, None, None)
    with pytest.raises(ValueError, match="fewer rows than requested"):
        encoded(columns, 0, len(chosen), rows=index)


@pytest.mark.parametrize(("first", "end"), [(-1, 1), (0, 4), (3, 1 << 40)])
def test_row_range_beyond_the_columns_is_rejected(first, end):
    columns = (column(pa.array([b"a", b"b", b"c"])), None, None, None)
    with pytest.raises(ValueError, match="fewer rows than requested"):
        encoded(columns, first, end)
    with pytest.raises(ValueError, match="fewer rows than requested"):
        # The memory around the index holds valid row numbers, none of which was passed.
        encoded(columns, first, end, rows=memoryview(bytes(64))[16:28])


def test_column_buffers_are_released_after_errors():
    content = bytearray(b"abc")
    for offsets in ([0, 1, 3], [0, 9, 3]):
        columns = (raw_column(offsets, content), None, None, None)
        try:
            encoded(columns, 0, 2)
        except ValueError:
            assert offsets[1] == 9
        content.append(1)  # BufferError while a buffer is exported
    with pytest.raises((TypeError, ValueError)):
        record_writer.measure_columns(1, (None, content, content, 0), None, None, None)
    with pytest.raises(TypeError):
        wrong = raw_column([0, 1], content)[:3] + ("x", False)
        record_writer.measure_columns(1, wrong, None, None, None)
    content.append(1)
