"""Bounds on many, slow and hostile clients: they cost bounded memory and delay no other client."""

import json
import logging
import os
import resource
import signal
import socket
import struct
import time
from contextlib import ExitStack, suppress

import pytest

from kafkalite.clock import ManualClock, SystemClock
from kafkalite.records.file_slice import FileSlice, OpenFile
from kafkalite.transport.reactor import FRAME_TIMEOUT_MS, Reactor, ReactorLimits

MIB = 1 << 20


def framed(body):
    return struct.pack(">i", len(body)) + body


def test_unread_responses_of_many_clients_are_bounded(world):
    bound, count = 16 * MIB, 150
    chunks = [bytes(200_000)]
    here = world(
        lambda connection, frame: [b"pong"] if frame == b"ping" else [bytes(chunks[0])],
        queued_sum_max=bound,
        send_buffer_size=10_000,
    )
    healthy = here.client()
    slow = [here.client(SO_RCVBUF=4_096) for _ in range(count)]
    here.connected(count + 1)
    most = 0
    for client in slow:
        client.request(*[b"much"] * 20)
        here.tick()
        most = max(most, here.reactor.counters["bytes_queued"])
        assert healthy.request(b"ping").response() == b"pong"
    assert len(healthy.request(b"much").response()) == 200_000
    # a tick may serve more than is closed at its end, for a millisecond
    assert most < bound + 4 * MIB
    here.until(lambda: here.reactor.counters["bytes_queued"] <= bound)
    closed = here.reactor.counters["slow_readers_closed"]
    assert closed and len(here.reactor.connections) == count + 1 - closed
    kept = here.reactor.connections
    assert sum(each.queued_size for each in kept) == here.reactor.counters["bytes_queued"]
    assert len(kept) > 10, "more were closed than had to be"


def test_slow_readers_continue_when_others_have_read(world):
    here = world(
        lambda connection, frame: [bytes(300_000)], queued_sum_max=12 * MIB, send_buffer_size=10_000
    )
    slow = [here.client(SO_RCVBUF=4_096) for _ in range(12)]
    here.connected(12)
    for client in slow:
        client.request(*[b"much"] * 10)
    here.quiet()
    served = here.reactor.counters["frames"]
    assert served < 60, "nobody was stopped"
    assert here.reactor.counters["slow_readers_closed"] == 0
    for client in slow:
        assert [len(answer) for answer in client.responses(10)] == [300_000] * 10
    assert here.reactor.counters["frames"] == 120
    here.quiet()
    assert here.reactor.counters["bytes_queued"] == 0


def waiting(answers, content):
    """Return a `serve` that keeps the response to "wait" for the test, and sends the others."""

    def serve(connection, frame):
        if frame == b"wait":
            answers.append(connection.defer())
            return answers[-1]
        return [content]

    return serve


def test_responses_waiting_for_an_earlier_one_count_as_queued(world):
    answers = []
    here = world(waiting(answers, bytes(MIB)), queued_size_max=4 * MIB)
    client = here.client().request(b"wait", *[b"much"] * 50)
    here.quiet()
    assert here.reactor.counters["frames"] == 5
    assert 4 * MIB <= here.reactor.counters["bytes_queued"] < 5 * MIB
    answers[0].send([b"there"])
    assert client.response() == b"there"
    assert [len(answer) for answer in client.responses(50)] == [MIB] * 50
    here.quiet()
    assert here.reactor.counters["bytes_queued"] == 0


def test_closed_connection_releases_its_queued_bytes(world):
    answers = []
    here = world(waiting(answers, bytes(3 * MIB)), send_buffer_size=10_000)
    behind, queued = here.client(), here.client(SO_RCVBUF=4_096)
    behind.request(b"wait", b"much")
    queued.request(b"much")
    here.until(lambda: here.reactor.counters["bytes_queued"] > 4 * MIB)
    behind.close()
    queued.close()
    here.connected(0)
    assert here.reactor.counters["bytes_queued"] == 0
    answers[0].send([b"late"])
    assert here.reactor.counters["bytes_queued"] == 0


def test_client_that_does_not_read_responses_is_not_read_from(world):
    here = world(lambda connection, frame: [bytes(10_000)], queued_size_max=MIB)
    silent = here.client(SO_RCVBUF=10_000)
    other = here.client()
    silent.socket.setblocking(False)
    sent = 0
    try:
        for _ in range(20_000):
            sent += silent.socket.send(framed(b"more" * 10))
    except BlockingIOError:
        pass
    here.quiet()
    frames = here.reactor.counters["frames"]
    # the kernel's buffer, the bound, and one round of requests
    assert frames * 10_000 < MIB + 12_000_000
    assert sent > frames * 44, "the client did not send more than was served: nothing is shown"
    begun = here.reactor.counters["ticks"]
    assert other.request(b"x").response() == bytes(10_000)
    here.quiet()
    assert here.reactor.counters["ticks"] - begun < 20, "it is looked at again and again"
    count = sent // 44
    assert silent.responses(count) == [bytes(10_000)] * count


def test_long_response_shares_the_ticks_with_a_short_one(world, tmp_path):
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.truncate(200 * MIB)
    segment = OpenFile(path, os.O_RDONLY)

    def serve(connection, frame):
        return [FileSlice(segment, 0, 200 * MIB)] if frame == b"long" else [bytes(frame)]

    here = world(serve)
    long, short = here.client(), here.client()
    long.request(b"long")
    here.until(lambda: long.take() or len(long.received) > MIB)
    short.request(b"short")
    assert short.response() == b"short"
    assert len(long.received) < 100 * MIB, "the long one was sent first"


def test_response_of_many_small_slices_takes_several_ticks(world, tmp_path):
    """Each slice costs a system call, which takes as long as sending some kilobytes."""
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    segment = OpenFile(path, os.O_RDONLY)
    here = world(lambda connection, frame: [FileSlice(segment, 0, 10)] * 5_000)
    client = here.client().request(b"many")
    most, sent = 0, here.reactor.counters["bytes_out"]
    while sent < 50_004:
        here.reactor.tick(10)
        now = here.reactor.counters["bytes_out"]
        most, sent = max(most, now - sent), now
        client.take()
    assert most <= 128 * 10 + 4
    assert client.response() == b"0123456789" * 5_000


def test_new_connections_are_served_before_large_responses(world):
    served = []

    def serve(connection, frame):
        served.append(frame[0])
        if frame != b"o":
            time.sleep(0.001)  # longer than a tick

    here = world(serve)
    floods, other = [here.client() for _ in range(4)], here.client()
    here.connected(5)
    for flood in floods:
        flood.send(framed(b"f") * 20)
    here.until(lambda: served)
    other.send(framed(b"o"))
    here.until(lambda: ord("o") in served)
    assert len(served) <= 5, "it waited for all of them"
    here.until(lambda: len(served) == 81)


def test_simultaneous_clients_are_served_in_turn(world):
    served = []

    def serve(connection, frame):
        served.append(frame[0])
        time.sleep(0.001)

    here = world(serve)
    clients = [here.client() for _ in range(5)]
    here.connected(5)
    for name, client in zip(b"abcde", clients, strict=True):
        client.send(framed(bytes([name])) * 10)
    here.until(lambda: len(served) == 50)
    for name in b"abcde":
        assert served[:15].count(name) >= 2


def test_frame_memory_grows_with_received_bytes_only(world, resident_bytes):
    here = world()
    clients = [here.client() for _ in range(200)]
    here.connected(200)
    before = resident_bytes()
    for client in clients:
        client.send(struct.pack(">i", 100 * MIB) + bytes(500))
    here.quiet()
    for client in clients:
        client.send(bytes(500))
    here.quiet()
    assert resident_bytes() - before < 200 * 64 * 1024
    assert here.reactor.counters["bytes_held"] <= 200 * 64 * 1024


def test_idle_connection_keeps_no_buffer_after_a_large_frame(world):
    here = world()
    client = here.client().request(bytes(3 * MIB))
    assert len(client.response()) == 3 * MIB
    here.quiet()
    assert here.reactor.counters["bytes_held"] == 0


def test_unfinished_frames_are_bounded_and_all_are_served(world):
    size, bound = 2 * MIB, 5 * MIB
    held = []
    here = world(
        lambda connection, frame: [b"%d" % len(frame)] if len(frame) == size else [b"small"],
        held_size_max=bound,
    )
    clients = [here.client() for _ in range(12)]
    for client in clients:
        client.send(struct.pack(">i", size))
    left = [size] * len(clients)
    while any(left):
        for number, client in enumerate(clients):
            try:
                left[number] -= client.socket.send(bytes(min(left[number], 50_000)))
            except BlockingIOError:
                pass
        here.tick()
        held.append(here.reactor.counters["bytes_held"])
    assert [client.response() for client in clients] == [b"%d" % size] * len(clients)
    # Each connection may hold a full scratch buffer; one more frame may pass the bound and end it.
    assert max(held) <= bound + size + len(clients) * 65_536
    assert max(held) > size


def test_requests_waiting_for_memory_do_not_delay_small_requests(world):
    here = world(held_size_max=MIB)
    large = [here.client() for _ in range(4)]
    for client in large:
        client.send(struct.pack(">i", 4 * MIB) + bytes(70_000))
    here.quiet()
    for client in large:
        client.send(bytes(400_000))
    here.quiet()
    small = here.client()
    assert small.request(bytes(60_000)).response() == bytes(60_000)
    begun = here.reactor.counters["ticks"]
    here.quiet()
    assert here.reactor.counters["ticks"] - begun < 10, "those that wait are asked again and again"


def test_slow_frame_that_delays_others_is_closed(world, caplog):
    clock = ManualClock()
    here = world(held_size_max=MIB, clock=clock)
    slow, waiting = here.client(), here.client()
    slow.send(struct.pack(">i", 4 * MIB) + bytes(600_000))
    here.until(lambda: here.reactor.counters["bytes_held"] >= 600_000)
    waiting.send(struct.pack(">i", 2 * MIB))
    for _ in range(8):
        waiting.send(bytes(100_000))
        here.tick()
    for _ in range(2 * FRAME_TIMEOUT_MS // 1000):
        clock.advance(1000)
        slow.socket.send(b"1")
        here.tick()
        if slow.is_closed():
            break
    else:
        raise AssertionError("it kept its place")
    assert "too slowly" in caplog.text
    waiting.send(bytes(2 * MIB - 800_000))
    assert waiting.response() == bytes(2 * MIB)


def test_only_an_idle_connection_is_closed(world):
    clock = ManualClock()
    answers = []

    def serve(connection, frame):
        if frame == b"wait":
            answers.append(connection.defer())
            return answers[0]
        return [bytes(frame)]

    here = world(serve, clock=clock, idle_ms_max=60_000)
    silent, busy, awaited = here.client(), here.client(), here.client()
    awaited.request(b"wait")
    here.connected(3)
    for _ in range(30):
        clock.advance(4_000)
        assert busy.request(b"x").response() == b"x"
    assert silent.is_closed()
    assert not awaited.is_closed()
    answers[0].send([b"at last"])
    assert awaited.response() == b"at last"


def test_client_that_stopped_reading_is_closed_as_idle(world):
    clock = ManualClock()
    here = world(lambda connection, frame: [bytes(20 * MIB)], clock=clock, idle_ms_max=60_000)
    here.client(SO_RCVBUF=10_000).request(b"x")
    here.connected(1)
    here.quiet()
    for _ in range(30):
        clock.advance(4_000)
        here.tick()
    assert here.reactor.connections == []


def test_connections_are_bounded_and_the_next_waits(world):
    here = world(connections_max=2)
    first, second = here.client(), here.client()
    here.connected(2)
    third = here.client().request(b"let me in")
    here.quiet()
    assert len(here.reactor.connections) == 2
    begun = here.reactor.counters["ticks"]
    here.quiet()
    assert here.reactor.counters["ticks"] - begun < 10, "the door is looked at again and again"
    first.close()
    assert third.response() == b"let me in"
    assert second.request(b"me too").response() == b"me too"


def test_raised_connection_limit_admits_waiting_clients(world):
    here = world(connections_max=1)
    first = here.client()
    here.connected(1)
    second = here.client().request(b"let me in")
    here.quiet()
    assert len(here.reactor.connections) == 1
    here.reactor.reconfigure(here.reactor.limits._replace(connections_max=2))
    assert second.response() == b"let me in"
    assert first.request(b"me too").response() == b"me too"


def test_shorter_idle_timeout_applies_to_open_connections(world):
    clock = ManualClock()
    here = world(clock=clock, idle_ms_max=600_000)
    here.client().request(b"x").response()
    here.reactor.reconfigure(here.reactor.limits._replace(idle_ms_max=10_000))
    for _ in range(4):
        clock.advance(5_000)
        here.tick()
    assert here.reactor.connections == []


def test_connections_of_an_address_are_bounded(world):
    here = world(connections_per_address_max=2)
    first, second = here.client(), here.client()
    here.connected(2)
    here.until(here.client().is_closed)
    first.close()
    here.connected(1)
    assert here.client().request(b"x").response() == b"x"
    assert second.request(b"x").response() == b"x"
    assert here.reactor.counters["turned_away"] == 1


def test_many_short_connections_leave_no_descriptor_open(world, open_descriptors):
    here = world()
    before = open_descriptors()
    for _ in range(300):
        client = here.client()
        client.send(b"\0\0")
        client.close()
        here.tick()
    here.clients.clear()
    here.connected(0)
    assert open_descriptors() == before


def test_many_slow_clients_do_not_delay_an_active_one(world):
    here = world()
    crowd = [here.client() for _ in range(1000)]
    here.connected(1000)
    dripping = crowd[:100]
    for client in dripping:
        client.send(struct.pack(">i", 50_000))
    here.quiet()
    used = time.process_time()
    for _ in range(20):
        for client in dripping:
            client.socket.send(b"1")
        here.quiet()
    assert (time.process_time() - used) / 2000 < 0.001, "a byte costs more than a millisecond"
    good = here.client()
    begun = here.reactor.counters["ticks"]
    for number in range(200):
        assert good.request(b"%d" % number).response() == b"%d" % number
    assert here.reactor.counters["ticks"] - begun < 2_000
    assert here.reactor.counters["bytes_held"] < 100 * 65_536


@pytest.fixture
def crowded_child(tmp_path):
    """Start a process with a reactor and few descriptors; return its address and its counters."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    child = os.fork()
    if child == 0:
        try:
            os.dup2(listener.fileno(), 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (45, 45))
            reserved = int((tmp_path / "reserved").read_text())
            reactor = Reactor(SystemClock(), ReactorLimits(descriptors_reserved=reserved))
            reactor.listen(socket.socket(fileno=3), lambda connection, frame: [bytes(frame)])
            signal.signal(signal.SIGTERM, lambda *_: reactor.stop())
            reactor.run()
            counters = reactor.counters
            times = os.times()
            counters["cpu_s"] = times.user + times.system
            (tmp_path / "counters").write_text(json.dumps(counters))
        finally:
            os._exit(0)
    yield child, listener
    listener.close()
    if not (tmp_path / "counters").exists():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("reserved", [0, 20])
def test_connections_beyond_the_descriptors_are_rejected(reserved, tmp_path, request):
    (tmp_path / "reserved").write_text(str(reserved))
    child, listener = request.getfixturevalue("crowded_child")
    crowd = [socket.create_connection(listener.getsockname(), timeout=10) for _ in range(60)]
    served, turned_away = [], []
    for client in crowd:
        # Accepted connections get a response at once; rejected ones read end of file.
        client.sendall(framed(b"x"))
    for client in crowd[:45]:
        try:
            (served if client.recv(5) else turned_away).append(client)
        except ConnectionError:
            turned_away.append(client)
    assert served and turned_away
    good = served[0]
    for _ in range(5):
        good.sendall(framed(b"still served"))
        assert good.recv(16) == framed(b"still served")
    for client in crowd:
        if client is not good:
            client.close()

    # A connection closed, so the next one is accepted.
    def comes_in():
        with socket.create_connection(listener.getsockname(), timeout=10) as late:
            try:
                late.sendall(framed(b"late"))
                return late.recv(8) == framed(b"late")
            except ConnectionError:
                return False

    deadline = time.monotonic() + 20
    while not comes_in():
        assert time.monotonic() < deadline
    good.close()
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    counters = json.loads((tmp_path / "counters").read_text())
    assert counters["turned_away"] > 0
    assert counters["cpu_s"] < 1


def reserve_and_count(reactor, frame):
    """Serve requests in a child: `files` reserves descriptors, `count` opens as many as it can."""
    if frame == b"files":
        reactor.reserve_files(1_000)
    opened = []
    with suppress(OSError):
        while frame == b"count":
            opened.append(os.open(os.devnull, os.O_RDONLY))
    for descriptor in opened:
        os.close(descriptor)
    return [b"%d" % len(opened)]


@pytest.fixture
def reserving_child():
    """Yield a process limited to 64 descriptors with a reactor, and its listener."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    child = os.fork()
    if child == 0:
        try:
            os.dup2(listener.fileno(), 3)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            logging.disable()  # the test's log file is closed, and its descriptor reused
            reactor = Reactor(SystemClock(), ReactorLimits(descriptors_reserved=4))

            def serve(connection, frame):
                if frame == b"wait":
                    return connection.defer()
                return reserve_and_count(reactor, bytes(frame))

            reactor.listen(socket.socket(fileno=3), serve)
            reactor.run()
        finally:
            os._exit(0)
    yield listener
    listener.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_idle_connections_are_closed_when_files_need_descriptors(reserving_child):
    address = reserving_child.getsockname()

    def ask(client, text):
        client.sendall(framed(text))
        return int(client.recv(16)[4:] or b"-1")

    with ExitStack() as stack:
        waiting, first, *crowd = (
            stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(45)
        )
        waiting.sendall(framed(b"wait"))
        for client in (first, *crowd):
            assert ask(client, b"x") == 0
        last = crowd.pop()
        assert ask(last, b"count") < 20
        ask(last, b"files")
        for client in (first, *crowd[:14]):  # the connections that have been idle longest
            assert client.recv(1) == b""
        assert ask(last, b"count") >= 25
        late = stack.enter_context(socket.create_connection(address, timeout=10))
        with suppress(ConnectionError):
            late.sendall(framed(b"x"))
            assert late.recv(1) == b"", "there is no room for another"
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)  # it is in use, and stays open
        assert ask(crowd[-1], b"x") == 0
