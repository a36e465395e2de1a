"""The local listener: access checks, its messages, and errors that end a connection."""

from __future__ import annotations

import os
import random
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from kafkalite.broker import node_metrics
from kafkalite.broker.local import direct_reads, local_listener, ring_host
from kafkalite.broker.security import principal_of
from kafkalite.errors import (
    BrokerNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    ThrottlingQuotaExceeded,
)
from kafkalite.protocol.schemas import local
from kafkalite.protocol.schemas.local import REQUEST_SIZE_MAX, write_packet
from kafkalite.transport import packet_socket
from kafkalite.transport.ring import ProducerRing
from kafkalite.transport.run_directory import cleaner_path
from tests.broker.local_harness import READ, LocalNode, batch_of, descriptor_count

HELLO = write_packet(local.HELLO(cluster_id="c", node_id=0, client_id=None))
READ_NOTHING = write_packet(
    local.READ(request_id=1, topic_id=bytes(16), **{**READ, "wait_ms": 60_000})
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalNode]:
    made = LocalNode(tmp_path / "data")
    yield made
    made.remove()


def test_hello_for_this_node_gets_a_welcome(host):
    welcome = host.local_client().hello().fields
    assert welcome == {
        "error_code": 0, "error_message": None, "cluster_id": host.node.cluster_id, "node_id": 0,
        "port": host.local[1], "generation": welcome["generation"], "reads": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong, error",
    [({"cluster_id": "x"}, InconsistentClusterId), ({"node_id": 1}, BrokerNotAvailable)],
)
def test_hello_for_another_node_is_refused_and_closed(host, wrong, error):
    local_client = host.local_client()
    assert local_client.hello(**wrong).fields["error_code"] == error.code
    assert local_client.is_disconnected()


def test_restarted_node_has_a_new_generation(host):
    local_client = host.local_client()
    before = local_client.hello().fields["generation"]
    host.restart()
    assert local_client.is_disconnected()
    assert host.local_client().hello().fields["generation"] != before


def test_socket_left_by_a_killed_process_is_replaced(host):
    host.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(host.path))
    host.open()
    host.connect_client()


def test_closed_node_removes_only_its_own_socket(host):
    host.close()
    assert not host.path.exists()
    host.open()
    host.path.unlink()
    host.path.touch()
    host.close()
    assert host.path.exists()
    host.open()


def test_native_enable_false_opens_no_local_listener(host):
    host.restart(**{"native.enable": "false"})
    assert not host.path.exists()
    assert cleaner_path(host.run_directory, 0).is_socket()
    host.restart(**{"log.cleaner.enable": "false"})
    assert host.node.local_listener is None and not host.path.exists()
    assert not cleaner_path(host.run_directory, 0).exists()


def test_node_without_local_listener_serves_over_tcp(host, caplog):
    host.close()
    host.path.mkdir()
    host.open()
    assert host.node.local_listener is None
    assert "served over TCP only" in caplog.text
    assert host.create("t")
    host.path.rmdir()


@pytest.mark.parametrize(
    "packets",
    [
        [b"x"],
        [bytes(range(200))],
        [HELLO[:-1]],
        [bytes([HELLO[0] ^ 1]) + HELLO[1:]],
        [b"x" * REQUEST_SIZE_MAX],
        [b"x" * (REQUEST_SIZE_MAX + 1)],
        [READ_NOTHING],
        [write_packet(local.ATTACH(request_id=1, transactional_id=None))],
    ],
    ids=["short", "noise", "cut", "a bit", "large", "too large", "no hello", "a ring first"],
)
def test_invalid_packet_closes_the_connection(host, packets):
    local_client = host.local_client()
    for packet in packets:
        local_client.send(packet)
    assert local_client.is_disconnected()
    assert host.local_listener.listener.refused == 1


@pytest.mark.parametrize(
    "again",
    [
        local.HELLO(cluster_id="c", node_id=0, client_id=None),
        local.ATTACHED(
            request_id=1, error_code=0, error_message=None, ring_size=1, frame_size_max=1
        ),
    ],
    ids=["second hello", "message of a node"],
)
def test_unexpected_message_closes_the_connection(host, again):
    local_client = host.connect_client()
    local_client.send(again)
    assert local_client.is_disconnected()


def test_empty_packet_closes_the_connection(host):
    local_client = host.connect_client()
    local_client.send(b"")
    assert local_client.is_disconnected()
    assert host.local_listener.listener.refused == 0


def test_closed_connection_does_not_affect_others(host):
    good, bad = host.connect_client(), host.connect_client()
    bad.send(b"nonsense")
    assert bad.is_disconnected()
    topic = host.create("t")
    assert good.read(topic)["error_code"] == 0


def test_connection_without_hello_is_closed_after_the_timeout(host):
    silent, welcomed = host.local_client(), host.connect_client()
    host.clock.advance(local_listener.HELLO_TIMEOUT_MS)
    assert silent.is_disconnected()
    host.clock.advance(100 * local_listener.HELLO_TIMEOUT_MS)
    assert welcomed.read(bytes(16))["error_code"]


def test_connections_are_bounded_and_a_closed_one_frees_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(local_listener, "CONNECTIONS_MAX", 2)
    host = LocalNode(tmp_path / "data")
    first, _ = host.connect_client(), host.connect_client()
    third = host.local_client()
    assert third.is_disconnected()
    assert host.local_listener.listener.refused == 1
    first.close()
    host.until(lambda: len(host.local_listener.listener.connections) == 1)
    assert host.connect_client()
    host.remove()


def test_received_descriptors_are_closed(host):
    local_client = host.connect_client()
    before = descriptor_count()
    for _ in range(10):
        socket.send_fds(local_client.socket, [READ_NOTHING], [local_client.socket.fileno()] * 20)
    host.until(lambda: host.local_listener.counts["packets"] == 11)
    assert descriptor_count() == before


def test_waiting_reads_of_a_connection_are_bounded(host, monkeypatch):
    monkeypatch.setattr(local_listener, "PENDING_READS_MAX", 3)
    topic = host.create("t")
    local_client = host.connect_client()
    for _ in range(3):
        local_client.send_read(topic, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 3)
    assert local_client.try_receive() is None and not local_client.ended
    local_client.send_read(topic, wait_ms=60_000)
    assert local_client.is_disconnected()
    assert host.node.replicas.purgatory.size == 0


def test_waiting_reads_of_a_node_are_bounded(host, monkeypatch):
    monkeypatch.setattr(direct_reads, "WAITING_MAX", 4)
    topic = host.create("t")
    first, second = host.connect_client(), host.connect_client()
    for local_client in (first, first, second, second):
        local_client.send_read(topic, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 4)
    refused = second.read(topic, wait_ms=60_000)
    assert refused["error_code"] == ThrottlingQuotaExceeded.code
    assert second.read(topic)["error_code"] == 0
    first.close()
    host.until(lambda: host.local_listener.counts["waiting"] == 2)
    host.append("t", [1])
    assert [second.receive_grant()["end_offset"] for _ in range(2)] == [1, 1]
    assert host.local_listener.counts["waiting"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_packets_do_not_affect_the_node(host, seed):
    """Some have a valid checksum, so that their contents are decoded too."""
    dice = random.Random(seed)
    topic = host.create("t")
    host.append("t", [1])
    whole = [
        local.HELLO(cluster_id=host.node.cluster_id, node_id=0, client_id="x"),
        local.ATTACH(request_id=7, transactional_id=None),
        local.READ(request_id=8, topic_id=topic, **READ),
    ]
    packets = [local.MESSAGES.write(message) for message in whole]
    for _ in range(100):
        local_client = host.connect_client()
        torn = bytearray(dice.choice(packets))
        for _ in range(dice.randrange(1, 4)):
            torn[dice.randrange(len(torn))] = dice.randrange(256)
        said = bytes(torn[: dice.randrange(1, len(torn) + 1)])
        local_client.send(
            said + (xxhash.xxh3_64_digest(said) if dice.random() < 0.8 else b"12345678")
        )
        heard = []
        host.until(
            lambda local_client=local_client, heard=heard: (
                local_client.ended or heard or waits(local_client, heard)
            )
        )
        local_client.close()
    assert host.local_listener.listener.errors == 0
    assert host.connect_client().read(topic)["error_code"] == 0
    host.until(lambda: len(host.local_listener.listener.connections) == 1)


def waits(local_client, heard):
    """Read the next message; return whether there was one, as a read may wait for a long time."""
    came = local_client.try_receive()
    if came is not None:
        heard.append(came)
        for descriptor in came[1]:
            os.close(descriptor)
    return bool(came)


def test_packets_per_tick_are_bounded(host, monkeypatch):
    monkeypatch.setattr(packet_socket, "PACKETS_PER_TICK", 2)
    topic = host.create("t")
    local_client = host.connect_client()
    for _ in range(5):
        local_client.send_read(topic)
    host.reactor.tick(1_000)
    assert host.local_listener.counts["reads"] == 2
    assert [local_client.receive_grant()["request_id"] for _ in range(5)] == [*range(5)]


def test_responses_wait_in_order_for_a_program_that_does_not_read(host):
    """Its requests wait too, so the responses queued for it are bounded."""
    topic = host.create("t")
    host.append("t", [1])
    local_client = host.connect_client()
    (connection,) = host.local_listener.listener.connections
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    asked = 0
    while not connection.is_blocked:
        local_client.send_read(topic, offset=1)
        asked += 1
        host.reactor.tick(0)
    for _ in range(50):
        local_client.send_read(topic, offset=1)
        host.reactor.tick(0)
    assert host.local_listener.counts["reads"] == asked
    local_client.send_read(topic)
    heard = [local_client.receive_grant() for _ in range(asked + 51)]
    assert [grant["request_id"] for grant in heard] == [*range(asked + 51)]
    assert local_client.content(heard[-1]) and not connection.is_blocked
    local_client.send_read(topic)
    assert local_client.receive_grant()["error_code"] == 0


def test_program_that_disconnects_with_queued_responses_is_removed(host):
    topic = host.create("t")
    local_client = host.connect_client()
    (connection,) = host.local_listener.listener.connections
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    while not connection.is_blocked:
        local_client.send_read(topic)
        host.reactor.tick(0)
    local_client.close()
    host.until(lambda: not host.local_listener.listener.connections)
    assert host.connect_client().read(topic)["error_code"] == 0


def test_exception_closes_only_its_connection(host, monkeypatch):
    local_client, other = host.connect_client(), host.connect_client()
    monkeypatch.setattr(local_listener.DirectReads, "read", lambda self, read: 1 // 0)
    local_client.send_read(bytes(16))
    assert local_client.is_disconnected()
    monkeypatch.undo()
    assert host.local_listener.listener.errors == 1
    assert other.read(host.create("t"))["error_code"] == 0


def test_principal_is_the_user_of_the_peer_credentials(host, monkeypatch):
    asked = []
    monkeypatch.setattr(
        type(host.node.authorizer),
        "allows",
        lambda self, principal, *_: asked.append(principal) or True,
    )
    topic = host.create("t")
    local_client = host.connect_client()
    local_client.attach()
    asked.clear()
    local_client.put(batch_of(b"v"), topic)
    local_client.wait_for_acks()
    local_client.read(topic)
    assert set(asked) == {principal_of(os.geteuid())}


def test_principal_of_an_unnamed_user_has_its_uid():
    nobody = 2**31 - 7
    assert principal_of(nobody) == f"User:uid-{nobody}"
    assert principal_of(0) == "User:root"


def test_metrics_count_the_local_listener(host):
    page = node_metrics.NodeMetrics(host.node, host.run_directory)
    topic = host.create("t")
    local_client = host.connect_client()
    local_client.attach()
    local_client.put(batch_of(b"1", b"2"), topic)
    local_client.put(b"nonsense", topic)
    local_client.wait_for_acks(2)
    grant = local_client.read(topic)
    local_client.request_ring()
    local_client.send_read(topic, offset=2, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    told = {
        (family.name, *labels.values()): value
        for family in page.families()
        for labels, value in family.samples
    }
    page.close()
    ours = ("kafkalite_local", "kafkalite_ring")
    assert {name: value for name, value in told.items() if name[0].startswith(ours)} == {
        ("kafkalite_local_connections",): 1,
        ("kafkalite_local_refused_total",): 0,
        ("kafkalite_local_faults_total",): 0,
        ("kafkalite_rings",): 1,
        ("kafkalite_rings_memory_bytes",): 4 << 20,
        ("kafkalite_rings_left_total", "violation"): 0,
        ("kafkalite_rings_left_total", "fault"): 0,
        ("kafkalite_ring_errors_total", "INVALID_RECORD"): 1,
        ("kafkalite_rings_attached_total",): 1,
        ("kafkalite_rings_refused_total",): 0,
        ("kafkalite_ring_batches_total",): 2,
        ("kafkalite_ring_bytes_total",): grant["size"] + len(b"nonsense"),
        ("kafkalite_ring_found_late_total",): 0,
        ("kafkalite_local_packets_total",): 5,
    }
    assert told["kafkalite_direct_reads_total",] == 2
    assert told["kafkalite_direct_read_bytes_total",] == grant["size"]
    assert told["kafkalite_direct_descriptors_total",] == 1
    purgatory = "kafka_server_delayedoperationpurgatory_purgatorysize"
    assert told[purgatory, "DirectRead"] == 1


def test_metrics_page_is_written_after_local_packets(host):
    page = node_metrics.NodeMetrics(host.node, host.run_directory)
    topic = host.create("t")
    local_client = host.connect_client()
    local_client.attach()
    page.update()
    local_client.put(batch_of(b"1"), topic)
    local_client.wait_for_acks()
    before = page._periods
    page.update()
    page.close()
    assert (before, page._periods) == (0, 0)


# -- rings ---------------------------------------------------------------------------------------


def test_second_ring_of_a_connection_is_refused(host):
    local_client = host.connect_client()
    local_client.attach()
    answer, descriptors = local_client.request_ring()
    assert (answer["error_code"], descriptors) == (InvalidRequest.code, [])
    topic = host.create("t")
    local_client.put(batch_of(b"v"), topic)
    assert local_client.wait_for_acks()[0][1] == 0


def test_ring_memory_is_bounded_and_freed_on_disconnect(tmp_path):
    host = LocalNode(
        tmp_path / "data", **{"native.ring.bytes": "65536", "native.rings.bytes.max": "131072"}
    )
    first, second, third = (host.connect_client() for _ in range(3))
    first.attach()
    assert second.attach().writer.frame_size_max == 16_384
    answer, descriptors = third.request_ring()
    assert answer["error_code"] == 89 and "native.rings.bytes.max=131072" in answer["error_message"]
    assert descriptors == [] and host.local_listener.rings.counts["refused"] == 1
    first.close()
    host.until(lambda: host.local_listener.rings.size == 65_536)
    third.attach()
    host.remove()


def test_ring_has_the_current_configured_size(tmp_path):
    host = LocalNode(tmp_path / "data", **{"native.ring.bytes": str(1 << 16)})
    small = host.connect_client()
    small.attach()
    host.node._settings.current = host.node.settings.with_dynamic(
        {}, {"native.ring.bytes": str(1 << 20)}
    )
    large = host.connect_client()
    assert large.attach().writer.frame_size_max == 1 << 18
    topic = host.create("t")
    large.put(batch_of(b"x" * 200_000), topic)
    small.put(batch_of(b"y"), topic)
    host.until(lambda: host.values() == [b"x" * 200_000, b"y"] or len(host.values()) == 2)
    assert sorted(map(len, host.values())) == [1, 200_000]
    host.remove()


def test_attach_without_memory_or_descriptors_returns_an_error(host, monkeypatch):
    local_client = host.connect_client()

    def refused(*_):
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(ring_host.WorkerRing, "make", refused)
        answer, _ = local_client.request_ring()
        assert answer["error_code"] == 56 and "Cannot allocate memory" in answer["error_message"]
    before = descriptor_count()
    with monkeypatch.context() as patch:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        patch.setattr(ring_host, "DESCRIPTORS_RESERVED", most)
        answer, _ = local_client.request_ring()
        assert answer["error_code"] == 56 and "ulimit -n" in answer["error_message"]
    assert descriptor_count() == before
    assert host.local_listener.rings.size == 0
    local_client.attach()


def test_attach_response_waits_for_a_program_that_does_not_read(host):
    topic = host.create("t")
    local_client = host.connect_client()
    (connection,) = host.local_listener.listener.connections
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    asked = 0
    while not connection.is_blocked:
        packet = local.ATTACH(request_id=asked, transactional_id=None)
        local_client.send(packet if asked == 1 else READ_NOTHING)
        if asked != 1:
            local_client.send_read(topic)
        asked += 1
        host.reactor.tick(0)
    assert host.local_listener.rings.rings
    while not local_client.ring:
        answer, descriptors = local_client.receive()
        if answer.kind is local.ATTACHED:
            local_client.ring = ProducerRing(descriptors)
    local_client.put(batch_of(b"v"), topic)
    assert local_client.wait_for_acks()[0][1] == 0


def test_disconnected_programs_leave_no_descriptor_open(host):
    topic = host.create("t")
    host.append("t", [1])
    host.connect_client().close()
    host.until(lambda: not host.local_listener.listener.connections)
    before = descriptor_count()
    for _ in range(5):
        local_client = host.connect_client()
        local_client.attach()
        local_client.put(batch_of(b"v"), topic)
        local_client.wait_for_acks()
        local_client.read(topic)
        local_client.close()
    there = host.local_listener
    host.until(lambda: not there.listener.connections and not there.rings.rings)
    assert descriptor_count() == before


def test_acknowledgement_wakes_a_waiting_program(host):
    topic = host.create("t")
    local_client = host.connect_client()
    ring = local_client.attach()
    assert ring.writer.begin_sleep()
    local_client.put(batch_of(b"v"), topic)
    waiting = select.poll()
    waiting.register(ring.fileno(), select.POLLIN)
    host.until(lambda: bool(waiting.poll(0)))
    ring.clear()
    ring.writer.end_sleep()
    assert len(local_client.take_acks()) == 1
