"""ClusterImage: nodes, topics, leaders and configs at one moment.

It changes by one record at a time and in place; nothing is copied, and a lookup costs the same
among ten thousand partitions as among ten.

Left out: dynamic broker configs, features and ACLs (they come with their APIs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.errors import UnknownTopicId, UnknownTopicOrPartition
from kafkalite.protocol.schemas.internal import (
    CLUSTER,
    CONFIG,
    NODE,
    PARTITION,
    REMOVE_TOPIC,
    TOPIC,
    TOPIC_RESOURCE,
    Record,
)


class NodeImage(NamedTuple):
    """One node: what clients see as a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionImage(NamedTuple):
    """Who holds a partition, and who leads it under which epoch."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(slots=True)
class TopicImage:
    """One topic; its partitions are in the order of their numbers, without gaps."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionImage] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        """Whether a coordinator writes it."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """How many replicas its first partition has."""
        return len(self.partitions[0].replicas)


class ClusterImage:
    """The cluster as of one record of its metadata log."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.nodes: dict[int, NodeImage] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}

    @property
    def controller_id(self) -> int:
        """The node that decides for the cluster: the lowest, since node 0 supervises."""
        return min(self.nodes, default=-1)

    def topic(self, name: str) -> TopicImage:
        """A topic by its name."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition()
        return topic

    def topic_by_id(self, topic_id: bytes) -> TopicImage:
        """A topic by its id."""
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId()
        return topic

    def replay(self, record: Record) -> None:
        """Take one record in."""
        self._REPLAY[record.kind.key](self, record)

    def records(self) -> Iterator[Record]:
        """The fewest records that make this image again."""
        if self.cluster_id:
            yield CLUSTER(cluster_id=self.cluster_id)
        for node in self.nodes.values():
            yield NODE(**node._asdict())
        for topic in self.topics.values():
            yield from topic_records(topic)

    def _cluster(self, record: Record) -> None:
        assert self.cluster_id in ("", record.fields["cluster_id"]), "a cluster keeps its id"
        self.cluster_id = record.fields["cluster_id"]

    def _node(self, record: Record) -> None:
        node = NodeImage(**record.fields)
        self.nodes[node.node_id] = node

    def _topic(self, record: Record) -> None:
        topic = TopicImage(record.fields["name"], record.fields["topic_id"])
        assert topic.name not in self.topics and topic.topic_id not in self.topics_by_id
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic

    def _partition(self, record: Record) -> None:
        fields = record.fields
        partitions = self.topics_by_id[fields["topic_id"]].partitions
        assert fields["partition"] <= len(partitions), "partitions come in their order"
        partitions[fields["partition"]] = PartitionImage(
            fields["leader"],
            fields["leader_epoch"],
            tuple(fields["replicas"]),
            tuple(fields["isr"]),
        )

    def _remove_topic(self, record: Record) -> None:
        topic = self.topics_by_id.pop(record.fields["topic_id"])
        del self.topics[topic.name]

    def _config(self, record: Record) -> None:
        fields = record.fields
        assert fields["resource_type"] == TOPIC_RESOURCE
        config = self.topics[fields["resource_name"]].config
        if fields["value"] is None:
            config.pop(fields["name"], None)
        else:
            config[fields["name"]] = fields["value"]

    _REPLAY: dict[int, Callable[[ClusterImage, Record], None]] = {
        CLUSTER.key: _cluster,
        NODE.key: _node,
        TOPIC.key: _topic,
        PARTITION.key: _partition,
        REMOVE_TOPIC.key: _remove_topic,
        CONFIG.key: _config,
    }


def topic_records(topic: TopicImage) -> Iterator[Record]:
    """The records that bring a whole topic into an image."""
    yield TOPIC(name=topic.name, topic_id=topic.topic_id)
    yield from partition_records(topic.topic_id, topic.partitions)
    for name, value in topic.config.items():
        yield config_record(topic.name, name, value)


def partition_records(topic_id: bytes, partitions: dict[int, PartitionImage]) -> Iterator[Record]:
    """The records that bring partitions into an image, or change them there."""
    for index, partition in partitions.items():
        yield PARTITION(
            topic_id=topic_id,
            partition=index,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            replicas=list(partition.replicas),
            isr=list(partition.isr),
        )


def config_record(topic_name: str, name: str, value: str | None) -> Record:
    """The record that sets a topic's config; None takes the setting back."""
    return CONFIG(resource_type=TOPIC_RESOURCE, resource_name=topic_name, name=name, value=value)
