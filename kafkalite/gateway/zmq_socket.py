"""GatewaySocket: one bound ZeroMQ socket of the gateway, on a given listening socket.

A ZeroMQ socket has one type, and libzmq refuses peers of an incompatible type at the handshake:
PUSH talks to PULL, DEALER (and REQ) to ROUTER.  So there are two of them.

Limits: messages queued in libzmq for each peer (the high-water mark, in both directions), messages
of DEALERs without a response (response_queue.py), the size of a frame, the time of a handshake.  A
frame above gateway.message.max.bytes is received, and its message refused; a larger one that libzmq
itself refuses (MAXMSGSIZE) ends the connection, and libzmq gives no reason.

libzmq does not limit the number of frames of a message: one without an end grows and is never
delivered.  So the check of the process's memory can call `reopen`: complete messages are received,
all peers are disconnected, and the socket is opened again.

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

from kafkalite._ext.gateway_receiver import DealerRequest, MessageGatherer, MessageReceiver
from kafkalite.config.broker import (
    GATEWAY_BUFFER_MEMORY,
    GATEWAY_HANDSHAKE_TIMEOUT_MS,
    GATEWAY_MESSAGE_MAX_BYTES,
    GATEWAY_RECEIVE_HWM,
)
from kafkalite.config.settings import Settings
from kafkalite.gateway.gateway_metrics import PUSH, GatewayMetrics
from kafkalite.gateway.response_queue import ResponseQueue
from kafkalite.transport.bus import MessageReader, Parts
from kafkalite.transport.reactor import Reactor

LIBRARY = _zmq.__file__
"""The file in which libzmq's functions are looked up."""
FRAME_SIZE_LIMIT_MIN = 16 << 20
"""Frames up to this size, or twice gateway.message.max.bytes, are received even if refused."""
MESSAGES_PER_TICK, SIZE_PER_TICK = 2_000, 4 << 20
DRAIN_MESSAGES_MAX, DRAIN_SIZE_MAX = 200_000, 1 << 30
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 60, 10, 6
"""An unreachable peer is disconnected after two minutes of silence."""
LINGER_MS = 1_000
DOMAIN = b"gateway"

MONITORED_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_ACCEPT_FAILED
)
HANDSHAKE_UNFINISHED = (
    "handshake",
    "it disconnected or timed out before the handshake ended, or its socket has another type: PUSH"
    " and DEALER sockets have an endpoint each",
)
REFUSAL_REASONS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: ("key", "its key is not one of the allowed clients"),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: (
        "protocol",
        "it does not use ZeroMQ's protocol, or not with valid keys",
    ),
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: HANDSHAKE_UNFINISHED,
    zmq.EVENT_DISCONNECTED: HANDSHAKE_UNFINISHED,
    zmq.EVENT_ACCEPT_FAILED: ("descriptors", "it could not be accepted"),
}


class CurveKeyPair(NamedTuple):
    """The gateway's own keys, if connections are encrypted."""

    public: bytes
    secret: bytes


class GatewaySocket:
    """One socket of the gateway; `can_receive()` is checked before each read, and `after_read()` is
    called after it."""

    def __init__(
        self,
        reactor: Reactor,
        name: str,
        listener: socket.socket,
        endpoint: str,
        settings: Settings,
        key: CurveKeyPair | None,
        gathering: MessageGatherer,
        metrics: GatewayMetrics,
        can_receive: Callable[[], bool],
        after_read: Callable[[], object],
    ) -> None:
        self.name = name
        self._reactor = reactor
        self._listener = listener
        self._endpoint = endpoint
        self._settings = settings
        self._key = key
        self._gathering = gathering
        self._metrics = metrics
        self._can_receive = can_receive
        self._after_read = after_read
        self._responses = ResponseQueue(
            reactor, metrics, lambda request: self._receiver.respond(request), self.schedule_read,
            settings[GATEWAY_BUFFER_MEMORY],
        )  # fmt: skip
        self._received = (0, 0)
        self._in_handshake: list[int] = []
        """Descriptors of connections in their handshake, in order."""
        self._failed = False
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.watch(self._wakeup, self._continue_receiving)

    @property
    def received(self) -> tuple[int, int]:
        """Number and bytes of received messages."""
        messages, size = self._received
        return messages + self._receiver.message_count, size + self._receiver.size

    @property
    def has_queued_responses(self) -> bool:
        """True while responses wait for room in their peers' queues."""
        return self._responses.waiting

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Bind the socket and accept peers."""
        self._socket = socket = context.socket(zmq.PULL if self.name == PUSH else zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.RCVHWM, self._settings[GATEWAY_RECEIVE_HWM])
        socket.setsockopt(zmq.SNDHWM, self._settings[GATEWAY_RECEIVE_HWM])
        frame_size_max = self._settings[GATEWAY_MESSAGE_MAX_BYTES]
        socket.setsockopt(zmq.MAXMSGSIZE, max(FRAME_SIZE_LIMIT_MIN, 2 * frame_size_max))
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
        monitor = socket.get_monitor_socket(MONITORED_EVENTS)
        self._monitor = MessageReader(self._reactor, monitor, self._handle_event)
        routed = self.name != PUSH
        self._receiver = MessageReceiver(
            self._gathering, socket.underlying, LIBRARY, routed, frame_size_max
        )
        # A duplicate, because libzmq closes the descriptor it is given.
        socket.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        socket.bind(self._endpoint)
        self._reactor.watch(socket.fileno(), self._receive)
        self.schedule_read()

    def schedule_read(self) -> None:
        """Schedule a read in the next tick if messages wait; call this after each use of the
        socket, which consumes its events."""
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            os.eventfd_write(self._wakeup, 1)

    def respond(self, requests: list[DealerRequest]) -> None:
        """Send responses to DEALERs."""
        self._responses.send(requests)
        self.schedule_read()

    def _continue_receiving(self) -> None:
        os.eventfd_read(self._wakeup)
        self._receive()

    def _receive(self) -> None:
        more = self._responses.waiting and self._responses.retry()
        if not self._can_receive() or self._is_response_queue_full():
            # Resets its descriptor, which would wake the loop forever.  The code that ends this
            # state calls schedule_read().
            self._socket.getsockopt(zmq.EVENTS)
            drained = True
        else:
            now_ms = self._reactor.clock.wall_ms()
            drained = self._receiver.receive(MESSAGES_PER_TICK, SIZE_PER_TICK, now_ms)
            self._after_read()
        if more or not drained:
            os.eventfd_write(self._wakeup, 1)

    def _is_response_queue_full(self) -> bool:
        """Return True if a ROUTER has too many responses in flight to receive more."""
        return self.name != PUSH and self._responses.is_full(self.received[0])

    def drain(self) -> None:
        """Receive all complete messages, up to a limit."""
        self._receiver.receive(DRAIN_MESSAGES_MAX, DRAIN_SIZE_MAX, self._reactor.clock.wall_ms())
        self._after_read()

    def reopen(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Disconnect all peers and open the socket again."""
        self._close_socket()
        self.open(context)

    def _close_socket(self) -> None:
        self._reactor.unwatch(self._socket.fileno())
        self._received = self.received
        self._socket.disable_monitor()
        self._monitor.close()
        self._in_handshake.clear()
        self._responses.drop_all()
        self._socket.close()

    def close(self) -> None:
        """Disconnect all peers; libzmq has a moment to send the responses in its queues."""
        self._close_socket()
        self._responses.close()
        self._reactor.unwatch(self._wakeup)
        os.close(self._wakeup)

    def _handle_event(self, parts: Parts) -> None:
        """Count an event of a connection.

        libzmq has no event for a peer whose socket is of another type: it is accepted, and then
        disconnected.  Neither does it report which handshake succeeded; it is nearly always the one
        that began first, and otherwise a disconnection is counted as such a refused peer.
        """
        event, value = struct.unpack("=Hi", parts[0])
        if event == zmq.EVENT_ACCEPTED:
            self._in_handshake.append(value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._metrics.connected[self.name] += 1
            del self._in_handshake[:1]
        elif event == zmq.EVENT_DISCONNECTED:
            if value in self._in_handshake:
                self._in_handshake.remove(value)
                if not self._failed:
                    self._metrics.refuse_peer(self.name, *REFUSAL_REASONS[event])
            else:
                self._metrics.disconnected[self.name] += 1
            self._failed = False
        elif event in REFUSAL_REASONS:
            self._metrics.refuse_peer(self.name, *REFUSAL_REASONS[event])
            # libzmq disconnects a peer next whose protocol or key failed.
            self._failed = event != zmq.EVENT_ACCEPT_FAILED
