"""Avro rows: encodes the rows of a table as plain Avro datums, by a given or a derived schema.

    Arrow                       Avro, derived; every field is a union with null
    bool, float, double         boolean, float, double
    int8 to int32, uint16       int
    int64, uint32               long
    text, binary                string, bytes
    date                        int, date
    timestamp s, ms             long, timestamp-millis; without a zone it is UTC
    timestamp us, ns            long, timestamp-micros; nanoseconds are truncated
    decimal                     bytes, decimal
    list, struct, map           array, record, map

A row that does not fit its schema is an error, and so is a column that the schema lacks: no data is
dropped silently.

Left out: a derived type for uint64, times and durations (a given schema may have one).
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS = 1 << 12
"""Rows that are converted to Python objects at a time."""

RECORD_NAME = "Row"


def avro_values(table: pa.Table, schema: Any = None) -> pa.ChunkedArray:
    """Return each row of a table as an Avro datum, a large_binary array."""
    import pyarrow as pa

    try:
        import fastavro
        from fastavro.validation import validate
    except ImportError:
        raise ModuleNotFoundError(
            "format='avro' needs fastavro: pip install fastavro", name="fastavro"
        ) from None
    table = _as_moments(table)
    if schema is None:
        schema = derived_schema(table.schema)
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        parsed = fastavro.parse_schema(schema)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise ValueError(f"schema is not an Avro schema: {error}") from None
    with_maps = {field.name: field.type for field in table.schema if _has_map(field.type)}
    values: list[pa.Array] = []
    for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
        encoded: list[bytes] = []
        for row in batch.to_pylist():
            out = io.BytesIO()
            try:
                for name, kind in with_maps.items():
                    row[name] = _with_dicts(row[name], kind)
                validate(row, parsed)
                fastavro.schemaless_writer(out, parsed, row, strict_allow_default=True)
            except Exception as error:  # fastavro has no class of its own for all of them
                at = sum(len(each) for each in values) + len(encoded)
                why = " ".join(str(error).split())
                raise ValueError(f"row {at} does not fit the Avro schema: {why}") from None
            encoded.append(out.getvalue())
        values.append(pa.array(encoded, pa.large_binary()))
    return pa.chunked_array(values, pa.large_binary())


def _has_map(kind: Any) -> bool:
    """Return whether there is a map in a type."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(place).type) for place in range(kind.num_fields))


def _with_dicts(cell: Any, kind: Any) -> Any:
    """Return a cell with its maps as dicts; pyarrow returns lists of pairs."""
    import pyarrow as pa

    if cell is None or not _has_map(kind):
        return cell
    if pa.types.is_map(kind):
        found = {key: _with_dicts(item, kind.item_type) for key, item in cell}
        if len(found) < len(cell):
            raise ValueError("a map has the same key twice")
        return found
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return {field.name: _with_dicts(cell[field.name], field.type) for field in fields}
    return [_with_dicts(item, kind.value_type) for item in cell]


def _as_moments(table: pa.Table) -> pa.Table:
    """Return the table with timestamps in UTC and no finer than microseconds.

    fastavro would take those without a zone for local time.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = [field.with_type(_moment_type(field.type)) for field in table.schema]
    columns = [
        column if column.type == field.type
        else pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
        for column, field in zip(table.columns, fields, strict=True)
    ]  # fmt: skip
    return pa.table(columns, schema=pa.schema(fields))


def _moment_type(kind: Any) -> Any:
    """Return a type with its timestamps in UTC, in milli- or microseconds.

    A dictionary of timestamps is replaced by its value type.
    """
    import pyarrow as pa

    def moments(field: Any) -> Any:
        return field.with_type(_moment_type(field.type))

    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit in ("s", "ms") else "us", "UTC")
    if pa.types.is_dictionary(kind):
        plain = _moment_type(kind.value_type)
        return kind if plain == kind.value_type else plain
    if pa.types.is_list(kind):
        return pa.list_(moments(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(moments(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(moments(kind.value_field), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, moments(kind.item_field), kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([moments(kind.field(place)) for place in range(kind.num_fields)])
    return kind


def derived_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return the Avro schema of a table's rows."""
    return _record(RECORD_NAME, list(schema))


def _record(name: str, fields: list[Any]) -> dict[str, Any]:
    described = [
        {
            "name": field.name,
            "type": _nullable(f"{name}_{field.name}", field.type),
            "default": None,
        }
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": described}


def _nullable(name: str, kind: Any) -> Any:
    """Return the union of null and a type."""
    found = _type(name, kind)
    return found if found == "null" else ["null", found]


def _type(name: str, kind: Any) -> Any:
    """Return the Avro type of an Arrow type; `name` is for records and error texts."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_dictionary(kind):
        return _type(name, kind.value_type)
    if is_a.is_struct(kind):
        return _record(name, [kind.field(place) for place in range(kind.num_fields)])
    if is_a.is_map(kind):
        if kind.key_type not in (pa.string(), pa.large_string(), pa.string_view()):
            raise TypeError(f"{name} is {kind}, and keys of an Avro map are text: cast them first")
        return {"type": "map", "values": _nullable(name, kind.item_type)}
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable(name, kind.value_type)}
    if is_a.is_timestamp(kind):
        unit = "millis" if kind.unit in ("s", "ms") else "micros"
        return {"type": "long", "logicalType": f"timestamp-{unit}"}
    if is_a.is_decimal(kind):
        scaled = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **scaled}
    plain = {
        pa.null(): "null", pa.bool_(): "boolean", pa.float16(): "float", pa.float32(): "float",
        pa.float64(): "double", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int",
        pa.uint8(): "int", pa.uint16(): "int", pa.int64(): "long", pa.uint32(): "long",
        pa.string(): "string", pa.large_string(): "string", pa.string_view(): "string",
        pa.binary(): "bytes", pa.large_binary(): "bytes", pa.binary_view(): "bytes",
        pa.date32(): {"type": "int", "logicalType": "date"},
        pa.date64(): {"type": "int", "logicalType": "date"},
    }  # fmt: skip
    if kind not in plain:
        raise TypeError(f"{name} is {kind}, which no Avro type is derived for: give a schema")
    return plain[kind]
