"""Buses for tests: ends under one reactor that the test ticks, and plain ZeroMQ sockets that can
send messages no end of ours would send."""

import os
import time

import zmq

from kafkalite.clock import SystemClock
from kafkalite.transport.bus import BusClient, BusServer, Peer, identity_of
from kafkalite.transport.reactor import Reactor

WAIT_S_MAX = 20


class Buses:
    """One bus: its path, a reactor, and the ends that the test adds."""

    def __init__(self, directory):
        self.path = directory / "bus"
        self.reactor = Reactor(SystemClock())
        self.received = []
        """(identity, message) received by servers, (None, message) by clients, in order."""
        self.changes = []
        self.made = []
        self.bare_zmq = None
        self.bare_sockets = []

    def server(self, received=None, reactor=None):
        def record(identity, message):
            self.received.append((identity, message))

        made = BusServer(reactor or self.reactor, self.path, received or record)
        self.made.append(made)
        return made

    def client(self, peer=None, received=None, reactor=None):
        identity = identity_of(Peer(*peer)) if peer else None
        made = BusClient(
            reactor or self.reactor,
            self.path,
            identity,
            received or (lambda message: self.received.append((None, message))),
            self.changes.append,
        )
        self.made.append(made)
        return made

    def bare(self, kind=zmq.DEALER, identity=None):
        """Return a ZeroMQ socket that may send anything; its calls have a timeout."""
        self.bare_zmq = self.bare_zmq or zmq.Context(io_threads=1)
        socket = self.bare_zmq.socket(kind)
        self.bare_sockets.append(socket)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.rcvtimeo = socket.sndtimeo = WAIT_S_MAX * 1000
        if identity is not None:
            socket.routing_id = identity
        if kind == zmq.ROUTER:
            socket.router_mandatory = 1
            socket.bind(f"ipc://{self.path}")
        else:
            socket.connect(f"ipc://{self.path}")
        return socket

    def close_plain_sockets(self):
        """Close the plain sockets once the kernel has everything they sent."""
        for socket in self.bare_sockets:
            socket.close(linger=WAIT_S_MAX * 1000)
        self.bare_zmq.term()
        self.bare_sockets, self.bare_zmq = [], None

    @property
    def messages(self):
        return [message for _, message in self.received]

    def until(self, condition):
        """Tick until the condition holds."""
        end = time.monotonic() + WAIT_S_MAX
        while not condition():
            assert time.monotonic() < end, "never"
            self.reactor.tick(5)

    def close(self):
        for end in self.made:
            end.close()
        for socket in self.bare_sockets:
            socket.close()
        if self.bare_zmq is not None:
            self.bare_zmq.term()
        self.reactor.close()


def threads():
    return set(os.listdir("/proc/self/task"))
