"""A reactor that the test ticks itself, with real sockets over loopback.

Nothing runs beside the test: every byte a client reads was written in a tick that the test made.
"""

import gc
import os
import select
import socket
import struct

import pytest

from kafkalite.clock import SystemClock
from kafkalite.transport.reactor import Reactor, ReactorLimits
from tests.transport.buses import Buses

TICKS_MAX = 20_000


def framed(body):
    return struct.pack(">i", len(body)) + body


class Client:
    """One end of a connection; a read ticks the reactor until the bytes have arrived."""

    def __init__(self, world, **options):
        self.world = world
        self.socket = socket.socket()
        for option, value in options.items():
            self.socket.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
        try:
            self.socket.connect(world.address)
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        self.received = bytearray()

    def send(self, data):
        """Send all of it, ticking the reactor while the socket is full."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self.world.tick()
        return self

    def request(self, *bodies):
        return self.send(b"".join(map(framed, bodies)))

    def read(self, size):
        self.world.until(lambda: self.take() or len(self.received) >= size)
        taken = bytes(self.received[:size])
        del self.received[:size]
        return taken

    def take(self):
        """Read the available bytes; return True if the other end has closed."""
        try:
            while data := self.socket.recv(1 << 20):
                self.received += data
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def response(self):
        prefix = self.read(4)
        assert len(prefix) == 4, "the connection was closed"
        return self.read(struct.unpack(">i", prefix)[0])

    def responses(self, count):
        return [self.response() for _ in range(count)]

    def is_closed(self):
        self.world.tick()
        return self.take()

    def close(self):
        self.socket.close()


class World:
    """A reactor, its listener, and the clients of a test."""

    def __init__(self, serve, clock=None, **limits):
        self.clock = clock or SystemClock()
        self.reactor = Reactor(self.clock, ReactorLimits(**limits))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.address = self.listener.getsockname()
        self.reactor.listen(self.listener, serve)
        self.clients = []

    def client(self, **options):
        self.clients.append(Client(self, **options))
        return self.clients[-1]

    def tick(self, count=1):
        for _ in range(count):
            self.reactor.tick(1)

    def until(self, condition):
        for _ in range(TICKS_MAX):
            if condition():
                return
            self.reactor.tick(1)
        raise AssertionError(f"never: {condition}")

    def connected(self, count):
        self.until(lambda: len(self.reactor.connections) == count)
        return self.reactor.connections

    def quiet(self):
        """Tick until a tick has nothing to do and would wait."""
        while True:
            before = self.reactor.counters
            self.reactor.tick(1)
            after = self.reactor.counters
            if {**before, "ticks": 0} == {**after, "ticks": 0}:
                return

    def close(self):
        for client in self.clients:
            client.close()
        self.reactor.close()


@pytest.fixture
def world():
    """Return a factory of worlds, which are closed at the end."""
    worlds = []

    def make(serve=lambda connection, frame: [bytes(frame)], **limits):
        worlds.append(World(serve, **limits))
        return worlds[-1]

    yield make
    for made in worlds:
        made.close()


@pytest.fixture
def open_descriptors():
    """Return a function that counts open descriptors, after collecting garbage of earlier tests."""

    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    return count


@pytest.fixture
def resident_bytes():
    def measure():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    return measure


@pytest.fixture
def readable():
    return lambda file: bool(select.select([file], [], [], 0)[0])


@pytest.fixture
def bus(tmp_path):
    made = Buses(tmp_path)
    yield made
    made.close()
