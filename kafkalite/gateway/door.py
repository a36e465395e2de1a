"""A door: one bound ZeroMQ socket, on a listening socket that was given.

A socket of ZeroMQ has one type, and libzmq refuses at the handshake whoever's does not go with it:
PUSH speaks to PULL, DEALER (and REQ) to ROUTER.  So there are two doors.

What is bounded: messages that wait in libzmq for each peer (the high-water mark, both ways), those
of DEALERs that are not answered (answers.py), the size of a frame, the time of a handshake.  A
frame above gateway.message.max.bytes is received, and its message refused; what libzmq itself
refuses (MAXMSGSIZE) ends the connection, and it does not say why.  The number of a message's frames
is not, in libzmq: one that never ends grows and is never seen.  So whoever watches the memory can
`cut`: everyone is disconnected, what had come whole is taken before, and the door opens anew.

A DEALER's identity is a name, and the last connection that gives it has it (ROUTER_HANDOVER).
Without that libzmq ignores a DEALER that comes back before it has seen the old connection's end,
for as long as the new one lasts: 88 of 300 quick restarts with a fixed identity were never heard.

ZeroMQ's descriptor wakes the loop for what has happened since somebody looked, so what has come is
taken to the end, a bounded part of it a tick; a descriptor of ours wakes it for what was left.
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
from kafkalite.transport.bus import Drain, Parts
from kafkalite.transport.reactor import Reactor

LIBRARY = _zmq.__file__
"""From this file on, libzmq's functions can be found."""
FRAME_SIZE_CUT_MIN = 16 << 20
"""Frames up to here, or twice gateway.message.max.bytes, are received, if only to be refused."""
TAKEN_PER_TICK, TAKEN_SIZE_PER_TICK = 2_000, 4 << 20
DRAINED_MAX, DRAINED_SIZE_MAX = 200_000, 1 << 30
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 60, 10, 6
"""After two minutes of silence a peer is gone that the network does not reach."""
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
    """The gateway's own keys, where connections are encrypted."""

    public: bytes
    secret: bytes


class Door:
    """One of the two; `gathered()` is called after each part that was taken, and `may_take()` asked
    before it."""

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
        """Descriptors of connections whose handshake is not over, in order."""
        self._failed = False
        self._rest = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.watch(self._rest, self._take_on)

    @property
    def received(self) -> tuple[int, int]:
        """Messages and bytes that came."""
        messages, size = self._received
        return messages + self._intake.message_count, size + self._intake.size

    @property
    def answering(self) -> bool:
        """True while answers wait for room in their peers' queues."""
        return self._answers.waiting

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Let peers in."""
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
        self._news = Drain(self._reactor, news, self._learn)
        routed = self.name != PUSH
        self._intake = Intake(self._gathering, socket.underlying, LIBRARY, routed, frame_size_max)
        # libzmq closes what it is given.
        socket.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        socket.bind(self._endpoint)
        self._reactor.watch(socket.fileno(), self._take_in)
        self.look()

    def look(self) -> None:
        """Have the next tick take what has come; to be called after whatever may have looked."""
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            os.eventfd_write(self._rest, 1)

    def answer(self, questions: list[Question]) -> None:
        """Tell DEALERs what became of their messages."""
        self._answers.give(questions)
        self.look()

    def _take_on(self) -> None:
        os.eventfd_read(self._rest)
        self._take_in()

    def _take_in(self) -> None:
        more = self._answers.waiting and self._answers.look()
        if not self._may_take() or self._owes_too_much():
            # Its descriptor would wake the loop for ever; whoever ends this calls look().
            self._socket.getsockopt(zmq.EVENTS)
            drained = True
        else:
            now_ms = self._reactor.clock.wall_ms()
            drained = self._intake.take(TAKEN_PER_TICK, TAKEN_SIZE_PER_TICK, now_ms)
            self._gathered()
        if more or not drained:
            os.eventfd_write(self._rest, 1)

    def _owes_too_much(self) -> bool:
        """Return True if too many answers are owed to take more in; PUSHes get none."""
        return self.name != PUSH and self._answers.is_full(self.received[0])

    def drain(self) -> None:
        """Take all that has come whole, but not for ever."""
        self._intake.take(DRAINED_MAX, DRAINED_SIZE_MAX, self._reactor.clock.wall_ms())
        self._gathered()

    def cut(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Disconnect everyone, keep what had come whole, and open again."""
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
        """Disconnect everyone; answers that stand in queues have a moment more."""
        self._leave()
        self._answers.close()
        self._reactor.unwatch(self._rest)
        os.close(self._rest)

    def _learn(self, parts: Parts) -> None:
        """Something happened to a connection.

        libzmq has no event for a peer whose socket is of another type: it is accepted, and then
        disconnected.  Neither does it say whose handshake succeeded; that it is the one that began
        first is nearly always right, and else somebody's leaving is counted as such a peer.
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
            # What failed for its protocol or key is disconnected next.
            self._failed = event != zmq.EVENT_ACCEPT_FAILED
