"""Records of `__consumer_offsets`: Kafka's current and older versions, and invalid ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.errors import CorruptMessage
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.consumer_protocol import subscribed_topics
from kafkalite.protocol.schemas.group_records import (
    GROUP_METADATA_KEY,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    OffsetCommitValue,
    OffsetKey,
    group_record,
    offset_record,
)

ID = bytes(range(16))
KEY = OffsetKey("g", "top", 2)
KEY_BYTES = "0001 0001 67 0003 746f70 00000002"
GROUP_BYTES = "0002 0001 67"
MEMBER = {
    "member_id": "m",
    "group_instance_id": "i",
    "client_id": "c",
    "client_host": "/h",
    "rebalance_timeout": 60_000,
    "session_timeout": 10_000,
    "subscription": b"\x01\x02",
    "assignment": b"\x03",
}
GROUP = {
    "protocol_type": "consumer",
    "generation": 5,
    "protocol": "range",
    "leader": "m",
    "current_state_timestamp": 0x18BCFE56800,
    "members": [MEMBER],
}

WRITTEN = {
    "offset": (
        offset_record(KEY, OffsetCommitValue(7, 3, "md", 0x18BCFE56800)),
        KEY_BYTES,
        "0003 0000000000000007 00000003 0002 6d64 0000018bcfe56800",
    ),
    "offset that expires": (
        offset_record(KEY, OffsetCommitValue(7, -1, "", 0x18BCFE56800, 0x18BCFE56801)),
        KEY_BYTES,
        "0001 0000000000000007 0000 0000018bcfe56800 0000018bcfe56801",
    ),
    "offset of a topic's id": (
        offset_record(KEY, OffsetCommitValue(7, 3, "md", 0x18BCFE56800, -1, ID)),
        KEY_BYTES,
        f"0004 0000000000000007 00000003 03 6d64 0000018bcfe56800 01 00 10 {ID.hex()}",
    ),
    "no offset": (offset_record(KEY, None), KEY_BYTES, None),
    "group": (
        group_record("g", GROUP),
        GROUP_BYTES,
        "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d 0000018bcfe56800"
        "00000001 0001 6d 0001 69 0001 63 0002 2f68 0000ea60 00002710 00000002 0102 00000001 03",
    ),
    "empty group": (
        group_record("g", {**GROUP, "protocol": None, "leader": None, "members": []}),
        GROUP_BYTES,
        "0003 0008 636f6e73756d6572 00000005 ffff ffff 0000018bcfe56800 00000000",
    ),
    "no group": (group_record("g", None), GROUP_BYTES, None),
}
"""Records as they are in existing logs."""

OLD_MEMBER = {**MEMBER, "group_instance_id": None}
OLDER_MEMBER = {**OLD_MEMBER, "rebalance_timeout": -1}
OLD_GROUP = {**GROUP, "members": [OLD_MEMBER]}
READ = {
    "offset 0": (
        offset_record(KEY, OffsetCommitValue(7, -1, "md", 9)),
        "0000 0001 67 0003 746f70 00000002",
        "0000 0000000000000007 0002 6d64 0000000000000009",
    ),
    "offset 1": (
        offset_record(KEY, OffsetCommitValue(7, -1, "md", 9, 10)),
        KEY_BYTES,
        "0001 0000000000000007 0002 6d64 0000000000000009 000000000000000a",
    ),
    "offset 2": (
        offset_record(KEY, OffsetCommitValue(7, -1, "md", 9)),
        KEY_BYTES,
        "0002 0000000000000007 0002 6d64 0000000000000009",
    ),
    "offset 4 without an id": (
        offset_record(KEY, OffsetCommitValue(7, 3, "md", 9)),
        KEY_BYTES,
        "0004 0000000000000007 00000003 03 6d64 0000000000000009 00",
    ),
    "group 0": (
        group_record("g", {**GROUP, "current_state_timestamp": -1, "members": [OLDER_MEMBER]}),
        GROUP_BYTES,
        "0000 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d"
        "00000001 0001 6d 0001 63 0002 2f68 00002710 00000002 0102 00000001 03",
    ),
    "group 1": (
        group_record("g", {**OLD_GROUP, "current_state_timestamp": -1}),
        GROUP_BYTES,
        "0001 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d"
        "00000001 0001 6d 0001 63 0002 2f68 0000ea60 00002710 00000002 0102 00000001 03",
    ),
    "group 2": (
        group_record("g", OLD_GROUP),
        GROUP_BYTES,
        "0002 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d 0000018bcfe56800"
        "00000001 0001 6d 0001 63 0002 2f68 0000ea60 00002710 00000002 0102 00000001 03",
    ),
    "group 4": (
        group_record("g", GROUP),
        GROUP_BYTES,
        "0004 09 636f6e73756d6572 00000005 06 72616e6765 02 6d 0000018bcfe56800"
        "02 02 6d 02 69 02 63 03 2f68 0000ea60 00002710 03 0102 02 03 00 00",
    ),
}
"""Records in Kafka's older and newer versions."""


def bytes_of(text):
    return None if text is None else bytes.fromhex(text)


@pytest.mark.parametrize("name", WRITTEN)
def test_group_record_is_written_as_kafka_does(name):
    record, key, value = WRITTEN[name]
    assert group_records.write(record) == (bytes_of(key), bytes_of(value))


@pytest.mark.parametrize("name", [*WRITTEN, *READ])
def test_group_record_of_any_kafka_version_is_read(name):
    record, key, value = (WRITTEN | READ)[name]
    assert group_records.read(bytes_of(key), bytes_of(value)) == record


TEXTS = st.text(max_size=20)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
OFFSETS = st.one_of(
    st.builds(
        OffsetCommitValue, LONGS, INTS, TEXTS, LONGS, st.just(-1), st.sampled_from([NO_ID, ID])
    ),
    st.builds(OffsetCommitValue, LONGS, st.just(-1), TEXTS, LONGS, LONGS, st.just(NO_ID)),
)


@given(st.builds(OffsetKey, TEXTS, TEXTS, INTS), OFFSETS)
def test_offset_commit_record_equals_its_schema(key, offset):
    key_bytes, value = group_records.write(offset_record(key, offset))
    assert group_records.read(key_bytes, value) == offset_record(key, offset)
    assert key_bytes == b"\x00\x01" + OFFSET_COMMIT_KEY.write(1, key._asdict())
    version = int.from_bytes(value[:2], "big")
    assert version == (1 if offset.expire_timestamp != -1 else 4 if offset.topic_id != NO_ID else 3)
    assert value[2:] == OFFSET_COMMIT_VALUE.write(version, offset._asdict())
    assert OFFSET_COMMIT_VALUE.read(version, value, 2) == offset._asdict()


@given(TEXTS)
def test_group_metadata_key_equals_its_schema(group_id):
    key, _ = group_records.write(group_record(group_id, None))
    assert key == b"\x00\x02" + GROUP_METADATA_KEY.write(2, {"group": group_id})
    assert GROUP_METADATA_KEY.read(2, key, 2) == {"group": group_id}


@pytest.mark.parametrize("kind", [9, *range(17, 24), 30_000, -1])
def test_record_of_another_kind_is_ignored(kind):
    assert group_records.read(kind.to_bytes(2, "big", signed=True) + b"rest", b"value") is None


@pytest.mark.parametrize("name", [*WRITTEN, *READ])
def test_truncated_or_extended_key_is_corrupt(name):
    _, key, value = (WRITTEN | READ)[name]
    whole = bytes_of(key)
    for part in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(CorruptMessage):
            group_records.read(part, bytes_of(value))


@pytest.mark.parametrize("name", [*WRITTEN, *READ])
def test_truncated_value_is_corrupt(name):
    _, key, value = (WRITTEN | READ)[name]
    whole = bytes_of(value) or b""
    for size in range(len(whole)):
        with pytest.raises(CorruptMessage):
            group_records.read(bytes_of(key), whole[:size])


@pytest.mark.parametrize("version", [5, 100, -1])
def test_value_of_unknown_version_is_corrupt(version):
    value = version.to_bytes(2, "big", signed=True) + bytes(100)
    for key in (KEY_BYTES, GROUP_BYTES):
        with pytest.raises(CorruptMessage):
            group_records.read(bytes_of(key), value)


@pytest.mark.parametrize("name", [*WRITTEN, *READ])
def test_changed_bytes_are_a_record_or_corrupt(name):
    dice = random.Random(name)
    _, key, value = (WRITTEN | READ)[name]
    for _ in range(300):
        changed = [bytearray(bytes_of(key)), bytearray(bytes_of(value) or b"\0\3")]
        which = dice.choice(changed)
        which[dice.randrange(len(which))] = dice.randrange(256)
        try:
            record = group_records.read(*map(bytes, changed))
        except CorruptMessage:
            continue
        if record is not None:
            assert group_records.read(*group_records.write(record)) == record


def test_subscribed_topics_are_read_from_any_version():
    named = bytes.fromhex("00000002 0001 74 0001 75")
    for version in range(5):
        assert subscribed_topics(version.to_bytes(2, "big") + named + b"more") == {"t", "u"}
    assert subscribed_topics(bytes(6)) == set()


@pytest.mark.parametrize(
    "metadata", ["", "00", "0000", "ffff 00000000", "0000 ffffffff", "0000 7fffffff 0001",
                 "0000 00000001 0005 61", "0000 00000001 0001 ff", "0000 00000001 ffff"],
)  # fmt: skip
def test_invalid_subscription_has_no_topics(metadata):
    assert subscribed_topics(bytes_of(metadata)) is None
