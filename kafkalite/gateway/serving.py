"""Gateway: the service's main function: two sockets, batches, the producer, and the shutdown.

    sockets ─ messages ─▶ Gathering ─ full, or old ─▶ Forwarding ─▶ producer
      ▲                    ▲ Topics: partition counts                 │
      └──── responses ─────┴──────────────── outcomes ◀───────────────┘

All of it runs on one event loop except calls that block: the producer and Topics have a thread
each, and so has the authenticator if CURVE is configured.

The shutdown is orderly: received messages are produced and DEALERs get their responses, within
`END_MS_MAX`.  Messages that are still in a sender's process or on the network are not received.
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

from kafkalite._ext.gateway_intake import Gathering, Question
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
from kafkalite.gateway.counts import DEALER, PUSH, Counts
from kafkalite.gateway.curve import Clients, own_keys
from kafkalite.gateway.door import DOMAIN, Door, Key
from kafkalite.gateway.forwarding import Forwarding, Sender
from kafkalite.gateway.post import Post
from kafkalite.gateway.topics import Topics
from kafkalite.metrics import Page, gateway_page_path
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.gateway")

RECORD_SIZE_MAX = (1 << 20) - 1024
"""Maximum size that a producer sends by default, including the header of the batch."""
PARKED_MAX = 8 << 20
BROKER_LOOK_MS = 50
PAGE_MS = 1_000
MEMORY_LOOK_MS = 100
END_MS_MAX = 5_000
DRAIN_MS = 50
"""Time at shutdown to receive messages that are on their way."""


class Broker(NamedTuple):
    """The parts of a running broker's state that the gateway needs."""

    bootstrap: str
    run_directory: Path | None


class Listening(NamedTuple):
    """A listening socket, and its endpoint in ZeroMQ's notation."""

    socket: socket.socket
    endpoint: str


class Gateway:
    """The gateway of one running broker; see the module."""

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        listening: Sequence[Listening],
        sender: Sender,
        run_directory: Path | None = None,
    ) -> None:
        self.reactor = reactor
        self.settings = settings
        self.counts = Counts(reactor.clock)
        self._sender = sender
        self._post = Post(reactor)
        self._topics = Topics(reactor, self._post, sender.partitions_for, self._learned)
        self._gathering = self._topics.gathering = Gathering(
            settings[GATEWAY_BATCH_SIZE], RECORD_SIZE_MAX, self._topics.ask, self._refused
        )
        self._forwarding = Forwarding(
            sender, reactor, self._post, self.counts, self._answer, self._topics.look_again,
            self._nudge,
        )  # fmt: skip
        self._linger_ms = settings[GATEWAY_LINGER_MS]
        self._linger: Timer | None = None
        self._held_back_from_ms = 0
        self._ending = self._ended = False
        """Shutting down; and receiving nothing more."""
        self._memory_floor = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        key = self._let_in_by_key()
        self._doors = [
            Door(
                reactor, name, each.socket, each.endpoint, settings, key, self._gathering,
                self.counts, self._may_take, self._gathered,
            )
            for name, each in zip((PUSH, DEALER), listening, strict=True)
        ]  # fmt: skip
        for door in self._doors:
            door.open(self._context)
        self._page: Page | None = None
        if run_directory is not None:
            self._keep_page(run_directory)
        reactor.call_later(MEMORY_LOOK_MS, self._look_at_memory)

    def _let_in_by_key(self) -> Key | None:
        """Start CURVE encryption and admission by key, if configured; return our own keys."""
        file, clients = self.settings[GATEWAY_CURVE_KEY_FILE], self.settings[GATEWAY_CURVE_CLIENTS]
        if file is None or clients is None:
            return None
        known = Clients(Path(clients), lambda why: self._post.leave(
            lambda: self.counts.complain("a peer was not let in", "key", why)
        ))  # fmt: skip
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(DOMAIN.decode(), known)
        return Key(*own_keys(Path(file)))

    # Messages to batches.

    def _may_take(self) -> bool:
        """Return True if there is room for more; count the time in which there is none."""
        if self._ended:
            return False
        held_back = self._forwarding.behind or self._gathering.parked_size >= PARKED_MAX
        now_ms = self.reactor.clock.monotonic_ms()
        if held_back and not self._held_back_from_ms:
            self._held_back_from_ms = now_ms
            self.counts.complain("nothing is received for a while", "held back", "the broker has"
                                 " not written what came before, and memory is full")  # fmt: skip
        elif not held_back and self._held_back_from_ms:
            self.counts.held_back_ms += now_ms - self._held_back_from_ms
            self._held_back_from_ms = 0
        return not held_back

    def _gathered(self) -> None:
        """Send full batches after a read, and start the linger timer for the rest."""
        gathering = self._gathering
        if self._linger_ms == 0 or gathering.filling_size >= self.settings[GATEWAY_BUFFER_MEMORY]:
            gathering.ripen(self.reactor.clock.wall_ms())
        elif gathering.filling_size and self._linger is None:
            self._linger = self.reactor.call_later(self._linger_ms, self._ripen)
        self._forward()

    def _ripen(self) -> None:
        self._linger = None
        now_ms = self.reactor.clock.wall_ms()
        oldest_ms = self._gathering.ripen(now_ms - self._linger_ms)
        if oldest_ms >= 0:
            # After a wall clock was set back, nothing waits longer than the linger time.
            left_ms = min(max(oldest_ms + self._linger_ms - now_ms, 1), self._linger_ms)
            self._linger = self.reactor.call_later(left_ms, self._ripen)
        self._forward()

    def _forward(self) -> None:
        full = self._gathering.full
        if full:
            batches = full[:]
            full.clear()
            self._forwarding.take(batches)

    def _learned(self) -> None:
        """Continue after a topic's messages that waited for it were gathered or refused."""
        self._gathered()
        self._nudge()

    def _nudge(self) -> None:
        """Receive again, because there is room."""
        self._may_take()
        for door in self._doors:
            door.look()

    # Outcomes.

    def _refused(self, question: Question | None, name: bytes, code: int, sentence: str) -> None:
        """Count a message refused on receipt, and respond to a DEALER."""
        self.counts.refuse(PUSH if question is None else DEALER, name, code, sentence)
        if question is not None:
            question.fail(code, sentence)
            self._answer([question])

    def _answer(self, questions: list[Question]) -> None:
        self._doors[-1].answer(questions)

    # Periodic work.

    @property
    def held(self) -> int:
        """Bytes of messages that are not written yet."""
        gathering, forwarding = self._gathering, self._forwarding
        waiting = forwarding.waiting_size + forwarding.sent_size
        return gathering.filling_size + gathering.parked_size + waiting

    def _keep_page(self, run_directory: Path) -> None:
        path = gateway_page_path(run_directory)
        try:
            self._page = self._page or Page(path, 0)
            received = {door.name: door.received for door in self._doors}
            families = self.counts.families(received, self.held)
            self._page.write(families, self.reactor.clock.monotonic_ms())
        except OSError as fault:
            self.counts.complain("no metrics", str(path), fault.strerror or str(fault))
        self.reactor.call_later(PAGE_MS, lambda: self._keep_page(run_directory))

    def _look_at_memory(self) -> None:
        """Disconnect all peers if ZeroMQ holds too much memory for them."""
        size, most = resident_size(), self.settings[GATEWAY_MEMORY_MAX_BYTES]
        if size >= max(most, self._memory_floor) and not self._ending:
            self.counts.cut += 1
            self.counts.complain(
                "all peers were disconnected", "memory",
                f"ZeroMQ held too much of what they sent ({size >> 20} MiB)",
            )  # fmt: skip
            for door in self._doors:
                door.drain()
                door.cut(self._context)
            # Memory that is not returned to the system must not cause the next cut.
            self._memory_floor = resident_size() + most // 4
        self.reactor.call_later(MEMORY_LOOK_MS, self._look_at_memory)

    # Shutdown.

    def end(self) -> None:
        """Shut down once received messages are written, or when that takes too long."""
        if self._ending:
            return
        self._ending = True
        self.reactor.call_later(DRAIN_MS, self._take_no_more)

    def _take_no_more(self) -> None:
        for door in self._doors:
            door.drain()
        self._ended = True
        self._finish(self.reactor.clock.monotonic_ms() + END_MS_MAX)

    def _finish(self, until_ms: int) -> None:
        self._gathering.ripen(self.reactor.clock.wall_ms())
        self._forward()
        over = self.reactor.clock.monotonic_ms() >= until_ms
        answering = any(door.answering for door in self._doors)
        idle = self._forwarding.idle and not answering
        if over or (idle and not self._gathering.parked_size):
            if over and self.held:
                log.error("%d bytes of messages could not be written before the end", self.held)
            self.reactor.stop()
        else:
            self.reactor.call_later(DRAIN_MS, lambda: self._finish(until_ms))

    def close(self) -> None:
        """Close all sockets and threads."""
        self._topics.close()
        for door in self._doors:
            door.close()
        self._sender.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._post.close()
        self._context.term()
        if self._page is not None:
            self._page.close()


def serve(
    listening: Sequence[Listening],
    settings: Settings,
    broker: Callable[[], Broker | None],
    sender: Callable[[str], Sender],
    until: int | None,
    ready: Callable[[], object] = lambda: None,
) -> int:
    """Serve until SIGTERM, SIGINT or end of file on `until`; return the exit code of the process.

    `broker` returns the state of the running broker, or None; until there is one no peer is
    accepted.  `sender` creates the producer for its bootstrap address.  `ready` is called when only
    the broker is missing.  Raises Refusal before that if the CURVE keys cannot be read.
    """
    reactor = Reactor(SystemClock())
    gateway: Gateway | None = None
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        if gateway is not None:
            gateway.end()
        else:
            reactor.stop()

    bell = hear_signals(reactor, end)
    if until is not None:

        def gone() -> None:
            reactor.unwatch(until)
            end()

        reactor.watch(until, gone)
    check_keys(settings)
    ready()
    while not ended and (found := broker()) is None:
        reactor.tick(BROKER_LOOK_MS)
    if not ended and found is not None:
        for each in listening:
            log.info("listening on %s", each.endpoint)
        gateway = Gateway(
            reactor, settings, listening, sender(found.bootstrap), found.run_directory
        )
        reactor.run()
        gateway.close()
    reactor.close()
    os.close(bell)
    return 0


def check_keys(settings: Settings) -> None:
    """Raise Refusal if the configured CURVE keys cannot be read."""
    file, clients = settings[GATEWAY_CURVE_KEY_FILE], settings[GATEWAY_CURVE_CLIENTS]
    if file is not None and clients is not None:
        own_keys(Path(file))
        Clients(Path(clients), lambda why: None)


def hear_signals(reactor: Reactor, end: Callable[[], object]) -> int:
    """Call `end` in the loop on SIGTERM and SIGINT; return the eventfd that signals write to."""
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.eventfd_write(bell, 1))

    def heard() -> None:
        os.eventfd_read(bell)
        end()

    reactor.watch(bell, heard)
    return bell


def resident_size() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
