"""Fixtures: clusters in one process, and shorthands for their clients' requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.coordination.placement import PartitionMove
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.log.log_reader import read
from tests.simulation.cluster import ClientRequest, Cluster

ALL = -1


class Clients(Cluster):
    """A cluster with shorthands for its clients' requests."""

    def begin_create(
        self, node_id: int, name: str, partitions: int = 1, assigned: int | None = None,
        replicas: int = 1, **config: str,
    ) -> ClientRequest:  # fmt: skip
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas}
        if assigned is not None:
            assignment = {"partition_index": 0, "broker_ids": [assigned]}
            topic |= {
                "num_partitions": -1, "replication_factor": -1, "assignments": [assignment],
            }  # fmt: skip
        return self.send(node_id, CREATE_TOPICS, 7, topics=[{**topic, "configs": configs}])

    def create(
        self, name: str, partitions: int = 1, *, at: int = 1, replicas: int = 1, **config: str
    ) -> bytes:
        """Create a topic and return its id."""
        pending = self.begin_create(at, name, partitions, replicas=replicas, **config)
        self.until(lambda: pending.is_done)
        (created,) = pending.response.topics
        assert created.error_code == 0, created.error_message
        return bytes(created.topic_id)

    def begin_delete(self, node_id: int, name: str) -> ClientRequest:
        return self.send(node_id, DELETE_TOPICS, 5, topic_names=[name], timeout_ms=1_000)

    def delete(self, name: str, *, at: int = 1) -> None:
        pending = self.begin_delete(at, name)
        self.until(lambda: pending.is_done)
        assert pending.response.responses[0].error_code == 0

    def begin_produce(
        self, node_id: int, name: str, value: bytes, partition: int = 0, **batch: Any
    ) -> ClientRequest:
        records = build([Record(timestamp=1_000, value=value)], **batch)
        partition_data = [{"index": partition, "records": records}]
        return self.send(
            node_id, PRODUCE, 12, acks=ALL, timeout_ms=5_000,
            topic_data=[{"name": name, "partition_data": partition_data}],
        )  # fmt: skip

    def produce(
        self, name: str, value: bytes, partition: int = 0, *, at: int | None = None, **batch: Any
    ) -> Fields:
        """Send a record to the leader or a given node, and return the partition's response."""
        node_id = self.leader(name, partition) if at is None else at
        pending = self.begin_produce(node_id, name, value, partition, **batch)
        self.until(lambda: pending.is_done)
        return produced(pending)

    def values(self, name: str, partition: int = 0) -> list[bytes | None]:
        """Return the values in the leader's log."""
        log = self.node(self.leader(name, partition)).replicas.leader(name, partition).log
        found = read(log, log.log_start_offset, 1 << 20, log.end_offset)
        if found is None:
            return []
        return [record.value for batch in batches(found.read()) for record in batch]

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def move(self, name: str, to_node: int, partition: int = 0) -> None:
        """Decide a partition move; it is carried out in later steps."""
        topic = self.image.topics[name]
        from_node = topic.partitions[partition].leader
        self.supervisor.reassigner.plan(
            [PartitionMove(topic.topic_id, partition, from_node, to_node)]
        )

    def move_of(self, topic_id: bytes, from_node: int, to_node: int) -> PartitionMove:
        return PartitionMove(topic_id, 0, from_node, to_node)

    def restart(self, workers: int | None, *, killed: bool = False) -> None:
        """Stop or kill the broker, and start it with this many workers."""
        if killed:
            for node_id in list(self.running):
                self.kill(node_id)
            self.desired_nodes.clear()
            self.listeners_closed()
        else:
            self.end()
        self.held_down.clear()
        self.begin(workers)

    def directories(self, pattern: str) -> list[str]:
        """Return the directories that match a pattern, relative to the data directory."""
        found = self.directory.glob(f"**/{pattern}")
        return sorted(str(path.relative_to(self.directory)) for path in found if path.is_dir())


def produced(pending: ClientRequest) -> Fields:
    """Return the response for the only partition."""
    (entry,) = pending.response.responses[0].partition_responses
    return entry


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., Clients]]:
    """Return a function that starts the test's cluster with a number of workers."""
    made: list[Clients] = []

    def begin(workers: int = 2, **settings: str) -> Clients:
        made.append(Clients(tmp_path / "data", workers, **settings))
        return made[0]

    yield begin
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    """A supervisor and two workers."""
    return begun(2)
