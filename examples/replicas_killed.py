"""Kill any two of three workers with SIGKILL, and read all acknowledged records back.

    python examples/replicas_killed.py

It starts a broker of its own with three worker processes, and a topic whose partitions have a
replica at each worker.  A producer writes with acks=all, so a record is acknowledged once it is at
all workers that are in sync, two of them at least.  Two workers are killed while it writes.  What
was acknowledged before is read afterwards, each record once.

That guards against the end of processes.  The replicas are on one disk: its loss is another matter.
"""

import itertools
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import Any

from kafkalite import Consumer, Producer
from kafkalite.testing import Broker

WORKERS = (1, 2, 3)
PARTITION_COUNT = 6
RECORDS_BEFORE = 2000
RECORDS_AFTER = 2000
PAUSE_S = 0.0002


class Writer:
    """A thread that writes until it is stopped, and knows what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.failures = 0
        self.running = True
        self.thread = threading.Thread(target=self.write, args=(bootstrap, topic))
        self.thread.start()

    def write(self, bootstrap: str, topic: str) -> None:
        with Producer(bootstrap, linger_ms=5) as producer:  # acks=all, idempotent
            for number in itertools.count():
                if not self.running:
                    break
                value = b"record %d" % number
                delivery = producer.send(topic, value, partition=number % PARTITION_COUNT)
                delivery.add_done_callback(partial(self.note, value))
                time.sleep(PAUSE_S)

    def note(self, value: bytes, future: Future[Any]) -> None:
        if future.exception() is None:
            self.acknowledged.add(value)
        else:
            self.failures += 1

    def wait_for(self, count: int) -> None:
        """Wait for this many more acknowledgements."""
        goal = len(self.acknowledged) + count
        while len(self.acknowledged) < goal:
            time.sleep(0.001)

    def stop(self) -> None:
        self.running = False
        self.thread.join()


def read(bootstrap: str, topic: str) -> Counter[bytes | None]:
    """Return how often each value is in the topic."""
    values: Counter[bytes | None] = Counter()
    with Consumer(bootstrap, topics=topic) as consumer:
        while consumer.lag():
            values.update(message.value for message in consumer.consume(5000, timeout=1))
    return values


def main() -> bool:
    kept = True
    with Broker(workers=len(WORKERS)) as broker:
        bootstrap = ",".join(f"{node['host']}:{node['port']}" for node in broker.nodes)
        for pair in itertools.combinations(WORKERS, 2):
            topic = broker.topic(
                PARTITION_COUNT, {"min.insync.replicas": 2}, replication_factor=len(WORKERS)
            )
            writer = Writer(bootstrap, topic)
            writer.wait_for(RECORDS_BEFORE)
            began = time.monotonic()
            for worker in pair:
                broker.kill(worker)
            writer.wait_for(RECORDS_AFTER)
            seconds = time.monotonic() - began
            writer.stop()
            found = read(bootstrap, topic)
            lost = writer.acknowledged - found.keys()
            twice = [value for value, count in found.items() if count > 1]
            print(
                f"killed workers {pair[0]} and {pair[1]}: {len(lost)} of"
                f" {len(writer.acknowledged)} acknowledged records lost,"
                f" {f'{len(twice)} twice' if twice else 'none twice'};"
                f" {RECORDS_AFTER} more acknowledged after {seconds:.1f} s"
            )
            kept = kept and not lost and not twice and not writer.failures
    print("all acknowledged records are read:", kept)
    return kept


if __name__ == "__main__":
    sys.exit(not main())
