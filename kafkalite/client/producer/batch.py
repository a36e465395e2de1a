"""Batch: records of one partition that are sent together, with their callbacks and outcome.

    gathered   open, or closed and waiting to be sent
    sent       has a sequence and a transport (partition_queue.py, sender.py)
    decided    `done`: written at a base offset, or failed with an error; final

A batch is decided once.  Each callback is called once, without a lock.  A batch that was too large
for the topic is decided with the last of the parts that it was split into.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite._ext.gathering import Delivery
from kafkalite.client.producer.payload import Content
from kafkalite.errors import KafkaError

if TYPE_CHECKING:
    from kafkalite.client.producer.partition_queue import Line

log = logging.getLogger(__name__)

NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1


class RecordMetadata(NamedTuple):
    """The position of a written record.

    Attributes:
        topic: Name of the topic.
        partition: Partition in the topic.
        offset: Offset of the record; -1 with acks=0, which has no response.
        timestamp: Milliseconds since 1970: the record's, or the log append time if the topic uses
            it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Identity(NamedTuple):
    """The producer id and epoch that sequences belong to."""

    producer_id: int
    epoch: int


NOBODY = Identity(-1, -1)

OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], object]
Hearer = Callable[[], object]


class Batch:
    """Records of one partition that are sent together."""

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
        """Number of records; known once it is closed."""
        self.created_s = created_s
        self.due_s = due_s
        """Time at which it is sent even if it is not full."""
        self.memory_size = memory_size
        """Bytes of buffer.memory that are counted for it."""
        self.wanted = False
        """True if it is sent without waiting for linger.ms: a thread waits for it."""
        self.not_before_s = 0.0
        self.attempts = 0
        self.sent_s = 0.0
        self.by_tcp = False
        """True if it is too large for a ring."""
        self.sequence = NO_SEQUENCE
        self.identity = NOBODY
        self.doubtful = False
        """True if it was sent and the outcome is not known: it may have been written."""
        self.lane: Any = None
        """The connection or ring that it was sent over; None while it is not in flight."""
        self.done = False
        self.fault: KafkaError | None = None
        self.base_offset = NO_OFFSET
        self.append_time_ms = NO_TIMESTAMP
        self.parts: list[tuple[int, Batch]] | None = None
        """The parts it was split into, each after the place of its first record."""
        self.parent: Batch | None = None
        """The batch it is a part of."""
        self._hearers: deque[Hearer] | None = None
        self.looked_at = False
        """True if the outcome was requested, or it has a callback."""
        self.heard = False
        """True if it has callbacks, so that the background thread must read the response."""

    def __repr__(self) -> str:
        line = self.line
        return f"<batch of {line.topic.name}-{line.index}, {self.count} records>"

    # The outcome.

    def decide(self, fault: KafkaError | None, base_offset: int, append_time_ms: int) -> None:
        """Set the outcome: written at this base offset, or failed with this error."""
        assert not self.done, "a batch is decided once"
        self.fault = fault
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.done = True
        self.content = None

    def result_of(self, delivery: Delivery, timeout_s: float | None) -> RecordMetadata:
        """Return the metadata of a record, or raise its error; waits."""
        fault = self.fault_of(delivery, timeout_s)
        if fault is not None:
            raise fault.again()
        return self.metadata_of(delivery)

    def fault_of(self, delivery: Delivery, timeout_s: float | None) -> KafkaError | None:
        """Return the error of a record, or None; waits."""
        self.look_at()
        if not self.done and not self.line.topic.wait(self, timeout_s):
            raise TimeoutError(f"{self!r} is not decided yet")
        return self.part_of(delivery.place)[1].fault

    def metadata_of(self, delivery: Delivery) -> RecordMetadata:
        """Return the metadata of a record that was written."""
        first, part = self.part_of(delivery.place)
        offset, timestamp = part.base_offset, part.append_time_ms
        return RecordMetadata(
            self.line.topic.name,
            self.line.index,
            offset if offset < 0 else offset + delivery.place - first,
            delivery.timestamp if timestamp < 0 else timestamp,
        )

    def part_of(self, place: int) -> tuple[int, Batch]:
        """Return the part that holds the record at this place, after its first place."""
        if not self.parts:
            return 0, self
        first, part = next(found for found in reversed(self.parts) if found[0] <= place)
        deeper, leaf = part.part_of(place - first)
        return first + deeper, leaf

    @property
    def ended(self) -> bool:
        """True if all of its parts are decided."""
        return self.parts is not None and all(part.done for _, part in self.parts)

    def leaves(self) -> list[Batch]:
        """Return the batches it was sent as: itself, or the parts of its parts."""
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
        """The batch that deliveries refer to: this one, or the one that it is a part of."""
        return self if self.parent is None else self.parent.root

    def look_at(self) -> None:
        """Mark the outcome as requested; an error is not logged then."""
        if not self.looked_at:
            self.line.topic.look_at(self)

    # Callbacks.

    def tell_when_done(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        """Call callback(delivery) once this is decided; immediately if it is."""
        if self.done:
            self.look_at()
            called(lambda: callback(delivery))
        else:
            self._hear(lambda: callback(delivery))

    def deliver_to(self, delivery: Delivery, on_delivery: OnDelivery) -> None:
        """Call on_delivery(error, metadata) once this is decided, never within this call."""

        def told() -> None:
            fault = self.fault_of(delivery, 0)
            if fault is None:
                on_delivery(None, self.metadata_of(delivery))
            else:
                on_delivery(fault.again(), None)

        self._hear(told)

    def _hear(self, hearer: Hearer) -> None:
        """Add a callback, and have the response read in the background."""
        hearers = self._hearers
        if hearers is None:
            hearers = self._hearers = deque()
        hearers.append(hearer)
        self.heard = True
        self.look_at()
        if self.done:
            self.line.topic.owe(self)  # its other callbacks may have been called already
        elif self.lane is not None:
            self.line.topic.listen(self)

    @property
    def has_hearers(self) -> bool:
        """True if callbacks wait to be called."""
        return bool(self._hearers)

    def tell(self) -> None:
        """Run the callbacks; an exception in one is logged, and the others still run."""
        hearers = self._hearers
        while hearers:
            try:
                hearer = hearers.popleft()
            except IndexError:
                return
            called(hearer)


def called(hearer: Hearer) -> None:
    """Run a callback; log its exception, except KeyboardInterrupt and SystemExit."""
    try:
        hearer()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        log.exception("A delivery callback failed.")
