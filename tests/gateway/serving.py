"""A gateway in a thread of this process, over a sender that keeps its batches in memory."""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import NamedTuple

import zmq

from kafkalite._ext import records
from kafkalite.clock import SystemClock
from kafkalite.config.settings import Settings
from kafkalite.errors import RequestTimedOut, UnknownTopicOrPartition
from kafkalite.gateway.batch_forwarder import HEADER_SIZE
from kafkalite.gateway.gateway_main import Gateway, GatewayListener
from kafkalite.transport.reactor import Reactor

WAIT_S_MAX = 30


class BatchPosition(NamedTuple):
    """The position of a batch."""

    offset: int


class Row(NamedTuple):
    """A record that was written."""

    timestamp: int
    key: bytes | None
    value: bytes
    headers: tuple


class MemorySender:
    """A sender of whole batches, like a Producer, which writes them at once unless stopped."""

    def __init__(self, partitions=1, memory=32 << 20):
        self.partitions = defaultdict(lambda: partitions)
        self.lookup_errors = {}
        """By topic: the error of a request for its partitions."""
        self.batch_error = lambda topic, rows: None
        """Returns the error of a batch, or None."""
        self.logs = defaultdict(list)
        self.memory = memory
        self.stopped = threading.Event()
        self.kept = []
        self.lookups = []
        self.closed = False

    def partitions_for(self, topic, timeout):
        self.lookups.append(topic)
        if topic in self.lookup_errors:
            raise self.lookup_errors[topic]
        return self.partitions[topic]

    def send_batch(
        self, topic, partition, batch, payload_size, count, base_timestamp, max_timestamp,
        on_delivery=None,
    ):  # fmt: skip
        if not 0 <= partition < self.partitions[topic]:
            raise UnknownTopicOrPartition("It has no such partition.")
        rows = self.decoded(batch, payload_size, count, base_timestamp)
        assert max_timestamp == max(row.timestamp for row in rows)
        size = sum(len(each[1]) for each in self.kept) + len(rows)
        if size > self.memory:
            raise RequestTimedOut("no room")
        self.kept.append(((topic, partition), rows, on_delivery))
        if not self.stopped.is_set():
            self.write()

    def decoded(self, batch, size, count, base_timestamp):
        found = records.decode(bytes(batch[HEADER_SIZE : HEADER_SIZE + size]), count)
        assert isinstance(found, list) and [row[0] for row in found] == list(range(count))
        return [Row(base_timestamp + delta, *rest) for _, delta, *rest in found]

    def write(self):
        """Write the batches kept, and report them."""
        while self.kept:
            place, rows, report = self.kept.pop(0)
            error = self.batch_error(place[0], rows)
            if error is not None:
                report(error, None)
                continue
            offset = len(self.logs[place])
            self.logs[place] += rows
            report(None, BatchPosition(offset))

    def close(self, timeout=None):
        self.closed = True

    def values(self, topic):
        return [row.value for (of, _), log in self.logs.items() if of == topic for row in log]


class GatewayThread:
    """The gateway, its endpoints, and its loop in a thread."""

    def __init__(self, sender=None, run_directory=None, bound=None, **keys):
        self.sender = sender or MemorySender()
        self.keys = {name.replace("_", "."): str(value) for name, value in keys.items()}
        bound = bound or [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        for each in bound:
            each.setblocking(False)
        listening = [
            GatewayListener(each, "tcp://{}:{}".format(*each.getsockname()[:2])) for each in bound
        ]
        self.push, self.dealer = (each.endpoint for each in listening)
        self.bound = bound
        self.reactor = Reactor(SystemClock())
        settings = Settings.broker({"gateway.linger.ms": "1", **self.keys})
        self.gateway = Gateway(self.reactor, settings, listening, self.sender, run_directory)
        self.metrics = self.gateway.metrics
        self.failed = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            self.reactor.run()
            self.gateway.close()
            self.reactor.close()
        except BaseException as error:
            self.failed = error
            raise

    def call(self, call):
        """Run a function in the loop's thread, and wait for it."""
        done = threading.Event()

        def run():
            call()
            done.set()

        self.gateway._calls.call_soon(run)
        assert done.wait(WAIT_S_MAX)

    @contextmanager
    def paused(self):
        """Hold the loop, so that no handshake ends before the block does."""
        resumed = threading.Event()
        self.gateway._calls.call_soon(lambda: resumed.wait(WAIT_S_MAX))
        try:
            yield
        finally:
            resumed.set()

    @property
    def received(self):
        return {each.name: each.received[0] for each in self.gateway._sockets}

    def close(self):
        if self.thread.is_alive():
            self.gateway._calls.call_soon(self.gateway.shut_down)
            self.thread.join(WAIT_S_MAX)
        assert not self.thread.is_alive()
        for each in self.bound:
            each.close()
        assert self.failed is None


class Peers:
    """ZeroMQ sockets of a test, all closed at its end."""

    def __init__(self):
        self.context = zmq.Context()
        self.sockets = []

    def __call__(self, kind, endpoint, **options):
        peer = self.context.socket(kind)
        self.sockets.append(peer)
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.RCVTIMEO, WAIT_S_MAX * 1_000)
        peer.setsockopt(zmq.SNDTIMEO, WAIT_S_MAX * 1_000)
        for name, value in options.items():
            peer.setsockopt(getattr(zmq, name), value)
        peer.connect(endpoint)
        return peer

    def close(self):
        for peer in self.sockets:
            peer.close(0)
        self.context.term()
