"""Messages from workers to the supervisor, valid and invalid, and their effects."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kafkalite import errors
from kafkalite.broker.controller.worker_manager import CHECK_MS, ProcessReport
from kafkalite.config.broker import BROKER_TICK_TIMEOUT_MS
from kafkalite.process.nodes.control_channel import PACKET_MAX
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.cluster import API_VERSIONS, METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from kafkalite.transport.bus import Peer, identity_of

LONG = 2**63 - 1


def request(api: Api, version: int, **fields: object) -> bytes:
    header = write_header(api.key, version, 5, "x", api.request_header_flexible(version))
    return header + api.request.write(version, fields)


def forward(frame: bytes, request_id: int = 1_000, **where: object) -> bus.TypedRecord:
    told = {"peer_host": "h", "peer_port": 1, "local_host": "h", "local_port": 1, **where}
    return bus.FORWARD(request_id=request_id, frame=frame, **told)


def heartbeat(offset: int, led_count: int = 0, size: int = 0, unserved=()) -> bus.TypedRecord:
    return bus.HEARTBEAT(
        image_offset=offset,
        led_count=led_count,
        size=size,
        unserved=[{"topic_id": topic_id, "partition": index} for topic_id, index in unserved],
    )


def deliver(cluster, message: bus.TypedRecord, identity: bytes | None = None) -> None:
    """Have the supervisor receive a message from worker 1 or another identity."""
    cluster.receive_from_worker(identity or cluster.running[1].identity, bus.write_frame(message))


def messages_to_worker(cluster) -> list[bus.TypedRecord]:
    """Return the unread messages sent to worker 1."""
    return [bus.read_frame(frame) for frame in cluster.bus.to_worker[cluster.running[1].identity]]


def response_to(cluster, frame: bytes) -> bus.TypedRecord:
    """Return the response to a request that worker 1 forwards without having received it."""
    cluster.running[1].paused = True
    deliver(cluster, forward(frame))
    cluster.until(
        lambda: any(message.kind is bus.RESPONSE for message in messages_to_worker(cluster))
    )
    (answer,) = [message for message in messages_to_worker(cluster) if message.kind is bus.RESPONSE]
    return answer


FETCHED = {
    "replica_id": -1, "max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1, "rack_id": "",
    "isolation_level": 0, "session_id": 0, "session_epoch": -1, "topics": [],
    "forgotten_topics_data": [],
}  # fmt: skip


@pytest.mark.parametrize(
    "frame",
    [
        request(FETCH, 12, **FETCHED),
        request(PRODUCE, 9, acks=0, timeout_ms=0, topic_data=[]),
        request(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[]),
        request(METADATA, 9, topics=None),
        request(API_VERSIONS, 0),
        request(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=1),
        b"",
        b"\0",
        bytes(40),
        b"\xff" * 40,
    ],
)
def test_request_that_is_not_for_the_controller_is_refused(cluster, frame):
    answer = response_to(cluster, frame).fields
    assert (answer["request_id"], answer["frame"]) == (1_000, None)
    assert answer["error_code"] == errors.InvalidRequest.code


@pytest.mark.parametrize(
    "frame",
    [
        request(CREATE_TOPICS, 7, topics=[], timeout_ms=0)[:-3],
        request(CREATE_TOPICS, 7, topics=[], timeout_ms=0)[:4],
        CREATE_TOPICS.key.to_bytes(2, "big") + b"\x7f\xff" + bytes(20),
        DELETE_TOPICS.key.to_bytes(2, "big") + b"\0\5" + b"\xff" * 200,
    ],
)
def test_undecodable_request_returns_invalid_request(cluster, frame):
    assert response_to(cluster, frame).fields["error_code"] == errors.InvalidRequest.code
    assert cluster.faults == []


def test_exception_in_a_handler_returns_an_error(cluster, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cluster.node(0).local_controller.machine, "create_topics", fail)
    topic = {"name": "a", "num_partitions": 1, "replication_factor": 1}
    answer = response_to(cluster, request(CREATE_TOPICS, 7, topics=[topic], timeout_ms=0))
    assert answer.fields["error_code"] != 0
    assert cluster.deaths == cluster.faults == []


@pytest.mark.parametrize("number", [-1, 0, LONG, -LONG - 1])
def test_response_returns_any_request_id_of_the_worker(cluster, number):
    cluster.running[1].paused = True
    topic = {"name": "a", "num_partitions": 1, "replication_factor": 1}
    frame = request(CREATE_TOPICS, 7, topics=[topic], timeout_ms=0)
    deliver(cluster, forward(frame, number, peer_port=-(2**31), local_port=2**31 - 1))
    deliver(cluster, bus.ALLOCATE_IDS(request_id=number))
    found: list[bus.TypedRecord] = []

    def both() -> bool:
        found[:] = [m for m in messages_to_worker(cluster) if m.kind in (bus.RESPONSE, bus.IDS)]
        return len(found) == 2

    cluster.until(both, pace_ms=10)
    assert {message.fields["request_id"] for message in found} == {number}


@pytest.mark.parametrize("incarnation", [0, 1])
def test_messages_of_older_incarnations_are_refused(cluster, incarnation):
    old = identity_of(cluster.running[1].peer)
    cluster.kill(1)
    cluster.settle()
    before = dict(vars_of(cluster.supervisor.worker_manager.workers[1]))
    refused = cluster.supervisor.worker_manager.refused
    identity = old if incarnation else b"1.0"
    for message in (heartbeat(0, 77), bus.HELLO(image_offset=0), bus.ALLOCATE_IDS(request_id=1)):
        deliver(cluster, message, identity)
    assert cluster.supervisor.worker_manager.refused == refused + 3
    assert vars_of(cluster.supervisor.worker_manager.workers[1]) == before


def vars_of(member) -> dict[str, object]:
    return {name: getattr(member, name) for name in member.__slots__}


def test_messages_of_unknown_workers_are_ignored(cluster):
    for identity in (b"0.1", b"9.1", b"1.99999", b"-1.1", b"x", b"", b"\0" * 5):
        deliver(cluster, heartbeat(0), identity)
        deliver(cluster, forward(b"x"), identity)
    assert cluster.supervisor.worker_manager.workers.keys() == {1, 2}
    assert cluster.faults == cluster.deaths == []


def test_heartbeat_beyond_the_end_offset_is_ignored(cluster):
    member = cluster.supervisor.worker_manager.workers[1]
    before = member.reconciled_offset
    deliver(cluster, heartbeat(LONG, 5))
    assert (member.reconciled_offset, member.led_count) == (before, 0)


def test_invalid_heartbeat_values_do_not_affect_rebalance(cluster):
    cluster.create("a", 2)
    deliver(cluster, heartbeat(-LONG, -5, -LONG, [(b"?" * 16, -1), (bytes(16), 2**31 - 1)]))
    report = cluster.order("list")
    assert [node["node_id"] for node in report["nodes"]] == [0, 1, 2]
    cluster.order("rebalance")
    cluster.settle()
    assert cluster.produce("a", b"x").error_code == 0


def test_partition_reported_without_log_is_not_moved(cluster):
    topic_id = cluster.create("a", 2)
    cluster.running[1].paused = True
    end_offset = cluster.node(0).local_controller.log.end_offset
    deliver(cluster, heartbeat(end_offset, 0, 0, [(topic_id, 0)]))
    cluster.move("a", 2)
    cluster.steps(50)
    assert cluster.leader("a") == 1


def test_messages_of_supervisor_kinds_are_refused(cluster):
    for message in (
        bus.WELCOME(incarnation=1, image_offset=0, heartbeat_ms=1),
        bus.DELTA(begin_offset=0, end_offset=0, records=[]),
        bus.RESPONSE(request_id=1, error_code=0, error_message=None, frame=None),
        bus.FENCE(node_id=2, incarnation=1),
        bus.NODES(nodes=[]),
    ):
        deliver(cluster, message)
    assert cluster.supervisor.worker_manager.refused == 5
    cluster.settle()
    assert cluster.fenced == []


def test_worker_connected_before_its_process_report_is_welcomed_later(cluster):
    members = cluster.supervisor.worker_manager.workers
    peer = Peer(1, cluster.running[1].peer.incarnation + 100)
    cluster.bus.connected.add(identity_of(peer))
    cluster.bus.to_worker[identity_of(peer)] = cluster.bus.to_worker.pop(
        cluster.running[1].identity
    )
    deliver(cluster, bus.HELLO(image_offset=0), identity_of(peer))
    assert members[1].peer != peer
    processes = cluster.supervisor.worker_manager.processes
    news = processes[1]._replace(incarnation=peer.incarnation)
    cluster.supervisor.worker_manager.update_processes({**processes, 1: news})
    cluster.clock.advance(CHECK_MS)
    cluster.tick(0)
    assert members[1].peer == peer
    assert members[1].welcomed


def test_worker_that_hangs_while_ending_is_fenced(cluster):
    cluster.supervisor.worker_manager.update_processes({1: ProcessReport(99, 1, "h", 1, "ending")})
    cluster.until(lambda: Peer(1, 99) in cluster.fenced, pace_ms=500)


def test_busy_worker_without_heartbeats_is_fenced_after_tick_timeout(cluster, caplog):
    cluster.busy.add(7)
    began_ms = cluster.clock.monotonic_ms()
    cluster.supervisor.worker_manager.update_processes({1: ProcessReport(99, 7, "h", 1, "ready")})
    cluster.until(lambda: Peer(1, 99) in cluster.fenced, pace_ms=500)
    silent_ms = cluster.clock.monotonic_ms() - began_ms
    assert silent_ms >= cluster.settings[BROKER_TICK_TIMEOUT_MS]
    assert caplog.text.count("Node 1 misses its heartbeats, but its process runs") == 1


def test_metadata_omits_a_worker_that_does_not_listen(cluster):
    port = cluster.image.nodes[1].port
    cluster.kill(1, stay_down=True)
    cluster.until(lambda: not cluster.node(2).image.nodes[1].port)
    brokers = cluster.request(2, METADATA, 9, topics=[]).brokers
    assert [broker.node_id for broker in brokers] == [0, 2]
    cluster.start(1)
    cluster.until(lambda: cluster.node(2).image.nodes[1].port == port)


def test_worker_with_a_full_queue_is_sent_the_missed_records(cluster):
    worker = cluster.running[1]
    cluster.bus.cut.add(worker.identity)
    cluster.bus.connected.discard(worker.identity)
    pending = cluster.begin_create(2, "a")
    cluster.until(lambda: "a" in cluster.image.topics)
    for there in (0, 2):
        for _ in range(3):
            cluster.tick(there)
    assert not cluster.supervisor.worker_manager.workers[1].welcomed
    cluster.bus.cut.clear()
    cluster.bus.connected.add(worker.identity)
    cluster.until(lambda: pending.is_done)
    assert [*worker.node.image.records()] == [*cluster.image.records()]


def test_response_waits_until_a_new_node_has_a_port(cluster):
    membership = cluster.supervisor.worker_manager
    assert membership.applied_everywhere(0).settled
    cluster.node(0).local_controller.decide(lambda controller: controller.add_node())
    waiting = membership.applied_everywhere(0)
    assert not waiting.settled
    cluster.settle()
    assert waiting.settled
    image = cluster.node(0).image
    assert all(node.port for node in image.nodes.values())


def test_supervisor_sends_a_heartbeat_before_it_is_ready(cluster):
    """Otherwise a supervisor that is stopped before its second heartbeat would not be watched."""
    cluster.kill(0, stay_down=True)
    cluster.start(0)
    kinds = []
    with suppress(BlockingIOError):
        while True:
            kinds.append(bus.read_frame(cluster.orders.recv(PACKET_MAX)).kind)
    assert bus.HEARTBEAT in kinds and bus.DESIRED_NODES in kinds
