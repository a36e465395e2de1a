"""Share partitions in messages of the bus.

    ShareStates ─▶ ◀─ ShareOutcomes        the state: reads and changes by a leader on a worker
    FindShareProgress ─▶ ◀─ ShareProgress  what the leaders on a worker know

Outcomes and progress are in the order of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from kafkalite.broker.error_responses import error_of, outcome_fields
from kafkalite.coordination.share.share_partition import ShareProgress
from kafkalite.coordination.share.state_requests import (
    Outcome,
    StateChange,
    StateRead,
    StateRequest,
)
from kafkalite.errors import KafkaError, UnknownServerError
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord
from kafkalite.protocol.schemas.share_records import (
    NO_COUNT,
    NO_OFFSET,
    SharePartitionKey,
    ShareSnapshot,
    StateBatch,
)

PROGRESS_MAX = ShareProgress((1 << 63) - 1, (1 << 31) - 1, (1 << 15) - 1)
"""The greatest values that a ShareProgress message can have."""

NO_STATE = {"state_epoch": 0, "start_offset": NO_OFFSET, "state_batches": []}


def find_share_progress(
    request_id: int, incarnation: int, keys: Sequence[SharePartitionKey]
) -> TypedRecord:
    """Return the message with these keys; those of a group must be beside each other."""
    return bus.FIND_SHARE_PROGRESS(
        request_id=request_id,
        incarnation=incarnation,
        groups=[
            {
                "group_id": group_id,
                "partitions": [
                    {"topic_id": key.topic_id, "partition": key.partition} for key in of_group
                ],
            }
            for group_id, of_group in groupby(keys, lambda key: key.group_id)
        ],
    )


def read_progress_keys(fields: Mapping[str, Any]) -> list[SharePartitionKey]:
    """Return the keys of a FindShareProgress."""
    return [
        SharePartitionKey(group["group_id"], each["topic_id"], each["partition"])
        for group in fields["groups"]
        for each in group["partitions"]
    ]


def share_progress(fields: Mapping[str, Any], progress: Sequence[ShareProgress]) -> TypedRecord:
    """Return the response to a FindShareProgress with these fields."""
    return bus.SHARE_PROGRESS(
        request_id=fields["request_id"],
        incarnation=fields["incarnation"],
        partitions=[ShareProgress(*map(min, each, PROGRESS_MAX))._asdict() for each in progress],
    )


def read_progress(fields: Mapping[str, Any]) -> list[ShareProgress]:
    """Return what a ShareProgress says of each share partition."""
    return [
        ShareProgress(each["end_offset"], each["in_flight_count"], each["delivery_count"])
        for each in fields["partitions"]
    ]


def share_states(request_id: int, requests: Sequence[StateRequest]) -> TypedRecord:
    """Return the message with these requests; reads are sent before changes."""
    return bus.SHARE_STATES(
        request_id=request_id,
        reads=[
            {**each.key._asdict(), "leader_epoch": each.leader_epoch}
            for each in requests
            if isinstance(each, StateRead)
        ],
        changes=[
            {
                **each.key._asdict(),
                "state_epoch": each.state_epoch,
                "leader_epoch": each.leader_epoch,
                "start_offset": each.start_offset,
                "delivery_complete_count": each.delivery_complete_count,
                "state_batches": [batch._asdict() for batch in each.batches],
            }
            for each in requests
            if isinstance(each, StateChange)
        ],
    )


def read_requests(fields: Mapping[str, Any]) -> list[StateRequest]:
    """Return the requests of a ShareStates: reads, then changes."""
    reads: list[StateRequest] = [
        StateRead(_key(each), each["leader_epoch"]) for each in fields["reads"]
    ]
    return reads + [
        StateChange(
            _key(each),
            each["state_epoch"],
            each["leader_epoch"],
            each["start_offset"],
            each["delivery_complete_count"],
            _batches(each),
        )
        for each in fields["changes"]
    ]


def share_outcomes(
    request: Mapping[str, Any], outcomes: Sequence[Outcome] | None, error: KafkaError | None
) -> TypedRecord:
    """Return the message with the outcomes of a ShareStates, or with the error of all of it."""
    found = outcomes or ()
    read_count = len(request["reads"])
    return bus.SHARE_OUTCOMES(
        request_id=request["request_id"],
        **outcome_fields(error),
        reads=[_read_outcome(each) for each in found[:read_count]],
        changes=[each.code if isinstance(each, KafkaError) else 0 for each in found[read_count:]],
    )


def _read_outcome(outcome: Outcome) -> dict[str, Any]:
    if not isinstance(outcome, ShareSnapshot):
        error = outcome if outcome is not None else UnknownServerError()
        return {"error_code": error.code, **NO_STATE}
    return {
        "error_code": 0,
        "state_epoch": outcome.state_epoch,
        "start_offset": outcome.start_offset,
        "state_batches": [batch._asdict() for batch in outcome.state_batches],
    }


def read_outcomes(request: TypedRecord, fields: Mapping[str, Any]) -> list[Outcome]:
    """Return the outcomes of a ShareOutcomes; raise if they do not fit the request."""
    reads, changes = request.fields["reads"], request.fields["changes"]
    if len(fields["reads"]) != len(reads) or len(fields["changes"]) != len(changes):
        raise UnknownServerError("The response of the coordinators does not fit the request.")
    outcomes: list[Outcome] = [
        error_of(found["error_code"])
        or ShareSnapshot(
            0,
            found["state_epoch"],
            wanted["leader_epoch"],
            found["start_offset"],
            NO_COUNT,
            -1,
            -1,
            _batches(found),
        )
        for wanted, found in zip(reads, fields["reads"], strict=True)
    ]
    return outcomes + [error_of(code) for code in fields["changes"]]


def _key(fields: Mapping[str, Any]) -> SharePartitionKey:
    return SharePartitionKey(fields["group_id"], fields["topic_id"], fields["partition"])


def _batches(fields: Mapping[str, Any]) -> list[StateBatch]:
    return [StateBatch(**each) for each in fields["state_batches"]]
