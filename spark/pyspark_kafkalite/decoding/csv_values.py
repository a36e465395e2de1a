"""CSV format: each value is a line, with columns in the schema's order.

An empty field is null, also for strings, and an empty value is a row of nulls; "" is the empty
string.  Timestamps are ISO 8601, in UTC if they have no zone.  A value may end with a line break;
line breaks within quotes are supported, but slow.

Left out: headers, comments, and nested types, which CSV cannot represent.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from pyspark_kafkalite.decoding.sifting import (
    Bad,
    Unreadable,
    bytes_of,
    is_moment,
    reason,
    sift,
    struct_of,
)

_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
_MOMENT = pa.timestamp("us", "UTC")


class CsvFormat:
    def __init__(self, schema: pa.Schema, separator: str = ",") -> None:
        if len(separator) != 1 or not separator.isascii() or separator in '"\r\n':
            raise ValueError(
                f"csv_separator must be one ASCII character like , or ; but not {separator!r}."
            )
        for field in schema:
            if pa.types.is_nested(field.type):
                raise ValueError(
                    f"CSV cannot represent column {field.name!r} of type {field.type}."
                )
        self.schema = schema
        self._separator = separator
        self._kind = struct_of(schema)

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        return sift(values, self._parse, self._kind, self._judged)

    def _judged(self, value: bytes) -> str | None:
        if b'"' in value or b"\n" in value or b"\r" in value or not value:
            return None
        try:
            cells = value.decode().split(self._separator)
        except UnicodeDecodeError as error:
            return reason(error)
        if len(cells) != len(self.schema):
            return f"Expected {len(self.schema)} columns, got {len(cells)}"
        for cell, field in zip(cells, self.schema, strict=True):
            if cell and not fits(cell, field.type):
                return f"{cell[:50]!r} is not a valid {field.type}"
        return None

    def _parse(self, values: pa.Array) -> pa.Array:
        if b"\n" in bytes_of(values).to_pybytes():
            values = pc.ascii_rtrim(values.cast(pa.string()), "\r\n").cast(pa.binary())
            if len(values) > 1 and b"\n" in bytes_of(values).to_pybytes():
                # sift() then parses values one by one.
                raise Unreadable("it has more than one line")
        lines = pc.binary_join_element_wise(values, b"\n", b"")
        text = bytes_of(lines)
        types = {f.name: pa.string() if f.type == _MOMENT else f.type for f in self.schema}
        found = pcsv.read_csv(
            pa.BufferReader(text),
            pcsv.ReadOptions(
                use_threads=False, column_names=self.schema.names, block_size=text.size + 1
            ),
            pcsv.ParseOptions(
                delimiter=self._separator, newlines_in_values=True, ignore_empty_lines=False
            ),
            pcsv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        columns = [column.combine_chunks() for column in found.columns]
        columns = [
            parse_timestamps(column) if field.type == _MOMENT else column
            for field, column in zip(self.schema, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.schema))


def parse_timestamps(texts: pa.Array) -> pa.Array:
    """Return texts as timestamps, in UTC if they have no zone."""
    zoned = pc.match_substring_regex(texts, _ZONE)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")).cast(_MOMENT)


def fits(cell: str, kind: pa.DataType) -> bool:
    """Return whether a field may be of this type, as far as can be checked without the parser."""
    try:
        if pa.types.is_integer(kind):
            least = -1 << (kind.bit_width - 1)
            return "0x" in cell.lower() or least <= int(cell) < -least
        if pa.types.is_floating(kind):
            float(cell)
    except ValueError:
        return False
    return not pa.types.is_temporal(kind) or is_moment(cell.strip(), kind)
