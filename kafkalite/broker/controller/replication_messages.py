"""Replication as messages of the bus: RegisterNode, ReplicasFailed, AlterPartitions and its
response, PartitionsAltered.

The response has one entry for each partition of the request, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafkalite.broker.error_responses import outcome_fields
from kafkalite.coordination.partition_image import RecoveryState
from kafkalite.coordination.replication.alter_partition import (
    AlteredPartition,
    IsrDecision,
    IsrMember,
    IsrProposal,
    PartitionProposal,
)
from kafkalite.coordination.replication.registration import RegisteredLog
from kafkalite.errors import BY_CODE, InvalidRequest, KafkaError, UnknownServerError
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord


def register_node(logs: Sequence[RegisteredLog]) -> TypedRecord:
    """Return the message that registers a process with these logs."""
    return bus.REGISTER_NODE(logs=[each._asdict() for each in logs])


def read_registration(fields: Mapping[str, Any]) -> list[RegisteredLog]:
    """Return the logs of a RegisterNode."""
    return [RegisteredLog(**each) for each in fields["logs"]]


def replicas_failed(node_epoch: int, partitions: Iterable[tuple[bytes, int]]) -> TypedRecord:
    """Return the message about replicas whose logs have failed."""
    return bus.REPLICAS_FAILED(
        node_epoch=node_epoch,
        partitions=[
            {"topic_id": topic_id, "partition": index} for topic_id, index in partitions
        ],
    )


def alter_partitions(
    request_id: int, node_epoch: int, proposals: Sequence[PartitionProposal]
) -> TypedRecord:
    """Return the message with these proposals."""
    return bus.ALTER_PARTITIONS(
        request_id=request_id,
        node_epoch=node_epoch,
        partitions=[
            {
                "topic_id": each.topic_id,
                "partition": each.partition,
                "leader_epoch": each.isr.leader_epoch,
                "partition_epoch": each.isr.partition_epoch,
                "isr": [member._asdict() for member in each.isr.isr],
                "recovery_state": each.isr.recovery_state,
                "flushed_copies": each.isr.flushed_copies,
            }
            for each in proposals
        ],
    )


def read_proposals(fields: Mapping[str, Any]) -> list[PartitionProposal]:
    """Return the proposals of an AlterPartitions; raise InvalidRequest if one is malformed."""
    try:
        return [
            PartitionProposal(
                each["topic_id"],
                each["partition"],
                IsrProposal(
                    each["leader_epoch"],
                    each["partition_epoch"],
                    [IsrMember(**member) for member in each["isr"]],
                    _recovery_state(each["recovery_state"]),
                    flushed_copies=each["flushed_copies"],
                ),
            )
            for each in fields["partitions"]
        ]
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _recovery_state(code: int) -> RecoveryState:
    state = RecoveryState(code)
    if state is RecoveryState.AWAITING_LOG_ENDS:
        raise ValueError("A leader does not wait for the ends of logs.")
    return state


def partitions_altered(
    request_id: int, decisions: Sequence[IsrDecision] | None, error: KafkaError | None
) -> TypedRecord:
    """Return the message with the outcomes, or with the error of the whole request."""
    return bus.PARTITIONS_ALTERED(
        request_id=request_id,
        **outcome_fields(error),
        partitions=[
            {
                "error_code": each.error.code if each.error is not None else 0,
                "partition_epoch": each.partition.partition_epoch if each.partition else -1,
            }
            for each in decisions or ()
        ],
    )


def read_outcomes(request: TypedRecord, fields: Mapping[str, Any]) -> list[AlteredPartition]:
    """Return the outcomes of a PartitionsAltered; raise if they do not fit the request."""
    if len(fields["partitions"]) != len(request.fields["partitions"]):
        raise UnknownServerError("The response of the controller does not fit the request.")
    return [
        AlteredPartition(_error(each["error_code"]), each["partition_epoch"])
        for each in fields["partitions"]
    ]


def _error(code: int) -> KafkaError | None:
    return BY_CODE.get(code, UnknownServerError)() if code else None
