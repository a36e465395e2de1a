"""Records of share groups in __consumer_offsets: Kafka's bytes, and invalid ones."""

from __future__ import annotations

import pytest

from kafkalite.errors import CorruptMessage
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.consumer_group_records import GroupMemberKey
from kafkalite.protocol.schemas.group_records import GroupRecord
from kafkalite.protocol.schemas.share_group_records import (
    SHARE_CURRENT,
    SHARE_GROUP,
    SHARE_KINDS,
    SHARE_MEMBER,
    SHARE_PARTITIONS,
    SHARE_TARGET_MEMBER,
    SHARE_TARGET_METADATA,
)

ID = bytes(range(16))
MEMBER = GroupMemberKey("g", "m")
PARTITIONS = {"topic_id": ID, "partitions": [3]}
NAMED = {"topic_id": ID, "topic_name": "t", "partitions": [3]}
WRITTEN = [
    (
        GroupRecord(SHARE_MEMBER, MEMBER, {
            "rack_id": None, "client_id": "c", "client_host": "/h", "subscribed_topic_names": ["t"],
        }),
        "000a 0001 67 0001 6d", "0000 00 02 63 03 2f68 02 02 74 00",
    ),
    (
        GroupRecord(SHARE_GROUP, "g", {"epoch": 2, "metadata_hash": 7}),
        "000b 0001 67", "0000 00000002 0000000000000007 00",
    ),
    (
        GroupRecord(SHARE_TARGET_METADATA, "g", {
            "assignment_epoch": 2, "assignment_timestamp": 9,
        }),
        "000c 0001 67", "0000 00000002 01 00 08 0000000000000009",
    ),
    (
        GroupRecord(SHARE_TARGET_MEMBER, MEMBER, {"topic_partitions": [PARTITIONS]}),
        "000d 0001 67 0001 6d", f"0000 02 {ID.hex()} 02 00000003 00 00",
    ),
    (
        GroupRecord(SHARE_CURRENT, MEMBER, {
            "member_epoch": 2, "previous_member_epoch": 1, "state": 0,
            "assigned_partitions": [PARTITIONS],
        }),
        "000e 0001 67 0001 6d", f"0000 00000002 00000001 00 02 {ID.hex()} 02 00000003 00 00",
    ),
    (
        GroupRecord(SHARE_PARTITIONS, "g", {
            "initializing_topics": [], "initialized_topics": [NAMED],
            "deleting_topics": [{"topic_id": ID, "topic_name": "t"}],
        }),
        "000f 0001 67",
        f"0000 01 02 {ID.hex()} 02 74 02 00000003 00 02 {ID.hex()} 02 74 00 00",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), WRITTEN, ids=lambda each: str(each)[:20])
def test_record_has_the_bytes_of_kafka(record, key, value):
    key_bytes, value_bytes = group_records.write(record)
    assert (key_bytes, value_bytes) == (bytes.fromhex(key), bytes.fromhex(value))
    assert group_records.read(key_bytes, value_bytes) == record
    assert group_records.read(key_bytes, None) == record._replace(value=None)
    with pytest.raises(CorruptMessage):
        group_records.read(key_bytes, value_bytes[:-1])


def test_every_kind_has_an_example():
    assert {record.kind for record, _, _ in WRITTEN} == SHARE_KINDS
