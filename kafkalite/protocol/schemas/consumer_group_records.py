"""Records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own formats.

    key      2 bytes kind, then the group id, and the member id or the expression
    value    2 bytes version 0, then the fields; null: a tombstone

    CONSUMER_GROUP           key 3     group             epoch, hash of the topics' metadata
    PARTITION_METADATA       key 4     group             not written since Kafka 4.1; only deleted
    CONSUMER_MEMBER          key 5     group, member     what the member sent about itself
    TARGET_METADATA          key 6     group             the group epoch of the target assignment
    TARGET_MEMBER            key 7     group, member     the member's target assignment
    CURRENT_ASSIGNMENT       key 8     group, member     the member's epoch, state and partitions
    TOPIC_PATTERN            key 16    group, pattern    the topics that an expression matches
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.protocol.schema import RESPONSE_UNITS_MAX, MessageSchema
from kafkalite.protocol.types import Array, Bytes, Int8, Int32, Int64, String, Struct, Uuid

CONSUMER_GROUP = "ConsumerGroupMetadata"
PARTITION_METADATA = "ConsumerGroupPartitionMetadata"
CONSUMER_MEMBER = "ConsumerGroupMemberMetadata"
TARGET_METADATA = "ConsumerGroupTargetAssignmentMetadata"
TARGET_MEMBER = "ConsumerGroupTargetAssignmentMember"
CURRENT_ASSIGNMENT = "ConsumerGroupCurrentMemberAssignment"
TOPIC_PATTERN = "ConsumerGroupRegularExpression"


class GroupMemberKey(NamedTuple):
    """The key of a record of a part of a group: of a member, or of a regular expression."""

    group: str
    name: str


class GroupRecordFormat(NamedTuple):
    """The format of one kind of record."""

    kind: str
    number: int
    has_name: bool
    """True if the key is a GroupMemberKey, not a group id alone."""
    value: MessageSchema


def value_schema(name: str, struct: Struct) -> MessageSchema:
    """Return the schema of a value; coordinators write them, so they can be large."""
    return MessageSchema(
        name, struct, versions="0", flexible="0+", units_max=RESPONSE_UNITS_MAX
    )  # fmt: skip


CURRENT_PARTITIONS = Struct(
    topic_id=Uuid(),
    partitions=Array(Int32()),
    assignment_epochs=Array(Int32(), nullable="0+", tag=0, default=None),
)

CONSUMER_FORMATS = (
    GroupRecordFormat(CONSUMER_GROUP, 3, False, value_schema(
        "consumer group",
        Struct(epoch=Int32(), metadata_hash=Int64(tag=0)),
    )),
    GroupRecordFormat(PARTITION_METADATA, 4, False, value_schema(
        "topics of a consumer group",
        Struct(topics=Array(Struct(
            topic_id=Uuid(),
            topic_name=String(),
            num_partitions=Int32(),
            partition_metadata=Array(Struct(partition=Int32(), racks=Array(String()))),
        ))),
    )),
    GroupRecordFormat(CONSUMER_MEMBER, 5, True, value_schema(
        "member of a consumer group",
        Struct(
            instance_id=String(nullable="0+"),
            rack_id=String(nullable="0+"),
            client_id=String(),
            client_host=String(),
            subscribed_topic_names=Array(String()),
            subscribed_topic_regex=String(nullable="0+"),
            rebalance_timeout_ms=Int32(default=-1),
            server_assignor=String(nullable="0+"),
            # Null is written, because its absence is an empty struct.
            classic_member_metadata=Struct(
                nullable="0+", tag=0,
                session_timeout_ms=Int32(),
                supported_protocols=Array(Struct(name=String(), metadata=Bytes())),
            ),
        ),
    )),
    GroupRecordFormat(TARGET_METADATA, 6, False, value_schema(
        "target assignment",
        Struct(assignment_epoch=Int32(), assignment_timestamp=Int64(tag=0)),
    )),
    GroupRecordFormat(TARGET_MEMBER, 7, True, value_schema(
        "target assignment of a member",
        Struct(topic_partitions=Array(Struct(topic_id=Uuid(), partitions=Array(Int32())))),
    )),
    GroupRecordFormat(CURRENT_ASSIGNMENT, 8, True, value_schema(
        "current assignment of a member",
        Struct(
            member_epoch=Int32(),
            previous_member_epoch=Int32(),
            state=Int8(),
            assigned_partitions=Array(CURRENT_PARTITIONS),
            partitions_pending_revocation=Array(CURRENT_PARTITIONS),
        ),
    )),
    GroupRecordFormat(TOPIC_PATTERN, 16, True, value_schema(
        "topics of a regular expression",
        Struct(topics=Array(String()), version=Int64(), timestamp=Int64()),
    )),
)  # fmt: skip
