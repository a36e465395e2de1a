"""Records of consumer groups in `__consumer_offsets`: Kafka's bytes, and invalid ones."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups.consumer.consumer_member import MemberSubscription
from kafkalite.errors import CorruptMessage
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.consumer_group_records import (
    CONSUMER_FORMATS,
    CONSUMER_GROUP,
    CONSUMER_MEMBER,
    CURRENT_ASSIGNMENT,
    PARTITION_METADATA,
    TARGET_MEMBER,
    TARGET_METADATA,
    TOPIC_PATTERN,
    GroupMemberKey,
)
from kafkalite.protocol.schemas.group_records import GroupRecord

ID = bytes(range(16))
GROUP, MEMBER = "0001 67", "0001 67 0001 6d"
KEY = GroupMemberKey("g", "m")
PARTITION = {"topic_id": ID, "partitions": [1]}
MEMBER_VALUE = {
    "instance_id": None,
    "rack_id": "r",
    "client_id": "c",
    "client_host": "/h",
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": "",
    "rebalance_timeout_ms": 45_000,
    "server_assignor": None,
    "classic_member_metadata": None,
}
MEMBER_BYTES = "0000 00 02 72 02 63 03 2f68 02 02 74 01 0000afc8 00"
CLASSIC = {
    "session_timeout_ms": 6_000,
    "supported_protocols": [{"name": "range", "metadata": b"\x01"}],
}

WRITTEN = {
    "group": (
        GroupRecord(CONSUMER_GROUP, "g", {"epoch": 5, "metadata_hash": 0}),
        f"0003 {GROUP}",
        "0000 00000005 00",
    ),
    "group with a hash": (
        GroupRecord(CONSUMER_GROUP, "g", {"epoch": 5, "metadata_hash": -2}),
        f"0003 {GROUP}",
        "0000 00000005 01 00 08 fffffffffffffffe",
    ),
    "topics": (GroupRecord(PARTITION_METADATA, "g", None), f"0004 {GROUP}", None),
    "member": (
        GroupRecord(CONSUMER_MEMBER, KEY, MEMBER_VALUE),
        f"0005 {MEMBER}",
        f"{MEMBER_BYTES} 01 00 01 00",
    ),
    "classic member": (
        GroupRecord(CONSUMER_MEMBER, KEY, {**MEMBER_VALUE, "classic_member_metadata": CLASSIC}),
        f"0005 {MEMBER}",
        f"{MEMBER_BYTES} 01 00 10 01 00001770 02 06 72616e6765 02 01 00 00",
    ),
    "target": (
        GroupRecord(TARGET_METADATA, "g", {"assignment_epoch": 5, "assignment_timestamp": 0}),
        f"0006 {GROUP}",
        "0000 00000005 00",
    ),
    "target with its time": (
        GroupRecord(TARGET_METADATA, "g", {"assignment_epoch": 5, "assignment_timestamp": 9}),
        f"0006 {GROUP}",
        "0000 00000005 01 00 08 0000000000000009",
    ),
    "target of a member": (
        GroupRecord(TARGET_MEMBER, KEY, {"topic_partitions": [PARTITION]}),
        f"0007 {MEMBER}",
        f"0000 02 {ID.hex()} 02 00000001 00 00",
    ),
    "current assignment": (
        GroupRecord(
            CURRENT_ASSIGNMENT,
            KEY,
            {
                "member_epoch": 5,
                "previous_member_epoch": 4,
                "state": 1,
                "assigned_partitions": [{**PARTITION, "assignment_epochs": [3]}],
                "partitions_pending_revocation": [{**PARTITION, "assignment_epochs": None}],
            },
        ),
        f"0008 {MEMBER}",
        f"0000 00000005 00000004 01 02 {ID.hex()} 02 00000001 01 00 05 02 00000003"
        f"02 {ID.hex()} 02 00000001 00 00",
    ),
    "pattern": (
        GroupRecord(TOPIC_PATTERN, KEY, {"topics": ["t"], "version": 8, "timestamp": 9}),
        f"0010 {MEMBER}",
        "0000 02 02 74 0000000000000008 0000000000000009 00",
    ),
    "deleted member": (GroupRecord(CONSUMER_MEMBER, KEY, None), f"0005 {MEMBER}", None),
}
"""Each kind as Kafka writes it."""


def bytes_of(text):
    return None if text is None else bytes.fromhex(text)


def test_examples_cover_every_kind():
    assert {record.kind for record, _, _ in WRITTEN.values()} == {
        form.kind for form in CONSUMER_FORMATS
    }


@pytest.mark.parametrize("name", WRITTEN)
def test_record_is_written_and_read_as_kafka_does(name):
    record, key, value = WRITTEN[name]
    assert group_records.write(record) == (bytes_of(key), bytes_of(value))
    assert group_records.read(bytes_of(key), bytes_of(value)) == record
    assert record.group_id == "g"


def test_member_without_protocols_is_not_classic():
    """An absent field is an empty struct."""
    record = group_records.read(bytes_of(f"0005 {MEMBER}"), bytes_of(f"{MEMBER_BYTES} 00"))
    assert MemberSubscription.from_record(record.value).classic is None


def test_topics_that_an_older_kafka_wrote_are_read():
    value = f"0000 02 {ID.hex()} 02 74 00000001 02 00000000 02 02 72 00 00 00"
    record = group_records.read(bytes_of(f"0004 {GROUP}"), bytes_of(value))
    assert record is not None
    assert record.value["topics"][0]["topic_name"] == "t"


@pytest.mark.parametrize("name", WRITTEN)
def test_truncated_or_extended_record_is_corrupt(name):
    _, key, value = WRITTEN[name]
    whole = bytes_of(key)
    for part in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(CorruptMessage):
            group_records.read(part, bytes_of(value))
    content = bytes_of(value) or b""
    for size in range(len(content)):
        with pytest.raises(CorruptMessage):
            group_records.read(whole, content[:size])


def test_record_of_an_unknown_version_is_corrupt():
    with pytest.raises(CorruptMessage):
        group_records.read(bytes_of(f"0003 {GROUP}"), b"\0\1" + bytes(5))
