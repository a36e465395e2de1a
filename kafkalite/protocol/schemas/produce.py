"""Produce: records for partitions, and the base offset of each batch.

Up to version 12 a partition is identified by its topic's name, from 13 on by its topic's id.
Versions below 3 are not supported (their records are message sets); brokers advertise 0 all the
same.

Tests compare this schema with _ext.wire.decode_produce and encode_produce, which the broker runs.
"""

from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Int16, Int32, Int64, Records, String, Struct, Uuid

PRODUCE = Api(
    0, "Produce", versions="3-13", flexible="9+",
    request=Struct(
        transactional_id=String(nullable="0+", default=None),
        acks=Int16(),
        timeout_ms=Int32(),
        topic_data=Array(Struct(
            name=String("3-12"),
            topic_id=Uuid("13+"),
            partition_data=Array(Struct(index=Int32(), records=Records(nullable="0+"))),
        )),
    ),
    response=Struct(
        responses=Array(Struct(
            name=String("3-12"),
            topic_id=Uuid("13+"),
            partition_responses=Array(Struct(
                index=Int32(),
                error_code=Int16(),
                base_offset=Int64(),
                log_append_time_ms=Int64(default=-1),
                log_start_offset=Int64("5+", default=-1),
                record_errors=Array(Struct(
                    batch_index=Int32(),
                    batch_index_error_message=String(nullable="0+", default=None),
                ), "8+"),
                error_message=String("8+", nullable="0+", default=None),
                current_leader=Struct(
                    "10+", tag=0,
                    leader_id=Int32(default=-1),
                    leader_epoch=Int32(default=-1),
                ),
            )),
        )),
        throttle_time_ms=Int32(),
        node_endpoints=Array(Struct(
            node_id=Int32(),
            host=String(),
            port=Int32(),
            rack=String(nullable="0+", default=None),
        ), "10+", tag=0),
    ),
)
