"""Clients that write down what they do and see while the broker is killed under them.

Two idempotent producers and a plain one (acks=all, one request in flight, so that its order is
kept) send to every partition; a reader with assigned partitions follows.  The moment of a kill is
a number of acknowledgements since the last start, drawn from the seed: it falls somewhere within
the work, and a slow machine meets the same ones.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka

from kafkalite.testing import Broker
from tests.crash.history import ACKED, History, Read, Send

PARTITIONS = 3
ACKS_BEFORE_KILL = (100, 4_000)
PACE_S = 0.0002
"""Between two records of a producer, so that a history stays short."""
HEAL_S_MAX = 30
QUIET = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
}
PRODUCERS = {
    "idempotent-1": {"enable.idempotence": True, "linger.ms": 2},
    "idempotent-2": {"enable.idempotence": True, "linger.ms": 0, "compression.type": "lz4"},
    "plain": {"acks": "all", "max.in.flight": 1, "linger.ms": 1},
}


@dataclass
class Run:
    """What came of one run."""

    seed: int
    durability: str
    kills: int
    history: History
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def acked_per_second(self) -> float:
        return self.history.acked / self.seconds


class Clients:
    """The producers' and the reader's threads, from their start until all is quiet."""

    def __init__(self, broker: Broker, topic: str, seed: int, history: History) -> None:
        self.config = {"bootstrap.servers": broker.bootstrap, **QUIET}
        self.topic = topic
        self.seed = seed
        self.history = history
        self.faults: list[str] = []
        self.acks = 0
        self.producing = True
        self.reading = True
        self.producers = [
            threading.Thread(target=self.guarded, args=(self.produce, name)) for name in PRODUCERS
        ]
        self.reader = threading.Thread(target=self.guarded, args=(self.read, "reader"))
        for thread in (*self.producers, self.reader):
            thread.start()

    def guarded(self, work: Callable[[str], None], name: str) -> None:
        try:
            work(name)
        except Exception as fault:
            self.faults.append(f"{name}: {fault!r}")

    def produce(self, name: str) -> None:
        dice = random.Random(f"{self.seed} {name}")
        producer = confluent_kafka.Producer({**self.config, **PRODUCERS[name]})
        number = 0
        while self.producing:
            value = f"{name}/{number}/{'x' * dice.randrange(200)}"
            send = Send(name, dice.randrange(PARTITIONS), value)
            self.history.sends.append(send)
            producer.produce(
                self.topic,
                value=value,
                partition=send.partition,
                on_delivery=lambda fault, message, send=send: self.outcome(send, fault, message),
            )
            producer.poll(0)
            time.sleep(PACE_S)
            number += 1
        left = producer.flush(HEAL_S_MAX)
        if left:
            self.faults.append(f"{name}: {left} records had no answer {HEAL_S_MAX} s after healing")

    def outcome(self, send: Send, fault: object, message: confluent_kafka.Message) -> None:
        if fault is None:
            send.offset = message.offset()
            send.outcome = ACKED
            self.acks += 1
        else:
            self.faults.append(f"{send.producer}: {fault}")

    def read(self, name: str) -> None:
        consumer = self.consumer()
        try:
            while self.reading:
                self.history.reads[name] += self.polled(consumer)
        finally:
            consumer.close()

    def consumer(self) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer(
            {**self.config, "group.id": "none", "enable.auto.commit": False}
        )
        consumer.assign(
            [confluent_kafka.TopicPartition(self.topic, index, 0) for index in range(PARTITIONS)]
        )
        return consumer

    def polled(self, consumer: confluent_kafka.Consumer) -> list[Read]:
        messages = consumer.consume(1000, timeout=0.05)
        return [
            Read(message.partition(), message.offset(), message.value().decode())
            for message in messages
            if message.error() is None
        ]

    def end(self) -> None:
        """Stop sending, wait for every answer, and read the log once more from its beginning."""
        self.producing = False
        for thread in self.producers:
            thread.join()
        consumer = self.consumer()
        ends = {
            index: consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(self.topic, index), timeout=HEAL_S_MAX
            )[1]
            for index in range(PARTITIONS)
        }
        deadline = time.monotonic() + HEAL_S_MAX
        while len(self.history.final) < sum(ends.values()) and time.monotonic() < deadline:
            self.history.final += self.polled(consumer)
        consumer.close()
        self.reading = False
        self.reader.join()
        if len(self.history.final) != sum(ends.values()):
            self.faults.append(f"{len(self.history.final)} records were read, the ends are {ends}")


def run(seed: int, kills: int, durability: str) -> Run:
    """One broker, killed so many times under load; what its clients saw."""
    dice = random.Random(seed)
    history = History(idempotent=frozenset(name for name in PRODUCERS if name != "plain"))
    with Broker(durability=durability) as broker:
        topic = broker.topic(PARTITIONS)
        begun = time.monotonic()
        clients = Clients(broker, topic, seed, history)
        for _ in range(kills):
            await_acks(clients, dice.randint(*ACKS_BEFORE_KILL))
            broker.kill()
            broker.restart()
        await_acks(clients, ACKS_BEFORE_KILL[0])
        clients.end()
        seconds = time.monotonic() - begun
    return Run(seed, durability, kills, history, seconds, clients.faults)


def await_acks(clients: Clients, count: int) -> None:
    """Wait until so many more sends were acknowledged, or a client has failed."""
    goal = clients.acks + count
    deadline = time.monotonic() + HEAL_S_MAX
    while clients.acks < goal and not clients.faults:
        if time.monotonic() > deadline:
            clients.faults.append(f"no {count} acknowledgements within {HEAL_S_MAX} s")
        time.sleep(0.001)
