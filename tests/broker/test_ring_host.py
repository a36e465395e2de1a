"""Batches from rings are appended, acknowledged and refused like those from TCP connections."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.broker.future import Future
from kafkalite.broker.local import ring_host
from kafkalite.broker.local.ring_host import FRAMES_PER_TICK, POLL_MS, POLL_MS_MAX
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import AclOperation
from kafkalite.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopicException,
    MessageTooLarge,
    NotLeaderOrFollower,
    RequestTimedOut,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.batch import Record, build
from kafkalite.storage.files.disk import DiskFailed
from kafkalite.transport.ring import FRAMES_POSITION, REASONS, ProducerRing, RingError
from tests.broker.local_harness import LocalClient, LocalNode, batch_of
from tests.handlers.denying import Denying
from tests.handlers.grouping import find

OK = 0
NOTHING = (-1, -1, -1)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalNode]:
    made = LocalNode(tmp_path / "data", **{"native.ring.bytes": str(1 << 20)})
    made.topic = made.create("t")
    yield made
    made.remove()


@pytest.fixture
def local_client(host: LocalNode) -> LocalClient:
    """Return a local producer with a ring."""
    made = host.connect_client()
    made.attach()
    return made


def delete(host: LocalNode, topic: str) -> None:
    host.request(DELETE_TOPICS, 1, topic_names=[topic], timeout_ms=1_000)


# -- appends and acknowledgements ----------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_batch_is_appended_and_acknowledged_with_its_offset(host, local_client, acks):
    first = local_client.put(batch_of(b"a", b"b"), host.topic, acks=acks)
    second = local_client.put(batch_of(b"c"), host.topic, acks=acks)
    assert local_client.wait_for_acks(2) == [(first, OK, 0, -1, 0), (second, OK, 2, -1, 0)]
    assert host.values() == [b"a", b"b", b"c"]


def test_acks_0_sends_no_acknowledgement_on_success(host, local_client):
    local_client.put(batch_of(b"a"), host.topic, acks=0)
    told = local_client.put(batch_of(b"b"), host.topic)
    assert local_client.wait_for_acks() == [(told, OK, 1, -1, 0)]
    assert host.values() == [b"a", b"b"]


def test_acknowledgement_has_the_log_append_time(host, local_client):
    topic = host.create("stamped", message_timestamp_type="LogAppendTime")
    told = local_client.put(batch_of(b"v"), topic)
    assert local_client.wait_for_acks() == [(told, OK, 0, host.clock.wall_ms(), 0)]


def test_ring_batches_are_counted_in_topic_metrics(host, local_client):
    batch = batch_of(b"a", b"b")
    local_client.put(batch, host.topic)
    local_client.put(batch + batch, host.topic)
    local_client.wait_for_acks(2)
    traffic = host.node.replicas.traffic["t"]
    assert (traffic.produces, traffic.messages_in, traffic.bytes_in) == (2, 2, len(batch))
    assert traffic.failed_produces == 1


def test_append_from_a_ring_wakes_a_waiting_read(host, local_client):
    reader = host.connect_client()
    reader.send_read(host.topic, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    local_client.put(batch_of(b"v"), host.topic)
    assert reader.receive_grant()["end_offset"] == 1


def test_batch_retried_over_tcp_is_a_duplicate(host, local_client):
    """A batch that was in a ring may be sent again over TCP, however the ring was closed."""
    batch = batch_of(b"once", producer_id=7, producer_epoch=0, base_sequence=0)
    local_client.put(batch, host.topic, acks=0)
    host.until(lambda: host.values() == [b"once"])
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    answer = host.request(PRODUCE, 9, acks=-1, timeout_ms=1_000, topic_data=topics)
    entry = answer.responses[0].partition_responses[0]
    assert (entry.error_code, entry.base_offset, host.values()) == (OK, 0, [b"once"])


def test_largest_batch_fits_in_a_frame(host, local_client):
    room = local_client.ring.writer.frame_size_max - 48
    value = b"x" * (room - len(batch_of(b"x" * (room - 200))) + room - 200)
    assert len(batch_of(value)) == room
    local_client.put(batch_of(value), host.topic)
    assert local_client.wait_for_acks()[0][1] == OK
    with pytest.raises(ValueError):
        local_client.ring.writer.reserve(room + 1)


# -- acks=-1 -------------------------------------------------------------------------------------


def test_acks_all_is_acknowledged_after_the_flush(host, local_client):
    topic = host.create("safe", durability="fsync")
    partition = host.node.replicas.leader("safe", 0)
    local_client.put(batch_of(b"v"), topic, acks=-1)
    acked = []

    def is_acked() -> bool:
        acked.extend(local_client.take_acks())
        assert not acked or partition.high_watermark == 1
        return bool(acked)

    host.until(is_acked)
    assert acked[0][1:3] == (OK, 0)
    assert host.node.replicas.purgatory.size == 0


def test_acks_1_is_acknowledged_before_the_flush(host, local_client, monkeypatch):
    topic = host.create("safe", durability="fsync")
    monkeypatch.setattr(host.node.flusher, "submit", lambda flushes: None)
    local_client.put(batch_of(b"v"), topic, acks=1)
    assert local_client.wait_for_acks()[0][1:3] == (OK, 0)
    assert host.node.replicas.leader("safe", 0).high_watermark == 0


@pytest.fixture
def stuck(host, local_client, monkeypatch):
    """Yield the number of a batch that was appended and is never flushed."""
    topic = host.create("safe", durability="fsync")
    with monkeypatch.context() as patch:
        patch.setattr(host.node.flusher, "submit", lambda flushes: None)
        number = local_client.put(batch_of(b"v"), topic, acks=-1, timeout_ms=5_000)
        host.until(lambda: host.node.replicas.purgatory.size == 1)
        yield number


def test_expired_batch_is_acknowledged_with_request_timed_out(host, local_client, stuck):
    assert local_client.take_acks() == []
    host.clock.advance(5_000)
    assert local_client.wait_for_acks() == [(stuck, RequestTimedOut.code, *NOTHING)]
    assert host.local_listener.rings.errors == {RequestTimedOut.code: 1}


def test_disconnected_producer_leaves_no_delayed_produce(host, local_client, stuck):
    local_client.close()
    host.until(lambda: not host.local_listener.rings.rings)
    assert host.node.replicas.purgatory.size == 0
    host.clock.advance(5_000)
    host.reactor.tick(0)


# -- refused -------------------------------------------------------------------------------------


def refusals(host):
    good = batch_of(b"v")
    foul = bytearray(good)
    foul[-1] ^= 1
    return {
        "unknown topic": (good, bytes(15) + b"x", {}, UnknownTopicId),
        "unknown partition": (good, host.topic, {"partition": 9}, UnknownTopicOrPartition),
        "no partition": (good, host.topic, {"partition": -1}, UnknownTopicOrPartition),
        "acks": (good, host.topic, {"acks": 2}, InvalidRequiredAcks),
        "acks below": (good, host.topic, {"acks": -2}, InvalidRequiredAcks),
        "crc": (bytes(foul), host.topic, {}, CorruptMessage),
        "empty": (b"", host.topic, {}, InvalidRecord),
        "short": (b"x", host.topic, {}, InvalidRecord),
        "two batches": (good + good, host.topic, {}, InvalidRecord),
        "too large": (batch_of(b"x" * 2_000), host.create("s", max_message_bytes="1000"), {},
                      MessageTooLarge),
        "epoch": (batch_of(b"v", producer_id=5, producer_epoch=-1, base_sequence=0), host.topic,
                  {}, InvalidRecord),
        "transactional": (batch_of(b"v", producer_id=5, producer_epoch=0, base_sequence=0,
                                   transactional=True), host.topic, {},
                          TransactionalIdAuthorizationFailed),
    }  # fmt: skip


NAMES = ["unknown topic", "unknown partition", "no partition", "acks", "acks below", "crc", "empty",
         "short", "two batches", "too large", "epoch", "transactional"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_batch_refused_over_tcp_is_refused_over_the_ring(host, local_client, name):
    batch, topic, how, fault = refusals(host)[name]
    refused = local_client.put(batch, topic, **how)
    good = local_client.put(batch_of(b"good"), host.topic)
    assert local_client.wait_for_acks(2) == [(refused, fault.code, *NOTHING), (good, OK, 0, -1, 0)]
    assert host.values() == [b"good"]
    assert host.local_listener.rings.errors == {fault.code: 1}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("acks")])
def test_refused_batch_with_acks_0_is_acknowledged_with_its_error(host, local_client, name):
    batch, topic, how, fault = refusals(host)[name]
    refused = local_client.put(batch, topic, acks=0, **how)
    assert local_client.wait_for_acks() == [(refused, fault.code, *NOTHING)]


def test_batch_without_permission_is_refused(host, local_client):
    host.node.authorizer = Denying(AclOperation.WRITE)
    other = host.connect_client()
    other.attach()
    other.put(batch_of(b"v"), host.topic)
    assert other.wait_for_acks()[0][1] == TopicAuthorizationFailed.code
    assert host.values() == []


def test_internal_topic_accepts_only_the_admin_client(host):
    find(host)
    topic = host.node.image.topics["__consumer_offsets"].topic_id
    local_client, admin = host.connect_client(), host.connect_client(client_id="__admin_client")
    for each in (local_client, admin):
        each.attach()
        each.put(build([Record(timestamp=1_000, key=b"k", value=b"v")]), topic)
    assert local_client.wait_for_acks()[0][1] == InvalidTopicException.code
    assert admin.wait_for_acks()[0][1] == OK


def test_topic_deleted_while_attached_is_unknown(host, local_client):
    local_client.put(batch_of(b"v"), host.topic)
    local_client.wait_for_acks()
    delete(host, "t")
    refused = local_client.put(batch_of(b"w"), host.topic)
    assert local_client.wait_for_acks(2)[-1] == (refused, UnknownTopicId.code, *NOTHING)


def test_waiting_batch_fails_when_its_topic_is_deleted(host, local_client, monkeypatch):
    topic = host.create("safe", durability="fsync")
    monkeypatch.setattr(host.node.flusher, "submit", lambda flushes: None)
    number = local_client.put(batch_of(b"v"), topic, acks=-1)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    partition = host.node.replicas.leader("safe", 0)
    host.node.replicas.remove(partition)
    assert local_client.wait_for_acks() == [(number, UnknownTopicOrPartition.code, *NOTHING)]


def test_moved_partition_returns_not_leader_or_follower(host, local_client):
    partition = host.node.replicas.leader("t", 0)
    moved = []
    host.node.replicas.retire(partition, lambda: moved.append(True))
    refused = local_client.put(batch_of(b"v"), host.topic)
    assert local_client.wait_for_acks() == [(refused, NotLeaderOrFollower.code, *NOTHING)]
    assert moved


# -- limits per tick -----------------------------------------------------------------------------


def test_frames_of_each_ring_per_tick_are_bounded(host):
    local_clients = [host.connect_client() for _ in range(3)]
    topics = [host.create(f"t{number}") for number in range(3)]
    for local_client in local_clients:
        local_client.attach()
    for _ in range(3):
        host.reactor.tick(0)
    for local_client, topic in zip(local_clients, topics, strict=True):
        for _ in range(FRAMES_PER_TICK + 10):
            local_client.put(batch_of(b"v"), topic)
    host.reactor.tick(0)
    assert [len(host.values(f"t{n}")) for n in range(3)] == [FRAMES_PER_TICK] * 3
    host.reactor.tick(0)
    assert [len(host.values(f"t{n}")) for n in range(3)] == [FRAMES_PER_TICK + 10] * 3


def test_bytes_of_a_ring_per_tick_are_bounded(host, local_client, monkeypatch):
    monkeypatch.setattr(ring_host, "SIZE_PER_TICK", 100_000)
    host.reactor.tick(0)
    for _ in range(5):
        local_client.put(batch_of(b"x" * 60_000), host.topic)
    host.reactor.tick(0)
    assert len(host.values()) == 2
    local_client.wait_for_acks(5)


def test_ring_is_read_only_while_it_has_room_for_acknowledgements(host, local_client):
    """The node takes only as many frames as the response ring has room for."""
    batch = batch_of(b"v")
    for _ in range(1_024):
        local_client.put(batch, host.topic)
        host.reactor.tick(0)
    more = local_client.put(batch, host.topic)
    for _ in range(10):
        host.clock.advance(POLL_MS)
        host.reactor.tick(0)
    assert len(host.values()) == 1_024
    acks = local_client.wait_for_acks(1_025)
    assert acks[-1][0] == more and len(host.values()) == 1_025


def test_full_ring_is_read_and_its_producer_woken(host, local_client):
    batch = batch_of(b"x" * 100_000)
    writer = local_client.ring.writer
    count = 0
    while (room := writer.reserve(len(batch))) is not None:
        room[:] = batch
        writer.commit(host.topic, 0, count, 0, 0, len(batch))
        count += 1
    assert writer.begin_sleep()
    local_client.ring.wake_worker()
    woken = local_client.ring.fileno()
    host.until(lambda: _readable(woken))
    local_client.ring.clear()
    host.until(lambda: len(host.values()) == count)
    assert writer.reserve(len(batch)) is not None


def _readable(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def test_poll_timer_finds_frames_without_a_wakeup(host, local_client):
    host.reactor.tick(0)
    host.reactor.tick(0)
    batch = batch_of(b"v")
    room = local_client.ring.writer.reserve(len(batch))
    room[:] = batch
    assert local_client.ring.writer.commit(host.topic, 0, 1, 1, 0, len(batch)), "it does not sleep"
    for _ in range(5):
        host.reactor.tick(0)
    assert host.values() == []
    host.clock.advance(POLL_MS)
    assert local_client.wait_for_acks()[0][:2] == (1, OK)
    assert host.local_listener.rings.counts["found_late"] == 1


def test_poll_interval_of_idle_rings_grows(host, local_client):
    """The interval is short again after a frame has come."""

    def polls(span_ms: int) -> int:
        seen = []
        for ring in host.local_listener.rings.rings:
            ring.poll = lambda: seen.append(1)
        for _ in range(span_ms):
            host.clock.advance(1)
            host.reactor.tick(0)
        for ring in host.local_listener.rings.rings:
            del ring.poll
        return len(seen)

    polls(1_000)
    assert polls(10 * POLL_MS_MAX) == 10
    local_client.put(batch_of(b"v"), host.topic)
    local_client.wait_for_acks()
    assert polls(POLL_MS_MAX + POLL_MS) >= 2


def test_poll_timer_runs_only_while_rings_are_attached(host):
    local_client = host.connect_client()
    assert host.local_listener.rings._poll_timer is None
    local_client.attach()
    assert host.local_listener.rings._poll_timer is not None
    local_client.close()
    host.until(lambda: not host.local_listener.rings.rings)
    host.clock.advance(POLL_MS)
    host.reactor.tick(0)
    assert host.local_listener.rings._poll_timer is None


# -- closing -------------------------------------------------------------------------------------


def test_producer_cannot_block_the_node_by_its_eventfd(host):
    """The producer fills the event's counter, changes its flags, and drains it under the node."""
    local_client = host.connect_client()
    _, descriptors = local_client.request_ring()
    event = os.dup(descriptors[2])
    local_client.ring = ProducerRing(descriptors)
    fcntl.fcntl(event, fcntl.F_SETFL, 0)
    for number in range(3 * FRAMES_PER_TICK):
        local_client.put(batch_of(b"v"), host.topic)
        if number % 2:
            with contextlib.suppress(BlockingIOError):
                os.preadv(event, [bytearray(8)], -1, os.RWF_NOWAIT)
        else:
            fcntl.fcntl(event, fcntl.F_SETFL, os.O_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(event, 2**64 - 2)
            fcntl.fcntl(event, fcntl.F_SETFL, 0)
        host.reactor.tick(0)
        host.clock.advance(1)
    os.close(event)
    host.clock.advance(POLL_MS_MAX)  # a wake-up may be lost if the producer drains the event
    assert len(local_client.wait_for_acks(3 * FRAMES_PER_TICK)) == 3 * FRAMES_PER_TICK


def test_ring_that_violates_the_layout_is_closed(host, caplog):
    """Complete frames before the violation are appended; nothing of the invalid frame is."""
    local_client = host.connect_client()
    _, descriptors = local_client.request_ring()
    ring = os.dup(descriptors[0])
    local_client.ring = ProducerRing(descriptors)
    batch = batch_of(b"v")
    local_client.put(batch, host.topic)
    next_frame = FRAMES_POSITION + (48 + len(batch) + 7) // 8 * 8
    os.pwrite(ring, (7).to_bytes(4, "little"), next_frame)
    os.close(ring)
    assert local_client.is_disconnected()
    assert host.values() == [b"v"]
    assert host.local_listener.rings.closed_counts == {"violation": 1}
    assert host.local_listener.rings.size == 0 and not host.local_listener.rings.rings
    assert caplog.text.count(f"its ring was closed: {REASONS[1]}") == 1
    other = host.connect_client()
    other.attach()
    other.put(batch_of(b"w"), host.topic)
    assert other.wait_for_acks()[0][1:3] == (OK, 1)


def test_frames_committed_before_a_disconnect_are_appended(host, local_client):
    for _ in range(3 * FRAMES_PER_TICK):
        local_client.put(batch_of(b"v"), host.topic, acks=0)
    local_client.close()
    host.until(lambda: not host.local_listener.rings.rings)
    assert len(host.values()) == 3 * FRAMES_PER_TICK
    assert host.local_listener.rings.size == 0


def test_frames_read_after_a_disconnect_are_bounded(host, local_client):
    """A process that keeps the memory after its ring was closed is not served."""
    local_client.socket.close()
    batch = batch_of(b"x" * 100_000)
    for count in range(1_000):
        if not host.local_listener.rings.rings:
            break
        room = local_client.ring.writer.reserve(len(batch))
        if room is not None:
            room[:] = batch
            local_client.ring.writer.commit(host.topic, 0, count, 0, 0, len(batch))
        host.reactor.tick(0)
    assert not host.local_listener.rings.rings
    assert len(host.values()) <= (1 << 20) // 100_000 + 2


def test_closed_node_closes_its_rings(host, local_client):
    local_client.put(batch_of(b"v"), host.topic)
    host.restart()
    host.until(lambda: _readable(local_client.ring.fileno()))
    with pytest.raises(RingError):
        while True:
            local_client.ring.clear()
    again = host.connect_client()
    again.attach()
    again.put(batch_of(b"w"), host.topic)
    assert again.wait_for_acks()[0][1] == OK


def test_exception_closes_only_its_ring(host, local_client, monkeypatch):
    other = host.connect_client()
    other.attach()
    monkeypatch.setattr(
        ReplicaManager, "append", lambda replicas, client, acks, *rest: 1 // (acks - 1) or None
    )
    local_client.put(batch_of(b"v"), host.topic, acks=1)
    assert local_client.is_disconnected()
    assert host.local_listener.rings.closed_counts == {"fault": 1}
    monkeypatch.undo()
    other.put(batch_of(b"v"), host.topic)
    assert other.wait_for_acks()[0][1] == OK


def test_failed_disk_ends_the_process(host, local_client, monkeypatch):
    def failing(*_):
        raise DiskFailed("the disk is gone")

    monkeypatch.setattr(ReplicaManager, "append", failing)
    local_client.put(batch_of(b"v"), host.topic)
    with pytest.raises(DiskFailed):
        local_client.wait_for_acks()


# -- transactions --------------------------------------------------------------------------------


@pytest.fixture
def transactional(host: LocalNode) -> LocalClient:
    """Return a local producer with a ring for its transactions."""
    made = host.connect_client()
    made.attach("id")
    return made


def of_transaction(sequence: int, producer_id: int = 7) -> bytes:
    return batch_of(
        b"%d" % sequence, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        transactional=True,
    )  # fmt: skip


def answering(host: LocalNode) -> list[tuple[list, Future]]:
    """Replace the transaction coordinator; return its requests, to be answered by the test."""
    asked: list[tuple[list, Future]] = []

    def ask(requests) -> Future:
        asked.append((requests, Future()))
        return asked[-1][1]

    host.node.replicas.verifier.send = ask
    return asked


def test_frames_of_a_transaction_wait_for_the_coordinator_and_others_do_not(host, transactional):
    asked = answering(host)
    first = [transactional.put(of_transaction(each), host.topic) for each in range(5)]
    plain = transactional.put(batch_of(b"plain"), host.topic)
    assert transactional.wait_for_acks() == [(plain, OK, 0, -1, 0)]
    ((requests, response),) = asked
    assert requests == [("id", (7, 0), True, [("t", 0)])]
    response.resolve([[OK]])
    assert [ack[:3] for ack in transactional.wait_for_acks(6)[1:]] == [
        (correlation, OK, 1 + number) for number, correlation in enumerate(first)
    ]
    assert host.values() == [b"plain", b"0", b"1", b"2", b"3", b"4"]


def test_refused_verification_is_acknowledged_with_its_error(host, transactional):
    asked = answering(host)
    told = transactional.put(of_transaction(0), host.topic)
    host.until(lambda: asked)
    asked[0][1].resolve([[TransactionAbortable.code]])
    assert transactional.wait_for_acks() == [(told, TransactionAbortable.code, *NOTHING)]


def test_frames_that_wait_for_the_coordinator_survive_the_end_of_the_ring(host, transactional):
    asked = answering(host)
    transactional.put(of_transaction(0), host.topic, acks=-1)
    host.until(lambda: asked)
    transactional.close()
    host.until(lambda: not host.local_listener.rings.rings)
    asked[0][1].resolve([[OK]])
    assert host.values() == [b"0"]


def test_ring_for_transactions_needs_write_on_the_transactional_id(host):
    host.node.authorizer = Denying(AclOperation.WRITE, names="id")
    answer, descriptors = host.connect_client().request_ring("id")
    assert answer["error_code"] == TransactionalIdAuthorizationFailed.code
    assert descriptors == []
    host.connect_client().attach("other")
