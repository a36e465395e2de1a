"""Batch completion: the outcome of a batch, which the deliveries of its records refer to.

    done = False   gathered or sent; threads may wait, callbacks may be added
    done = True    written at a base offset, or failed with an error; final

A batch is completed once.  Each callback is called once, without a lock.  A batch that was too
large for the topic is completed with the last of the parts that it was split into.

partition_queue.py holds what a batch needs until then: its records, its sequence, its transport.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from kafkalite._ext.gathering import Delivery
from kafkalite.errors import KafkaError
from kafkalite.record_metadata import RecordMetadata

log = logging.getLogger(__name__)

NO_OFFSET = -1
NO_TIMESTAMP = -1


OnDelivery = Callable[[KafkaError | None, RecordMetadata | None], object]
DeliveryCallback = Callable[[], object]


class BatchCompletion(ABC):
    """The outcome of one batch, and the callbacks that wait for it.

    Batch defines the abstract methods, which need the producer.
    """

    __slots__ = (
        "_callbacks",
        "append_time_ms",
        "base_offset",
        "count",
        "done",
        "error",
        "has_callbacks",
        "outcome_requested",
        "parent",
        "partition",
        "parts",
        "topic_name",
    )

    def __init__(self, topic_name: str, partition: int) -> None:
        self.topic_name = topic_name
        self.partition = partition
        self.count = 0
        """Number of records; known once the batch is closed."""
        self.done = False
        self.error: KafkaError | None = None
        self.base_offset = NO_OFFSET
        self.append_time_ms = NO_TIMESTAMP
        self.parts: list[tuple[int, BatchCompletion]] | None = None
        """The parts it was split into, each after the place of its first record."""
        self.parent: BatchCompletion | None = None
        """The batch it is a part of."""
        self._callbacks: deque[DeliveryCallback] | None = None
        self.outcome_requested = False
        """True if the outcome was requested, or it has a callback."""
        self.has_callbacks = False
        """True if it has callbacks, so that the background thread must read the response."""

    def __repr__(self) -> str:
        return f"<batch of {self.topic_name}-{self.partition}, {self.count} records>"

    # Work of the producer.

    @abstractmethod
    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the outcome; return False if the timeout has passed."""

    @abstractmethod
    def send_now(self) -> None:
        """Send the batch without waiting for linger.ms."""

    @abstractmethod
    def request_outcome(self) -> None:
        """Mark the outcome as requested; an error is not logged then."""

    @abstractmethod
    def listen(self) -> None:
        """Have the background thread read the response, or run callbacks added after it."""

    # The outcome.

    def complete(self, error: KafkaError | None, base_offset: int, append_time_ms: int) -> None:
        """Set the outcome: written at this base offset, or failed with this error."""
        assert not self.done, "a batch is completed once"
        self.error = error
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.done = True

    def result_of(self, delivery: Delivery, timeout_s: float | None) -> RecordMetadata:
        """Return the metadata of a record, or raise its error; waits."""
        error = self.error_of(delivery, timeout_s)
        if error is not None:
            raise error.copy()
        return self.metadata_of(delivery)

    def error_of(self, delivery: Delivery, timeout_s: float | None) -> KafkaError | None:
        """Return the error of a record, or None; waits."""
        self.request_outcome()
        if not self.done and not self.wait(timeout_s):
            raise TimeoutError(f"{self!r} is neither delivered nor failed yet; wait longer")
        return self.part_of(delivery.place)[1].error

    def metadata_of(self, delivery: Delivery) -> RecordMetadata:
        """Return the metadata of a record that was written."""
        first, part = self.part_of(delivery.place)
        offset, timestamp = part.base_offset, part.append_time_ms
        return RecordMetadata(
            self.topic_name,
            self.partition,
            offset if offset < 0 else offset + delivery.place - first,
            delivery.timestamp if timestamp < 0 else timestamp,
        )

    def part_of(self, place: int) -> tuple[int, BatchCompletion]:
        """Return the part that holds the record at this place, after its first place."""
        if not self.parts:
            return 0, self
        first, part = next(found for found in reversed(self.parts) if found[0] <= place)
        deeper, leaf = part.part_of(place - first)
        return first + deeper, leaf

    @property
    def ended(self) -> bool:
        """True if all of its parts are completed."""
        return self.parts is not None and all(part.done for _, part in self.parts)

    def leaves(self) -> list[BatchCompletion]:
        """Return the batches it was sent as: itself, or the parts of its parts."""
        return [leaf for _, leaf in self.placed_leaves()]

    def placed_leaves(self, first: int = 0) -> list[tuple[int, BatchCompletion]]:
        """Return the leaves, each after the place of its first record, counted from `first`."""
        if not self.parts:
            return [(first, self)]
        return [found for place, part in self.parts for found in part.placed_leaves(first + place)]

    @property
    def root(self) -> BatchCompletion:
        """The batch that deliveries refer to: this one, or the one that it is a part of."""
        return self if self.parent is None else self.parent.root

    # Callbacks.

    def call_when_done(self, delivery: Any, callback: Callable[[Any], object]) -> None:
        """Call callback(delivery) once this is completed; immediately if it is."""
        if self.done:
            self.request_outcome()
            run_callback(lambda: callback(delivery))
        else:
            self._add_callback(lambda: callback(delivery))

    def call_on_delivery(self, delivery: Delivery, on_delivery: OnDelivery) -> None:
        """Call on_delivery(error, metadata) once this is completed, never within this call."""

        def run_on_delivery() -> None:
            error = self.error_of(delivery, 0)
            if error is None:
                on_delivery(None, self.metadata_of(delivery))
            else:
                on_delivery(error.copy(), None)

        self._add_callback(run_on_delivery)

    def _add_callback(self, callback: DeliveryCallback) -> None:
        """Add a callback, and have the response read in the background."""
        callbacks = self._callbacks
        if callbacks is None:
            callbacks = self._callbacks = deque()
        callbacks.append(callback)
        self.has_callbacks = True
        self.request_outcome()
        self.listen()

    @property
    def has_callbacks_left(self) -> bool:
        """True if callbacks wait to be called."""
        return bool(self._callbacks)

    def run_callbacks(self) -> None:
        """Run the callbacks; an exception in one is logged, and the others still run."""
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:
                return
            run_callback(callback)


def run_callback(callback: DeliveryCallback) -> None:
    """Run a callback; log its exception, except KeyboardInterrupt and SystemExit."""
    try:
        callback()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        log.exception("A delivery callback failed.")
