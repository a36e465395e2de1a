"""Transaction markers as messages of the bus: WriteMarkers, and MarkersWritten as the response.

The supervisor's incarnation is in both.  A worker drops the markers of a supervisor that is dead,
and a supervisor the response to another one, so that neither is taken for a later request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from kafkalite.broker.replica.marker_writer import MarkerTargets
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord
from kafkalite.records.control import TransactionMarker


def write_markers(
    request_id: int, incarnation: int, targets: Sequence[MarkerTargets]
) -> TypedRecord:
    """Return the message with these markers; topics are named by their ids."""
    return bus.WRITE_MARKERS(
        request_id=request_id,
        incarnation=incarnation,
        markers=[
            {
                "producer_id": marker.producer_id,
                "producer_epoch": marker.producer_epoch,
                "is_commit": marker.is_commit,
                "coordinator_epoch": marker.coordinator_epoch,
                "transaction_version": marker.transaction_version,
                "topics": [
                    {"topic_id": topic_id, "partitions": [index for _, index in partitions]}
                    for topic_id, partitions in groupby(partitions, lambda each: each[0])
                ],
            }
            for marker, partitions in targets
        ],
    )


def read_markers(fields: Mapping[str, Any]) -> list[MarkerTargets]:
    """Return the markers of a WriteMarkers."""
    return [
        MarkerTargets(
            TransactionMarker(
                marker["producer_id"],
                marker["producer_epoch"],
                marker["is_commit"],
                marker["coordinator_epoch"],
                marker["transaction_version"],
            ),
            [
                (topic["topic_id"], index)
                for topic in marker["topics"]
                for index in topic["partitions"]
            ],
        )
        for marker in fields["markers"]
    ]
