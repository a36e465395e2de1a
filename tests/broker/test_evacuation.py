"""Evacuation: a removed node's partition directories are moved to their leaders, also late ones."""

from __future__ import annotations

import errno
import os

from kafkalite.storage.files.disk import DISK
from kafkalite.storage.files.layout import directory_name, node_directory
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.state.known_state import KnownLogState
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from tests.handlers.conftest import InProcess


def test_partition_sent_to_a_removed_node_is_evacuated(begun):
    cluster = begun(2)
    topic_id = cluster.create("a")
    cluster.produce("a", b"0")
    cluster.move("a", leader := 3 - cluster.leader("a"))
    cluster.settle()
    cluster.kill(leader)
    lies = node_directory(cluster.directory, leader) / directory_name("a", 0)
    owner = TopicIdPartition("a", 0, topic_id)
    partition_transfer.send(
        DISK, lies, owner, KnownLogState(), node_directory(cluster.directory, 9)
    )
    cluster.start(leader)
    cluster.until(lambda: cluster.node(leader).replicas.of_topic(topic_id), pace_ms=100)
    assert cluster.values("a") == [b"0"]
    assert not node_directory(cluster.directory, 9).exists()


def test_evacuation_on_a_full_disk_is_retried(begun, tmp_path, monkeypatch):
    cluster = begun(1)
    cluster.create("a")
    cluster.produce("a", b"0")
    cluster.end()
    cluster.close()
    send = partition_transfer.send

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(partition_transfer, "send", full)
    alone = InProcess(tmp_path / "data")
    monkeypatch.setattr(partition_transfer, "send", send)
    topic_id = alone.node.image.topics["a"].topic_id
    assert not alone.node.replicas.of_topic(topic_id)

    def is_led():
        alone.clock.advance(100)
        return alone.node.replicas.of_topic(topic_id)

    alone.until(is_led)
    assert alone.node.replicas.leader("a", 0).high_watermark == 1
    alone.close()
