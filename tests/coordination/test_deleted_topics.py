"""Deleted topics are kept in snapshots, so that the rest of their logs can be removed."""

from __future__ import annotations

from kafkalite.coordination.image import (
    ClusterImage,
    NodeImage,
    PartitionImage,
    TopicImage,
    node_record,
    topic_records,
)
from kafkalite.protocol.schemas.internal import REMOVE_TOPIC

ID = bytes(range(16))


def test_deleted_topics_survive_a_snapshot() -> None:
    image = ClusterImage()
    image.replay(node_record(NodeImage(0, "h", 9)))
    partitions = {0: PartitionImage(0, 0, (0,), (0,))}
    for record in topic_records(TopicImage("t", ID, partitions)):
        image.replay(record)
    image.replay(REMOVE_TOPIC(topic_id=ID))
    again = bytes(reversed(ID))
    for record in topic_records(TopicImage("t", again, partitions)):
        image.replay(record)
    loaded = ClusterImage()
    for record in image.records():
        loaded.replay(record)
    assert loaded.deleted == {ID: "t"} and loaded.topics["t"].topic_id == again
