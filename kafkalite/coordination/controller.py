"""Controller: the machine whose records are the cluster.

    metadata log ──replay──▶ ClusterImage, ProducerIds ──decide──▶ response + records ──▶ the log

It decides which topics there are, where their partitions lie, what their configs say, and who gets
which producer ids.  Everything it knows it has from its records.

Left out: leader elections, replicas that come and go, and reassignment (a partition is led by its
first replica for good); config changes of existing topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kafkalite.config.topic import TOPIC as TOPIC_SCOPE
from kafkalite.coordination import topic_names
from kafkalite.coordination.image import (
    ClusterImage,
    NodeImage,
    PartitionImage,
    TopicImage,
    partition_records,
    topic_records,
)
from kafkalite.coordination.machine import Result
from kafkalite.coordination.producer_ids import Block, ProducerIds
from kafkalite.errors import (
    InconsistentClusterId,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    PolicyViolation,
    TopicAlreadyExists,
)
from kafkalite.ids import METADATA_TOPIC
from kafkalite.protocol.schemas.internal import (
    CLUSTER,
    NODE,
    PRODUCER_IDS_BLOCK,
    REMOVE_TOPIC,
    TOPIC,
    Record,
)

NEW_PARTITIONS_MAX = 10_000
"""How many partitions one request may create: one batch of records, one pause of the node."""

DEFAULT = -1
"""In a request: take the broker's default."""


class NewTopic(NamedTuple):
    """A topic as somebody wants it."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    # (partition, nodes of its replicas), where the requester places them itself
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    config: Mapping[str, str | None] = {}


class Defaults(NamedTuple):
    """What a new topic gets that leaves these open."""

    partition_count: int
    replication_factor: int


class Growth(NamedTuple):
    """A topic that is to have more partitions."""

    name: str
    partition_count: int
    # the nodes of each new partition's replicas, or None to have them placed
    assignments: Sequence[Sequence[int]] | None = None


class Controller:
    """Decides for the cluster; see the module."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.producer_ids = ProducerIds()
        self._metric_names: dict[str, str] = {}

    # -- the machine -------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Take one record in."""
        if record.kind is PRODUCER_IDS_BLOCK:
            self.producer_ids.replay(record)
            return
        if record.kind is TOPIC:
            name = record.fields["name"]
            self._metric_names[topic_names.metric_name(name)] = name
        elif record.kind is REMOVE_TOPIC:
            name = self.image.topics_by_id[record.fields["topic_id"]].name
            del self._metric_names[topic_names.metric_name(name)]
        self.image.replay(record)

    def records(self) -> Iterator[Record]:
        """The fewest records that make this controller again."""
        yield from self.producer_ids.records()
        yield from self.image.records()

    # -- the cluster and its nodes -----------------------------------------------------------

    def found(self, cluster_id: str) -> Result[None]:
        """Begin as this cluster, once; another cluster's log is refused."""
        if self.image.cluster_id not in ("", cluster_id):
            raise InconsistentClusterId(
                f"it belongs to cluster {self.image.cluster_id} and the rest of the directory to"
                f" {cluster_id}; bring together what is of one cluster, or start with another one."
            )
        return Result(None, [] if self.image.cluster_id else [CLUSTER(cluster_id=cluster_id)])

    def register_node(self, node: NodeImage) -> Result[None]:
        """Take a node in, or its new address."""
        known = self.image.nodes.get(node.node_id) == node
        return Result(None, [] if known else [NODE(**node._asdict())])

    def allocate_producer_ids(self, node_id: int) -> Result[Block]:
        """Give a node its next block of producer ids."""
        return self.producer_ids.allocate(node_id)

    # -- topics ------------------------------------------------------------------------------

    def create_topics(
        self,
        wanted: Sequence[NewTopic],
        topic_ids: Sequence[bytes],
        defaults: Defaults,
        *,
        validate_only: bool = False,
    ) -> Result[dict[str, TopicImage | KafkaError]]:
        """Create topics, each for itself: the answer is its image, or what speaks against it.

        `topic_ids` are fresh ids, one a topic.
        """
        assert len({new.name for new in wanted}) == len(wanted) == len(topic_ids)
        answers: dict[str, TopicImage | KafkaError] = {}
        records: list[Record] = []
        new_metric_names: dict[str, str] = {}
        room = NEW_PARTITIONS_MAX
        for new, topic_id in zip(wanted, topic_ids, strict=True):
            try:
                self._check_name(new.name, new_metric_names)
                partitions = self._first_partitions(new, defaults, room)
                topic = TopicImage(new.name, topic_id, partitions, _checked_config(new.config))
            except KafkaError as fault:
                answers[new.name] = fault
                continue
            answers[new.name] = topic
            records.extend(topic_records(topic))
            new_metric_names[topic_names.metric_name(new.name)] = new.name
            room -= len(partitions)
        return Result(answers, [] if validate_only else records)

    def delete_topics(self, topic_ids: Sequence[bytes]) -> Result[dict[str, None | KafkaError]]:
        """Delete topics that are there: None for each name."""
        names = [self.image.topics_by_id[topic_id].name for topic_id in topic_ids]
        records = [REMOVE_TOPIC(topic_id=topic_id) for topic_id in topic_ids]
        return Result(dict.fromkeys(names), records)

    def create_partitions(
        self, wanted: Sequence[Growth], *, validate_only: bool = False
    ) -> Result[dict[str, None | KafkaError]]:
        """Give topics more partitions, each for itself: None, or what speaks against it."""
        assert len({growth.name for growth in wanted}) == len(wanted)
        answers: dict[str, None | KafkaError] = {}
        records: list[Record] = []
        room = NEW_PARTITIONS_MAX
        for growth in wanted:
            try:
                topic = self.image.topic(growth.name)
                partitions = self._more_partitions(topic, growth, room)
            except KafkaError as fault:
                answers[growth.name] = fault
                continue
            answers[growth.name] = None
            records.extend(partition_records(topic.topic_id, partitions))
            room -= len(partitions)
        return Result(answers, [] if validate_only else records)

    # -- what speaks against it --------------------------------------------------------------

    def _check_name(self, name: str, new_metric_names: Mapping[str, str]) -> None:
        if name == METADATA_TOPIC or name in topic_names.INTERNAL_TOPICS:
            raise InvalidRequest(f"The internal topic {name} is the broker's own to create.")
        topic_names.check(name)
        if name in self.image.topics:
            raise TopicAlreadyExists(f"The topic {name} already exists.")
        metric_name = topic_names.metric_name(name)
        other = self._metric_names.get(metric_name) or new_metric_names.get(metric_name)
        if other is not None:
            raise InvalidTopicException(
                f"The topic {name} would collide with {other}: in metric names '.' and '_' are one."
            )

    def _first_partitions(
        self, new: NewTopic, defaults: Defaults, room: int
    ) -> dict[int, PartitionImage]:
        if new.assignments:
            if new.partition_count != DEFAULT or new.replication_factor != DEFAULT:
                raise InvalidRequest(
                    "A topic with a manual assignment leaves its partition count and its"
                    " replication factor at -1."
                )
            _check_room(len(new.assignments), room)
            return self._placed_by_hand(new.assignments)
        count, factor = new.partition_count, new.replication_factor
        if factor == DEFAULT:
            factor = defaults.replication_factor
        if count == DEFAULT:
            count = defaults.partition_count
        if factor <= 0:
            raise InvalidReplicationFactor(
                f"The replication factor is at least 1, or -1 for the default; {factor} is neither."
            )
        if count <= 0:
            raise InvalidPartitions(
                f"A topic has at least 1 partition, or -1 for the default; {count} is neither."
            )
        _check_room(count, room)
        return self._placed(range(count), factor)

    def _more_partitions(
        self, topic: TopicImage, growth: Growth, room: int
    ) -> dict[int, PartitionImage]:
        present = len(topic.partitions)
        if growth.partition_count <= present:
            raise InvalidPartitions(
                f"The topic {topic.name} has {present} partitions; their number can only grow,"
                f" so it cannot become {growth.partition_count}."
            )
        added = range(present, growth.partition_count)
        _check_room(len(added), room)
        if growth.assignments is None:
            return self._placed(added, topic.replication_factor)
        if len(growth.assignments) != len(added):
            raise InvalidReplicaAssignment(
                f"{len(added)} partitions are to be added, and"
                f" {len(growth.assignments)} of them are assigned."
            )
        return {
            index: self._hand_placed(index, nodes, topic.replication_factor)
            for index, nodes in zip(added, growth.assignments, strict=True)
        }

    # -- where partitions lie ----------------------------------------------------------------

    def _placed(self, indexes: Iterable[int], factor: int) -> dict[int, PartitionImage]:
        """Partitions in turn over the nodes, replicas on the nodes that follow the leader."""
        nodes = sorted(self.image.nodes)
        if factor > len(nodes):
            raise InvalidReplicationFactor(
                f"The replication factor {factor} is larger than the number of nodes, {len(nodes)}."
            )
        around = nodes + nodes
        starts = {index: index % len(nodes) for index in indexes}
        return {index: _new(around[start : start + factor]) for index, start in starts.items()}

    def _placed_by_hand(
        self, assignments: Sequence[tuple[int, Sequence[int]]]
    ) -> dict[int, PartitionImage]:
        by_index = dict(assignments)
        if len(by_index) != len(assignments):
            raise InvalidReplicaAssignment("A partition is assigned twice.")
        if by_index.keys() != set(range(len(by_index))):
            raise InvalidReplicaAssignment(
                "The assigned partitions are not numbered from 0 without gaps."
            )
        factor = len(by_index[0])
        return {
            index: self._hand_placed(index, by_index[index], factor)
            for index in range(len(by_index))
        }

    def _hand_placed(self, index: int, nodes: Sequence[int], factor: int) -> PartitionImage:
        if not nodes:
            raise InvalidReplicaAssignment(f"Partition {index} is assigned to no node.")
        if len(set(nodes)) != len(nodes):
            raise InvalidReplicaAssignment(f"Partition {index} is assigned to a node twice.")
        for node_id in nodes:
            if node_id not in self.image.nodes:
                raise InvalidReplicaAssignment(
                    f"Partition {index} is assigned to node {node_id}, which is not there."
                )
        if len(nodes) != factor:
            raise InvalidReplicaAssignment(
                f"Partition {index} is assigned {len(nodes)} replicas, and others {factor}."
            )
        return _new(nodes)


def _new(replicas: Sequence[int]) -> PartitionImage:
    nodes = tuple(replicas)
    return PartitionImage(leader=nodes[0], leader_epoch=0, replicas=nodes, isr=nodes)


def _check_room(count: int, room: int) -> None:
    if count > room:
        raise PolicyViolation(
            f"One request creates at most {NEW_PARTITIONS_MAX} partitions in all."
        )


def _checked_config(config: Mapping[str, str | None]) -> dict[str, str]:
    checked = {}
    for name, text in config.items():
        key = TOPIC_SCOPE.named(name)
        if text is None:
            raise InvalidConfig(f"The config {name} has no value; leave it out for the default.")
        key.parse(text)
        checked[name] = text
    return checked
