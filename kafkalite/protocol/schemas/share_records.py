"""Records of `__share_group_state`, in Kafka's own format: the state of share partitions.

    key      2 bytes kind, then group, topic id and partition
    value    2 bytes version 0, then the fields; null: the state was deleted

    SHARE_SNAPSHOT   kind 0   the whole state of a share partition
    SHARE_UPDATE     kind 1   what has changed since the snapshot before it, or the last update

A state is its last snapshot and all updates after it, so the topic is not compacted.

Source: the schemas of the share coordinator of Apache Kafka; KIP-932, KIP-1191, KIP-1226.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct as Packing
from struct import error as Unpackable
from typing import Any, NamedTuple

from kafkalite.errors import CorruptMessage, InvalidRequest
from kafkalite.ids import read_id, written_id
from kafkalite.protocol.schema import RESPONSE_UNITS_MAX, MessageSchema
from kafkalite.protocol.types import Array, Int8, Int16, Int32, Int64, String, Struct, Uuid

NO_OFFSET = -1
NO_COUNT = -1
NO_EPOCH = 0
"""The leader epoch before a leader has read the state."""


class DeliveryState(IntEnum):
    """The state of a record in a share group; the number is its id in requests and records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Will not be delivered again; its dead letter is not written yet."""
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """Consecutive offsets, both bounds included, with the same state and delivery count."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class SharePartitionKey(NamedTuple):
    """A partition of a topic in a share group."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key by which FindCoordinator and the coordinator's topic know it."""
        return f"{self.group_id}:{written_id(self.topic_id)}:{self.partition}"

    @classmethod
    def of_text(cls, text: str) -> SharePartitionKey | None:
        """Return the share partition of a coordinator's key, or None if it has another form."""
        try:
            group_id, topic_id, partition = text.rsplit(":", 2)
            key = cls(group_id, read_id(topic_id), int(partition))
        except ValueError:
            return None
        return key if group_id and key.partition >= 0 else None


class ShareSnapshot(NamedTuple):
    """The whole state of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp: int
    write_timestamp: int
    state_batches: Sequence[StateBatch] = ()


class ShareUpdate(NamedTuple):
    """A change of the state of a share partition."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    """NO_OFFSET: as before."""
    delivery_complete_count: int
    state_batches: Sequence[StateBatch] = ()


class ShareStateRecord(NamedTuple):
    """One record; None: the state was deleted."""

    key: SharePartitionKey
    value: ShareSnapshot | ShareUpdate | None


STATE_BATCHES = Array(
    Struct(
        first_offset=Int64(),
        last_offset=Int64(),
        delivery_state=Int8(),
        delivery_count=Int16(),
    )
)
KEY = MessageSchema(
    "key of a share partition",
    Struct(group_id=String(), topic_id=Uuid(), partition=Int32()),
    versions="0-1",
)
SNAPSHOT = MessageSchema(
    "snapshot of a share partition",
    Struct(
        snapshot_epoch=Int32(),
        state_epoch=Int32(),
        leader_epoch=Int32(),
        start_offset=Int64(),
        delivery_complete_count=Int32(tag=0, default=NO_COUNT),
        create_timestamp=Int64(),
        write_timestamp=Int64(),
        state_batches=STATE_BATCHES,
    ),
    versions="0",
    flexible="0+",
    units_max=RESPONSE_UNITS_MAX,
)
UPDATE = MessageSchema(
    "update of a share partition",
    Struct(
        snapshot_epoch=Int32(),
        leader_epoch=Int32(),
        start_offset=Int64(),
        delivery_complete_count=Int32(tag=0, default=NO_COUNT),
        state_batches=STATE_BATCHES,
    ),
    versions="0",
    flexible="0+",
    units_max=RESPONSE_UNITS_MAX,
)

SHORT = Packing(">h")
SNAPSHOT_KIND, UPDATE_KIND = 0, 1
VALUE_VERSION = 0


def write(record: ShareStateRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record; None as value is a tombstone."""
    value = record.value
    kind = UPDATE_KIND if isinstance(value, ShareUpdate) else SNAPSHOT_KIND
    key = SHORT.pack(kind) + KEY.write(kind, record.key._asdict())
    if value is None:
        return key, None
    message = UPDATE if isinstance(value, ShareUpdate) else SNAPSHOT
    fields = value._asdict()
    fields["state_batches"] = [batch._asdict() for batch in value.state_batches]
    return key, SHORT.pack(VALUE_VERSION) + message.write(VALUE_VERSION, fields)


def read(key: bytes, value: bytes | None) -> ShareStateRecord | None:
    """Decode a record; return None if its kind is unknown.

    Raises:
        CorruptMessage: The bytes are not a record of their kind.
    """
    kind = _number(key)
    if kind not in (SNAPSHOT_KIND, UPDATE_KIND):
        return None
    partition = SharePartitionKey(**_fields(KEY, kind, key))
    if value is None:
        return ShareStateRecord(partition, None)
    version = _number(value)
    if version != VALUE_VERSION:
        raise CorruptMessage(f"Unknown version {version} of a record of a share partition.")
    if kind == UPDATE_KIND:
        return ShareStateRecord(partition, ShareUpdate(**_state(UPDATE, value)))
    return ShareStateRecord(partition, ShareSnapshot(**_state(SNAPSHOT, value)))


def _state(message: MessageSchema, value: bytes) -> dict[str, Any]:
    fields = _fields(message, VALUE_VERSION, value)
    batches = tuple(StateBatch(**each) for each in fields["state_batches"])
    for batch in batches:
        if not 0 <= batch.first_offset <= batch.last_offset:
            raise CorruptMessage(f"A state batch has the offsets {batch[:2]}.")
        if batch.delivery_state not in DeliveryState.__members__.values():
            raise CorruptMessage(f"Unknown delivery state {batch.delivery_state}.")
    return {**fields, "state_batches": batches}


def _number(content: bytes) -> int:
    try:
        return int(SHORT.unpack_from(content)[0])
    except Unpackable:
        raise CorruptMessage("A record of a share partition is too short.") from None


def _fields(message: MessageSchema, version: int, content: bytes) -> dict[str, Any]:
    try:
        return message.read(version, content, SHORT.size)
    except InvalidRequest as error:
        raise CorruptMessage(str(error)) from None
