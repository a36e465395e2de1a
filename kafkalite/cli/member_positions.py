"""MemberPositions: where a group member continues, in the partitions that a rebalance leaves to it.

An incremental rebalance (cooperative-sticky, or the consumer protocol) pauses librdkafka's fetches
until the rebalance callback has run.  They continue at the position of the application, which
librdkafka advances at the end of consume().  If the pause begins when consume() has taken records
and is about to return them, the position is still before them: they are returned, and once more
after the rebalance.  The callback runs in the next consume(), when it is known what was returned,
and corrects the position with seek().  Seen with librdkafka 2.16.0: rd_kafka_q_serve_rkmessages()
and rd_kafka_toppar_pause_resume().

Partitions that move need no correction: offsets are committed before, and the next member starts at
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafkalite.cli.reading import PartitionKey


class MemberPositions:
    """The offsets after the last records that consume() returned, by assigned partition."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._next_offsets: dict[PartitionKey, int] = {}

    def advance(self, batch: Iterable[Message]) -> None:
        """Note records that are processed after another call of consume(), which may rebalance."""
        for message in batch:
            if message.error() is None:
                key = message.topic() or "", message.partition() or 0
                self._next_offsets[key] = (message.offset() or 0) + 1

    def store(self, batch: Iterable[Message]) -> None:
        """Mark records as processed, so that their offsets are committed."""
        newest = {(message.topic(), message.partition()): message for message in batch}
        for message in newest.values():
            try:
                self._consumer.store_offsets(message=message)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:  # assigned to another member now
                    raise
            else:
                self.advance([message])

    def change(self, changed: Iterable[TopicPartition]) -> None:
        """Forget the partitions of a rebalance callback, and seek in the others.

        Called in the callback: partitions that are assigned start at the committed offsets.
        """
        for each in changed:
            self._next_offsets.pop((each.topic, each.partition), None)
        for (topic, partition), offset in self._next_offsets.items():
            # A partition that cannot be fetched just now continues where librdkafka says.
            with suppress(KafkaException):
                self._consumer.seek(TopicPartition(topic, partition, offset))
