"""A supervisor and workers: every node serves clients, also while another node is down."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.controller.remote_controller import AUTO_CREATE_MS_MAX, CONTROLLER_TIMEOUT_MS
from kafkalite.broker.controller.worker_manager import APPLY_WAIT_MS_MAX
from kafkalite.config.broker import BROKER_SESSION_TIMEOUT_MS
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from tests.handlers.conftest import InProcess

NOT_LEADER = errors.NotLeaderOrFollower.code
TIMED_OUT = errors.RequestTimedOut.code


def leaders(cluster, name: str) -> list[int]:
    return [cluster.leader(name, index) for index in cluster.image.topics[name].partitions]


def metadata(cluster, node_id: int, *names: str):
    topics = [{"name": name} for name in names]
    return cluster.request(node_id, METADATA, 9, topics=topics, allow_auto_topic_creation=True)


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_create_topics_at_any_node_responds_after_all_leaders_exist(cluster, node_id):
    cluster.create("a", 4, at=node_id)
    assert sorted(leaders(cluster, "a")) == [1, 1, 2, 2]
    for index, leader in enumerate(leaders(cluster, "a")):
        answer = cluster.produce("a", b"x", index, at=leader)
        assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_metadata_of_every_node_returns_all_nodes_and_leaders(cluster, node_id):
    cluster.create("a", 2)
    answer = metadata(cluster, node_id, "a")
    ports = {n: listener.getsockname()[1] for n, listener in cluster.listeners.items()}
    assert {broker.node_id: broker.port for broker in answer.brokers} == ports
    found = {p.partition_index: p.leader_id for p in answer.topics[0].partitions}
    assert found == {0: 1, 1: 2}


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_metadata_at_any_node_creates_a_missing_topic(cluster, node_id):
    (topic,) = metadata(cluster, node_id, "a").topics
    assert (topic.error_code, topic.partitions[0].leader_id) == (0, cluster.leader("a"))


def test_concurrent_auto_creations_return_the_same_topic(cluster):
    both = [
        cluster.send(n, METADATA, 9, topics=[{"name": "a"}], allow_auto_topic_creation=True)
        for n in (1, 2)
    ]
    cluster.until(lambda: all(pending.is_done for pending in both))
    (one,), (other,) = [pending.response.topics for pending in both]
    assert one.error_code == other.error_code == 0
    assert one.partitions[0].leader_id == other.partitions[0].leader_id


def test_concurrent_requests_at_all_nodes_get_their_own_responses(cluster):
    pending_requests = [cluster.begin_create(n % 3, f"t{n}", 1 + n % 3) for n in range(30)]
    cluster.until(lambda: all(pending.is_done for pending in pending_requests))
    for n, pending in enumerate(pending_requests):
        (topic,) = pending.response.topics
        assert (topic.name, topic.num_partitions) == (f"t{n}", 1 + n % 3)


def test_produce_at_another_node_returns_the_current_leader(cluster):
    cluster.create("a")
    leader, other = cluster.leader("a"), 3 - cluster.leader("a")
    for node_id in (0, other):
        pending = cluster.begin_produce(node_id, "a", b"x")
        (entry,) = pending.response.responses[0].partition_responses
        assert entry.error_code == NOT_LEADER
        assert (entry.current_leader.leader_id, entry.current_leader.leader_epoch) == (leader, 0)
        (endpoint,) = pending.response.node_endpoints
        port = cluster.listeners[leader].getsockname()[1]
        assert (endpoint.node_id, endpoint.port) == (leader, port)


def test_create_partitions_responds_after_the_leaders_exist(cluster):
    cluster.create("a", 1)
    topics = [{"name": "a", "count": 4, "assignments": None}]
    answer = cluster.request(2, CREATE_PARTITIONS, 3, topics=topics, timeout_ms=1_000)
    assert answer.results[0].error_code == 0
    assert [cluster.produce("a", b"x", index).error_code for index in range(4)] == [0] * 4


def test_deleted_topic_leaves_no_log_at_any_node(cluster):
    topic_id = cluster.create("a", 2)
    cluster.delete("a", at=2)
    for there in cluster.running.values():
        assert there.node.replicas.of_topic(topic_id) == {}
        assert "a" not in there.node.image.topics
    assert cluster.directories("a-?") == []


def test_dedicated_workers_start_and_end_with_their_topic(cluster):
    cluster.create("d", 2, worker_dedicated="true")
    cluster.settle()
    assert sorted(leaders(cluster, "d")) == [3, 4]
    cluster.produce("d", b"x")
    cluster.delete("d")
    cluster.settle()
    assert cluster.desired_nodes == {1, 2}
    assert cluster.directories("d-*") == cluster.directories("nodes/[34]") == []


# -- while a node is down ------------------------------------------------------------------------


def test_workers_append_and_allocate_ids_without_supervisor(cluster):
    cluster.create("a", 2)
    cluster.kill(0, stay_down=True)
    cluster.steps(3)
    for index in (0, 1):
        node_id = index + 1
        assert cluster.produce("a", b"x", index, at=node_id).error_code == 0
        answer = cluster.request(node_id, INIT_PRODUCER_ID, 4, transactional_id=None)
        assert answer.error_code == 0


def test_worker_starts_and_serves_without_supervisor(cluster):
    cluster.create("a", 2)
    cluster.produce("a", b"x", 0)
    leader = cluster.leader("a")
    cluster.kill(0, stay_down=True)
    cluster.kill(leader)
    cluster.start(leader)
    assert cluster.produce("a", b"y", at=leader).base_offset == 1


def test_controller_request_waits_for_the_next_supervisor(cluster):
    cluster.kill(0, stay_down=True)
    cluster.step()
    pending = cluster.begin_create(1, "a")
    cluster.steps(100)
    assert not pending.is_done
    cluster.held_down.clear()
    cluster.until(lambda: pending.is_done)
    assert pending.response.topics[0].error_code == 0


def test_controller_request_in_flight_at_a_supervisor_crash_disconnects(cluster):
    """The outcome is unknown, and this response has no error code for the whole request."""
    pending = cluster.begin_create(1, "a")
    cluster.kill(0)
    cluster.until(lambda: pending.is_done)
    assert pending.closed


def test_controller_request_without_supervisor_times_out(cluster):
    cluster.kill(0, stay_down=True)
    pending = cluster.begin_create(1, "a")
    cluster.clock.advance(CONTROLLER_TIMEOUT_MS - 1)
    cluster.step()
    assert not pending.is_done
    cluster.until(lambda: pending.is_done)
    assert cluster.clock.monotonic_ms() < CONTROLLER_TIMEOUT_MS + 1_000


def test_create_topics_does_not_wait_for_a_worker_that_is_down(cluster):
    cluster.kill(2, stay_down=True)
    cluster.steps(3)
    begun_ms = cluster.clock.monotonic_ms()
    cluster.create("a", 1, at=1)
    assert cluster.clock.monotonic_ms() - begun_ms < APPLY_WAIT_MS_MAX / 10


def test_create_topics_waits_for_a_stopped_worker_up_to_a_limit(cluster):
    cluster.running[2].paused = True
    begun_ms = cluster.clock.monotonic_ms()
    pending = cluster.begin_create(1, "a", 2)
    cluster.until(lambda: pending.is_done, pace_ms=10)
    assert pending.response.topics[0].error_code == 0
    assert APPLY_WAIT_MS_MAX <= cluster.clock.monotonic_ms() - begun_ms < APPLY_WAIT_MS_MAX + 200


def test_stopped_worker_is_fenced_once_and_leads_again(cluster):
    cluster.create("a", 2)
    cluster.produce("a", b"x", 1)
    hung = cluster.running[cluster.leader("a", 1)]
    hung.paused = True
    cluster.until(lambda: cluster.fenced, pace_ms=10)
    cluster.settle()
    assert cluster.fenced == [hung.peer]
    assert cluster.clock.monotonic_ms() < cluster.settings[BROKER_SESSION_TIMEOUT_MS] + 500
    assert cluster.image.topics["a"].partitions[1].leader_epoch == 0
    assert cluster.produce("a", b"y", 1).base_offset == 1


def test_stopped_supervisor_fences_no_worker(cluster):
    cluster.running[0].paused = True
    for _ in range(20):
        cluster.steps(5)
        cluster.clock.advance(1_000)
    cluster.running[0].paused = False
    cluster.tick(0)  # before it handles the messages that arrived meanwhile
    cluster.steps(200)
    assert cluster.fenced == []


def test_topic_deleted_while_a_worker_is_down_is_deleted_there(cluster):
    cluster.create("a", 2)
    cluster.kill(2, stay_down=True)
    cluster.steps(2)
    cluster.delete("a", at=1)
    cluster.held_down.clear()
    cluster.settle()
    left = cluster.directories("a-*")
    assert left
    assert all(name.endswith("-delete") for name in left)


def test_lost_delta_is_read_from_the_metadata_log(cluster):
    pending = cluster.begin_create(1, "a")
    worker = cluster.running[2]
    cluster.until(lambda: cluster.bus.to_worker[worker.identity])
    cluster.bus.to_worker[worker.identity].clear()
    cluster.until(lambda: pending.is_done, pace_ms=10)
    assert "a" not in worker.node.image.topics
    cluster.create("b", at=1)
    assert [*worker.node.image.records()] == [*cluster.image.records()]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, None)])
def test_records_survive_a_change_of_the_number_of_workers(begun, killed, before, after):
    cluster = begun(before)
    cluster.create("a", 5)
    for index in range(5):
        cluster.produce("a", b"before", index)
    cluster.restart(after, killed=killed)
    for index in range(5):
        assert cluster.produce("a", b"after", index).error_code == 0
        assert cluster.values("a", index) == [b"before", b"after"]


def test_records_survive_a_change_between_one_process_and_workers(cluster):
    cluster.create("a", 2)
    cluster.produce("a", b"workers", 1)
    cluster.end()
    cluster.locked.close()
    alone = InProcess(cluster.directory)
    alone.append("a", [1], 1)
    assert alone.node.replicas.leader("a", 1).high_watermark == 2
    alone.close()
    cluster.locked.lock()
    cluster.begin(3)
    assert cluster.values("a", 1) == [b"workers", b"v"]
    assert sorted(leaders(cluster, "a")) == [1, 2]


def test_partition_without_log_is_created_at_the_next_start(cluster):
    cluster.kill(2, stay_down=True)
    cluster.begin_create(1, "a", 2)
    cluster.steps(20)
    assert sorted(leaders(cluster, "a")) == [1, 2]
    cluster.restart(1, killed=True)
    assert [cluster.produce("a", b"x", index).error_code for index in (0, 1)] == [0, 0]


def test_auto_creation_without_supervisor_is_retriable(cluster):
    cluster.kill(0, stay_down=True)
    pending = cluster.send(
        1, METADATA, 9, topics=[{"name": "a"}], allow_auto_topic_creation=True
    )  # fmt: skip
    cluster.until(lambda: pending.is_done)
    assert pending.response.topics[0].error_code == errors.LeaderNotAvailable.code
    assert cluster.clock.monotonic_ms() < AUTO_CREATE_MS_MAX + 200
    cluster.held_down.clear()
    cluster.settle()
    assert metadata(cluster, 1, "a").topics[0].error_code == 0


def test_init_producer_id_waits_for_the_next_supervisor(cluster):
    cluster.kill(0, stay_down=True)
    cluster.node(1).producer_ids._blocks.clear()
    pending = cluster.send(1, INIT_PRODUCER_ID, 4, transactional_id=None)
    cluster.steps(50)
    assert not pending.is_done
    cluster.held_down.clear()
    cluster.until(lambda: pending.is_done)
    assert pending.response.error_code == 0


def test_init_producer_id_without_supervisor_times_out(cluster):
    cluster.kill(0, stay_down=True)
    cluster.node(1).producer_ids._blocks.clear()
    pending = cluster.send(1, INIT_PRODUCER_ID, 4, transactional_id=None)
    cluster.until(lambda: pending.is_done, pace_ms=50)
    assert pending.response.error_code == TIMED_OUT


def test_producer_ids_are_unique_across_nodes(cluster):
    given = []
    for number in range(120):
        answer = cluster.request(number % 3, INIT_PRODUCER_ID, 4, transactional_id=None)
        given.append(answer.producer_id)
        if number % 20 == 10:
            cluster.kill(number // 20 % 3)
            cluster.settle()
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("fallen", [0, 1, 2])
def test_create_topics_is_atomic_if_a_node_is_killed(cluster, fallen, steps):
    pending = cluster.begin_create(1, "a", 2)
    cluster.steps(steps)
    cluster.kill(fallen)
    cluster.until(lambda: pending.is_done, pace_ms=10)
    cluster.settle()
    if not pending.closed:
        assert pending.response.topics[0].error_code == 0
        assert "a" in cluster.image.topics
    if "a" in cluster.image.topics:
        assert [cluster.produce("a", b"x", index).error_code for index in (0, 1)] == [0, 0]
    else:
        cluster.create("a", 2)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("fallen", [0, 1, 2])
def test_delete_topics_is_atomic_if_a_node_is_killed(cluster, fallen, steps):
    cluster.create("a", 2)
    cluster.produce("a", b"x", 1)
    pending = cluster.begin_delete(1, "a")
    cluster.steps(steps)
    cluster.kill(fallen)
    cluster.until(lambda: pending.is_done, pace_ms=10)
    cluster.settle()
    if "a" in cluster.image.topics:
        assert pending.closed
        assert cluster.values("a", 1) == [b"x"]
    else:
        assert [name for name in cluster.directories("a-*") if "-delete" not in name] == []


def test_recreated_topic_has_no_records_of_the_old_one(cluster):
    cluster.create("a", 2)
    for index in (0, 1):
        cluster.produce("a", b"old", index)
    cluster.kill(2, stay_down=True)
    cluster.steps(3)
    cluster.delete("a")
    pending = cluster.begin_create(1, "a", 2)
    cluster.steps(20)
    cluster.held_down.clear()
    cluster.until(lambda: pending.is_done)
    cluster.settle()
    for index in (0, 1):
        assert cluster.produce("a", b"new", index).base_offset == 0
        assert cluster.values("a", index) == [b"new"]


def test_log_of_a_deleted_topic_is_not_used_for_a_new_partition(cluster):
    cluster.create("a", 2)
    cluster.produce("a", b"old", 0)
    cluster.kill(1, stay_down=True)
    cluster.steps(3)
    cluster.delete("a", at=2)
    cluster.kill(2, stay_down=True)
    cluster.steps(3)
    cluster.begin_create(0, "a", assigned=2)
    cluster.steps(20)
    assert cluster.directories("a-0") == ["nodes/1/a-0"]
    cluster.restart(1, killed=True)
    assert cluster.produce("a", b"new").error_code == 0
    assert cluster.values("a") == [b"new"]
