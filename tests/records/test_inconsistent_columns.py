"""Arrow buffers of inconsistent arrays, which the record writer rejects."""

from __future__ import annotations

import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext import record_writer
from tests.records.columns import NOW, PAIRS, column, encoded, headers_column, times_column
from tests.twins import record_writer as twin


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
