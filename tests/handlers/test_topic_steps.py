"""Topics of many partitions: made and deleted in bounded steps; what a node sums up of them."""

from __future__ import annotations

import errno
import itertools
import sys

import pytest

from kafkalite import errors
from kafkalite.broker.handlers import topics as handler
from kafkalite.broker.reconciler import STEP_MS
from kafkalite.config.settings import Settings
from kafkalite.coordination import controller
from kafkalite.coordination.controller import Growth
from kafkalite.protocol.schemas.internal import TOPIC
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from tests.handlers.test_topics import create


@pytest.fixture
def slow_disk(broker, monkeypatch):
    """Making a log takes 3 ms, deleting one 2 ms, and each tick 1 ms."""

    def slowed(call, ms):
        def slow(*arguments):
            broker.clock.advance(ms)
            return call(*arguments)

        return slow

    logs, reactor = broker.node.logs, broker.reactor
    monkeypatch.setattr(logs, "create", slowed(logs.create, 3))
    monkeypatch.setattr(logs, "delete", slowed(logs.delete, 2))
    monkeypatch.setattr(reactor, "tick", slowed(reactor.tick, 1))


def tick_lengths(broker, holds):
    """Return the length of each tick by the clock until the condition held."""
    lengths = []
    while not holds():
        before = broker.clock.monotonic_ms()
        broker.reactor.tick(0)
        lengths.append(broker.clock.monotonic_ms() - before)
    return lengths


def test_topic_of_many_partitions_is_made_in_steps_and_answered_when_made(broker, slow_disk):
    topic = {"name": "many", "num_partitions": 50, "replication_factor": 1}
    created = broker.send(CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000)
    lengths = tick_lengths(broker, lambda: created.sent is not None)
    assert len(list(broker.node.replicas)) == 50
    assert len(lengths) >= 50 * 3 // 13 and max(lengths) <= STEP_MS + 3 + 1


def test_topic_of_many_partitions_is_deleted_in_steps(broker, slow_disk):
    topic_id = broker.create("many", 50)
    gone = broker.send(DELETE_TOPICS, 1, topic_names=["many"], timeout_ms=1_000)
    lengths = tick_lengths(broker, lambda: not broker.node.replicas.of_topic(topic_id))
    assert gone.sent is None, "no client reaches it any more, and its directories are there"
    lengths += tick_lengths(broker, lambda: gone.sent is not None)
    assert max(lengths) <= STEP_MS + 2 + 1
    assert not [path for path in broker.directory.iterdir() if path.name.startswith("many-")
                and not path.name.endswith("-delete")]  # fmt: skip


def test_topic_made_again_finds_its_predecessor_deleted(broker, slow_disk):
    broker.create("again", 20)
    broker.append("again", [1])
    gone = broker.send(DELETE_TOPICS, 1, topic_names=["again"], timeout_ms=1_000)
    topic_id = broker.create("again", 20)
    assert gone.sent is not None
    assert len(broker.node.replicas.of_topic(topic_id)) == 20
    assert broker.node.replicas.leader("again", 0).log.end_offset == 0
    assert not [*broker.directory.glob("*-stray")]


def test_a_large_topic_deleted_before_it_was_made_leaves_no_logs(broker, slow_disk):
    topic = {"name": "many", "num_partitions": 50, "replication_factor": 1}
    created = broker.send(CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000)
    broker.until(lambda: list(broker.node.replicas))
    assert created.sent is None
    broker.ask(DELETE_TOPICS, 1, topic_names=["many"], timeout_ms=1_000)
    assert created.sent is not None
    assert list(broker.node.replicas) == []


def test_closing_deletes_what_was_still_to_be_deleted(broker, slow_disk):
    broker.create("many", 50)
    gone = broker.send(DELETE_TOPICS, 1, topic_names=["many"], timeout_ms=1_000)
    broker.until(lambda: not list(broker.node.replicas))
    assert gone.sent is None
    broker.restart()
    assert list(broker.node.replicas) == []
    assert not [*broker.directory.glob("*-stray")]


def test_state_sums_only_the_logs_that_were_touched(broker, monkeypatch):
    for name in ("a", "b", "c"):
        broker.create(name)
    replicas = broker.node.replicas
    assert replicas.total_size() == 0
    broker.append("b", [1])
    broker.reactor.tick(0)
    looked = []
    size = type(replicas.leader("a", 0).log).size
    counting = property(lambda log: looked.append(log.topic) or size.fget(log))
    monkeypatch.setattr(type(replicas.leader("a", 0).log), "size", counting)
    expected = size.fget(replicas.leader("b", 0).log)
    assert (replicas.led_count, replicas.total_size()) == (3, expected)
    assert looked == ["b"] and expected > 0
    broker.ask(DELETE_TOPICS, 1, topic_names=["b"], timeout_ms=1_000)
    assert (replicas.led_count, replicas.total_size()) == (2, 0)


def test_topic_whose_directory_names_would_be_too_long_is_refused(broker):
    name = "n" * 249
    answers = create(
        broker, {"name": name, "num_partitions": 1, "replication_factor": 1}
    )  # fmt: skip
    assert answers[name].error_code == 0
    machine = broker.node.here.machine
    growth = Growth(name, 100_001)
    with pytest.raises(errors.InvalidPartitions, match="longer than 255"):
        machine._more_partitions(machine.image.topics[name], growth, 1 << 20)
    assert len(machine._more_partitions(
        machine.image.topics[name], Growth(name, 100_000), 1 << 20
    )) == 99_999  # fmt: skip


def test_log_whose_name_the_disk_refuses_is_offline_and_the_node_goes_on(broker, monkeypatch):
    disk = broker.node.logs._disk
    mkdir = disk.mkdir

    def short_names(path, *mode):
        if "refused" in str(path):
            raise OSError(errno.ENAMETOOLONG, "File name too long", str(path))
        mkdir(path, *mode)

    monkeypatch.setattr(disk, "mkdir", short_names, raising=False)
    broker.create("refused")
    assert broker.node.replicas.is_offline("refused", 0)
    broker.create("fine")
    assert not broker.node.replicas.is_offline("fine", 0)


def test_topics_of_one_request_share_the_time_of_a_tick(broker, slow_disk):
    topics = [{"name": f"t{i}", "num_partitions": 1, "replication_factor": 1} for i in range(50)]
    created = broker.send(CREATE_TOPICS, 7, topics=topics, timeout_ms=1_000)
    lengths = tick_lengths(broker, lambda: created.sent is not None)
    assert len(list(broker.node.replicas)) == 50
    assert len(lengths) >= 50 * 3 // 13 and max(lengths) <= STEP_MS + 3 + 1


def test_topics_of_one_request_are_decided_on_a_few_at_a_time(broker, slow_disk, monkeypatch):
    monkeypatch.setattr(handler, "CREATED_AT_ONCE", 4)
    monkeypatch.setattr(controller, "NEW_PARTITIONS_MAX", 9)
    decided = []
    broker.node.here.on_change(lambda records, _: decided.append(
        [record.fields["name"] for record in records if record.kind is TOPIC]
    ))  # fmt: skip
    names = [f"t{i}" for i in range(11)]
    answers = create(
        broker,
        *({"name": name, "num_partitions": 1, "replication_factor": 1} for name in names),
        {"name": "t0", "num_partitions": 1, "replication_factor": 1},
    )
    assert decided == [names[1:5], names[5:9], names[9:10]]
    assert list(answers) == names
    assert answers["t0"].error_code == errors.InvalidRequest.code
    assert answers["t10"].error_code == errors.PolicyViolation.code
    for name in names[1:10]:
        assert answers[name].error_code == 0
        assert answers[name].topic_id == broker.node.image.topics[name].topic_id
        assert answers[name].configs == answers["t1"].configs


def test_topics_alike_have_their_settings_found_once(broker, monkeypatch):
    found = []
    for_topic = Settings.for_topic
    monkeypatch.setattr(
        Settings, "for_topic", lambda *given: found.append(given) or for_topic(*given)
    )
    wanted = [{"name": f"t{i}", "num_partitions": 1, "replication_factor": 1} for i in range(20)]
    assert all(not answer.error_code for answer in create(broker, *wanted).values())
    assert len(found) <= 1


def opcodes_of(call):
    """Return how many opcodes of Python a call takes."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_creating_a_topic_takes_the_same_steps_among_many(broker):
    def create_one():
        create(broker, {"name": next(names), "num_partitions": 1, "replication_factor": 1})
        broker.node._state()

    names = (f"topic-{number:04}" for number in itertools.count())
    create_one()
    among_few = opcodes_of(create_one)
    many = [{"name": f"of-{i}", "num_partitions": 1, "replication_factor": 1} for i in range(240)]
    create(broker, *many)
    assert len(list(broker.node.replicas)) == 242
    create_one()  # with what was resized by then
    assert opcodes_of(create_one) == pytest.approx(among_few, rel=0.1)
