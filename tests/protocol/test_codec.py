"""The plan interpreter: it writes the bytes of the plain codec, and reports a caller's mistake
differently from invalid input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.errors import InvalidRequest, UnsupportedVersion
from kafkalite.protocol.schema import Fields, MessageSchema
from kafkalite.protocol.schemas.cluster import DESCRIBE_TOPIC_PARTITIONS, METADATA
from kafkalite.protocol.schemas.configs import DESCRIBE_CLIENT_QUOTAS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.types import (
    Array,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    UInt16,
    Uuid,
)
from tests.protocol.values import every_message, filled, with_defaults
from tests.twins.codec import joined, tokens, uvarint

MESSAGES = list(every_message())

EVENT = MessageSchema(
    "Event",
    Struct(
        name=String(nullable="1+"),
        count=Int32("1+", default=-1, ignorable=False),
        ids=Array(Int64(), "2+", nullable="2+", tag=3, default=None),
        place=Struct("2+", tag=1, at=Int32(default=-1), names=Array(String())),
        next=Struct("2+", nullable="2+", default=None, at=Int8()),
    ),
    versions="0-3",
    flexible="2+",
    may_drop=False,
)


@given(st.sampled_from(MESSAGES), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.5, 1.0]))
def test_bytes_and_values_equal_the_plain_codec(one, seed, null):
    message, version = one
    values = filled(message, version, seed, null=null)
    frame = message.write(version, values)
    assert frame == joined(tokens(message, version, values))
    assert message.read(version, frame) == with_defaults(message.struct, version, values)


def test_missing_field_takes_its_default():
    for message, version in MESSAGES:
        expected = with_defaults(message.struct, version, {})
        assert message.read(version, message.write(version, {})) == expected


def test_default_list_is_not_shared():
    first = METADATA.response.read(9, METADATA.response.write(9, {}))
    first.topics.append("mine")
    second = EVENT.read(3, EVENT.write(3, {"name": "a"}))
    second.place.names.append("mine")
    assert METADATA.response.read(9, METADATA.response.write(9, {})).topics == []
    assert EVENT.read(3, EVENT.write(3, {"name": "a"})).place.names == []


def test_read_accepts_a_position_and_a_memoryview():
    body = METADATA.request.write(12, {"topics": [{"name": "flights"}]})
    fields = METADATA.request.read(12, memoryview(b"header" + body), 6)
    assert fields.topics[0].name == "flights"
    with pytest.raises(InvalidRequest):
        METADATA.request.read(12, b"short", 6)


def test_records_are_a_view_of_the_frame_and_names_are_copies():
    values = {"topic_data": [{"name": "a", "partition_data": [{"index": 1, "records": b"rrrr"}]}]}
    frame = bytearray(PRODUCE.request.write(9, values))
    fields = PRODUCE.request.read(9, memoryview(frame))
    frame[:] = b"x" * len(frame)
    assert fields.topic_data[0].partition_data[0].records == b"xxxx"
    assert fields.topic_data[0].name == "a"


def test_field_named_as_a_method_of_dict_is_read_as_an_item():
    values = {"entries": [{"values": [{"key": "producer_byte_rate", "value": 1.5}]}]}
    response = DESCRIBE_CLIENT_QUOTAS.response
    entry = response.read(1, response.write(1, values)).entries[0]
    assert entry["values"][0].value == 1.5


def test_unknown_field_raises_attribute_error():
    with pytest.raises(AttributeError, match="nmae"):
        _ = Fields(name="a").nmae


@given(st.lists(st.tuples(st.integers(4, 1 << 31), st.binary(max_size=200)), max_size=5))
def test_unknown_tags_are_ignored(unknown):
    body = EVENT.write(3, {"name": "a", "ids": [1]})
    before, known = body[: body.index(b"\x01\x03")], body[body.index(b"\x03") :]
    tags = b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in unknown)
    assert EVENT.read(3, before + uvarint(1 + len(unknown)) + known + tags).ids == [1]


def test_tagged_field_of_wrong_size_raises_invalid_request():
    body = EVENT.write(3, {"name": "a", "ids": [1]})
    at = body.index(b"\x03\x09")
    for size in (8, 10):
        lying = body[: at + 1] + bytes([size]) + body[at + 2 :] + b"\0" * (size - 9)
        with pytest.raises(InvalidRequest):
            EVENT.read(3, lying)


@pytest.mark.parametrize(
    "values",
    [
        {"place": {"at": -1, "names": []}},
        {"place": {"at": -1}},
        {"place": {}},
        {"ids": None},
        {},
    ],
)
def test_tagged_field_with_default_value_is_not_written(values):
    assert EVENT.write(3, {"name": "a", **values}) == EVENT.write(3, {"name": "a"})


def test_empty_array_is_written_where_null_is_the_default():
    assert EVENT.read(3, EVENT.write(3, {"name": "a", "ids": []})).ids == []


def test_struct_may_be_null():
    for cursor in (None, {"topic_name": "flights", "partition_index": 3}):
        response = DESCRIBE_TOPIC_PARTITIONS.response
        read = response.read(0, response.write(0, {"next_cursor": cursor}))
        assert read.next_cursor == cursor


@pytest.mark.parametrize(
    ("value", "content"),
    [(None, b"\1\0\1\0"), ({"at": 5}, b"\1\0\3\1\5\0"), ({"at": 0}, b"\0")],
)
def test_null_of_a_tagged_struct_is_zero(value, content):
    struct = Struct(one=Struct(nullable="0+", tag=0, at=Int8()))
    schema = MessageSchema("Tagged", struct, versions="0", flexible="0+")
    assert schema.write(0, {"one": value}) == content
    assert schema.read(0, content).one == value


def test_request_with_field_of_a_later_version_raises_unsupported_version():
    with pytest.raises(UnsupportedVersion, match="Event version 0 has no field count"):
        EVENT.write(0, {"name": "a", "count": 5})
    assert EVENT.write(0, {"name": "a", "count": -1}) == EVENT.write(0, {"name": "a"})
    with pytest.raises(UnsupportedVersion, match="group_instance_id|auto_topic"):
        METADATA.request.write(3, {"topics": [], "allow_auto_topic_creation": False})


def test_response_omits_fields_of_later_versions():
    topic = {"name": "a", "topic_id": bytes(range(16)), "topic_authorized_operations": 7}
    older = METADATA.response.read(1, METADATA.response.write(1, {"topics": [topic]}))
    assert older.topics[0].topic_id == bytes(16)


def test_unknown_version_raises_unsupported_version():
    with pytest.raises(UnsupportedVersion, match="Metadata request has no version 99"):
        METADATA.request.read(99, b"")


@pytest.mark.parametrize(
    "values",
    [
        {"nmae": "a"},
        {"name": "a", "count": 1, "cuont": 2},
        {"name": 5},
        {"name": "a", "count": 1 << 31},
        {"name": "a", "count": "1"},
        {"name": "a", "place": {"att": 1}},
        {"name": "a", "next": []},
    ],
)
def test_invalid_value_raises_assertion_error(values):
    with pytest.raises(AssertionError):
        EVENT.write(3, values)


def test_null_is_rejected_in_non_nullable_field():
    assert EVENT.read(1, b"\xff\xff" + bytes(4)).name is None
    with pytest.raises(InvalidRequest):
        EVENT.read(0, b"\xff\xff")
    with pytest.raises(AssertionError):
        EVENT.write(0, {"name": None})


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        (Int8, -0x80, 0x7F),
        (Int16, -0x8000, 0x7FFF),
        (UInt16, 0, 0xFFFF),
        (Int32, -0x80000000, 0x7FFFFFFF),
        (Int64, -(1 << 63), (1 << 63) - 1),
    ],
)
def test_number_is_limited_to_its_type(field, low, high):
    message = MessageSchema("Number", Struct(value=field()), versions="0")
    for value in (low, high):
        assert message.read(0, message.write(0, {"value": value})).value == value
    for value in (low - 1, high + 1):
        with pytest.raises(AssertionError, match="value"):
            message.write(0, {"value": value})


def test_string_is_limited_to_its_length_prefix():
    message = MessageSchema("Text", Struct(value=String()), versions="0-1", flexible="1")
    assert message.read(0, message.write(0, {"value": "x" * 0x7FFF})).value == "x" * 0x7FFF
    assert message.read(1, message.write(1, {"value": "x" * 0x8000})).value == "x" * 0x8000
    with pytest.raises(AssertionError):
        message.write(0, {"value": "x" * 0x8000})


@pytest.mark.parametrize("value", [b"short", "0123456789abcdef", 0, bytearray(16)])
def test_uuid_is_sixteen_bytes(value):
    message = MessageSchema("Id", Struct(value=Uuid()), versions="0")
    with pytest.raises(AssertionError):
        message.write(0, {"value": value})


def test_any_buffer_is_written_as_bytes():
    message = MessageSchema("Blob", Struct(value=Bytes(), flag=Bool()), versions="0")
    for value in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert message.read(0, message.write(0, {"value": value})).value == b"abc"
