"""PartitionImage: leader, replicas and in-sync replicas of a partition, and its records.

    leader epoch      + 1 with each change of the leader, and with each replica that is removed
    partition epoch   + 1 with every change of the partition: AlterPartition compares it

A decision computes the partition as it will be; `change_record` writes what differs, and
`with_change` replays that.  The ISR may be empty (KIP-966): then the leader comes from the ELR.

Left out: the log directory of each replica (KIP-858).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from kafkalite.protocol.schemas.internal import PARTITION, PARTITION_CHANGE, TypedRecord

NO_LEADER = -1
SAME_LEADER = -2
"""In a PARTITION_CHANGE: the leader and the leader epoch do not change."""

Nodes = tuple[int, ...]


class RecoveryState(IntEnum):
    """Kafka's leader recovery state, and one of ours that no client sees."""

    RECOVERED = 0
    RECOVERING = 1
    """The leader came from an unclean election, and has not altered the ISR since."""
    AWAITING_LOG_ENDS = 2
    """The power failed: recovery_election.py elects the leader."""


class PartitionImage(NamedTuple):
    """The leader, replicas and in-sync replicas of a partition."""

    leader: int
    leader_epoch: int
    replicas: Nodes
    isr: Nodes
    partition_epoch: int = 0
    adding: Nodes = ()
    removing: Nodes = ()
    elr: Nodes = ()
    """Replicas out of the ISR that have every record below the high watermark."""
    last_known_elr: Nodes = ()
    """The last leader, while ISR and leader are gone."""
    witnesses: Nodes = ()
    """Replicas that may have flushed acknowledged records that no ISR or ELR member has flushed."""
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    flushed_copies: int = 1
    """The number of candidates of a recovery election (recovery_election.py) that have flushed each
    acknowledged record, at least; for topics that acknowledge after a flush."""

    @property
    def is_new(self) -> bool:
        """True if the partition is as it was created, with all replicas in sync."""
        return bool(self.replicas) and self == new_partition(*self.replicas)

    @property
    def is_reassigned(self) -> bool:
        """True while replicas are added or removed."""
        return bool(self.adding or self.removing)

    @property
    def is_replicated(self) -> bool:
        """True if the partition has more than one replica."""
        return len(self.replicas) > 1

    @property
    def is_alone(self) -> bool:
        """True if the partition has one replica, which leads it."""
        return len(self.replicas) == 1

    @property
    def original_factor(self) -> int:
        """The number of replicas without those that a reassignment adds."""
        return len(self.replicas) - len(self.adding)

    def effective_min_isr(self, min_isr: int) -> int:
        """Return the number of in-sync replicas below which no record is committed.

        Controller and leader both use it: a replica that leaves a smaller ISR stays in the ELR only
        because the leader does not advance the high watermark.
        """
        return min(min_isr, self.original_factor)

    def in_next_epoch(self) -> PartitionImage:
        """Return this partition with the same leader in the next leader epoch."""
        return self._replace(
            leader_epoch=self.leader_epoch + 1, partition_epoch=self.partition_epoch + 1
        )

    def led_by(self, node_id: int) -> PartitionImage:
        """Return this partition with a new leader, its only replica, in the next leader epoch."""
        nodes = (node_id,)
        return PartitionImage(
            node_id, self.leader_epoch + 1, nodes, nodes, self.partition_epoch + 1
        )


@lru_cache(maxsize=1_000)
def new_partition(*replicas: int) -> PartitionImage:
    """Return a new partition, led by the first replica; equal partitions share one object."""
    return PartitionImage(replicas[0], 0, replicas, replicas)


NODE_FIELDS = ("replicas", "isr", "adding", "removing", "elr", "last_known_elr", "witnesses")
"""The fields of a partition that are lists of nodes."""


def partition_record(topic_id: bytes, index: int, partition: PartitionImage) -> TypedRecord:
    """Return the record that adds or replaces a partition."""
    fields = partition._asdict() | {name: list(getattr(partition, name)) for name in NODE_FIELDS}
    return PARTITION(topic_id=topic_id, partition=index, **fields)


def partition_of(fields: Mapping[str, Any]) -> PartitionImage:
    """Return the partition in the fields of a PARTITION record."""
    given = {name: fields[name] for name in PartitionImage._fields}
    given |= {name: tuple(fields[name]) for name in NODE_FIELDS}
    given["recovery_state"] = RecoveryState(fields["recovery_state"])
    return PartitionImage(**given)


def change_record(
    topic_id: bytes, index: int, before: PartitionImage, after: PartitionImage
) -> TypedRecord:
    """Return the record of a change: the fields that differ.

    `after` has the next partition epoch, and either the same leader epoch and leader or the next
    leader epoch.
    """
    assert after.partition_epoch == before.partition_epoch + 1
    has_new_epoch = after.leader_epoch != before.leader_epoch
    assert after.leader_epoch == before.leader_epoch + has_new_epoch
    assert has_new_epoch or after.leader == before.leader
    changed = {
        name: list(getattr(after, name)) if getattr(after, name) != getattr(before, name) else None
        for name in NODE_FIELDS
    }
    return PARTITION_CHANGE(
        topic_id=topic_id,
        partition=index,
        leader=after.leader if has_new_epoch else SAME_LEADER,
        recovery_state=after.recovery_state
        if after.recovery_state != before.recovery_state
        else -1,
        flushed_copies=after.flushed_copies
        if after.flushed_copies != before.flushed_copies
        else -1,
        **changed,
    )


def with_change(partition: PartitionImage, fields: Mapping[str, Any]) -> PartitionImage:
    """Return the partition after the change in the fields of a PARTITION_CHANGE record."""
    changed: dict[str, Any] = {
        name: tuple(fields[name]) for name in NODE_FIELDS if fields[name] is not None
    }
    if fields["leader"] != SAME_LEADER:
        changed |= {"leader": fields["leader"], "leader_epoch": partition.leader_epoch + 1}
    if fields["recovery_state"] >= 0:
        changed["recovery_state"] = RecoveryState(fields["recovery_state"])
    if fields["flushed_copies"] >= 0:
        changed["flushed_copies"] = fields["flushed_copies"]
    return partition._replace(partition_epoch=partition.partition_epoch + 1, **changed)
