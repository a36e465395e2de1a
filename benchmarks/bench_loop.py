"""Event loop: an echo server on it, against `select.epoll` and one blocking connection.

Every request passes the loop twice.  Estimate: a round trip over loopback is two wake-ups and
four system calls, about 15 us, none of it in the loop; the loop adds epoll_wait, recv, one Python
call and sendmsg.  The lower bound is a process that only blocks in recv and sends the same bytes
back: the loop should stay within a quarter of its round trip, and below the epoll loop written in
Python.  With 16 requests in flight the kernel's share is divided, and the rest is the loop's own
user time, which should stay below 2 us per request.

    python -m benchmarks.bench_loop
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from kafkalite.clock import SystemClock
from kafkalite.transport.reactor import Reactor

FRAME = struct.pack(">i", 100) + bytes(100)
IN_FLIGHT = 16


def by_reactor(listener: socket.socket) -> None:
    """Serve with the event loop under test and a handler that returns the frame."""
    reactor = Reactor(SystemClock())
    reactor.listen(listener, lambda connection, frame: [bytes(frame)])
    signal.signal(signal.SIGTERM, lambda *_: reactor.stop())
    reactor.run()


def by_select_epoll(listener: socket.socket) -> None:
    """Serve with an event loop written on Python's own epoll."""
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    connections: dict[int, tuple[socket.socket, bytearray]] = {}
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    while not stopped:
        for descriptor, _ in epoll.poll(0.5):
            if descriptor == listener.fileno():
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                epoll.register(accepted.fileno(), select.EPOLLIN)
                connections[accepted.fileno()] = accepted, bytearray()
                continue
            connection, buffer = connections[descriptor]
            buffer += connection.recv(65536)
            answers, at = [], 0
            while len(buffer) - at >= 4:
                size = int.from_bytes(buffer[at : at + 4], "big")
                if len(buffer) - at - 4 < size:
                    break
                answers.append(bytes(buffer[at : at + 4 + size]))
                at += 4 + size
            del buffer[:at]
            if answers:
                connection.send(b"".join(answers))
            elif not buffer:
                epoll.unregister(descriptor)


def by_blocking(listener: socket.socket) -> None:
    """Serve one connection without frames, sending every byte back: the lower bound."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while came := connection.recv(65536):
        connection.sendall(came)
    signal.pause()


@contextmanager
def served(
    how: Callable[[socket.socket], None],
) -> Iterator[tuple[socket.socket, Callable[[], float]]]:
    """Fork a child that echoes; yield a connection to it and a function for its user time."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        try:
            how(listener)
        finally:
            os._exit(0)
    connection = socket.create_connection(listener.getsockname())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield connection, lambda: user_s(child)
    finally:
        connection.close()
        listener.close()
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def user_s(pid: int) -> float:
    """Return the user time of a process, in steps of ten milliseconds."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def exchange(connection: socket.socket, frames: int) -> None:
    """Send `frames` frames at once, and wait until all are back."""
    connection.sendall(FRAME * frames)
    left = len(FRAME) * frames
    while left:
        came = connection.recv(left)
        assert came, "the server has closed"
        left -= len(came)


def round_trip_us(how: Callable[[socket.socket], None], count: int) -> float:
    """Return the median round trip with one request in flight."""
    times = []
    with served(how) as (connection, _):
        for _ in range(count):
            begun = time.perf_counter_ns()
            exchange(connection, 1)
            times.append(time.perf_counter_ns() - begun)
    return median(times) / 1e3


def user_us_per_request(how: Callable[[socket.socket], None], count: int) -> float:
    """Return the server's user time per request, with 16 requests in flight."""
    with served(how) as (connection, used_s):
        exchange(connection, IN_FLIGHT)
        before_s = used_s()
        for _ in range(count // IN_FLIGHT):
            exchange(connection, IN_FLIGHT)
        return (used_s() - before_s) * 1e6 / count


def bytes_per_idle_connection(count: int) -> float:
    """Return the memory growth of this process per connection that has sent one request."""
    reactor = Reactor(SystemClock())
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    reactor.listen(listener, lambda connection, frame: [bytes(frame)])
    before = resident_bytes()
    clients = []
    for _ in range(count):
        clients.append(socket.create_connection(listener.getsockname()))
        clients[-1].sendall(FRAME)
        reactor.tick(0)
    while reactor.counters["frames"] < count:
        reactor.tick(0)
    grown = resident_bytes() - before
    for client in clients:
        client.close()
    reactor.close()
    return grown / count


SERVERS = {"reactor": by_reactor, "select.epoll": by_select_epoll, "blocking": by_blocking}


def test_small() -> None:
    for how in SERVERS.values():
        assert round_trip_us(how, 20) > 0
        assert user_us_per_request(how, 320) >= 0
    assert bytes_per_idle_connection(20) >= 0


def main() -> None:
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in SERVERS}
    for _ in range(5):
        for name, how in SERVERS.items():
            taken[name][0].append(round_trip_us(how, 20_000))
            taken[name][1].append(user_us_per_request(how, 320_000))
    floor = median(taken["blocking"][0])
    for name, (trips, user) in taken.items():
        print(
            f"{name:14} round trip {median(trips):6.1f} us, {median(trips) / floor:.2f} of the"
            f" floor; user time at {IN_FLIGHT} in flight {median(user):.2f} us a request"
        )
    print(f"idle connection: {bytes_per_idle_connection(1000) / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
