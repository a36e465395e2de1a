"""Fetched records as pyarrow.RecordBatch, in this schema:

    key             binary
    value           binary
    topic           string
    partition       int32
    offset          int64
    timestamp       timestamp[ms, UTC]     null if the record has none
    timestamp_type  int8                   0 CreateTime, 1 LogAppendTime
    headers         list<struct<key: string, value: binary>>

or in the requested columns of it, in the requested order; only those are decoded.  The timestamp
unit can be changed.  The decoder's memory becomes Arrow's without a copy.  Columns with one value
for all rows, and headers if no record has any, are created once and sliced.

Invalid UTF-8 in a header name is replaced by U+FFFD, since Arrow strings are UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from kafkalite._ext import record_reader
from kafkalite._ext.record_reader import ColumnBuilder
from kafkalite.client.decoding.record_sets import decode_set
from kafkalite.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

COLUMNS = {
    "key": record_reader.KEY,
    "value": record_reader.VALUE,
    "topic": 0,
    "partition": 0,
    "offset": record_reader.OFFSET,
    "timestamp": record_reader.TIMESTAMP,
    "timestamp_type": record_reader.TIMESTAMP_TYPE,
    "headers": record_reader.HEADERS,
}
_TICKS = {"ms": 1, "us": 1_000, "ns": 1_000_000}

Constant: TypeAlias = str | int | tuple[()]
"""The value of all rows of a column; an empty tuple is an empty list."""

# A topic name has at most 249 bytes, so the 32-bit offsets of the topic column allow this many.
_ROWS_MAX = (1 << 31) // 256
# Constant columns of up to this many rows are kept for the next batch, and so many of them.
_KEPT_ROWS_MAX = 1 << 17
_KEPT_COLUMNS_MAX = 64


class KeptColumn(NamedTuple):
    """A constant column, and the part of it that the last batch has: often as long as the next."""

    whole: pa.Array[Any]
    last: pa.Array[Any]


class ColumnReader:
    """Decodes record sets into columns and returns them as record batches.

    One thread at a time; large sets are decoded without the GIL.
    """

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        timestamp_unit: str = "ms",
        check_crcs: bool = True,
    ) -> None:
        names = _checked(columns)
        if timestamp_unit not in _TICKS:
            raise InvalidConfig(
                f"timestamp_unit must be one of {', '.join(_TICKS)}, not {timestamp_unit!r}."
            )
        self.schema = _schema(names, timestamp_unit)
        self._types = dict(zip(names, self.schema.types, strict=True))
        self._kept: dict[tuple[str, Constant], KeptColumn] = {}
        wanted = sum(COLUMNS[name] for name in names)
        self.builder = ColumnBuilder(wanted, check_crcs, _TICKS[timestamp_unit])

    def decode(
        self,
        record_set: Buffer,
        position: int,
        first_offset: int,
        size_max: int,
        unpacked_size_max: int | None = None,
    ) -> tuple[int, int]:
        """Decode a record set into the columns; see `record_sets.decode_set`."""
        return decode_set(
            self.builder, record_set, position, first_offset, size_max, unpacked_size_max
        )

    def take(self, topic: str, partition: int) -> list[pa.RecordBatch]:
        """Return the rows decoded since the last call, which are all of this partition.

        The list has one batch, or none; several only if there are more than `_ROWS_MAX` rows.
        """
        count = self.builder.count
        buffers = self.builder.take()
        taken = []
        for start in range(0, count, _ROWS_MAX):
            size = min(count - start, _ROWS_MAX)
            taken.append(self._record_batch(buffers, start, size, topic, partition))
        return taken

    def _record_batch(
        self, buffers: dict[str, Any], start: int, count: int, topic: str, partition: int
    ) -> pa.RecordBatch:
        import pyarrow as pa

        arrays: list[pa.Array[Any]] = []
        for name, kind in self._types.items():
            if name == "topic":
                arrays.append(self._constant(name, topic, kind, count))
            elif name == "partition":
                arrays.append(self._constant(name, partition, kind, count))
            elif name == "headers" and not _header_count(buffers):
                arrays.append(self._constant(name, (), kind, count))
            else:
                arrays.append(_column(buffers, name, kind, start, count))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(
        self, name: str, value: Constant, kind: pa.DataType, count: int
    ) -> pa.Array[Any]:
        """Return a column with the same value in each row."""
        if count > _KEPT_ROWS_MAX:
            return _repeated(value, kind, count)
        kept = self._kept.get((name, value))
        if kept is not None and len(kept.last) == count:
            return kept.last
        if kept is not None and len(kept.whole) >= count:
            whole = kept.whole
        else:
            whole = _repeated(value, kind, max(1024, 1 << (count - 1).bit_length()))
        if len(self._kept) >= _KEPT_COLUMNS_MAX:
            self._kept.clear()
        last = whole.slice(0, count)
        self._kept[name, value] = KeptColumn(whole, last)
        return last


def rows_below(batches: Iterable[pa.RecordBatch], end: int) -> list[pa.RecordBatch]:
    """Return the rows of these batches with offsets below `end`."""
    return [batch.slice(0, bisect_left(offsets_of(batch), end)) for batch in batches]


def offsets_of(batch: pa.RecordBatch) -> memoryview[int]:
    """Return the offsets of the rows as integers, without an object of Arrow for each."""
    column = batch.column("offset")
    held = memoryview(column.buffers()[1]).cast("b").cast("q")
    return held[column.offset : column.offset + len(column)]


def _checked(columns: Sequence[str] | None) -> list[str]:
    names = list(COLUMNS) if columns is None else list(columns)
    if isinstance(columns, str) or not names or len(set(names)) < len(names):
        raise InvalidConfig(f"columns must be a list of different names, not {columns!r}")
    for name in names:
        if name not in COLUMNS:
            raise InvalidConfig(f"there is no column {name!r}: {', '.join(COLUMNS)}")
    return names


def _schema(names: Sequence[str], timestamp_unit: str) -> pa.Schema:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types: dict[str, pa.DataType] = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp(cast(Any, timestamp_unit), "UTC"),
        "timestamp_type": pa.int8(),
        "headers": pa.list_(header),
    }
    return pa.schema([(name, types[name]) for name in names])


def _column(
    buffers: dict[str, Any], name: str, kind: pa.DataType, start: int, count: int
) -> pa.Array[Any]:
    """Return the rows of a column as an array over the decoder's memory."""
    import pyarrow as pa

    if name in ("key", "value"):
        return _fields(buffers, name, kind, start, count)
    if name != "headers":
        values = pa.py_buffer(buffers[name])
        array = pa.Array.from_buffers(kind, count, [None, values], 0, start)
        if name == "timestamp" and buffers["timestamp_nulls"]:
            return _known_times(array)
        return array
    header_count = _header_count(buffers)
    parts = [
        _fields(buffers, "header_key", pa.string(), 0, header_count),
        _fields(buffers, "header_value", pa.binary(), 0, header_count),
    ]
    header = pa.StructArray.from_arrays(parts, names=["key", "value"])
    offsets = pa.py_buffer(buffers["header_offsets"])
    return pa.Array.from_buffers(kind, count, [None, offsets], 0, start, [header])


def _header_count(buffers: dict[str, Any]) -> int:
    return len(buffers["header_key_offsets"]) // 4 - 1


def _known_times(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return the timestamps with null in place of -1 ms, which means that a record has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ticks = array.view(pa.int64())
    return pc.if_else(pc.equal(ticks, -_TICKS[array.type.unit]), None, array)


def _fields(
    buffers: dict[str, Any], name: str, kind: pa.DataType, start: int, count: int
) -> pa.Array[Any]:
    import pyarrow as pa

    validity = buffers[f"{name}_validity"]
    parts = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(buffers[f"{name}_offsets"]),
        pa.py_buffer(buffers[f"{name}_data"]),
    ]
    return pa.Array.from_buffers(kind, count, parts, -1, start)


def _repeated(value: Constant, kind: pa.DataType, count: int) -> pa.Array[Any]:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), count)
