"""Decoding of binary values into typed columns.

    decode = Decode("json", "carrier STRING, delay INT")
    decode(batch)                     the batch's other columns, then carrier and delay

    value_format              json, avro, protobuf, csv or string
    value_schema              columns (ddl.py); for Avro its JSON schema; for protobuf the
                              descriptor file.  Optional for Avro with a registry: the subject's
                              latest
    value_message             protobuf: the message's full name
    value_prefix              prefix of the decoded columns, to avoid names of the record's columns
    csv_separator             default: ,
    schema.registry.url       values start with a schema id; also .subject, .timeout.ms and
                              .basic.auth.user.info (NAME:PASSWORD)
    on_bad_rows               fail, drop or quarantine, with quarantine_topic (bad_rows.py)

A null value is a row of nulls and never bad.  Bad values do not affect other rows: a format returns
exactly one row per value, or an error for it (sifting.py).

A Decode is created on the driver, where invalid options are a ValueError, and pickled.

    json_values  csv_values  avro_values  protobuf_values  text_values      one format each
    sifting      parses good values together, and finds the bad ones
    bad_rows     handling of bad rows
    registry     schemas by id
    ddl          schemas as users write them

Left out: JSON Schema and .proto texts of a registry; schemas for keys.
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
    """Decoder of values in one format, with the handling of bad rows.

    Args:
        value_format: json, avro, protobuf, csv or string.
        schema: Columns as DDL text, StructType or Arrow schema; Avro's JSON schema; or a protobuf
            descriptor as bytes or file.
        message: Full name of the protobuf message.
        prefix: Prefix of the decoded columns' names.
        separator: CSV separator, one character.
        registry: Schema registry; values then start with a schema id.
        bad_rows: Handling of bad rows; None: fail.

    Raises:
        ValueError: An argument is invalid or missing.
    """

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
            raise ValueError(
                f"value_format must be one of {', '.join(FORMATS)}, not {value_format!r}."
            )
        self._format = made(name, schema, message, separator, registry)
        self._bad_rows = bad_rows or BadRows(FAIL)
        # Avro and protobuf parse the header themselves.
        self._framed = registry is not None and name in ("json", "csv", "string")
        self.columns = pa.schema(
            [(prefix + field.name, field.type) for field in self._format.schema]
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """Required columns: the value, and those that identify a bad row."""
        return ("value", *self._bad_rows.needs)

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the output schema; raise ValueError if two columns have one name."""
        others = [field for field in schema if field.name != "value"]
        for field in self.columns:
            if any(field.name.lower() == other.name.lower() for other in others):
                raise ValueError(
                    f"The value and the record both have a column {field.name!r}: remove it from"
                    " columns, or set value_prefix."
                )
        return pa.schema([*others, *self.columns])

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the other columns, then the decoded ones."""
        found, bad = self._read(batch.column("value"))
        fields = found.flatten()
        others = [name for name in batch.schema.names if name != "value"]
        decoded = pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in others), *fields],
            schema=pa.schema([*(batch.schema.field(name) for name in others), *self.columns]),
        )
        return self._bad_rows.without_bad_rows(batch, decoded, bad) if bad else decoded

    def _read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        """Return a struct for each value, null values included, and the bad ones."""
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
                unfit[at] = "it has no schema registry header"
            some = pc.fill_null(framed, False)
        fit = values.filter(some)
        found, bad = self._format.read(pc.binary_slice(fit, HEADER_SIZE) if self._framed else fit)
        places = pc.indices_nonzero(some)
        return spread(found, some), unfit | {places[at].as_py(): why for at, why in bad.items()}


def made(
    name: str, schema: Any, message: str | None, separator: str, registry: Registry | None
) -> Format:
    """Return the format of this name; raise ValueError if an argument is missing."""
    if name == "string":
        from pyspark_kafkalite.decoding.text_values import TextFormat

        return TextFormat()
    if schema is None or (isinstance(schema, str) and not schema.strip()):
        raise ValueError(f"value_format={name} requires value_schema.")
    if name == "avro":
        from pyspark_kafkalite.decoding.avro_values import AvroFormat

        return AvroFormat(schema, registry)
    if name == "protobuf":
        from pyspark_kafkalite.decoding.protobuf_values import ProtobufFormat

        if not message:
            raise ValueError(
                "value_format=protobuf requires value_message, the message's full name."
            )
        return ProtobufFormat(descriptor(schema), message, framed=registry is not None)
    columns = arrow_schema(schema)
    if not len(columns):
        raise ValueError("value_schema has no columns.")
    if name == "csv":
        from pyspark_kafkalite.decoding.csv_values import CsvFormat

        return CsvFormat(columns, separator)
    from pyspark_kafkalite.decoding.json_values import JsonFormat

    return JsonFormat(columns)


def descriptor(lowered: Any) -> bytes:
    """Return a compiled descriptor, given as bytes or as a file."""
    if isinstance(lowered, bytes):
        return lowered
    try:
        return Path(lowered).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"The descriptor file {lowered!r} (value_schema of protobuf) cannot be"
                         f" read: {error}.") from None  # fmt: skip


def decode_of(
    options: Mapping[str, Any], settings: Mapping[str, str], topic: str | None = None
) -> Decode | None:
    """Return the decoder for these options, with case-insensitive names; None without value_format.

    `settings` are a client's, for the quarantine.  `topic` is the topic that is read, if it is only
    one: the default subject of its values in a registry is TOPIC-value.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    name = lowered.get("value_format")
    if name is None:
        for each in OPTIONS:
            if each in lowered:
                raise ValueError(f"{each} requires value_format ({', '.join(FORMATS)}).")
        return None
    registry = registry_of(lowered)
    schema = lowered.get("value_schema")
    if schema is None and registry is not None and str(name).strip().lower() == "avro":
        subject = lowered.get(f"{REGISTRY}subject") or (f"{topic}-value" if topic else None)
        if subject is None:
            raise ValueError(f"Set value_schema or {REGISTRY}subject: several topics are read.")
        schema = registry.latest_schema(subject)
    bad_rows = BadRows(
        str(lowered.get("on_bad_rows", FAIL)), lowered.get("quarantine_topic"), settings
    )
    return Decode(
        str(name),
        schema,
        message=lowered.get("value_message"),
        prefix=str(lowered.get("value_prefix", "")),
        separator=str(lowered.get("csv_separator", ",")),
        registry=registry,
        bad_rows=bad_rows,
    )


def registry_of(lowered: Mapping[str, Any]) -> Registry | None:
    url = lowered.get(f"{REGISTRY}url")
    if not url:
        return None
    text = str(lowered.get(f"{REGISTRY}timeout.ms", int(TIMEOUT_S * 1000))).strip()
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(
            f"{REGISTRY}timeout.ms must be a positive number of milliseconds, not {text!r}."
        )
    user = str(lowered.get(f"{REGISTRY}basic.auth.user.info", ""))
    return Registry.at(str(url), user, int(text) / 1000)
