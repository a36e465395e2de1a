"""RefusedBatches: batches of idempotent producers that were refused before the log saw them.

A client sends several requests without waiting.  The first may be refused because this node does
not lead the partition yet, or has too few replicas in sync, and the next ones come when it can take
them.  If it did:

- A log that has no record of the producer accepts any sequence; the first batch is then taken for a
  duplicate when it is retried, and is lost though it was acknowledged.
- Otherwise they are out of sequence.  librdkafka begins another producer epoch and retries all of
  them; one that a former leader had appended is in the log twice.

So while batches of a producer are missing because they were refused, a batch after them gets their
error: until all of them have been retried, here or at a leader that this node has followed, or
until KEPT_MS have passed.  All clients retry batches in order after a retriable error.  Kafka has
no such check.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.coordination.topic_names import LENGTH_MAX
from kafkalite.errors import KafkaError
from kafkalite.storage.state.producer_state import SEQUENCE_MAX, is_before

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.state.producer_state import ProducerStateEntry

PRODUCER = struct.Struct(">qhi")
PRODUCER_POSITION = 43
"""Producer id, epoch and base sequence in the header of a batch."""

KEPT_MAX = 10_000
KEPT_MS = 120_000
"""Maximum number of refused batches, and the time for which one is kept, as Kafka's default of
delivery.timeout.ms: after it, a client that has given the batch up learns that it is missing."""


class RefusedRange(NamedTuple):
    """The batches of a producer in a partition that were refused, in one producer epoch."""

    epoch: int
    first: int
    """Base sequence of the first one."""
    last: int
    """Base sequence of the last one."""
    error: KafkaError
    """The error of the first one."""
    end_ns: int

    def with_batch(self, sequence: int, error: KafkaError, end_ns: int) -> RefusedRange:
        """Return the range with another batch, also the first one again."""
        if not is_before(self.first, sequence):
            return self._replace(first=sequence, error=error, end_ns=end_ns)
        return self._replace(last=sequence) if is_before(self.last, sequence) else self

    def is_in_log(self, producer: ProducerStateEntry | None) -> bool:
        """Return whether a log has all of them, or a later epoch."""
        if producer is None or producer.epoch < self.epoch:
            return False
        return producer.epoch > self.epoch or _has_reached(producer, self.last)

    def leaves_gap(self, producer: ProducerStateEntry | None, sequence: int) -> bool:
        """Return whether some of them would be missing in a log before a batch of this epoch."""
        if not is_before(self.first, sequence):
            return False
        if producer is None or producer.epoch < self.epoch:
            return True
        return not _has_reached(producer, sequence - 1 if sequence else SEQUENCE_MAX)


class RefusedBatches:
    """The refused batches of a node, by partition and producer."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._refused: OrderedDict[tuple[str | bytes, int, int], RefusedRange] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def add(
        self, topic: str | bytes, index: int, batch: memoryview | bytes, error: KafkaError
    ) -> None:
        """Note that a batch of a client was refused, if it has a sequence and may be retried.

        The topic is as in the request: the name or the id.
        """
        if not error.retriable or len(batch) < PRODUCER_POSITION + PRODUCER.size:
            return
        if len(topic) > LENGTH_MAX:
            return  # there is no such topic
        producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
        if producer_id < 0:
            return
        key = (topic, index, producer_id)
        now_ns = self._now_ns()
        self._drop_old(now_ns)
        end_ns = now_ns + KEPT_MS * 1_000_000
        known = self._refused.get(key)
        if known is not None and known.epoch == epoch:
            refused = known.with_batch(sequence, error.copy(), end_ns)
        else:
            refused = RefusedRange(epoch, sequence, sequence, error.copy(), end_ns)
        if known is None or refused.end_ns != known.end_ns:
            self._refused.pop(key, None)  # the oldest ones are first
        self._refused[key] = refused
        if len(self._refused) > KEPT_MAX:
            self._refused.popitem(last=False)

    def _drop_old(self, now_ns: int) -> None:
        """Drop what is awaited no longer; the oldest ones are first."""
        while self._refused and next(iter(self._refused.values())).end_ns < now_ns:
            self._refused.popitem(last=False)

    def check(self, partition: Partition, batch: memoryview | bytes) -> None:
        """Raise the error of the refused batches that must come before this one, if there are any.

        They need not come any more if the log has them: another leader may have taken them
        meanwhile.
        """
        if not self._refused or len(batch) < PRODUCER_POSITION + PRODUCER.size:
            return
        producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
        for topic in (partition.topic, partition.topic_id):
            key = (topic, partition.index, producer_id)
            refused = self._refused.get(key)
            if refused is None:
                continue
            producer = partition.log.producers.get(producer_id)
            if refused.is_in_log(producer):
                del self._refused[key]
            elif (
                epoch == refused.epoch
                and refused.leaves_gap(producer, sequence)
                and self._now_ns() <= refused.end_ns
            ):
                raise refused.error.copy()


def _has_reached(producer: ProducerStateEntry, sequence: int) -> bool:
    """Return whether a producer's last batch in a log ends at a sequence or later."""
    return bool(producer.batches) and not is_before(producer.batches[-1].last_sequence, sequence)
