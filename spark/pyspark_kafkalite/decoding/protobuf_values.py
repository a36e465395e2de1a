"""Protocol Buffers format: each value is one message of a type in a compiled descriptor.

    protoc --include_imports --descriptor_set_out=flights.desc flights.proto

    int32, sint32, sfixed32   int          uint32, fixed32   bigint
    int64, sint64, sfixed64   bigint       uint64, fixed64   decimal(20,0)
    enum    string, or its number as text if it has no name
    map     map      repeated   array      message   struct      Timestamp   timestamp

A field with presence (a message, `optional`, one of a `oneof`) is null if absent; any other has its
default.  With a registry the header has a schema id, which is ignored, and message indexes, which
must be those of the requested message.

Decoded by the protobuf library, value by value.  Unknown fields are ignored, so a message of
another type may be accepted.

Left out: recursive messages, extensions, groups.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pyspark_kafkalite.decoding.registry import HEADER_SIZE, framed_id
from pyspark_kafkalite.decoding.sifting import Bad, Unreadable, reason, sift, struct_of

TIMESTAMP = "google.protobuf.Timestamp"
MOMENT = pa.timestamp("us", "UTC")
INDEXES_MAX = 20

Get = Callable[[Any], Any]


class ProtobufFormat:
    """`descriptor` is the output of protoc --descriptor_set_out; `message` a full name."""

    def __init__(self, descriptor: bytes, message: str, framed: bool = False) -> None:
        self._descriptor = descriptor
        self._message = message
        self._framed = framed
        self._made: tuple[Any, Get, list[int]] | None = None
        kind = columns_of(descriptor_of(descriptor, message), ())[0]
        if not kind.num_fields:
            raise ValueError(f"The message {message} has no fields to use as columns.")
        self.schema = pa.schema(list(kind))
        self._kind = struct_of(self.schema)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the message classes, which each process creates for itself."""
        return {**self.__dict__, "_made": None}

    def read(self, values: pa.Array) -> tuple[pa.Array, Bad]:
        from google.protobuf.message import DecodeError

        made, get, path = self._classes()
        rows: list[Any] = []
        bad: Bad = {}
        for at, value in enumerate(values.to_pylist()):
            try:
                if self._framed:
                    value = unframed(value, path)
                rows.append(get(made.FromString(value)))
            except (DecodeError, Unreadable, OverflowError, ValueError) as error:
                bad[at] = reason(error) or f"it is not a valid {self._message}"
                rows.append(None)
        found, misfits = sift(rows, lambda part: pa.array(part, self._kind), self._kind)
        return found, bad | misfits

    def _classes(self) -> tuple[Any, Get, list[int]]:
        if self._made is None:
            from google.protobuf import message_factory

            descriptor = descriptor_of(self._descriptor, self._message)
            self._made = (
                message_factory.GetMessageClass(descriptor),
                columns_of(descriptor, ())[1],
                path_of(descriptor),
            )
        return self._made


def descriptor_of(compiled: bytes, message: str) -> Any:
    """Return the descriptor of a message, in a separate pool."""
    from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(compiled)
    except DecodeError:
        raise ValueError(
            "The descriptor file is invalid: create it with protoc --include_imports"
            " --descriptor_set_out=FILE."
        ) from None
    pool = descriptor_pool.DescriptorPool()
    names = [file.name for file in files.file]
    try:
        if "google/protobuf/timestamp.proto" not in names:
            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = [f"{file.package}.{each.name}".lstrip(".")
                 for file in files.file for each in file.message_type]  # fmt: skip
        raise ValueError(f"The descriptor file has no message {message!r}; its messages are"
                         f" {', '.join(known[:20]) or 'none'}.") from None  # fmt: skip
    except TypeError as error:
        raise ValueError(f"The descriptor file is incomplete; create it with --include_imports:"
                         f" {error}.") from None  # fmt: skip


def path_of(descriptor: Any) -> list[int]:
    """Return the message indexes in a registry's header for this message."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        beside = parent.nested_types if parent else descriptor.file.message_types_by_name.values()
        path.insert(0, [each.full_name for each in beside].index(descriptor.full_name))
        descriptor = parent
    return path


def unframed(value: bytes, path: list[int]) -> bytes:
    """Return the message after a registry's header."""
    framed_id(value)
    at, count = zigzag(value, HEADER_SIZE)
    if not 0 <= count <= INDEXES_MAX:
        raise Unreadable("its schema registry header has invalid message indexes")
    found = []
    for _ in range(count):
        at, index = zigzag(value, at)
        found.append(index)
    found = found or [0]  # encoded as an empty list
    if found != path:
        raise Unreadable(f"it is the message with indexes {found} of its file, not {path}")
    return value[at:]


def zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and the position after it."""
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, (found >> 1) ^ -(found & 1)
    raise Unreadable("it ends within its schema registry header")


# Columns of messages.


def columns_of(descriptor: Any, within: tuple[str, ...]) -> tuple[pa.DataType, Get]:
    """Return the struct type of a message, and the function that converts a message to a dict."""
    if descriptor.full_name in within:
        raise ValueError(f"The message {descriptor.full_name} contains itself and cannot be"
                         " a column; remove the field from the .proto used to read.")  # fmt: skip
    within = (*within, descriptor.full_name)
    fields, gets = [], []
    for field in descriptor.fields:
        kind, get = field_of(field, within)
        fields.append(pa.field(field.name, kind))
        gets.append((field.name, get))

    def row(message: Any) -> dict[str, Any]:
        return {name: get(message) for name, get in gets}

    return pa.struct(fields), row


def field_of(field: Any, within: tuple[str, ...]) -> tuple[pa.DataType, Get]:
    name = field.name
    if is_map(field):
        entry = field.message_type.fields_by_name
        (key, turn_key), (value, turn) = (single(entry[part], within) for part in ("key", "value"))
        return pa.map_(key, value), lambda message: [
            (turn_key(k), turn(v)) for k, v in getattr(message, name).items()
        ]
    kind, converted = single(field, within)
    if is_repeated(field):
        return pa.list_(pa.field("element", kind)), lambda message: [
            converted(each) for each in getattr(message, name)
        ]
    if field.has_presence:
        return (
            kind,
            lambda message: converted(getattr(message, name)) if message.HasField(name) else None,
        )
    return kind, lambda message: converted(getattr(message, name))


def is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry) and is_repeated(field)


def same(value: Any) -> Any:
    return value


def single(field: Any, within: tuple[str, ...]) -> tuple[pa.DataType, Get]:
    """Return the type of one value of a field, and the function that converts a value."""
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return MOMENT, lambda value: value.seconds * 1_000_000 + value.nanos // 1_000
        return columns_of(field.message_type, within)
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return pa.string(), lambda value: names.get(value) or str(value)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return pa.decimal128(20, 0), Decimal
    if field.type == field.TYPE_BYTES:
        return pa.binary(), same
    return {
        field.CPPTYPE_INT32: pa.int32(), field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(), field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(), field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_STRING: pa.string(),
    }[field.cpp_type], same  # fmt: skip
