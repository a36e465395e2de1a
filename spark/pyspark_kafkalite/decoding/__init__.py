"""Values as typed columns: from a RecordBatch with a binary `value` to one that has its fields.

    decode = Decode("json", "carrier STRING, delay INT")
    decode(batch)                     the batch's other columns, then carrier and delay

    value_format              json, avro, protobuf, csv or string
    value_schema              columns (ddl.py); of Avro its own JSON; of protobuf the descriptor's
                              file.  With a registry Avro may leave it out: the subject's newest
    value_message             protobuf: the message's full name
    value_prefix              before the names of the columns, where they would be the record's own
    csv_separator             , if nobody says
    schema.registry.url       values begin with a schema's id; also .subject, .timeout.ms and
                              .basic.auth.user.info (NAME:PASSWORD)
    on_bad_rows               fail, drop or quarantine, with quarantine_topic (bad_rows.py)

A null value is a row of nulls and never bad.  Whatever the values hold, no row is another's: a
format tells exactly one row for a value, or what is wrong with it (sifting.py).

A Decode is made on the driver, where what is wrong with the options is a ValueError, and pickled.

    json_values  csv_values  avro_values  protobuf_values  text_values      a format each
    sifting      good values at once, bad ones one by one
    bad_rows     what becomes of those
    registry     schemas by their ids
    ddl          schemas as users write them

Left out: JSON Schema and .proto texts that a registry holds; schemas for keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalite.decoding.bad_rows import FAIL, BadRow, BadRows
from pyspark_kafkalite.decoding.ddl import arrow_schema
from pyspark_kafkalite.decoding.registry import HEADER_SIZE, MAGIC, TIMEOUT_S, Registry
from pyspark_kafkalite.decoding.sifting import Bad, Format, spread

__all__ = ["FORMATS", "OPTIONS", "BadRow", "Decode", "Registry", "decode_of"]

FORMATS = ("json", "avro", "protobuf", "csv", "string")
REGISTRY = "schema.registry."
OPTIONS = (
    "value_format", "value_schema", "value_message", "value_prefix", "csv_separator",
    "on_bad_rows", "quarantine_topic", f"{REGISTRY}url", f"{REGISTRY}subject",
    f"{REGISTRY}timeout.ms", f"{REGISTRY}basic.auth.user.info",
)  # fmt: skip


class Decode:
    """A format, and what becomes of values that are not of it."""

    def __init__(
        self,
        value_format: str,
        schema: Any = None,
        *,
        message: str | None = None,
        prefix: str = "",
        separator: str = ",",
        registry: Registry | None = None,
        bad_rows: BadRows | None = None,
    ) -> None:
        name = value_format.strip().lower()
        if name not in FORMATS:
            raise ValueError(f"value_format is one of {', '.join(FORMATS)}, not {value_format!r}.")
        self._format = made(name, schema, message, separator, registry)
        self._bad_rows = bad_rows or BadRows(FAIL)
        # Avro and protobuf look at what stands before the value themselves.
        self._framed = registry is not None and name in ("json", "csv", "string")
        self.columns = pa.schema(
            [(prefix + field.name, field.type) for field in self._format.schema]
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The record's columns that must be in a batch: the value, and what tells of a bad one."""
        return ("value", *self._bad_rows.needs)

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of what comes out; ValueError when two columns would have one name."""
        others = [field for field in schema if field.name != "value"]
        for field in self.columns:
            if any(field.name.lower() == other.name.lower() for other in others):
                raise ValueError(
                    f"The value has a column {field.name!r} as the record has one: leave that one"
                    " out of columns, or set value_prefix."
                )
        return pa.schema([*others, *self.columns])

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The other columns, then the value's."""
        found, bad = self._read(batch.column("value"))
        fields = found.flatten()
        others = [name for name in batch.schema.names if name != "value"]
        decoded = pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in others), *fields],
            schema=pa.schema([*(batch.schema.field(name) for name in others), *self.columns]),
        )
        return self._bad_rows.sorted_out(batch, decoded, bad) if bad else decoded

    def _read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        """A struct for each value, null or not."""
        if not values.null_count and not self._framed:
            return self._format.read(values)
        unfit: Bad = {}
        some = values.is_valid()
        if self._framed:
            framed = pc.and_(
                pc.starts_with(values, bytes([MAGIC])),
                pc.greater_equal(pc.binary_length(values), HEADER_SIZE),
            )
            for at in pc.indices_nonzero(pc.invert(framed)).to_pylist():
                unfit[at] = "it does not begin with a schema's id, as values of a registry do"
            some = pc.fill_null(framed, False)
        fit = values.filter(some)
        found, bad = self._format.read(pc.binary_slice(fit, HEADER_SIZE) if self._framed else fit)
        places = pc.indices_nonzero(some)
        return spread(found, some), unfit | {places[at].as_py(): why for at, why in bad.items()}


def made(
    name: str, schema: Any, message: str | None, separator: str, registry: Registry | None
) -> Format:
    """The format of this name; ValueError says what it lacks."""
    if name == "string":
        from pyspark_kafkalite.decoding.text_values import TextFormat

        return TextFormat()
    if schema is None or (isinstance(schema, str) and not schema.strip()):
        raise ValueError(f"value_format={name} needs value_schema.")
    if name == "avro":
        from pyspark_kafkalite.decoding.avro_values import AvroFormat

        return AvroFormat(schema, registry)
    if name == "protobuf":
        from pyspark_kafkalite.decoding.protobuf_values import ProtobufFormat

        if not message:
            raise ValueError("value_format=protobuf needs value_message, the message's full name.")
        return ProtobufFormat(descriptor(schema), message, framed=registry is not None)
    columns = arrow_schema(schema)
    if not len(columns):
        raise ValueError("value_schema has no columns.")
    if name == "csv":
        from pyspark_kafkalite.decoding.csv_values import CsvFormat

        return CsvFormat(columns, separator)
    from pyspark_kafkalite.decoding.json_values import JsonFormat

    return JsonFormat(columns)


def descriptor(said: Any) -> bytes:
    """A compiled descriptor, given or in a file."""
    if isinstance(said, bytes):
        return said
    try:
        return Path(said).read_bytes()
    except (OSError, TypeError, ValueError) as fault:
        raise ValueError(f"value_schema of protobuf is a descriptor file, and {said!r} cannot be"
                         f" read: {fault}.") from None  # fmt: skip


def decode_of(
    options: Mapping[str, Any], settings: Mapping[str, str], topic: str | None = None
) -> Decode | None:
    """What these options ask for, whatever their case; None without a value_format.

    `settings` are a client's, for the quarantine; `topic` is the one that is read, if it is one:
    its values' subject in a registry is TOPIC-value unless somebody says.
    """
    said = {name.lower(): value for name, value in options.items()}
    name = said.get("value_format")
    if name is None:
        for each in OPTIONS:
            if each in said:
                raise ValueError(f"{each} is nothing without value_format ({', '.join(FORMATS)}).")
        return None
    registry = registry_of(said)
    schema = said.get("value_schema")
    if schema is None and registry is not None and str(name).strip().lower() == "avro":
        subject = said.get(f"{REGISTRY}subject") or (f"{topic}-value" if topic else None)
        if subject is None:
            raise ValueError(f"Say value_schema, or {REGISTRY}subject: several topics are read.")
        schema = registry.newest(subject)
    bad_rows = BadRows(
        str(said.get("on_bad_rows", FAIL)), said.get("quarantine_topic"), settings
    )
    return Decode(
        str(name),
        schema,
        message=said.get("value_message"),
        prefix=str(said.get("value_prefix", "")),
        separator=str(said.get("csv_separator", ",")),
        registry=registry,
        bad_rows=bad_rows,
    )


def registry_of(said: Mapping[str, Any]) -> Registry | None:
    url = said.get(f"{REGISTRY}url")
    if not url:
        return None
    text = str(said.get(f"{REGISTRY}timeout.ms", int(TIMEOUT_S * 1000))).strip()
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"{REGISTRY}timeout.ms is a number of milliseconds, not {text!r}.")
    user = str(said.get(f"{REGISTRY}basic.auth.user.info", ""))
    return Registry.at(str(url), user, int(text) / 1000)
