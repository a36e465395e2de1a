"""Recovery elections: the leader of a partition after all its replicas lost what was not flushed.

    power fails ─▶ await_log_ends: no leader, and no other decision about the partition
                ─▶ every node reports the ends of its logs
                ─▶ recover: the replica with the greatest (last leader epoch, end offset) leads

A record was acknowledged once it was flushed on m replicas (DurableCopies), together with the
leader epoch.  Each of them is a candidate: a member of ISR or ELR, or a witness.  So m - 1
candidates may be missing, and one of the others has the record.  The greatest log of those has it,
too, as all elections before were clean: a log with a later epoch has all that was acknowledged in
earlier ones.

The ISR is kept until then, also that of nodes that fail again: it names the candidates.

Left out: topics that acknowledge without a flush.  Their records may be lost in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkalite.coordination.partition_image import (
    NO_LEADER,
    PartitionImage,
    RecoveryState,
)


class ReplicaLogEnd(NamedTuple):
    """The end of one replica's log, as its node reports it after the start."""

    node_id: int
    last_epoch: int
    end_offset: int


def await_log_ends(partition: PartitionImage) -> PartitionImage:
    """Return a partition without a leader, which waits for the ends of its logs."""
    return partition._replace(
        leader=NO_LEADER,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        recovery_state=RecoveryState.AWAITING_LOG_ENDS,
    )


def recover(
    partition: PartitionImage, ends: Sequence[ReplicaLogEnd], missing_max: int
) -> PartitionImage | None:
    """Return the partition with its new leader, or None until enough candidates have reported.

    `ends` are those of undamaged logs; `missing_max` is the number of candidates that may be
    missing, one less than the flushed copies of an acknowledged record.
    """
    assert partition.recovery_state is RecoveryState.AWAITING_LOG_ENDS
    reported = {end.node_id for end in ends if end.node_id in partition.replicas}
    candidates = {*partition.isr, *partition.elr, *partition.witnesses}
    if not candidates & reported or len(candidates - reported) > missing_max:
        return None
    greatest = max(
        (end for end in ends if end.node_id in reported),
        key=lambda end: (end.last_epoch, end.end_offset),
    )
    return partition._replace(
        leader=greatest.node_id,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        isr=(greatest.node_id,),
        elr=(),
        last_known_elr=(),
        witnesses=(),
        recovery_state=RecoveryState.RECOVERED,
        flushed_copies=1,
    )


def accept_loss(partition: PartitionImage, is_active: Callable[[int], bool]) -> PartitionImage:
    """Return the partition with the first active candidate as leader, or else replica, although it
    may lack acknowledged records; the same object if none is active."""
    candidates = (*partition.isr, *partition.elr, *partition.witnesses, *partition.replicas)
    for node_id in candidates:
        if is_active(node_id):
            return partition._replace(
                leader=node_id,
                leader_epoch=partition.leader_epoch + 1,
                partition_epoch=partition.partition_epoch + 1,
                isr=(node_id,),
                elr=(),
                last_known_elr=(),
                witnesses=(),
                recovery_state=RecoveryState.RECOVERING,
                flushed_copies=1,
            )
    return partition
