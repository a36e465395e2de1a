"""Kinds of records in our own notation, and their bytes: kind, version, fields.

    kind      1 byte    which of the kinds of its number space
    version   1 byte    of that kind
    fields              in the schema's words (types.py), flexible from version 0

There are three number spaces: the metadata log's (schemas/internal.py), the bus's (schemas/bus.py)
and the local socket's (schemas/local.py).  A kind keeps its number for good.  A field is added with
the version that brings it, or as a tagged one, so that whatever was once written stays readable.

What travels between processes is sealed, as a frame: behind the fields stands

    checksum  8 bytes   XXH3-64 of all before it, big-endian
"""

from __future__ import annotations

from typing import Any, NamedTuple

import xxhash

from kafkalite.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from kafkalite.protocol.schema import Message
from kafkalite.protocol.types import Struct

RECORD_UNITS_MAX = 1 << 22
"""Maximum number of units (_ext.codec) in a record: sixteen times that of a request, since a
Heartbeat may name every partition of a node."""

START_SIZE = 2
CHECKSUM_SIZE = 8


class RecordKind:
    """One kind of record; calling it makes a record of its newest version."""

    def __init__(self, key: int, name: str, versions: str, fields: Struct, units_max: int) -> None:
        self.key = key
        self.name = name
        self.version = int(versions.rpartition("-")[2])
        self.names = fields.fields.keys()
        self.message = Message(
            name, fields, versions=versions, flexible="0+", may_drop=False, units_max=units_max
        )

    def __call__(self, **fields: Any) -> Record:
        assert fields.keys() == self.names, f"{self.name} has the fields {', '.join(self.names)}"
        return Record(self, fields)

    def __repr__(self) -> str:
        return self.name


class Record(NamedTuple):
    """One record: its kind and its fields."""

    kind: RecordKind
    fields: dict[str, Any]


class RecordKinds:
    """One number space: the kinds in it, and reading and writing their records.

    `noun` is what one of its records is called in complaints.  `exact` says that a record ends
    with the fields that are known here; without it more may follow, which a newer writer put
    there (tags), and is passed over.
    """

    def __init__(self, noun: str, *, exact: bool = True, units_max: int = RECORD_UNITS_MAX) -> None:
        self.noun = noun
        self.exact = exact
        self.units_max = units_max
        self.by_key: dict[int, RecordKind] = {}

    def declare(self, key: int, name: str, versions: str, fields: Struct) -> RecordKind:
        """The kind of this number, which nobody else may have."""
        taken = self.by_key.get(key)
        assert taken is None, f"{name} and {taken} both claim kind {key}"
        kind = self.by_key[key] = RecordKind(key, name, versions, fields, self.units_max)
        return kind

    def write(self, record: Record) -> bytes:
        """The bytes of a record, in its kind's newest version."""
        kind = record.kind
        assert self.by_key.get(kind.key) is kind, f"{kind} is no {self.noun}"
        return bytes((kind.key, kind.version)) + kind.message.write(kind.version, record.fields)

    def write_frame(self, record: Record) -> bytes:
        """The frame of a record, in its kind's newest version."""
        said = self.write(record)
        return said + xxhash.xxh3_64_digest(said)

    def read_frame(self, frame: bytes | memoryview) -> Record:
        """The record of a frame; CorruptMessage, or UnsupportedVersion for a kind or version that
        is not known here."""
        frame = memoryview(frame)
        said = frame[:-CHECKSUM_SIZE]
        if xxhash.xxh3_64_digest(said) != frame[-CHECKSUM_SIZE:]:
            raise CorruptMessage(f"The checksum of a {self.noun} does not hold.")
        return self.read(said)

    def read(self, value: bytes | memoryview) -> Record:
        """The record of these bytes; CorruptMessage, or UnsupportedVersion for one from the
        future."""
        if len(value) < START_SIZE:
            raise CorruptMessage(f"A {self.noun} is too short.")
        kind = self.by_key.get(value[0])
        if kind is None or value[1] not in kind.message.versions:
            raise UnsupportedVersion(
                f"A newer kafkalite wrote this {self.noun}: kind {value[0]} version {value[1]}."
            )
        try:
            fields = kind.message.read(value[1], value, START_SIZE)
        except InvalidRequest as fault:
            raise CorruptMessage(str(fault)) from None
        # Behind a request clients leave bytes; behind a record of the log nobody does.
        if self.exact and kind.message.write(value[1], fields) != value[START_SIZE:]:
            raise CorruptMessage(f"A {self.noun}, {kind}, has more than its fields.")
        return Record(kind, fields)
