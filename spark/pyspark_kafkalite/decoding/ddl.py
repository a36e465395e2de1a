"""Column schemas, as users write them, converted to Arrow without a JVM.

    carrier STRING, delay INT, at TIMESTAMP, legs ARRAY<STRUCT<gate: STRING, miles: DOUBLE>>

A Spark StructType, an Arrow schema or a DDL text; types are those of Spark's own
`to_arrow_schema(schema, timezone="UTC")`.  Every column is nullable, whatever the schema says,
since a record may lack any.

Left out: intervals, variants and collations; DEFAULT and GENERATED.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(), "tinyint": pa.int8(),
    "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "long": pa.int64(), "bigint": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
DEPTH_MAX = 50

_WORD = re.compile(
    r"\s*(?:(?P<name>\w+)|`(?P<quoted>(?:[^`]|``)+)`"
    r"|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<mark>[<>(),:]))"
)


def arrow_schema(given_schema: Any) -> pa.Schema:
    """Return an Arrow schema from any of the forms; raise ValueError if it is not one."""
    if isinstance(given_schema, pa.Schema):
        return nullable(given_schema)
    if isinstance(given_schema, str):
        return SchemaParser(given_schema).schema()
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not isinstance(given_schema, StructType):
        raise ValueError(f"A schema must be a text like 'carrier STRING, delay INT', a StructType"
                         f" or an Arrow schema, not {given_schema!r}.")  # fmt: skip
    return nullable(to_arrow_schema(given_schema, timezone="UTC"))


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, field.type) for field in schema])


class SchemaParser:
    """Parser of a DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            found = _WORD.match(text, place)
            if not found:
                raise self._wrong(f"unexpected {text[place:].strip()[:20]!r}")
            kind = str(found.lastgroup)
            self._words.append((kind, found[kind]))
            place = found.end()
        self._at = 0

    def schema(self) -> pa.Schema:
        fields = self._fields(0)
        if self._at < len(self._words):
            raise self._wrong(f"unexpected {self._words[self._at][1]!r}")
        names = [field.name.lower() for field in fields]
        if len(set(names)) < len(names):
            raise self._wrong("a column name occurs more than once")
        return pa.schema(fields)

    def _fields(self, depth: int) -> list[pa.Field]:
        """Return the columns up to the last comma-separated one."""
        fields = []
        while True:
            kind, name = self._next("a name")
            if kind not in ("name", "quoted"):
                raise self._wrong(f"expected a column name, found {name!r}")
            self._take(":")
            fields.append(pa.field(name.replace("``", "`"), self._type(depth)))
            if self._take("not") and not self._take("null"):
                raise self._wrong("expected NULL after NOT")
            if self._take("comment"):
                self._next("a comment")
            if not self._take(","):
                return fields

    def _type(self, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise self._wrong("types are nested too deeply")
        kind, name = self._next("a type")
        name = name.lower() if kind == "name" else ""
        if name in ("array", "map", "struct"):
            return self._nested(name, depth + 1)
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("varchar", "char"):
            self._expect("(")
            self._next("a length")
            self._expect(")")
            return pa.string()
        if name not in TYPES:
            raise self._wrong(f"unknown type {self._words[self._at - 1][1]!r}")
        return TYPES[name]

    def _nested(self, name: str, depth: int) -> pa.DataType:
        self._expect("<")
        if name == "struct":
            found: pa.DataType = pa.struct(self._fields(depth))
        elif name == "array":
            found = pa.list_(pa.field("element", self._type(depth)))
        else:
            key = self._type(depth)
            self._expect(",")
            found = pa.map_(key, self._type(depth))
        self._expect(">")
        return found

    def _decimal(self) -> pa.DataType:
        if not self._take("("):
            return pa.decimal128(10, 0)
        precision, scale = self._number(), 0
        if self._take(","):
            scale = self._number()
        self._expect(")")
        if not 0 < precision <= 38 or scale > precision:
            raise self._wrong(f"invalid type DECIMAL({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        _, word = self._next("a number")
        if not word.isascii() or not word.isdigit():
            raise self._wrong(f"expected a number, found {word!r}")
        return int(word)

    def _next(self, what: str) -> tuple[str, str]:
        if self._at == len(self._words):
            raise self._wrong(f"expected {what} at the end")
        self._at += 1
        return self._words[self._at - 1]

    def _take(self, wanted: str) -> bool:
        """Return whether this is the next word, and consume it if so."""
        if self._at < len(self._words):
            kind, word = self._words[self._at]
            if kind in ("mark", "name") and word.lower() == wanted:
                self._at += 1
                return True
        return False

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            raise self._wrong(f"expected {wanted!r}")

    def _wrong(self, why: str) -> ValueError:
        return ValueError(
            f"The schema {self._text[:200]!r} cannot be parsed ({why}); it must be a text like"
            " 'carrier STRING, delay INT, legs ARRAY<STRUCT<gate: STRING>>'."
        )
