"""Reassignments: other replicas for a partition, which copy its records first (KIP-455).

    replicas [1,2,3] ─▶ target [2,3,4]
        replicas [2,3,4,1]  adding [4]  removing [1]      while 4 fetches
        replicas [2,3,4]                                  once 2, 3 and 4 are in the ISR

partition_change.py completes it.  A new target replaces one in progress; no target cancels it.

The first replica of an internal topic's partition is node 0: as its preferred leader, it hosts the
coordinator.

Left out: partitions of dedicated workers, which have one replica at one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kafkalite.coordination.image import (
    SUPERVISOR_ID,
    ClusterImage,
    TopicImage,
    change_records,
)
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.coordination.replication.partition_change import ReplicaSet, RulesOf, change
from kafkalite.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.internal import TypedRecord

TopicPartition = tuple[str, int]


def reassign(
    image: ClusterImage,
    topic: TopicImage,
    index: int,
    target: Sequence[int] | None,
    rules_of: RulesOf,
    *,
    may_change_factor: bool = True,
) -> DecisionResult[PartitionImage]:
    """Begin a reassignment of a partition, or cancel the one in progress if `target` is None.

    Raises InvalidReplicaAssignment, InvalidReplicationFactor or NoReassignmentInProgress.
    """
    partition = topic.partitions[index]
    if target is None:
        wanted, isr = _cancelled(partition)
    else:
        _check_target(image, partition, target, may_change_factor=may_change_factor)
        wanted, isr = replica_set(partition, target), partition.isr
    changed = change(partition, rules_of(topic), image.is_active, isr=isr, replica_set=wanted)
    if changed is partition:
        return DecisionResult(partition)
    return DecisionResult(changed, [*change_records(topic, {index: changed})])


def reassign_all(
    image: ClusterImage,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    rules_of: RulesOf,
    *,
    may_change_factor: bool = True,
) -> DecisionResult[dict[TopicPartition, None | KafkaError]]:
    """Begin or cancel reassignments independently of each other; return None or an error each."""
    outcomes: dict[TopicPartition, None | KafkaError] = {}
    records: list[TypedRecord] = []
    for (name, index), target in targets.items():
        topic = image.topics.get(name)
        try:
            if topic is None:
                raise UnknownTopicOrPartition(f"Topic {name} does not exist.")
            if index not in topic.partitions:
                raise UnknownTopicOrPartition(f"Partition {name}-{index} does not exist.")
            if target is not None and topic.dedicated:
                raise InvalidReplicaAssignment(
                    f"Partition {name}-{index} has one replica at one place: its topic has"
                    " dedicated workers."
                )
            if target and topic.internal and target[0] != SUPERVISOR_ID:
                raise InvalidReplicaAssignment(
                    f"Node {SUPERVISOR_ID} must be the first replica of partition {name}-{index}:"
                    " it hosts the coordinators of the internal topics."
                )
            decided = reassign(
                image, topic, index, target, rules_of, may_change_factor=may_change_factor
            )
        except KafkaError as error:
            outcomes[name, index] = error.copy()
        else:
            outcomes[name, index] = None
            records += decided.records
    return DecisionResult(outcomes, records)


def in_progress_count(image: ClusterImage) -> int:
    """Return the number of partitions that are being reassigned."""
    return sum(
        partition.is_reassigned
        for topic in image.topics.values()
        for partition in topic.partitions.values()
    )


def replacements(
    image: ClusterImage, node_id: int, count_max: int
) -> dict[TopicPartition, Sequence[int]]:
    """Return other replicas for partitions of a node that is drained.

    The node that has the fewest replicas takes its place, of those in log directories in which no
    other replica is, if there are any.  A partition for which there is no other node is omitted.
    """
    targets: dict[TopicPartition, Sequence[int]] = {}
    placed: Counter[int] = Counter()
    for topic, index, partition in image.replicas_on(node_id):
        if len(targets) >= count_max:
            break
        if not partition.is_replicated or partition.is_reassigned:
            continue
        others = {*image.placeable} - {*partition.replicas}
        if others:
            kept = [n for n in partition.replicas if n != node_id]
            used = {image.nodes[n].log_directory for n in kept if n in image.nodes}
            new = min(
                others,
                key=lambda n: (
                    image.nodes[n].log_directory in used, image.replica_count(n) + placed[n], n
                ),
            )  # fmt: skip
            placed[new] += 1
            targets[topic.name, index] = [new if n == node_id else n for n in partition.replicas]
    return targets


def check_replaceable(image: ClusterImage, node_id: int) -> None:
    """Raise InvalidRequest if a replica on a node has no other node to move to."""
    for topic, index, partition in image.replicas_on(node_id):
        others = {*image.placeable} - {node_id, *partition.replicas}
        if partition.is_replicated and not others:
            raise InvalidRequest(
                f"Every other worker has a replica of {topic.name}-{index} already; add a worker"
                " first: kafkalite node add."
            )


def replica_set(partition: PartitionImage, target: Sequence[int]) -> ReplicaSet:
    """Return the replicas while a partition is reassigned from its present ones to `target`."""
    adding = tuple(n for n in target if n not in partition.replicas)
    removing = tuple(n for n in partition.replicas if n not in target)
    return ReplicaSet((*target, *removing), adding, removing)


def _cancelled(partition: PartitionImage) -> tuple[ReplicaSet, tuple[int, ...]]:
    if not partition.adding and not partition.removing:
        raise NoReassignmentInProgress()
    replicas = tuple(n for n in partition.replicas if n not in partition.adding)
    isr = tuple(n for n in partition.isr if n not in partition.adding)
    eligible = {*partition.isr, *partition.elr}
    if eligible and eligible <= set(partition.adding):
        raise InvalidReplicaAssignment(
            "The reassignment cannot be cancelled: only replicas that it adds have all"
            " acknowledged records."
        )
    return ReplicaSet(replicas), isr


def _check_target(
    image: ClusterImage,
    partition: PartitionImage,
    target: Sequence[int],
    *,
    may_change_factor: bool,
) -> None:
    if not target:
        raise InvalidReplicaAssignment("The replica list of a partition is empty.")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment("A node appears twice in the replica list of a partition.")
    unknown = sorted(set(target) - {*image.placeable, *partition.replicas})
    if unknown:
        raise InvalidReplicaAssignment(
            f"Node {unknown[0]} in the replica list does not exist or takes no partitions; choose"
            f" among {', '.join(map(str, image.placeable))}."
        )
    factor = partition.original_factor
    if not may_change_factor and len(target) != factor:
        raise InvalidReplicationFactor(
            f"The replication factor would change from {factor} to {len(target)}."
        )
