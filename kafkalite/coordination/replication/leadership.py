"""Leadership: elections after a node fails, returns or shuts down, and at a client's request.

    fence       the node's process has ended: it leaves every ISR, others lead
    register    its next process runs: partitions without a leader may elect it
    shut down   as fence, while the process still runs: others lead before it ends

A partition with one replica keeps its leader and ISR: no other node could lead it, and this one is
restarted within a fraction of a second.

A node may have many partitions, so a decision changes at most `count_max` of them and returns their
number.  It is repeated until it returns fewer than `count_max`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from kafkalite.coordination.image import ClusterImage, TopicImage, change_records
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage, RecoveryState
from kafkalite.coordination.replication.election import ElectionType
from kafkalite.coordination.replication.partition_change import RulesOf, change
from kafkalite.coordination.replication.recovery_election import (
    ReplicaLogEnd,
    accept_loss,
    await_log_ends,
    recover,
)
from kafkalite.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.internal import TypedRecord

CHANGED_MAX = 1_000
"""Default maximum number of partitions that one decision changes."""

LocatedPartition = tuple[TopicImage, int, PartitionImage]


def remove_from_isrs(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Remove a node from the ISR of its partitions and elect other leaders.

    The partitions that the node leads come first, since they are unavailable.
    """

    def changed(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        isr = [member for member in partition.isr if member != node_id]
        return change(partition, rules_of(topic), _other_is_active(image, node_id), isr=isr)

    return change_partitions(_with_isr_member(image, node_id), changed, count_max)


def _with_isr_member(image: ClusterImage, node_id: int) -> Iterator[LocatedPartition]:
    """Yield the partitions whose ISR would lose a node, those that it leads first."""
    for leads in (True, False):
        for topic, index, partition in image.replicas_on(node_id):
            is_leader = partition.leader == node_id
            if (
                is_leader is leads
                and len(partition.replicas) > 1
                and (is_leader or node_id in partition.isr)
            ):
                yield topic, index, partition


def is_needed(image: ClusterImage, node_id: int, running: Collection[int]) -> bool:
    """Return whether a node is in sync in a partition of which another replica is not, although its
    node has a process."""
    return any(
        node_id in partition.isr
        and any(n not in partition.isr and n in running for n in partition.replicas)
        for _, _, partition in image.replicas_on(node_id)
    )


def remove_after_loss(
    image: ClusterImage,
    node_id: int,
    rules_of: RulesOf,
    lost: Collection[tuple[bytes, int]] | None = None,
    count_max: int = CHANGED_MAX,
) -> DecisionResult[int]:
    """Remove a node that may have lost records from ISR and ELR of its partitions, or of those in
    `lost`, by topic id and index."""

    def changed(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        others = _other_is_active(image, node_id)
        return change(partition, rules_of(topic), others, lost=(node_id,))

    eligible = (
        (topic, index, partition)
        for topic, index, partition in image.replicas_on(node_id)
        if len(partition.replicas) > 1
        and node_id in (*partition.isr, *partition.elr, *partition.last_known_elr)
        and (lost is None or (topic.topic_id, index) in lost)
    )
    return change_partitions(eligible, changed, count_max)


def elect_missing(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Elect leaders of partitions that have none, and have a replica on this active node."""

    def changed(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        return change(partition, rules_of(topic), image.is_active)

    without_leader = (
        (topic, index, partition)
        for topic, index, partition in image.replicas_on(node_id)
        if partition.leader == NO_LEADER
    )
    return change_partitions(without_leader, changed, count_max)


def begin_recovery(image: ClusterImage, count_max: int = CHANGED_MAX) -> DecisionResult[int]:
    """Take the leaders from partitions with several replicas after a power failure."""
    records: list[TypedRecord] = []
    for topic in image.topics.values():
        waiting = {
            index: await_log_ends(partition)
            for index, partition in topic.partitions.items()
            if len(partition.replicas) > 1
            and partition.recovery_state is not RecoveryState.AWAITING_LOG_ENDS
        }
        records += islice(change_records(topic, waiting), count_max - len(records))
    return DecisionResult(len(records), records)


def complete_recovery(
    topic: TopicImage, index: int, ends: Sequence[ReplicaLogEnd], missing_max: int
) -> DecisionResult[PartitionImage | None]:
    """Elect the leader of a partition by the ends of its logs, once enough are known."""
    recovered = recover(topic.partitions[index], ends, missing_max)
    if recovered is None:
        return DecisionResult(None)
    return DecisionResult(recovered, [*change_records(topic, {index: recovered})])


class ElectionOutcome(NamedTuple):
    """The outcome of a client's election for one partition."""

    topic: str
    partition: int
    error: KafkaError | None


def elect_leaders(
    image: ClusterImage,
    kind: ElectionType,
    wanted: Mapping[str, Sequence[int]],
    rules_of: RulesOf,
) -> DecisionResult[list[ElectionOutcome]]:
    """Elect leaders of these partitions (ElectLeaders, KIP-460); return an outcome for each."""
    outcomes = []
    records: list[TypedRecord] = []
    for name, indexes in wanted.items():
        topic = image.topics.get(name)
        for index in dict.fromkeys(indexes):
            partition = topic.partitions.get(index) if topic is not None else None
            if topic is None or partition is None:
                outcomes.append(ElectionOutcome(name, index, UnknownTopicOrPartition()))
                continue
            is_waiting = partition.recovery_state is RecoveryState.AWAITING_LOG_ENDS
            if is_waiting and kind is ElectionType.UNCLEAN:
                changed = accept_loss(partition, image.is_active)
            else:
                changed = change(partition, rules_of(topic), image.is_active, election=kind)
            if changed is not partition:
                records += change_records(topic, {index: changed})
            outcomes.append(ElectionOutcome(name, index, _error(kind, partition, changed)))
    return DecisionResult(outcomes, records)


def _error(
    kind: ElectionType, before: PartitionImage, after: PartitionImage
) -> KafkaError | None:
    """Return the error of an election, as in Kafka."""
    if kind is ElectionType.PREFERRED:
        if before.leader == before.replicas[0]:
            return ElectionNotNeeded()
        return None if after.leader == after.replicas[0] else PreferredLeaderNotAvailable()
    if before.leader != NO_LEADER:
        return ElectionNotNeeded()
    return None if after.leader != NO_LEADER else EligibleLeadersNotAvailable()


def elect_preferred(
    image: ClusterImage,
    partitions: Iterable[LocatedPartition],
    rules_of: RulesOf,
    count_max: int = CHANGED_MAX,
) -> DecisionResult[int]:
    """Elect the preferred replicas of partitions, where they are valid leaders."""

    def changed(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        rules = rules_of(topic)
        return change(partition, rules, image.is_active, election=ElectionType.PREFERRED)

    return change_partitions(partitions, changed, count_max)


def imbalanced(image: ClusterImage, percentage: int) -> Iterator[LocatedPartition]:
    """Yield the partitions that active nodes do not lead as preferred leaders, of each node that
    does not lead more than this percentage of those it should."""
    preferred: Counter[int] = Counter()
    elsewhere: dict[int, list[LocatedPartition]] = {}
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            if partition.is_replicated:
                node_id = partition.replicas[0]
                preferred[node_id] += 1
                if partition.leader != node_id:
                    elsewhere.setdefault(node_id, []).append((topic, index, partition))
    for node_id, partitions in elsewhere.items():
        is_above = len(partitions) * 100 > percentage * preferred[node_id]
        if is_above and image.is_active(node_id) and not image.nodes[node_id].draining:
            yield from partitions


def change_partitions(
    partitions: Iterable[LocatedPartition],
    changed: Callable[[TopicImage, PartitionImage], PartitionImage],
    count_max: int,
) -> DecisionResult[int]:
    """Change partitions until `count_max` of them have changed; return the number."""
    records: list[TypedRecord] = []
    for topic, index, partition in partitions:
        if len(records) == count_max:
            break
        after = changed(topic, partition)
        if after is not partition:
            records += change_records(topic, {index: after})
    return DecisionResult(len(records), records)


def _other_is_active(image: ClusterImage, node_id: int) -> Callable[[int], bool]:
    """Return whether a node other than this one is active, as a function of its id."""
    return lambda other: other != node_id and image.is_active(other)
