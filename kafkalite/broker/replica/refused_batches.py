"""RefusedBatches: batches of idempotent producers that were refused before the log saw them.

A client sends several requests without waiting.  If the first is refused because this node does not
lead the partition yet, or has too few replicas in sync, and it can take the next ones, these are
out of sequence, though nothing is lost.  librdkafka then begins a new producer epoch and sends all
of them again; one that an earlier leader had appended is in the log twice.  So a batch after a
refused one gets the error of that, until the refused one comes again.  All clients send their
batches again in order after an error that is retriable.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from kafkalite.errors import KafkaError, OutOfOrderSequenceNumber
from kafkalite.storage.state.producer_state import is_before

PRODUCER = struct.Struct(">qhi")
PRODUCER_POSITION = 43
"""Producer id, epoch and base sequence in the header of a batch."""

KEPT_MAX = 10_000
KEPT_MS = 30_000
"""Maximum number of refused batches, and the time for which one is kept: after it, a client that
has given the batch up learns that it is missing."""


class Refusal(NamedTuple):
    """A batch that was refused, with the error."""

    epoch: int
    sequence: int
    error: KafkaError
    end_ns: int

    def precedes(self, epoch: int, sequence: int, now_ns: int) -> bool:
        """Return whether a batch comes after this one, which is still awaited."""
        is_later = self.epoch == epoch and is_before(self.sequence, sequence)
        return is_later and now_ns <= self.end_ns


class RefusedBatches:
    """The refused batches of a node, by partition and producer."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._refusals: OrderedDict[tuple[bytes, int, int], Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refusals)

    def add(
        self, topic_id: bytes, index: int, batch: memoryview | bytes, error: KafkaError
    ) -> None:
        """Note that a batch of a client was refused, if it has a sequence and may come again."""
        if not error.retriable or len(batch) < PRODUCER_POSITION + PRODUCER.size:
            return
        producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
        if producer_id < 0:
            return
        key = (topic_id, index, producer_id)
        now_ns = self._now_ns()
        known = self._refusals.pop(key, None)
        if known is not None and known.precedes(epoch, sequence, now_ns):
            self._refusals[key] = known
            return
        end_ns = now_ns + KEPT_MS * 1_000_000
        self._refusals[key] = Refusal(epoch, sequence, error.with_traceback(None), end_ns)
        if len(self._refusals) > KEPT_MAX:
            self._refusals.popitem(last=False)

    def appended(self, topic_id: bytes, index: int, batch: memoryview | bytes) -> None:
        """Note that a batch is in the log: the refused one of its producer has come again."""
        if self._refusals:
            producer_id, _, _ = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
            self._refusals.pop((topic_id, index, producer_id), None)

    def error_of(
        self,
        topic_id: bytes,
        index: int,
        batch: memoryview | bytes,
        error: OutOfOrderSequenceNumber,
    ) -> KafkaError:
        """Return the error of a batch that is out of sequence: that of the refused one before it,
        if there is one."""
        producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
        refusal = self._refusals.get((topic_id, index, producer_id))
        if refusal is None or not refusal.precedes(epoch, sequence, self._now_ns()):
            return error
        return refusal.error.copy()
