"""Brokers whose processes are killed under exactly-once clients: kafkalite, or Apache Kafka."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
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

    def strike_all(self, dice: random.Random) -> str:
        """Kill every process, and start them; return what they were."""


class Ours:
    """kafkalite; its launcher restarts a killed node, except where one process is the broker."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self.processes = Processes(broker)

    def strike(self, dice: random.Random) -> str:
        nodes = [] if self.processes.alone else [SUPERVISOR, *self.processes.workers]
        node = dice.choice([*nodes, -1])
        if node >= 0:
            self.processes.kill(node)
            return "the supervisor" if node == SUPERVISOR else "a worker"
        return self.strike_all(dice)

    def strike_all(self, dice: random.Random) -> str:
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

    strike_all = strike


@contextmanager
def victims(
    against: str, durability: str, config: Mapping[str, str] | None = None, *, workers: int = 2
) -> Iterator[Victim]:
    """Start kafkalite, or Apache Kafka."""
    if against == "apache":
        with tempfile.TemporaryDirectory() as scratch, ApacheKafka(Path(scratch), config) as kafka:
            yield Apache(kafka)
        return
    with Broker(
        workers=workers, durability=durability, listen=free_address(), config=config
    ) as broker:
        yield Ours(broker)
