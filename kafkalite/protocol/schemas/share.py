"""Share group APIs: members, acquired and acknowledged records, and start offsets."""

from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Struct,
    Uuid,
)

SHARE_GROUP_HEARTBEAT = Api(
    76, "ShareGroupHeartbeat", versions="1", flexible="0+",
    request=Struct(
        group_id=String(),
        member_id=String(),
        member_epoch=Int32(),
        rack_id=String(nullable="0+", default=None),
        subscribed_topic_names=Array(String(), nullable="0+", default=None),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        member_id=String(nullable="0+", default=None),
        member_epoch=Int32(),
        heartbeat_interval_ms=Int32(),
        assignment=Struct(
            nullable="0+", default=None,
            topic_partitions=Array(Struct(topic_id=Uuid(), partitions=Array(Int32()))),
        ),
    ),
)

SHARE_GROUP_DESCRIBE = Api(
    77, "ShareGroupDescribe", versions="1", flexible="0+",
    request=Struct(group_ids=Array(String()), include_authorized_operations=Bool()),
    response=Struct(
        throttle_time_ms=Int32(),
        groups=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+", default=None),
            group_id=String(),
            group_state=String(),
            group_epoch=Int32(),
            assignment_epoch=Int32(),
            assignor_name=String(),
            members=Array(Struct(
                member_id=String(),
                rack_id=String(nullable="0+", default=None),
                member_epoch=Int32(),
                client_id=String(),
                client_host=String(),
                subscribed_topic_names=Array(String()),
                assignment=Struct(
                    topic_partitions=Array(Struct(
                        topic_id=Uuid(),
                        topic_name=String(),
                        partitions=Array(Int32()),
                    )),
                ),
            )),
            authorized_operations=Int32(default=-0x80000000),
        )),
    ),
)

SHARE_FETCH = Api(
    78, "ShareFetch", versions="1-2", flexible="0+",
    request=Struct(
        group_id=String(nullable="0+", default=None),
        member_id=String(nullable="0+"),
        share_session_epoch=Int32(),
        max_wait_ms=Int32(),
        min_bytes=Int32(),
        max_bytes=Int32(default=0x7FFFFFFF),
        max_records=Int32(),
        batch_size=Int32(),
        share_acquire_mode=Int8("2+"),
        is_renew_ack=Bool("2+", ignorable=False),
        topics=Array(Struct(
            topic_id=Uuid(),
            partitions=Array(Struct(
                partition_index=Int32(),
                acknowledgement_batches=Array(Struct(
                    first_offset=Int64(),
                    last_offset=Int64(),
                    acknowledge_types=Array(Int8()),
                )),
            )),
        )),
        forgotten_topics_data=Array(Struct(topic_id=Uuid(), partitions=Array(Int32()))),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        acquisition_lock_timeout_ms=Int32(),
        responses=Array(Struct(
            topic_id=Uuid(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                error_message=String(nullable="0+", default=None),
                acknowledge_error_code=Int16(),
                acknowledge_error_message=String(nullable="0+", default=None),
                current_leader=Struct(leader_id=Int32(), leader_epoch=Int32()),
                records=Records(),
                acquired_records=Array(Struct(
                    first_offset=Int64(),
                    last_offset=Int64(),
                    delivery_count=Int16(),
                )),
            )),
        )),
        node_endpoints=Array(Struct(
            node_id=Int32(),
            host=String(),
            port=Int32(),
            rack=String(nullable="0+", default=None),
        )),
    ),
)

SHARE_ACKNOWLEDGE = Api(
    79, "ShareAcknowledge", versions="1-2", flexible="0+",
    request=Struct(
        group_id=String(nullable="0+", default=None),
        member_id=String(nullable="0+"),
        share_session_epoch=Int32(),
        is_renew_ack=Bool("2+", ignorable=False),
        topics=Array(Struct(
            topic_id=Uuid(),
            partitions=Array(Struct(
                partition_index=Int32(),
                acknowledgement_batches=Array(Struct(
                    first_offset=Int64(),
                    last_offset=Int64(),
                    acknowledge_types=Array(Int8()),
                )),
            )),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        acquisition_lock_timeout_ms=Int32("2+"),
        responses=Array(Struct(
            topic_id=Uuid(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                error_message=String(nullable="0+", default=None),
                current_leader=Struct(leader_id=Int32(), leader_epoch=Int32()),
            )),
        )),
        node_endpoints=Array(Struct(
            node_id=Int32(),
            host=String(),
            port=Int32(),
            rack=String(nullable="0+", default=None),
        )),
    ),
)

DESCRIBE_SHARE_GROUP_OFFSETS = Api(
    90, "DescribeShareGroupOffsets", versions="0-1", flexible="0+",
    request=Struct(
        groups=Array(Struct(
            group_id=String(),
            topics=Array(Struct(topic_name=String(), partitions=Array(Int32())), nullable="0+"),
        )),
        # Not Kafka's: whether the response has our tagged fields, which some clients refuse.
        includes_delivery_counts=Bool("1+", tag=1000, default=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        groups=Array(Struct(
            group_id=String(),
            topics=Array(Struct(
                topic_name=String(),
                topic_id=Uuid(),
                partitions=Array(Struct(
                    partition_index=Int32(),
                    start_offset=Int64(),
                    leader_epoch=Int32(),
                    lag=Int64("1+", default=-1),
                    # Not Kafka's.
                    in_flight_count=Int32("1+", tag=1000, default=-1),
                    delivery_count=Int16("1+", tag=1001, default=-1),
                    error_code=Int16(),
                    error_message=String(nullable="0+", default=None),
                )),
            )),
            error_code=Int16(),
            error_message=String(nullable="0+", default=None),
        )),
    ),
)

ALTER_SHARE_GROUP_OFFSETS = Api(
    91, "AlterShareGroupOffsets", versions="0", flexible="0+",
    request=Struct(
        group_id=String(),
        topics=Array(Struct(
            topic_name=String(),
            partitions=Array(Struct(partition_index=Int32(), start_offset=Int64())),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        responses=Array(Struct(
            topic_name=String(),
            topic_id=Uuid(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                error_message=String(nullable="0+", default=None),
            )),
        )),
    ),
)

DELETE_SHARE_GROUP_OFFSETS = Api(
    92, "DeleteShareGroupOffsets", versions="0", flexible="0+",
    request=Struct(group_id=String(), topics=Array(Struct(topic_name=String()))),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        responses=Array(Struct(
            topic_name=String(),
            topic_id=Uuid(),
            error_code=Int16(),
            error_message=String(nullable="0+", default=None),
        )),
    ),
)
