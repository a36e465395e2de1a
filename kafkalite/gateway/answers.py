"""Answers: what DEALERs are sent, and kept for them until they have room for it.

    answer ─▶ ROUTER ─▶ the peer
       │ its queue is full            ▲
       └────▶ kept, in order ─────────┘  when there is room again

A ROUTER has a queue for each peer (the high-water mark), and a batch of small messages has more
answers than that.  So an answer is kept here until libzmq takes it, or the peer is gone.

`full` says that nothing more may be received from DEALERs: too many of their messages are in
flight, or too many bytes of answers are kept.  From half of that on, a peer that does not take an
eighth of what is kept for it within `READING_MS` does not read its answers: they are dropped and
counted, and so is what it has no room for until it has room again.  So a peer that does not read
stops the others once and not for long, and what is kept is bounded.

libzmq does not say which peer has room again, so all that have answers here are tried: whenever
something happened at the socket, and every `LOOK_MS`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

import zmq

from kafkalite._ext.gateway_intake import Question
from kafkalite.gateway.counts import Counts
from kafkalite.transport.reactor import Reactor, Timer

IN_FLIGHT_MAX = 100_000
"""Messages of DEALERs that were received and whose answers are not sent."""
SENT_PER_LOOK, TRIED_PER_LOOK = 2_000, 1_000
LOOK_MS = 10
READING_MS = 5_000
NOT_READING_MAX = 1_000
"""Peers that are remembered because they did not read; one that is forgotten may be waited for
once more."""

GONE = "the peer is gone"
NOT_READ = "the peer does not read its answers"


class Kept:
    """The answers of one peer, the oldest first."""

    def __init__(self) -> None:
        self.questions: deque[Question] = deque()
        self.size = 0
        self.size_before = 0
        self.taken_size = 0
        """Bytes that were kept when the judgement began, and bytes taken since."""


class Answers:
    """See the module; `send(question)` returns 0 or an error of libzmq's, and `looked()` is called
    after each look that a timer made."""

    def __init__(
        self,
        reactor: Reactor,
        counts: Counts,
        send: Callable[[Question], int],
        looked: Callable[[], object],
        size_max: int,
    ) -> None:
        self._reactor = reactor
        self._counts = counts
        self._send = send
        self._looked = looked
        self._size_max = size_max
        self._kept: dict[bytes, Kept] = {}
        self._not_reading: dict[bytes, None] = {}
        """Peers whose answers were dropped because they did not read, the newest last; one that
        left without reading is never heard of again, so the oldest are forgotten."""
        self._timer: Timer | None = None
        self._judge_at_ms = 0
        self.count = self.size = 0
        """Answers, and bytes of them, that are kept for all peers."""
        self.settled = 0
        """Messages whose answers were sent or dropped."""

    @property
    def waiting(self) -> bool:
        """True while answers are kept."""
        return bool(self._kept)

    def is_full(self, received: int) -> bool:
        """Return True if no more may be received, so many messages having been."""
        return received - self.settled >= IN_FLIGHT_MAX or self.size >= self._size_max

    def give(self, questions: Iterable[Question]) -> None:
        """Send the answers to these, or keep them for peers without room."""
        for question in questions:
            identity = question.identity
            kept = self._kept.get(identity)
            if kept is None:
                error = self._send(question)
                if error != zmq.EAGAIN or identity in self._not_reading:
                    self._count(identity, error)
                    continue
                kept = self._kept[identity] = Kept()
            kept.questions.append(question)
            kept.size += question.size
            self.size += question.size
            self.count += 1
        self._look_later()

    def look(self) -> bool:
        """Send what peers have room for; return True if they may have room for more at once."""
        left, tries = SENT_PER_LOOK, TRIED_PER_LOOK
        for identity in list(itertools.islice(self._kept, tries)):
            left = self._send_kept(identity, left)
            if identity in self._kept:
                # The others come first the next time.
                self._kept[identity] = self._kept.pop(identity)
            if not left:
                break
        self._judge()
        self._look_later()
        return not left and self.waiting

    def _send_kept(self, identity: bytes, left: int) -> int:
        """Send what one peer has room for; return how many may still be sent."""
        kept = self._kept[identity]
        while left:
            question = kept.questions[0]
            error = self._send(question)
            if error == zmq.EAGAIN:
                break
            if error:
                self._drop(identity, GONE)
                break
            left -= 1
            kept.questions.popleft()
            kept.size -= question.size
            kept.taken_size += question.size
            self.size -= question.size
            self.count -= 1
            self._count(identity, 0)
            if not kept.questions:
                del self._kept[identity]
                break
        return left

    def drop_all(self) -> None:
        """Drop what is kept: all peers were disconnected."""
        self._not_reading.clear()
        for identity in list(self._kept):
            self._drop(identity, GONE)

    def _judge(self) -> None:
        """Drop what is kept for peers that do not read, once nothing is received for that."""
        now_ms = self._reactor.clock.monotonic_ms()
        if self.size < self._size_max // 2 and self.count < IN_FLIGHT_MAX // 2:
            self._judge_at_ms = 0
        elif not self._judge_at_ms:
            self._judge_at_ms = now_ms + READING_MS
            for kept in self._kept.values():
                kept.size_before, kept.taken_size = kept.size, 0
        elif now_ms >= self._judge_at_ms:
            for identity, kept in list(self._kept.items()):
                if kept.taken_size < kept.size_before // 8:
                    self._drop(identity, NOT_READ)
                    self._not_reading[identity] = None
            while len(self._not_reading) > NOT_READING_MAX:
                del self._not_reading[next(iter(self._not_reading))]
            self._judge_at_ms = 0

    def _drop(self, identity: bytes, reason: str) -> None:
        kept = self._kept.pop(identity)
        self.size -= kept.size
        self.count -= len(kept.questions)
        self.settled += len(kept.questions)
        self._counts.leave_unanswered(reason, len(kept.questions))

    def _count(self, identity: bytes, error: int) -> None:
        self.settled += 1
        if error == zmq.EAGAIN:
            self._counts.leave_unanswered(NOT_READ)
            return
        self._not_reading.pop(identity, None)
        if error:
            self._counts.leave_unanswered(GONE)
        else:
            self._counts.answers += 1

    def _look_later(self) -> None:
        if self._kept and self._timer is None:
            self._timer = self._reactor.call_later(LOOK_MS, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.look()
        self._looked()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
