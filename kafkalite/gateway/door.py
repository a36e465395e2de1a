"""Door: one bound ZeroMQ socket of the gateway, on a given listening socket.

A ZeroMQ socket has one type, and libzmq refuses peers of an incompatible type at the handshake:
PUSH talks to PULL, DEALER (and REQ) to ROUTER.  So there are two of them.

Limits: messages queued in libzmq for each peer (the high-water mark, in both directions), messages
of DEALERs without a response (answers.py), the size of a frame, the time of a handshake.  A frame
above gateway.message.max.bytes is received, and its message refused; a larger one that libzmq
itself refuses (MAXMSGSIZE) ends the connection, and libzmq gives no reason.

libzmq does not limit the number of frames of a message: one without an end grows and is never
delivered.  So the check of the process's memory can call `cut`: complete messages are received, all
peers are disconnected, and the socket is opened again.

A DEALER's identity is a name, and the last connection that gives it has it (ROUTER_HANDOVER).
Without that option libzmq ignores a DEALER that reconnects before it has noticed the end of the old
connection, for as long as the new one lasts: 88 of 300 quick restarts with a fixed identity were
ignored.

ZeroMQ's descriptor wakes the event loop for events since its state was last checked, so messages
are received until none is left, a limited number in each tick; an eventfd wakes it for the rest.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

import zmq
from zmq.backend.cython import _zmq

from kafkalite._ext.gateway_intake import Gathering, Intake, Question
from kafkalite.config.broker import (
    GATEWAY_BUFFER_MEMORY,
    GATEWAY_HANDSHAKE_TIMEOUT_MS,
    GATEWAY_MESSAGE_MAX_BYTES,
    GATEWAY_RECEIVE_HWM,
)
from kafkalite.config.settings import Settings
from kafkalite.gateway.answers import Answers
from kafkalite.gateway.counts import PUSH, Counts
from kafkalite.transport.bus import MessageReader, Parts
from kafkalite.transport.reactor import Reactor

LIBRARY = _zmq.__file__
"""The file in which libzmq's functions are looked up."""
FRAME_SIZE_CUT_MIN = 16 << 20
"""Frames up to this size, or twice gateway.message.max.bytes, are received even if refused."""
TAKEN_PER_TICK, TAKEN_SIZE_PER_TICK = 2_000, 4 << 20
DRAINED_MAX, DRAINED_SIZE_MAX = 200_000, 1 << 30
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 60, 10, 6
"""An unreachable peer is disconnected after two minutes of silence."""
CLOSING_MS_MAX = 1_000
DOMAIN = b"gateway"

WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_ACCEPT_FAILED
)
UNFINISHED = (
    "handshake",
    "it left, or took too long, before it was let in, or its socket is of another type: PUSHes and"
    " DEALERs have an endpoint each",
)
TURNED_AWAY = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: ("key", "its key is not among the clients'"),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: (
        "protocol",
        "it does not speak ZeroMQ's protocol, or not with the right keys",
    ),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: UNFINISHED,
    zmq.EVENT_DISCONNECTED: UNFINISHED,
    zmq.EVENT_ACCEPT_FAILED: ("descriptors", "it could not be accepted"),
}


class Key(NamedTuple):
    """The gateway's own keys, if connections are encrypted."""

    public: bytes
    secret: bytes


class Door:
    """One socket of the gateway; `may_take()` is checked before each read and `gathered()` called
    after it."""

    def __init__(
        self,
        reactor: Reactor,
        name: str,
        listener: socket.socket,
        endpoint: str,
        settings: Settings,
        key: Key | None,
        gathering: Gathering,
        counts: Counts,
        may_take: Callable[[], bool],
        gathered: Callable[[], object],
    ) -> None:
        self.name = name
        self._reactor = reactor
        self._listener = listener
        self._endpoint = endpoint
        self._settings = settings
        self._key = key
        self._gathering = gathering
        self._counts = counts
        self._may_take = may_take
        self._gathered = gathered
        self._answers = Answers(
            reactor, counts, lambda question: self._intake.answer(question), self.look,
            settings[GATEWAY_BUFFER_MEMORY],
        )  # fmt: skip
        self._received = (0, 0)
        self._introducing: list[int] = []
        """Descriptors of connections in their handshake, in order."""
        self._failed = False
        self._rest = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.watch(self._rest, self._take_on)

    @property
    def received(self) -> tuple[int, int]:
        """Number and bytes of received messages."""
        messages, size = self._received
        return messages + self._intake.message_count, size + self._intake.size

    @property
    def answering(self) -> bool:
        """True while responses wait for room in their peers' queues."""
        return self._answers.waiting

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Bind the socket and accept peers."""
        self._socket = socket = context.socket(zmq.PULL if self.name == PUSH else zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, CLOSING_MS_MAX)
        socket.setsockopt(zmq.RCVHWM, self._settings[GATEWAY_RECEIVE_HWM])
        socket.setsockopt(zmq.SNDHWM, self._settings[GATEWAY_RECEIVE_HWM])
        frame_size_max = self._settings[GATEWAY_MESSAGE_MAX_BYTES]
        socket.setsockopt(zmq.MAXMSGSIZE, max(FRAME_SIZE_CUT_MIN, 2 * frame_size_max))
        socket.setsockopt(zmq.HANDSHAKE_IVL, self._settings[GATEWAY_HANDSHAKE_TIMEOUT_MS])
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
        socket.setsockopt(zmq.IPV6, 1)
        if self.name != PUSH:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self._key is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._key.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        news = socket.get_monitor_socket(WATCHED)
        self._news = MessageReader(self._reactor, news, self._learn)
        routed = self.name != PUSH
        self._intake = Intake(self._gathering, socket.underlying, LIBRARY, routed, frame_size_max)
        # A duplicate, because libzmq closes the descriptor it is given.
        socket.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        socket.bind(self._endpoint)
        self._reactor.watch(socket.fileno(), self._take_in)
        self.look()

    def look(self) -> None:
        """Schedule a read in the next tick if messages wait; call this after each use of the
        socket, which consumes its events."""
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            os.eventfd_write(self._rest, 1)

    def answer(self, questions: list[Question]) -> None:
        """Send responses to DEALERs."""
        self._answers.give(questions)
        self.look()

    def _take_on(self) -> None:
        os.eventfd_read(self._rest)
        self._take_in()

    def _take_in(self) -> None:
        more = self._answers.waiting and self._answers.look()
        if not self._may_take() or self._owes_too_much():
            # Resets its descriptor, which would wake the loop forever.  The code that ends this
            # state calls look().
            self._socket.getsockopt(zmq.EVENTS)
            drained = True
        else:
            now_ms = self._reactor.clock.wall_ms()
            drained = self._intake.take(TAKEN_PER_TICK, TAKEN_SIZE_PER_TICK, now_ms)
            self._gathered()
        if more or not drained:
            os.eventfd_write(self._rest, 1)

    def _owes_too_much(self) -> bool:
        """Return True if a ROUTER has too many responses in flight to receive more."""
        return self.name != PUSH and self._answers.is_full(self.received[0])

    def drain(self) -> None:
        """Receive all complete messages, up to a limit."""
        self._intake.take(DRAINED_MAX, DRAINED_SIZE_MAX, self._reactor.clock.wall_ms())
        self._gathered()

    def cut(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Disconnect all peers and open the socket again."""
        self._leave()
        self.open(context)

    def _leave(self) -> None:
        self._reactor.unwatch(self._socket.fileno())
        self._received = self.received
        self._socket.disable_monitor()
        self._news.close()
        self._introducing.clear()
        self._answers.drop_all()
        self._socket.close()

    def close(self) -> None:
        """Disconnect all peers; libzmq has a moment to send the responses in its queues."""
        self._leave()
        self._answers.close()
        self._reactor.unwatch(self._rest)
        os.close(self._rest)

    def _learn(self, parts: Parts) -> None:
        """Count an event of a connection.

        libzmq has no event for a peer whose socket is of another type: it is accepted, and then
        disconnected.  Neither does it report which handshake succeeded; it is nearly always the one
        that began first, and otherwise a disconnection is counted as such a refused peer.
        """
        event, value = struct.unpack("=Hi", parts[0])
        if event == zmq.EVENT_ACCEPTED:
            self._introducing.append(value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._counts.connected[self.name] += 1
            del self._introducing[:1]
        elif event == zmq.EVENT_DISCONNECTED:
            if value in self._introducing:
                self._introducing.remove(value)
                if not self._failed:
                    self._counts.turn_away(self.name, *TURNED_AWAY[event])
            else:
                self._counts.disconnected[self.name] += 1
            self._failed = False
        elif event in TURNED_AWAY:
            self._counts.turn_away(self.name, *TURNED_AWAY[event])
            # libzmq disconnects a peer next whose protocol or key failed.
            self._failed = event != zmq.EVENT_ACCEPT_FAILED
