"""Lose any two of three log directories, and read all acknowledged records back.

    python examples/directories_lost.py

It starts a broker of its own with three log directories, as if each was a disk, and three workers,
each of which keeps its logs in one of them.  A topic has a replica of each partition at each worker
and so in each directory.  While a producer writes with acks=all, the whole broker is killed with
SIGKILL, and two directories are removed, the data directory with the cluster's metadata among them
or not.  The broker then starts without them.  What was acknowledged is read, each record once, and
more is written.
"""

import itertools
import shutil
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from kafkalite import Consumer, Producer
from kafkalite.testing import Broker

DIRECTORY_COUNT = 3
PARTITION_COUNT = 6
RECORD_COUNT = 3000


class Acknowledgements:
    """The values of the records that were acknowledged."""

    def __init__(self) -> None:
        self.values: set[bytes] = set()
        self.changed = threading.Condition()

    def note(self, value: bytes, future: Future[Any]) -> None:
        if future.exception() is None:
            with self.changed:
                self.values.add(value)
                self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.values) >= count)


def write(producer: Producer, topic: str, acknowledged: Acknowledgements, first: int) -> None:
    """Send records to all partitions, without waiting for them."""
    for number in range(first, first + RECORD_COUNT):
        value = b"record %d" % number
        delivery = producer.send(topic, value, partition=number % PARTITION_COUNT)
        delivery.add_done_callback(partial(acknowledged.note, value))


def read(bootstrap: str, topic: str) -> Counter[bytes | None]:
    """Return how often each value is in the topic."""
    values: Counter[bytes | None] = Counter()
    with Consumer(bootstrap, topics=topic) as consumer:
        while consumer.lag():
            values.update(message.value for message in consumer.consume(5000, timeout=1))
    return values


def survives(lost: tuple[int, ...]) -> bool:
    """Lose these directories; return whether all acknowledged records are still there."""
    acknowledged = Acknowledgements()
    with Broker(workers=DIRECTORY_COUNT, log_dirs=DIRECTORY_COUNT, durability="fsync") as broker:
        topic = broker.topic(
            PARTITION_COUNT, {"min.insync.replicas": 2}, replication_factor=DIRECTORY_COUNT
        )
        with Producer(broker.bootstrap, linger_ms=5) as producer:  # acks=all, idempotent
            write(producer, topic, acknowledged, 0)
            acknowledged.wait_for(RECORD_COUNT // 2)
            broker.kill()
            gone: list[Path] = [broker.log_dirs[number] for number in lost]
            for directory in gone:
                shutil.rmtree(directory)
            broker.start(without_dirs=gone)
            # What was on its way when the broker ended is sent again.
            producer.flush()
            write(producer, topic, acknowledged, RECORD_COUNT)
            producer.flush()
        found = read(broker.bootstrap, topic)
    missing = acknowledged.values - found.keys()
    twice = [value for value, count in found.items() if count > 1]
    names = " and ".join(str(number + 1) for number in lost)
    print(
        f"lost directories {names}: {len(missing)} of {len(acknowledged.values)} acknowledged"
        f" records lost, {f'{len(twice)} twice' if twice else 'none twice'}"
    )
    return not missing and not twice and len(acknowledged.values) == 2 * RECORD_COUNT


def main() -> bool:
    kept = [survives(lost) for lost in itertools.combinations(range(DIRECTORY_COUNT), 2)]
    print("all acknowledged records are read:", all(kept))
    return all(kept)


if __name__ == "__main__":
    sys.exit(not main())
