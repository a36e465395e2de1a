"""JSON: each value an object, its fields by name.

Fields that the schema does not name are passed over, those that a value lacks are null; `null` is a
row of nulls.  Timestamps are ISO texts, in UTC where they name no zone; dates are texts too, and
bytes the text's own.

Read by pyarrow.json, all values at once: each is put into an object of its own, so that no value
can end another's row or be two.

Left out: maps, and numbers where a text should be; such rows are bad ones.  What follows a whole
object after a comma (`{"a":1},"b":2`) is taken for a field that nobody asked for.
"""

from __future__ import annotations

import json
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


class JsonFormat:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._kind = struct_of(schema)
        self._read_as = read_as(self._kind)

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        return sift(values, self._parse, self._kind, self._judged)

    def _judged(self, value: bytes) -> str | None:
        try:
            found = json.loads(value)
        except RecursionError:
            return None
        except ValueError as fault:
            return reason(fault)
        return misfit(found, self._kind)

    def _parse(self, values: pa.Array) -> pa.Array:
        values.cast(pa.string())  # it must be UTF-8, which the parser takes for granted
        lines = pc.binary_join_element_wise(b'{"v":', values, b"}\n", b"")
        text = bytes_of(lines)
        found = pj.read_json(
            pa.BufferReader(text),
            pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            pj.ParseOptions(
                explicit_schema=pa.schema([(_FIELD, self._read_as)]),
                unexpected_field_behavior="ignore",
            ),
        )
        structs = found.column(_FIELD).combine_chunks()
        return structs if self._read_as == self._kind else structs.cast(self._kind)


def read_as(kind: pa.DataType) -> pa.DataType:
    """What the parser is asked for, to be cast afterwards: to it a date is a number."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, read_as(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, read_as(kind.value_type)))
    if pa.types.is_map(kind):
        raise ValueError("JSON is not read into a MAP: name the fields in a STRUCT, or read the"
                         " value as a string and use from_json.")  # fmt: skip
    return kind


def misfit(value: Any, kind: pa.DataType) -> str | None:
    """Why a value is none of this type, as far as can be told without the parser."""
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
        return number and isinstance(value, int) and least <= value < -least
    if pa.types.is_floating(kind):
        return number
    if pa.types.is_decimal(kind):
        return number or isinstance(value, str)
    if pa.types.is_temporal(kind):
        return isinstance(value, str) and is_moment(value, kind)
    return isinstance(value, str)


def shown(value: Any) -> str:
    return repr(value)[:50]
