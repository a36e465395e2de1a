"""Partitions that cannot be served: reported in Metadata, and served again once they can be.

A real node in this process; the test itself makes the creation of logs fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.broker.replica.reconciler import CREATE_RETRY_MS
from kafkalite.errors import KafkaStorageError, LeaderNotAvailable
from kafkalite.protocol.schemas.cluster import DESCRIBE_TOPIC_PARTITIONS, METADATA
from tests.handlers.conftest import InProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[InProcess]:
    made = InProcess(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def blocked(node: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Make the creation of logs fail until `monkeypatch` is undone."""

    def full(*_: object) -> None:
        raise KafkaStorageError("no room")

    monkeypatch.setattr(node.node.logs, "create", full)
    return node


def described(node: InProcess, topic: str = "a") -> Any:
    (answer,) = node.request(METADATA, 12, topics=[{"name": topic}]).topics
    return answer.partitions[0]


def test_partition_without_log_has_no_leader_in_metadata(blocked):
    blocked.create("a")
    partition = described(blocked)
    assert partition.error_code == LeaderNotAvailable.code
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (-1, [], [0])


def test_describe_topic_partitions_without_log_has_no_leader(blocked):
    blocked.create("a")
    answer = blocked.request(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "a"}])
    assert answer.topics[0].partitions[0].leader_id == -1


def test_failed_log_creation_is_retried(blocked, monkeypatch):
    topic_id = blocked.create("a", 3)
    monkeypatch.undo()
    blocked.clock.advance(CREATE_RETRY_MS)
    blocked.until(lambda: len(blocked.node.replicas.of_topic(topic_id)) == 3)
    assert described(blocked).leader_id == 0
    blocked.append("a", [1])


def test_failed_log_creations_share_one_retry_timer(blocked):
    tried = []
    create = blocked.node.logs.create
    blocked.node.logs.create = lambda *asked: (tried.append(asked), create(*asked))
    blocked.create("a", 20)
    blocked.create("b", 20)
    for _ in range(5):
        tried.clear()
        blocked.clock.advance(CREATE_RETRY_MS)
        blocked.reactor.tick(0)
        assert len(tried) == 40


def test_log_creation_is_not_retried_for_a_deleted_topic(blocked):
    topic_id = blocked.create("a")
    blocked.node.reconciler._delete_topic(topic_id)
    del blocked.node.image.topics_by_id[topic_id]
    blocked.clock.advance(CREATE_RETRY_MS)
    blocked.reactor.tick(0)
    assert not blocked.node.replicas.is_offline("a", 0)


def test_failed_log_creation_leaves_no_directory(node, monkeypatch):
    loader = node.node.logs._loader
    made = loader.open

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loader, "open", fails)
    topic_id = node.create("a")
    assert list(node.directory.glob("a-0*")) == []
    monkeypatch.setattr(loader, "open", made)
    node.clock.advance(CREATE_RETRY_MS)
    node.until(lambda: len(node.node.replicas.of_topic(topic_id)) == 1)
    assert [path.name for path in node.directory.glob("a-0*")] == ["a-0"]


@pytest.mark.parametrize("left", [b"", b"version: 0\ntopic_id: ?"])
def test_log_without_topic_id_still_belongs_to_its_topic(node, left):
    node.create("a")
    node.append("a", [1, 2, 3])
    node.close()
    (node.directory / "a-0" / "partition.metadata").write_bytes(left)
    node.open()
    assert node.node.replicas.leader("a", 0).high_watermark == 3
    assert [path.name for path in node.directory.glob("a-0*")] == ["a-0"]
    node.restart()
    assert node.node.replicas.leader("a", 0).high_watermark == 3
