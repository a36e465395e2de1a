"""Invalid bytes: they are refused and allocate no memory.

Every message of every version, request and response: cut short at each byte, each byte changed,
and each of its lengths, counts and sizes replaced by a list of false values.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest

from kafkalite._ext import codec
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schema import BY_KEY, MessageSchema
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS
from kafkalite.protocol.schemas.groups import DESCRIBE_GROUPS, OFFSET_FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from tests.protocol.values import filled, versions
from tests.twins.codec import Length, joined, tokens, uvarint

SMALL = {"small": True, "counts": (1, 2)}
MEMORY_MAX = 1 << 20

APIS = pytest.mark.parametrize("api", BY_KEY.values(), ids=lambda api: api.name)


def read(message: MessageSchema, version: int, frame: bytes) -> dict | None:
    """Return the fields, or None if the frame is refused; any other exception fails the test."""
    try:
        return message.read(version, frame)
    except InvalidRequest:
        return None


@APIS
def test_truncated_message_is_rejected(api):
    for version in versions(api):
        for message in (api.request, api.response):
            whole = message.write(version, filled(message, version, **SMALL))
            for size in range(len(whole)):
                assert read(message, version, whole[:size]) is None


@APIS
def test_bytes_after_the_message_are_ignored(api):
    for version in versions(api):
        for message in (api.request, api.response):
            whole = message.write(version, filled(message, version, **SMALL))
            assert read(message, version, whole + b"\xff\xff\xff") == read(message, version, whole)


@APIS
def test_message_read_from_changed_bytes_is_written_and_read_back(api):
    dice = random.Random(api.name)
    for version in versions(api):
        for message in (api.request, api.response):
            frame = bytearray(message.write(version, filled(message, version, **SMALL)))
            for at in range(len(frame)):
                kept, frame[at] = frame[at], frame[at] ^ dice.randint(1, 255)
                fields = read(message, version, bytes(frame))
                if fields is not None and not has_float(message):
                    again = message.read(version, message.write(version, fields))
                    assert again == fields
                frame[at] = kept


def has_float(message: MessageSchema) -> bool:
    """Return whether a changed byte may produce NaN, which is not equal to itself."""
    return message.name.startswith(("DescribeClientQuotas", "AlterClientQuotas"))


def false_lengths(length: Length, left: int) -> list[bytes]:
    """Return twelve false values of a length, as bytes; `left` is the number of bytes after it."""
    near = [length.value + 1, length.value - 1, left, left + 1, 2 * left + 2]
    if length.form == "uvarint":
        overlong = [b"\xff" * 5 + b"\x01", b"\x80" * 9 + b"\x01", b"\xff" * 4 + b"\x1f"]
        far = [0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
        return [uvarint(max(value, 0)) for value in (*near, *far)] + overlong
    bits = 16 if length.form == ">h" else 32
    high = (1 << (bits - 1)) - 1
    far = [0, -1, -2, -high - 1, high, high // 2, high // 256]
    return [bytes(Length(max(-high - 1, min(value, high)), length.form)) for value in near + far]


@APIS
def test_false_length_allocates_no_memory(api):
    tracemalloc.start()
    try:
        for version in versions(api):
            for message in (api.request, api.response):
                values = filled(message, version, small=True, counts=(1,))
                parts = tokens(message, version, values)
                for at, length in enumerate(parts):
                    if isinstance(length, Length):
                        head, tail = joined(parts[:at]), joined(parts[at + 1 :])
                        for false_length in false_lengths(length, len(tail)):
                            read(message, version, head + false_length + tail)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


def test_each_length_has_twelve_false_values():
    for form in ("uvarint", ">h", ">i"):
        assert len(false_lengths(Length(7, form), 100)) == 12


def test_decoded_request_size_is_bounded():
    count = codec.UNITS_MAX // 5 + 1
    frame = uvarint(count + 1) + b"\x01\x00" * count + bytes(4)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            METADATA.request.read(9, frame)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


def test_array_element_counts_four_units():
    count = codec.UNITS_MAX // 4
    assert len(read(DESCRIBE_GROUPS.request, 0, described(count)).groups) == count
    assert read(DESCRIBE_GROUPS.request, 0, described(count + 1)) is None


def described(count):
    return DESCRIBE_GROUPS.request.write(0, {"groups": [""] * count})


def test_large_group_and_topic_requests_are_read():
    names = [f"t{number}" for number in range(10_000)]
    topics = [{"name": name, "partition_indexes": [*range(5)]} for name in names]
    resources = [{"resource_type": 2, "resource_name": name} for name in names]
    for api, version, request in (
        (OFFSET_FETCH, 8, {"groups": [{"group_id": "g", "topics": topics}]}),
        (METADATA, 12, {"topics": [{"name": name} for name in names]}),
        (DESCRIBE_CONFIGS, 4, {"resources": resources}),
    ):
        assert read(api.request, version, api.request.write(version, request)) is not None


def test_request_for_thirty_thousand_partitions_is_read():
    partitions = [{"partition_index": index} for index in range(30_000)]
    request = {"topics": [{"name": "flights", "partitions": partitions}]}
    frame = LIST_OFFSETS.request.write(10, request)
    assert len(LIST_OFFSETS.request.read(10, frame).topics[0].partitions) == 30_000


@pytest.mark.parametrize("text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"ab\xe2\x82"])
def test_string_that_is_not_utf8_is_rejected(text):
    frame = uvarint(2) + uvarint(len(text) + 1) + text + bytes(5)
    with pytest.raises(InvalidRequest):
        METADATA.request.read(9, frame)


def test_tag_count_beyond_the_frame_is_rejected():
    body = LIST_OFFSETS.request.write(10, {})
    assert body.endswith(b"\0")
    for count in (1, 127, 0xFFFFFFFF):
        with pytest.raises(InvalidRequest):
            LIST_OFFSETS.request.read(10, body[:-1] + uvarint(count))
