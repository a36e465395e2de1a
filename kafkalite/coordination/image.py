"""ClusterImage: nodes, topics, leaders and configs as of one metadata record.

It is updated in place, record by record, without copies; the cost of a lookup does not depend on
the number of partitions.

Configs of a topic are kept with the topic.  All others are in `configs`, by resource type and name;
for brokers, the name "" is the cluster-wide default and "3" is node 3.

Left out: ACLs (they come with their APIs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

from kafkalite.config.resources import SCOPES, Resource
from kafkalite.config.topic import WORKER_DEDICATED
from kafkalite.coordination.partition_image import (
    Nodes,
    PartitionImage,
    change_record,
    new_partition,
    partition_of,
    partition_record,
    with_change,
)
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.errors import UnknownTopicId, UnknownTopicOrPartition
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.internal import (
    CLUSTER,
    CONFIG,
    FEATURE,
    NODE,
    PARTITION,
    PARTITION_CHANGE,
    PARTITIONS,
    REMOVE_NODE,
    REMOVE_TOPIC,
    TOPIC,
    TypedRecord,
)

SUPERVISOR_ID = 0
"""The node that hosts the controller, and in a cluster without workers all partitions."""


NO_PROCESS = -1
"""The incarnation of a node without a registered process."""

DELETED_MAX = 10_000
"""Maximum number of deleted topics in the image."""

RUN_MAX = 10_000
"""Maximum number of replicas in one record of new partitions."""


class NodeImage(NamedTuple):
    """One node, which clients see as a broker once it has a listener."""

    node_id: int
    host: str
    port: int  # 0: no listener yet
    rack: str | None = None
    # a dedicated node leads one partition and is removed with its topic; a draining one gets no new
    # partitions
    dedicated: bool = False
    draining: bool = False
    node_epoch: int = 0
    """Increases with every process of the node; "broker epoch" on the wire."""
    fenced: bool = False
    """True while no process of the node is registered."""
    shutting_down: bool = False
    incarnation: int = NO_PROCESS
    """The launcher's number of the registered process."""
    log_directory: str = ""
    """The directory of log.dirs in which it keeps its logs; "" if there is only one."""

    @property
    def is_active(self) -> bool:
        """True if replicas on the node may lead and join the ISR."""
        return not (self.fenced or self.shutting_down)


@dataclass(slots=True)
class TopicImage:
    """One topic; its partitions are in the order of their indexes, without gaps."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionImage] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    cached_partitions: Any = field(default=None, compare=False, repr=False)
    """Partitions as a handler caches them for responses, until one of them changes."""

    @property
    def internal(self) -> bool:
        """True if a coordinator writes to the topic."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """The number of replicas of partition 0."""
        return len(self.partitions[0].replicas)

    @property
    def dedicated(self) -> bool:
        """True if each partition has a worker of its own."""
        text = self.config.get(WORKER_DEDICATED.name)
        return WORKER_DEDICATED.default if text is None else WORKER_DEDICATED.parse(text)


class ClusterImage:
    """The cluster as of one record of its metadata log."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.nodes: dict[int, NodeImage] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.next_node_id = 0
        """Greater than all node ids ever used: the id of a removed node is not used again."""
        self.deleted: dict[bytes, str] = {}
        """The names of the newest DELETED_MAX deleted topics, by id.

        A node may delete what it has left of these, even if it was down during the deletion; what
        is left of older ones is kept as `-stray`.
        """
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        """Configs of resources other than topics; a resource without any has no entry."""
        self.features: dict[str, int] = {}
        """The finalized level of each feature; 0 of one that was disabled."""
        self._led_count: Counter[int] = Counter()
        self._replica_count: dict[int, dict[bytes, int]] = {}
        """By node and topic id, how many replicas a node has."""

    @property
    def controller_id(self) -> int:
        """The node that hosts the controller: the lowest id, since node 0 is the supervisor."""
        return min(self.nodes, default=-1)

    @property
    def workers(self) -> list[int]:
        """The nodes that share the partitions, other than node 0 and dedicated ones."""
        return sorted(
            node.node_id
            for node in self.nodes.values()
            if node.node_id != SUPERVISOR_ID and not node.dedicated
        )

    @property
    def placeable(self) -> list[int]:
        """The nodes that may get partitions: workers with a listener that are not draining.

        Without workers that is node 0.  If no worker has a listener yet, all that are not draining.
        """
        workers = self.workers
        if not workers:
            return [SUPERVISOR_ID]
        staying = [node_id for node_id in workers if not self.nodes[node_id].draining]
        return [node_id for node_id in staying if self.nodes[node_id].port] or staying

    @property
    def internal_nodes(self) -> list[int]:
        """The nodes that may have replicas of internal topics: node 0, which leads them, first."""
        return [*dict.fromkeys((SUPERVISOR_ID, *self.placeable))]

    def is_active(self, node_id: int) -> bool:
        """Return whether a node exists, and its replicas may lead and join the ISR."""
        node = self.nodes.get(node_id)
        return node is not None and node.is_active

    def led_count(self, node_id: int) -> int:
        """Return the number of partitions that a node leads."""
        return self._led_count[node_id]

    def sole_replica_count(self, node_id: int) -> int:
        """Return the number of partitions whose only replica is on a node."""
        return sum(not partition.is_replicated for _, _, partition in self.replicas_on(node_id))

    def replica_count(self, node_id: int, topic_id: bytes | None = None) -> int:
        """Return the number of replicas on a node, of all topics or of one."""
        counts = self._replica_count.get(node_id, {})
        return sum(counts.values()) if topic_id is None else counts.get(topic_id, 0)

    def replicas_on(self, node_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Yield the partitions with a replica on a node, as (topic, index, partition)."""
        for topic_id, count in self._replica_count.get(node_id, {}).items():
            topic = self.topics_by_id[topic_id]
            found = (
                (topic, index, partition)
                for index, partition in topic.partitions.items()
                if node_id in partition.replicas
            )
            yield from islice(found, count)

    def topic(self, name: str) -> TopicImage:
        """Return a topic by name."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition()
        return topic

    def topic_by_id(self, topic_id: bytes) -> TopicImage:
        """Return a topic by id."""
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId()
        return topic

    def config_of(self, kind: int, name: str) -> Mapping[str, str]:
        """Return what is set on a resource; raise UnknownTopicOrPartition for an unknown topic."""
        if kind == Resource.TOPIC:
            return self.topic(name).config
        return self.configs.get((kind, name), {})

    def replicas_of(self, topic: str, index: int, topic_id: bytes) -> Nodes:
        """Return the nodes that are replicas of a partition, none if it is in no topic; NO_ID, of a
        log whose topic id was lost, counts as the topic's."""
        known = self.topics.get(topic)
        partition = known.partitions.get(index) if known is not None else None
        if known is None or partition is None or topic_id not in (known.topic_id, NO_ID):
            return ()
        return partition.replicas

    def replay(self, record: TypedRecord) -> None:
        """Apply one record."""
        self._REPLAY[record.kind.key](self, record)

    def records(self) -> Iterator[TypedRecord]:
        """Yield the fewest records that reproduce this image."""
        if self.cluster_id:
            yield CLUSTER(cluster_id=self.cluster_id)
        for node in self.nodes.values():
            yield node_record(node)
        if self.next_node_id > max(self.nodes, default=-1) + 1:
            yield REMOVE_NODE(node_id=self.next_node_id - 1)
        for topic_id, name in self.deleted.items():
            # Before the existing topics: one of them may have the same name.
            yield TOPIC(name=name, topic_id=topic_id)
            yield REMOVE_TOPIC(topic_id=topic_id)
        for topic in self.topics.values():
            yield from topic_records(topic)
        for (kind, name), config in self.configs.items():
            yield from config_records(kind, name, config)
        for name, level in self.features.items():
            yield FEATURE(name=name, level=level)

    def _cluster(self, record: TypedRecord) -> None:
        assert self.cluster_id in ("", record.fields["cluster_id"]), "a cluster keeps its id"
        self.cluster_id = record.fields["cluster_id"]

    def _node(self, record: TypedRecord) -> None:
        node = NodeImage(**record.fields)
        self.nodes[node.node_id] = node
        self.next_node_id = max(self.next_node_id, node.node_id + 1)

    def _remove_node(self, record: TypedRecord) -> None:
        node_id = record.fields["node_id"]
        assert not self.led_count(node_id), "a node that leads partitions is not removed"
        # A snapshot has such a record for an unknown node, so that its id is not used again.
        self.nodes.pop(node_id, None)
        for kind in (Resource.BROKER, Resource.BROKER_LOGGER):
            self.configs.pop((kind, str(node_id)), None)
        self.next_node_id = max(self.next_node_id, node_id + 1)

    def _topic(self, record: TypedRecord) -> None:
        topic = TopicImage(record.fields["name"], record.fields["topic_id"])
        assert topic.name not in self.topics and topic.topic_id not in self.topics_by_id
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic

    def _partition(self, record: TypedRecord) -> None:
        fields = record.fields
        topic = self.topics_by_id[fields["topic_id"]]
        partitions = topic.partitions
        assert fields["partition"] <= len(partitions), "partitions come in their order"
        self._set_partition(topic, fields["partition"], partition_of(fields))

    def _partition_change(self, record: TypedRecord) -> None:
        fields = record.fields
        topic = self.topics_by_id[fields["topic_id"]]
        index = fields["partition"]
        self._set_partition(topic, index, with_change(topic.partitions[index], fields))

    def _set_partition(self, topic: TopicImage, index: int, after: PartitionImage) -> None:
        topic.cached_partitions = None
        before = topic.partitions.get(index)
        if before is not None:
            self._led_count[before.leader] -= 1
        self._led_count[after.leader] += 1
        if before is None or before.replicas != after.replicas:
            self._count_replicas(topic.topic_id, before.replicas if before else (), -1)
            self._count_replicas(topic.topic_id, after.replicas, 1)
        topic.partitions[index] = after

    def _partitions(self, record: TypedRecord) -> None:
        fields = record.fields
        topic = self.topics_by_id[fields["topic_id"]]
        topic.cached_partitions = None
        partitions, replicas, factor = topic.partitions, fields["replicas"], fields["factor"]
        assert fields["first"] == len(partitions), "new partitions come behind those there are"
        assert factor >= 1 and len(replicas) % factor == 0, "all partitions have all replicas"
        ranks = [replicas[rank::factor] for rank in range(factor)]
        partitions.update(enumerate(map(new_partition, *ranks), len(partitions)))
        self._led_count.update(ranks[0])
        for node_id, count in Counter(replicas).items():
            self._count_replicas(topic.topic_id, (node_id,), count)

    def _remove_topic(self, record: TypedRecord) -> None:
        topic = self.topics_by_id.pop(record.fields["topic_id"])
        self.deleted[topic.topic_id] = topic.name
        if len(self.deleted) > DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]
        del self.topics[topic.name]
        self._led_count.subtract(partition.leader for partition in topic.partitions.values())
        for counts in self._replica_count.values():
            counts.pop(topic.topic_id, None)

    def _config(self, record: TypedRecord) -> None:
        fields = record.fields
        kind, name = fields["resource_type"], fields["resource_name"]
        assert kind in SCOPES, "a config is of a kind that has configs"
        if kind == Resource.TOPIC:
            config = self.topics[name].config
        else:
            config = self.configs.setdefault((kind, name), {})
        if fields["value"] is not None:
            config[fields["name"]] = fields["value"]
            return
        config.pop(fields["name"], None)
        if not config:
            self.configs.pop((kind, name), None)

    def _feature(self, record: TypedRecord) -> None:
        self.features[record.fields["name"]] = record.fields["level"]

    def _count_replicas(self, topic_id: bytes, node_ids: Iterable[int], more: int) -> None:
        for node_id in node_ids:
            counts = self._replica_count.setdefault(node_id, {})
            counts[topic_id] = counts.get(topic_id, 0) + more
            if not counts[topic_id]:
                del counts[topic_id]

    _REPLAY: dict[int, Callable[[ClusterImage, TypedRecord], None]] = {
        CLUSTER.key: _cluster,
        NODE.key: _node,
        REMOVE_NODE.key: _remove_node,
        TOPIC.key: _topic,
        PARTITION.key: _partition,
        PARTITION_CHANGE.key: _partition_change,
        REMOVE_TOPIC.key: _remove_topic,
        CONFIG.key: _config,
        PARTITIONS.key: _partitions,
        FEATURE.key: _feature,
    }


def node_record(node: NodeImage) -> TypedRecord:
    """Return the record that adds or changes a node."""
    return NODE(**node._asdict())


def topic_records(topic: TopicImage) -> Iterator[TypedRecord]:
    """Yield the records that add a topic with its partitions and configs."""
    yield TOPIC(name=topic.name, topic_id=topic.topic_id)
    yield from new_partition_records(topic.topic_id, topic.partitions)
    yield from config_records(Resource.TOPIC, topic.name, topic.config)


def new_partition_records(
    topic_id: bytes, partitions: dict[int, PartitionImage]
) -> Iterator[TypedRecord]:
    """Yield the records that add consecutive partitions: one per run of new ones of a factor."""
    for factor, run in groupby(partitions.items(), lambda item: _factor_of_new(item[1])):
        if not factor:
            yield from partition_records(topic_id, dict(run))
            continue
        while some := list(islice(run, max(1, RUN_MAX // factor))):
            replicas = [*chain.from_iterable(partition.replicas for _, partition in some)]
            yield PARTITIONS(topic_id=topic_id, first=some[0][0], replicas=replicas, factor=factor)


def _factor_of_new(partition: PartitionImage) -> int:
    """Return the number of replicas of a new partition, 0 of another one."""
    return len(partition.replicas) if partition.is_new else 0


def partition_records(
    topic_id: bytes, partitions: dict[int, PartitionImage]
) -> Iterator[TypedRecord]:
    """Yield the records that add partitions which are not new."""
    for index, partition in partitions.items():
        yield partition_record(topic_id, index, partition)


def change_records(
    topic: TopicImage, changed: Mapping[int, PartitionImage]
) -> Iterator[TypedRecord]:
    """Yield the records that change partitions of a topic."""
    for index, partition in changed.items():
        yield change_record(topic.topic_id, index, topic.partitions[index], partition)


def config_records(kind: int, name: str, config: Mapping[str, str | None]) -> Iterator[TypedRecord]:
    """Yield the records that set configs of a resource; None deletes a key."""
    for key, text in config.items():
        yield CONFIG(resource_type=kind, resource_name=name, name=key, value=text)
