"""ResponseQueue: responses to DEALERs, queued until their peers have room.

    response ─▶ ROUTER ─▶ the peer
       │ its queue is full            ▲
       └────▶ kept, in order ─────────┘  when there is room

A ROUTER has a queue for each peer (the high-water mark), and a batch of small messages has more
responses than that.  So a response is kept here until libzmq takes it, or the peer disconnects.

`is_full` means that no more may be received from DEALERs: too many of their messages are in flight,
or too many bytes of responses are kept.  From half of that on, a peer that does not take an eighth
of its kept responses within `READ_TIMEOUT_MS` is not reading: its responses are dropped and
counted, and so are later ones without room in its queue, until it reads.  So a peer that does not
read blocks the others only once and briefly, and memory is bounded.

libzmq does not report which peer has room, so every peer with kept responses is tried: after each
event of the socket, and every `RETRY_MS`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

import zmq

from kafkalite._ext.gateway_intake import DealerRequest
from kafkalite.gateway.gateway_metrics import GatewayMetrics
from kafkalite.transport.reactor import Reactor, Timer

IN_FLIGHT_MAX = 100_000
"""Maximum of DEALERs' messages that were received and whose responses are not sent."""
RESPONSES_PER_TRY, PEERS_PER_TRY = 2_000, 1_000
RETRY_MS = 10
READ_TIMEOUT_MS = 5_000
NOT_READING_MAX = 1_000
"""Number of peers remembered as not reading; a forgotten one may block the others once more."""

# Label values of the metric kafkalite_gateway_unanswered_total.
GONE = "the peer is gone"
NOT_READ = "the peer does not read its answers"


class PeerResponses:
    """The kept responses of one peer, oldest first."""

    def __init__(self) -> None:
        self.requests: deque[DealerRequest] = deque()
        self.size = 0
        self.size_before = 0
        self.taken_size = 0
        """Bytes kept when the measurement began, and bytes taken by the peer since."""


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
        self._kept: dict[bytes, PeerResponses] = {}
        self._not_reading: dict[bytes, None] = {}
        """Peers whose responses were dropped because they did not read, newest last.  The oldest
        are forgotten, since a peer that disconnects without reading is never removed otherwise."""
        self._timer: Timer | None = None
        self._check_at_ms = 0
        self.count = self.size = 0
        """Number and bytes of the responses kept for all peers."""
        self.completed = 0
        """Number of messages whose responses were sent or dropped."""

    @property
    def waiting(self) -> bool:
        """True while responses are kept."""
        return bool(self._kept)

    def is_full(self, received: int) -> bool:
        """Return True if no more may be received; `received` is the number of messages so far."""
        return received - self.completed >= IN_FLIGHT_MAX or self.size >= self._size_max

    def send(self, requests: Iterable[DealerRequest]) -> None:
        """Send these responses, or keep them for peers without room."""
        for request in requests:
            identity = request.identity
            kept = self._kept.get(identity)
            if kept is None:
                error = self._send_now(request)
                if error != zmq.EAGAIN or identity in self._not_reading:
                    self._count(identity, error)
                    continue
                kept = self._kept[identity] = PeerResponses()
            kept.requests.append(request)
            kept.size += request.size
            self.size += request.size
            self.count += 1
        self._schedule_retry()

    def retry(self) -> bool:
        """Send kept responses; return True if peers may have room for more at once."""
        left, tries = RESPONSES_PER_TRY, PEERS_PER_TRY
        for identity in list(itertools.islice(self._kept, tries)):
            left = self._send_kept(identity, left)
            if identity in self._kept:
                # The other peers come first the next time.
                self._kept[identity] = self._kept.pop(identity)
            if not left:
                break
        self._drop_unread()
        self._schedule_retry()
        return not left and self.waiting

    def _send_kept(self, identity: bytes, left: int) -> int:
        """Send kept responses to one peer; return how many may still be sent."""
        kept = self._kept[identity]
        while left:
            request = kept.requests[0]
            error = self._send_now(request)
            if error == zmq.EAGAIN:
                break
            if error:
                self._drop(identity, GONE)
                break
            left -= 1
            kept.requests.popleft()
            kept.size -= request.size
            kept.taken_size += request.size
            self.size -= request.size
            self.count -= 1
            self._count(identity, 0)
            if not kept.requests:
                del self._kept[identity]
                break
        return left

    def drop_all(self) -> None:
        """Drop all kept responses, because all peers were disconnected."""
        self._not_reading.clear()
        for identity in list(self._kept):
            self._drop(identity, GONE)

    def _drop_unread(self) -> None:
        """Drop the kept responses of peers that do not read, once much is kept in total."""
        now_ms = self._reactor.clock.monotonic_ms()
        if self.size < self._size_max // 2 and self.count < IN_FLIGHT_MAX // 2:
            self._check_at_ms = 0
        elif not self._check_at_ms:
            self._check_at_ms = now_ms + READ_TIMEOUT_MS
            for kept in self._kept.values():
                kept.size_before, kept.taken_size = kept.size, 0
        elif now_ms >= self._check_at_ms:
            for identity, kept in list(self._kept.items()):
                if kept.taken_size < kept.size_before // 8:
                    self._drop(identity, NOT_READ)
                    self._not_reading[identity] = None
            while len(self._not_reading) > NOT_READING_MAX:
                del self._not_reading[next(iter(self._not_reading))]
            self._check_at_ms = 0

    def _drop(self, identity: bytes, reason: str) -> None:
        kept = self._kept.pop(identity)
        self.size -= kept.size
        self.count -= len(kept.requests)
        self.completed += len(kept.requests)
        self._metrics.drop_responses(reason, len(kept.requests))

    def _count(self, identity: bytes, error: int) -> None:
        self.completed += 1
        if error == zmq.EAGAIN:
            self._metrics.drop_responses(NOT_READ)
            return
        self._not_reading.pop(identity, None)
        if error:
            self._metrics.drop_responses(GONE)
        else:
            self._metrics.responses += 1

    def _schedule_retry(self) -> None:
        if self._kept and self._timer is None:
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
