"""Rows and columns encoded to batches, against the twin, and read by other readers."""

from __future__ import annotations

import struct
from array import array

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext import record_batch, record_writer
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.records.batch import Record
from tests.records.columns import (
    FIELD,
    HEADERS,
    I64,
    NOW,
    PAIRS,
    PRODUCER,
    ROW,
    ROWS,
    built,
    column,
    columns_of,
    encoded,
    headers_column,
    read_back,
    times_column,
)
from tests.records.test_other_clients import Aiokafka, KafkaPython, read_by
from tests.twins import record_writer as twin

# Rows.


@given(ROWS)
def test_rows_are_encoded_as_by_the_twin(rows):
    batch = built(rows, **PRODUCER)
    assert batch == twin.build(rows, **PRODUCER)
    assert record_batch.check_client_batch(batch) == 0
    assert read_back(batch) == rows


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


@given(ROW)
def test_record_size_max_is_a_close_upper_bound(row):
    key, value, headers, time = row
    bound = record_writer.record_size_max(key, value, headers)
    size = len(twin.payload([row]))
    assert size <= bound <= size + 50 + 10 * len(headers)
    assert record_writer.BatchBuilder(bound).append(key, value, headers, time) == 0


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
