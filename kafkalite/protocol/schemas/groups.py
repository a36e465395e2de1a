"""Group APIs: coordinators, members, assignments, and committed offsets.

Three protocols share the coordinator.  In the classic one members join, one of them assigns, and
all sync; its metadata and assignments are opaque here.  In the consumer and streams protocols, one
heartbeat carries everything and the coordinator assigns.
"""

from kafkalite.protocol.schema import Api
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

ASSIGNED_PARTITIONS = Struct(
    topic_partitions=Array(Struct(topic_id=Uuid(), topic_name=String(), partitions=Array(Int32()))),
)

KEY_VALUE = Struct(key=String(), value=String())

TOPIC_INFO = Struct(
    name=String(),
    partitions=Int32(),
    replication_factor=Int16(),
    topic_configs=Array(KEY_VALUE),
)

TASK_IDS = Struct(subtopology_id=String(), partitions=Array(Int32()))

ASSIGNED_TASKS = Struct(
    active_tasks=Array(TASK_IDS),
    standby_tasks=Array(TASK_IDS),
    warmup_tasks=Array(TASK_IDS),
)

ENDPOINT = Struct(host=String(), port=UInt16())

TASK_OFFSET = Struct(subtopology_id=String(), partition=Int32(), offset=Int64())

TOPIC_PARTITION = Struct(topic=String(), partitions=Array(Int32()))

TOPOLOGY_NODE = Struct(
    name=String(),
    node_type=Int8(),
    source_topics=Array(String()),
    sink_topic=String(nullable="0+", default=None),
    stores=Array(String()),
    successors=Array(String()),
)

TOPOLOGY_DESCRIPTION = Struct(
    subtopologies=Array(Struct(subtopology_id=String(), nodes=Array(TOPOLOGY_NODE))),
    global_stores=Array(Struct(source=TOPOLOGY_NODE, processor=TOPOLOGY_NODE)),
)

FIND_COORDINATOR = Api(
    10, "FindCoordinator", versions="0-6", flexible="3+",
    request=Struct(
        key=String("0-3", ignorable=False),
        key_type=Int8("1+", ignorable=False),
        coordinator_keys=Array(String(), "4+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32("1+"),
        error_code=Int16("0-3"),
        error_message=String("1-3", nullable="0+"),
        node_id=Int32("0-3"),
        host=String("0-3"),
        port=Int32("0-3"),
        coordinators=Array(Struct(
            key=String(),
            node_id=Int32(),
            host=String(),
            port=Int32(),
            error_code=Int16(),
            error_message=String(nullable="0+"),
        ), "4+"),
    ),
)

JOIN_GROUP = Api(
    11, "JoinGroup", versions="0-9", flexible="6+",
    request=Struct(
        group_id=String(),
        session_timeout_ms=Int32(),
        rebalance_timeout_ms=Int32("1+", default=-1),
        member_id=String(),
        group_instance_id=String("5+", nullable="0+", default=None, ignorable=False),
        protocol_type=String(),
        protocols=Array(Struct(name=String(), metadata=Bytes())),
        reason=String("8+", nullable="0+", default=None),
    ),
    response=Struct(
        throttle_time_ms=Int32("2+"),
        error_code=Int16(),
        generation_id=Int32(default=-1),
        protocol_type=String("7+", nullable="0+", default=None),
        protocol_name=String(nullable="7+"),
        leader=String(),
        skip_assignment=Bool("9+"),
        member_id=String(),
        members=Array(Struct(
            member_id=String(),
            group_instance_id=String("5+", nullable="0+", default=None),
            metadata=Bytes(),
        )),
    ),
)

SYNC_GROUP = Api(
    14, "SyncGroup", versions="0-5", flexible="4+",
    request=Struct(
        group_id=String(),
        generation_id=Int32(),
        member_id=String(),
        group_instance_id=String("3+", nullable="0+", default=None, ignorable=False),
        protocol_type=String("5+", nullable="0+", default=None),
        protocol_name=String("5+", nullable="0+", default=None),
        assignments=Array(Struct(member_id=String(), assignment=Bytes())),
    ),
    response=Struct(
        throttle_time_ms=Int32("1+"),
        error_code=Int16(),
        protocol_type=String("5+", nullable="0+", default=None),
        protocol_name=String("5+", nullable="0+", default=None),
        assignment=Bytes(),
    ),
)

HEARTBEAT = Api(
    12, "Heartbeat", versions="0-4", flexible="4+",
    request=Struct(
        group_id=String(),
        generation_id=Int32(),
        member_id=String(),
        group_instance_id=String("3+", nullable="0+", default=None, ignorable=False),
    ),
    response=Struct(throttle_time_ms=Int32("1+"), error_code=Int16()),
)

LEAVE_GROUP = Api(
    13, "LeaveGroup", versions="0-5", flexible="4+",
    request=Struct(
        group_id=String(),
        member_id=String("0-2", ignorable=False),
        members=Array(Struct(
            member_id=String(),
            group_instance_id=String(nullable="0+", default=None),
            reason=String("5+", nullable="0+", default=None),
        ), "3+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32("1+"),
        error_code=Int16(),
        members=Array(Struct(
            member_id=String(),
            group_instance_id=String(nullable="0+"),
            error_code=Int16(),
        ), "3+"),
    ),
)

OFFSET_COMMIT = Api(
    8, "OffsetCommit", versions="2-10", flexible="8+",
    request=Struct(
        group_id=String(),
        generation_id_or_member_epoch=Int32(default=-1),
        member_id=String(),
        group_instance_id=String("7+", nullable="0+", default=None, ignorable=False),
        retention_time_ms=Int64("2-4", default=-1),
        topics=Array(Struct(
            name=String("2-9"),
            topic_id=Uuid("10+"),
            partitions=Array(Struct(
                partition_index=Int32(),
                committed_offset=Int64(),
                committed_leader_epoch=Int32("6+", default=-1),
                committed_metadata=String(nullable="0+"),
            )),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32("3+"),
        topics=Array(Struct(
            name=String("2-9"),
            topic_id=Uuid("10+"),
            partitions=Array(Struct(partition_index=Int32(), error_code=Int16())),
        )),
    ),
)

OFFSET_FETCH = Api(
    9, "OffsetFetch", versions="1-10", flexible="6+",
    request=Struct(
        group_id=String("1-7", ignorable=False),
        topics=Array(Struct(
            name=String(),
            partition_indexes=Array(Int32()),
        ), "1-7", nullable="2-7", ignorable=False),
        groups=Array(Struct(
            group_id=String(),
            member_id=String("9+", nullable="0+", default=None),
            member_epoch=Int32("9+", default=-1),
            topics=Array(Struct(
                name=String("8-9"),
                topic_id=Uuid("10+"),
                partition_indexes=Array(Int32()),
            ), nullable="0+"),
        ), "8+", ignorable=False),
        require_stable=Bool("7+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32("3+"),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                committed_offset=Int64(),
                committed_leader_epoch=Int32("5-7", default=-1),
                metadata=String(nullable="0+"),
                error_code=Int16(),
            )),
        ), "1-7"),
        error_code=Int16("2-7"),
        groups=Array(Struct(
            group_id=String(),
            topics=Array(Struct(
                name=String("8-9"),
                topic_id=Uuid("10+"),
                partitions=Array(Struct(
                    partition_index=Int32(),
                    committed_offset=Int64(),
                    committed_leader_epoch=Int32(default=-1),
                    metadata=String(nullable="0+"),
                    error_code=Int16(),
                )),
            )),
            error_code=Int16(),
        ), "8+"),
    ),
)

OFFSET_DELETE = Api(
    47, "OffsetDelete", versions="0",
    request=Struct(
        group_id=String(),
        topics=Array(Struct(name=String(), partitions=Array(Struct(partition_index=Int32())))),
    ),
    response=Struct(
        error_code=Int16(),
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(partition_index=Int32(), error_code=Int16())),
        )),
    ),
)

DESCRIBE_GROUPS = Api(
    15, "DescribeGroups", versions="0-6", flexible="5+",
    request=Struct(
        groups=Array(String()),
        include_authorized_operations=Bool("3+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32("1+"),
        groups=Array(Struct(
            error_code=Int16(),
            error_message=String("6+", nullable="0+", default=None),
            group_id=String(),
            group_state=String(),
            protocol_type=String(),
            protocol_data=String(),
            members=Array(Struct(
                member_id=String(),
                group_instance_id=String("4+", nullable="0+", default=None),
                client_id=String(),
                client_host=String(),
                member_metadata=Bytes(),
                member_assignment=Bytes(),
            )),
            authorized_operations=Int32("3+", default=-0x80000000),
        )),
    ),
)

LIST_GROUPS = Api(
    16, "ListGroups", versions="0-5", flexible="3+",
    request=Struct(
        states_filter=Array(String(), "4+", ignorable=False),
        types_filter=Array(String(), "5+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32("1+"),
        error_code=Int16(),
        groups=Array(Struct(
            group_id=String(),
            protocol_type=String(),
            group_state=String("4+"),
            group_type=String("5+"),
        )),
    ),
)

DELETE_GROUPS = Api(
    42, "DeleteGroups", versions="0-3", flexible="2+",
    request=Struct(groups_names=Array(String())),
    response=Struct(
        throttle_time_ms=Int32(),
        results=Array(Struct(
            group_id=String(),
            error_code=Int16(),
            error_message=String("3+", nullable="0+", default=None),
        )),
    ),
)

CONSUMER_GROUP_HEARTBEAT = Api(
    68, "ConsumerGroupHeartbeat", versions="0-1", flexible="0+",
    request=Struct(
        group_id=String(),
        member_id=String(),
        member_epoch=Int32(),
        instance_id=String(nullable="0+", default=None),
        rack_id=String(nullable="0+", default=None),
        rebalance_timeout_ms=Int32(default=-1),
        subscribed_topic_names=Array(String(), nullable="0+", default=None),
        subscribed_topic_regex=String("1+", nullable="0+", default=None, ignorable=False),
        server_assignor=String(nullable="0+", default=None),
        topic_partitions=Array(Struct(
            topic_id=Uuid(),
            partitions=Array(Int32()),
        ), nullable="0+", default=None),
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

CONSUMER_GROUP_DESCRIBE = Api(
    69, "ConsumerGroupDescribe", versions="0-1", flexible="0+",
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
                instance_id=String(nullable="0+", default=None),
                rack_id=String(nullable="0+", default=None),
                member_epoch=Int32(),
                client_id=String(),
                client_host=String(),
                subscribed_topic_names=Array(String()),
                subscribed_topic_regex=String(nullable="0+", default=None),
                assignment=ASSIGNED_PARTITIONS,
                target_assignment=ASSIGNED_PARTITIONS,
                member_type=Int8("1+", default=-1),
            )),
            authorized_operations=Int32(default=-0x80000000),
        )),
    ),
)

STREAMS_GROUP_HEARTBEAT = Api(
    88, "StreamsGroupHeartbeat", versions="0-1", flexible="0+",
    request=Struct(
        group_id=String(),
        member_id=String(),
        member_epoch=Int32(),
        endpoint_information_epoch=Int32(),
        instance_id=String(nullable="0+", default=None),
        rack_id=String(nullable="0+", default=None),
        rebalance_timeout_ms=Int32(default=-1),
        topology=Struct(
            nullable="0+", default=None,
            epoch=Int32(),
            subtopologies=Array(Struct(
                subtopology_id=String(),
                source_topics=Array(String()),
                source_topic_regex=Array(String()),
                state_changelog_topics=Array(TOPIC_INFO),
                repartition_sink_topics=Array(String()),
                repartition_source_topics=Array(TOPIC_INFO),
                copartition_groups=Array(Struct(
                    source_topics=Array(Int16()),
                    source_topic_regex=Array(Int16()),
                    repartition_source_topics=Array(Int16()),
                )),
            )),
        ),
        active_tasks=Array(TASK_IDS, nullable="0+", default=None),
        standby_tasks=Array(TASK_IDS, nullable="0+", default=None),
        warmup_tasks=Array(TASK_IDS, nullable="0+", default=None),
        process_id=String(nullable="0+", default=None),
        user_endpoint=ENDPOINT.elsewhere(nullable="0+", default=None),
        client_tags=Array(KEY_VALUE, nullable="0+", default=None),
        task_offsets=Array(TASK_OFFSET, nullable="0+", default=None),
        task_end_offsets=Array(TASK_OFFSET, nullable="0+", default=None),
        shutdown_application=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        member_id=String(),
        member_epoch=Int32(),
        heartbeat_interval_ms=Int32(),
        acceptable_recovery_lag_legacy=Int32("0"),
        task_offset_interval_ms=Int32(),
        acceptable_recovery_lag=Int64("1+", default=-1),
        status=Array(Struct(status_code=Int8(), status_detail=String()), nullable="0+"),
        active_tasks=Array(TASK_IDS, nullable="0+", default=None),
        standby_tasks=Array(TASK_IDS, nullable="0+", default=None),
        warmup_tasks=Array(TASK_IDS, nullable="0+", default=None),
        topology_description_required=Bool("1+"),
        endpoint_information_epoch=Int32(),
        partitions_by_user_endpoint=Array(Struct(
            user_endpoint=ENDPOINT,
            active_partitions=Array(TOPIC_PARTITION),
            standby_partitions=Array(TOPIC_PARTITION),
        ), nullable="0+", default=None),
    ),
)

STREAMS_GROUP_DESCRIBE = Api(
    89, "StreamsGroupDescribe", versions="0-1", flexible="0+",
    request=Struct(
        group_ids=Array(String()),
        include_authorized_operations=Bool(),
        include_topology_description=Bool("1+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        groups=Array(Struct(
            error_code=Int16(),
            error_message=String(nullable="0+", default=None),
            group_id=String(),
            group_state=String(),
            group_epoch=Int32(),
            assignment_epoch=Int32(),
            topology=Struct(
                nullable="0+", default=None,
                epoch=Int32(),
                subtopologies=Array(Struct(
                    subtopology_id=String(),
                    source_topics=Array(String()),
                    repartition_sink_topics=Array(String()),
                    state_changelog_topics=Array(TOPIC_INFO),
                    repartition_source_topics=Array(TOPIC_INFO),
                ), nullable="0+", default=None),
            ),
            members=Array(Struct(
                member_id=String(),
                member_epoch=Int32(),
                instance_id=String(nullable="0+", default=None),
                rack_id=String(nullable="0+", default=None),
                client_id=String(),
                client_host=String(),
                topology_epoch=Int32(),
                process_id=String(),
                user_endpoint=ENDPOINT.elsewhere(nullable="0+", default=None),
                client_tags=Array(KEY_VALUE),
                task_offsets=Array(TASK_OFFSET),
                task_end_offsets=Array(TASK_OFFSET),
                assignment=ASSIGNED_TASKS,
                target_assignment=ASSIGNED_TASKS,
                is_classic=Bool(),
            )),
            authorized_operations=Int32(default=-0x80000000),
            topology_description=TOPOLOGY_DESCRIPTION.elsewhere("1+", nullable="0+", default=None),
            topology_description_status=Int8("1+"),
            assignor_name=String("1+", nullable="0+", default=None),
        )),
    ),
)

STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = Api(
    93, "StreamsGroupTopologyDescriptionUpdate", versions="0", flexible="0+",
    request=Struct(
        group_id=String(),
        member_id=String(),
        topology_epoch=Int32(),
        topology_description=TOPOLOGY_DESCRIPTION,
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
    ),
)
