"""Batches for partitions of other nodes as messages of the bus: AppendBatch, BatchAppended.

The supervisor's incarnation is in the messages to and from a worker that appends, so that the
response to an earlier supervisor is not taken for a later one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkalite.broker.error_responses import error_of, outcome_fields
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord

NO_INCARNATION = -1
"""In a worker's request to the supervisor."""


def append_batch(
    request_id: int, incarnation: int, topic_id: bytes, partition: int, batch: bytes
) -> TypedRecord:
    """Return the message with a batch."""
    return bus.APPEND_BATCH(
        request_id=request_id,
        incarnation=incarnation,
        topic_id=topic_id,
        partition=partition,
        batch=batch,
    )


def batch_appended(request: Mapping[str, Any], error: KafkaError | None) -> TypedRecord:
    """Return the response to an AppendBatch."""
    return bus.BATCH_APPENDED(
        request_id=request["request_id"],
        incarnation=request["incarnation"],
        **outcome_fields(error),
    )


def append_error(fields: Mapping[str, Any]) -> KafkaError | None:
    """Return the error of a BatchAppended, or None."""
    return error_of(fields["error_code"], fields["error_message"])
