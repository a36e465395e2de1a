"""What the consumers' tests share: records written by confluent-kafka, and waiting for them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import confluent_kafka.admin

PATIENCE_S = 60.0
LANE = {"auto": "direct", "off": "tcp"}


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    partition: int = 0,
    **config: Any,
) -> None:
    """Write these values, in this order and in as few batches as they fit in, and wait until they
    are there."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    settings.setdefault("linger.ms", 60_000)  # the flush does not wait for it
    faults: list[Any] = []

    def delivered(fault: Any, _: Any) -> None:
        if fault is not None:
            faults.append(fault)

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    for value in values:
        producer.produce(topic, value=value, partition=partition, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not faults


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def take(consumer: Any, count: int) -> list[Any]:
    """So many messages, waiting for each."""
    messages = []
    while len(messages) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(messages)} of {count} came"
        messages.append(message)
    return messages


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """What the condition answers once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)
    return answer


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run it in a thread; what it gives or raises is put into the list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as fault:
            outcome.append(fault)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def no_more_than(before: set[str]) -> None:
    """Wait until no descriptor is open but these; clients of librdkafka close theirs in threads."""
    until(lambda: descriptors() <= before, "the closing of descriptors")


def delete(bootstrap: str, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic], operation_timeout=PATIENCE_S)[topic].result(PATIENCE_S)
