"""A Producer without references: its records are delivered, and none of its resources leak."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import contextmanager

import pytest

from kafkalite import AsyncProducer, Producer
from kafkalite.testing import Broker
from tests.client.consuming import until
from tests.client.reading_back import read_back
from tests.client.test_producer_process import run


@pytest.fixture(scope="module")
def broker():
    with Broker() as made:
        yield made


def producer_threads():
    return [each for each in threading.enumerate() if each.name.startswith("kafkalite-producer")]


@contextmanager
def collection():
    """Wait at the end until the producers that began inside are collected.

    A producer's own thread may hold a reference to it for a moment, and then collects it later.
    """
    before = set(producer_threads())
    yield

    def is_over():
        gc.collect()
        return set(producer_threads()) <= before

    until(is_over, "the end of the producers' threads")


@pytest.mark.parametrize("native", ["auto", "off"])
def test_collected_producer_is_flushed_and_leaves_nothing_open(broker, native):
    topic = broker.topic()

    def write(number):
        Producer(broker.bootstrap, native=native, linger_ms=60_000).send(topic, b"%d" % number)

    threads = len(producer_threads())
    with pytest.warns(ResourceWarning, match="collected without close"), collection():
        write(0)
    until(lambda: len(producer_threads()) == threads, "the end of the thread")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 10):
        with pytest.warns(ResourceWarning), collection():
            write(number)
    until(lambda: len(producer_threads()) == threads, "the end of the threads")
    gc.collect()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "the closing of descriptors")
    found = sorted(each.value() for each in read_back(broker, topic))
    assert found == [b"%d" % number for number in range(10)]


def test_collected_async_producer_is_flushed(broker):
    topic = broker.topic()

    async def main():
        await AsyncProducer(broker.bootstrap, linger_ms=60_000).send(topic, b"x")

    with pytest.warns(ResourceWarning, match="collected without close"), collection():
        asyncio.run(main())
    until(lambda: read_back(broker, topic), "the delivery")


def test_producer_collected_inside_a_locked_section_is_flushed(broker):
    topic = broker.topic()
    producer = Producer(broker.bootstrap, linger_ms=60_000)
    sender = producer._sender
    producer.send(topic, b"x")
    holder = [producer]
    del producer
    with pytest.warns(ResourceWarning):
        sender.locked(holder.clear)  # the last reference goes while this thread has the lock
    until(lambda: read_back(broker, topic), "the delivery")


def test_delivery_outlives_its_producer(broker):
    topic = broker.topic()
    with pytest.warns(ResourceWarning), collection():
        delivery = Producer(broker.bootstrap, linger_ms=60_000).send(topic, b"x")
    assert delivery.result(30).offset == 0


def test_collected_producer_delivers_before_the_interpreter_ends(broker):
    topic = broker.topic()
    ended = run(
        """
        import sys
        from kafkalite import Producer
        def log(words):
            Producer(sys.argv[1], linger_ms=1000).send(sys.argv[2], words)
        log("x")
        """,
        broker.bootstrap, topic,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [each.value() for each in read_back(broker, topic)] == [b"x"]


def test_closed_producer_is_collected_without_a_warning(broker, recwarn):
    Producer(broker.bootstrap).close()
    gc.collect()
    assert not [each for each in recwarn if each.category is ResourceWarning]
