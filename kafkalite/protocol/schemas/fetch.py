"""Fetch: records of partitions, for consumers and for followers.

Up to version 12 a partition is identified by its topic's name, from 13 on by its topic's id.  In
the response the records are the last field of a partition before its tags, so that a response can
be sent as runs of bytes between slices of files.

Tests compare this schema with _ext.wire.decode_fetch and encode_fetch, which the broker runs.
"""

from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Int8, Int16, Int32, Int64, Records, String, Struct, Uuid

FETCH = Api(
    1, "Fetch", versions="4-18", flexible="12+",
    request=Struct(
        cluster_id=String("12+", nullable="0+", tag=0, default=None),
        replica_id=Int32("4-14", default=-1, ignorable=False),
        replica_state=Struct(
            "15+", tag=1, ignorable=False,
            replica_id=Int32(default=-1),
            replica_epoch=Int64(default=-1),
        ),
        max_wait_ms=Int32(),
        min_bytes=Int32(),
        max_bytes=Int32(default=0x7FFFFFFF),
        isolation_level=Int8(),
        session_id=Int32("7+"),
        session_epoch=Int32("7+", default=-1),
        topics=Array(Struct(
            topic=String("4-12"),
            topic_id=Uuid("13+"),
            partitions=Array(Struct(
                partition=Int32(),
                current_leader_epoch=Int32("9+", default=-1),
                fetch_offset=Int64(),
                last_fetched_epoch=Int32("12+", default=-1, ignorable=False),
                log_start_offset=Int64("5+", default=-1),
                partition_max_bytes=Int32(),
                replica_directory_id=Uuid("17+", tag=0),
                high_watermark=Int64("18+", tag=1, default=0x7FFFFFFFFFFFFFFF),
                # Ours: the end of the follower's flushed records.
                durable_offset=Int64("18+", tag=1000, default=-1),
            )),
        )),
        forgotten_topics_data=Array(Struct(
            topic=String("7-12"),
            topic_id=Uuid("13+"),
            partitions=Array(Int32()),
        ), "7+", ignorable=False),
        rack_id=String("11+"),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        error_code=Int16("7+"),
        session_id=Int32("7+"),
        responses=Array(Struct(
            topic=String("4-12"),
            topic_id=Uuid("13+"),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                high_watermark=Int64(),
                last_stable_offset=Int64(default=-1),
                log_start_offset=Int64("5+", default=-1),
                diverging_epoch=Struct(
                    "12+", tag=0,
                    epoch=Int32(default=-1),
                    end_offset=Int64(default=-1),
                ),
                current_leader=Struct(
                    "12+", tag=1,
                    leader_id=Int32(default=-1),
                    leader_epoch=Int32(default=-1),
                ),
                snapshot_id=Struct(
                    "12+", tag=2,
                    end_offset=Int64(default=-1),
                    epoch=Int32(default=-1),
                ),
                # Ours, for followers: the log end offset at which the leader's epoch began.
                epoch_start=Int64("18+", tag=1000, default=-1),
                aborted_transactions=Array(Struct(
                    producer_id=Int64(),
                    first_offset=Int64(),
                ), nullable="0+"),
                preferred_read_replica=Int32("11+", default=-1),
                records=Records(nullable="0+"),
            )),
        )),
        node_endpoints=Array(Struct(
            node_id=Int32(),
            host=String(),
            port=Int32(),
            rack=String(nullable="0+", default=None),
        ), "16+", tag=0),
    ),
)
