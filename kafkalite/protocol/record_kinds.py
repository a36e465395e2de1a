"""RecordKind: records in kafkalite's own binary format: kind, version, fields.

    kind      1 byte    one of the kinds of its number space
    version   1 byte    of that kind
    fields              as declared in the schema (types.py), flexible from version 0

There are three number spaces: the metadata log's (schemas/internal.py), the bus's (schemas/bus.py)
and the local listener's (schemas/local.py).  The number of a kind never changes.  A field is added
with a new version, or as a tagged field, so that everything ever written stays readable.

Messages between processes are frames, with a checksum after the fields:

    checksum  8 bytes   XXH3-64 of all bytes before it, big-endian
"""

from __future__ import annotations

from typing import Any, NamedTuple

import xxhash

from kafkalite.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from kafkalite.protocol.schema import MessageSchema
from kafkalite.protocol.types import Struct

RECORD_UNITS_MAX = 1 << 22
"""Maximum number of units (_ext.codec) in a record: sixteen times that of a request, since a
Heartbeat may name every partition of a node."""

START_SIZE = 2
CHECKSUM_SIZE = 8


class RecordKind:
    """One kind of record; calling it creates a record of its newest version."""

    def __init__(self, key: int, name: str, versions: str, fields: Struct, units_max: int) -> None:
        self.key = key
        self.name = name
        self.version = int(versions.rpartition("-")[2])
        self.names = fields.fields.keys()
        self.message = MessageSchema(
            name, fields, versions=versions, flexible="0+", may_drop=False, units_max=units_max
        )

    def __call__(self, **fields: Any) -> TypedRecord:
        assert fields.keys() == self.names, f"{self.name} has the fields {', '.join(self.names)}"
        return TypedRecord(self, fields)

    def __repr__(self) -> str:
        return self.name


class TypedRecord(NamedTuple):
    """One record: its kind and its fields."""

    kind: RecordKind
    fields: dict[str, Any]


class RecordKinds:
    """One number space: its kinds, and the encoding and decoding of their records.

    `noun` names a record in error messages.  `is_exact` requires that a record ends with its known
    fields; without it, additional fields (tags) of a newer writer are skipped.
    """

    def __init__(
        self, noun: str, *, is_exact: bool = True, units_max: int = RECORD_UNITS_MAX
    ) -> None:
        self.noun = noun
        self.is_exact = is_exact
        self.units_max = units_max
        self.by_key: dict[int, RecordKind] = {}

    def declare(self, key: int, name: str, versions: str, fields: Struct) -> RecordKind:
        """Declare the kind of this number, which must be free."""
        existing = self.by_key.get(key)
        assert existing is None, f"{name} and {existing} have the same kind {key}"
        kind = self.by_key[key] = RecordKind(key, name, versions, fields, self.units_max)
        return kind

    def write(self, record: TypedRecord) -> bytes:
        """Return the bytes of a record, in its kind's newest version."""
        kind = record.kind
        assert self.by_key.get(kind.key) is kind, f"{kind} is no {self.noun}"
        return bytes((kind.key, kind.version)) + kind.message.write(kind.version, record.fields)

    def write_frame(self, record: TypedRecord) -> bytes:
        """Return the frame of a record, in its kind's newest version."""
        encoded = self.write(record)
        return encoded + xxhash.xxh3_64_digest(encoded)

    def read_frame(self, frame: bytes | memoryview) -> TypedRecord:
        """Decode a frame; raise CorruptMessage, or UnsupportedVersion for an unknown kind or
        version."""
        frame = memoryview(frame)
        encoded = frame[:-CHECKSUM_SIZE]
        if xxhash.xxh3_64_digest(encoded) != frame[-CHECKSUM_SIZE:]:
            raise CorruptMessage(f"Checksum mismatch in a {self.noun}.")
        return self.read(encoded)

    def read(self, value: bytes | memoryview) -> TypedRecord:
        """Decode a record; raise CorruptMessage, or UnsupportedVersion for a newer one."""
        if len(value) < START_SIZE:
            raise CorruptMessage(f"A {self.noun} is too short.")
        kind = self.by_key.get(value[0])
        if kind is None or value[1] not in kind.message.versions:
            raise UnsupportedVersion(
                f"A newer kafkalite wrote this {self.noun}: kind {value[0]} version {value[1]}."
            )
        try:
            fields = kind.message.read(value[1], value, START_SIZE)
        except InvalidRequest as error:
            raise CorruptMessage(str(error)) from None
        # Clients may leave bytes after a request; no writer of the log does after a record.
        if self.is_exact and kind.message.write(value[1], fields) != value[START_SIZE:]:
            raise CorruptMessage(f"A {self.noun}, {kind}, has bytes after its fields.")
        return TypedRecord(kind, fields)
