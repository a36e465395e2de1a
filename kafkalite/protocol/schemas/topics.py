"""Topic APIs: creation, deletion, new partitions; leaders, reassignment and log directories."""

from kafkalite.protocol.result_array import ResultArray
from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Bool, Int8, Int16, Int32, Int64, String, Struct, Uuid

CREATE_TOPICS = Api(
    19, "CreateTopics", versions="2-7", flexible="5+",
    request=Struct(
        topics=Array(Struct(
            name=String(),
            num_partitions=Int32(),
            replication_factor=Int16(),
            assignments=Array(Struct(partition_index=Int32(), broker_ids=Array(Int32()))),
            configs=Array(Struct(name=String(), value=String(nullable="0+"))),
        )),
        timeout_ms=Int32(default=60000),
        validate_only=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            name=String(),
            topic_id=Uuid("7+"),
            error_code=Int16(),
            error_message=String(nullable="0+"),
            topic_config_error_code=Int16("5+", tag=0),
            num_partitions=Int32("5+", default=-1),
            replication_factor=Int16("5+", default=-1),
            configs=Array(Struct(
                name=String(),
                value=String(nullable="0+"),
                read_only=Bool(),
                config_source=Int8(default=-1),
                is_sensitive=Bool(),
            ), "5+", nullable="0+"),
        )),
    ),
)

CREATED_TOPICS = ResultArray(CREATE_TOPICS, "topics")

DELETE_TOPICS = Api(
    20, "DeleteTopics", versions="1-6", flexible="4+",
    request=Struct(
        topics=Array(Struct(
            name=String(nullable="0+", default=None),
            topic_id=Uuid(),
        ), "6+", ignorable=False),
        topic_names=Array(String(), "1-5"),
        timeout_ms=Int32(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        responses=Array(Struct(
            name=String(nullable="6+"),
            topic_id=Uuid("6+"),
            error_code=Int16(),
            error_message=String("5+", nullable="0+", default=None),
        )),
    ),
)

CREATE_PARTITIONS = Api(
    37, "CreatePartitions", versions="0-3", flexible="2+",
    request=Struct(
        topics=Array(Struct(
            name=String(),
            count=Int32(),
            assignments=Array(Struct(broker_ids=Array(Int32())), nullable="0+"),
        )),
        timeout_ms=Int32(),
        validate_only=Bool(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        results=Array(Struct(
            name=String(),
            error_code=Int16(),
            error_message=String(nullable="0+", default=None),
        )),
    ),
)

ELECT_LEADERS = Api(
    43, "ElectLeaders", versions="0-2", flexible="2+",
    request=Struct(
        election_type=Int8("1+", ignorable=False),
        topic_partitions=Array(Struct(topic=String(), partitions=Array(Int32())), nullable="0+"),
        timeout_ms=Int32(default=60000),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16("1+"),
        replica_election_results=Array(Struct(
            topic=String(),
            partition_result=Array(Struct(
                partition_id=Int32(),
                error_code=Int16(),
                error_message=String(nullable="0+"),
            )),
        )),
    ),
)

ALTER_PARTITION_REASSIGNMENTS = Api(
    45, "AlterPartitionReassignments", versions="0-1", flexible="0+",
    request=Struct(
        timeout_ms=Int32(default=60000),
        allow_replication_factor_change=Bool("1+", default=True, ignorable=False),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                replicas=Array(Int32(), nullable="0+", default=None),
            )),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        allow_replication_factor_change=Bool("1+", default=True),
        error_code=Int16(),
        error_message=String(nullable="0+"),
        responses=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                error_message=String(nullable="0+"),
            )),
        )),
    ),
)

LIST_PARTITION_REASSIGNMENTS = Api(
    46, "ListPartitionReassignments", versions="0", flexible="0+",
    request=Struct(
        timeout_ms=Int32(default=60000),
        topics=Array(Struct(
            name=String(),
            partition_indexes=Array(Int32()),
        ), nullable="0+", default=None),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                replicas=Array(Int32()),
                adding_replicas=Array(Int32()),
                removing_replicas=Array(Int32()),
            )),
        )),
    ),
)

ALTER_REPLICA_LOG_DIRS = Api(
    34, "AlterReplicaLogDirs", versions="1-2", flexible="2+",
    request=Struct(
        dirs=Array(Struct(
            path=String(),
            topics=Array(Struct(name=String(), partitions=Array(Int32()))),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        results=Array(Struct(
            topic_name=String(),
            partitions=Array(Struct(partition_index=Int32(), error_code=Int16())),
        )),
    ),
)

DESCRIBE_LOG_DIRS = Api(
    35, "DescribeLogDirs", versions="1-5", flexible="2+",
    request=Struct(topics=Array(Struct(topic=String(), partitions=Array(Int32())), nullable="0+")),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16("3+"),
        results=Array(Struct(
            error_code=Int16(),
            log_dir=String(),
            topics=Array(Struct(
                name=String(),
                partitions=Array(Struct(
                    partition_index=Int32(),
                    partition_size=Int64(),
                    offset_lag=Int64(),
                    is_future_key=Bool(),
                )),
            )),
            total_bytes=Int64("4+", default=-1),
            usable_bytes=Int64("4+", default=-1),
            is_cordoned=Bool("5+"),
        )),
    ),
)
