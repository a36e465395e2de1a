"""Leadership: elections after a node fails, returns or shuts down, and at a client's request.

    fence       the node's process has ended: it leaves every ISR, others lead
    unfence     its process has applied the image: partitions without a leader may elect it
    shut down   as fence, while the process still runs and hands its leaderships over

A partition with one replica keeps its leader and ISR: no other node could lead it, and this one is
back in a fraction of a second.

The partitions of one node may be many, so each function takes at most `count_max` of them, those
that are without a leader first; it is called again until it returns no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from kafkalite.coordination.image import ClusterImage, TopicImage, change_records, node_record
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.replication.alter_partition import RulesOf
from kafkalite.coordination.replication.election import ElectionType
from kafkalite.coordination.replication.partition_change import change
from kafkalite.coordination.replication.partition_image import (
    NO_LEADER,
    PartitionImage,
    RecoveryState,
)
from kafkalite.coordination.replication.recovery_election import (
    ReplicaLogEnd,
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

Located = tuple[TopicImage, int, PartitionImage]


def leave(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Remove a node from the ISR of its partitions and elect other leaders.

    Returns the number of partitions that change: fewer than `count_max` at the last call.  Those
    that the node leads come first, since they are unavailable.
    """
    is_active = _active(image, without=node_id)
    records: list[TypedRecord] = []
    for topic, index, partition in islice(_left_by(image, node_id), count_max):
        isr = [member for member in partition.isr if member != node_id]
        changed = change(partition, rules_of(topic), is_active, isr=isr)
        records += change_records(topic, {index: changed})
    return DecisionResult(len(records), records)


def _left_by(image: ClusterImage, node_id: int) -> Iterator[Located]:
    """Yield the partitions whose ISR loses a node, those that it leads first."""
    for leads in (True, False):
        for topic, index, partition in image.replicas_on(node_id):
            if (partition.leader == node_id) is leads and _is_left(partition, node_id):
                yield topic, index, partition


def _is_left(partition: PartitionImage, node_id: int) -> bool:
    return (
        len(partition.replicas) > 1
        and (partition.leader == node_id or node_id in partition.isr)
        and partition.recovery_state is not RecoveryState.AWAITING_LOG_ENDS
    )


def set_state(
    image: ClusterImage, node_id: int, *, fenced: bool, shutting_down: bool, node_epoch: int
) -> DecisionResult[None]:
    """Set the state of a node that exists."""
    node = image.nodes[node_id]
    changed = node._replace(fenced=fenced, shutting_down=shutting_down, node_epoch=node_epoch)
    return DecisionResult(None, [] if changed == node else [node_record(changed)])


def lose_tail(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Remove a node that may have lost records from ISR and ELR of its partitions; as `leave`."""
    is_active = _active(image, without=node_id)
    records: list[TypedRecord] = []
    for topic, index, partition in image.replicas_on(node_id):
        if len(records) == count_max:
            break
        if len(partition.replicas) > 1 and node_id in (*partition.isr, *partition.elr):
            changed = change(partition, rules_of(topic), is_active, lost=(node_id,))
            if changed is not partition:
                records += change_records(topic, {index: changed})
    return DecisionResult(len(records), records)


def elect_missing(
    image: ClusterImage, node_id: int, rules_of: RulesOf, count_max: int = CHANGED_MAX
) -> DecisionResult[int]:
    """Elect leaders of partitions that have none and a replica on an active node; as `leave`."""
    is_active = _active(image)
    records: list[TypedRecord] = []
    for topic, index, partition in image.replicas_on(node_id):
        if len(records) == count_max:
            break
        if partition.leader == NO_LEADER:
            changed = change(partition, rules_of(topic), is_active)
            if changed is not partition:
                records += change_records(topic, {index: changed})
    return DecisionResult(len(records), records)


def begin_recovery(image: ClusterImage, count_max: int = CHANGED_MAX) -> DecisionResult[int]:
    """Take the leaders from partitions with several replicas after a power failure; as `leave`."""
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
            changed = change(partition, rules_of(topic), _active(image), election=kind)
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


def prefer(
    image: ClusterImage,
    partitions: Iterable[Located],
    rules_of: RulesOf,
    count_max: int = CHANGED_MAX,
) -> DecisionResult[int]:
    """Move leaderships to the preferred replicas that are valid; return how many moved."""
    is_active = _active(image)
    records: list[TypedRecord] = []
    for topic, index, partition in partitions:
        if len(records) == count_max:
            break
        changed = change(partition, rules_of(topic), is_active, election=ElectionType.PREFERRED)
        if changed is not partition:
            records += change_records(topic, {index: changed})
    return DecisionResult(len(records), records)


def _active(image: ClusterImage, without: int | None = None) -> Callable[[int], bool]:
    """Return the predicate of the nodes that may lead."""
    active = {n for n, node in image.nodes.items() if node.is_active and n != without}
    return active.__contains__
