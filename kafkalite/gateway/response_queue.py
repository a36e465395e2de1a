"""ResponseQueue: responses to DEALERs, queued until their peers have room.

    response ─▶ ROUTER ─▶ the peer
       │ its queue is full            ▲
       └────▶ queued, in order ───────┘  when there is room

A ROUTER has a queue for each peer (the high-water mark), and a batch of small messages has more
responses than that.  So a response is queued here until libzmq accepts it, or the peer disconnects.

`is_full` means that no more may be received from DEALERs: too many of their messages are in flight,
or too many bytes of responses are queued.  From half of that on, a peer that does not read an
eighth of its queued responses within `READ_TIMEOUT_MS` is not reading: its responses are dropped
and counted, and so are later ones without room in its queue, until it reads.  So a peer that does
not read blocks the others only once and briefly, and memory is bounded.

libzmq does not report which peer has room, so every peer with queued responses is tried: after each
event of the socket, and every `RETRY_MS`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

import zmq

from kafkalite._ext.gateway_receiver import DealerRequest
from kafkalite.gateway.gateway_metrics import GatewayMetrics
from kafkalite.transport.reactor import Reactor, Timer

IN_FLIGHT_MAX = 100_000
"""Maximum of DEALERs' messages that were received and whose responses are not sent."""
RESPONSES_PER_TRY, PEERS_PER_TRY = 2_000, 1_000
RETRY_MS = 10
READ_TIMEOUT_MS = 5_000
NOT_READING_MAX = 1_000
"""Maximum number of peers recorded as not reading; another one may block the others once more."""

# Label values of the metric kafkalite_gateway_unanswered_total.
DISCONNECTED = "the peer is gone"
NOT_READ = "the peer does not read its answers"


class PeerResponses:
    """The queued responses of one peer, oldest first."""

    def __init__(self) -> None:
        self.requests: deque[DealerRequest] = deque()
        self.size = 0
        self.size_before = 0
        self.sent_size = 0
        """Bytes queued when the measurement began, and bytes sent to the peer since."""


class ResponseQueue:
    """Queued responses; see the module.

    `send(request)` returns 0 or an error of libzmq.  `on_retry()` is called after each attempt
    that a timer started.
    """

    def __init__(
        self,
        reactor: Reactor,
        metrics: GatewayMetrics,
        send: Callable[[DealerRequest], int],
        on_retry: Callable[[], object],
        size_max: int,
    ) -> None:
        self._reactor = reactor
        self._metrics = metrics
        self._send_now = send
        self._on_retry = on_retry
        self._size_max = size_max
        self._queued: dict[bytes, PeerResponses] = {}
        self._not_reading: dict[bytes, None] = {}
        """Peers whose responses were dropped because they did not read, newest last.  The oldest
        are removed, since a peer that disconnects without reading is never removed otherwise."""
        self._timer: Timer | None = None
        self._check_at_ms = 0
        self.count = self.size = 0
        """Number and bytes of the responses queued for all peers."""
        self.completed = 0
        """Number of messages whose responses were sent or dropped."""

    @property
    def waiting(self) -> bool:
        """True while responses are queued."""
        return bool(self._queued)

    def is_full(self, received: int) -> bool:
        """Return True if no more may be received; `received` is the number of messages so far."""
        return received - self.completed >= IN_FLIGHT_MAX or self.size >= self._size_max

    def send(self, requests: Iterable[DealerRequest]) -> None:
        """Send these responses; queue those to peers without room."""
        for request in requests:
            identity = request.identity
            queue = self._queued.get(identity)
            if queue is None:
                error = self._send_now(request)
                if error != zmq.EAGAIN or identity in self._not_reading:
                    self._count(identity, error)
                    continue
                queue = self._queued[identity] = PeerResponses()
            queue.requests.append(request)
            queue.size += request.size
            self.size += request.size
            self.count += 1
        self._schedule_retry()

    def retry(self) -> bool:
        """Send queued responses; return True if peers may have room for more at once."""
        left, tries = RESPONSES_PER_TRY, PEERS_PER_TRY
        for identity in list(itertools.islice(self._queued, tries)):
            left = self._send_queued(identity, left)
            if identity in self._queued:
                # The other peers come first the next time.
                self._queued[identity] = self._queued.pop(identity)
            if not left:
                break
        self._drop_unread()
        self._schedule_retry()
        return not left and self.waiting

    def _send_queued(self, identity: bytes, left: int) -> int:
        """Send queued responses to one peer; return how many may still be sent."""
        queue = self._queued[identity]
        while left:
            request = queue.requests[0]
            error = self._send_now(request)
            if error == zmq.EAGAIN:
                break
            if error:
                self._drop(identity, DISCONNECTED)
                break
            left -= 1
            queue.requests.popleft()
            queue.size -= request.size
            queue.sent_size += request.size
            self.size -= request.size
            self.count -= 1
            self._count(identity, 0)
            if not queue.requests:
                del self._queued[identity]
                break
        return left

    def drop_all(self) -> None:
        """Drop all queued responses, because all peers were disconnected."""
        self._not_reading.clear()
        for identity in list(self._queued):
            self._drop(identity, DISCONNECTED)

    def _drop_unread(self) -> None:
        """Drop the queued responses of peers that do not read, once much is queued in total."""
        now_ms = self._reactor.clock.monotonic_ms()
        if self.size < self._size_max // 2 and self.count < IN_FLIGHT_MAX // 2:
            self._check_at_ms = 0
        elif not self._check_at_ms:
            self._check_at_ms = now_ms + READ_TIMEOUT_MS
            for queue in self._queued.values():
                queue.size_before, queue.sent_size = queue.size, 0
        elif now_ms >= self._check_at_ms:
            for identity, queue in list(self._queued.items()):
                if queue.sent_size < queue.size_before // 8:
                    self._drop(identity, NOT_READ)
                    self._not_reading[identity] = None
            while len(self._not_reading) > NOT_READING_MAX:
                del self._not_reading[next(iter(self._not_reading))]
            self._check_at_ms = 0

    def _drop(self, identity: bytes, reason: str) -> None:
        queue = self._queued.pop(identity)
        self.size -= queue.size
        self.count -= len(queue.requests)
        self.completed += len(queue.requests)
        self._metrics.drop_responses(reason, len(queue.requests))

    def _count(self, identity: bytes, error: int) -> None:
        self.completed += 1
        if error == zmq.EAGAIN:
            self._metrics.drop_responses(NOT_READ)
            return
        self._not_reading.pop(identity, None)
        if error:
            self._metrics.drop_responses(DISCONNECTED)
        else:
            self._metrics.responses += 1

    def _schedule_retry(self) -> None:
        if self._queued and self._timer is None:
            self._timer = self._reactor.call_later(RETRY_MS, self._retry_by_timer)

    def _retry_by_timer(self) -> None:
        self._timer = None
        self.retry()
        self._on_retry()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
