"""Cluster metadata: brokers, topics, and the leaders of partitions.

All values are immutable; cluster.py replaces them.  A response is validated: partitions count from
0 without a gap, ports are in range.  A broker with old metadata may name an older leader than one
that responded before; the leader epoch tells, as long as the topic id is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from kafkalite.errors import BY_CODE, InvalidConfig, InvalidRequest, KafkaError, UnknownServerError
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields

Address: TypeAlias = tuple[str, int]

NO_LEADER = -1
"""The leader of a partition without a known leader."""

PORT_DEFAULT = 9092
PORT_MAX = 65_535


class TopicPartition(NamedTuple):
    """A partition of a topic.

    Args:
        topic: Name of the topic.
        partition: Partition in the topic, counted from 0.
    """

    topic: str
    partition: int


def partition_name(partition: TopicPartition) -> str:
    """Return a partition as messages name it, which is also its directory's name."""
    return f"{partition.topic}-{partition.partition}"


class NodeMetadata(NamedTuple):
    """A broker; `same_host` is None before the first connection."""

    node_id: int
    host: str
    port: int
    same_host: bool | None = None

    @property
    def address(self) -> Address:
        return self.host, self.port


class PartitionMetadata(NamedTuple):
    """A partition's leader (or NO_LEADER), and its leader epoch (-1: an old broker)."""

    leader: int
    leader_epoch: int


class TopicMetadata(NamedTuple):
    """A topic; its id is NO_ID if brokers are too old for ids."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionMetadata]

    @property
    def led(self) -> bool:
        """True if at least one partition has a leader."""
        return any(partition.leader != NO_LEADER for partition in self.partitions.values())


def parse_address(words: str) -> Address:
    """Parse HOST:PORT, with an optional scheme and port as in Kafka's tools."""
    address = words.strip().rpartition("://")[2]
    found = re.fullmatch(r"(\[[^\[\]\s]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?", address)
    port = int(found[2] or PORT_DEFAULT) if found else 0
    if not found or not 0 < port <= PORT_MAX or not address.isprintable():
        raise InvalidConfig(f"{words!r} must be HOST:PORT with a port of 1 to {PORT_MAX}.")
    return found[1].strip("[]"), port


def address_text(address: Address) -> str:
    """Return an address as text."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def error_of(code: int, subject: str, message: str | None = None) -> KafkaError:
    """Return the exception of an error code, with its subject before the message."""
    kind = BY_CODE.get(code)
    if kind is None:
        return UnknownServerError(f"{subject}: {message or f'error code {code}'}")
    return kind(f"{subject}: {message or kind()}")


def parse_nodes(brokers: Iterable[Fields]) -> dict[int, NodeMetadata]:
    """Return the brokers of a response."""
    return {node.node_id: node for node in map(parse_node, brokers)}


def parse_node(broker: Fields) -> NodeMetadata:
    if broker.node_id < 0 or not broker.host or not 0 < broker.port <= PORT_MAX:
        raise InvalidRequest(
            f"The response has an invalid broker: id {broker.node_id} at {broker.host!r}, port"
            f" {broker.port}."
        )
    return NodeMetadata(broker.node_id, broker.host, broker.port)


def parse_topics(
    response: Fields, names: Iterable[str], nodes: dict[int, NodeMetadata]
) -> dict[str, TopicMetadata | KafkaError]:
    """Return the metadata of these topics in a Metadata response, or their errors."""
    found = {topic.name: topic for topic in response.topics}
    return {
        name: parse_topic(found[name], nodes) if name in found else unknown(name) for name in names
    }


def parse_topic(topic: Fields, nodes: dict[int, NodeMetadata]) -> TopicMetadata | KafkaError:
    if topic.error_code:
        return error_of(topic.error_code, f"topic {topic.name!r}")
    partitions = {}
    for partition in topic.partitions:
        leader = partition.leader_id if partition.leader_id in nodes else NO_LEADER
        partitions[partition.partition_index] = PartitionMetadata(leader, partition.leader_epoch)
    if not partitions or partitions.keys() != set(range(len(topic.partitions))):
        raise InvalidRequest(
            f"The partitions of topic {topic.name!r} in the response are not numbered from 0."
        )
    return TopicMetadata(topic.name, topic.topic_id, dict(sorted(partitions.items())))


def unknown(name: str) -> KafkaError:
    return error_of(3, f"topic {name!r}")


def newer(known: TopicMetadata | None, found: TopicMetadata) -> TopicMetadata:
    """Merge a topic's known metadata with newer metadata, by leader epoch."""
    if known is None or known.topic_id != found.topic_id or found.topic_id == NO_ID:
        return found
    partitions = dict(known.partitions)
    for index, partition in found.partitions.items():
        before = partitions.get(index)
        if before is None or partition.leader_epoch >= before.leader_epoch:
            partitions[index] = partition
    return TopicMetadata(found.name, found.topic_id, partitions)
