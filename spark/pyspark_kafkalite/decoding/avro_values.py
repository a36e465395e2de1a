"""Avro format: each value is one datum of a record, without a file header.

The writer's schema is the given one, or the registry's for the value's id.  Values are resolved to
the given schema by Avro's rules, or to columns by name.

    null|X  X, nullable                 enum, uuid  string        fixed, duration  binary
    int, date, timestamp-millis, …      as Spark's from_avro      time-millis, …   int, long

Decoded by fastavro, value by value.

Left out: unions of several types, and recursive schemas, as columns.  A writer's schema that is
recursive, or has arrays of empty items, is rejected, since a few bytes of data could keep a reader
busy forever.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pyspark_kafkalite.decoding.ddl import arrow_schema
from pyspark_kafkalite.decoding.registry import HEADER_SIZE, Registry, framed_id
from pyspark_kafkalite.decoding.sifting import Bad, Unreadable, bytes_of, reason, sift, struct_of

PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(),
    "enum": pa.string(),
}  # fmt: skip
LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
PLAIN = ("null", *PRIMITIVES)
EMPTY = ("null",)


class AvroFormat:
    """`given_schema` is Avro's JSON schema, or with a registry the columns (`ddl.arrow_schema`)."""

    def __init__(self, given_schema: Any, registry: Registry | None = None) -> None:
        self._registry = registry
        self._schema_json = ""
        if isinstance(given_schema, dict | list):
            given_schema = json.dumps(given_schema)
        if isinstance(given_schema, str) and given_schema.lstrip()[:1] in ("{", "[", '"'):
            self._schema_json = given_schema
            kind = arrow_type(checked(given_schema))
            if not pa.types.is_struct(kind):
                raise ValueError("The Avro schema of a value must be a record.")
            self.schema = pa.schema(list(kind))
        elif registry is None:
            raise ValueError("value_schema must be an Avro schema in JSON, or schema.registry.url"
                             " must be set.")  # fmt: skip
        else:
            self.schema = arrow_schema(given_schema)
        self._kind = struct_of(self.schema)

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        rows: list[Any] = []
        bad: Bad = {}
        for at, row in enumerate(self._rows(values)):
            if isinstance(row, Exception):
                bad[at] = reason(row)
                row = None
            rows.append(row)
        found, misfits = sift(rows, lambda part: pa.array(part, self._kind), self._kind)
        return found, bad | misfits

    def _rows(self, values: pa.Array) -> Iterator[Any]:
        """Yield each value as a dict, or the exception for it."""
        held = memoryview(values.buffers()[1]).cast("b").cast("i") if len(values) else ()
        first = held[values.offset] if len(values) else 0
        text = bytes_of(values).to_pybytes()
        stream = io.BytesIO(text)
        start = 0
        for at in range(values.offset + 1, values.offset + len(values) + 1):
            end = held[at] - first
            try:
                read, start = self._reader(text, start, end)
                stream.seek(start)
                yield datum(read, stream, end)
            except Unreadable as error:
                yield error
            start = end

    def _reader(self, text: bytes, start: int, end: int) -> tuple[Callable[[Any], Any], int]:
        """Return the reader of the value at `start`, and the start of its datum."""
        if self._registry is None:
            return reader(self._schema_json, self._schema_json), start
        number = framed_id(memoryview(text)[start : min(end, start + HEADER_SIZE)])
        written = self._registry.schema(number)
        return reader(written, self._schema_json or written), start + HEADER_SIZE


def datum(read: Callable[[Any], Any], stream: io.BytesIO, end: int) -> Any:
    """Return the datum, which must end at `end`; raise Unreadable if it does not."""
    try:
        row = read(stream)
    except Exception as error:  # fastavro raises errors of many types, Python's own included
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        raise Unreadable(f"it does not match its Avro schema ({words})") from None
    if stream.tell() != end:
        raise Unreadable("it is longer or shorter than its Avro schema requires")
    return row


@lru_cache(maxsize=256)
def reader(written: str, wanted: str) -> Callable[[Any], Any]:
    """Return a function that reads a datum of one schema into another."""
    import fastavro

    try:
        by, into = (fastavro.parse_schema(checked(each)) for each in (written, wanted))
    except Unreadable:
        raise
    except Exception as error:  # fastavro raises errors of many types for an invalid schema
        raise Unreadable(f"its Avro schema is invalid: {error}") from None
    if written == wanted:
        return lambda stream: fastavro.schemaless_reader(stream, by, None)
    return lambda stream: fastavro.schemaless_reader(stream, by, into)


def checked(text: str) -> Any:
    """Return a schema's JSON, without unsupported logical types; may raise Unreadable."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"its Avro schema is invalid: {error}") from None
    try:
        Names().look(schema)
        return plain(schema)
    except RecursionError:
        raise Unreadable("its Avro schema is nested too deeply") from None


class Names:
    """Named types of a schema during validation."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._empty: dict[str, bool] = {}

    def look(self, schema: Any, space: str = "") -> bool:
        """Return whether its values may be empty; raise Unreadable for a rejected schema."""
        if isinstance(schema, list):
            for each in schema:
                self.look(each, space)
            return False
        if isinstance(schema, str):
            return self._look_up(schema, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise Unreadable(f"its Avro schema has the unknown type {str(schema)[:50]!r}")
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, space)
        if kind in ("array", "map"):
            empty = self.look(schema.get("items" if kind == "array" else "values"), space)
            if empty and kind == "array":
                raise Unreadable(
                    "its Avro schema has an array of items without bytes, whose length has no limit"
                )
            return False
        if kind in ("enum", "fixed"):
            name, _ = self._named(schema, space)
            self._empty[name] = kind == "fixed" and not schema.get("size")
            return self._empty[name]
        return self.look(kind, space)

    def _record(self, schema: dict[str, Any], space: str) -> bool:
        name, space = self._named(schema, space)
        self._open.append(name)
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise Unreadable(f"record {name!r} of its Avro schema has no fields")
        empty = [self.look(each.get("type"), space) for each in fields]
        self._open.pop()
        self._empty[name] = all(empty)
        return self._empty[name]

    def _named(self, schema: dict[str, Any], space: str) -> tuple[str, str]:
        name = str(schema.get("name", ""))
        space = str(schema.get("namespace") or space)
        full = name if "." in name or not space else f"{space}.{name}"
        return full, full.rpartition(".")[0]

    def _look_up(self, name: str, space: str) -> bool:
        if name in PLAIN:
            return name in EMPTY
        full = name if "." in name or not space else f"{space}.{name}"
        for known in (full, name):
            if known in self._open:
                raise Unreadable(f"{known!r} in its Avro schema contains itself")
            if known in self._empty:
                return self._empty[known]
        raise Unreadable(f"its Avro schema has the unknown type {name!r}")


def plain(schema: Any) -> Any:
    """Return a schema without logical types whose Python objects fit no column."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: plain(value) if key in ("type", "items", "values") else value
            for key, value in schema.items()}  # fmt: skip
    if "fields" in kept:
        kept["fields"] = [{**each, "type": plain(each["type"])} for each in kept["fields"]]
    logical = kept.get("logicalType")
    if logical != "decimal" and (kept["type"], logical) not in LOGICAL:
        kept.pop("logicalType", None)
    return kept


def arrow_type(schema: Any, known: dict[str, Any] | None = None) -> pa.DataType:
    """Return the column type for a validated schema."""
    known = {} if known is None else known
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise ValueError("An Avro union of several types cannot be a column; set value_schema"
                             " with one of them.")  # fmt: skip
        return arrow_type(kinds[0], known)
    if isinstance(schema, str):
        name = schema
        if name == "null":
            raise ValueError(
                "A field of the Avro type null cannot be a column; remove it from value_schema."
            )
        return PRIMITIVES[name] if name in PRIMITIVES else known[name.rpartition(".")[2]]
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return arrow_type(kind, known)
    found = complex_type(schema, kind, known)
    if "name" in schema:
        known[str(schema["name"]).rpartition(".")[2]] = found
    return found


def complex_type(schema: dict[str, Any], kind: str, known: dict[str, Any]) -> pa.DataType:
    if kind in ("record", "error"):
        return pa.struct([(f["name"], arrow_type(f["type"], known)) for f in schema["fields"]])
    if kind == "array":
        return pa.list_(pa.field("element", arrow_type(schema["items"], known)))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(schema["values"], known))
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return pa.decimal128(int(schema["precision"]), int(schema.get("scale", 0)))
    logical = LOGICAL.get((kind, str(schema.get("logicalType"))))
    return logical or arrow_type(kind, known)
