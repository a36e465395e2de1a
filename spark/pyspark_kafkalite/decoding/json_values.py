"""JSON format: each value is an object, with fields by name.

Fields that are not in the schema are ignored, missing ones are null; `null` is a row of nulls.
Timestamps are ISO 8601 strings, in UTC if they have no zone, truncated to microseconds as in Spark;
dates are strings too, and binary is the string's bytes.  An integer may be written with a decimal
point (`1.0`), as pandas writes integers of a column with a null.

Parsed by pyarrow.json, all values at once: each is wrapped in an object of its own, so that no
value can end another's row or be two.

Left out: maps, and numbers in place of strings; such rows are bad.  Text after a complete object
and a comma (`{"a":1},"b":2`) counts as an ignored field.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pyspark_kafkalite.decoding.sifting import (
    Bad,
    bytes_of,
    is_moment,
    reason,
    sift,
    struct_of,
)

_FIELD = "v"
_BELOW_MICROSECONDS = r"(\.\d{6})\d{1,3}"
_WHOLE = pa.decimal128(38, 1)
"""Type to parse integers with a decimal point as: it represents all of int64 exactly."""


class JsonFormat:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._kind = struct_of(schema)
        self._read_as = read_as(self._kind)
        self._numbers_as = read_as(self._kind, pa.float64())
        self._read_loosely_as = read_as(self._kind, _WHOLE)

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        return sift(values, self._parse, self._kind, self._judged)

    def _judged(self, value: bytes) -> str | None:
        try:
            found = json.loads(value)
        except RecursionError:
            return None
        except ValueError as error:
            return reason(error)
        return misfit(found, self._kind)

    def _parse(self, values: pa.Array) -> pa.Array:
        values.cast(pa.string())  # must be UTF-8, which the parser does not check
        lines = pc.binary_join_element_wise(b'{"v":', values, b"}\n", b"")
        text = bytes_of(lines)
        try:
            return self._parsed(text, self._read_as).cast(self._kind)
        except pa.ArrowException:
            if self._read_loosely_as == self._read_as:
                raise
            try:
                # The parser accepts a string as a decimal, but not as a double.
                self._parsed(text, self._numbers_as)
                return settled(self._parsed(text, self._read_loosely_as), self._kind)
            except pa.ArrowException:
                pass
            raise

    def _parsed(self, text: pa.Buffer, kind: pa.DataType) -> pa.Array:
        found = pj.read_json(
            pa.BufferReader(text),
            pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            pj.ParseOptions(
                explicit_schema=pa.schema([(_FIELD, kind)]),
                unexpected_field_behavior="ignore",
            ),
        )
        return found.column(_FIELD).combine_chunks()


def read_as(kind: pa.DataType, whole: pa.DataType | None = None) -> pa.DataType:
    """Return the type to parse as before a cast: the parser takes a date for a number.

    With `whole` integers are parsed as this type, and timestamps as strings, for `settled`.
    """
    if pa.types.is_date(kind) or (whole is not None and pa.types.is_timestamp(kind)):
        return pa.string()
    if whole is not None and pa.types.is_integer(kind):
        return whole
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, read_as(f.type, whole)) for f in kind])
    if pa.types.is_list(kind):
        content = read_as(kind.value_type, whole)
        return pa.list_(pa.field(kind.value_field.name, content))
    if pa.types.is_map(kind):
        raise ValueError("JSON cannot be decoded to a MAP: declare the fields in a STRUCT, or"
                         " read the value as a string and use from_json.")  # fmt: skip
    return kind


def settled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values parsed with `read_as` to the requested type; may raise ArrowInvalid."""
    if pa.types.is_struct(kind):
        parts = [settled(array.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        content = settled(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, content, kind, mask=array.is_null())
    if pa.types.is_timestamp(kind):
        texts = pc.replace_substring_regex(array, _BELOW_MICROSECONDS, r"\1")
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            return texts.cast(pa.timestamp("us")).cast(kind)
    return array.cast(kind)


def misfit(value: Any, kind: pa.DataType) -> str | None:
    """Return why a value is not of this type; None if only the parser can tell."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            return f"{shown(value)} is no object"
        parts = ((value.get(field.name), field.type) for field in kind)
        return next(filter(None, (misfit(*part) for part in parts)), None)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            return f"{shown(value)} is no list"
        return next(filter(None, (misfit(each, kind.value_type) for each in value)), None)
    return None if fits(value, kind) else f"{shown(value)} is no {kind}"


def fits(value: Any, kind: pa.DataType) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        least = -1 << (kind.bit_width - 1)
        if isinstance(value, float):
            return value.is_integer() and least <= value < -least
        return number and least <= value < -least
    if pa.types.is_floating(kind):
        return number
    if pa.types.is_decimal(kind):
        return number or isinstance(value, str)
    if pa.types.is_temporal(kind):
        if not isinstance(value, str):
            return False
        if pa.types.is_timestamp(kind):
            value = re.sub(_BELOW_MICROSECONDS, r"\1", value)
        return is_moment(value, kind)
    return isinstance(value, str)


def shown(value: Any) -> str:
    return repr(value)[:50]
