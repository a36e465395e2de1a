"""Rows and columns for tests of the record writer: their strategies, and batches of them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from kafkalite._ext import record_writer
from kafkalite.records.batch import RecordBatch

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
