"""Cluster APIs: versions, nodes, topics and their leaders, the quorum.

Clients send ApiVersions before they know the broker.  Its response header is never flexible
(schema.py), and a request of an unknown version gets a response of version 0.
"""

from kafkalite.protocol.result_array import ResultArray
from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    UInt16,
    Uuid,
)

REPLICA_STATE = Struct(
    replica_id=Int32(),
    replica_directory_id=Uuid("2+"),
    log_end_offset=Int64(),
    last_fetch_timestamp=Int64("1+", default=-1),
    last_caught_up_timestamp=Int64("1+", default=-1),
)

API_VERSIONS = Api(
    18, "ApiVersions", versions="0-5", flexible="3+",
    request=Struct(
        client_software_name=String("3+"),
        client_software_version=String("3+"),
        cluster_id=String("5+", nullable="0+", default=None),
        node_id=Int32("5+", default=-1),
    ),
    response=Struct(
        error_code=Int16(),
        api_keys=Array(Struct(api_key=Int16(), min_version=Int16(), max_version=Int16())),
        throttle_time_ms=Int32("1+"),
        supported_features=Array(Struct(
            name=String(),
            min_version=Int16(),
            max_version=Int16(),
        ), "3+", tag=0),
        finalized_features_epoch=Int64("3+", tag=1, default=-1),
        finalized_features=Array(Struct(
            name=String(),
            max_version_level=Int16(),
            min_version_level=Int16(),
        ), "3+", tag=2),
        zk_migration_ready=Bool("3+", tag=3),
    ),
)

METADATA = Api(
    3, "Metadata", versions="0-13", flexible="9+",
    request=Struct(
        topics=Array(Struct(topic_id=Uuid("10+"), name=String(nullable="10+")), nullable="1+"),
        allow_auto_topic_creation=Bool("4+", default=True, ignorable=False),
        include_cluster_authorized_operations=Bool("8-10", ignorable=False),
        include_topic_authorized_operations=Bool("8+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32("3+"),
        brokers=Array(Struct(
            node_id=Int32(),
            host=String(),
            port=Int32(),
            rack=String("1+", nullable="0+", default=None),
        )),
        cluster_id=String("2+", nullable="0+", default=None),
        controller_id=Int32("1+", default=-1),
        topics=Array(Struct(
            error_code=Int16(),
            name=String(nullable="12+"),
            topic_id=Uuid("10+"),
            is_internal=Bool("1+"),
            partitions=Array(Struct(
                error_code=Int16(),
                partition_index=Int32(),
                leader_id=Int32(),
                leader_epoch=Int32("7+", default=-1),
                replica_nodes=Array(Int32()),
                isr_nodes=Array(Int32()),
                offline_replicas=Array(Int32(), "5+"),
            )),
            topic_authorized_operations=Int32("8+", default=-0x80000000),
        )),
        cluster_authorized_operations=Int32("8-10", default=-0x80000000),
        error_code=Int16("13+"),
    ),
)

METADATA_TOPICS = ResultArray(METADATA, "topics")

DESCRIBE_CLUSTER = Api(
    60, "DescribeCluster", versions="0-2", flexible="0+",
    request=Struct(
        include_cluster_authorized_operations=Bool(),
        endpoint_type=Int8("1+", default=1, ignorable=False),
        include_fenced_brokers=Bool("2+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        endpoint_type=Int8("1+", default=1),
        cluster_id=String(),
        controller_id=Int32(default=-1),
        brokers=Array(Struct(
            broker_id=Int32(),
            host=String(),
            port=Int32(),
            rack=String(nullable="0+", default=None),
            is_fenced=Bool("2+"),
        )),
        cluster_authorized_operations=Int32(default=-0x80000000),
    ),
)

DESCRIBE_TOPIC_PARTITIONS = Api(
    75, "DescribeTopicPartitions", versions="0", flexible="0+",
    request=Struct(
        topics=Array(Struct(name=String())),
        response_partition_limit=Int32(default=2000),
        cursor=Struct(nullable="0+", default=None, topic_name=String(), partition_index=Int32()),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            error_code=Int16(),
            name=String(nullable="0+"),
            topic_id=Uuid(),
            is_internal=Bool(),
            partitions=Array(Struct(
                error_code=Int16(),
                partition_index=Int32(),
                leader_id=Int32(),
                leader_epoch=Int32(default=-1),
                replica_nodes=Array(Int32()),
                isr_nodes=Array(Int32()),
                eligible_leader_replicas=Array(Int32(), nullable="0+", default=None),
                last_known_elr=Array(Int32(), nullable="0+", default=None),
                offline_replicas=Array(Int32()),
            )),
            topic_authorized_operations=Int32(default=-0x80000000),
        )),
        next_cursor=Struct(
            nullable="0+", default=None,
            topic_name=String(),
            partition_index=Int32(),
        ),
    ),
)

UPDATE_FEATURES = Api(
    57, "UpdateFeatures", versions="0-2", flexible="0+",
    request=Struct(
        timeout_ms=Int32(default=60000),
        feature_updates=Array(Struct(
            feature=String(),
            max_version_level=Int16(),
            allow_downgrade=Bool("0", ignorable=False),
            upgrade_type=Int8("1+", default=1, ignorable=False),
        )),
        validate_only=Bool("1+", ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
        results=Array(Struct(
            feature=String(),
            error_code=Int16(),
            error_message=String(nullable="0+"),
        ), "0-1"),
    ),
)

DESCRIBE_QUORUM = Api(
    55, "DescribeQuorum", versions="0-2", flexible="0+",
    request=Struct(
        topics=Array(Struct(
            topic_name=String(),
            partitions=Array(Struct(partition_index=Int32())),
        )),
    ),
    response=Struct(
        error_code=Int16(),
        error_message=String("2+", nullable="0+"),
        topics=Array(Struct(
            topic_name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                error_message=String("2+", nullable="0+"),
                leader_id=Int32(),
                leader_epoch=Int32(),
                high_watermark=Int64(),
                current_voters=Array(REPLICA_STATE),
                observers=Array(REPLICA_STATE),
            )),
        )),
        nodes=Array(Struct(
            node_id=Int32(),
            listeners=Array(Struct(name=String(), host=String(), port=UInt16())),
        ), "2+"),
    ),
)

UNREGISTER_BROKER = Api(
    64, "UnregisterBroker", versions="0", flexible="0+",
    request=Struct(broker_id=Int32()),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
    ),
)

ADD_RAFT_VOTER = Api(
    80, "AddRaftVoter", versions="0-1", flexible="0+",
    request=Struct(
        cluster_id=String(nullable="0+"),
        timeout_ms=Int32(),
        voter_id=Int32(),
        voter_directory_id=Uuid(),
        listeners=Array(Struct(name=String(), host=String(), port=UInt16())),
        ack_when_committed=Bool("1+", default=True, ignorable=False),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
    ),
)

REMOVE_RAFT_VOTER = Api(
    81, "RemoveRaftVoter", versions="0", flexible="0+",
    request=Struct(cluster_id=String(nullable="0+"), voter_id=Int32(), voter_directory_id=Uuid()),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
    ),
)

UNREGISTER_CONTROLLER = Api(
    94, "UnregisterController", versions="0", flexible="0+",
    request=Struct(controller_id=Int32()),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+"),
    ),
)
