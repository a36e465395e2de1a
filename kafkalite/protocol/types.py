"""Field types of the wire: the words schemas are written in.

    Struct(
        topic_id=Uuid("10+"),
        name=String(nullable="12+"),
        partitions=Array(Struct(partition_index=Int32(), leader_epoch=Int32("7+", default=-1))),
        current_leader=Struct("10+", tag=0, leader_id=Int32(default=-1)),
    )

The first word is which versions of the message have the field: "3" only that one, "3+" from there
on, "3-5" up to and with 5; all of them when nothing is said.  A field inside a struct exists only
where the struct does.

    nullable    the versions in which it may be null
    tag         its number, for a field that stands only when it says something
    default     what it is when nobody says: zero, empty, false, null for None.  Also what a reader
                finds in a version that lacks the field
    ignorable   False where a request must not be written without it: when a version lacks the field
                and its value is not the default, the writer refuses.  Answers always drop it, for
                an older client never knew what it is not told

Compact lengths, and where tags stand, follow from the message being flexible: schema.py.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from kafkalite._ext import codec


class Versions:
    """A run of versions, open above when `high` is None."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int | None) -> None:
        self.low = low
        self.high = high

    def __contains__(self, version: int) -> bool:
        return self.low <= version and (self.high is None or version <= self.high)


@cache
def versions_of(words: str) -> Versions:
    if words == "none":
        return Versions(0, -1)
    if words.endswith("+"):
        return Versions(int(words[:-1]), None)
    low, _, high = words.partition("-")
    return Versions(int(low), int(high or low))


UNSAID = object()


class Field:
    """One field: its type, and in which versions it is there and how."""

    __slots__ = ("default", "ignorable", "nullable", "tag", "versions")
    kind: ClassVar[int]
    zero: ClassVar[object]

    def __init__(
        self,
        versions: str = "0+",
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = UNSAID,
        ignorable: bool = True,
    ) -> None:
        self.versions = versions_of(versions)
        self.nullable = versions_of(nullable)
        self.tag = tag
        self.default = self.zero if default is UNSAID else default
        self.ignorable = ignorable


class Bool(Field):
    __slots__ = ()
    kind = codec.BOOL
    zero = False


class Int8(Field):
    __slots__ = ()
    kind = codec.INT8
    zero = 0


class Int16(Field):
    __slots__ = ()
    kind = codec.INT16
    zero = 0


class UInt16(Field):
    __slots__ = ()
    kind = codec.UINT16
    zero = 0


class Int32(Field):
    __slots__ = ()
    kind = codec.INT32
    zero = 0


class Int64(Field):
    __slots__ = ()
    kind = codec.INT64
    zero = 0


class Float64(Field):
    __slots__ = ()
    kind = codec.FLOAT64
    zero = 0.0


class Uuid(Field):
    """Sixteen bytes; all zero stands for none."""

    __slots__ = ()
    kind = codec.UUID
    zero = bytes(16)


class String(Field):
    __slots__ = ()
    kind = codec.STRING
    zero = ""


class Bytes(Field):
    """Opaque bytes, read as a copy."""

    __slots__ = ()
    kind = codec.BYTES
    zero = b""


class Records(Field):
    """Batches of records, read as a view of the frame.

    Empty rather than null by default: librdkafka refuses a Fetch whose records are null.
    """

    __slots__ = ()
    kind = codec.RECORDS
    zero = b""


class Struct(Field):
    """Fields in the order of the bytes."""

    __slots__ = ("fields",)
    kind = codec.STRUCT

    def __init__(
        self,
        versions: str = "0+",
        /,
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = UNSAID,
        ignorable: bool = True,
        **fields: Field,
    ) -> None:
        if default is UNSAID:
            default = {name: field.default for name, field in fields.items()}
        super().__init__(versions, nullable=nullable, tag=tag, default=default, ignorable=ignorable)
        self.fields = fields

    def elsewhere(
        self,
        versions: str = "0+",
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = UNSAID,
    ) -> Struct:
        """The same fields, where other versions have them or they may be null."""
        return Struct(
            versions,
            nullable=nullable,
            tag=tag,
            default=default,
            ignorable=self.ignorable,
            **self.fields,
        )


class Array(Field):
    """Elements of one type, none of them null; not arrays themselves."""

    __slots__ = ("element",)
    kind = codec.ARRAY

    def __init__(
        self,
        element: Field,
        versions: str = "0+",
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = UNSAID,
        ignorable: bool = True,
    ) -> None:
        if default is UNSAID:
            default = []
        super().__init__(versions, nullable=nullable, tag=tag, default=default, ignorable=ignorable)
        assert element.kind != codec.ARRAY, "an array of arrays is not of this wire"
        self.element = element
