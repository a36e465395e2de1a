"""Reading of partitions in batches, with librdkafka.

`assigned` assigns partitions to a consumer without a group; group members are in membership.py.
`batches` reads the assigned partitions of either.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from kafkalite.cli import start_position
from kafkalite.cli.clients import ClusterClients, StallWarning
from kafkalite.cli.command import warn
from kafkalite.errors import Refusal

BATCH_COUNT_MAX = 5_000
POLL_S = 0.2
NO_RECORDS = "received no records"

PartitionKey = tuple[str, int]
"""A topic and one of its partitions."""


def assigned(
    cluster: ClusterClients,
    consumer: Consumer,
    topic: str,
    requested: Sequence[int] | None,
    where: start_position.StartPosition,
) -> set[PartitionKey]:
    """Assign the wanted partitions at their start offsets, and return them."""
    partitions = sorted(cluster.topic(consumer, topic).partitions)
    for partition in requested or ():
        if partition not in partitions:
            raise Refusal(
                f"topic {topic!r} has no partition {partition}; it has {len(partitions)} partitions"
            )
    now_ms = time.time_ns() // 1_000_000
    chosen = sorted(set(requested)) if requested else partitions
    positions = start_position.resolved(consumer, topic, chosen, where, now_ms)
    consumer.assign(positions)
    return {(topic, partition) for partition in chosen}


def batches(
    consumer: Consumer,
    unfinished: set[PartitionKey],
    stall_warning: StallWarning,
    to_end: bool,
    count: int | None,
    check_signal: Callable[[], object] = lambda: None,
) -> Iterator[list[Message]]:
    """Yield records in batches, until the count or the end of all partitions is reached.

    A partition is removed from `unfinished` at its end.  `check_signal` is called between batches
    and may raise.  Each batch is processed before librdkafka is called again, which is when a
    rebalance may revoke partitions.
    """
    left = sys.maxsize if count is None else count
    while left and (unfinished or not to_end):
        check_signal()
        try:
            # Take the records that are queued; if there are none, wait for the next.
            batch = consumer.consume(min(BATCH_COUNT_MAX, left), 0) or consumer.consume(1, POLL_S)
        except SystemError:
            # confluent-kafka discards a KeyboardInterrupt that is raised in error_cb.
            raise KeyboardInterrupt from None
        if unfinished:
            stall_warning.check((left, len(unfinished)))
        records = [message for message in batch if message.error() is None]
        if len(records) < len(batch):
            for message in batch:
                handle_error(message, unfinished)
        if records:
            left -= len(records)
            yield records


def handle_error(message: Message, unfinished: set[PartitionKey]) -> None:
    """Note the end of a partition; raise Refusal for any other error."""
    error = message.error()
    if error is None:
        return
    topic, partition = message.topic() or "", message.partition() or 0
    if error.code() == KafkaError._PARTITION_EOF:
        unfinished.discard((topic, partition))
    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise Refusal(
            f"offset {message.offset()} of {topic} [{partition}] is out of range"
            f" (see: kafkalite topic describe {topic})"
        )
    elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
        warn(
            "max.poll.interval.ms exceeded: the output was blocked for too long; the member rejoins"
            " the group"
        )
    else:
        raise KafkaException(error)
