"""Topics of many partitions: created and deleted in bounded steps; totals kept by the node."""

from __future__ import annotations

import errno
import itertools
from functools import partial

import pytest

from kafkalite import errors
from kafkalite.broker.controller import decisions
from kafkalite.broker.replica.reconciler import STEP_MS, AwaitedPartition
from kafkalite.config.settings import Settings
from kafkalite.coordination import topics as topic_decisions
from kafkalite.coordination.topics import PartitionGrowth
from kafkalite.protocol.schemas.internal import REMOVE_TOPIC, TOPIC
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.handlers.test_topics import create
from tests.opcodes import opcodes_of


@pytest.fixture
def slow_disk(broker, monkeypatch):
    """Make creating a log take 3 ms, deleting one 2 ms, and each tick 1 ms."""

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


def test_create_topics_of_many_partitions_responds_after_all_steps(broker, slow_disk):
    topic = {"name": "many", "num_partitions": 50, "replication_factor": 1}
    created = broker.send(CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000)
    lengths = tick_lengths(broker, lambda: created.sent is not None)
    assert len(list(broker.node.replicas)) == 50
    assert len(lengths) >= 50 * 3 // 13 and max(lengths) <= STEP_MS + 3 + 1


def test_create_topics_does_not_wait_for_later_topics(broker, slow_disk):
    answers = []
    for name, count in (("first", 20), ("second", 5), ("third", 50)):
        topic = {"name": name, "num_partitions": count, "replication_factor": 1}
        answers.append(broker.send(CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000))
    made = []
    for answer in answers:
        broker.until(lambda answer=answer: answer.sent is not None)
        made.append(len(list(broker.node.replicas)))
    per_step = STEP_MS // 3 + 1
    assert 20 <= made[0] <= 20 + per_step and 25 <= made[1] <= 25 + per_step and made[2] == 75


def test_topic_of_many_partitions_is_deleted_in_steps(broker, slow_disk):
    topic_id = broker.create("many", 50)
    gone = broker.send(DELETE_TOPICS, 1, topic_names=["many"], timeout_ms=1_000)
    lengths = tick_lengths(broker, lambda: not broker.node.replicas.of_topic(topic_id))
    assert gone.sent is None, "no client reaches it any more, and its directories are there"
    lengths += tick_lengths(broker, lambda: gone.sent is not None)
    assert max(lengths) <= STEP_MS + 2 + 1
    assert not [path for path in broker.directory.iterdir() if path.name.startswith("many-")
                and not path.name.endswith("-delete")]  # fmt: skip


def test_recreated_topic_waits_for_deletion_of_the_old_one(broker, slow_disk):
    broker.create("again", 20)
    broker.append("again", [1])
    gone = broker.send(DELETE_TOPICS, 1, topic_names=["again"], timeout_ms=1_000)
    topic_id = broker.create("again", 20)
    assert gone.sent is not None
    assert len(broker.node.replicas.of_topic(topic_id)) == 20
    assert broker.node.replicas.leader("again", 0).log.end_offset == 0
    assert not [*broker.directory.glob("*-stray")]


def test_topic_deleted_during_its_creation_leaves_no_logs(broker, slow_disk):
    topic = {"name": "many", "num_partitions": 50, "replication_factor": 1}
    created = broker.send(CREATE_TOPICS, 7, topics=[topic], timeout_ms=1_000)
    broker.until(lambda: list(broker.node.replicas))
    assert created.sent is None
    broker.request(DELETE_TOPICS, 1, topic_names=["many"], timeout_ms=1_000)
    assert created.sent is not None
    assert list(broker.node.replicas) == []


def test_close_completes_pending_deletions(broker, slow_disk):
    broker.create("many", 50)
    gone = broker.send(DELETE_TOPICS, 1, topic_names=["many"], timeout_ms=1_000)
    broker.until(lambda: not list(broker.node.replicas))
    assert gone.sent is None
    broker.restart()
    assert list(broker.node.replicas) == []
    assert not [*broker.directory.glob("*-stray")]


def test_total_size_reads_only_changed_logs(broker, monkeypatch):
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
    broker.request(DELETE_TOPICS, 1, topic_names=["b"], timeout_ms=1_000)
    assert (replicas.led_count, replicas.total_size()) == (2, 0)


def test_partition_directory_name_above_255_bytes_is_refused(broker, monkeypatch):
    name = "n" * 249
    answers = create(
        broker, {"name": name, "num_partitions": 1, "replication_factor": 1}
    )  # fmt: skip
    assert answers[name].error_code == 0
    machine = broker.node.local_controller.machine
    machine_grows = partial(machine.create_partitions, validate_only=True)
    monkeypatch.setattr(topic_decisions, "NEW_PARTITIONS_MAX", 1 << 20)
    with_long_name = machine_grows([PartitionGrowth(name, 100_001)]).response[name]
    assert isinstance(with_long_name, errors.InvalidPartitions)
    assert "longer than 255" in str(with_long_name)
    assert machine_grows([PartitionGrowth(name, 100_000)]).response[name] is None


def test_log_that_cannot_be_created_is_offline(broker, monkeypatch):
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


def test_create_topics_of_many_topics_has_no_long_tick(broker, slow_disk):
    topics = [{"name": f"t{i}", "num_partitions": 1, "replication_factor": 1} for i in range(50)]
    created = broker.send(CREATE_TOPICS, 7, topics=topics, timeout_ms=1_000)
    lengths = tick_lengths(broker, lambda: created.sent is not None)
    assert len(list(broker.node.replicas)) == 50
    assert len(lengths) >= 50 * 3 // 13 and max(lengths) <= STEP_MS + 3 + 1


@pytest.fixture
def decided(broker, slow_disk, monkeypatch):
    """Limit a decision to 4 topics; return the list of each decision's records."""
    monkeypatch.setattr(decisions, "WEIGHT_MAX", 4)
    decided = []
    broker.node.local_controller.on_change(lambda records, _: decided.append([*records]))
    broker.until(lambda: decided)  # a new cluster finalizes its features
    decided.clear()
    return decided


def test_create_topics_is_decided_in_parts(broker, monkeypatch, decided):
    monkeypatch.setattr(topic_decisions, "NEW_PARTITIONS_MAX", 9)
    names = [f"t{i}" for i in range(11)]
    answers = create(
        broker,
        *({"name": name, "num_partitions": 1, "replication_factor": 1} for name in names),
        {"name": "t0", "num_partitions": 1, "replication_factor": 1},
    )
    created = [[r.fields["name"] for r in records if r.kind is TOPIC] for records in decided]
    assert created == [names[1:5], names[5:9], names[9:10]]
    assert list(answers) == names
    assert answers["t0"].error_code == errors.InvalidRequest.code
    assert answers["t10"].error_code == errors.PolicyViolation.code
    for name in names[1:10]:
        assert answers[name].error_code == 0
        assert answers[name].topic_id == broker.node.image.topics[name].topic_id
        assert answers[name].configs == answers["t1"].configs


def test_create_topics_parts_count_configs(broker, decided):
    configs = [{"name": "retention.ms", "value": "1"}, {"name": "segment.ms", "value": "1"}]
    wanted = [
        {"name": f"t{i}", "num_partitions": 1, "replication_factor": 1, "configs": configs}
        for i in range(3)
    ]
    assert all(not answer.error_code for answer in create(broker, *wanted).values())
    assert [len(records) for records in decided] == [4, 4, 4]


def test_delete_topics_is_decided_in_parts(broker, decided):
    names = [f"t{i}" for i in range(10)]
    for name in names:
        broker.create(name, 2)
    decided.clear()
    answer = broker.request(DELETE_TOPICS, 1, topic_names=names, timeout_ms=1_000)
    assert [(one.name, one.error_code) for one in answer.responses] == [(n, 0) for n in names]
    assert [len(records) for records in decided] == [4, 4, 2]
    assert not broker.node.image.topics and not list(broker.node.replicas)


def test_topic_deleted_between_two_parts_is_unknown(broker, decided):
    names = [f"t{i}" for i in range(6)]
    ids = [broker.create(name) for name in names]
    sent = broker.send(DELETE_TOPICS, 1, topic_names=names, timeout_ms=1_000)
    broker.until(lambda: decided[-1][0].kind is REMOVE_TOPIC)
    assert sent.sent is None
    broker.node.local_controller.execute(lambda machine: machine.delete_topics({ids[5]: "t5"}))
    broker.until(lambda: sent.sent is not None)
    codes = [one.error_code for one in broker.response(sent, DELETE_TOPICS, 1).responses]
    assert codes == [0] * 5 + [errors.UnknownTopicOrPartition.code]


def test_create_partitions_is_decided_in_parts(broker, monkeypatch, decided):
    names = [f"t{i}" for i in range(10)]
    for name in names:
        broker.create(name, 1)
    decided.clear()
    monkeypatch.setattr(topic_decisions, "NEW_PARTITIONS_MAX", 17)
    grown = [{"name": name, "count": 3, "assignments": None} for name in names]
    answer = broker.request(
        CREATE_PARTITIONS, 3, topics=grown, timeout_ms=1_000, validate_only=True
    )
    expected = [(name, 0) for name in names[:8]]
    expected += [(name, errors.PolicyViolation.code) for name in names[8:]]
    assert [(one.name, one.error_code) for one in answer.results] == expected
    assert decided == []
    answer = broker.request(
        CREATE_PARTITIONS, 3, topics=grown, timeout_ms=1_000, validate_only=False
    )
    assert [(one.name, one.error_code) for one in answer.results] == expected
    assert [len(records) for records in decided] == [4, 4]


def test_topics_with_equal_configs_share_their_settings(broker, monkeypatch):
    found = []
    for_topic = Settings.for_topic
    monkeypatch.setattr(
        Settings, "for_topic", lambda *given: found.append(given) or for_topic(*given)
    )
    wanted = [{"name": f"t{i}", "num_partitions": 1, "replication_factor": 1} for i in range(20)]
    assert all(not answer.error_code for answer in create(broker, *wanted).values())
    assert len(found) <= 1


def test_awaited_partitions_are_checked_in_steps(broker, monkeypatch):
    """Each look-up takes 2 ms; the first 30 partitions of a deleted topic have arrived by then."""
    reconciler, looked = broker.node.reconciler, []

    def discard(topic, index, topic_id):
        looked.append(index)
        broker.clock.advance(2)
        return index < 30

    monkeypatch.setattr(reconciler, "_discard", discard)
    topic_id = bytes(15) + b"g"
    now_ms = broker.clock.monotonic_ms()
    awaited = AwaitedPartition("gone", now_ms)
    reconciler.awaited |= {(topic_id, index): awaited for index in range(100)}
    lengths = []
    reconciler._check_arrivals()
    while len(looked) < 100:
        broker.clock.advance(1)
        before = broker.clock.monotonic_ms()
        broker.reactor.tick(0)
        lengths.append(broker.clock.monotonic_ms() - before)
    assert looked == [*range(100)]
    assert [index for _, index in reconciler.awaited] == [*range(30, 100)]
    assert max(lengths) <= STEP_MS + 2
    assert sum(lengths) * 3 <= len(lengths), "most of the time is the clients'"


def test_create_topics_costs_the_same_among_many_topics(broker):
    def create_one():
        create(broker, {"name": next(names), "num_partitions": 1, "replication_factor": 1})
        broker.node._heartbeat_state()

    names = (f"topic-{number:04}" for number in itertools.count())
    create_one()
    among_few = opcodes_of(create_one)
    many = [{"name": f"of-{i}", "num_partitions": 1, "replication_factor": 1} for i in range(240)]
    create(broker, *many)
    assert len(list(broker.node.replicas)) == 242
    create_one()  # includes tables resized by now
    assert opcodes_of(create_one) == pytest.approx(among_few, rel=0.1)
