"""Share coordinator APIs: the stored state of share partitions (KIP-932).

Kafka's brokers send them to each other.  Nodes of this broker use the bus; these APIs are served
for tools that read the state.
"""

from typing import Any

from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.share_records import NO_COUNT, STATE_BATCHES
from kafkalite.protocol.types import Array, Int16, Int32, Int64, String, Struct, Uuid


def _request(**fields: Any) -> Struct:
    """Return a request that names share partitions of one group."""
    partition = Struct(partition=Int32(), **fields)
    return Struct(
        group_id=String(),
        topics=Array(Struct(topic_id=Uuid(), partitions=Array(partition))),
    )


def _response(**fields: Any) -> Struct:
    """Return a response with a result for each share partition."""
    partition = Struct(
        partition=Int32(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        **fields,
    )
    return Struct(results=Array(Struct(topic_id=Uuid(), partitions=Array(partition))))


INITIALIZE_SHARE_GROUP_STATE = Api(
    83, "InitializeShareGroupState", versions="0", flexible="0+",
    request=_request(state_epoch=Int32(), start_offset=Int64()),
    response=_response(),
)

READ_SHARE_GROUP_STATE = Api(
    84, "ReadShareGroupState", versions="0", flexible="0+",
    request=_request(leader_epoch=Int32()),
    response=_response(state_epoch=Int32(), start_offset=Int64(), state_batches=STATE_BATCHES),
)

WRITE_SHARE_GROUP_STATE = Api(
    85, "WriteShareGroupState", versions="0-1", flexible="0+",
    request=_request(
        state_epoch=Int32(),
        leader_epoch=Int32(),
        start_offset=Int64(),
        delivery_complete_count=Int32("1+", default=NO_COUNT),
        state_batches=STATE_BATCHES,
    ),
    response=_response(),
)

DELETE_SHARE_GROUP_STATE = Api(
    86, "DeleteShareGroupState", versions="0", flexible="0+",
    request=_request(),
    response=_response(),
)

READ_SHARE_GROUP_STATE_SUMMARY = Api(
    87, "ReadShareGroupStateSummary", versions="0-1", flexible="0+",
    request=_request(leader_epoch=Int32()),
    response=_response(
        state_epoch=Int32(),
        leader_epoch=Int32(),
        start_offset=Int64(),
        delivery_complete_count=Int32("1+", default=NO_COUNT),
    ),
)
