"""A batch on its way: what it holds, who wants to hear of it, and what becomes of it.

    gathered   still open, or closed and waiting for its turn
    sent       numbered, and with a lane (line.py says when, sender.py over which)
    decided    `done`: at a base offset, or with a fault; and nothing changes any more

A batch is decided once.  Whoever asked to be told is told once, outside of all locks.  A batch that
was too large for the topic is decided when the parts are that it was split into.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite._ext.gathering import Delivery
from kafkalite.client.content import Content
from kafkalite.errors import KafkaError

if TYPE_CHECKING:
    from kafkalite.client.line import Line

log = logging.getLogger(__name__)

NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1


class RecordMetadata(NamedTuple):
    """Where a record came to lie; an offset of -1: nobody said (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Identity(NamedTuple):
    """Who numbers batches, in the broker's eyes."""

    producer_id: int
    epoch: int


NOBODY = Identity(-1, -1)

OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], object]
Hearer = Callable[[], object]


class Batch:
    """Records of one partition that travel together."""

    __slots__ = (
        "_hearers",
        "append_time_ms",
        "attempts",
        "base_offset",
        "by_tcp",
        "content",
        "count",
        "created_s",
        "done",
        "doubtful",
        "due_s",
        "fault",
        "heard",
        "identity",
        "lane",
        "line",
        "looked_at",
        "memory_size",
        "not_before_s",
        "parent",
        "parts",
        "sent_s",
        "sequence",
        "wanted",
    )

    def __init__(
        self, line: Line, content: Content, created_s: float, due_s: float, memory_size: int
    ) -> None:
        self.line = line
        self.content: Content | None = content
        self.count = 0
        """How many records it has; known once it is closed."""
        self.created_s = created_s
        self.due_s = due_s
        """When it is sent even if it is not full."""
        self.memory_size = memory_size
        """What it holds of buffer.memory."""
        self.wanted = False
        """Whether somebody waits for it, who would wait in vain for more records."""
        self.not_before_s = 0.0
        self.attempts = 0
        self.sent_s = 0.0
        self.by_tcp = False
        """Whether it is too large for a ring."""
        self.sequence = NO_SEQUENCE
        self.identity = NOBODY
        self.doubtful = False
        """Whether it was sent and nobody knows what became of that."""
        self.lane: Any = None
        """Where it is under way."""
        self.done = False
        self.fault: KafkaError | None = None
        self.base_offset = NO_OFFSET
        self.append_time_ms = NO_TIMESTAMP
        self.parts: list[tuple[int, Batch]] | None = None
        """What it was split into: the place each begins at, and the part."""
        self.parent: Batch | None = None
        """What it is a part of."""
        self._hearers: deque[Hearer] | None = None
        self.looked_at = False
        """True if somebody has asked for the outcome, or has a callback for it."""
        self.heard = False
        """Whether anybody wants to be told without waiting: then somebody must listen."""

    def __repr__(self) -> str:
        line = self.line
        return f"<batch of {line.topic.name}-{line.index}, {self.count} records>"

    # What became of it.

    def decide(self, fault: KafkaError | None, base_offset: int, append_time_ms: int) -> None:
        """It is written there, or it has failed for good."""
        assert not self.done, "a batch is decided once"
        self.fault = fault
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.done = True
        self.content = None

    def result_of(self, delivery: Delivery, timeout_s: float | None) -> RecordMetadata:
        fault = self.fault_of(delivery, timeout_s)
        if fault is not None:
            raise fault.again()
        return self.metadata_of(delivery)

    def fault_of(self, delivery: Delivery, timeout_s: float | None) -> KafkaError | None:
        self.look_at()
        if not self.done and not self.line.topic.wait(self, timeout_s):
            raise TimeoutError(f"{self!r} is not decided yet")
        return self.part_of(delivery.place)[1].fault

    def metadata_of(self, delivery: Delivery) -> RecordMetadata:
        """Where a record lies that was written."""
        first, part = self.part_of(delivery.place)
        offset, timestamp = part.base_offset, part.append_time_ms
        return RecordMetadata(
            self.line.topic.name,
            self.line.index,
            offset if offset < 0 else offset + delivery.place - first,
            delivery.timestamp if timestamp < 0 else timestamp,
        )

    def part_of(self, place: int) -> tuple[int, Batch]:
        """The batch that the record at this place travelled in, and where that begins."""
        if not self.parts:
            return 0, self
        first, part = next(found for found in reversed(self.parts) if found[0] <= place)
        deeper, leaf = part.part_of(place - first)
        return first + deeper, leaf

    @property
    def ended(self) -> bool:
        """Whether all parts of it are decided."""
        return self.parts is not None and all(part.done for _, part in self.parts)

    def leaves(self) -> list[Batch]:
        """What it travelled as: itself, or the parts of the parts."""
        return [leaf for _, leaf in self.placed_leaves()]

    def placed_leaves(self, first: int = 0) -> list[tuple[int, Batch]]:
        """Return the leaves, each after the place of its first record, counted from `first`."""
        if not self.parts:
            return [(first, self)]
        return [
            found for place, part in self.parts for found in part.placed_leaves(first + place)
        ]

    @property
    def root(self) -> Batch:
        """The batch that records were sent in, of which this is a part, or it itself."""
        return self if self.parent is None else self.parent.root

    def look_at(self) -> None:
        """Note that somebody asks for the outcome, whose failure needs no report then."""
        if not self.looked_at:
            self.line.topic.look_at(self)

    # Who is told.

    def tell_when_done(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        """Call callback(delivery) once this is decided; here and now if it is."""
        if self.done:
            self.look_at()
            called(lambda: callback(delivery))
        else:
            self._hear(lambda: callback(delivery))

    def deliver_to(self, delivery: Delivery, on_delivery: OnDelivery) -> None:
        """Call on_delivery(error, metadata) once this is decided, and never from here."""

        def told() -> None:
            fault = self.fault_of(delivery, 0)
            if fault is None:
                on_delivery(None, self.metadata_of(delivery))
            else:
                on_delivery(fault.again(), None)

        self._hear(told)

    def _hear(self, hearer: Hearer) -> None:
        hearers = self._hearers
        if hearers is None:
            hearers = self._hearers = deque()
        hearers.append(hearer)
        self.heard = True
        self.look_at()
        if self.done:
            self.line.topic.owe(self)  # decided meanwhile, and perhaps told already
        elif self.lane is not None:
            self.line.topic.listen(self)

    @property
    def has_hearers(self) -> bool:
        """Whether callbacks wait to be called."""
        return bool(self._hearers)

    def tell(self) -> None:
        """Call the callbacks; what one of them raises is logged, and the others are called."""
        hearers = self._hearers
        while hearers:
            try:
                hearer = hearers.popleft()
            except IndexError:
                return
            called(hearer)


def called(hearer: Hearer) -> None:
    """Run a callback.  What it raises is logged, except what ends the program."""
    try:
        hearer()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        log.exception("A delivery callback failed.")
