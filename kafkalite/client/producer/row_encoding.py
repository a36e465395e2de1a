"""Row encoding: the rows of a data frame as record values in JSON, CSV or Avro.

    records_of(frame, "json", key="sensor", timestamp="time")    a table for send_arrow

One row becomes one value.  The key and timestamp columns stay in the value too; `columns` names
what the value holds, all columns by default.

JSON and CSV are written column by column with pyarrow.compute, so that no row becomes a Python
object; only binary cells do.  A cell is encoded as:

    column                 JSON                              CSV
    null                   null                              nothing
    bool, integer          as it is, exact                   the same
    float                  shortest text that reads back;    the same; NaN and infinity: nothing
                           NaN and infinity: null
    decimal                a number with all its digits      the same
    text                   escaped, in quotes                in quotes where RFC 4180 needs them;
                                                             empty text: ""
    date, time             "2026-11-22", "20:44:41.000"      the same without quotes
    timestamp              "2026-11-22T20:44:41.000Z", UTC;  the same without quotes
                           without a zone it is UTC, as in send_arrow
    binary                 base64, as Spark's to_json        the same
    list, struct, map      array, object, object             refused

JSON is UTF-8 without spaces, CSV has no header line.  Avro is the plain datum of a row, without
the schema or the id of a schema registry: readers must know the schema.  It is written row by row
with fastavro, which costs about 10 µs a cell: measured, 55 µs for a row of four columns, where JSON
costs 1 µs.

Left out: headers and partitions by row (send_arrow takes them); durations, whose unit readers
would have to guess; registry framing; Protobuf.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.client.producer.arrow_columns import frame_of

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("json", "csv", "avro")

CHUNK_ROWS = 1 << 16
"""Rows encoded at a time, so that intermediate results stay in the processor's cache."""

_ESCAPES = [
    ("\\", "\\\\"),  # first: the others add backslashes
    ('"', '\\"'),
    *((char, json.dumps(char)[1:-1]) for char in map(chr, range(0x20))),
]
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
_NEEDS_QUOTES = r'^$|[",\r\n]|^\s|\s$'
_YEAR = r"^\d{4}-"


def records_of(
    frame: Any,
    format: str,
    *,
    key: str | None = None,
    timestamp: str | None = None,
    columns: Sequence[str] | None = None,
    schema: Any = None,
) -> pa.Table:
    """Return the rows of a frame as a table of records with a value, and a key and timestamp."""
    import pyarrow as pa

    if format not in FORMATS:
        raise ValueError(f"format is one of {', '.join(FORMATS)}, not {format!r}")
    if schema is not None and format != "avro":
        raise ValueError(f"format={format!r} takes no schema, only avro does")
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, not the text {columns!r}")
    table = _table(frame)
    values = table.select(_checked(table, table.column_names if columns is None else columns))
    _check_bytes(table)
    if format == "avro":
        from kafkalite.client.producer.avro_rows import avro_values

        encoded = avro_values(values, schema)
    else:
        encode = json_values if format == "json" else csv_values
        chunks = [encode(batch) for batch in values.to_batches(max_chunksize=CHUNK_ROWS)]
        encoded = pa.chunked_array(chunks, pa.large_string())
    records = {"value": encoded}
    if key is not None:
        records["key"] = _keys(key, table.column(_checked(table, [key])[0]))
    if timestamp is not None:
        records["timestamp"] = table.column(_checked(table, [timestamp])[0])
    return pa.table(records)


def _table(frame: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    return frame_of(frame)


def _checked(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Return the names; ValueError unless each is exactly one column of the table."""
    if not names:
        raise ValueError("no column is left for the values")
    for name in names:
        count = table.column_names.count(name)
        if not count:
            raise ValueError(
                f"the rows have no column {name!r}; their columns are {table.column_names}"
            )
        if count > 1 or list(names).count(name) > 1:
            raise ValueError(f"column {name!r} occurs more than once")
    return list(names)


def _check_bytes(table: pa.Table) -> None:
    """Raise ValueError if a column's buffers do not match its type (text must be UTF-8)."""
    import pyarrow as pa

    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueError(f"column {name!r} ({column.type}): {error}") from None


def _keys(name: str, column: Any) -> Any:
    """Return a column as keys: text and bytes as they are, exact values as their text."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if _is_text(kind) or _is_binary(kind) or pa.types.is_null(kind):
        return column
    if _is_nested(kind) or pa.types.is_floating(kind):
        raise TypeError(
            f"column {name!r} is {kind} and cannot be the key: cast it to text or integers"
        )
    chunks = [_plain(name, chunk)[0] for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.large_string())


# JSON.


def json_values(batch: pa.RecordBatch) -> Any:
    """Return the rows of a batch as JSON objects, a large_string array."""
    return _objects(batch.schema.names, batch.columns)


def _objects(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """Return columns side by side as JSON objects."""
    parts: list[Any] = []
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        label = json.dumps(name, ensure_ascii=False)
        parts += [f"{',' if place else '{'}{label}:", _json(name, column)]
    return _joined(*parts, "}")


def _json(name: str, array: Any) -> Any:
    """Return the cells of an array as JSON texts; "null" for null cells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            texts = pa.array(["{}"] * len(array), pa.large_string())
        else:
            names = [kind.field(place).name for place in range(kind.num_fields)]
            for field in names:
                if names.count(field) > 1:
                    raise ValueError(f"column {name!r} has a field {field!r} more than once")
            texts = _objects(names, array.flatten())
        texts = pc.if_else(array.is_valid(), texts, None)
    elif pa.types.is_map(kind):
        pairs = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        keys, items = pc.list_flatten(pairs).flatten()
        labels, _ = _plain(name, keys)
        texts = _lists(pairs, _joined(_quoted(labels), ":", _json(name, items)), "{", "}")
    elif _is_list(kind):
        texts = _lists(array, _json(name, pc.list_flatten(array)), "[", "]")
    else:
        texts, is_text = _plain(name, array)
        texts = _quoted(texts) if is_text else texts
    return pc.fill_null(texts, pa.scalar("null", pa.large_string()))


def _lists(lists: Any, texts: Any, opening: str, closing: str) -> Any:
    """Return the elements' texts joined per list; null where a list is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.cast(pc.fill_null(pc.list_value_length(lists), 0), pa.int32())
    ends = pc.cumulative_sum(sizes)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    comma = pa.scalar(",", pa.large_string())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), comma)
    return pc.if_else(lists.is_valid(), _joined(opening, joined, closing), None)


def _quoted(texts: Any) -> Any:
    """Return texts as JSON strings."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py():
        for char, escape in _ESCAPES:
            if pc.any(pc.match_substring(texts, char)).as_py():
                texts = pc.replace_substring(texts, char, escape)
    return _joined('"', texts, '"')


# CSV.


def csv_values(batch: pa.RecordBatch) -> Any:
    """Return the rows of a batch as CSV lines without line ends, a large_string array."""
    parts: list[Any] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if parts:
            parts.append(",")
        parts.append(_csv(name, column))
    return _joined(*parts)


def _csv(name: str, array: Any) -> Any:
    """Return the cells of an array as fields of CSV."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_nested(array.type):
        raise TypeError(
            f"column {name!r} is {array.type}, which CSV cannot represent; use format='json'"
        )
    texts, is_text = _plain(name, array)
    if is_text:
        quoted = _joined('"', pc.replace_substring(texts, '"', '""'), '"')
        texts = pc.if_else(pc.match_substring_regex(texts, _NEEDS_QUOTES), quoted, texts)
    return pc.fill_null(texts, pa.scalar("", pa.large_string()))


# Cells.


def _plain(name: str, array: Any) -> tuple[Any, bool]:
    """Return the cells as texts, null for null cells, and whether JSON must quote them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    text = pa.large_string()
    if pa.types.is_dictionary(kind):
        return _plain(name, _decoded(array))
    if pa.types.is_null(kind):
        return pa.nulls(len(array), text), False
    if _is_text(kind):
        return array.cast(text), True
    if _is_binary(kind):
        cells = (cell.as_py() for cell in array)
        coded = [None if cell is None else base64.b64encode(cell).decode() for cell in cells]
        return pa.array(coded, text), True
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return array.cast(text), False
    if pa.types.is_floating(kind):
        if pa.types.is_float16(kind):
            array = array.cast(pa.float32())
        return pc.if_else(pc.is_finite(array), array, None).cast(text), False
    if pa.types.is_time(kind):
        return array.cast(text), True
    if pa.types.is_date(kind):
        return _dated(name, array.cast(pa.date32()).cast(text)), True
    if pa.types.is_timestamp(kind):
        moments = _dated(name, array.cast(pa.timestamp(kind.unit)).cast(text))
        return _joined(pc.replace_substring(moments, " ", "T"), "Z"), True
    raise TypeError(f"column {name!r} is {kind}, which cannot be converted to text; cast it first")


def _decoded(array: Any) -> Any:
    """Return the cells of a dictionary-encoded array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = array.dictionary
    if values.type in (pa.string_view(), pa.binary_view()):  # pc.take has no kernel for views
        values = values.cast(pa.large_string() if _is_text(values.type) else pa.large_binary())
    return pc.take(values, array.indices)


def _dated(name: str, texts: Any) -> Any:
    """Return the dates unchanged; ValueError unless all years have four digits."""
    import pyarrow.compute as pc

    if pc.any(pc.invert(pc.match_substring_regex(texts, _YEAR))).as_py():
        raise ValueError(f"column {name!r} has a date outside the years 0 to 9999")
    return texts


def _joined(*parts: Any) -> Any:
    """Concatenate arrays of texts and constants by row; null where one is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    columns = [pa.scalar(part, text) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*columns, pa.scalar("", text))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    is_fixed: bool = pa.types.is_fixed_size_binary(kind)
    return is_fixed or kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_nested(kind: Any) -> bool:
    import pyarrow as pa

    nested: bool = pa.types.is_nested(kind)
    return nested
