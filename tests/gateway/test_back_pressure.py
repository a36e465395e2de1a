"""A broker that is slow, rejects, or must create a topic first: nothing is lost silently."""

import select
import threading

import pytest
import zmq

from kafkalite.errors import (
    InvalidTimestamp,
    MessageTooLarge,
    NetworkException,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from kafkalite.gateway import response_queue, topic_lookup, zmq_socket
from tests.gateway.frames import keyed_pack, pack
from tests.gateway.serving import MemorySender
from tests.process.waiting import until

HWM = {"SNDHWM": 10, "SNDBUF": 4096}


def fill(push, frames, count=10**6):
    """Send until ZeroMQ accepts no more; return the number accepted."""
    for number in range(count):
        try:
            push.send_multipart(frames(number), zmq.NOBLOCK)
        except zmq.Again:
            if not push.poll(300, zmq.POLLOUT):
                return number
            push.send_multipart(frames(number))
    raise AssertionError("it took everything")


def test_slow_broker_pauses_receiving_and_loses_no_message(start_gateway, peers, caplog):
    sender = MemorySender(memory=50)
    sender.stopped.set()
    gateway = start_gateway(sender, gateway_receive_hwm=10, gateway_batch_size=4096)
    push = peers(zmq.PUSH, gateway.push, **HWM)
    taken = fill(push, lambda number: [b"sensors", b"", b"%08d" % number + b"v" * 1000])
    assert gateway.received["push"] < taken
    until(lambda: gateway.gateway._forwarder.is_blocked)
    sender.stopped.clear()
    gateway.call(sender.write)
    until(lambda: len(sender.values("sensors")) == taken)
    assert [int(value[:8]) for value in sender.values("sensors")] == list(range(taken))
    assert gateway.metrics.paused_ms > 0
    assert "Gateway receives no messages for a while" in caplog.text
    push.send_multipart([b"sensors", b"", b"after"])
    until(lambda: sender.values("sensors")[-1] == b"after")


def test_messages_wait_in_order_for_a_topic_lookup(start_gateway, peers):
    gate = threading.Event()
    sender = MemorySender(partitions=2)
    ask = sender.partitions_for
    sender.partitions_for = lambda topic, wait_s: (gate.wait(30), ask(topic, wait_s))[1]
    gateway = start_gateway(sender)
    dealer = peers(zmq.DEALER, gateway.dealer)
    sent = [b"%d" % number for number in range(20)]
    for value in sent:
        dealer.send_multipart([value, b"sensors", b"", value, b"", b"", b"1"])
    dealer.send_multipart([b"pack", b"sensors", pack(b"20", b"21")])
    dealer.send_multipart([b"wrong", b"sensors", b"", b"v", b"x"])
    until(lambda: gateway.received["dealer"] == 22)
    assert not dealer.poll(0)
    gate.set()
    responses = dict(dealer.recv_multipart()[:2] for _ in range(22))
    assert responses.pop(b"wrong") == b"42" and set(responses.values()) == {b"0"}
    assert [row.value for row in sender.logs["sensors", 1]][:20] == sent


def test_waiting_messages_for_a_topic_lookup_are_bounded(start_gateway, peers, monkeypatch):
    gate = threading.Event()
    sender = MemorySender()
    ask = sender.partitions_for
    sender.partitions_for = lambda topic, wait_s: (gate.wait(30), ask(topic, wait_s))[1]
    gateway = start_gateway(sender, gateway_receive_hwm=10)
    push = peers(zmq.PUSH, gateway.push, **HWM)
    taken = fill(push, lambda number: [b"sensors", b"", b"%08d" % number + b"v" * 100_000])
    assert gateway.gateway._gathering.parked_size < 16 << 20
    gate.set()
    until(lambda: len(sender.values("sensors")) == taken)
    assert [int(value[:8]) for value in sender.values("sensors")] == list(range(taken))
    assert gateway.gateway._gathering.parked_size == 0


def test_lookup_of_a_rejected_topic_is_retried(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(topic_lookup, "REFUSAL_MS", 1)
    sender = MemorySender()
    sender.lookup_errors["sensors"] = UnknownTopicOrPartition("not yet")
    gateway = start_gateway(sender)
    dealer = peers(zmq.DEALER, gateway.dealer)

    def code():
        dealer.send_multipart([b"", b"sensors", b"", b"21.5"])
        return dealer.recv_multipart()[1]

    assert code() == b"3"
    del sender.lookup_errors["sensors"]
    until(lambda: code() == b"0")


def test_failed_topic_lookup_delays_no_other_topic(start_gateway, peers):
    sender = MemorySender()
    sender.lookup_errors["away"] = NetworkException()
    gateway = start_gateway(sender)
    dealer = peers(zmq.DEALER, gateway.dealer)
    dealer.send_multipart([b"1", b"away", b"", b"v"])
    until(lambda: sender.lookups.count("away") > 2)
    dealer.send_multipart([b"2", b"sensors", b"", b"v"])
    assert dealer.recv_multipart()[:2] == [b"2", b"0"]
    del sender.lookup_errors["away"]
    assert dealer.recv_multipart()[:2] == [b"1", b"0"]


def test_number_of_remembered_rejected_topics_is_bounded(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(topic_lookup, "REFUSED_MAX", 5)
    sender = MemorySender()
    gateway = start_gateway(sender)
    dealer = peers(zmq.DEALER, gateway.dealer)
    for number in range(40):
        sender.lookup_errors[f"t{number}"] = UnknownTopicOrPartition()
        dealer.send_multipart([b"", b"t%d" % number, b"", b"v"])
        assert dealer.recv_multipart()[1] == b"3"
    assert len(gateway.gateway._gathering.topics) <= 5


def test_changed_partition_count_is_noticed(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(topic_lookup, "REFRESH_MS", 5)
    gateway = start_gateway()
    dealer = peers(zmq.DEALER, gateway.dealer)

    def code():
        dealer.send_multipart([b"", b"sensors", b"", b"v", b"", b"", b"2"])
        return dealer.recv_multipart()[1]

    assert code() == b"3"
    gateway.sender.partitions["sensors"] = 3
    until(lambda: code() == b"0")
    # It was replaced by one of the same name with fewer partitions.
    gateway.sender.partitions["sensors"] = 1
    until(lambda: code() == b"3")


@pytest.mark.parametrize("error", [InvalidTimestamp, MessageTooLarge])
def test_rejected_record_fails_no_other_record(start_gateway, peers, error):
    sender = MemorySender()
    sender.batch_error = lambda topic, rows: error("no") if any(
        row.value.startswith(b"bad") for row in rows
    ) else None  # fmt: skip
    gateway = start_gateway(sender, gateway_linger_ms=200)
    dealer, push = peers(zmq.DEALER, gateway.dealer), peers(zmq.PUSH, gateway.push)
    values = [b"bad" if number in (3, 40, 41, 99) else b"%d" % number for number in range(100)]
    for number, value in enumerate(values):
        push.send_multipart([b"sensors", b"", b"pushed %d" % number])
        dealer.send_multipart([b"%d" % number, b"sensors", b"", value])
    dealer.send_multipart([b"100", b"sensors", pack(b"a", b"b", b"c", b"d")])
    dealer.send_multipart(
        [b"101", b"sensors", keyed_pack((b"k", b"bad pack"), (b"k", b"its rest"))]
    )
    responses = {}
    for _ in range(102):
        number, code, _, offset, _ = dealer.recv_multipart()
        responses[int(number)] = (int(code), int(offset))
    refused = {number for number, (code, _) in responses.items() if code}
    assert refused == {3, 40, 41, 99, 101}
    assert {code for code, _ in responses.values() if code} == {error.code}
    until(lambda: len(sender.values("sensors")) == 100 + 96 + 4 + 1)
    log = [row.value for row in sender.logs["sensors", 0]]
    for number, (code, offset) in responses.items():
        if not code:
            assert log[offset] == (values[number] if number < 100 else b"a")
    assert gateway.metrics.failed.total() == 5


def test_rejected_batch_is_answered_counted_and_logged(start_gateway, peers, caplog):
    sender = MemorySender()
    sender.batch_error = lambda topic, rows: NotLeaderOrFollower("It is led elsewhere.")
    gateway = start_gateway(sender)
    dealer, push = peers(zmq.DEALER, gateway.dealer), peers(zmq.PUSH, gateway.push)
    dealer.send_multipart([b"1", b"sensors", b"", b"v"])
    assert dealer.recv_multipart() == [b"1", b"6", b"-1", b"-1", b"It is led elsewhere."]
    push.send_multipart([b"sensors", b"", b"v"])
    until(lambda: gateway.metrics.failed == {"NOT_LEADER_OR_FOLLOWER": 2})
    assert "messages for topic sensors were not written: NOT_LEADER" in caplog.text


def pipeline(dealer, count):
    """Send `count` messages, reading responses after each; return their correlation ids."""
    came = []
    for number in range(count):
        dealer.send_multipart([b"%d" % number, b"sensors", b"", b"v"])
        while dealer.poll(0):
            came.append(dealer.recv_multipart())
    while len(came) < count:
        came.append(dealer.recv_multipart())
    assert {code for _, code, *_ in came} == {b"0"}
    return [int(number) for number, *_ in came]


def test_dealer_that_reads_gets_every_response(start_gateway, peers):
    gateway = start_gateway(gateway_receive_hwm=5, gateway_linger_ms=20)
    dealer = peers(zmq.DEALER, gateway.dealer, RCVHWM=5)
    assert pipeline(dealer, 3_000) == list(range(3_000))
    assert not gateway.metrics.dropped_responses
    assert gateway.metrics.responses == 3_000
    held = gateway.gateway._sockets[-1]._responses
    assert (held.size, held.count, held.completed, held.waiting) == (0, 0, 3_000, False)


def test_dealer_that_reads_late_gets_every_response_and_delays_no_other(start_gateway, peers):
    gateway = start_gateway(gateway_receive_hwm=5)
    late = peers(zmq.DEALER, gateway.dealer, RCVHWM=5, RCVBUF=4096)
    for number in range(200):
        late.send_multipart([b"%d-" % number + bytes(4_000), b"sensors", b"", b"v"])
    until(lambda: gateway.gateway._sockets[-1]._responses.waiting)
    assert pipeline(peers(zmq.DEALER, gateway.dealer), 100) == list(range(100))
    came = [int(late.recv_multipart()[0].partition(b"-")[0]) for _ in range(200)]
    assert came == list(range(200)) and not gateway.metrics.dropped_responses


def test_messages_in_flight_are_bounded(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(response_queue, "IN_FLIGHT_MAX", 10)
    monkeypatch.setattr(zmq_socket, "MESSAGES_PER_TICK", 1)
    sender = MemorySender()
    sender.stopped.set()
    gateway = start_gateway(sender, gateway_receive_hwm=10)
    dealer = peers(zmq.DEALER, gateway.dealer, **HWM)
    taken = fill(dealer, lambda number: [b"%d" % number, b"sensors", b"", bytes(1_000)])
    assert gateway.received["dealer"] == 10
    sender.stopped.clear()
    gateway.call(sender.write)
    assert [int(dealer.recv_multipart()[0]) for _ in range(taken)] == list(range(taken))


def test_pushes_are_not_limited_by_the_in_flight_bound(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(response_queue, "IN_FLIGHT_MAX", 10)
    monkeypatch.setattr(zmq_socket, "MESSAGES_PER_TICK", 1)
    gateway = start_gateway()
    push = peers(zmq.PUSH, gateway.push)
    for number in range(30):
        push.send_multipart([b"sensors", b"", b"%d" % number])
    until(lambda: len(gateway.sender.values("sensors")) == 30)


def test_unread_responses_of_reading_and_new_peers_are_kept(start_gateway):
    gateway = start_gateway()
    held = gateway.gateway._sockets[-1]._responses
    judged: list[bytes] = []
    reading, new, silent = (
        response_queue.PeerResponses(),
        response_queue.PeerResponses(),
        response_queue.PeerResponses(),
    )

    def judge():
        # The peer that reads gets as many responses as it takes.
        reading.size, reading.size_before, reading.sent_size = 800, 800, 100
        silent.size, silent.size_before = 800, 800
        new.size = 800
        held._queued = {b"reading": reading, b"new": new, b"silent": silent}
        held.size, held._check_at_ms = held._size_max, 1
        held._drop_unread()
        judged.extend(held._queued)
        held._queued, held.size, held.count = {}, 0, 0

    gateway.call(judge)
    assert judged == [b"reading", b"new"]


def test_remembered_peers_that_do_not_read_are_bounded(start_gateway, monkeypatch):
    monkeypatch.setattr(response_queue, "NOT_READING_MAX", 10)
    gateway = start_gateway()
    held = gateway.gateway._sockets[-1]._responses

    def judge():
        for number in range(30):
            silent = response_queue.PeerResponses()
            silent.size = silent.size_before = 800
            held._queued, held.size = {b"%d" % number: silent}, held._size_max
            held._check_at_ms = 1
            held._drop_unread()

    gateway.call(judge)
    assert list(held._not_reading) == [b"%d" % number for number in range(20, 30)]


def test_unread_responses_are_dropped_and_counted(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(response_queue, "READ_TIMEOUT_MS", 50)
    gateway = start_gateway(gateway_receive_hwm=5, gateway_buffer_memory=2 << 20)
    dealer = peers(zmq.DEALER, gateway.dealer, RCVHWM=5, RCVBUF=4096)
    count = 0
    while not gateway.metrics.dropped_responses:
        dealer.send_multipart([bytes(10_000), b"sensors", b"", b"v"])
        count += 1
        assert count < 100_000
    until(lambda: len(gateway.sender.values("sensors")) == count)
    assert "does not read" in next(iter(gateway.metrics.dropped_responses))
    held = gateway.gateway._sockets[-1]._responses
    assert not held.size and held._not_reading
    assert pipeline(peers(zmq.DEALER, gateway.dealer), 10) == list(range(10))
    while dealer.poll(100):
        dealer.recv_multipart()
    dealer.send_multipart([b"again", b"sensors", b"", b"v"])
    while dealer.recv_multipart()[0] != b"again":
        pass
    assert not held._not_reading


def test_response_to_a_disconnected_dealer_is_counted_as_dropped(start_gateway, peers):
    sender = MemorySender()
    sender.stopped.set()
    gateway = start_gateway(sender)
    dealer = peers(zmq.DEALER, gateway.dealer)
    dealer.send_multipart([b"1", b"sensors", b"", b"v"])
    until(lambda: sender.kept)
    dealer.close(0)

    def unanswered():
        """Return the counts of responses to gone peers; if none yet, another peer leaves."""
        gateway.call(sender.write)
        if not gateway.metrics.dropped_responses:
            other = peers(zmq.DEALER, gateway.dealer)
            other.send_multipart([b"1", b"sensors", b"", b"v"])
            until(lambda: sender.kept)
            other.close(0)
        return gateway.metrics.dropped_responses

    until(unanswered)
    assert list(gateway.metrics.dropped_responses) == ["the peer is gone"]


def test_messages_received_before_close_are_written_and_acknowledged(start_gateway, peers):
    gateway = start_gateway(gateway_linger_ms=10_000)
    dealer, push = peers(zmq.DEALER, gateway.dealer), peers(zmq.PUSH, gateway.push)
    for number in range(100):
        push.send_multipart([b"sensors", b"", b"%d" % number])
    dealer.send_multipart([b"1", b"sensors", b"", b"last"])
    until(lambda: gateway.received == {"push": 100, "dealer": 1})
    assert gateway.sender.values("sensors") == []
    gateway.close()
    assert len(gateway.sender.values("sensors")) == 101 and gateway.sender.closed
    assert dealer.recv_multipart()[:2] == [b"1", b"0"]


def test_loop_is_idle_while_receiving_is_paused(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(topic_lookup, "REFRESH_MS", 10**9)  # its timer would wake the loop as well
    sender = MemorySender(memory=1)
    sender.stopped.set()
    gateway = start_gateway(sender)
    push = peers(zmq.PUSH, gateway.push)
    push.send_multipart([b"sensors", b"", b"0"])
    until(lambda: sender.kept)
    push.send_multipart([b"sensors", b"", b"1"])
    until(lambda: gateway.gateway._forwarder.is_blocked)
    push.send_multipart([b"sensors", b"", b"2"])
    until(lambda: gateway.gateway._paused_from_ms)
    descriptor = gateway.gateway._sockets[0]._socket.fileno()
    until(lambda: not select.select([descriptor], [], [], 0)[0])
    sender.stopped.clear()
    gateway.call(sender.write)
    until(lambda: sender.values("sensors") == [b"0", b"1", b"2"])


def test_receiving_resumes_when_a_new_batch_has_room(start_gateway, peers, monkeypatch):
    monkeypatch.setattr(zmq_socket, "MESSAGES_PER_TICK", 1)
    monkeypatch.setattr(topic_lookup, "REFRESH_MS", 10**9)  # its timer would wake the loop as well
    sender = MemorySender(memory=1)
    sender.stopped.set()
    gateway = start_gateway(sender, gateway_linger_ms=0)
    push = peers(zmq.PUSH, gateway.push)
    push.send_multipart([b"sensors", b"", b"first"])  # makes the topic known
    until(lambda: sender.kept)
    for number in range(10):
        push.send_multipart([b"sensors", b"", b"%d" % number])
    until(lambda: gateway.gateway._paused_from_ms)

    def take():
        # The producer has memory already, and its notification is still in flight.
        sender.memory = 100
        gateway.gateway._forwarder.add([])

    gateway.call(take)
    until(lambda: len(sender.kept) == 11)
    sender.stopped.clear()
    gateway.call(sender.write)
    assert sender.values("sensors")[1:] == [b"%d" % number for number in range(10)]
