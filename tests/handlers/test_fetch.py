"""Fetch, through the dispatcher of a real node: offsets, size limits, waiting, sessions."""

from __future__ import annotations

import gc

import pytest

from kafkalite import errors
from kafkalite._ext.wire import FETCH_NAMES_MAX
from kafkalite.broker.replica.delayed_fetch import DelayedFetch
from kafkalite.broker.security import READ
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.log import log_reader
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying

SIZE_MAX = 1 << 20


def append(node: InProcess, *values: bytes, topic="a", partition=0) -> None:
    found = node.node.replicas.leader(topic, partition)
    batch = build([Record(timestamp=1_000, value=value) for value in values])
    node.node.replicas.append_own(found, batch)
    node.reactor.tick(0)


def wanted(node: InProcess, version: int, *offsets: tuple[int, int], topic="a", **fields) -> dict:
    """Return a fetch request's topic: (partition, offset) pairs, by name or by id."""
    known = node.node.image.topics.get(topic)
    topic_id = known.topic_id if known else b"?" * 16
    named = {"topic": topic} if version < 13 else {"topic_id": topic_id}
    partitions = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": SIZE_MAX, **fields}
        for index, offset in offsets
    ]
    return {**named, "partitions": partitions}


def request(node: InProcess, version: int, *topics: dict, **fields) -> dict:
    return {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": SIZE_MAX,
        "session_epoch": -1,
        "topics": list(topics),
        **fields,
    }


def fetch(node: InProcess, offset: int, version=18, partition=0, topic="a", **fields):
    """Fetch one partition; `in_partition` goes to its entry, other fields to the request."""
    in_partition = fields.pop("in_partition", {})
    topics = wanted(node, version, (partition, offset), topic=topic, **in_partition)
    answer = node.request(FETCH, version, **request(node, version, topics, **fields))
    (entry,) = answer.responses[0].partitions
    return entry


def values_of(entry) -> list[bytes | None]:
    return [record.value for batch in batches(entry.records) for record in batch]


@pytest.fixture
def filled(broker):
    """Return a node with offsets 0 and 1 in one batch, and 2 in another."""
    broker.create("a", 2)
    append(broker, b"x", b"y")
    append(broker, b"z")
    return broker


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_of_every_version_starts_at_the_batch_with_the_offset(filled, version):
    entry = fetch(filled, 0, version)
    assert (entry.error_code, entry.high_watermark, entry.last_stable_offset) == (0, 3, 3)
    assert values_of(entry) == [b"x", b"y", b"z"]
    assert values_of(fetch(filled, 1, version)) == [b"x", b"y", b"z"]
    assert values_of(fetch(filled, 2, version)) == [b"z"]


@pytest.mark.parametrize("version", range(4, 19))
def test_empty_fetch_response_has_records_of_length_zero(filled, version):
    entry = fetch(filled, 3, version)
    assert entry.error_code == 0
    assert entry.records is not None
    assert len(entry.records) == 0


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
def test_fetch_outside_the_log_returns_offset_out_of_range(filled, offset):
    assert fetch(filled, offset).error_code == errors.OffsetOutOfRange.code


@pytest.mark.parametrize(
    ("where", "version", "fault"),
    [
        ({"topic": "none"}, 12, errors.UnknownTopicOrPartition),
        ({"topic": "none"}, 13, errors.UnknownTopicId),
        ({"partition": 7}, 12, errors.UnknownTopicOrPartition),
        ({"partition": 7}, 18, errors.UnknownTopicOrPartition),
    ],
)
def test_fetch_of_unknown_partition_fails_immediately(filled, where, version, fault):
    entry = fetch(filled, 0, version, max_wait_ms=10_000, **where)
    assert entry.error_code == fault.code


@pytest.mark.parametrize(
    ("epoch", "fault"), [(-1, None), (0, None), (3, errors.UnknownLeaderEpoch)]
)
def test_fetch_checks_the_leader_epoch(filled, epoch, fault):
    entry = fetch(filled, 0, in_partition={"current_leader_epoch": epoch})
    assert entry.error_code == (fault.code if fault else 0)


def test_fetch_with_older_leader_epoch_returns_fenced_leader_epoch(filled):
    filled.node.replicas.leader("a", 0).leader_epoch = 2
    entry = fetch(filled, 0, in_partition={"current_leader_epoch": 1})
    assert entry.error_code == errors.FencedLeaderEpoch.code


def test_fetch_past_the_end_of_an_epoch_returns_diverging_epoch(filled):
    filled.node.replicas.leader("a", 0).leader_epoch = 2
    append(filled, b"under epoch 2")
    entry = fetch(filled, 4, 12, in_partition={"last_fetched_epoch": 1})
    assert entry.error_code == 0
    assert (entry.diverging_epoch.epoch, entry.diverging_epoch.end_offset) == (0, 3)


def test_fetch_below_the_log_start_is_out_of_range_whatever_its_epoch(filled):
    filled.node.replicas.leader("a", 0).leader_epoch = 2
    append(filled, b"under epoch 2")
    filled.node.replicas.leader("a", 0).log.delete_records(1)
    entry = fetch(filled, 0, 12, in_partition={"last_fetched_epoch": 1})
    assert entry.error_code == errors.OffsetOutOfRange.code


def test_fetch_of_unknown_epoch_is_out_of_range(filled):
    entry = fetch(filled, 3, 12, in_partition={"last_fetched_epoch": 5})
    assert entry.error_code == errors.OffsetOutOfRange.code


def test_fetch_without_authorization_fails(filled):
    filled.node.authorizer = Denying(READ)
    assert fetch(filled, 0).error_code == errors.TopicAuthorizationFailed.code


# -- size limits ---------------------------------------------------------------------------------


def test_first_batch_is_returned_whole_above_the_limits(filled):
    entry = fetch(filled, 0, max_bytes=1, in_partition={"partition_max_bytes": 1})
    assert values_of(entry) == [b"x", b"y"]


def test_repeated_partition_is_read_once_with_its_last_entry(filled):
    topics = wanted(filled, 12, (0, 0), (1, 0), (0, 2))
    (topic,) = filled.request(FETCH, 12, **request(filled, 12, topics)).responses
    assert [entry.partition_index for entry in topic.partitions] == [0, 1]
    assert values_of(topic.partitions[0]) == [b"z"]


def test_second_partition_gets_the_remaining_bytes(filled):
    append(filled, b"other", partition=1)
    topics = wanted(filled, 12, (0, 0), (1, 0))
    first_size = len(fetch(filled, 0).records)
    answer = filled.request(FETCH, 12, **request(filled, 12, topics, max_bytes=first_size))
    assert [bool(len(entry.records)) for entry in answer.responses[0].partitions] == [True, False]


def test_fetch_max_bytes_of_the_broker_limits_the_client(tmp_path):
    node = InProcess(tmp_path / "data", **{"fetch.max.bytes": "1024"})
    node.create("a")
    for _ in range(10):
        append(node, bytes(300))
    assert len(fetch(node, 0).records) <= 1024
    node.close()


def test_fetch_ends_at_the_high_watermark(tmp_path):
    node = InProcess(tmp_path / "data", durability="fsync")
    node.create("a")
    partition = node.node.replicas.leader("a", 0)
    node.node.replicas.append_own(partition, build([Record(timestamp=1, value=b"not flushed")]))
    assert len(fetch(node, 0).records) == 0
    node.until(lambda: partition.high_watermark == 1)
    assert values_of(fetch(node, 0)) == [b"not flushed"]
    node.close()


# -- waiting -------------------------------------------------------------------------------------


def send_fetch(node: InProcess, offset: int, version=12, **fields):
    topics = wanted(node, version, (0, offset))
    return node.send(FETCH, version, **request(node, version, topics, **fields))


def wait_for_entry(node: InProcess, wire, version=12):
    (entry,) = node.response(wire, FETCH, version).responses[0].partitions
    return entry


def test_fetch_at_the_end_waits_for_the_next_append(filled):
    wire = send_fetch(filled, 3, max_wait_ms=60_000)
    filled.reactor.tick(0)
    assert wire.sent is None
    append(filled, b"new")
    assert values_of(wait_for_entry(filled, wire)) == [b"new"]


def test_fetch_waits_for_min_bytes(filled):
    size = len(fetch(filled, 2).records)
    wire = send_fetch(filled, 3, max_wait_ms=60_000, min_bytes=2 * size)
    append(filled, b"1")
    assert wire.sent is None
    append(filled, b"2")
    assert values_of(wait_for_entry(filled, wire)) == [b"1", b"2"]


def test_fetch_waits_for_at_most_max_bytes(filled):
    wire = send_fetch(filled, 0, min_bytes=1 << 30, max_bytes=1)
    assert values_of(wait_for_entry(filled, wire)) == [b"x", b"y"]


def test_fetch_that_ends_with_an_older_segment_does_not_wait(filled):
    filled.node.replicas.leader("a", 0).log.roll()
    append(filled, b"n" * 1_000)
    wire = send_fetch(filled, 0, min_bytes=1_000)
    assert values_of(wait_for_entry(filled, wire)) == [b"x", b"y", b"z"]


def test_expired_fetch_is_empty(filled):
    wire = send_fetch(filled, 3, max_wait_ms=500)
    filled.clock.advance(499)
    filled.reactor.tick(0)
    assert wire.sent is None
    filled.clock.advance(1)
    filled.reactor.tick(0)
    assert len(wait_for_entry(filled, wire).records) == 0


def test_fetch_fails_when_its_topic_is_deleted(filled):
    wire = send_fetch(filled, 3, max_wait_ms=60_000)
    filled.request(DELETE_TOPICS, 1, topic_names=["a"], timeout_ms=1_000)
    assert wait_for_entry(filled, wire).error_code == errors.UnknownTopicOrPartition.code


def test_fetch_of_disconnected_client_is_removed(filled):
    wire = send_fetch(filled, 3, max_wait_ms=2**31 - 1)
    assert filled.node.replicas.purgatory.size == 1
    wire.abandoned()
    assert filled.node.replicas.purgatory.size == 0


def test_idle_node_checks_no_partition_of_a_waiting_fetch(filled, monkeypatch):
    looks = []
    measure = DelayedFetch._measure
    monkeypatch.setattr(
        DelayedFetch, "_measure", lambda *asked: (looks.append(asked), measure(*asked))[1]
    )
    send_fetch(filled, 3, max_wait_ms=2**31 - 1)
    assert len(looks) == 1
    for _ in range(20):
        filled.clock.advance(1_000)
        filled.node._run_maintenance()
        filled.reactor.tick(0)
    assert len(looks) == 1


def test_waiting_fetch_below_new_log_start_is_out_of_range(broker):
    broker.create("a", retention_ms="1000", file_delete_delay_ms="0")
    append(broker, b"old")
    wire = send_fetch(broker, 0, max_wait_ms=2**31 - 1, min_bytes=SIZE_MAX)
    broker.node.replicas.leader("a", 0).log.roll()
    broker.clock.advance(3_600_000)
    broker.node._run_maintenance()
    broker.reactor.tick(0)
    assert wait_for_entry(broker, wire).error_code == errors.OffsetOutOfRange.code


@pytest.mark.parametrize("version", [4, 12, 17])
@pytest.mark.parametrize("count", [FETCH_NAMES_MAX, 5 * FETCH_NAMES_MAX])
def test_fetch_of_too_many_partitions_is_refused(filled, version, count):
    topics = wanted(filled, version, *[(index, 0) for index in range(count)])
    answer = filled.request(FETCH, version, **request(filled, version, topics))
    if version < 7:
        assert answer.responses == []
        return
    assert (answer.error_code, answer.responses) == (errors.InvalidRequest.code, [])


def test_fetch_of_many_unknown_partitions_takes_several_ticks(filled):
    """Each costs a look-up and an error object."""
    topics = wanted(filled, 12, *[(index, 0) for index in range(2_000)])
    wire = filled.send(FETCH, 12, **request(filled, 12, topics))
    ticks = 0
    while wire.sent is None:
        filled.reactor.tick(0)
        ticks += 1
    entries = filled.response(wire, FETCH, 12).responses[0].partitions
    codes = [entry.error_code for entry in entries]
    assert codes == [0, 0] + [errors.UnknownTopicOrPartition.code] * 1_998
    assert ticks >= 5


def test_fetch_returns_storage_error_for_an_unreadable_partition(filled, monkeypatch):
    broken = filled.node.replicas.leader("a", 0).log

    def read(log, *args, **options):
        if log is broken:
            raise OSError(5, "Input/output error")
        return log_reader.read(log, *args, **options)

    monkeypatch.setattr("kafkalite.broker.replica.readable_partition.read", read)
    assert fetch(filled, 0).error_code == errors.KafkaStorageError.code
    assert fetch(filled, 0, partition=1).error_code == 0


# -- sessions ------------------------------------------------------------------------------------


def in_session(node: InProcess, session_id: int, epoch: int, *topics: dict, **fields):
    of_session = {"session_id": session_id, "session_epoch": epoch}
    return node.request(FETCH, 12, **request(node, 12, *topics, **of_session, **fields))


def partitions_in(answer) -> list[tuple[str, int]]:
    return [(topic.topic, entry.partition_index) for topic in answer.responses
            for entry in topic.partitions]  # fmt: skip


def test_fetch_session_returns_only_changes(filled):
    first = in_session(filled, 0, 0, wanted(filled, 12, (0, 3), (1, 0)))
    assert first.session_id > 0
    assert partitions_in(first) == [("a", 0), ("a", 1)]
    assert partitions_in(in_session(filled, first.session_id, 1)) == []
    append(filled, b"new", partition=1)
    assert partitions_in(in_session(filled, first.session_id, 2)) == [("a", 1)]


def test_fetch_session_ends_with_its_connection(filled):
    topics = wanted(filled, 12, (0, 3), (1, 0))
    wire = filled.send(FETCH, 12, **request(filled, 12, topics, session_epoch=0))
    session_id = filled.response(wire, FETCH, 12).session_id
    assert in_session(filled, session_id, 1).error_code == 0
    wire.disconnect()
    assert in_session(filled, session_id, 2).error_code == errors.FetchSessionIdNotFound.code
    assert filled.node.fetch_sessions.partition_count == 0


def test_fetch_without_room_for_a_session_returns_everything(filled):
    filled.node.fetch_sessions.resize(1)
    kept = in_session(filled, 0, 0, wanted(filled, 12, (0, 3), (1, 0)))
    for _ in range(3):
        answer = in_session(filled, 0, 0, wanted(filled, 12, (0, 3), (1, 0)))
        assert (answer.error_code, answer.session_id) == (0, 0)
        assert partitions_in(answer) == partitions_in(kept)
    assert partitions_in(in_session(filled, kept.session_id, 1)) == []


def test_fetch_with_unknown_session_returns_top_level_error(filled):
    assert in_session(filled, 99, 1).error_code == errors.FetchSessionIdNotFound.code


def test_fetch_with_wrong_session_epoch_returns_top_level_error(filled):
    session_id = in_session(filled, 0, 0, wanted(filled, 12, (0, 3))).session_id
    answer = in_session(filled, session_id, 5)
    assert answer.error_code == errors.InvalidFetchSessionEpoch.code


def test_fetch_session_removes_forgotten_partitions(filled):
    session_id = in_session(filled, 0, 0, wanted(filled, 12, (0, 3), (1, 0))).session_id
    forgotten = [{"topic": "a", "partitions": [1]}]
    in_session(filled, session_id, 1, forgotten_topics_data=forgotten)
    append(filled, b"new", partition=1)
    assert partitions_in(in_session(filled, session_id, 2)) == []


@pytest.mark.parametrize(("made_in", "used_in"), [(12, 13), (13, 12)])
def test_fetch_session_keeps_topic_names_or_ids(filled, made_in, used_in):
    topics = wanted(filled, made_in, (0, 0))
    session_id = filled.request(
        FETCH, made_in, **request(filled, made_in, topics, session_epoch=0)
    ).session_id
    again = request(filled, used_in, session_id=session_id, session_epoch=1)
    answer = filled.request(FETCH, used_in, **again)
    assert answer.error_code == errors.FetchSessionTopicIdError.code
    again = request(filled, made_in, session_id=session_id, session_epoch=1)
    assert filled.request(FETCH, made_in, **again).error_code == 0


def test_repeated_error_keeps_no_reference_to_requests(broker):
    """Otherwise each request would keep its slices, and so the files of moved logs, open."""
    broker.create("a", partitions=2)
    append(broker, b"v")
    gone = broker.node.replicas.leader("a", 1)
    gone.error = errors.NotLeaderOrFollower()
    broker.node.replicas.take_offline("lost", b"!" * 16, 0, errors.KafkaStorageError("away"))
    topics = (wanted(broker, 12, (0, 0), (1, 0)), wanted(broker, 12, (0, 0), topic="lost"))
    asked = request(broker, 12, *topics)
    broker.request(FETCH, 12, **asked)
    gc.collect()
    gc.disable()
    try:
        answer = broker.request(FETCH, 12, **asked)
        codes = [entry.error_code for topic in answer.responses for entry in topic.partitions]
        assert codes == [0, errors.NotLeaderOrFollower.code, errors.KafkaStorageError.code]
        assert gone.error.__traceback__ is None
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("version", "claim"),
    [
        (4, {"replica_id": 0}),
        (14, {"replica_id": 1}),
        (15, {"replica_state": {"replica_id": 1, "replica_epoch": 0}}),
        (18, {"replica_state": {"replica_id": 2**31 - 1, "replica_epoch": -1}}),
    ],
)
def test_fetch_by_a_follower_returns_not_leader_or_follower(filled, version, claim):
    entry = fetch(filled, 0, version, **claim)
    assert (entry.error_code, entry.high_watermark) == (errors.NotLeaderOrFollower.code, -1)
