"""Shared code of the consumer tests: records written by confluent-kafka, and waiting for them."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import confluent_kafka.admin

TIMEOUT_S = 60.0
TRANSPORT = {"auto": "direct", "off": "tcp"}


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    partition: int = 0,
    **config: Any,
) -> None:
    """Write these values in order, in as few batches as possible, and wait for their delivery."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    settings.setdefault("linger.ms", 60_000)  # the flush does not wait for it
    faults: list[Any] = []

    def delivered(fault: Any, _: Any) -> None:
        if fault is not None:
            faults.append(fault)

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    # Otherwise the flush may send a first record while the others still have no partition.
    producer.list_topics(topic, TIMEOUT_S)
    for value in values:
        producer.produce(topic, value=value, partition=partition, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert not faults


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def take(consumer: Any, count: int) -> list[Any]:
    """Return the next `count` messages, waiting for each."""
    messages = []
    while len(messages) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(messages)} of {count} came"
        messages.append(message)
    return messages


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Wait until the condition is true and return its value."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)
    return answer


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a function in a thread; its result or exception is put into the list."""
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
    # The listing's own descriptor is among the names, and closed when they are checked.
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}


def no_more_than(before: set[str]) -> None:
    """Wait until no descriptor is open but these; clients of librdkafka close theirs in threads."""
    try:
        until(lambda: descriptors() <= before)
    except AssertionError:
        gc.collect()  # descriptors held by reference cycles of exceptions and frames
        left = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors() - before}
        assert not left, f"the closing of descriptors did not happen: {left}"


def delete(bootstrap: str, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
