"""Dead letters of share groups (KIP-1191), through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.share import dead_letter_queue, led_share_partition
from kafkalite.broker.share.dead_letter_queue import ATTEMPTS_MAX
from kafkalite.broker.share_metrics import share_families
from kafkalite.coordination import features
from kafkalite.coordination.share.state_requests import StateInitialization
from kafkalite.protocol.schemas.share_records import DeliveryState, SharePartitionKey
from kafkalite.records.batch import Record, batches, build
from kafkalite.records.compression import Codec
from kafkalite.records.decode_steps import BATCH_COST, finish
from tests.handlers.conftest import InProcess
from tests.handlers.test_share_fetches import (
    ACCEPT,
    REJECT,
    RELEASE,
    Member,
    alter,
    open_state_topic,
    produce,
    summary,
    wait_for_load,
)

DLQ = "dlq.jobs"
TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"
REJECTED = "Offset rejected by client."
USED_UP = "Offset delivery count exceeded the threshold."


@pytest.fixture
def topic_id(broker):
    """Topic `t`, whose share partitions of group `g` start at offset 0; the group names DLQ."""
    topic_id = broker.create("t", 3)
    open_state_topic(broker)
    keys = [SharePartitionKey("g", topic_id, index) for index in range(3)]
    done = broker.node.share_coordinators.outcomes([StateInitialization(key, 1, 0) for key in keys])
    broker.until(lambda: done.settled)
    alter(broker, **{TOPIC_NAME: DLQ})
    return topic_id


def create_dlq(broker, count=1, **config):
    config = {"errors.deadletterqueue.group.enable": "true", **config}
    return broker.create(DLQ, count, **config)


@pytest.fixture
def member(broker, topic_id):
    return joined(broker, topic_id)


def joined(broker, topic_id):
    """Return a member whose session has all partitions, loaded."""
    member = Member(broker, topic_id)
    member.poll(0, 1, 2)
    wait_for_load(broker, topic_id, 0, 1, 2)
    return member


def letters(broker, partition=0, topic=DLQ):
    """Return the records of a partition of the dead letter topic."""
    led = broker.node.replicas.leader(topic, partition)
    found = led.read(0, 1 << 20, 0, whole_first=True)
    content = found.read() if found is not None else b""
    return [record for batch in batches(content) for record in batch.records()]


def offsets(broker, partition=0):
    """Return (offset, delivery count, message) of the dead letters."""
    return [
        (int(named["__dlq.errors.offset"]), int(named["__dlq.errors.delivery.count"]),
         named["__dlq.errors.message"].decode())
        for named in (dict(record.headers) for record in letters(broker, partition))
    ]  # fmt: skip


def start_offset(broker, topic_id, partition=0):
    return summary(broker, topic_id, partition).start_offset


def run_until(broker, holds, pace_ms=1):
    """Run the node, whose clock advances by `pace_ms` a tick, until the condition holds."""
    for _ in range(10_000):
        if holds():
            return
        broker.clock.advance(pace_ms)
        broker.reactor.tick(2)
    raise AssertionError("the node did not reach the condition")


def wait_for_start(broker, topic_id, offset, partition=0, pace_ms=1):
    """Run the node until the share partition has this start offset."""
    run_until(broker, lambda: start_offset(broker, topic_id, partition) == offset, pace_ms)


PACE_MS = dead_letter_queue.PAUSE_MS
"""Pace at which the pauses before all attempts pass in some ticks."""


def test_rejected_record_has_a_dead_letter(broker, topic_id, member):
    create_dlq(broker)
    produce(broker, "t", b"a", b"b")
    assert member.poll() == {0: [(0, 1, 1)]}
    assert member.acknowledge(0, 1, ACCEPT, REJECT) == 0
    wait_for_start(broker, topic_id, 2)
    (letter,) = letters(broker)
    assert (letter.key, letter.value) == (None, None)
    assert 0 <= broker.clock.wall_ms() - letter.timestamp < 1_000
    assert letter.headers == (
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"1"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", REJECTED.encode()),
    )
    counts = broker.node.share_partitions.dead_letters.counts
    assert (counts.records["g"], counts.produces["g"], counts.failed_produces["g"]) == (1, 1, 0)


def test_record_without_deliveries_left_has_a_dead_letter(broker, topic_id, member):
    create_dlq(broker)
    alter(broker, **{"share.delivery.count.limit": "2"})
    produce(broker, "t", b"a")
    produce(broker, "t", b"b")
    for count in (1, 2):
        assert member.poll(records=1) == {0: [(0, 0, count)]}
        assert member.acknowledge(0, 0, RELEASE) == 0
    for count in (1, 2):
        assert member.poll() == {0: [(1, 1, count)]}
        broker.clock.advance(31_000)
        broker.reactor.tick(0)
    wait_for_start(broker, topic_id, 2)
    assert offsets(broker) == [(0, 2, USED_UP), (1, 2, USED_UP)]


def test_dead_letters_go_to_the_partition_with_the_same_number(broker, topic_id, member):
    create_dlq(broker, 2)
    for partition in range(3):
        produce(broker, "t", b"a", partition=partition)
    assert len(member.poll()) == 3
    for partition in range(3):
        assert member.acknowledge(0, 0, REJECT, partition=partition) == 0
    for partition in range(3):
        wait_for_start(broker, topic_id, 1, partition)
    sources = [
        [dict(letter.headers)["__dlq.errors.partition"] for letter in letters(broker, index)]
        for index in range(2)
    ]
    assert sources == [[b"0", b"2"], [b"1"]]


def test_dead_letters_have_copies_if_the_group_wants_them(broker, topic_id, member):
    create_dlq(broker)
    alter(broker, **{COPY: "true"})
    led = broker.node.replicas.leader("t", 0)
    first = [Record(key=b"k", value=b"a"), Record(value=b"b", headers=(("own", b"x"),)), Record()]
    for codec in (Codec.NONE, Codec.ZSTD):
        broker.node.replicas.append_own(led, build(first, codec=codec))
    broker.reactor.tick(0)
    assert member.poll() == {0: [(0, 5, 1)]}
    assert member.acknowledge(0, 5, REJECT, REJECT, ACCEPT, ACCEPT, REJECT, REJECT) == 0
    wait_for_start(broker, topic_id, 6)
    found = [
        (letter.key, letter.value, dict(letter.headers)["__dlq.errors.offset"])
        for letter in letters(broker)
    ]
    assert found == [(b"k", b"a", b"0"), (None, b"b", b"1"), (None, b"b", b"4"), (None, None, b"5")]
    assert all("own" not in dict(letter.headers) for letter in letters(broker))


def test_each_batch_that_is_read_for_copies_is_a_step():
    content = b"".join(build([Record(value=b"x")], base_offset=offset) for offset in range(2_000))
    steps = dead_letter_queue._copied(content, [0, 1_000])
    costs = []
    while (cost := next(steps, None)) is not None:
        costs.append(cost)
    assert len(costs) == 1_001  # those after the last wanted record are not read
    assert BATCH_COST <= min(costs) <= max(costs) < 2 * BATCH_COST
    copied = finish(dead_letter_queue._copied(content, [0, 1_000]))
    assert copied == ({0: (None, b"x"), 1_000: (None, b"x")}, 1_001)


def test_records_that_are_rejected_in_any_order_are_copied(broker, topic_id, member):
    create_dlq(broker)
    alter(broker, **{COPY: "true"})
    for value in (b"a", b"b", b"c"):
        produce(broker, "t", value)
    assert member.poll() == {0: [(0, 2, 1)]}
    led = broker.node.share_partitions.led.find("g", topic_id, 0)
    for offset in (2, 0, 1):
        led.acknowledge(member.member_id, [_rejection(offset, offset)])
    wait_for_start(broker, topic_id, 3)
    assert [letter.value for letter in letters(broker)] == [b"a", b"b", b"c"]


def test_record_that_does_not_fit_is_not_copied(broker, topic_id, member):
    create_dlq(broker, **{"max.message.bytes": "1000"})
    alter(broker, **{COPY: "true"})
    produce(broker, "t", b"a" * 2_000, b"b", b"c" * 400, b"d" * 400)
    assert member.poll() == {0: [(0, 3, 1)]}
    assert member.acknowledge(0, 3, REJECT) == 0
    wait_for_start(broker, topic_id, 4)
    assert [letter.value for letter in letters(broker)] == [None, b"b", b"c" * 400, b"d" * 400]


def test_record_that_the_log_has_deleted_has_a_dead_letter_without_copy(broker, topic_id, member):
    create_dlq(broker)
    alter(broker, **{COPY: "true"})
    produce(broker, "t", b"a", b"b")
    assert member.poll() == {0: [(0, 1, 1)]}
    led = broker.node.share_partitions.led.find("g", topic_id, 0)
    future = led.acknowledge(member.member_id, [_rejection(0, 1)])
    led.partition.log.delete_records(2)
    broker.until(lambda: future.settled)
    wait_for_start(broker, topic_id, 2)
    assert [(letter.value, len(letter.headers)) for letter in letters(broker)] == [(None, 6)] * 2


def test_records_after_one_that_the_log_has_deleted_are_copied(
    broker, topic_id, member, monkeypatch
):
    create_dlq(broker)
    alter(broker, **{COPY: "true"})
    for value in (b"a", b"b"):
        produce(broker, "t", value)
    assert member.poll() == {0: [(0, 1, 1)]}
    queue = broker.node.share_partitions.dead_letters
    write = queue.write

    def write_late(*args):
        broker.node.replicas.leader("t", 0).log.delete_records(1)
        return write(*args)

    monkeypatch.setattr(queue, "write", write_late)
    assert member.acknowledge(0, 1, REJECT) == 0
    wait_for_start(broker, topic_id, 2)
    assert [letter.value for letter in letters(broker)] == [None, b"b"]


def _rejection(first, last):
    return led_share_partition.AcknowledgementBatch(first, last, [REJECT])


@pytest.mark.parametrize(
    ("name", "config", "reason"),
    [
        (DLQ, None, "does not exist"),
        (DLQ, {"errors.deadletterqueue.group.enable": "false"}, "group.enable of the topic"),
        ("jobs", {}, "must begin with 'dlq.'"),
    ],
)
def test_records_are_archived_if_there_can_be_no_dead_letter(
    broker, topic_id, member, caplog, name, config, reason
):
    if config is not None:
        create_dlq(broker, **config)
    alter(broker, **{TOPIC_NAME: name})
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    wait_for_start(broker, topic_id, 1)
    (logged,) = [each for each in caplog.records if "Dead letters" in each.message]
    assert reason in logged.message
    assert logged.levelname == "ERROR"
    if config is not None:
        assert letters(broker) == []


def test_missing_topic_is_created_if_the_broker_permits_it(broker, topic_id):
    broker.restart(**{"errors.deadletterqueue.auto.create.topics.enable": "true"})
    member = joined(broker, topic_id)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    run_until(broker, lambda: DLQ in broker.node.image.topics)
    assert dict(broker.node.image.topics[DLQ].config) == {
        "errors.deadletterqueue.group.enable": "true",
        "message.timestamp.type": "CreateTime",
    }
    wait_for_start(broker, topic_id, 1, pace_ms=PACE_MS)
    assert offsets(broker) == [(0, 1, REJECTED)]


def test_topic_that_another_node_creates_at_the_same_time_is_used(broker, topic_id, monkeypatch):
    broker.restart(**{"errors.deadletterqueue.auto.create.topics.enable": "true"})
    topics = broker.node.share_partitions.dead_letters.topics
    create = topics._create_topics

    def create_twice(names, *args):
        exists = {name: errors.TopicAlreadyExists() for name in names}
        return create(names, *args).map(lambda _: exists)

    monkeypatch.setattr(topics, "_create_topics", create_twice)
    member = joined(broker, topic_id)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    wait_for_start(broker, topic_id, 1, pace_ms=PACE_MS)
    assert offsets(broker) == [(0, 1, REJECTED)]


def test_dead_letter_is_written_again_until_its_leader_takes_it(
    broker, topic_id, member, monkeypatch
):
    create_dlq(broker)
    queue = broker.node.share_partitions.dead_letters
    append, failures = queue.append, [errors.NotLeaderOrFollower(), errors.RequestTimedOut()]

    def fail_at_first(*batch):
        if not failures:
            return append(*batch)
        future = dead_letter_queue.Future()
        future.fail(failures.pop())
        return future

    monkeypatch.setattr(queue, "append", fail_at_first)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    assert start_offset(broker, topic_id) == 0
    (state,) = summary(broker, topic_id).state_batches
    assert state == (0, 0, DeliveryState.ARCHIVING, 1)
    wait_for_start(broker, topic_id, 1, pace_ms=PACE_MS)
    assert offsets(broker) == [(0, 1, REJECTED)]


def test_records_are_archived_once_all_attempts_have_failed(broker, topic_id, member, monkeypatch):
    create_dlq(broker)
    queue = broker.node.share_partitions.dead_letters

    def fail(*_):
        future = dead_letter_queue.Future()
        future.fail(errors.NotLeaderOrFollower())
        return future

    monkeypatch.setattr(queue, "append", fail)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    wait_for_start(broker, topic_id, 1, pace_ms=PACE_MS)
    assert letters(broker) == []
    assert (queue.counts.produces["g"], queue.counts.failed_produces["g"]) == (ATTEMPTS_MAX, 1)


def test_dead_letters_are_left_to_the_next_leader(broker, topic_id, member, monkeypatch, caplog):
    create_dlq(broker)
    queue = broker.node.share_partitions.dead_letters
    led = broker.node.replicas.leader("t", 0)
    sent = []

    def fail_and_move(*batch):
        sent.append(batch)
        led.error = errors.NotLeaderOrFollower()
        future = dead_letter_queue.Future()
        future.fail(errors.RequestTimedOut())
        return future

    monkeypatch.setattr(queue, "append", fail_and_move)
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    run_until(broker, lambda: sent)
    for _ in range(2 * ATTEMPTS_MAX):
        broker.clock.advance(dead_letter_queue.PAUSE_MS)
        broker.reactor.tick(0)
    assert len(sent) == 1
    assert summary(broker, topic_id).state_batches[0].delivery_state == DeliveryState.ARCHIVING
    assert not [each for each in caplog.records if "Dead letters" in each.message]


@pytest.mark.parametrize("is_written", [False, True])
def test_dead_letters_go_on_after_a_kill(broker, topic_id, member, monkeypatch, is_written):
    create_dlq(broker)
    queue = broker.node.share_partitions.dead_letters
    append, sent = queue.append, []

    def never_respond(*batch):
        sent.append(batch)
        if is_written:
            append(*batch)
        return dead_letter_queue.Future()

    monkeypatch.setattr(queue, "append", never_respond)
    produce(broker, "t", b"a", b"b")
    assert member.poll() == {0: [(0, 1, 1)]}
    assert member.acknowledge(0, 1, REJECT) == 0
    run_until(broker, lambda: sent)
    again = broker.killed()
    try:
        alter(again, **{COPY: "true"})
        other = joined(again, topic_id)
        wait_for_start(again, topic_id, 2)
        assert other.poll() == {}
        expected = [(0, 1, REJECTED), (1, 1, REJECTED)]
        assert offsets(again) == expected * (1 + is_written)
    finally:
        again.close()


def test_archiving_ends_if_dead_letters_are_switched_off(broker, topic_id, member, monkeypatch):
    create_dlq(broker)
    queue = broker.node.share_partitions.dead_letters
    monkeypatch.setattr(queue, "append", lambda *_: dead_letter_queue.Future())
    produce(broker, "t", b"a")
    assert member.poll() == {0: [(0, 0, 1)]}
    assert member.acknowledge(0, 0, REJECT) == 0
    again = broker.killed()
    try:
        alter(again, **{TOPIC_NAME: ""})
        joined(again, topic_id)
        wait_for_start(again, topic_id, 1)
        assert letters(again) == []
    finally:
        again.close()


def test_level_1_of_share_version_has_no_dead_letters(tmp_path, monkeypatch):
    monkeypatch.setitem(features.SUPPORTED_LEVELS, features.SHARE_VERSION, 1)
    node = InProcess(tmp_path / "data")
    try:
        alter(node, **{TOPIC_NAME: DLQ})
        settings = node.node.groups.configs.of_share_group("g")
        assert not settings.limits.has_dead_letters
    finally:
        node.close()


def test_name_of_an_internal_topic_is_refused(broker):
    with pytest.raises(AssertionError, match="does not begin with __"):
        alter(broker, **{TOPIC_NAME: "__consumer_offsets"})


def test_many_rejections_take_many_short_ticks(broker, topic_id, member, monkeypatch):
    create_dlq(broker)
    alter(broker, **{"share.partition.max.record.locks": "4000"})
    produce(broker, "t", *[b"x"] * 4_000)
    assert member.poll(records=4_000) == {0: [(0, 3_999, 1)]}
    built = []
    build_batch = dead_letter_queue.build_batch

    def count(*args):
        batch, number = build_batch(*args)
        built.append((broker.clock.monotonic_ms(), number))
        return batch, number

    monkeypatch.setattr(dead_letter_queue, "build_batch", count)
    assert member.acknowledge(0, 3_999, *[REJECT, REJECT, REJECT, ACCEPT] * 1_000) == 0
    wait_for_start(broker, topic_id, 4_000)
    assert sum(number for _, number in built) == 3_000
    assert max(number for _, number in built) == led_share_partition.ARCHIVED_AT_ONCE
    assert len({time_ms for time_ms, _ in built}) == len(built)


def test_dead_letters_of_many_partitions_take_a_tick_each(broker, topic_id, member, monkeypatch):
    create_dlq(broker)
    for partition in range(3):
        produce(broker, "t", *[b"x"] * 1_000, partition=partition)
    assert len(member.poll(records=3_000)) == 3
    ticks = []
    build_batch = dead_letter_queue.build_batch

    def count(*args):
        ticks.append(broker.reactor.tick_number)
        return build_batch(*args)

    monkeypatch.setattr(dead_letter_queue, "build_batch", count)
    for partition in range(3):
        led = broker.node.share_partitions.led.find("g", topic_id, partition)
        led.acknowledge(member.member_id, [_rejection(0, 999)])
    for partition in range(3):
        wait_for_start(broker, topic_id, 1_000, partition)
    assert len(ticks) == len({*ticks}) == 6


@pytest.mark.parametrize("copies", ["false", "true"])
def test_dead_letters_wait_while_others_are_appended(
    broker, topic_id, member, monkeypatch, copies
):
    create_dlq(broker)
    alter(broker, **{COPY: copies})
    monkeypatch.setattr(dead_letter_queue, "UNWRITTEN_SIZE_MAX", 1)
    queue = broker.node.share_partitions.dead_letters
    append = queue.append
    held = []

    def append_later(*batch):
        future = dead_letter_queue.Future()
        held.append((batch, future))
        return future

    monkeypatch.setattr(queue, "append", append_later)
    for partition in range(3):
        produce(broker, "t", b"a", partition=partition)
    assert len(member.poll()) == 3
    for partition in range(3):
        assert member.acknowledge(0, 0, REJECT, partition=partition) == 0
    for _ in range(3):
        run_until(broker, lambda: held)
        for _ in range(20):
            broker.clock.advance(1)
            broker.reactor.tick(0)
        ((batch, future),) = held
        held.clear()
        append(*batch).then(lambda *_, future=future: future.resolve(None))
    for partition in range(3):
        wait_for_start(broker, topic_id, 1, partition)
    assert len(letters(broker)) == 3


def test_copies_of_a_batch_are_limited():
    value = b"x" * (dead_letter_queue.BATCH_SIZE_MAX // 2)
    content = build([Record(value=value) for _ in range(4)])
    copied = finish(dead_letter_queue._copied(content, [0, 1, 2, 3]))
    assert ([*copied.records], copied.end_offset) == ([0, 1, 2], 3)


def test_metrics_count_the_dead_letters_of_each_group(broker, topic_id, member):
    create_dlq(broker)
    produce(broker, "t", b"a", b"b")
    assert member.poll() == {0: [(0, 1, 1)]}
    assert member.acknowledge(0, 1, REJECT) == 0
    wait_for_start(broker, topic_id, 2)
    samples = {
        family.name.removeprefix("kafka_server_sharegroupmetrics_"): [*family.samples]
        for family in share_families(broker.node)
    }
    assert samples == {
        "deadletterqueuerecordcount_total": [({"group": "g"}, 2)],
        "deadletterqueuetotalproducerequests_total": [({"group": "g"}, 1)],
        "deadletterqueuefailedproducerequests_total": [],
    }
