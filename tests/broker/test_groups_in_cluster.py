"""Groups in a cluster: every node knows the coordinator, one node is it, and it may fail."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.controller.remote_controller import CONTROLLER_TIMEOUT_MS
from kafkalite.protocol.schemas.groups import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)

NOT_COORDINATOR = errors.NotCoordinator.code
NOT_AVAILABLE = errors.CoordinatorNotAvailable.code
SESSION_MS = 30_000


def coordinator(cluster, at):
    answer = cluster.request(at, FIND_COORDINATOR, 3, key="g", key_type=0)
    assert answer.error_code == 0
    return answer.node_id, answer.port


def join(cluster, member_id=""):
    asked = {
        "group_id": "g", "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS,
        "member_id": member_id, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    return cluster.request(0, JOIN_GROUP, 3, **asked)


def member(cluster):
    """Return the only member of a stable group."""
    joined = join(cluster)
    assignments = [{"member_id": joined.member_id, "assignment": b"all"}]
    synced = cluster.request(
        0, SYNC_GROUP, 3, group_id="g", generation_id=joined.generation_id,
        member_id=joined.member_id, assignments=assignments,
    )  # fmt: skip
    assert synced.error_code == 0
    return joined


def beat(cluster, joined, at=0):
    fields = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    return cluster.request(at, HEARTBEAT, 3, group_id="g", **fields).error_code


def commit(cluster, offset, joined=None, at=0):
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    answer = cluster.request(
        at, OFFSET_COMMIT, 5, group_id="g", topics=[{"name": "t", "partitions": [part]}],
        generation_id_or_member_epoch=joined.generation_id if joined else -1,
        member_id=joined.member_id if joined else "",
    )  # fmt: skip
    return answer.topics[0].partitions[0].error_code


def committed(cluster, at=0):
    answer = cluster.request(at, OFFSET_FETCH, 5, group_id="g", topics=None)
    if answer.error_code:
        return -answer.error_code
    return {topic.name: topic.partitions[0].committed_offset for topic in answer.topics}


@pytest.mark.parametrize("at", [0, 1, 2])
def test_find_coordinator_at_every_node_returns_node_0(cluster, at):
    port = cluster.listeners[0].getsockname()[1]
    assert coordinator(cluster, at) == (0, port)
    assert cluster.leader("__consumer_offsets") == 0
    assert join(cluster).error_code == 0


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_find_coordinator_without_the_supervisor_is_not_available(cluster, version):
    """An error that a version does not have would show node 0 with an empty address."""
    cluster.kill(0, stay_down=True)
    keys = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
    pending = cluster.send(1, FIND_COORDINATOR, version, **keys)
    cluster.clock.advance(CONTROLLER_TIMEOUT_MS)
    cluster.until(lambda: pending.is_done)
    response = pending.response
    found = response.coordinators if version >= 4 else [response]
    assert [each.error_code for each in found] == [NOT_AVAILABLE] * len(found)
    assert [(each.node_id, each.port) for each in found] == [(-1, -1)] * len(found)
    if version >= 4:
        assert [each.key for each in found] == ["g", "h"]


def test_group_requests_at_a_worker_return_not_coordinator(cluster):
    coordinator(cluster, 1)
    cluster.create("t")
    joined = member(cluster)
    assert beat(cluster, joined, at=1) == NOT_COORDINATOR
    assert commit(cluster, 1, at=2) == NOT_COORDINATOR
    assert committed(cluster, at=1) == -NOT_COORDINATOR
    assert cluster.request(1, LIST_GROUPS, 4).groups == []
    assert [group.group_id for group in cluster.request(0, LIST_GROUPS, 4).groups] == ["g"]


def test_groups_and_offsets_survive_a_supervisor_crash(cluster):
    coordinator(cluster, 1)
    cluster.create("t")
    joined = member(cluster)
    assert commit(cluster, 7, joined) == 0
    cluster.kill(0)
    cluster.until(lambda: 0 in cluster.running)
    assert beat(cluster, joined) == 0
    assert commit(cluster, 8, joined) == 0
    assert committed(cluster) == {"t": 8}


def test_offsets_of_a_topic_deleted_at_a_worker_are_removed(cluster):
    coordinator(cluster, 1)
    cluster.create("t")
    assert commit(cluster, 7) == 0
    cluster.delete("t", at=2)
    cluster.until(lambda: committed(cluster) == {})


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("killed", [False, True])
def test_groups_survive_a_change_of_the_number_of_workers(cluster, workers, killed):
    coordinator(cluster, 1)
    cluster.create("t")
    joined = member(cluster)
    assert commit(cluster, 7, joined) == 0
    cluster.restart(workers, killed=killed)
    cluster.until(lambda: 0 in cluster.running)
    assert committed(cluster) == {"t": 7}
    assert beat(cluster, joined) == 0


def test_offsets_topic_partitions_are_not_moved(cluster):
    coordinator(cluster, 1)
    cluster.create("t", 4)
    cluster.order("drain", 1)
    cluster.order("rebalance")
    assert cluster.leader("__consumer_offsets") == 0
    assert committed(cluster) == {}
