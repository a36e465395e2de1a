"""Load of `kafkalite bench`: produce, fetch, and round trips of single records.

    with topic_for(cluster, partitions) as topic:
        produced(cluster, topic, load, pids, look)
        fetched(cluster, topic, load, pids, least, look)
        trips(cluster, topic, load, look)

Each phase ends when its records are complete, when its time limit is reached, or where
`check_signal` raises.  The values are text, so that compression is realistic; they are generated
before the measurement starts.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice, repeat
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.cli.clients import (
    REQUEST_TIMEOUT_S,
    ClusterClients,
    clean_error,
    kafka_errors_as_refusals,
    settled,
)
from kafkalite.cli.command import warn
from kafkalite.cli.cpu_meter import CpuMeter, CpuShares
from kafkalite.cli.progress import Progress
from kafkalite.cli.reading import BATCH_COUNT_MAX, POLL_S
from kafkalite.cli.topic import raise_errors
from kafkalite.errors import Refusal

SignalCheck = Callable[[], None]

CHUNK_COUNT = 1_000
IN_FLIGHT_COUNT_MAX = 100_000
IN_FLIGHT_SIZE_MAX = 64 << 20
TEXT_SIZE = 1 << 20
WORDS_COUNT = 4_096
WARM_UP_TRIPS = 20
QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 2_097_151}
"""Larger than the records in flight and one chunk together."""
NO_DELAY = {"socket.nagle.disable": True}


class BenchLoad(NamedTuple):
    """Size, number and settings of the records to send."""

    records: int
    size: int
    trips: int
    seconds: float
    """Time limit of each phase."""
    acks: str
    compression: str

    def settings(self) -> dict[str, Any]:
        """Return the producer settings of this load."""
        return {
            "acks": self.acks,
            "enable.idempotence": self.acks == "all",
            "compression.type": self.compression,
        }


class BenchPhase(NamedTuple):
    """Records and seconds of a phase, and its CPU shares."""

    records: int
    target: int
    seconds: float
    shares: CpuShares


@contextmanager
def topic_for(cluster: ClusterClients, partitions: int) -> Iterator[str]:
    """Create a topic for the block, and delete it afterwards."""
    admin = cluster.connected_admin()
    topic = f"kafkalite-bench-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with kafka_errors_as_refusals():
            _, errors = settled(admin.create_topics([NewTopic(topic, partitions, -1)]))
        raise_errors(errors)
        yield topic
    finally:
        removed(admin, topic)


def removed(admin: AdminClient, topic: str) -> None:
    """Delete the topic; warn if that fails, since it may be large."""
    try:
        futures = admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
        _, errors = settled(futures)
        reasons = [
            clean_error(error.str())
            for error in errors.values()
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART
        ]
    except KafkaException as error:
        reasons = [clean_error(error.args[0].str())]
    except KeyboardInterrupt:
        reasons = ["interrupted"]
    if reasons:
        warn(
            f"topic {topic} was not deleted: {reasons[0]} (delete it with: kafkalite topic delete"
            f" {topic})"
        )


class DeliveryErrors:
    """Collects the errors of records that were not delivered."""

    def __init__(self) -> None:
        self.first: KafkaError | None = None
        self.count = 0

    def on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.first = self.first or error
            self.count += 1

    def check(self) -> None:
        """Raise Refusal if a record was not delivered."""
        if self.first is not None:
            raise Refusal(
                f"{self.count:,} of the records were not delivered: {clean_error(self.first.str())}"
            )


def payloads(size: int) -> list[bytes]:
    """Return different values of this size, up to a megabyte of text."""
    rng = random.Random(0)
    letters = "etaoinshrdlucm"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(WORDS_COUNT)]
    text = " ".join(rng.choices(words, k=TEXT_SIZE // 6)).encode()
    text *= size // len(text) + 1
    return [text[at : at + size] for at in range(0, len(text) - size + 1, size)]


def produced(
    cluster: ClusterClients,
    topic: str,
    load: BenchLoad,
    pids: Sequence[int],
    check_signal: SignalCheck,
) -> BenchPhase:
    """Send records as fast as possible, until all are acknowledged or the time limit is reached."""
    errors = DeliveryErrors()
    producer = cluster.producer({**QUEUE, **load.settings(), "on_delivery": errors.on_delivery})
    cluster.topic(producer, topic)
    values = cycle(payloads(load.size))
    in_flight_max = max(1, min(IN_FLIGHT_COUNT_MAX, IN_FLIGHT_SIZE_MAX // load.size))
    chunk_max = min(CHUNK_COUNT, in_flight_max)
    sent = acknowledged = 0
    meter = CpuMeter(pids)
    began_s = time.monotonic()
    ends_s = began_s + load.seconds
    try:
        with Progress("producing", total_count=load.records) as progress:
            while (sent < load.records or len(producer)) and time.monotonic() < ends_s:
                if sent < load.records and len(producer) < in_flight_max:
                    count = min(chunk_max, load.records - sent)
                    # A deque of length 0 runs the map without Python bytecode per record.
                    deque(map(producer.produce, repeat(topic), islice(values, count)), 0)
                    sent += count
                    producer.poll(0)
                else:
                    producer.flush(0.001) if sent == load.records else producer.poll(0.001)
                errors.check()
                check_signal()
                done = max(acknowledged, sent - len(producer))
                progress.add(done - acknowledged, (done - acknowledged) * load.size)
                acknowledged = done
            elapsed_s = time.monotonic() - began_s
            shares = meter.shares()
    except BufferError:
        raise Refusal(
            "the producer's queue is full: raise queue.buffering.max.messages (-X)"
        ) from None
    finally:
        producer.purge()
        producer.flush(POLL_S)
    if not acknowledged:
        raise Refusal(
            f"no record was acknowledged within {load.seconds:g} s; raise --seconds, or check the"
            " broker's log"
        )
    return BenchPhase(acknowledged, load.records, elapsed_s, shares)


def fetched(
    cluster: ClusterClients,
    topic: str,
    load: BenchLoad,
    pids: Sequence[int],
    least: int,
    check_signal: SignalCheck,
) -> BenchPhase:
    """Read all records; raise Refusal if there are fewer than `least`, the acknowledged ones."""
    consumer = cluster.consumer({"enable.partition.eof": False})
    try:
        partitions = sorted(cluster.topic(consumer, topic).partitions)
        topic_partitions = [TopicPartition(topic, partition, 0) for partition in partitions]
        total = readable(consumer, topic_partitions, least, check_signal)
        meter = CpuMeter(pids)
        began_s = time.monotonic()
        ends_s = began_s + load.seconds
        consumer.assign(topic_partitions)
        with Progress("fetching", total_count=total) as progress:
            while progress.count < total and time.monotonic() < ends_s:
                check_signal()
                batch = consumer.consume(BATCH_COUNT_MAX, 0) or consumer.consume(1, POLL_S)
                for error in filter(None, map(Message.error, batch)):
                    raise KafkaException(error)
                progress.add(len(batch), len(batch) * load.size)
            elapsed_s = time.monotonic() - began_s
            shares = meter.shares()
    finally:
        consumer.close()
    if not progress.count:
        raise Refusal(
            f"no record was fetched within {load.seconds:g} s; raise --seconds, or check the"
            " broker's log"
        )
    return BenchPhase(progress.count, total, elapsed_s, shares)


def readable(
    consumer: Consumer,
    topic_partitions: Sequence[TopicPartition],
    least: int,
    check_signal: SignalCheck,
) -> int:
    """Return the number of readable records, once it is at least `least`."""
    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        check_signal()
        ends = [
            consumer.get_watermark_offsets(each, timeout=REQUEST_TIMEOUT_S)
            for each in topic_partitions
        ]
        total = sum(end for _, end in ends)
        if total >= least:
            return total
        if time.monotonic() > deadline_s:
            raise Refusal(
                f"topic {topic_partitions[0].topic} has only {total:,} of the {least:,}"
                " acknowledged records; check the broker's log"
            )
        time.sleep(POLL_S)


def trips(
    cluster: ClusterClients, topic: str, load: BenchLoad, check_signal: SignalCheck
) -> list[float]:
    """Return the seconds of each round trip, from produce() to the poll() with the record."""
    errors = DeliveryErrors()
    settings = {**load.settings(), **NO_DELAY, "linger.ms": 0, "on_delivery": errors.on_delivery}
    producer = cluster.producer(settings)
    consumer = cluster.consumer({**NO_DELAY, "enable.partition.eof": False})
    value = payloads(load.size)[0]
    elapsed_s = []
    ends_s = time.monotonic() + load.seconds
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=REQUEST_TIMEOUT_S)
        consumer.assign([TopicPartition(topic, 0, end)])
        with Progress("round trips", total_count=load.trips) as progress:
            for number in range(WARM_UP_TRIPS + load.trips):
                began_s = time.monotonic()
                record = b"%d" % number, value
                if not trip(producer, consumer, topic, record, errors, check_signal, ends_s):
                    break
                if number >= WARM_UP_TRIPS:
                    elapsed_s.append(time.monotonic() - began_s)
                    progress.add(1, load.size)
    finally:
        producer.purge()
        producer.flush(POLL_S)
        consumer.close()
    return elapsed_s


def trip(
    producer: Producer,
    consumer: Consumer,
    topic: str,
    record: tuple[bytes, bytes],
    errors: DeliveryErrors,
    check_signal: SignalCheck,
    ends_s: float,
) -> bool:
    """Send a record and wait until it is read; return False at the time limit."""
    producer.produce(topic, record[1], record[0], 0)
    while time.monotonic() < ends_s:
        producer.poll(0)
        message = consumer.poll(POLL_S)
        errors.check()
        check_signal()
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            if message.key() == record[0]:
                return True
    return False
