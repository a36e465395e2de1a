"""Brokers whose processes are killed under exactly-once clients: kafkalite, or Apache Kafka."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from kafkalite.testing import Broker
from tests.faults.processes import SUPERVISOR, Processes, free_address
from tools.apache_kafka import ApacheKafka


class Victim(Protocol):
    """A broker of which something can be killed."""

    bootstrap: str

    def strike(self, dice: random.Random) -> str:
        """Kill a process, and start it if nobody else does; return what it was."""


class Ours:
    """kafkalite with workers; its launcher restarts a killed node."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self.processes = Processes(broker)

    def strike(self, dice: random.Random) -> str:
        node = dice.choice([SUPERVISOR, *self.processes.workers, -1])
        if node >= 0:
            self.processes.kill(node)
            return "the supervisor" if node == SUPERVISOR else "a worker"
        self.processes.kill_all(dice)
        self.processes.start()
        return "all processes"


class Apache:
    """Apache Kafka; its one process is started again on the same port."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        self.bootstrap = kafka.bootstrap

    def strike(self, _: random.Random) -> str:
        self.kafka.kill()
        self.kafka.restart()
        return "the broker"


@contextmanager
def victims(against: str, durability: str) -> Iterator[Victim]:
    """Start kafkalite with two workers, or Apache Kafka."""
    if against == "apache":
        with tempfile.TemporaryDirectory() as scratch, ApacheKafka(Path(scratch)) as kafka:
            yield Apache(kafka)
        return
    with Broker(workers=2, durability=durability, listen=free_address()) as broker:
        yield Ours(broker)
