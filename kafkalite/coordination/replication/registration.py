"""Registration: the processes of nodes, as the controller knows them.

    process ends      fence: the node leaves every ISR, others lead; then NODE, fenced
    process begins    the ends of its logs ─▶ lost replicas leave ISR and ELR ─▶ NODE, next epoch
                      ─▶ leaders of partitions that have none

A node's process leads or follows replicated partitions once its image has its own registration.
The logs of a process that was killed are whole, as the page cache is that of the host: it keeps its
place in the ELR.  A replica whose log is missing or damaged is lost: before the new node epoch is
recorded it leaves ISR and ELR, so no decision takes the new, empty log for the old one.

When the whole broker starts, all nodes are fenced and all replicated partitions are without leader:
a leader whose host has lost power may lack records that its followers have, so the next one leads
in another epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.coordination.image import NO_PROCESS, ClusterImage, TopicImage, node_record
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage
from kafkalite.coordination.replication.leadership import (
    CHANGED_MAX,
    change_partitions,
    remove_from_isrs,
)
from kafkalite.coordination.replication.partition_change import RulesOf, change
from kafkalite.coordination.replication.recovery_election import ReplicaLogEnd

PartitionId = tuple[bytes, int]

NO_LOG = -1
"""The end offset of a log that is missing."""


class RegisteredLog(NamedTuple):
    """The end of a log of a node, as its process has found it."""

    topic_id: bytes
    partition: int
    last_epoch: int
    end_offset: int
    """NO_LOG if the node is to have a log of the partition and has none."""
    is_damaged: bool = False
    """True if it may have lost records that were written in this boot of the host."""

    @property
    def is_empty(self) -> bool:
        """True if there is no record, and not because of damage."""
        return self.end_offset in (NO_LOG, 0) and not self.is_damaged

    def end_on(self, node_id: int) -> ReplicaLogEnd:
        """Return it as the end of a replica's log."""
        return ReplicaLogEnd(node_id, self.last_epoch, self.end_offset)


def is_registered(image: ClusterImage, node_id: int, incarnation: int) -> bool:
    """Return whether this process is the registered one of a node."""
    node = image.nodes.get(node_id)
    return node is not None and not node.fenced and node.incarnation == incarnation


def leave(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Remove a node whose process has ended from its ISRs, and fence it with the last of them.

    Both are one decision: a node that is not fenced could join an ISR or be elected between them.
    """
    removed = remove_from_isrs(image, node_id, rules_of, count_max)
    if removed.response == count_max:
        return removed
    return DecisionResult(removed.response, [*removed.records, *fence(image, node_id).records])


def fence(image: ClusterImage, node_id: int) -> DecisionResult[None]:
    """Record that a node has no process, once it is in no ISR."""
    node = image.nodes.get(node_id)
    if node is None:
        return DecisionResult(None)
    changed = node._replace(fenced=True, shutting_down=False, incarnation=NO_PROCESS)
    return DecisionResult(None, [] if changed == node else [node_record(changed)])


def begin_shutdown(image: ClusterImage, node_id: int) -> DecisionResult[None]:
    """Record that a node shuts down: it joins no ISR and is not elected, while it still runs."""
    node = image.nodes.get(node_id)
    if node is None or node.fenced or node.shutting_down:
        return DecisionResult(None)
    return DecisionResult(None, [node_record(node._replace(shutting_down=True))])


def register(image: ClusterImage, node_id: int, incarnation: int) -> DecisionResult[None]:
    """Register a process in the next node epoch, unless the node was removed."""
    node = image.nodes.get(node_id)
    if node is None:
        return DecisionResult(None)
    changed = node._replace(
        fenced=False,
        shutting_down=False,
        incarnation=incarnation,
        node_epoch=node.node_epoch + 1,
    )
    return DecisionResult(None, [node_record(changed)])


def take_over(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Have no process of a node lead or follow, before its next one begins; return the number of
    partitions that have changed.

    For the node that hosts the controller, while no other decision can be made: what it led may
    elect it again, as nothing was committed without it, and other leaders count it no longer.
    """

    def changed(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        rules = rules_of(topic)
        if partition.leader == node_id:
            return change(partition, rules, lambda other: False)
        isr = [member for member in partition.isr if member != node_id]
        return change(partition, rules, image.is_active, isr=isr)

    own = (
        (topic, index, partition)
        for topic, index, partition in image.replicas_on(node_id)
        if len(partition.replicas) > 1
        and partition.leader != NO_LEADER
        and (partition.leader == node_id or node_id in partition.isr)
    )
    return change_partitions(own, changed, count_max)


def lost_replicas(
    image: ClusterImage, node_id: int, logs: Sequence[RegisteredLog]
) -> set[PartitionId]:
    """Return the partitions of which a node has lost its replica: those that its process knew when
    it reported its logs, and not partitions that were created since."""
    lost = {
        (each.topic_id, each.partition)
        for each in logs
        if each.is_damaged or each.end_offset == NO_LOG
    }
    return {
        (topic.topic_id, index)
        for topic, index, partition in image.replicas_on(node_id)
        if len(partition.replicas) > 1 and (topic.topic_id, index) in lost
    }


def take_leaders(
    image: ClusterImage, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Take the leaders from replicated partitions when the broker starts; return the number."""

    def changed(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        return change(partition, rules_of(topic), lambda node_id: False)

    led = (
        (topic, index, partition)
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if len(partition.replicas) > 1 and partition.leader != NO_LEADER
    )
    return change_partitions(led, changed, count_max)
