"""Load of `kafkalite bench`: produce, fetch, and round trips of single records.

    with topic_for(cluster, partitions) as topic:
        produced(cluster, topic, load, pids, look)
        fetched(cluster, topic, load, pids, least, look)
        trips(cluster, topic, load, look)

Each of them ends when its records are through or its time is over, or where `look` raises.  The
records are words, so that compression has something to do; they are made before the clock runs.
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

from kafkalite.cli.bench_busy import CpuMeter, CpuShares
from kafkalite.cli.clients import ANSWER_TIMEOUT_S, ClusterClients, plain, sentences
from kafkalite.cli.command import warn
from kafkalite.cli.progress import Progress
from kafkalite.cli.reading import BATCH_COUNT_MAX, POLL_S
from kafkalite.cli.topic import refuse, settled
from kafkalite.errors import Refusal

Look = Callable[[], None]

CHUNK_COUNT = 1_000
WAITING_COUNT_MAX = 100_000
WAITING_SIZE_MAX = 64 << 20
TEXT_SIZE = 1 << 20
WORDS_COUNT = 4_096
WARM_UP_TRIPS = 20
QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 2_097_151}
"""Whatever one chunk hands in fits above what may wait."""
NO_DELAY = {"socket.nagle.disable": True}


class BenchLoad(NamedTuple):
    """Size, number and settings of the records to send."""

    records: int
    size: int
    trips: int
    seconds: float
    """How long each part of it may take."""
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
    wanted: int
    seconds: float
    shares: CpuShares


@contextmanager
def topic_for(cluster: ClusterClients, partitions: int) -> Iterator[str]:
    """Create a topic for the block, and delete it afterwards."""
    admin = cluster.reached()
    topic = f"kafkalite-bench-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with sentences():
            _, errors = settled(admin.create_topics([NewTopic(topic, partitions, -1)]))
        refuse(errors)
        yield topic
    finally:
        removed(admin, topic)


def removed(admin: AdminClient, topic: str) -> None:
    """Delete the topic; warn if that fails, since it may be large."""
    try:
        futures = admin.delete_topics([topic], request_timeout=ANSWER_TIMEOUT_S)
        _, errors = settled(futures)
        why = [
            plain(error.str())
            for error in errors.values()
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART
        ]
    except KafkaException as error:
        why = [plain(error.args[0].str())]
    except KeyboardInterrupt:
        why = ["interrupted"]
    if why:
        warn(f"topic {topic} is left: {why[0]} (kafkalite topic delete {topic} removes it)")


class DeliveryErrors:
    """Collects the errors of records that were not delivered."""

    def __init__(self) -> None:
        self.first: KafkaError | None = None
        self.count = 0

    def hear(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.first = self.first or error
            self.count += 1

    def look(self) -> None:
        """Raise Refusal if a record was not delivered."""
        if self.first is not None:
            raise Refusal(
                f"the broker did not take {self.count:,} of the records: {plain(self.first.str())}"
            )


def payloads(size: int) -> list[bytes]:
    """Return different values of this size, up to a megabyte of text."""
    dice = random.Random(0)
    letters = "etaoinshrdlucm"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in range(WORDS_COUNT)]
    text = " ".join(dice.choices(words, k=TEXT_SIZE // 6)).encode()
    text *= size // len(text) + 1
    return [text[at : at + size] for at in range(0, len(text) - size + 1, size)]


def produced(
    cluster: ClusterClients, topic: str, load: BenchLoad, pids: Sequence[int], look: Look
) -> BenchPhase:
    """Send records as fast as possible, until all are acknowledged or the time is over."""
    errors = DeliveryErrors()
    producer = cluster.producer({**QUEUE, **load.settings(), "on_delivery": errors.hear})
    cluster.topic(producer, topic)
    values = cycle(payloads(load.size))
    waiting_max = max(1, min(WAITING_COUNT_MAX, WAITING_SIZE_MAX // load.size))
    chunk_max = min(CHUNK_COUNT, waiting_max)
    sent = told = 0
    busy = CpuMeter(pids)
    began_s = time.monotonic()
    ends_s = began_s + load.seconds
    try:
        with Progress("producing", total_count=load.records) as progress:
            while (sent < load.records or len(producer)) and time.monotonic() < ends_s:
                if sent < load.records and len(producer) < waiting_max:
                    count = min(chunk_max, load.records - sent)
                    # The deque of no length drives the map from C.
                    deque(map(producer.produce, repeat(topic), islice(values, count)), 0)
                    sent += count
                    producer.poll(0)
                else:
                    producer.flush(0.001) if sent == load.records else producer.poll(0.001)
                errors.look()
                look()
                done = max(told, sent - len(producer))
                progress.add(done - told, (done - told) * load.size)
                told = done
            took_s = time.monotonic() - began_s
            shares = busy.shares()
    except BufferError:
        raise Refusal("the queue that -X allows the producer is too small for this") from None
    finally:
        producer.purge()
        producer.flush(POLL_S)
    if not told:
        raise Refusal(f"no record was acknowledged within {load.seconds:g} s")
    return BenchPhase(told, load.records, took_s, shares)


def fetched(
    cluster: ClusterClients,
    topic: str,
    load: BenchLoad,
    pids: Sequence[int],
    least: int,
    look: Look,
) -> BenchPhase:
    """Read all records; raise Refusal if there are fewer than `least`, the acknowledged ones."""
    consumer = cluster.consumer({"enable.partition.eof": False})
    try:
        partitions = sorted(cluster.topic(consumer, topic).partitions)
        places = [TopicPartition(topic, partition, 0) for partition in partitions]
        total = readable(consumer, places, least, look)
        busy = CpuMeter(pids)
        began_s = time.monotonic()
        ends_s = began_s + load.seconds
        consumer.assign(places)
        with Progress("fetching", total_count=total) as progress:
            while progress.count < total and time.monotonic() < ends_s:
                look()
                batch = consumer.consume(BATCH_COUNT_MAX, 0) or consumer.consume(1, POLL_S)
                for error in filter(None, map(Message.error, batch)):
                    raise KafkaException(error)
                progress.add(len(batch), len(batch) * load.size)
            took_s = time.monotonic() - began_s
            shares = busy.shares()
    finally:
        consumer.close()
    if not progress.count:
        raise Refusal(f"no record came back within {load.seconds:g} s")
    return BenchPhase(progress.count, total, took_s, shares)


def readable(consumer: Consumer, places: Sequence[TopicPartition], least: int, look: Look) -> int:
    """Return the number of readable records, once it is at least `least`."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        look()
        ends = [consumer.get_watermark_offsets(each, timeout=ANSWER_TIMEOUT_S) for each in places]
        total = sum(end for _, end in ends)
        if total >= least:
            return total
        if time.monotonic() > deadline_s:
            raise Refusal(f"{least:,} records were acknowledged, and only {total:,} are there")
        time.sleep(POLL_S)


def trips(cluster: ClusterClients, topic: str, load: BenchLoad, look: Look) -> list[float]:
    """Return the seconds of each round trip, from produce() to the poll() with the record."""
    errors = DeliveryErrors()
    settings = {**load.settings(), **NO_DELAY, "linger.ms": 0, "on_delivery": errors.hear}
    producer = cluster.producer(settings)
    consumer = cluster.consumer({**NO_DELAY, "enable.partition.eof": False})
    value = payloads(load.size)[0]
    took_s = []
    ends_s = time.monotonic() + load.seconds
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=ANSWER_TIMEOUT_S)
        consumer.assign([TopicPartition(topic, 0, end)])
        with Progress("there and back", total_count=load.trips) as progress:
            for number in range(WARM_UP_TRIPS + load.trips):
                began_s = time.monotonic()
                record = b"%d" % number, value
                if not trip(producer, consumer, topic, record, errors, look, ends_s):
                    break
                if number >= WARM_UP_TRIPS:
                    took_s.append(time.monotonic() - began_s)
                    progress.add(1, load.size)
    finally:
        producer.purge()
        producer.flush(POLL_S)
        consumer.close()
    return took_s


def trip(
    producer: Producer,
    consumer: Consumer,
    topic: str,
    record: tuple[bytes, bytes],
    errors: DeliveryErrors,
    look: Look,
    ends_s: float,
) -> bool:
    """Send a record and wait until it is read; return False when the time is over."""
    producer.produce(topic, record[1], record[0], 0)
    while time.monotonic() < ends_s:
        producer.poll(0)
        message = consumer.poll(POLL_S)
        errors.look()
        look()
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            if message.key() == record[0]:
                return True
    return False
