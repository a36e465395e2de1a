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
    return cluster.ask(node_id, METADATA, 9, topics=topics, allow_auto_topic_creation=True)


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_a_topic_may_be_created_anywhere_and_is_led_everywhere_when_that_is_answered(
    cluster, node_id
):
    cluster.create("a", 4, at=node_id)
    assert sorted(leaders(cluster, "a")) == [1, 1, 2, 2]
    for index, leader in enumerate(leaders(cluster, "a")):
        answer = cluster.produce("a", b"x", index, at=leader)
        assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_every_node_names_all_nodes_and_leaders(cluster, node_id):
    cluster.create("a", 2)
    answer = metadata(cluster, node_id, "a")
    ports = {n: listener.getsockname()[1] for n, listener in cluster.listeners.items()}
    assert {broker.node_id: broker.port for broker in answer.brokers} == ports
    found = {p.partition_index: p.leader_id for p in answer.topics[0].partitions}
    assert found == {0: 1, 1: 2}


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_a_topic_that_is_asked_for_at_any_node_comes_to_be_in_that_answer(cluster, node_id):
    (topic,) = metadata(cluster, node_id, "a").topics
    assert (topic.error_code, topic.partitions[0].leader_id) == (0, cluster.leader("a"))


def test_who_asks_for_a_topic_that_another_just_makes_gets_it_as_well(cluster):
    both = [
        cluster.send(n, METADATA, 9, topics=[{"name": "a"}], allow_auto_topic_creation=True)
        for n in (1, 2)
    ]
    cluster.until(lambda: all(asking.over for asking in both))
    (one,), (other,) = [asking.answer.topics for asking in both]
    assert one.error_code == other.error_code == 0
    assert one.partitions[0].leader_id == other.partitions[0].leader_id


def test_requests_of_many_clients_at_many_nodes_each_get_their_own_answer(cluster):
    askings = [cluster.begin_create(n % 3, f"t{n}", 1 + n % 3) for n in range(30)]
    cluster.until(lambda: all(asking.over for asking in askings))
    for n, asking in enumerate(askings):
        (topic,) = asking.answer.topics
        assert (topic.name, topic.num_partitions) == (f"t{n}", 1 + n % 3)


def test_a_record_that_comes_to_the_wrong_node_is_refused_with_the_way_to_the_right_one(cluster):
    cluster.create("a")
    leader, other = cluster.leader("a"), 3 - cluster.leader("a")
    for node_id in (0, other):
        asking = cluster.begin_produce(node_id, "a", b"x")
        (entry,) = asking.answer.responses[0].partition_responses
        assert entry.error_code == NOT_LEADER
        assert (entry.current_leader.leader_id, entry.current_leader.leader_epoch) == (leader, 0)
        (endpoint,) = asking.answer.node_endpoints
        port = cluster.listeners[leader].getsockname()[1]
        assert (endpoint.node_id, endpoint.port) == (leader, port)


def test_new_partitions_are_led_when_their_making_is_answered(cluster):
    cluster.create("a", 1)
    topics = [{"name": "a", "count": 4, "assignments": None}]
    answer = cluster.ask(2, CREATE_PARTITIONS, 3, topics=topics, timeout_ms=1_000)
    assert answer.results[0].error_code == 0
    assert [cluster.produce("a", b"x", index).error_code for index in range(4)] == [0] * 4


def test_a_deleted_topic_leaves_nothing_that_is_served_at_any_node(cluster):
    topic_id = cluster.create("a", 2)
    cluster.delete("a", at=2)
    for there in cluster.running.values():
        assert there.node.replicas.of_topic(topic_id) == {}
        assert "a" not in there.node.image.topics
    assert cluster.directories("a-?") == []


def test_each_topic_with_dedicated_workers_gets_and_takes_them(cluster):
    cluster.create("d", 2, worker_dedicated="true")
    cluster.settle()
    assert sorted(leaders(cluster, "d")) == [3, 4]
    cluster.produce("d", b"x")
    cluster.delete("d")
    cluster.settle()
    assert cluster.desired_nodes == {1, 2}
    assert cluster.directories("d-*") == cluster.directories("nodes/[34]") == []


# -- while a node is down ------------------------------------------------------------------------


def test_records_are_taken_and_ids_given_while_the_supervisor_is_away(cluster):
    cluster.create("a", 2)
    cluster.kill(0, stay_down=True)
    cluster.steps(3)
    for index in (0, 1):
        node_id = index + 1
        assert cluster.produce("a", b"x", index, at=node_id).error_code == 0
        answer = cluster.ask(node_id, INIT_PRODUCER_ID, 4, transactional_id=None)
        assert answer.error_code == 0


def test_a_worker_that_starts_while_the_supervisor_is_away_serves(cluster):
    cluster.create("a", 2)
    cluster.produce("a", b"x", 0)
    leader = cluster.leader("a")
    cluster.kill(0, stay_down=True)
    cluster.kill(leader)
    cluster.start(leader)
    assert cluster.produce("a", b"y", at=leader).base_offset == 1


def test_what_only_the_controller_answers_waits_for_the_next_supervisor(cluster):
    cluster.kill(0, stay_down=True)
    cluster.step()
    asking = cluster.begin_create(1, "a")
    cluster.steps(100)
    assert not asking.over
    cluster.held_down.clear()
    cluster.until(lambda: asking.over)
    assert asking.answer.topics[0].error_code == 0


def test_what_was_sent_to_a_supervisor_that_died_is_answered_by_a_closed_connection(cluster):
    """The outcome is unknown, and this response has no error code for the whole request."""
    asking = cluster.begin_create(1, "a")
    cluster.kill(0)
    cluster.until(lambda: asking.over)
    assert asking.closed


def test_a_request_does_not_wait_for_a_supervisor_without_end(cluster):
    cluster.kill(0, stay_down=True)
    asking = cluster.begin_create(1, "a")
    cluster.clock.advance(CONTROLLER_TIMEOUT_MS - 1)
    cluster.step()
    assert not asking.over
    cluster.until(lambda: asking.over)
    assert cluster.clock.monotonic_ms() < CONTROLLER_TIMEOUT_MS + 1_000


def test_a_creation_does_not_wait_for_a_worker_that_cannot_be_born(cluster):
    cluster.kill(2, stay_down=True)
    cluster.steps(3)
    begun_ms = cluster.clock.monotonic_ms()
    cluster.create("a", 1, at=1)
    assert cluster.clock.monotonic_ms() - begun_ms < APPLY_WAIT_MS_MAX / 10


def test_a_creation_waits_only_so_long_for_a_worker_that_hangs(cluster):
    cluster.running[2].paused = True
    begun_ms = cluster.clock.monotonic_ms()
    asking = cluster.begin_create(1, "a", 2)
    cluster.until(lambda: asking.over, pace_ms=10)
    assert asking.answer.topics[0].error_code == 0
    assert APPLY_WAIT_MS_MAX <= cluster.clock.monotonic_ms() - begun_ms < APPLY_WAIT_MS_MAX + 200


def test_a_worker_that_hangs_is_ended_once_and_leads_again_what_it_led(cluster):
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


def test_a_supervisor_that_was_stopped_blames_nobody(cluster):
    cluster.running[0].paused = True
    for _ in range(20):
        cluster.steps(5)
        cluster.clock.advance(1_000)
    cluster.running[0].paused = False
    cluster.tick(0)  # before it handles the messages that arrived meanwhile
    cluster.steps(200)
    assert cluster.fenced == []


def test_a_topic_deleted_while_a_worker_was_away_leaves_nothing_there(cluster):
    cluster.create("a", 2)
    cluster.kill(2, stay_down=True)
    cluster.steps(2)
    cluster.delete("a", at=1)
    cluster.held_down.clear()
    cluster.settle()
    left = cluster.directories("a-*")
    assert left
    assert all(name.endswith("-delete") for name in left)


def test_a_lost_delta_is_read_in_the_files_when_the_next_one_comes(cluster):
    asking = cluster.begin_create(1, "a")
    worker = cluster.running[2]
    cluster.until(lambda: cluster.bus.to_worker[worker.identity])
    cluster.bus.to_worker[worker.identity].clear()
    cluster.until(lambda: asking.over, pace_ms=10)
    assert "a" not in worker.node.image.topics
    cluster.create("b", at=1)
    assert [*worker.node.image.records()] == [*cluster.image.records()]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, None)])
def test_any_number_of_workers_serves_what_another_wrote(begun, killed, before, after):
    cluster = begun(before)
    cluster.create("a", 5)
    for index in range(5):
        cluster.produce("a", b"before", index)
    cluster.restart(after, killed=killed)
    for index in range(5):
        assert cluster.produce("a", b"after", index).error_code == 0
        assert cluster.values("a", index) == [b"before", b"after"]


def test_one_process_serves_what_workers_wrote_and_workers_what_one_process_wrote(cluster):
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


def test_a_partition_that_nobody_had_made_is_made_by_who_is_there_at_the_next_start(cluster):
    cluster.kill(2, stay_down=True)
    cluster.begin_create(1, "a", 2)
    cluster.steps(20)
    assert sorted(leaders(cluster, "a")) == [1, 2]
    cluster.restart(1, killed=True)
    assert [cluster.produce("a", b"x", index).error_code for index in (0, 1)] == [0, 0]


def test_who_asks_for_a_new_topic_while_the_supervisor_is_away_is_told_to_ask_again(cluster):
    cluster.kill(0, stay_down=True)
    asking = cluster.send(
        1, METADATA, 9, topics=[{"name": "a"}], allow_auto_topic_creation=True
    )  # fmt: skip
    cluster.until(lambda: asking.over)
    assert asking.answer.topics[0].error_code == errors.LeaderNotAvailable.code
    assert cluster.clock.monotonic_ms() < AUTO_CREATE_MS_MAX + 200
    cluster.held_down.clear()
    cluster.settle()
    assert metadata(cluster, 1, "a").topics[0].error_code == 0


def test_ids_that_a_worker_has_no_more_come_from_the_next_supervisor(cluster):
    cluster.kill(0, stay_down=True)
    cluster.node(1).producer_ids._blocks.clear()
    asking = cluster.send(1, INIT_PRODUCER_ID, 4, transactional_id=None)
    cluster.steps(50)
    assert not asking.over
    cluster.held_down.clear()
    cluster.until(lambda: asking.over)
    assert asking.answer.error_code == 0


def test_ids_are_refused_when_no_supervisor_comes(cluster):
    cluster.kill(0, stay_down=True)
    cluster.node(1).producer_ids._blocks.clear()
    asking = cluster.send(1, INIT_PRODUCER_ID, 4, transactional_id=None)
    cluster.until(lambda: asking.over, pace_ms=50)
    assert asking.answer.error_code == TIMED_OUT


def test_no_two_nodes_give_out_one_id(cluster):
    given = []
    for number in range(120):
        answer = cluster.ask(number % 3, INIT_PRODUCER_ID, 4, transactional_id=None)
        given.append(answer.producer_id)
        if number % 20 == 10:
            cluster.kill(number // 20 % 3)
            cluster.settle()
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("fallen", [0, 1, 2])
def test_a_creation_is_whole_or_not_at_all_whoever_falls_in_the_middle_of_it(
    cluster, fallen, steps
):
    asking = cluster.begin_create(1, "a", 2)
    cluster.steps(steps)
    cluster.kill(fallen)
    cluster.until(lambda: asking.over, pace_ms=10)
    cluster.settle()
    if not asking.closed:
        assert asking.answer.topics[0].error_code == 0
        assert "a" in cluster.image.topics
    if "a" in cluster.image.topics:
        assert [cluster.produce("a", b"x", index).error_code for index in (0, 1)] == [0, 0]
    else:
        cluster.create("a", 2)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("fallen", [0, 1, 2])
def test_a_deletion_is_whole_or_not_at_all_whoever_falls_in_the_middle_of_it(
    cluster, fallen, steps
):
    cluster.create("a", 2)
    cluster.produce("a", b"x", 1)
    asking = cluster.begin_delete(1, "a")
    cluster.steps(steps)
    cluster.kill(fallen)
    cluster.until(lambda: asking.over, pace_ms=10)
    cluster.settle()
    if "a" in cluster.image.topics:
        assert asking.closed
        assert cluster.values("a", 1) == [b"x"]
    else:
        assert [name for name in cluster.directories("a-*") if "-delete" not in name] == []


def test_an_older_topic_of_the_same_name_never_lends_its_records(cluster):
    cluster.create("a", 2)
    for index in (0, 1):
        cluster.produce("a", b"old", index)
    cluster.kill(2, stay_down=True)
    cluster.steps(3)
    cluster.delete("a")
    asking = cluster.begin_create(1, "a", 2)
    cluster.steps(20)
    cluster.held_down.clear()
    cluster.until(lambda: asking.over)
    cluster.settle()
    for index in (0, 1):
        assert cluster.produce("a", b"new", index).base_offset == 0
        assert cluster.values("a", index) == [b"new"]


def test_what_an_older_topic_left_is_not_taken_for_what_nobody_had_made(cluster):
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
