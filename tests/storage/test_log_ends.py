"""The ends of replicas as a node reports them: what is damaged, and what only lost its tail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.storage.files.disk import FAILURE_MARK
from kafkalite.storage.log.log_ends import ReplicaLogEndReport
from kafkalite.storage.manager import partition_transfer
from tests.storage.factories import TOPIC_ID
from tests.storage.nodes import Nodes, T


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    made.replicas = (1, 2)
    made[0].open_metadata()
    yield made
    made.crash()


def ends(nodes: Nodes) -> list[ReplicaLogEndReport]:
    return nodes[1].log_ends()


def test_end_has_the_last_epoch_also_without_a_record(nodes: Nodes) -> None:
    log = nodes.create_replica(1)
    assert ends(nodes) == [ReplicaLogEndReport(TOPIC_ID, 0, -1, 0, False)]
    log.leader_epochs.assign(4, 0)
    log.flush()
    nodes.crash()
    assert ends(nodes) == [ReplicaLogEndReport(TOPIC_ID, 0, 4, 0, False)]


def test_log_with_one_replica_is_not_reported(nodes: Nodes) -> None:
    nodes.create_replica(1, b"a").is_replicated = False
    assert ends(nodes) == []


def test_log_of_another_boot_is_not_damaged(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.create_replica(1, b"a")
    nodes.crash()
    monkeypatch.setattr(partition_transfer, "boot_id", lambda: "another")
    (found,) = ends(nodes)
    log = nodes[1].logs[T]
    assert log.may_have_lost_tail and not found.is_damaged and found.end_offset == 1
    nodes[1].note_ends_reported([log])
    nodes[1].checkpoint()
    nodes.crash()
    assert not nodes[1].logs[T].may_have_lost_tail, "it is of this boot from then on"


def test_log_after_a_failed_write_back_is_damaged(nodes: Nodes) -> None:
    nodes.create_replica(1, b"a")
    nodes.crash()
    (nodes.path(1) / FAILURE_MARK).write_bytes(b"")
    assert ends(nodes) == [ReplicaLogEndReport(TOPIC_ID, 0, 0, 1, True)]
    nodes[1].note_ends_reported(nodes[1].logs.values())
    nodes[1].checkpoint()
    assert ends(nodes) == [ReplicaLogEndReport(TOPIC_ID, 0, 0, 1, False)]


def test_log_that_is_damaged_below_its_recovery_point_is_damaged(nodes: Nodes) -> None:
    log = nodes.create_replica(1, b"a", b"b")
    path, position = log.active.path, log.active.boundary(1)
    assert position is not None
    nodes.crash()
    content = bytearray(path.read_bytes())
    content[position + 40] ^= 1
    path.write_bytes(content)
    (found,) = ends(nodes)
    assert found.is_damaged and nodes[1].logs[T].is_quarantined
