"""Clients that record what they send and receive while processes are killed under them.

Producers (acks=all) send to every partition, two of them idempotent; a reader with assigned
partitions follows from the first offset on.  One producer and the reader have confluent-kafka's
defaults, with only an address: whatever they would report to their users as an error is recorded.
The others retry sooner than by default, so that a run is short.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import confluent_kafka

from tests.faults.history import ACKED, NO_OFFSET, History, Read, Send
from tests.faults.prober import guarded

PACE_S = 0.001
"""Pause between two records of a producer, so that a history stays short."""
HEAL_S_MAX = 30
LEADER_CHANGED = (
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
    confluent_kafka.KafkaError.OFFSET_NOT_AVAILABLE,
)
CHANGED_S = 0.05
QUIET = {"log_level": 0}
SHORT_TIMEOUTS = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
}
PRODUCERS = {
    "default": {},
    "idempotent": {"enable.idempotence": True},
    "idempotent-lz4": {
        "enable.idempotence": True, "linger.ms": 0, "compression.type": "lz4", **SHORT_TIMEOUTS,
    },
    "plain": {"acks": "all", "max.in.flight": 1, "linger.ms": 1, **SHORT_TIMEOUTS},
}  # fmt: skip
IDEMPOTENT = frozenset({"idempotent", "idempotent-lz4"})
UNORDERED = frozenset({"default"})
UNORDERED_BY_MOVES = frozenset({"default", "plain"})
"""After a former leader's error librdkafka resends a batch later, and newer ones meanwhile to the
new leader: one request in flight means one per broker."""


class Clients:
    """The producers' and the reader's threads, from their start until the end of the run."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, seed: int, history: History
    ) -> None:
        self.config = {"bootstrap.servers": bootstrap, **QUIET}
        self.topic = topic
        self.partitions = partitions
        self.seed = seed
        self.history = history
        self.faults: list[str] = []
        self.acks = 0
        self.producing = True
        self.reading = True
        self.producers = [self.thread(partial(self.produce, name)) for name in PRODUCERS]
        self.reader = self.thread(self.read)

    def thread(self, work: Callable[[], None]) -> threading.Thread:
        begun = threading.Thread(target=guarded, args=(work, self.faults))
        begun.start()
        return begun

    # Sending.

    def produce(self, name: str) -> None:
        dice = random.Random(f"{self.seed} {name}")
        told = partial(self.fault_told, name)
        producer = confluent_kafka.Producer({**self.config, **PRODUCERS[name], "error_cb": told})
        number = 0
        while self.producing:
            value = f"{name}/{number}/{'x' * dice.randrange(200)}"
            send = Send(name, dice.randrange(self.partitions), value)
            self.history.sends.append(send)
            producer.produce(
                self.topic,
                value=value,
                partition=send.partition,
                on_delivery=partial(self.outcome, send),
            )
            producer.poll(0)
            time.sleep(PACE_S)
            number += 1
        left = producer.flush(HEAL_S_MAX)
        if left:
            self.faults.append(
                f"I14: {left} records of {name} had no answer {HEAL_S_MAX} s after healing"
            )

    def outcome(
        self, send: Send, fault: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if fault is None:
            offset = message.offset()
            send.offset = NO_OFFSET if offset is None else offset
            send.outcome = ACKED
            self.acks += 1
        else:
            self.history.errors.append(f"{send.producer} was told of {send.value[:40]}: {fault}")

    def fault_told(self, name: str, fault: confluent_kafka.KafkaError) -> None:
        """Record an error; a lost connection is none, because the client finds another."""
        if fault.fatal() or fault.code() >= 0:
            self.history.errors.append(f"{name} was told: {fault}")

    # Reading.

    def read(self) -> None:
        consumer = self.consumer("reader", {})
        try:
            while self.reading:
                self.history.reads["reader"] += self.polled("reader", consumer)
        finally:
            consumer.close()

    def consumer(self, name: str, config: dict[str, object]) -> confluent_kafka.Consumer:
        told = partial(self.fault_told, name)
        consumer = confluent_kafka.Consumer(
            {**self.config, **config, "group.id": "none", "enable.auto.commit": False,
             "error_cb": told}
        )  # fmt: skip
        consumer.assign([
            confluent_kafka.TopicPartition(self.topic, index, 0)
            for index in range(self.partitions)
        ])  # fmt: skip
        return consumer

    def polled(self, name: str, consumer: confluent_kafka.Consumer) -> list[Read]:
        found = []
        for message in consumer.consume(1000, timeout=0.05):
            if message.error() is not None:
                self.history.errors.append(f"{name} was given an error: {message.error()}")
                continue
            epoch = message.leader_epoch()
            found.append(
                Read(
                    message.partition(),
                    message.offset(),
                    message.value().decode(),
                    -1 if epoch is None else epoch,
                )
            )
        return found

    # Shutdown.

    def end(self) -> None:
        """Stop sending, wait for all acknowledgements, and read the log from its beginning."""
        self.producing = False
        for thread in self.producers:
            thread.join()
        consumer = self.consumer("the final reader", SHORT_TIMEOUTS)
        try:
            self.read_to_the_end(consumer)
        finally:
            consumer.close()
            self.reading = False
            self.reader.join()

    def end_of(self, index: int, consumer: confluent_kafka.Consumer, deadline: float) -> int:
        """Return the end of a partition; ask again if its leader has just changed, since librdkafka
        does not do that here."""
        partition = confluent_kafka.TopicPartition(self.topic, index)
        while True:
            try:
                return int(consumer.get_watermark_offsets(partition, timeout=HEAL_S_MAX)[1])
            except confluent_kafka.KafkaException as fault:
                if fault.args[0].code() not in LEADER_CHANGED or time.monotonic() > deadline:
                    raise
                time.sleep(CHANGED_S)

    def read_to_the_end(self, consumer: confluent_kafka.Consumer) -> None:
        """Wait until both readers, the new one and the one that followed, are at the end."""
        deadline = time.monotonic() + HEAL_S_MAX
        ends = {index: self.end_of(index, consumer, deadline) for index in range(self.partitions)}
        final, live = self.history.final, self.history.reads["reader"]
        while len(final) < sum(ends.values()) and time.monotonic() < deadline:
            final += self.polled("the final reader", consumer)
        while len(live) < len(final) and time.monotonic() < deadline:
            time.sleep(0.001)
        for name, reads in (("the final reader", final), ("the reader", live)):
            if len(reads) != sum(ends.values()):
                self.faults.append(
                    f"I14: {name} was given {len(reads)} records, the ends are {ends}"
                )

    def await_acks(self, count: int) -> bool:
        """Wait for `count` more acknowledgements; return False if they do not come."""
        goal = self.acks + count
        deadline = time.monotonic() + HEAL_S_MAX
        while self.acks < goal and not self.faults:
            if time.monotonic() > deadline:
                self.faults.append(f"I14: no {count} acknowledgements within {HEAL_S_MAX} s")
            time.sleep(0.001)
        return not self.faults
