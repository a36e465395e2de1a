"""Where replicas of partitions are, by the image: a node's directory, the size, missing logs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkalite.broker.assembly import create_missing_logs
from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.broker.controller.reassigner import sizes_on_disk
from kafkalite.broker.controller.replica_lookup import ReplicaLookup
from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage, partition_record
from kafkalite.errors import Refusal
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from kafkalite.storage.files.layout import node_directory
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from tests.handlers.conftest import InProcess


@pytest.fixture
def node(tmp_path: Path):
    made = InProcess(tmp_path / "data")
    made.create("a")
    made.append("a", [1, 2, 3])
    yield made
    made.close()


def set_partition(node: InProcess, partition: PartitionImage) -> bytes:
    image = node.node.image
    topic_id = image.topics["a"].topic_id
    image.replay(partition_record(topic_id, 0, partition))
    return topic_id


def test_log_belongs_to_the_node_that_is_a_replica(node):
    root = node.node.root
    topic_id = set_partition(node, PartitionImage(2, 3, (2, 4), (2,)))
    at = node.node.directory_at
    for of in (topic_id, NO_ID):
        assert at(2, "a", 0, of) == node_directory(root, 2)
        assert at(4, "a", 0, of) == node_directory(root, 4)
        assert at(3, "a", 0, of) is None
    assert at(2, "a", 1, topic_id) is at(2, "b", 0, topic_id) is at(2, "a", 0, b"?" * 16) is None


@pytest.mark.parametrize("leader", [2, NO_LEADER])
def test_log_with_one_replica_belongs_to_its_node(node, leader):
    topic_id = set_partition(node, PartitionImage(leader, 3, (2,), (2,)))
    for node_id in (0, 2, 3):
        found = node.node.directory_at(node_id, "a", 0, topic_id)
        assert found == node_directory(node.node.root, 2)


def test_size_is_that_of_a_replica_without_a_leader(node):
    topic_id = set_partition(node, PartitionImage(NO_LEADER, 3, (0, 4), ()))
    assert sizes_on_disk(node.node.root, node.node.image)[topic_id, 0] > 0


def test_missing_log_is_created_for_one_replica_only(node, tmp_path):
    controller = SimpleNamespace(image=node.node.image)
    set_partition(node, PartitionImage(2, 3, (2, 4), (2,)))
    create_missing_logs(controller, tmp_path)
    assert not node_directory(tmp_path, 2).exists()
    set_partition(node, PartitionImage(2, 4, (2,), (2,), 1))
    create_missing_logs(controller, tmp_path)
    assert len(list(node_directory(tmp_path, 2).glob("a-0*"))) == 1


def test_lookup_reads_the_replicas_from_the_metadata_log(node):
    lookup = ReplicaLookup(node.directory)
    topic_id = node.node.image.topics["a"].topic_id
    assert lookup(TopicIdPartition("a", 0, topic_id)) == (0,)
    assert lookup(TopicIdPartition("a", 0, NO_ID)) == (0,)
    assert lookup(TopicIdPartition("a", 9, topic_id)) == lookup(TopicIdPartition("b", 0, NO_ID))


def test_lookup_refuses_an_unreadable_metadata_log(node):
    node.close()
    for path in (node.directory / "__cluster_metadata-0").glob("*.log"):
        path.rename(path.with_name(f"{10**6:020d}.log"))
    with pytest.raises(Refusal, match="cannot be read"):
        ReplicaLookup(node.directory)(TopicIdPartition("a", 0, NO_ID))


def test_lookup_ignores_producer_ids(node):
    node.request(INIT_PRODUCER_ID, 2, transactional_id=None, transaction_timeout_ms=0)
    kinds = []
    reader = MetadataReader(node.directory / "__cluster_metadata-0")
    reader.load(lambda record: kinds.append(record.kind))
    assert PRODUCER_IDS_BLOCK in kinds
    assert ReplicaLookup(node.directory)(TopicIdPartition("a", 0, NO_ID)) == (0,)
