"""Checkers of a simulated cluster: what holds at any moment, and what holds once it is healed.

At any moment: each partition's log is open on one node at most, one node leads it at most, each
leader epoch has one leader ever, and epochs never go back.  Once healed: images are equal, every
partition has a leader, its directory exists once, and each acknowledged record is in it once, at
the acknowledged offset.
"""

from __future__ import annotations

from typing import Any

from kafkalite.ids import METADATA_TOPIC
from kafkalite.records.batch import batches
from kafkalite.storage.files import layout
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.manager import node_directories
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from tests.simulation.cluster import Cluster
from tests.simulation.workload import ClusterWorkload, PartitionKey


class ClusterChecker:
    """Invariants of a cluster under a workload."""

    def __init__(self, cluster: Cluster, workload: ClusterWorkload) -> None:
        self.cluster = cluster
        self.workload = workload
        self.leaders: dict[tuple[PartitionKey, int], int] = {}
        """The leader of each (partition, leader epoch)."""
        self.newest: dict[PartitionKey, int] = {}
        """The newest leader epoch of each partition."""

    def check(self) -> None:
        """Check the invariants that hold at any moment."""
        opened: dict[PartitionKey, int] = {}
        for node_id, there in self.cluster.running.items():
            for log in there.logs.logs.values():
                if log.topic != METADATA_TOPIC:
                    place = (log.topic_id, log.partition)
                    assert place not in opened, f"{log} is open at {opened[place]} and {node_id}"
                    opened[place] = node_id
            for partition in there.node.replicas:
                self._check_leader(node_id, (partition.topic_id, partition.index), partition)
        assert not self.cluster.deaths, self.cluster.deaths
        assert not self.cluster.faults, self.cluster.faults

    def _check_leader(self, node_id: int, place: PartitionKey, partition: Any) -> None:
        epoch = partition.leader_epoch
        leader = self.leaders.setdefault((place, epoch), node_id)
        assert leader == node_id, f"{leader} and {node_id} lead {partition} in epoch {epoch}"
        assert epoch >= self.newest.get(place, 0), f"{partition} went back to epoch {epoch}"
        self.newest[place] = epoch
        assert not partition.log.is_released, f"{partition} has a leader without its log"

    def check_healed(self) -> None:
        """Check the invariants of a healed cluster."""
        cluster = self.cluster
        image = cluster.image
        for there in cluster.workers:
            assert [*there.node.image.records()] == [*image.records()]
        for topic in image.topics.values():
            for index, partition in topic.partitions.items():
                led = cluster.node(partition.leader).replicas.leader(topic.name, index)
                assert led.leader_epoch == partition.leader_epoch
                owner = TopicIdPartition(topic.name, index, topic.topic_id)
                (directory,) = node_directories.holders(cluster.directory, owner)
                name = layout.directory_name(topic.name, index)
                node_directory = layout.node_directory(cluster.directory, partition.leader)
                assert directory == node_directory / name
                self._check_records((topic.topic_id, index), led.log)
        node_directories.check_directories(cluster.directory)

    def _check_records(self, place: PartitionKey, log: Any) -> None:
        stream = self.workload.streams.get(place)
        found = read(log, 0, 1 << 30, log.end_offset)
        records = [r for batch in batches(found.read()) for r in batch] if found else []
        values = {record.offset: record.value for record in records}
        assert len(values) == len(set(values.values())) == log.end_offset, "a duplicate record"
        if stream is None:
            assert not values
            return
        assert stream.acked.items() <= values.items(), "an acknowledged record is lost"
        seen = self.workload.seen.get(place, {})
        assert seen.items() <= values.items(), "a record that was read is lost"
        assert set(values.values()) - {stream.value} == set(stream.acked.values())
