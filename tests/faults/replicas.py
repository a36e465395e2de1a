"""The replicas of a topic after a run: all in sync, and equal byte for byte (I8).

Compared are the batches from the log start to the high watermark, as they are in the segments of
each node's directory.  Where one segment ends and the next begins may differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from kafkalite.testing import Broker
from tests.faults.processes import until

EQUAL_S_MAX = 60.0
RESPONSE_S_MAX = 10.0
QUIET = {"log_level": 0}
ELECTION_NOT_NEEDED = 84
PREFIX = struct.Struct(">qi")
"""Base offset of a batch, and its size without this prefix."""


class Replicas:
    """The replicas of all partitions of a topic."""

    def __init__(self, broker: Broker, topic: str, partitions: int, factor: int) -> None:
        self.broker = broker
        self.topic = topic
        self.partitions = range(partitions)
        self.factor = factor

    def state(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Return the leader of each partition, and its replicas if all are in sync, else none."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, **QUIET})
        found = admin.list_topics(self.topic, timeout=RESPONSE_S_MAX).topics[self.topic]
        return (
            {index: found.partitions[index].leader for index in self.partitions},
            {
                index: sorted(each.replicas) if len(each.isrs) == self.factor else []
                for index, each in found.partitions.items()
            },
        )

    def differences(self) -> list[str]:
        """Return what is wrong with the replicas once no client writes any longer."""
        if self.factor == 1:
            return []
        try:
            until(self.are_in_sync, EQUAL_S_MAX, "not all replicas are in sync again")
            self.elect_preferred()
            ends = self.ends()
            return [each for index in self.partitions for each in self.unequal(index, *ends[index])]
        except (TimeoutError, confluent_kafka.KafkaException) as fault:
            return [f"I8: the replicas cannot be compared: {fault}"]

    def are_in_sync(self) -> bool:
        return all(self.state()[1].values())

    def elect_preferred(self) -> None:
        """Let the nodes lead what they led at first, so that they have as many connections."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, **QUIET})
        places = [confluent_kafka.TopicPartition(self.topic, index) for index in self.partitions]
        elected = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, places)
        for place, fault in elected.result().items():
            if fault is not None and fault.code() != ELECTION_NOT_NEEDED:
                raise confluent_kafka.KafkaException(fault, place)
        until(self.are_in_sync, EQUAL_S_MAX, "not all replicas are in sync after an election")

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return log start offset and high watermark of each partition."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "none", **QUIET}
        )
        try:
            return {
                index: consumer.get_watermark_offsets(
                    confluent_kafka.TopicPartition(self.topic, index), timeout=RESPONSE_S_MAX
                )
                for index in self.partitions
            }
        finally:
            consumer.close()

    def unequal(self, partition: int, start: int, high_watermark: int) -> Iterator[str]:
        """Yield the replicas of a partition that differ from the first."""
        nodes = self.state()[1][partition]
        first, *others = [
            dict(committed(self.directory(node, partition), start, high_watermark))
            for node in nodes
        ]
        for node, other in zip(nodes[1:], others, strict=True):
            if other != first:
                at = min(
                    offset
                    for offset in first.keys() | other.keys()
                    if first.get(offset) != other.get(offset)
                )
                yield (
                    f"I8: partition {partition} on nodes {nodes[0]} and {node} differs from offset"
                    f" {at} on, between {start} and {high_watermark}"
                )
        if sum(map(len, first.values())) == 0 and high_watermark > start:
            yield f"I8: partition {partition} has no batch between {start} and {high_watermark}"

    def directory(self, node: int, partition: int) -> Path:
        return self.broker.data / "nodes" / str(node) / f"{self.topic}-{partition}"


def committed(directory: Path, start: int, high_watermark: int) -> Iterator[tuple[int, bytes]]:
    """Yield base offset and bytes of the batches of a log in these bounds."""
    for segment in sorted(directory.glob("*.log")):
        content = segment.read_bytes()
        position = 0
        while position + PREFIX.size <= len(content):
            offset, size = PREFIX.unpack_from(content, position)
            if not size:
                break  # space that was reserved and not used yet
            end = position + PREFIX.size + size
            if start <= offset < high_watermark:
                yield offset, content[position:end]
            position = end
