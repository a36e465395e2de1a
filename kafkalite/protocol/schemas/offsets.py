"""Offset APIs: offsets of a log by time or leader epoch, and deletion of records.

ListOffsets has special timestamps: the end, the start, the offset of the greatest timestamp, and
the boundaries of tiered storage.
"""

from kafkalite.protocol.schema import Api
from kafkalite.protocol.types import Array, Int8, Int16, Int32, Int64, String, Struct

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6

LIST_OFFSETS = Api(
    2, "ListOffsets", versions="1-11", flexible="6+",
    request=Struct(
        replica_id=Int32(),
        isolation_level=Int8("2+", ignorable=False),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                current_leader_epoch=Int32("4+", default=-1),
                timestamp=Int64(),
            )),
        )),
        timeout_ms=Int32("10+"),
    ),
    response=Struct(
        throttle_time_ms=Int32("2+"),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                error_code=Int16(),
                timestamp=Int64(default=-1),
                offset=Int64(default=-1),
                leader_epoch=Int32("4+", default=-1),
            )),
        )),
    ),
)

OFFSET_FOR_LEADER_EPOCH = Api(
    23, "OffsetForLeaderEpoch", versions="2-4", flexible="4+",
    request=Struct(
        replica_id=Int32("3+", default=-2),
        topics=Array(Struct(
            topic=String(),
            partitions=Array(Struct(
                partition=Int32(),
                current_leader_epoch=Int32(default=-1),
                leader_epoch=Int32(),
            )),
        )),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            topic=String(),
            partitions=Array(Struct(
                error_code=Int16(),
                partition=Int32(),
                leader_epoch=Int32(default=-1),
                end_offset=Int64(default=-1),
            )),
        )),
    ),
)

DELETE_RECORDS = Api(
    21, "DeleteRecords", versions="0-2", flexible="2+",
    request=Struct(
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(partition_index=Int32(), offset=Int64())),
        )),
        timeout_ms=Int32(),
    ),
    response=Struct(
        throttle_time_ms=Int32(),
        topics=Array(Struct(
            name=String(),
            partitions=Array(Struct(
                partition_index=Int32(),
                low_watermark=Int64(),
                error_code=Int16(),
            )),
        )),
    ),
)
