"""Arrow tables on their way in: which columns there are, and what their buffers are.

    value       binary or string, plain, large or view; null: a tombstone
    key         the same; null: no key
    headers     map<string, binary> or list<struct<key: string, value: binary>>
    timestamp   timestamp of any unit, or an integer of milliseconds; null: now
    partition   an integer; null: the partitioner's choice

Only `value` must be there.  A column of another name or type is refused by name and type and
nothing is sent: to leave out what somebody wrote would be to lose it.

Whatever has `__arrow_c_stream__` may be given (pyarrow's Table and RecordBatch, polars, pandas),
and no byte of a plain or large column is copied.  Buffers are believed only after a look: see
ext/record_writer.pyx.  What has to be cast first (views, other units) is validated in full
before, since the cast itself would follow every offset.

Left out: dictionaries, whose owner casts them and knows what that costs; and list views as
headers, which pyarrow 26 casts to lists whose offsets end too early.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkalite._ext.record_writer import check_columns

NAMES = ("value", "key", "headers", "timestamp", "partition")
# Rows are numbered with 32 bits, and a batch need not be larger.
_ROWS_MAX = 1 << 30
# How pandas' index is called when it becomes a column; it is not one of the frame's.
_INDEX = "__index_level_"

# In the forms that record_writer.pyi names, over pyarrow's buffers.
Bytes = tuple[Any, Any, Any, int, bool]
Headers = tuple[Any, Any, int, Bytes | None, Bytes | None]
Timestamps = tuple[Any, Any, int]


class Columns(NamedTuple):
    """Rows that lie side by side, and the buffers that `encode_columns` takes them from."""

    row_count: int
    value: Bytes | None
    key: Bytes | None
    headers: Headers | None
    timestamps: Timestamps | None
    partitions: Any
    """An int32 a row from the first on, -1 where the partitioner may choose; or None."""


def columns_of(rows: Any) -> list[Columns]:
    """The rows in contiguous pieces, every one checked; TypeError or ValueError, and nothing."""
    found = []
    for batch in _table(rows).to_batches(max_chunksize=_ROWS_MAX):
        if not batch.num_rows:
            continue
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = Columns(
            batch.num_rows,
            _bytes("value", given["value"]),
            _bytes("key", given.get("key")),
            _headers(given.get("headers")),
            _timestamps(given.get("timestamp")),
            _partitions(given.get("partition")),
        )
        check_columns(batch.num_rows, *columns[1:5])
        found.append(columns)
    return found


def _table(rows: Any) -> Any:
    """A pyarrow Table with none but the columns there may be."""
    import pyarrow as pa

    is_arrow = isinstance(rows, pa.Table | pa.RecordBatch)
    if not is_arrow and not hasattr(rows, "__arrow_c_stream__"):
        raise TypeError(f"rows come as an Arrow table or a data frame, not {_name_of(rows)}")
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else pa.table(rows)
    if not is_arrow:
        table = table.select([name for name in table.column_names if _INDEX not in name])
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        if name not in NAMES:
            raise TypeError(f"column {name} ({kind}) is none of {', '.join(NAMES)}")
        if table.schema.names.count(name) > 1:
            raise TypeError(f"column {name} ({kind}) is there more than once")
    if "value" not in table.schema.names:
        raise TypeError(f"there is no column value among {table.schema.names}")
    return table


def _name_of(rows: Any) -> str:
    return f"{type(rows).__module__}.{type(rows).__qualname__}"


def _refused(name: str, array: Any, wanted: str) -> TypeError:
    return TypeError(f"column {name} is {array.type}: it must be {wanted}")


def _cast(name: str, array: Any, wanted: Any, **allowed: bool) -> Any:
    """The array as another type; its own bytes are looked at before the cast follows them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        array.validate(full=True)
        return pc.cast(array, options=pc.CastOptions(wanted, **allowed))
    except pa.ArrowException as fault:
        raise ValueError(f"column {name} ({array.type}): {fault}") from None


def _bytes(name: str, array: Any) -> Bytes | None:
    import pyarrow as pa

    if array is None or pa.types.is_null(array.type):
        return None
    if array.type in (pa.binary_view(), pa.string_view()):
        array = _cast(name, array, pa.large_binary())
    if array.type not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        raise _refused(name, array, "binary or string")
    validity, offsets, content = array.buffers()
    wide = array.type in (pa.large_binary(), pa.large_string())
    return validity, offsets, content, array.offset, wide


def _headers(array: Any) -> Headers | None:
    import pyarrow as pa

    if array is None or pa.types.is_null(array.type):
        return None
    if pa.types.is_large_list(array.type):
        array = _cast("headers", array, pa.list_(array.type.value_type))
    if not pa.types.is_map(array.type) and not _is_list_of_pairs(array.type):
        wanted = "map<string, binary> or list<struct<key: string, value: binary>>"
        raise _refused("headers", array, wanted)
    pairs = array.values
    # Not `field`: where a whole pair is null, the name is to be.
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
    import pyarrow as pa

    if array is None or pa.types.is_null(array.type):
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
    import pyarrow as pa
    import pyarrow.compute as pc

    if array is None or pa.types.is_null(array.type):
        return None
    if not pa.types.is_integer(array.type):
        raise _refused("partition", array, "an integer")
    array = _cast("partition", array, pa.int32())
    least = pc.min(array).as_py()
    if least is not None and least < 0:
        raise ValueError(f"column partition: there is no partition {least}")
    array = array.fill_null(-1)
    return array.buffers()[1].slice(4 * array.offset, 4 * len(array))
