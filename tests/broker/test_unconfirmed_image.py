"""A worker starts from the metadata log it can read, before a supervisor has confirmed it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.ids import METADATA_TOPIC
from kafkalite.protocol.schemas.topics import CREATE_TOPICS
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.files.layout import directory_name, node_directory
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.state.known_state import KnownLogState
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from tests.simulation.cluster import Cluster
from tests.storage.factories import batch


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "data", workers=1)
    topic = {"name": "t", "num_partitions": 1, "replication_factor": -1,
             "assignments": [], "configs": []}  # fmt: skip
    made.request(0, CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000)
    made.settle()
    led = made.node(1).replicas.leader("t", 0)
    led.append(batch(b"a"))
    yield made
    made.close()


def metadata(cluster: Cluster) -> Path:
    return cluster.directory / directory_name(METADATA_TOPIC, 0)


def damaged(directory: Path) -> None:
    log = directory / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)


@pytest.mark.parametrize("damage", [damaged, shutil.rmtree], ids=["damaged", "gone"])
def test_partition_unknown_to_a_damaged_metadata_log_is_kept(cluster, damage):
    cluster.end()
    shutil.copytree(metadata(cluster), cluster.directory.with_name("copy"))
    damage(metadata(cluster))
    cluster.start(1)  # and the supervisor refuses to start
    cluster.end_one(1)
    assert [path.name for path in (cluster.directory / "nodes" / "1").glob("t*")] == ["t-0"]
    shutil.rmtree(metadata(cluster), ignore_errors=True)
    cluster.directory.with_name("copy").rename(metadata(cluster))
    cluster.begin(1)
    assert cluster.node(1).replicas.leader("t", 0).high_watermark == 1


def test_worker_with_stale_image_does_not_recreate_a_moved_partition(begun):
    cluster = begun(2)
    cluster.create("t")
    cluster.move("t", 3 - (first := cluster.leader("t")))
    cluster.settle()
    cluster.end()
    damaged(metadata(cluster))
    cluster.start(first)
    assert cluster.node(first).image.topics["t"].partitions[0].leader == first
    assert cluster.directories("t-0") == [f"nodes/{3 - first}/t-0"]


def test_unknown_partition_is_stray_only_after_the_welcome(cluster):
    own = cluster.directory / "nodes" / "1"
    cluster.end()
    shutil.copytree(own / "t-0", own / "nobodys-0")
    cluster.start(1)
    assert [path.name for path in own.glob("nobodys*")] == ["nobodys-0"]
    cluster.begin(1)
    (kept,) = own.glob("nobodys*")
    assert kept.name.endswith("-stray")


def test_arrived_partition_is_not_transferred_before_the_welcome(begun):
    """Otherwise a starting worker would undo what the supervisor starting beside it has decided."""
    cluster = begun(2)
    topic_id = cluster.create("t")
    cluster.produce("t", b"0")
    other = 3 - (leader := cluster.leader("t"))
    cluster.end()
    lies, theirs = (node_directory(cluster.directory, n) for n in (leader, other))
    partition_transfer.send(
        DISK, lies / "t-0", TopicIdPartition("t", 0, topic_id), KnownLogState(), theirs
    )
    cluster.start(other)
    assert [path.parent for path in cluster.directory.glob("nodes/*/t-0*")] == [theirs]
    cluster.begin(2)
    cluster.until(lambda: cluster.node(leader).replicas.of_topic(topic_id), pace_ms=100)
    assert cluster.values("t") == [b"0"]


def test_reader_without_a_metadata_log_starts_at_offset_0(tmp_path):
    reader = MetadataReader(tmp_path / "not made yet")
    reader.load(lambda record: pytest.fail(f"{record}"))
    assert reader.offset == 0
