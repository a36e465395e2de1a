"""Partitions and images of clusters with replicas."""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.coordination.image import (
    ClusterImage,
    NodeImage,
    TopicImage,
    node_record,
    topic_records,
)
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.coordination.replication.partition_change import PartitionRules

TOPIC_ID = bytes(range(16))
MIN_TWO = PartitionRules(min_isr=2)


def part(
    leader: int,
    isr: Sequence[int],
    *,
    replicas: Sequence[int] = (1, 2, 3),
    leader_epoch: int = 5,
    partition_epoch: int = 7,
    **fields: tuple[int, ...],
) -> PartitionImage:
    return PartitionImage(
        leader, leader_epoch, tuple(replicas), tuple(isr), partition_epoch, **fields
    )


def image_of(*partitions: PartitionImage, workers: int = 4) -> ClusterImage:
    """Return an image of workers in node epoch 10 + their id, and one topic `t`."""
    image = ClusterImage()
    image.replay(node_record(NodeImage(0, "h", 1)))
    for n in range(1, workers + 1):
        image.replay(node_record(NodeImage(n, "h", n, node_epoch=10 + n)))
    for record in topic_records(TopicImage("t", TOPIC_ID, dict(enumerate(partitions)))):
        image.replay(record)
    return image


def fence(image: ClusterImage, *node_ids: int) -> None:
    for node_id in node_ids:
        image.replay(node_record(image.nodes[node_id]._replace(fenced=True)))


def apply(image: ClusterImage, result: DecisionResult) -> None:
    for record in result.records:
        image.replay(record)


def partitions_of(image: ClusterImage) -> list[PartitionImage]:
    return [*image.topics["t"].partitions.values()]


def rules_of(topic: TopicImage) -> PartitionRules:
    return MIN_TWO
