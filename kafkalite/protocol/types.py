"""Field types of the wire protocol, from which schemas are composed.

    Struct(
        topic_id=Uuid("10+"),
        name=String(nullable="12+"),
        partitions=Array(Struct(partition_index=Int32(), leader_epoch=Int32("7+", default=-1))),
        current_leader=Struct("10+", tag=0, leader_id=Int32(default=-1)),
    )

The first argument gives the versions of the message that have the field: "3" only that one, "3+"
that and later ones, "3-5" up to and including 5; all versions if it is missing.  A field of a
struct exists only where the struct does.

    nullable    the versions in which it may be null
    tag         its tag number; a tagged field is written only if it is not the default
    default     its value if none is given: zero, empty, false, null for None.  Also its value
                after decoding a version that lacks the field
    ignorable   False if a request must not be written without it: if a version lacks the field
                and its value is not the default, encoding fails.  Responses always drop it, since
                an older client does not know the field

Compact lengths and the positions of tags depend on the message being flexible: schema.py.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from kafkalite._ext import codec


class Versions:
    """A range of versions, without an upper bound if `high` is None."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int | None) -> None:
        self.low = low
        self.high = high

    def __contains__(self, version: int) -> bool:
        return self.low <= version and (self.high is None or version <= self.high)


@cache
def versions_of(text: str) -> Versions:
    if text == "none":
        return Versions(0, -1)
    if text.endswith("+"):
        return Versions(int(text[:-1]), None)
    low, _, high = text.partition("-")
    return Versions(int(low), int(high or low))


NOT_GIVEN = object()


class Field:
    """One field: its type, and the versions that have it."""

    __slots__ = ("default", "ignorable", "nullable", "tag", "versions")
    kind: ClassVar[int]
    zero: ClassVar[object]

    def __init__(
        self,
        versions: str = "0+",
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = NOT_GIVEN,
        ignorable: bool = True,
    ) -> None:
        self.versions = versions_of(versions)
        self.nullable = versions_of(nullable)
        self.tag = tag
        self.default = self.zero if default is NOT_GIVEN else default
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
    """Sixteen bytes; all zero means none."""

    __slots__ = ()
    kind = codec.UUID
    zero = bytes(16)


class String(Field):
    __slots__ = ()
    kind = codec.STRING
    zero = ""


class Bytes(Field):
    """Opaque bytes, decoded as a copy."""

    __slots__ = ()
    kind = codec.BYTES
    zero = b""


class Records(Field):
    """Record batches, decoded as a view of the frame.

    The default is empty rather than null: librdkafka refuses a Fetch whose records are null.
    """

    __slots__ = ()
    kind = codec.RECORDS
    zero = b""


class Struct(Field):
    """Fields, in the order of their bytes."""

    __slots__ = ("fields",)
    kind = codec.STRUCT

    def __init__(
        self,
        versions: str = "0+",
        /,
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = NOT_GIVEN,
        ignorable: bool = True,
        **fields: Field,
    ) -> None:
        if default is NOT_GIVEN:
            default = {name: field.default for name, field in fields.items()}
        super().__init__(versions, nullable=nullable, tag=tag, default=default, ignorable=ignorable)
        self.fields = fields

    def elsewhere(
        self,
        versions: str = "0+",
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = NOT_GIVEN,
    ) -> Struct:
        """Return the same fields for another place, with other versions or nullability."""
        return Struct(
            versions,
            nullable=nullable,
            tag=tag,
            default=default,
            ignorable=self.ignorable,
            **self.fields,
        )


class Array(Field):
    """Elements of one type, which are neither null nor arrays."""

    __slots__ = ("element",)
    kind = codec.ARRAY

    def __init__(
        self,
        element: Field,
        versions: str = "0+",
        *,
        nullable: str = "none",
        tag: int | None = None,
        default: object = NOT_GIVEN,
        ignorable: bool = True,
    ) -> None:
        if default is NOT_GIVEN:
            default = []
        super().__init__(versions, nullable=nullable, tag=tag, default=default, ignorable=ignorable)
        assert element.kind != codec.ARRAY, "an array of arrays is not of this wire"
        self.element = element
