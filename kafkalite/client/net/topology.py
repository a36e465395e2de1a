"""What a client knows of a cluster: its brokers, topics, and who leads each partition.

Everything here is a value that never changes; cluster.py replaces it.  An answer is believed only
when it makes sense: partitions are counted from 0 without a gap, ports are ports.  A broker that
lags behind may tell an older leader than one that was told before; the leader epoch says so, as
long as the topic is the same one by its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from kafkalite.errors import BY_CODE, InvalidConfig, InvalidRequest, KafkaError, UnknownServerError
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields

Address: TypeAlias = tuple[str, int]

NOBODY = -1
"""The leader of a partition that has none, or none that is known."""

PORT_DEFAULT = 9092
PORT_MAX = 65_535


class TopicPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int


class NodeMeta(NamedTuple):
    """A broker; `same_host` is None as long as nobody has connected to it."""

    node_id: int
    host: str
    port: int
    same_host: bool | None = None

    @property
    def address(self) -> Address:
        return self.host, self.port


class PartitionMeta(NamedTuple):
    """Who leads a partition (NOBODY at times), and under which epoch (-1: an old broker)."""

    leader: int
    leader_epoch: int


class TopicMeta(NamedTuple):
    """A topic; its id is NO_ID where brokers are too old to have one."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionMeta]

    @property
    def led(self) -> bool:
        """Whether at least one partition has a leader."""
        return any(partition.leader != NOBODY for partition in self.partitions.values())


def address(words: str) -> Address:
    """HOST:PORT, with a scheme before it or without a port as Kafka's own tools take it."""
    place = words.strip().rpartition("://")[2]
    found = re.fullmatch(r"(\[[^\[\]\s]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?", place)
    port = int(found[2] or PORT_DEFAULT) if found else 0
    if not found or not 0 < port <= PORT_MAX or not place.isprintable():
        raise InvalidConfig(f"{words!r} is no HOST:PORT (a port is 1 to {PORT_MAX}).")
    return found[1].strip("[]"), port


def spoken(place: Address) -> str:
    """An address as people write it."""
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def fault_of(code: int, subject: str, message: str | None = None) -> KafkaError:
    """The error of a code, with what it is about before its sentence."""
    kind = BY_CODE.get(code)
    if kind is None:
        return UnknownServerError(f"{subject}: {message or f'error code {code}'}")
    return kind(f"{subject}: {message or kind()}")


def nodes_in(brokers: Iterable[Fields]) -> dict[int, NodeMeta]:
    """The brokers that an answer names."""
    return {node.node_id: node for node in map(node_in, brokers)}


def node_in(broker: Fields) -> NodeMeta:
    if broker.node_id < 0 or not broker.host or not 0 < broker.port <= PORT_MAX:
        raise InvalidRequest(
            f"There is no broker {broker.node_id} at {broker.host!r}, port {broker.port}."
        )
    return NodeMeta(broker.node_id, broker.host, broker.port)


def topics_in(
    answer: Fields, names: Iterable[str], nodes: dict[int, NodeMeta]
) -> dict[str, TopicMeta | KafkaError]:
    """What a Metadata answer says of these topics: each as it is, or why it cannot be told."""
    told = {topic.name: topic for topic in answer.topics}
    return {name: topic_in(told[name], nodes) if name in told else unknown(name) for name in names}


def topic_in(topic: Fields, nodes: dict[int, NodeMeta]) -> TopicMeta | KafkaError:
    if topic.error_code:
        return fault_of(topic.error_code, f"topic {topic.name!r}")
    partitions = {}
    for partition in topic.partitions:
        leader = partition.leader_id if partition.leader_id in nodes else NOBODY
        partitions[partition.partition_index] = PartitionMeta(leader, partition.leader_epoch)
    if not partitions or partitions.keys() != set(range(len(topic.partitions))):
        raise InvalidRequest(f"The metadata's partitions of {topic.name!r} do not count from 0.")
    return TopicMeta(topic.name, topic.topic_id, dict(sorted(partitions.items())))


def unknown(name: str) -> KafkaError:
    return fault_of(3, f"topic {name!r}")


def newer(known: TopicMeta | None, told: TopicMeta) -> TopicMeta:
    """What is known of a topic after it was told anew."""
    if known is None or known.topic_id != told.topic_id or told.topic_id == NO_ID:
        return told
    partitions = dict(known.partitions)
    for index, partition in told.partitions.items():
        before = partitions.get(index)
        if before is None or partition.leader_epoch >= before.leader_epoch:
            partitions[index] = partition
    return TopicMeta(told.name, told.topic_id, partitions)
