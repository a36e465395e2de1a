"""Cluster against real and scripted brokers: leader changes, unavailable brokers, old metadata."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest

from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.settings import consumer_settings
from kafkalite.client.net.topology import NO_LEADER, PartitionMetadata
from kafkalite.errors import (
    InvalidRequest,
    InvalidTopicException,
    LeaderNotAvailable,
    NetworkException,
    RebootstrapRequired,
    RequestTimedOut,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.cluster import API_VERSIONS, DESCRIBE_CLUSTER, METADATA
from kafkalite.testing import Broker
from tests.client.scripted_broker import CloseConnection, ScriptedBroker, metadata

TIMEOUT_S = 30


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# A real broker.


def test_cluster_connects_on_first_use(make_cluster):
    with ScriptedBroker({METADATA: lambda request: metadata({0: there.port})}) as there:
        cluster = make_cluster(there.address)
        assert there.accepted == 0
        assert cluster.cluster_id == "cluster"
        assert there.accepted == 1


def test_topic_has_id_partitions_and_leaders(kafka_broker, make_cluster):
    name = kafka_broker.topic(3)
    cluster = make_cluster(kafka_broker.bootstrap)
    topic = cluster.topic(name)
    assert list(topic.partitions) == [0, 1, 2]
    assert {partition.leader for partition in topic.partitions.values()} == {0}
    assert len(topic.topic_id) == 16
    assert cluster.name_of(topic.topic_id) == name
    assert cluster.topic(name) is topic
    assert cluster.node(0).same_host
    assert cluster.nodes == [0]


def test_topic_lookup_creates_the_topic_unless_disabled(kafka_broker, make_cluster):
    shy = make_cluster(
        kafka_broker.bootstrap, settings=consumer_settings, allow_auto_create_topics=False
    )
    with pytest.raises(UnknownTopicOrPartition, match="topic 'made-by-asking'"):
        shy.topic("made-by-asking", 1)
    cluster = make_cluster(kafka_broker.bootstrap)
    (described,) = cluster.describe(["made-by-asking"], create=False).values()
    assert isinstance(described, UnknownTopicOrPartition)
    assert cluster.topic("made-by-asking", TIMEOUT_S).led
    assert shy.topic("made-by-asking", TIMEOUT_S).led


def test_invalid_topic_name_fails_at_once(kafka_broker, make_cluster):
    with pytest.raises(InvalidTopicException, match="topic 'a b'"):
        make_cluster(kafka_broker.bootstrap).topic("a b", TIMEOUT_S)


def test_client_reconnects_to_a_restarted_broker(make_cluster):
    with Broker() as broker:
        name = broker.topic()
        cluster = make_cluster(broker.bootstrap)
        before = cluster.topic(name)
        broker.kill()
        with pytest.raises((NetworkException, RequestTimedOut)):
            cluster.refresh(name, timeout_s=1)
        assert cluster.topic(name) is before
        waiting = threading.Timer(0.3, broker.start)
        waiting.start()
        try:
            found = cluster.retry(TIMEOUT_S, lambda deadline: cluster.leader(name, 0))
            cluster.retry(TIMEOUT_S, lambda deadline: cluster.refresh(name, timeout_s=5))
        finally:
            waiting.join()
        assert found.leader == 0
        assert cluster.topic(name).topic_id == before.topic_id


def test_replaced_cluster_at_the_same_address_is_detected(make_cluster):
    with Broker() as first:
        name = first.topic(2)
        cluster = make_cluster(first.bootstrap)
        before = cluster.topic(name), cluster.cluster_id
        listen = first.bootstrap
    with Broker(listen=listen) as second:
        second.topic(name=name)
        found = cluster.retry(TIMEOUT_S, lambda deadline: refreshed(cluster, name))
        assert len(found.partitions) == 1
        assert found.topic_id != before[0].topic_id
        assert cluster.cluster_id != before[1]


def refreshed(cluster, name):
    cluster.refresh(name, timeout_s=5)
    return cluster.topic(name)


def test_each_node_is_reached_at_its_advertised_address(make_cluster):
    with Broker(workers=2) as broker:
        name = broker.topic(4)
        cluster = make_cluster(broker.bootstrap)
        leaders = {partition.leader for partition in cluster.topic(name).partitions.values()}
        assert leaders == {1, 2}
        for node_id in leaders:
            respond = cluster.request(node_id, DESCRIBE_CLUSTER, {})
            assert {each.broker_id for each in respond.brokers} == {0, 1, 2}
            assert cluster.node(node_id).same_host
        assert cluster.coordinator("readers") in cluster.nodes
        assert cluster.request(None, DESCRIBE_CLUSTER, {}).cluster_id == cluster.cluster_id


def test_moved_partition_is_found_at_its_new_leader(make_cluster):
    with Broker(workers=2) as broker:
        name = broker.topic(1)
        cluster = make_cluster(broker.bootstrap)
        first = cluster.leader(name, 0)
        broker.kill(first.leader)

        def back(deadline):
            cluster.refresh(name, timeout_s=deadline.left_s)
            found = cluster.leader(name, 0, deadline.left_s)
            return cluster.request(found.leader, DESCRIBE_CLUSTER, {}, timeout_s=deadline.left_s)

        assert cluster.retry(TIMEOUT_S, back).brokers


# Leaders.


def test_older_leader_epoch_does_not_replace_a_newer_one(make_cluster):
    told = iter([(1, 5), (0, 4), (0, 5), (1, NO_LEADER)])
    with ScriptedBroker() as other:
        with ScriptedBroker(
            {
                METADATA: lambda request: metadata(
                    {0: there.port, 1: other.port}, {"t": {0: next(told)}}
                )
            }
        ) as there:
            cluster = make_cluster(there.address)
            assert cluster.topic("t").partitions[0] == (1, 5)
            cluster.refresh("t")
            assert cluster.topic("t").partitions[0] == (1, 5)
            cluster.refresh("t")
            assert cluster.topic("t").partitions[0] == (0, 5)
            cluster.refresh("t")
            assert cluster.topic("t").partitions[0] == (0, 5)


def test_response_may_name_the_new_leader(make_cluster):
    with ScriptedBroker(
        {METADATA: lambda request: metadata({0: there.port}, {"t": {0: (0, 5)}})}
    ) as there:
        cluster = make_cluster(there.address)
        cluster.topic("t")
        endpoint = there.responders[METADATA](None)["brokers"][0] | {"node_id": 7}
        fields = type("Fields", (), {"__getattr__": lambda self, name: endpoint[name]})()
        cluster.update_leader("t", 0, PartitionMetadata(7, 5), [fields])
        assert cluster.topic("t").partitions[0] == (0, 5)
        cluster.update_leader("t", 0, PartitionMetadata(8, 6))
        assert cluster.topic("t").partitions[0] == (0, 5)
        cluster.update_leader("t", 0, PartitionMetadata(7, 6))
        assert cluster.topic("t").partitions[0] == (7, 6)
        assert cluster.node(7).port == there.port
        cluster.update_leader("unknown", 0, PartitionMetadata(7, 6))
        cluster.update_leader("t", 9, PartitionMetadata(7, 6))


def test_unknown_leader_is_waited_for(make_cluster):
    told = [(9, 0), (9, 0), (0, 1)]
    answers = iter(told)
    with ScriptedBroker(
        {METADATA: lambda request: metadata({0: there.port}, {"t": {0: next(answers)}})}
    ) as there:
        assert make_cluster(there.address).topic("t", TIMEOUT_S).partitions[0] == (0, 1)
        assert there.count(METADATA) == len(told)


def test_partition_without_leader_does_not_delay_others(make_cluster):
    with ScriptedBroker(
        {METADATA: lambda request: metadata({0: there.port}, {"t": {0: (0, 1), 1: (NO_LEADER, 1)}})}
    ) as there:
        cluster = make_cluster(there.address)
        assert cluster.topic("t").partitions[1].leader == NO_LEADER
        assert cluster.leader("t", 0).leader == 0
        with pytest.raises(LeaderNotAvailable, match="Partition 1 of topic 't' has no leader"):
            cluster.leader("t", 1, 0.2)
        with pytest.raises(UnknownTopicOrPartition, match="partition 2 of topic 't'"):
            cluster.leader("t", 2, 0.2)


def faulty(code):
    """Return a scripted broker whose Metadata response has an error for the topic."""
    told = {"name": "t", "error_code": code}
    there = ScriptedBroker(
        {METADATA: lambda request: {**metadata({0: there.port}), "topics": [told]}}
    )
    return there


def test_retriable_topic_error_is_raised_at_the_timeout(make_cluster):
    with faulty(LeaderNotAvailable.code) as there:
        with pytest.raises(LeaderNotAvailable, match="topic 't'"):
            make_cluster(there.address).topic("t", 0.5)
        assert there.count(METADATA) > 1


def test_fatal_topic_error_is_raised_at_once(make_cluster):
    with faulty(TopicAuthorizationFailed.code) as there:
        with pytest.raises(TopicAuthorizationFailed, match="topic 't'"):
            make_cluster(there.address).topic("t", TIMEOUT_S)
        assert there.count(METADATA) == 1


def test_timeout_of_the_last_attempt_does_not_hide_the_earlier_error(make_cluster):
    with faulty(LeaderNotAvailable.code) as there:
        answers = iter([there.responders[METADATA](None)])
        there.responders[METADATA] = lambda request: next(answers, None)
        with pytest.raises(LeaderNotAvailable, match="topic 't'"):
            make_cluster(there.address).topic("t", 0.5)
        assert there.count(METADATA) > 1


def test_expired_metadata_is_refreshed_and_kept_if_no_broker_responds(make_cluster):
    told = iter([(0, 1), (0, 2)])
    with ScriptedBroker(
        {METADATA: lambda request: metadata({0: there.port}, {"t": {0: next(told)}})}
    ) as there:
        cluster = make_cluster(there.address, metadata_max_age_ms=0)
        assert cluster.topic("t").partitions[0] == (0, 1)
        assert cluster.topic("t").partitions[0] == (0, 2)
    assert cluster.topic("t", 0.05).partitions[0] == (0, 2)


# Wrong responses.


def invalid_metadata(**changed):
    return {**metadata({0: 1}, {"t": {0: (0, 0)}}), **changed}


PARTITIONS = [
    [],
    [{"partition_index": 1}],
    [{"partition_index": 0}, {"partition_index": 0}],
    [{"partition_index": -1}, {"partition_index": 0}],
]


@pytest.mark.parametrize(
    "response",
    [
        invalid_metadata(brokers=[{"node_id": 0, "host": "a", "port": 0}]),
        invalid_metadata(brokers=[{"node_id": 0, "host": "a", "port": 65_536}]),
        invalid_metadata(brokers=[{"node_id": -1, "host": "a", "port": 1}]),
        invalid_metadata(brokers=[{"node_id": 0, "host": "", "port": 1}]),
        *(invalid_metadata(topics=[{"name": "t", "partitions": them}]) for them in PARTITIONS),
    ],
)
def test_invalid_metadata_closes_the_connection(make_cluster, response):
    with ScriptedBroker({METADATA: lambda request: response}) as there:
        cluster = make_cluster(there.address)
        for accepted in (1, 2):
            with pytest.raises(InvalidRequest, match="response is not valid in the Kafka protocol"):
                cluster.topic("t", TIMEOUT_S)
            assert there.accepted == accepted


def test_metadata_of_another_topic_is_ignored(make_cluster):
    with ScriptedBroker(
        {METADATA: lambda request: metadata({0: there.port}, {"u": {0: (0, 0)}})}
    ) as there:
        with pytest.raises(UnknownTopicOrPartition, match="topic 't'"):
            make_cluster(there.address).topic("t", 0.2)


def test_port_of_another_protocol_fails_at_once(make_cluster):
    with ScriptedBroker({API_VERSIONS: lambda request: b"HTTP/1.1 400 Bad Request\r\n"}) as there:
        with pytest.raises(InvalidRequest, match=r"or 'HTTP'"):
            make_cluster(there.address).topic("t", TIMEOUT_S)


def test_bootstrap_skips_a_broker_of_another_protocol(make_cluster, kafka_broker, kafka_topic):
    with ScriptedBroker({API_VERSIONS: lambda request: b"HTTP/1.1 400 Bad Request\r\n"}) as there:
        for _ in range(5):
            assert make_cluster(there.address, kafka_broker.bootstrap).topic(kafka_topic).led


# Unavailable brokers.


def test_refused_connection_is_raised_at_the_timeout(make_cluster):
    place = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(NetworkException, match=f"{place}: Connection refused"):
        make_cluster(place).topic("t", 0.2)
    assert 0.1 < time.monotonic() - began < TIMEOUT_S


def test_warning_that_no_broker_is_reached_is_logged_once_until_one_is(make_cluster, caplog):
    def warnings() -> int:
        return sum("No broker can be reached" in text for text in caplog.messages)

    there = ScriptedBroker({METADATA: lambda request: metadata({0: there.port})})
    cluster = make_cluster(there.address, warn_unreachable=True)
    there.close()
    for _ in range(2):
        with pytest.raises(NetworkException):
            cluster.topic("t", 0.2)
        assert warnings() == 1
    assert f"error={there.address}: Connection refused" in caplog.text
    with ScriptedBroker(there.responders, port=there.port):
        cluster.describe(["t"], TIMEOUT_S)
    with pytest.raises(NetworkException):
        cluster.topic("u", 0.2)
    assert warnings() == 2


def test_unreachable_broker_is_not_retried_during_its_backoff(make_cluster):
    there = ScriptedBroker({METADATA: lambda request: metadata({0: there.port})})
    cluster = make_cluster(
        there.address, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000
    )
    assert cluster.node(0).port == there.port
    assert cluster.backoff_left_s(0) == 0
    there.close()
    with pytest.raises(NetworkException):
        cluster.connection(0, "mine")
    assert 40 < cluster.backoff_left_s(0) <= 72
    with ScriptedBroker({METADATA: lambda request: {}}, port=there.port) as again:
        with pytest.raises(NetworkException, match="Connection refused"):
            cluster.connection(0, "mine", timeout_s=0.01)
        assert again.accepted == 0


def test_bootstrap_tries_the_next_broker(make_cluster, kafka_broker, kafka_topic):
    for _ in range(5):
        cluster = make_cluster(f"127.0.0.1:{free_port()}", kafka_broker.bootstrap)
        assert cluster.topic(kafka_topic, TIMEOUT_S).led


def test_silent_bootstrap_broker_takes_a_share_of_the_timeout(
    make_cluster, kafka_broker, kafka_topic
):
    with ScriptedBroker({API_VERSIONS: lambda request: None}) as silent:
        for _ in range(5):
            cluster = make_cluster(silent.address, kafka_broker.bootstrap)
            began = time.monotonic()
            assert cluster.topic(kafka_topic, 1).led
            assert time.monotonic() - began < TIMEOUT_S


def test_unreachable_brokers_lead_back_to_bootstrap(make_cluster):
    ports = [free_port()]
    with ScriptedBroker({METADATA: lambda request: metadata(dict(enumerate(ports)))}) as there:
        cluster = make_cluster(there.address)
        assert cluster.nodes == [] and cluster.cluster_id == "cluster"
        there.hang_up()
        ports[:] = [there.port, there.port]
        cluster.retry(TIMEOUT_S, lambda deadline: cluster.refresh(timeout_s=5))
        assert cluster.nodes == [0, 1]


def test_rebootstrap_required_leads_back_to_bootstrap(make_cluster):
    """Two brokers have exchanged ports, and each reports another node id than the expected one."""
    moved = False

    def served(request):
        if request.body.node_id == 1 and moved:
            return {"error_code": RebootstrapRequired.code}
        return other.versions_served(request)

    with ScriptedBroker({API_VERSIONS: served}) as other, ScriptedBroker() as new:
        nodes = lambda: {0: there.port, 1: new.port if moved else other.port}  # noqa: E731
        with ScriptedBroker({METADATA: lambda request: metadata(nodes())}) as there:
            cluster = make_cluster(there.address)
            assert cluster.connection(1).address[1] == other.port
            moved = True
            other.hang_up()
            with pytest.raises(NetworkException, match="another broker responds at this"):
                while cluster.connection(1, "mine"):
                    pass
            assert cluster.nodes == []
            assert cluster.connection(1).address[1] == new.port


def test_closed_connection_is_replaced(make_cluster):
    with ScriptedBroker({METADATA: lambda request: metadata({0: there.port})}) as there:
        cluster = make_cluster(there.address)
        first = cluster.connection(0)
        assert cluster.connection(0) is first
        there.hang_up()
        while first.is_alive():
            time.sleep(0.001)
        assert cluster.connection(0) is not first
        assert cluster.request(0, METADATA, {"topics": []}).brokers


def test_request_is_sent_once(make_cluster):
    def hang_up(request):
        raise CloseConnection

    with ScriptedBroker(
        {METADATA: lambda request: metadata({0: there.port}), DESCRIBE_CLUSTER: hang_up}
    ) as there:
        with pytest.raises(NetworkException, match="closed the connection"):
            make_cluster(there.address).request(0, DESCRIBE_CLUSTER, {})
        assert there.count(DESCRIBE_CLUSTER) == 1


def test_request_to_unknown_node_fails(make_cluster):
    with ScriptedBroker({METADATA: lambda request: metadata({0: there.port})}) as there:
        with pytest.raises(NetworkException, match="Node 5 is not in"):
            make_cluster(there.address).request(5, DESCRIBE_CLUSTER, {})


# Connections.


def test_each_purpose_has_its_own_connection(make_cluster):
    with ScriptedBroker({METADATA: lambda request: metadata({0: there.port})}) as there:
        cluster = make_cluster(there.address)
        cluster.node(0)
        assert cluster.connection(0) is cluster.connection(0)
        assert there.accepted == 1
        assert cluster.connection(0, "fetch") is cluster.connection(0, "fetch")
        assert cluster.connection(0, "fetch") is not cluster.connection(0)
        assert there.accepted == 2


def test_concurrent_threads_share_one_connection(make_cluster):
    with ScriptedBroker({METADATA: lambda request: metadata({0: there.port})}) as there:
        cluster = make_cluster(there.address)
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(cluster.connection(0, "shared")))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1
        assert all(connection.opened for connection in found)


def test_idle_connection_is_closed_when_another_is_opened(make_cluster):
    with ScriptedBroker({METADATA: lambda request: metadata({0: there.port})}) as there:
        cluster = make_cluster(there.address, connections_max_idle_ms=20)
        idle, waiting = cluster.connection(0, "idle"), cluster.connection(0, "waiting")
        there.responders[DESCRIBE_CLUSTER] = lambda request: None
        waiting.send(DESCRIBE_CLUSTER, 0, {})
        while (
            time.monotonic() < idle.used_at_s + 0.03 or time.monotonic() < waiting.used_at_s + 0.03
        ):
            time.sleep(0.005)
        cluster.connection(0, "new")
        assert idle.closed
        assert not waiting.closed


# Closing.


@pytest.mark.parametrize("wait", ["silent", "refused", "rest"])
def test_close_wakes_every_waiting_call(make_cluster, wait):
    entered = threading.Event()

    def silent(request):
        entered.set()

    with ScriptedBroker({METADATA: silent}) as there:
        place = f"127.0.0.1:{free_port()}" if wait == "refused" else there.address
        cluster = make_cluster(
            place, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000,
            retry_backoff_ms=60_000, retry_backoff_max_ms=60_000,
        )  # fmt: skip
        found = []

        def waiting():
            with contextlib.suppress(ClientClosed):
                if wait == "rest":
                    entered.set()
                    cluster.sleep(TIMEOUT_S)
                else:
                    cluster.topic("t", 10 * TIMEOUT_S)
                return
            found.append(True)

        thread = threading.Thread(target=waiting)
        thread.start()
        if wait != "refused":
            assert entered.wait(TIMEOUT_S)
        cluster.close()
        thread.join(TIMEOUT_S)
        assert found == [True]
        with pytest.raises(ClientClosed):
            cluster.topic("t")
        assert cluster.closed
        cluster.close()


def test_forked_child_may_only_close_the_cluster(kafka_broker, kafka_topic, make_cluster):
    cluster = make_cluster(kafka_broker.bootstrap)
    cluster.topic(kafka_topic)
    child = os.fork()
    if not child:
        status = 1
        try:
            try:
                cluster.refresh(kafka_topic)
            except RuntimeError as refused:
                assert "after a fork" in str(refused)
                cluster.close()
                status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    cluster.refresh(kafka_topic)


def test_concurrent_requests_each_get_their_response(kafka_broker, make_cluster):
    names = [kafka_broker.topic(count) for count in range(1, 9)]
    cluster = make_cluster(kafka_broker.bootstrap)
    found = {}

    def ask(name):
        for _ in range(5):
            cluster.refresh(name, timeout_s=TIMEOUT_S)
            found[name] = len(cluster.topic(name, TIMEOUT_S).partitions)

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict(zip(names, range(1, 9), strict=True))
