"""The bus between real sockets under one reactor: delivered, queued and refused messages."""

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest
import zmq

from kafkalite.clock import SystemClock
from kafkalite.errors import Refusal
from kafkalite.protocol.schemas.bus import (
    FENCE,
    FORWARD,
    HELLO,
    NODE_ORDER,
    WELCOME,
    read_frame,
    write_frame,
)
from kafkalite.transport import bus as module
from kafkalite.transport.bus import Peer, identity_of, peer_of
from kafkalite.transport.reactor import Reactor
from tests.transport.buses import threads

LIST = NODE_ORDER(request_id=1, verb="list", node_id=0, dry_run=False)


def hello(number):
    return HELLO(image_offset=number)


def welcome(number):
    return WELCOME(image_offset=number, heartbeat_ms=1, incarnation=1)


def numbers(messages):
    return [message.fields["image_offset"] for message in messages]


# Identities.


@pytest.mark.parametrize("peer", [Peer(0, 0), Peer(1, 5), Peer(2**31 - 1, 2**63 - 1)])
def test_identity_names_node_and_incarnation(peer):
    assert peer_of(identity_of(peer)) == peer


@pytest.mark.parametrize(
    "identity",
    [b"", b"1", b"1.", b".1", b"1.2.3", b"01.2", b"1.02", b"-1.2", b"1.-2", b"+1.2", b"1.2\n",
     b" 1.2", b"1.2\0", b"\xd9\xa1.2", b"2147483648.1", b"1.9223372036854775808", b"\0abcd",
     b"9" * 200 + b".1", b"1." + b"9" * 200],
)  # fmt: skip
def test_invalid_identity_names_no_peer(identity):
    assert peer_of(identity) is None


# Delivery.


def test_messages_arrive_in_both_directions(bus):
    server, worker = bus.server(), bus.client((1, 5))
    assert worker.send(hello(3))
    bus.until(lambda: bus.received)
    assert bus.received == [(b"1.5", hello(3))]
    assert server.send(b"1.5", welcome(4))
    bus.until(lambda: len(bus.received) == 2)
    assert bus.received[1] == (None, welcome(4))
    assert (server.refused, server.errors, worker.refused, worker.errors) == (0, 0, 0, 0)


def test_client_without_identity_gets_a_response(bus):
    server, command = bus.server(), bus.client()
    command.send(LIST)
    bus.until(lambda: bus.received)
    identity, message = bus.received.pop()
    assert (peer_of(identity), message) == (None, LIST)
    assert server.send(identity, welcome(1))
    bus.until(lambda: bus.received)
    assert bus.received == [(None, welcome(1))]


def test_large_message_arrives(bus):
    bus.server()
    worker = bus.client((1, 5))
    where = {"peer_host": "h", "peer_port": 1, "local_host": "h", "local_port": 2}
    request = FORWARD(request_id=1, frame=os.urandom(20 << 20), **where)
    worker.send(request)
    bus.until(lambda: bus.received)
    assert bus.received == [(b"1.5", request)]


def test_messages_sent_before_the_server_starts_are_queued(bus):
    worker = bus.client((1, 5))
    for number in range(100):
        assert worker.send(hello(number))
    bus.reactor.tick(20)
    bus.server()
    bus.until(lambda: len(bus.received) == 100)
    assert numbers(bus.messages) == list(range(100))


def test_messages_sent_while_the_server_is_down_are_queued(bus):
    server, worker = bus.server(), bus.client((1, 5))
    bus.until(lambda: worker.connected)
    server.close()
    bus.until(lambda: not worker.connected)
    for number in range(100):
        assert worker.send(hello(number))
    server = bus.server()
    bus.until(lambda: len(bus.received) == 100)
    assert numbers(bus.messages) == list(range(100))
    assert server.send(b"1.5", welcome(1))


def test_client_reports_connection_changes(bus):
    worker = bus.client((1, 5))
    bus.reactor.tick(20)
    assert (bus.changes, worker.connected) == ([], False)
    for _ in range(2):
        server = bus.server()
        bus.until(lambda: worker.connected)
        server.close()
        bus.until(lambda: not worker.connected)
    assert bus.changes == [True, False, True, False]


def test_connection_closed_before_the_handshake_is_not_reported(bus):
    worker = bus.client((1, 5))
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(bus.path))
        stranger.listen()
        for _ in range(3):
            stranger.accept()[0].close()
            bus.reactor.tick(5)
    bus.server()
    bus.until(lambda: worker.connected)
    assert bus.changes == [True]


def test_client_reconnects_to_each_new_server(bus):
    worker = bus.client((1, 5))
    for _ in range(5):
        bus.until(lambda: not worker.connected)
        server = bus.server()
        bus.until(lambda: worker.connected)
        server.close()


# Missing and slow peers.


def test_message_to_an_unknown_peer_is_not_sent_and_logged_once(bus, caplog):
    server = bus.server()
    for _ in range(100):
        assert not server.send(b"7.1", welcome(1))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "Welcome message was not sent: its peer is not connected. peer=node-7.1 suppressed=0"
    ]


def test_send_to_a_closed_client_fails(bus):
    server, worker = bus.server(), bus.client((1, 5))
    worker.send(hello(1))
    bus.until(lambda: bus.received)
    worker.close()
    bus.until(lambda: not server.send(b"1.5", welcome(1)))
    bus.client((1, 6)).send(hello(2))
    bus.until(lambda: len(bus.received) == 2)
    assert not server.send(b"1.5", welcome(1))
    assert server.send(b"1.6", welcome(1))


def test_send_to_a_full_queue_fails_and_keeps_queued_messages(bus):
    worker = bus.client((1, 5))
    taken = 0
    while worker.send(hello(taken)):
        taken += 1
        assert taken <= 10 * module.QUEUED_MAX
    assert not worker.send(hello(-1))
    bus.server()
    bus.until(lambda: len(bus.received) == taken)
    assert numbers(bus.messages) == list(range(taken))
    assert worker.send(hello(taken))
    bus.until(lambda: len(bus.received) == taken + 1)


def test_slow_client_fills_only_its_own_queue(bus):
    server = bus.server()
    asleep = Reactor(SystemClock())
    slow = bus.client((1, 5), reactor=asleep)
    quick_heard = []
    quick = bus.client((2, 5), received=quick_heard.append)
    slow.send(hello(1))
    quick.send(hello(1))
    bus.until(lambda: len(bus.received) == 2)
    bus.received.clear()
    sent = 0
    # Large ones, so that the kernel's own buffer between the two holds few of them.
    large = FORWARD(
        request_id=0, frame=bytes(1 << 16), peer_host="", peer_port=0, local_host="", local_port=0
    )
    while server.send(b"1.5", large):
        sent += 1
        assert sent < 10 * module.QUEUED_MAX
    assert server.send(b"2.5", welcome(1))
    bus.until(lambda: quick_heard)
    while len(bus.received) < sent:
        asleep.tick(5)
    assert server.send(b"1.5", large)
    slow.close()
    asleep.close()


def test_message_above_the_frame_limit_is_not_sent(bus, monkeypatch):
    server, worker = bus.server(), bus.client((1, 5))
    worker.send(hello(1))
    bus.until(lambda: bus.received)
    size = len(write_frame(hello(1)))
    monkeypatch.setattr(module, "FRAME_SIZE_MAX", size - 1)
    assert not worker.send(hello(2))
    assert not server.send(b"1.5", FENCE(node_id=1, incarnation=1))
    monkeypatch.setattr(module, "FRAME_SIZE_MAX", size)
    assert worker.send(hello(3))
    bus.until(lambda: len(bus.received) == 2)
    assert numbers(bus.messages) == [1, 3]


# One identity, two connections.


def test_new_connection_of_a_peer_replaces_the_old_one(bus):
    server = bus.server()
    old = bus.bare(identity=b"1.5")
    old.send(write_frame(hello(1)))
    bus.until(lambda: bus.received)
    new = bus.bare(identity=b"1.5")
    new.send(write_frame(hello(2)))
    bus.until(lambda: len(bus.received) == 2)
    assert server.send(b"1.5", welcome(3))
    assert read_frame(new.recv()) == welcome(3)
    assert not old.poll(50)
    old.close()
    new.send(write_frame(hello(4)))
    bus.until(lambda: len(bus.received) == 3)
    assert bus.received == [(b"1.5", hello(1)), (b"1.5", hello(2)), (b"1.5", hello(4))]
    assert server.send(b"1.5", welcome(5))
    assert read_frame(new.recv()) == welcome(5)


# The event loop.


def test_waiting_messages_are_read_in_bounded_steps(bus):
    bus.server()
    sender = bus.bare(identity=b"1.5")
    for number in range(10_000):
        sender.send(write_frame(hello(number)))
    shares = shares_of(bus, lambda: len(bus.received))
    bus.until(lambda: len(bus.received) == 10_000)
    assert numbers(bus.messages) == list(range(10_000))
    # Twice the limit, when both of its descriptors are ready at once.
    assert max(shares) <= 128


def test_bytes_of_messages_per_tick_are_bounded(bus):
    server = bus.server()
    sender = bus.bare(identity=b"1.5")
    for _ in range(12):
        sender.send(bytes(3 << 20))  # it will be refused, which counts as handling
    bus.close_plain_sockets()
    shares = shares_of(bus, lambda: server.refused)
    bus.until(lambda: server.refused == 12)
    assert max(shares) <= 4


def shares_of(bus, counter):
    """Return the growth of a counter in each tick from now on."""
    counts = [counter()]
    shares = []

    def settle():
        counts.append(counter())
        shares.append(counts[-1] - counts[-2])

    bus.reactor.at_commit(settle)
    return shares


def test_second_waiting_message_needs_no_wakeup(bus):
    """Both arrive before the first tick, and ZeroMQ's descriptor is edge-triggered."""
    bus.server()
    sender = bus.bare(identity=b"1.5")
    sender.send(write_frame(hello(1)))
    sender.send(write_frame(hello(2)))
    bus.until(lambda: len(bus.received) == 2)


def test_message_that_arrives_during_a_send_is_received(bus):
    server = bus.server()
    sender = bus.bare(identity=b"1.5")
    sender.send(write_frame(hello(1)))
    bus.until(lambda: bus.received)
    sender.send(write_frame(hello(2)))
    # Sends consume the descriptor's edge for incoming messages; no tick in between.
    sends = 0
    while sends < 200 or sender.poll(0) == 0:
        assert server.send(b"1.5", welcome(sends))
        sends += 1
        time.sleep(0.0002)
    bus.until(lambda: len(bus.received) == 2)
    assert bus.messages == [hello(1), hello(2)]


def test_send_from_a_handler_leaves_no_message_waiting(bus):
    def answer(identity, message):
        bus.received.append((identity, message))
        assert server.send(identity, welcome(message.fields["image_offset"]))

    server = bus.server(answer)
    sender = bus.bare(identity=b"1.5")
    for number in range(1_000):
        sender.send(write_frame(hello(number)))
    bus.until(lambda: len(bus.received) == 1_000)
    answers = [read_frame(sender.recv()) for _ in range(1_000)]
    assert numbers(answers) == list(range(1_000))


def test_idle_bus_lets_the_loop_sleep(bus):
    worker = bus.client((1, 5))
    bus.server()
    worker.send(hello(1))
    bus.until(lambda: bus.received and worker.connected)

    def slept():
        began = time.monotonic()
        bus.reactor.tick(300)
        return time.monotonic() - began > 0.2

    assert any(slept() for _ in range(20)), "something wakes it for nothing"


def test_exception_in_a_handler_is_counted(bus, caplog):
    def handle(identity, message):
        bus.received.append((identity, message))
        raise KeyError("a bug")

    server, worker = bus.server(handle), bus.client((1, 5))
    for number in range(5):
        worker.send(hello(number))
    bus.until(lambda: len(bus.received) == 5)
    assert (server.errors, server.refused) == (5, 0)
    (line,) = [record for record in caplog.records if "Hello" in record.getMessage()]
    assert line.exc_info is not None


def test_assertion_in_a_handler_loses_no_other_message(bus):
    def handle(identity, message):
        bus.received.append((identity, message))
        assert message != hello(2), "a promise is broken"

    bus.server(handle)
    sender = bus.bare(identity=b"1.5")
    for number in range(5):
        sender.send(write_frame(hello(number)))
    with pytest.raises(AssertionError, match="a promise"):
        bus.until(lambda: len(bus.received) == 5)
    bus.until(lambda: len(bus.received) == 5)


@pytest.mark.parametrize("who", ["server", "client"])
def test_bus_socket_may_be_closed_by_its_handler(bus, who):
    def end_it(*_):
        bus.received.append(None)
        made[who].close()

    made = {"server": bus.server(end_it if who == "server" else None)}
    made["client"] = bus.client((1, 5), end_it if who == "client" else None)
    for number in range(3):
        made["client"].send(hello(number))
    bus.until(lambda: bus.received)
    if who == "client":
        for number in range(3):
            made["server"].send(b"1.5", welcome(number))
        bus.until(lambda: None in bus.received)
    bus.reactor.tick(20)
    bus.reactor.tick(20)
    assert bus.received.count(None) == 1


# Shutdown, and the socket file.


@pytest.mark.parametrize("met", [True, False], ids=["met", "alone"])
def test_close_leaves_no_socket_thread_or_descriptor(bus, open_descriptors, met):
    bus.reactor.tick(0)
    descriptors, threads_before = open_descriptors(), threads()
    for _ in range(3):
        server = bus.server() if met else None
        worker = bus.client((1, 5))
        worker.send(hello(1))
        if server:
            bus.until(lambda: bus.received)
            assert bus.path.is_socket()
        assert threads() > threads_before
        for end in filter(None, (server, worker)):
            end.close()
            end.close()
        bus.received.clear()
    assert open_descriptors() == descriptors
    assert threads() == threads_before
    assert not bus.path.exists()


def test_close_does_not_wait_for_a_peer_that_does_not_read(bus):
    server = bus.server()
    asleep = Reactor(SystemClock())
    bus.client((1, 5), reactor=asleep).send(hello(1))
    bus.until(lambda: bus.received)
    while server.send(b"1.5", welcome(1)):
        pass
    began = time.monotonic()
    for end in bus.made:
        end.close()
    assert time.monotonic() - began < 30
    asleep.close()


def test_server_replaces_a_socket_left_by_a_killed_one(bus):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(bus.path))
    bus.server()
    bus.client((1, 5)).send(hello(1))
    bus.until(lambda: bus.received)


def test_closed_server_keeps_the_socket_of_its_successor(bus):
    first, second = bus.server(), bus.server()
    first.close()
    assert bus.path.is_socket()
    bus.client((1, 5)).send(hello(1))
    bus.until(lambda: bus.received)
    second.close()
    assert not bus.path.exists()


def test_server_that_cannot_bind_is_refused_with_the_reason(bus, open_descriptors):
    bus.path = bus.path.parent / "not-there" / "bus"
    descriptors, threads_before = open_descriptors(), threads()
    with pytest.raises(Refusal, match="cannot bind the bus to .*not-there/bus: No such file"):
        bus.server()
    assert (open_descriptors(), threads()) == (descriptors, threads_before)


def test_socket_path_that_is_too_long_is_refused(bus):
    bus.path = bus.path.parent / ("long" * 40)
    with pytest.raises(Refusal, match="File name too long"):
        bus.server()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_connection_of_another_user_is_closed(bus):
    greeted = {}
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        bus.path = Path(directory, "bus")
        bus.server()
        bus.path.chmod(0o777)
        for uid in (0, 65534):
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.settimeout(10)
                os.seteuid(uid)
                try:
                    visitor.connect(str(bus.path))
                finally:
                    os.seteuid(0)
                try:
                    greeted[uid] = visitor.recv(1) != b""
                except ConnectionError:
                    greeted[uid] = False
    assert greeted == {0: True, 65534: False}


def test_message_of_a_plain_zeromq_socket_is_received(bus):
    bus.server()
    bus.bare(zmq.DEALER, b"1.5").send(write_frame(hello(1)))
    bus.until(lambda: bus.received)
    assert bus.received == [(b"1.5", hello(1))]
