"""Arrow columns: checks a table for send_arrow, and provides the buffers of its columns.

    value       binary or string, plain, large, view or of fixed size; null: a tombstone
    key         the same; null: no key
    headers     map<string, binary> or list<struct<key: string, value: binary>>
    timestamp   timestamp of any unit, or an integer of milliseconds; null: now.  Integers that
                look like another unit are sent, with a UserWarning
    partition   an integer; null: the partitioner's choice

Only `value` is required.  A column of another name or type raises TypeError and nothing is sent:
ignoring it would lose data.

Any object with `__arrow_c_stream__` is accepted (pyarrow's Table and RecordBatch, polars, pandas),
and no byte of a plain or large column is copied.  Offsets and validity are checked before they are
used, see ext/client/record_writer.pyx.  A column that must be cast first (views, other units) is
validated in full before, because the cast itself follows every offset.

Keys and values may be dictionary-encoded (pandas' category, polars' Categorical and Enum): they
are decoded first, which copies the column.

Left out: list views as headers, which pyarrow 26 casts to lists whose offsets end too early.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite._ext.gathering import TableLayout
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import measure_columns
from kafkalite.errors import MessageTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("value", "key", "headers", "timestamp", "partition")
# Row indexes have 32 bits, and a batch need not be larger.
_ROWS_MAX = 1 << 30
# Name of the column that pandas' index becomes; it is not one of the frame's columns.
_INDEX = "__index_level_"
# As milliseconds 1970-01-02 to 1973, as seconds 1973 to 5138: certainly seconds.
_SECONDS_LIKE = range(10**8, 10**11)
# As milliseconds after the year 5138, as microseconds or nanoseconds from 1973 on.
_MICROSECONDS_LIKE_MIN = 10**14

# The tuples of record_writer.pyi, over pyarrow's buffers.
Bytes = tuple[Any, Any, Any, int, bool]
Headers = tuple[Any, Any, int, Bytes | None, Bytes | None]
Timestamps = tuple[Any, Any, int]


class ArrowColumns(NamedTuple):
    """Contiguous rows, and the buffers that `encode_columns` reads."""

    row_count: int
    value: Bytes | None
    key: Bytes | None
    headers: Headers | None
    timestamps: Timestamps | None
    partitions: Any
    """An int32 per row, counted from the first, -1 where the partitioner chooses; or None."""
    size_max: int
    """Upper bound for the size of a batch with all rows."""
    largest: tuple[int, int]
    """Size of a batch with only the largest row, and the index of that row."""


def columns_of(rows: Any) -> list[ArrowColumns]:
    """Return the rows in contiguous pieces, all checked; TypeError or ValueError otherwise."""
    found = []
    newest = -1
    table = _table(rows)
    names = _checked_names(table.schema)
    for batch in table.to_batches(max_chunksize=_ROWS_MAX):
        count = batch.num_rows
        if not count:
            continue
        given = dict(zip(names, batch.columns, strict=True))
        columns = (
            _bytes("value", given["value"]),
            _bytes("key", given.get("key")),
            _headers(given.get("headers")),
            _timestamps(given.get("timestamp")),
        )
        partitions = _partitions(given.get("partition"))
        largest, row, all_of_them, time = measure_columns(count, *columns)
        newest = max(newest, time)
        found.append(
            ArrowColumns(
                count, *columns, partitions, HEADER_SIZE + all_of_them, (HEADER_SIZE + largest, row)
            )
        )
    if newest >= 0:
        _warn_of_unit(newest, table.schema.field("timestamp").type)
    return found


def layout_of(schema: pa.Schema) -> TableLayout:
    """Return the columns of a schema if none needs a conversion or a check beyond its buffers."""
    import pyarrow as pa

    wide = {
        pa.binary(): False, pa.string(): False, pa.large_binary(): True, pa.large_string(): True,
    }  # fmt: skip
    kinds = dict(zip(schema.names, schema.types, strict=True))
    value, key, timestamp = (schema.get_field_index(name) for name in ("value", "key", "timestamp"))
    is_plain = (
        len(kinds) == len(schema)
        and kinds.keys() <= {"value", "key", "timestamp"}
        and kinds.get("value") in wide
        and (key < 0 or kinds["key"] in wide)
        and (timestamp < 0 or str(kinds["timestamp"]).startswith("timestamp[ms"))
    )
    if not is_plain:
        return TableLayout(schema, -1, False, -1, False, -1)
    return TableLayout(
        schema, value, wide[kinds["value"]], key, key >= 0 and wide[kinds["key"]], timestamp
    )


def check_sizes(pieces: list[ArrowColumns], size_max: int) -> None:
    """Raise MessageTooLarge if a row does not fit a batch of this size."""
    first = 0
    for columns in pieces:
        size, row = columns.largest
        if size > size_max:
            raise MessageTooLarge(
                f"Row {first + row} takes {size} bytes as a record; max.request.size and"
                f" buffer.memory allow {size_max}.  No row was sent."
            )
        first += columns.row_count


def _warn_of_unit(newest: int, kind: pa.DataType) -> None:
    """Warn about integers that are unlikely to be milliseconds."""
    import pyarrow as pa

    if not pa.types.is_integer(kind):
        return
    if newest in _SECONDS_LIKE:
        unit = "seconds"
    elif newest >= _MICROSECONDS_LIKE_MIN:
        unit = "microseconds or nanoseconds"
    else:
        return
    warnings.warn(
        f"Column timestamp ({kind}) is taken as milliseconds since 1970, but its largest value,"
        f" {newest}, looks like {unit}: cast it to a timestamp of its unit, as in"
        " pc.cast(column, pa.timestamp('s')).",
        UserWarning,
        stacklevel=4,
    )


def _table(rows: Any) -> pa.Table:
    """Return the rows as a pyarrow Table."""
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    return frame_of(rows)


def frame_of(rows: Any) -> pa.Table:
    """Return a data frame as a table, without pandas' index; TypeError for anything else."""
    import pyarrow as pa

    if not hasattr(rows, "__arrow_c_stream__"):
        raise _no_table(rows)
    try:
        table = pa.table(rows)
    except pa.ArrowInvalid:
        if hasattr(rows, "to_frame"):  # a series: it has a stream, but not of rows
            raise _no_table(rows) from None
        raise
    return table.select([name for name in table.column_names if _INDEX not in name])


def _no_table(rows: Any) -> TypeError:
    """Return the error for rows that are no table, with a hint how to make one of them."""
    remedy = ""
    if isinstance(rows, list):
        remedy = ": make a table of them with pa.Table.from_pylist(rows)"
    elif isinstance(rows, dict):
        remedy = ": make a table of it with pa.table(rows)"
    elif hasattr(rows, "collect"):
        remedy = ": send the result of its collect()"
    elif hasattr(rows, "to_frame"):
        remedy = ": send the result of its to_frame()"
    name = f"{type(rows).__module__}.{type(rows).__qualname__}"
    return TypeError(f"rows must be an Arrow table or a data frame, not {name}{remedy}")


@lru_cache(maxsize=64)
def _checked_names(schema: pa.Schema) -> list[str]:
    """Return the names of the columns; TypeError unless they are columns of records."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in NAMES:
            raise TypeError(
                f"column {name} ({kind}) is not a column of records, which are {', '.join(NAMES)}"
            )
        if schema.names.count(name) > 1:
            raise TypeError(f"column {name} ({kind}) occurs more than once")
    if "value" not in schema.names:
        raise TypeError(f"the rows have no column value; their columns are {schema.names}")
    names: list[str] = schema.names
    return names


def _refused(name: str, array: Any, wanted: str) -> TypeError:
    return TypeError(
        f"column {name} is {array.type}: it must be {wanted}; convert it with pc.cast(column, …)"
    )


def _cast(name: str, array: Any, wanted: Any, **allowed: bool) -> Any:
    """Return the array as another type, validated first because the cast follows its offsets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        array.validate(full=True)
        return pc.cast(array, options=pc.CastOptions(wanted, **allowed))
    except pa.ArrowException as error:
        raise ValueError(f"column {name} ({array.type}): {error}") from None


def _bytes(name: str, array: Any) -> Bytes | None:
    if array is None:
        return None
    import pyarrow as pa

    kind = array.type
    if kind == pa.binary() or kind == pa.string():
        return *array.buffers(), array.offset, False
    if pa.types.is_null(kind):
        return None
    if pa.types.is_dictionary(kind):
        return _bytes(name, _decoded(name, array))
    if kind in (pa.binary_view(), pa.string_view()) or pa.types.is_fixed_size_binary(kind):
        array = _cast(name, array, pa.large_binary())
    elif kind not in (pa.large_binary(), pa.large_string()):
        raise _refused(name, array, "binary or string")
    return *array.buffers(), array.offset, True


def _decoded(name: str, array: Any) -> Any:
    """Return the cells of a dictionary-encoded array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(array.type.value_type):
        return pa.nulls(len(array))
    texts = (
        pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(),
        pa.string_view(),
    )  # fmt: skip
    kind = array.type.value_type
    if kind not in texts and not pa.types.is_fixed_size_binary(kind):
        raise _refused(name, array, "binary or string, or a dictionary of them")
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(f"column {name} ({array.type}): {error}") from None
    return pc.take(_cast(name, array.dictionary, pa.large_binary()), array.indices)


def _headers(array: Any) -> Headers | None:
    if array is None:
        return None
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return None
    if pa.types.is_large_list(array.type):
        array = _cast("headers", array, pa.list_(array.type.value_type))
    if not pa.types.is_map(array.type) and not _is_list_of_pairs(array.type):
        wanted = "map<string, binary> or list<struct<key: string, value: binary>>"
        raise _refused("headers", array, wanted)
    pairs = array.values
    # flatten() instead of field(): it makes the name null where the whole pair is null.
    names, contents = pairs.flatten()
    if not pa.types.is_map(array.type) and pairs.type.field(0).name == "value":
        names, contents = contents, names
    validity, offsets = array.buffers()[:2]
    return (
        validity, offsets, array.offset, _bytes("headers", names), _bytes("headers", contents),
    )  # fmt: skip


def _is_list_of_pairs(kind: Any) -> bool:
    import pyarrow as pa

    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    return sorted(pair.field(place).name for place in range(pair.num_fields)) == ["key", "value"]


def _timestamps(array: Any) -> Timestamps | None:
    if array is None:
        return None
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return None
    if pa.types.is_integer(array.type):
        array = _cast("timestamp", array, pa.int64())
    elif pa.types.is_timestamp(array.type):
        array = _cast("timestamp", array, pa.timestamp("ms"), allow_time_truncate=True)
    else:
        raise _refused("timestamp", array, "a timestamp or an integer of milliseconds")
    validity, values = array.buffers()
    return validity, values, array.offset


def _partitions(array: Any) -> Any:
    if array is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(array.type):
        return None
    if not pa.types.is_integer(array.type):
        raise _refused("partition", array, "an integer")
    array = _cast("partition", array, pa.int32())
    least = pc.min(array).as_py()
    if least is not None and least < 0:
        raise ValueError(f"column partition: {least} is not a partition; they count from 0")
    array = array.fill_null(-1)
    return array.buffers()[1].slice(4 * array.offset, 4 * len(array))
