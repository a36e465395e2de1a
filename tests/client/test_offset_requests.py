"""Offsets by time and committed offsets: requested from leader or coordinator, with retries."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Theirs

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.offset_requests import commit_offsets, committed_offsets, list_offsets
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    CoordinatorLoadInProgress,
    InvalidRequest,
    NotCoordinator,
    NotLeaderOrFollower,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST, LIST_OFFSETS, MAX_TIMESTAMP
from kafkalite.testing import Broker
from tests.client.scripted_broker import CloseConnection, ScriptedBroker, metadata

TIMEOUT_S = 30
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "reconnect_backoff_ms": 1}


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2) as started:
        yield started


@pytest.fixture
def make_cluster():
    made = []

    def make_cluster(place):
        made.append(Cluster(producer_settings(place, QUICK)))
        return made[-1]

    yield make_cluster
    for cluster in made:
        cluster.close()


@pytest.fixture
def filled(broker):
    """A topic of four partitions; partition p has 3 + p records, one a second from 1000 s on."""
    topic = broker.topic(4)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(4):
        for number in range(3 + partition):
            time_ms = 1_000_000 + 1000 * number
            producer.produce(topic, b"", partition=partition, timestamp=time_ms)
    assert producer.flush(TIMEOUT_S) == 0
    return topic


# By time.


def test_offsets_are_listed_from_every_leader(broker, filled, make_cluster):
    cluster = make_cluster(broker.bootstrap)
    leaders = {each.leader for each in cluster.topic(filled).partitions.values()}
    assert len(leaders) == 2
    places = [TopicPartition(filled, index) for index in range(4)]

    def offsets(sought):
        found = list_offsets(cluster, dict.fromkeys(places, sought))
        assert list(found) == places
        return [found[place].offset for place in places]

    assert offsets(EARLIEST) == [0, 0, 0, 0]
    assert offsets(LATEST) == [3, 4, 5, 6]
    assert offsets(MAX_TIMESTAMP) == [2, 3, 4, 5]
    assert offsets(1_001_500) == [2, 2, 2, 2]
    assert offsets(1_004_000) == [-1, -1, 4, 4]
    found = list_offsets(cluster, {places[1]: 1_001_500, (filled, 0): LATEST})
    assert found == {places[1]: (2, 1_002_000), places[0]: (3, -1)}
    assert list_offsets(cluster, {}) == {}


def test_unknown_partition_is_raised_at_the_timeout(broker, filled, make_cluster):
    with pytest.raises(UnknownTopicOrPartition, match="partition 9 of topic"):
        list_offsets(make_cluster(broker.bootstrap), {(filled, 9): LATEST}, timeout_s=0.3)


def test_moved_leader_is_looked_up_and_retried(make_cluster):
    epochs = iter([1, 2, 3])

    def response(request):
        return metadata({0: there.port}, {"t": {0: (0, next(epochs))}})

    def moved(request):
        (topic,) = request.body.topics
        (partition,) = topic.partitions
        code = 0 if partition.current_leader_epoch == 3 else NotLeaderOrFollower.code
        entry = {"partition_index": 0, "error_code": code, "offset": 7, "timestamp": 5}
        return {"topics": [{"name": "t", "partitions": [entry]}]}

    with ScriptedBroker({METADATA: response, LIST_OFFSETS: moved}) as there:
        assert list_offsets(make_cluster(there.address), {("t", 0): LATEST}) == {("t", 0): (7, 5)}
        assert there.count(LIST_OFFSETS) == 3


def test_response_without_the_partition_raises_invalid_request(make_cluster):
    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}, {"t": {0: (0, 1)}}),
            LIST_OFFSETS: lambda request: {"topics": []},
        }
    ) as there:
        with pytest.raises(InvalidRequest, match="has no entry for partition 0 of topic 't'"):
            list_offsets(make_cluster(there.address), {("t", 0): LATEST}, timeout_s=TIMEOUT_S)


def test_max_timestamp_is_not_requested_from_an_old_broker(make_cluster):
    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}, {"t": {0: (0, 1)}}),
            LIST_OFFSETS: lambda request: {},
        },
        {LIST_OFFSETS: (1, 6)},
    ) as there:
        with pytest.raises(UnsupportedVersion, match="not support a lookup of the greatest"):
            list_offsets(make_cluster(there.address), {("t", 0): MAX_TIMESTAMP})
        assert there.count(LIST_OFFSETS) == 0


# Committed offsets.


def test_committed_offsets_are_read_back_by_any_client(broker, filled, make_cluster):
    cluster = make_cluster(broker.bootstrap)
    places = [TopicPartition(filled, index) for index in range(4)]
    assert committed_offsets(cluster, "readers", places) == dict.fromkeys(places)
    # confluent-kafka takes metadata for a C string, and reads past its end without a NUL.
    commit_offsets(cluster, "readers", {places[0]: 0, (filled, 2): (5, "half way\0")})
    assert committed_offsets(cluster, "readers", places) == {
        places[0]: 0, places[1]: None, places[2]: 5, places[3]: None,
    }  # fmt: skip
    theirs = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    try:
        (found,) = theirs.committed([Theirs(filled, 2)], timeout=TIMEOUT_S)
        assert (found.offset, found.metadata) == (5, "half way")
        theirs.commit(offsets=[Theirs(filled, 1, 3)], asynchronous=False)
    finally:
        theirs.close()
    assert committed_offsets(cluster, "readers", [(filled, 1)]) == {places[1]: 3}
    assert committed_offsets(cluster, "others", [(filled, 1)]) == {places[1]: None}
    assert committed_offsets(cluster, "readers", []) == {}
    commit_offsets(cluster, "readers", {})


def test_offset_metadata_too_large_is_rejected(broker, filled, make_cluster):
    with pytest.raises(OffsetMetadataTooLarge, match="partition 0 of topic"):
        commit_offsets(make_cluster(broker.bootstrap), "readers", {(filled, 0): (1, "x" * 5000)})


def test_commit_to_unknown_partition_fails_at_once(broker, make_cluster):
    with pytest.raises(UnknownTopicOrPartition, match="partition 3 of topic 'nowhere'"):
        commit_offsets(
            make_cluster(broker.bootstrap), "readers", {("nowhere", 3): 1}, timeout_s=10 * TIMEOUT_S
        )


def coordinator_response(request, port):
    response = {"node_id": 0, "host": "127.0.0.1", "port": port}
    return {"coordinators": [{"key": "readers", **response}], **response}


def entries(code, **fields):
    entry = {"partition_index": 0, "error_code": code, **fields}
    return [{"name": "t", "partitions": [entry]}]


@pytest.mark.parametrize("newest", [2, 7, 9])
def test_commit_finds_a_moved_coordinator(make_cluster, newest):
    codes = iter([NotCoordinator.code, CoordinatorLoadInProgress.code, 0])
    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}),
            FIND_COORDINATOR: lambda request: coordinator_response(request, there.port),
            OFFSET_COMMIT: lambda request: {"topics": entries(next(codes))},
        },
        {OFFSET_COMMIT: (2, newest)},
    ) as there:
        commit_offsets(make_cluster(there.address), "readers", {("t", 0): 1}, timeout_s=TIMEOUT_S)
        assert there.count(OFFSET_COMMIT) == 3
        assert there.count(FIND_COORDINATOR) == 2


@pytest.mark.parametrize("newest", [2, 7, 9])
def test_offset_fetch_finds_a_moved_coordinator_in_each_version(make_cluster, newest):
    codes = iter([NotCoordinator.code, CoordinatorLoadInProgress.code, 0])

    def response(request):
        code = next(codes)
        topics = [] if code else entries(0, committed_offset=7)
        group = {"error_code": code, "topics": topics}
        return {"groups": [{"group_id": "readers", **group}]} if request.version >= 8 else group

    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}),
            FIND_COORDINATOR: lambda request: coordinator_response(request, there.port),
            OFFSET_FETCH: response,
        },
        {OFFSET_FETCH: (1, newest)},
    ) as there:
        place = TopicPartition("t", 0)
        assert committed_offsets(make_cluster(there.address), "readers", [place]) == {place: 7}
        assert there.count(FIND_COORDINATOR) == 2


@pytest.mark.parametrize(
    ("newest", "require_stable"), [(6, True), (7, True), (9, True), (9, False)]
)
def test_unstable_offset_is_waited_for(make_cluster, newest, require_stable):
    codes = iter([UnstableOffsetCommit.code, UnstableOffsetCommit.code, 0])
    required = []

    def response(request):
        required.append(getattr(request.body, "require_stable", None))
        topics = entries(next(codes), committed_offset=7)
        group = {"topics": topics}
        return {"groups": [{"group_id": "readers", **group}]} if request.version >= 8 else group

    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}),
            FIND_COORDINATOR: lambda request: coordinator_response(request, there.port),
            OFFSET_FETCH: response,
        },
        {OFFSET_FETCH: (1, newest)},
    ) as there:
        place = TopicPartition("t", 0)
        found = committed_offsets(
            make_cluster(there.address), "readers", [place], require_stable=require_stable
        )
    assert found == {place: 7}
    assert required == [require_stable and newest >= 7] * 3


def test_commit_finds_the_coordinator_after_a_closed_connection(make_cluster):
    answers = iter([CloseConnection, {"topics": entries(0)}])

    def respond(request):
        response = next(answers)
        if response is CloseConnection:
            raise CloseConnection
        return response

    with ScriptedBroker(
        {
            METADATA: lambda request: metadata({0: there.port}),
            FIND_COORDINATOR: lambda request: coordinator_response(request, there.port),
            OFFSET_COMMIT: respond,
        }
    ) as there:
        commit_offsets(make_cluster(there.address), "readers", {("t", 0): 1}, timeout_s=TIMEOUT_S)
        assert there.count(FIND_COORDINATOR) == 2
