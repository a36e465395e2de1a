"""Gateway: the service's main function: two sockets, batches, the producer, and the shutdown.

    sockets ─ messages ─▶ MessageGatherer ─ full, or old ─▶ BatchForwarder ─▶ producer
      ▲                    ▲ TopicLookup: partition counts                  │
      └──── responses ─────┴───────────────── outcomes ◀────────────────────┘

All of it runs on one event loop except calls that block: the producer and TopicLookup have a thread
each, and so has the authenticator if CURVE is configured.

The shutdown is orderly: received messages are produced and DEALERs get their responses, within
`SHUTDOWN_TIMEOUT_MS`.  Messages that are still in a sender's process or on the network are not
received.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.auth.thread import ThreadAuthenticator

from kafkalite._ext.gateway_receiver import DealerRequest, MessageGatherer
from kafkalite.clock import SystemClock
from kafkalite.config.broker import (
    GATEWAY_BATCH_SIZE,
    GATEWAY_BUFFER_MEMORY,
    GATEWAY_CURVE_CLIENTS,
    GATEWAY_CURVE_KEY_FILE,
    GATEWAY_LINGER_MS,
    GATEWAY_MEMORY_MAX_BYTES,
)
from kafkalite.config.settings import Settings
from kafkalite.gateway.batch_forwarder import BatchForwarder, BatchProducer
from kafkalite.gateway.curve import AllowedClients, own_keys
from kafkalite.gateway.gateway_metrics import DEALER, PUSH, GatewayMetrics
from kafkalite.gateway.loop_calls import LoopCalls
from kafkalite.gateway.topic_lookup import TopicLookup
from kafkalite.gateway.zmq_socket import DOMAIN, CurveKeyPair, GatewaySocket
from kafkalite.metrics import Page, gateway_page_path
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.gateway")

RECORD_SIZE_MAX = (1 << 20) - 1024
"""Maximum size that a producer sends by default, including the header of the batch."""
PARKED_MAX = 8 << 20
BROKER_CHECK_MS = 50
PAGE_MS = 1_000
MEMORY_CHECK_MS = 100
SHUTDOWN_TIMEOUT_MS = 5_000
DRAIN_MS = 50
"""Time at shutdown to receive messages that are on their way."""


class TargetBroker(NamedTuple):
    """The parts of a running broker's state that the gateway needs."""

    bootstrap: str
    run_directory: Path | None


class GatewayListener(NamedTuple):
    """A listening socket, and its endpoint in ZeroMQ's notation."""

    socket: socket.socket
    endpoint: str


class Gateway:
    """The gateway of one running broker; see the module."""

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        listening: Sequence[GatewayListener],
        producer: BatchProducer,
        run_directory: Path | None = None,
    ) -> None:
        self.reactor = reactor
        self.settings = settings
        self.metrics = GatewayMetrics(reactor.clock)
        self._producer = producer
        self._calls = LoopCalls(reactor)
        self._topics = TopicLookup(
            reactor, self._calls, producer.partitions_for, self._topic_resolved
        )
        self._gathering = self._topics.gathering = MessageGatherer(
            settings[GATEWAY_BATCH_SIZE],
            RECORD_SIZE_MAX,
            self._topics.request,
            self._message_refused,
        )
        self._forwarder = BatchForwarder(
            producer, reactor, self._calls, self.metrics, self._respond, self._topics.refresh,
            self._resume,
        )  # fmt: skip
        self._linger_ms = settings[GATEWAY_LINGER_MS]
        self._linger: Timer | None = None
        self._paused_from_ms = 0
        self._ending = self._ended = False
        """Shutting down; and receiving nothing more."""
        self._memory_floor = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        key = self._start_authenticator()
        self._sockets = [
            GatewaySocket(
                reactor, name, each.socket, each.endpoint, settings, key, self._gathering,
                self.metrics, self._can_receive, self._after_read,
            )
            for name, each in zip((PUSH, DEALER), listening, strict=True)
        ]  # fmt: skip
        for zmq_socket in self._sockets:
            zmq_socket.open(self._context)
        self._page: Page | None = None
        if run_directory is not None:
            self._write_page(run_directory)
        reactor.call_later(MEMORY_CHECK_MS, self._check_memory)

    def _start_authenticator(self) -> CurveKeyPair | None:
        """Start CURVE encryption and admission by key, if configured; return our own keys."""
        file, clients = self.settings[GATEWAY_CURVE_KEY_FILE], self.settings[GATEWAY_CURVE_CLIENTS]
        if file is None or clients is None:
            return None
        known = AllowedClients(Path(clients), lambda why: self._calls.call_soon(
            lambda: self.metrics.log_limited("Gateway refused a peer", "key", why)
        ))  # fmt: skip
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(DOMAIN.decode(), known)
        return CurveKeyPair(*own_keys(Path(file)))

    # Messages to batches.

    def _can_receive(self) -> bool:
        """Return True if there is room for more; count the time in which there is none."""
        if self._ended:
            return False
        is_paused = self._forwarder.is_blocked or self._gathering.parked_size >= PARKED_MAX
        now_ms = self.reactor.clock.monotonic_ms()
        if is_paused and not self._paused_from_ms:
            self._paused_from_ms = now_ms
            self.metrics.log_limited(
                "Gateway receives no messages for a while", "paused",
                "the broker has not written the earlier ones, and gateway.buffer.memory is used up",
            )  # fmt: skip
        elif not is_paused and self._paused_from_ms:
            self.metrics.paused_ms += now_ms - self._paused_from_ms
            self._paused_from_ms = 0
        return not is_paused

    def _after_read(self) -> None:
        """Send full batches after a read, and start the linger timer for the rest."""
        gathering = self._gathering
        if self._linger_ms == 0 or gathering.open_size >= self.settings[GATEWAY_BUFFER_MEMORY]:
            gathering.close_older(self.reactor.clock.wall_ms())
        elif gathering.open_size and self._linger is None:
            self._linger = self.reactor.call_later(self._linger_ms, self._flush_old)
        self._forward()

    def _flush_old(self) -> None:
        self._linger = None
        now_ms = self.reactor.clock.wall_ms()
        oldest_ms = self._gathering.close_older(now_ms - self._linger_ms)
        if oldest_ms >= 0:
            # After a wall clock was set back, nothing waits longer than the linger time.
            left_ms = min(max(oldest_ms + self._linger_ms - now_ms, 1), self._linger_ms)
            self._linger = self.reactor.call_later(left_ms, self._flush_old)
        self._forward()

    def _forward(self) -> None:
        full = self._gathering.closed
        if full:
            batches = full[:]
            full.clear()
            self._forwarder.add(batches)

    def _topic_resolved(self) -> None:
        """Continue after a topic's messages that waited for it were gathered or refused."""
        self._after_read()
        self._resume()

    def _resume(self) -> None:
        """Receive again, because there is room."""
        self._can_receive()
        for zmq_socket in self._sockets:
            zmq_socket.schedule_read()

    # Outcomes.

    def _message_refused(
        self, request: DealerRequest | None, name: bytes, code: int, sentence: str
    ) -> None:
        """Count a message refused on receipt, and respond to a DEALER."""
        self.metrics.refuse(PUSH if request is None else DEALER, name, code, sentence)
        if request is not None:
            request.fail(code, sentence)
            self._respond([request])

    def _respond(self, requests: list[DealerRequest]) -> None:
        self._sockets[-1].respond(requests)

    # Periodic work.

    @property
    def pending_size(self) -> int:
        """Bytes of messages that are not written yet."""
        gathering, forwarder = self._gathering, self._forwarder
        waiting = forwarder.waiting_size + forwarder.sent_size
        return gathering.open_size + gathering.parked_size + waiting

    def _write_page(self, run_directory: Path) -> None:
        path = gateway_page_path(run_directory)
        try:
            self._page = self._page or Page(path, 0)
            received = {zmq_socket.name: zmq_socket.received for zmq_socket in self._sockets}
            families = self.metrics.families(received, self.pending_size)
            self._page.write(families, self.reactor.clock.monotonic_ms())
        except OSError as error:
            self.metrics.log_limited(
                "Metrics page cannot be written", str(path), error.strerror or str(error)
            )
        self.reactor.call_later(PAGE_MS, lambda: self._write_page(run_directory))

    def _check_memory(self) -> None:
        """Disconnect all peers if ZeroMQ holds too much memory for them."""
        size, most = resident_size(), self.settings[GATEWAY_MEMORY_MAX_BYTES]
        if size >= max(most, self._memory_floor) and not self._ending:
            self.metrics.full_disconnects += 1
            self.metrics.log_limited(
                "Gateway disconnects all peers", "memory",
                f"ZeroMQ holds too much memory for their messages ({size >> 20} MiB)",
            )  # fmt: skip
            for zmq_socket in self._sockets:
                zmq_socket.drain()
                zmq_socket.reopen(self._context)
            # Memory that is not returned to the system must not cause the next cut.
            self._memory_floor = resident_size() + most // 4
        self.reactor.call_later(MEMORY_CHECK_MS, self._check_memory)

    # Shutdown.

    def shut_down(self) -> None:
        """Shut down once received messages are written, or when that takes too long."""
        if self._ending:
            return
        self._ending = True
        self.reactor.call_later(DRAIN_MS, self._stop_receiving)

    def _stop_receiving(self) -> None:
        for zmq_socket in self._sockets:
            zmq_socket.drain()
        self._ended = True
        self._finish(self.reactor.clock.monotonic_ms() + SHUTDOWN_TIMEOUT_MS)

    def _finish(self, until_ms: int) -> None:
        self._gathering.close_older(self.reactor.clock.wall_ms())
        self._forward()
        over = self.reactor.clock.monotonic_ms() >= until_ms
        answering = any(zmq_socket.has_queued_responses for zmq_socket in self._sockets)
        idle = self._forwarder.is_idle and not answering
        if over or (idle and not self._gathering.parked_size):
            if over and self.pending_size:
                log.error(
                    "Gateway shuts down before all messages are written. lost_bytes=%d",
                    self.pending_size,
                )
            self.reactor.stop()
        else:
            self.reactor.call_later(DRAIN_MS, lambda: self._finish(until_ms))

    def close(self) -> None:
        """Close all sockets and threads."""
        self._topics.close()
        for zmq_socket in self._sockets:
            zmq_socket.close()
        self._producer.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._calls.close()
        self._context.term()
        if self._page is not None:
            self._page.close()


def serve(
    listening: Sequence[GatewayListener],
    settings: Settings,
    broker: Callable[[], TargetBroker | None],
    producer: Callable[[str], BatchProducer],
    until: int | None,
    ready: Callable[[], object] = lambda: None,
) -> int:
    """Serve until SIGTERM, SIGINT or end of file on `until`; return the exit code of the process.

    `broker` returns the state of the running broker, or None; until there is one no peer is
    accepted.  `producer` creates the producer for its bootstrap address.  `ready` is called when
    only the broker is missing.  Raises Refusal before that if the CURVE keys cannot be read.
    """
    reactor = Reactor(SystemClock())
    gateway: Gateway | None = None
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        if gateway is not None:
            gateway.shut_down()
        else:
            reactor.stop()

    wakeup = handle_termination(reactor, end)
    if until is not None:

        def starter_exited() -> None:
            reactor.unwatch(until)
            end()

        reactor.watch(until, starter_exited)
    check_keys(settings)
    ready()
    while not ended and (found := broker()) is None:
        reactor.tick(BROKER_CHECK_MS)
    if not ended and found is not None:
        for each in listening:
            log.info("Gateway listens. endpoint=%s", each.endpoint)
        gateway = Gateway(
            reactor, settings, listening, producer(found.bootstrap), found.run_directory
        )
        reactor.run()
        gateway.close()
    reactor.close()
    os.close(wakeup)
    return 0


def check_keys(settings: Settings) -> None:
    """Raise Refusal if the configured CURVE keys cannot be read."""
    file, clients = settings[GATEWAY_CURVE_KEY_FILE], settings[GATEWAY_CURVE_CLIENTS]
    if file is not None and clients is not None:
        own_keys(Path(file))
        AllowedClients(Path(clients), lambda why: None)


def handle_termination(reactor: Reactor, end: Callable[[], object]) -> int:
    """Call `end` in the loop on SIGTERM and SIGINT; return the eventfd that signals write to."""
    wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.eventfd_write(wakeup, 1))

    def woken() -> None:
        os.eventfd_read(wakeup)
        end()

    reactor.watch(wakeup, woken)
    return wakeup


def resident_size() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
