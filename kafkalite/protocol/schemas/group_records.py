"""Records of `__consumer_offsets`, in Kafka's own formats: groups and their committed offsets.

    key      2 bytes kind, then the group, or group and partition
    value    2 bytes version, then the fields; null: a tombstone

    OFFSET_COMMIT     key 0-1   group, topic, partition        value 0-4   we write 3; 1 and 4 below
    GROUP_METADATA    key 2     group                          value 0-4   we write 3
    key 3-8 and 16: consumer_group_records.py; key 10-15: share_group_records.py

Kafka reads what is written here, and every version that Kafka wrote can be read.  Offsets are
committed so often that their bytes are packed by hand; tests compare these with the schemas.  An
offset with an expiry of its own is written in version 1, the only one that has that field (and no
leader epoch), and one with a known topic id in version 4.

Left out: the kinds of streams groups, which are skipped when read.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Packing
from struct import error as Unpackable
from typing import Any, NamedTuple

from kafkalite.errors import CorruptMessage, InvalidRequest
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import RESPONSE_UNITS_MAX, MessageSchema
from kafkalite.protocol.schemas.consumer_group_records import (
    CONSUMER_FORMATS,
    GroupMemberKey,
    GroupRecordFormat,
)
from kafkalite.protocol.schemas.share_group_records import SHARE_FORMATS
from kafkalite.protocol.types import Array, Bytes, Int32, Int64, String, Struct, Uuid

OFFSET_COMMIT = "OffsetCommit"
GROUP_METADATA = "GroupMetadata"

NO_TIME = -1
NO_EPOCH = -1


class OffsetKey(NamedTuple):
    """Group, topic and partition of a committed offset."""

    group: str
    topic: str
    partition: int


class OffsetCommitValue(NamedTuple):
    """A committed offset: the next offset that the group will read."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIME  # only if an old client requested it
    topic_id: bytes = NO_ID


class GroupRecord(NamedTuple):
    """One record: a group id, OffsetKey or GroupMemberKey, with its value; None: deleted."""

    kind: str
    key: Any
    value: Any

    @property
    def group_id(self) -> str:
        """The group that the record belongs to."""
        key = self.key
        return key if isinstance(key, str) else str(key.group)


def offset_record(key: OffsetKey, value: OffsetCommitValue | None) -> GroupRecord:
    return GroupRecord(OFFSET_COMMIT, key, value)


def group_record(group_id: str, value: dict[str, Any] | None) -> GroupRecord:
    """Return the record of a group; `value` has the fields of GROUP_METADATA_VALUE."""
    return GroupRecord(GROUP_METADATA, group_id, value)


# -- the formats ---------------------------------------------------------------------------------

OFFSET_COMMIT_KEY = MessageSchema(
    "key of a committed offset",
    Struct(group=String(), topic=String(), partition=Int32()),
    versions="0-1",
)
OFFSET_COMMIT_VALUE = MessageSchema(
    "committed offset",
    Struct(
        offset=Int64(),
        leader_epoch=Int32("3+", default=NO_EPOCH),
        metadata=String(),
        commit_timestamp=Int64(),
        expire_timestamp=Int64("1", default=NO_TIME),
        topic_id=Uuid("4+", tag=0),
    ),
    versions="0-4",
    flexible="4+",
)
GROUP_METADATA_KEY = MessageSchema("key of a group", Struct(group=String()), versions="2")
GROUP_METADATA_VALUE = MessageSchema(
    "group",
    Struct(
        protocol_type=String(),
        generation=Int32(),
        protocol=String(nullable="0+"),
        leader=String(nullable="0+"),
        current_state_timestamp=Int64("2+", default=NO_TIME),
        members=Array(Struct(
            member_id=String(),
            group_instance_id=String("3+", nullable="3+", default=None),
            client_id=String(),
            client_host=String(),
            rebalance_timeout=Int32("1+", default=-1),
            session_timeout=Int32(),
            subscription=Bytes(),
            assignment=Bytes(),
        )),
    ),
    versions="0-4",
    flexible="4+",
    units_max=RESPONSE_UNITS_MAX,
)  # fmt: skip
GROUP_METADATA_VERSION = 3

FORMATS = (*CONSUMER_FORMATS, *SHARE_FORMATS)
FORMATS_BY_KIND = {form.kind: form for form in FORMATS}
FORMATS_BY_NUMBER = {form.number: form for form in FORMATS}

SHORT = Packing(">h")
VALUE_VERSION = SHORT.pack(0)
"""Version of the values of FORMATS."""
OFFSET_KEY_VERSION = SHORT.pack(1)
GROUP_KEY_VERSION = SHORT.pack(2)
PARTITION = Packing(">i")
BEFORE_METADATA = Packing(">hqih")  # version 3: version, offset, leader epoch, size of the metadata
BEFORE_METADATA_NEW = Packing(">hqiB")  # version 4: the same, but size plus one in a single byte
SHORT_TEXT_MAX = 126
BEFORE_TOPIC_ID = Packing(">qBBB")  # version 4: commit timestamp; one tag, number 0, 16 bytes
TOPIC_ID_TAG = (1, 0, 16)
BEFORE_METADATA_OLD = Packing(">hqh")  # version 1: without the epoch
TIMESTAMP = Packing(">q")
TIMESTAMPS = Packing(">qq")


# -- writing -------------------------------------------------------------------------------------


def write(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record; None as value is a tombstone."""
    if record.kind is OFFSET_COMMIT:
        group, topic, partition = record.key
        group_bytes, topic_bytes = group.encode(), topic.encode()
        key = b"".join((
            OFFSET_KEY_VERSION,
            SHORT.pack(len(group_bytes)),
            group_bytes,
            SHORT.pack(len(topic_bytes)),
            topic_bytes,
            PARTITION.pack(partition),
        ))  # fmt: skip
        return key, None if record.value is None else _offset_bytes(record.value)
    if record.kind is not GROUP_METADATA:
        return _write_format(FORMATS_BY_KIND[record.kind], record)
    group_bytes = record.key.encode()
    key = GROUP_KEY_VERSION + SHORT.pack(len(group_bytes)) + group_bytes
    if record.value is None:
        return key, None
    version = GROUP_METADATA_VERSION
    return key, SHORT.pack(version) + GROUP_METADATA_VALUE.write(version, record.value)


def _write_format(form: GroupRecordFormat, record: GroupRecord) -> tuple[bytes, bytes | None]:
    if form.has_name:
        group_id, name = record.key
        name_bytes = name.encode()
        key = _key_of_group(form.number, group_id) + SHORT.pack(len(name_bytes)) + name_bytes
    else:
        key = _key_of_group(form.number, record.key)
    value = None if record.value is None else VALUE_VERSION + form.value.write(0, record.value)
    return key, value


@lru_cache(maxsize=100)  # the records of a group's members follow each other
def _key_of_group(number: int, group_id: str) -> bytes:
    """Return the key of a record of a kind, up to the group id."""
    group_bytes = group_id.encode()
    return SHORT.pack(number) + SHORT.pack(len(group_bytes)) + group_bytes


def _offset_bytes(value: OffsetCommitValue) -> bytes:
    if value.expire_timestamp != NO_TIME:
        metadata = value.metadata.encode()
        return (
            BEFORE_METADATA_OLD.pack(1, value.offset, len(metadata))
            + metadata
            + TIMESTAMPS.pack(value.commit_timestamp, value.expire_timestamp)
        )
    metadata = value.metadata.encode()
    if value.topic_id != NO_ID:
        if len(metadata) > SHORT_TEXT_MAX:
            return SHORT.pack(4) + OFFSET_COMMIT_VALUE.write(4, value._asdict())
        return (
            BEFORE_METADATA_NEW.pack(4, value.offset, value.leader_epoch, len(metadata) + 1)
            + metadata
            + BEFORE_TOPIC_ID.pack(value.commit_timestamp, *TOPIC_ID_TAG)
            + value.topic_id
        )
    return (
        BEFORE_METADATA.pack(3, value.offset, value.leader_epoch, len(metadata))
        + metadata
        + TIMESTAMP.pack(value.commit_timestamp)
    )


# -- reading -------------------------------------------------------------------------------------


def read(key: bytes, value: bytes | None) -> GroupRecord | None:
    """Decode a record; return None if its kind is unknown."""
    try:
        (version,) = SHORT.unpack_from(key)
        if version in (0, 1):
            offset = None if value is None else _offset(value)
            return GroupRecord(OFFSET_COMMIT, _offset_key(key), offset)
        if version == 2:
            group_id = _group_id(key)
            fields = None if value is None else _versioned(GROUP_METADATA_VALUE, value)
            return GroupRecord(GROUP_METADATA, group_id, fields)
        form = FORMATS_BY_NUMBER.get(version)
        if form is not None:
            fields = None if value is None else _versioned(form.value, value)
            return GroupRecord(form.kind, _format_key(form, key), fields)
    except (Unpackable, UnicodeDecodeError):
        raise CorruptMessage(
            "A record of a group is too short, or its text is not valid UTF-8."
        ) from None
    return None


def _offset_key(key: bytes) -> OffsetKey:
    (partition,) = PARTITION.unpack_from(key, max(SHORT.size, len(key) - PARTITION.size))
    return OffsetKey(*_group_and_name(key[SHORT.size : -PARTITION.size]), partition)


@lru_cache(maxsize=1_000)  # partitions of one topic follow each other
def _group_and_name(names: bytes) -> tuple[str, str]:
    (size,) = SHORT.unpack_from(names)
    group_end = SHORT.size + size
    (name_size,) = SHORT.unpack_from(names, max(0, group_end))
    name_begin = group_end + SHORT.size
    if size < 0 or name_size < 0 or name_begin + name_size != len(names):
        raise CorruptMessage("The key of a group's record has a wrong length.")
    return names[SHORT.size : group_end].decode(), names[name_begin:].decode()


def _group_id(key: bytes) -> str:
    (size,) = SHORT.unpack_from(key, 2)
    if size < 0 or 4 + size != len(key):
        raise CorruptMessage("The key of a group has a wrong length.")
    return key[4:].decode()


def _format_key(form: GroupRecordFormat, key: bytes) -> str | GroupMemberKey:
    if not form.has_name:
        return _group_id(key)
    return GroupMemberKey(*_group_and_name(key[SHORT.size :]))


def _offset(value: bytes) -> OffsetCommitValue:
    if value[:2] == b"\x00\x03":
        _, offset, leader_epoch, size = BEFORE_METADATA.unpack_from(value)
        end = BEFORE_METADATA.size + size
        if size < 0 or end + TIMESTAMP.size != len(value):
            raise CorruptMessage("A committed offset has a wrong length.")
        (timestamp,) = TIMESTAMP.unpack_from(value, end)
        metadata = value[BEFORE_METADATA.size : end].decode()
        return OffsetCommitValue(offset, leader_epoch, metadata, timestamp)
    if value[:2] == b"\x00\x04":
        _, offset, leader_epoch, size = BEFORE_METADATA_NEW.unpack_from(value)
        end = BEFORE_METADATA_NEW.size + size - 1
        topic_id_at = end + BEFORE_TOPIC_ID.size
        # Other content, such as longer metadata or other tags, is decoded by the schema.
        if 0 < size <= SHORT_TEXT_MAX + 1 and topic_id_at + len(NO_ID) == len(value):
            timestamp, *tag = BEFORE_TOPIC_ID.unpack_from(value, end)
            if tag == [*TOPIC_ID_TAG]:
                metadata = value[BEFORE_METADATA_NEW.size : end].decode()
                return OffsetCommitValue(
                    offset, leader_epoch, metadata, timestamp, NO_TIME, value[topic_id_at:]
                )
    return OffsetCommitValue(**_versioned(OFFSET_COMMIT_VALUE, value))


def _versioned(message: MessageSchema, value: bytes) -> dict[str, Any]:
    (version,) = SHORT.unpack_from(value)
    if version not in message.versions:
        raise CorruptMessage(f"Unknown version {version} of the {message.name}.")
    return _whole(message, version, value)


def _whole(message: MessageSchema, version: int, content: bytes) -> dict[str, Any]:
    try:
        return message.read(version, content, SHORT.size)
    except InvalidRequest as error:
        raise CorruptMessage(str(error)) from None
