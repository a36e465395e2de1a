"""Topics: the controller's decisions about creation, deletion and partition counts.

Each function reads the image and returns a response and its records.  A topic of a request succeeds
or fails independently of the others; placement.py and followers.py choose the nodes of its
replicas.  All partitions of a topic are created with the same number of replicas.

Left out: more than one replica of a partition on a dedicated worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkalite.config.topic import TOPIC as TOPIC_SCOPE
from kafkalite.config.topic import check_compaction_lags
from kafkalite.coordination import topic_names
from kafkalite.coordination.followers import FollowerPlacement
from kafkalite.coordination.image import (
    SUPERVISOR_ID,
    ClusterImage,
    TopicImage,
    new_partition_records,
    node_record,
    topic_records,
)
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.nodes import Placer
from kafkalite.coordination.partition_image import Nodes, PartitionImage, new_partition
from kafkalite.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    PolicyViolation,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kafkalite.ids import METADATA_TOPIC
from kafkalite.protocol.schemas.internal import REMOVE_NODE, REMOVE_TOPIC, TypedRecord

NEW_PARTITIONS_MAX = 10_000
"""Maximum number of partitions created by one request: one batch of records, one pause of the node.
"""

DEFAULT = -1
"""In a request: use the broker's default."""


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    # (partition, nodes of its replicas), if the client assigns them
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    config: Mapping[str, str | None] = {}


class TopicDefaults(NamedTuple):
    """Defaults of a new topic."""

    partition_count: int
    replication_factor: int


class PartitionGrowth(NamedTuple):
    """A topic whose partition count is to grow."""

    name: str
    partition_count: int
    # the nodes of each new partition's replicas, or None to have them placed
    assignments: Sequence[Sequence[int]] | None = None


class WantedPartitions(NamedTuple):
    """New partitions of a topic."""

    assigned: Mapping[int, Nodes | None]
    """The nodes that the client assigned to the replicas of each, None if it assigned none."""
    factor: int


# -- decisions -----------------------------------------------------------------------------------


def create(
    image: ClusterImage,
    wanted: Sequence[NewTopic],
    topic_ids: Sequence[bytes],
    defaults: TopicDefaults,
    placer: Placer,
    *,
    metric_names: Mapping[str, str],
    created_count: int,
) -> DecisionResult[dict[str, TopicImage | KafkaError]]:
    """Create topics independently of each other; return an image or an error for each.

    `metric_names` has the names of the existing topics by their metric names.
    """
    assert len({new.name for new in wanted}) == len(wanted) == len(topic_ids)
    results: dict[str, TopicImage | KafkaError] = {}
    records: list[TypedRecord] = []
    new_metric_names: dict[str, str] = {}
    left = NEW_PARTITIONS_MAX - created_count
    for new, topic_id in zip(wanted, topic_ids, strict=True):
        try:
            _check_name(image, new.name, metric_names, new_metric_names)
            partitions = _first_partitions(image, new, defaults, left)
            topic = TopicImage(new.name, topic_id, config=_checked_config(new.config))
            _place(image, topic, partitions, placer)
        except KafkaError as error:
            results[new.name] = error.copy()
            continue
        results[new.name] = topic
        records.extend(topic_records(topic))
        new_metric_names[topic_names.metric_name(new.name)] = new.name
        left -= len(topic.partitions)
    return DecisionResult(results, [*map(node_record, placer.created), *records])


def create_internal(
    image: ClusterImage,
    name: str,
    topic_id: bytes,
    partition_count: int,
    config: Mapping[str, str],
    factor: int = 1,
) -> DecisionResult[None]:
    """Create a coordinator's topic, led by the supervisor and followed by workers, unless it
    exists."""
    assert name in topic_names.INTERNAL_TOPICS
    if name in image.topics:
        return DecisionResult(None)
    leaders = dict.fromkeys(range(partition_count), SUPERVISOR_ID)
    placed = FollowerPlacement(image, image.internal_nodes).place(topic_id, leaders, factor)
    partitions = {index: _created(image, node_ids) for index, node_ids in placed.items()}
    topic = TopicImage(name, topic_id, partitions, _checked_config(config))
    return DecisionResult(None, [*topic_records(topic)])


def delete(
    image: ClusterImage, names: Mapping[bytes, str]
) -> DecisionResult[dict[str, None | KafkaError]]:
    """Delete topics, given by id with their names, and their dedicated nodes.

    Return None or an error for each name.
    """
    results: dict[str, None | KafkaError] = {}
    records: list[TypedRecord] = []
    for topic_id, name in names.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None or topic.internal:
            results[name] = _of_the_broker(name) if topic else UnknownTopicOrPartition()
            continue
        results[name] = None
        records.append(REMOVE_TOPIC(topic_id=topic_id))
        leaders = {partition.leader for partition in topic.partitions.values()}
        alone = [n for n in leaders if n in image.nodes and image.nodes[n].dedicated]
        records += [REMOVE_NODE(node_id=node_id) for node_id in sorted(alone)]
    return DecisionResult(results, records)


def create_partitions(
    image: ClusterImage,
    wanted: Sequence[PartitionGrowth],
    placer: Placer,
    *,
    created_count: int,
) -> DecisionResult[dict[str, None | KafkaError]]:
    """Increase partition counts independently of each other; return None or an error for each."""
    assert len({growth.name for growth in wanted}) == len(wanted)
    results: dict[str, None | KafkaError] = {}
    records: list[TypedRecord] = []
    left = NEW_PARTITIONS_MAX - created_count
    for growth in wanted:
        try:
            topic = image.topic(growth.name)
            if topic.internal:
                raise _of_the_broker(topic.name)
            grown = TopicImage(topic.name, topic.topic_id, config=topic.config)
            _place(image, grown, _more_partitions(image, topic, growth, left), placer)
        except KafkaError as error:
            results[growth.name] = error.copy()
            continue
        results[growth.name] = None
        records.extend(new_partition_records(topic.topic_id, grown.partitions))
        left -= len(grown.partitions)
    return DecisionResult(results, [*map(node_record, placer.created), *records])


# -- validation ----------------------------------------------------------------------------------


def _check_name(
    image: ClusterImage,
    name: str,
    metric_names: Mapping[str, str],
    new_metric_names: Mapping[str, str],
) -> None:
    if name == METADATA_TOPIC or name in topic_names.INTERNAL_TOPICS:
        raise _of_the_broker(name)
    topic_names.check(name)
    if name in image.topics:
        raise TopicAlreadyExists(f"The topic {name} already exists.")
    metric_name = topic_names.metric_name(name)
    other = metric_names.get(metric_name) or new_metric_names.get(metric_name)
    if other is not None:
        raise InvalidTopicException(
            f"Topic {name} collides with topic {other}: metric names do not distinguish"
            " '.' and '_'."
        )


def _first_partitions(
    image: ClusterImage, new: NewTopic, defaults: TopicDefaults, left: int
) -> WantedPartitions:
    if new.assignments:
        if new.partition_count != DEFAULT or new.replication_factor != DEFAULT:
            raise InvalidRequest(
                "A topic with a manual assignment leaves its partition count and its"
                " replication factor at -1."
            )
        _check_count(len(new.assignments), left)
        return _assigned_first(image, new.assignments)
    count, factor = new.partition_count, new.replication_factor
    if factor == DEFAULT:
        factor = defaults.replication_factor
    if count == DEFAULT:
        count = defaults.partition_count
    if factor <= 0:
        raise InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if count <= 0:
        raise InvalidPartitions(
            f"Partition count {count} is invalid; use 1 or more, or -1 for the default."
        )
    topic_names.check_count(new.name, count)
    _check_count(count, left)
    return WantedPartitions(dict.fromkeys(range(count)), factor)


def _more_partitions(
    image: ClusterImage, topic: TopicImage, growth: PartitionGrowth, left: int
) -> WantedPartitions:
    present = len(topic.partitions)
    if growth.partition_count <= present:
        raise InvalidPartitions(
            f"Topic {topic.name} has {present} partitions; the number can only increase,"
            f" not become {growth.partition_count}."
        )
    topic_names.check_count(topic.name, growth.partition_count)
    added = range(present, growth.partition_count)
    _check_count(len(added), left)
    factor = topic.partitions[0].original_factor
    if growth.assignments is None:
        return WantedPartitions(dict.fromkeys(added), factor)
    if len(growth.assignments) != len(added):
        raise InvalidReplicaAssignment(
            f"The request adds {len(added)} partitions and assigns"
            f" {len(growth.assignments)} of them; assign all or none."
        )
    return _assigned(image, dict(zip(added, growth.assignments, strict=True)), factor)


def _assigned_first(
    image: ClusterImage, assignments: Sequence[tuple[int, Sequence[int]]]
) -> WantedPartitions:
    by_index = dict(assignments)
    if len(by_index) != len(assignments):
        raise InvalidReplicaAssignment("A partition occurs more than once in the assignment.")
    if by_index.keys() != set(range(len(by_index))):
        raise InvalidReplicaAssignment(
            "The assigned partitions must be numbered from 0 without gaps."
        )
    in_order = {index: by_index[index] for index in range(len(by_index))}
    return _assigned(image, in_order, len(in_order[0]))


def _assigned(
    image: ClusterImage, assignments: Mapping[int, Sequence[int]], factor: int
) -> WantedPartitions:
    """Return the partitions with the nodes that a request assigned to their replicas.

    Programs that expect one broker assign partitions to the first node of Metadata.  While there
    are workers that is the supervisor, which leads none, so as the only node it stands for any of
    them.
    """
    placeable = image.placeable
    assigned: dict[int, Nodes | None] = {}
    for index, node_ids in assignments.items():
        if not node_ids:
            raise InvalidReplicaAssignment(f"Partition {index} is assigned to no node.")
        if len(node_ids) != factor:
            raise InvalidReplicaAssignment(
                f"Partition {index} is assigned to {len(node_ids)} nodes, and others of the topic"
                f" have {factor} replicas; all partitions of a topic have equally many."
            )
        if len(set(node_ids)) < len(node_ids):
            raise InvalidReplicaAssignment(
                f"Partition {index} is assigned to a node more than once; replicas of a partition"
                " are on different nodes."
            )
        unknown = [node_id for node_id in node_ids if node_id not in placeable]
        is_anywhere = unknown == [SUPERVISOR_ID] == [*node_ids]
        if unknown and not is_anywhere:
            raise _not_assignable(image, index, unknown[0], placeable)
        assigned[index] = None if is_anywhere else tuple(node_ids)
    return WantedPartitions(assigned, factor)


def _not_assignable(
    image: ClusterImage, index: int, node_id: int, placeable: Sequence[int]
) -> InvalidReplicaAssignment:
    node = image.nodes.get(node_id)
    if node is None:
        why = "which is not there"
    elif node.dedicated:
        why = "which serves one partition alone"
    elif node_id == SUPERVISOR_ID:
        why = "the supervisor, which has no replicas of topics while there are workers"
    else:
        why = "which takes no partitions now"
    return InvalidReplicaAssignment(
        f"Partition {index} is assigned to node {node_id}, {why}; choose among"
        f" {', '.join(map(str, placeable))}."
    )


# -- placement -----------------------------------------------------------------------------------


def _place(
    image: ClusterImage, topic: TopicImage, wanted: WantedPartitions, placer: Placer
) -> None:
    """Set a topic's partitions: on assigned, on dedicated or on the least loaded workers."""
    assigned, factor = wanted
    open_to_us = [index for index, node_ids in assigned.items() if node_ids is None]
    placed: Mapping[int, Nodes]
    if topic.dedicated and placer.dedicates:
        placed = _dedicated(topic, wanted, placer)
    elif factor > placer.factor_max:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {factor} time(s): The target replication factor of"
            f" {factor} cannot be reached because only {placer.factor_max} broker(s) are"
            " registered."
        )
    else:
        placed = placer.replicate(topic.topic_id, open_to_us, factor)
    replicas = {index: node_ids or placed[index] for index, node_ids in assigned.items()}
    created = {each: _created(image, each) for each in {*replicas.values()}}
    topic.partitions.update((index, created[each]) for index, each in replicas.items())


def _dedicated(topic: TopicImage, wanted: WantedPartitions, placer: Placer) -> dict[int, Nodes]:
    """Create a worker for each partition."""
    if any(wanted.assigned.values()):
        raise InvalidReplicaAssignment(
            f"The topic {topic.name} has worker.dedicated=true: its partitions are on workers"
            " created for them, so assign none."
        )
    if wanted.factor > 1:
        raise InvalidReplicaAssignment(
            f"The topic {topic.name} has worker.dedicated=true: a worker created for a partition"
            f" has its only replica, so the replication factor is 1, not {wanted.factor}."
        )
    if len(wanted.assigned) > placer.dedicated_left:
        raise PolicyViolation(
            f"Topic {topic.name} needs {len(wanted.assigned)} dedicated workers, and"
            f" {placer.dedicated_left} of worker.dedicated.max={placer.dedicated_max} are left;"
            " use fewer partitions, raise that key, or create the topic without"
            " worker.dedicated."
        )
    return {index: (node_id,) for index, node_id in placer.dedicate([*wanted.assigned]).items()}


def _created(image: ClusterImage, replicas: Nodes) -> PartitionImage:
    """Return a new partition: the replicas on active nodes are in sync, and the first one leads.

    If no node is active, all are in sync, since all are empty; so is a single replica.
    """
    isr = tuple(node_id for node_id in replicas if image.is_active(node_id))
    if len(isr) in (0, len(replicas)):
        return new_partition(*replicas)
    return new_partition(*replicas)._replace(leader=isr[0], isr=isr)


def _of_the_broker(name: str) -> InvalidRequest:
    # The partition of a key depends on the partition count, and deleting the topic would delete
    # every group's offsets.
    return InvalidRequest(
        f"The internal topic {name} is created by the broker; it cannot be altered or deleted."
    )


def _check_count(count: int, left: int) -> None:
    if count > left:
        raise PolicyViolation(
            f"A request creates at most {NEW_PARTITIONS_MAX} partitions; split it."
        )


def _checked_config(config: Mapping[str, str | None]) -> dict[str, str]:
    checked = {}
    for name, text in config.items():
        key = TOPIC_SCOPE.named(name)
        if text is None:
            raise InvalidConfig(f"The config {name} has no value; omit it to use the default.")
        key.parse(text)
        checked[name] = text
    check_compaction_lags(checked)
    return checked
