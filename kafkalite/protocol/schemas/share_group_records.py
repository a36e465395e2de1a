"""Records of share groups (KIP-932) in `__consumer_offsets`, in Kafka's own formats.

SHARE_MEMBER             key 10    group, member     what the member sent about itself
SHARE_GROUP              key 11    group             epoch, hash of the topics' metadata
SHARE_TARGET_METADATA    key 12    group             the group epoch of the target assignment
SHARE_TARGET_MEMBER      key 13    group, member     the member's target assignment
SHARE_CURRENT            key 14    group, member     the member's epoch and partitions
SHARE_PARTITIONS         key 15    group             partitions by the progress of their states
"""

from __future__ import annotations

from kafkalite.protocol.schemas.consumer_group_records import GroupRecordFormat, value_schema
from kafkalite.protocol.types import Array, Int8, Int32, Int64, String, Struct, Uuid

SHARE_MEMBER = "ShareGroupMemberMetadata"
SHARE_GROUP = "ShareGroupMetadata"
SHARE_TARGET_METADATA = "ShareGroupTargetAssignmentMetadata"
SHARE_TARGET_MEMBER = "ShareGroupTargetAssignmentMember"
SHARE_CURRENT = "ShareGroupCurrentMemberAssignment"
SHARE_PARTITIONS = "ShareGroupStatePartitionMetadata"

TOPIC_PARTITIONS = Array(Struct(topic_id=Uuid(), partitions=Array(Int32())))
NAMED_PARTITIONS = Array(Struct(topic_id=Uuid(), topic_name=String(), partitions=Array(Int32())))

SHARE_FORMATS = (
    GroupRecordFormat(SHARE_MEMBER, 10, True, value_schema(
        "member of a share group",
        Struct(
            rack_id=String(nullable="0+"),
            client_id=String(),
            client_host=String(),
            subscribed_topic_names=Array(String()),
        ),
    )),
    GroupRecordFormat(SHARE_GROUP, 11, False, value_schema(
        "share group",
        Struct(epoch=Int32(), metadata_hash=Int64()),
    )),
    GroupRecordFormat(SHARE_TARGET_METADATA, 12, False, value_schema(
        "target assignment of a share group",
        Struct(assignment_epoch=Int32(), assignment_timestamp=Int64(tag=0)),
    )),
    GroupRecordFormat(SHARE_TARGET_MEMBER, 13, True, value_schema(
        "target assignment of a member of a share group",
        Struct(topic_partitions=TOPIC_PARTITIONS),
    )),
    GroupRecordFormat(SHARE_CURRENT, 14, True, value_schema(
        "current assignment of a member of a share group",
        Struct(
            member_epoch=Int32(),
            previous_member_epoch=Int32(),
            state=Int8(),
            assigned_partitions=TOPIC_PARTITIONS,
        ),
    )),
    GroupRecordFormat(SHARE_PARTITIONS, 15, False, value_schema(
        "partitions of a share group",
        Struct(
            initializing_topics=NAMED_PARTITIONS,
            initialized_topics=NAMED_PARTITIONS,
            deleting_topics=Array(Struct(topic_id=Uuid(), topic_name=String())),
        ),
    )),
)  # fmt: skip
SHARE_KINDS = frozenset(form.kind for form in SHARE_FORMATS)
