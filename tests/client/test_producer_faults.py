"""Faults under load, over ring and TCP: each record once, in order, and none lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict

import pytest

from kafkalite.client.producer.producer import Producer
from kafkalite.client.producer.ring_transport import RingTransport
from kafkalite.errors import NetworkException, RequestTimedOut
from kafkalite.testing import Broker
from tests.client.reading_back import read_back

WAIT_S = 60
LOAD_S_MAX = 60


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


class Load:
    """Records sent by a thread of its own, numbered for each partition, until it is stopped."""

    def __init__(self, producer: Producer, topic: str, partitions: int) -> None:
        self.producer = producer
        self.topic = topic
        self.partitions = partitions
        self.sent = []
        self.fault: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        numbers = [0] * self.partitions
        end_s = time.monotonic() + LOAD_S_MAX
        try:
            while not self._over.is_set() and time.monotonic() < end_s:
                for index in range(self.partitions):
                    value = b"%d" % numbers[index]
                    self.sent.append(self.producer.send(self.topic, value, partition=index))
                    numbers[index] += 1
                if len(self.sent) % 100 == 0:
                    time.sleep(0.001)
        except BaseException as fault:
            self.fault = fault

    def __enter__(self) -> Load:
        self._thread.start()
        self.await_more()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join(LOAD_S_MAX)

    def await_more(self) -> None:
        """Wait until a record that is sent from now on has been delivered."""
        sent = self.producer.send(self.topic, b"more", partition=0)
        sent.result(WAIT_S)

    def check(self, broker: Broker) -> None:
        """Check that all records are delivered, once and in order."""
        assert self.fault is None
        self.producer.flush(WAIT_S)
        places = [each.result(0) for each in self.sent]
        found = defaultdict(list)
        for each in read_back(broker, self.topic):
            if each.value() != b"more":
                found[each.partition()].append((int(each.value()), each.offset()))
        for index in range(self.partitions):
            told = [place.offset for place in places if place.partition == index]
            assert [number for number, _ in found[index]] == list(range(len(told)))
            assert [offset for _, offset in found[index]] == told


def until(holds, what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s, f"it never came to this: {what}"
        time.sleep(0.02)


def test_killed_and_restarted_broker_loses_and_duplicates_no_record(native):
    with Broker() as broker:
        topic = broker.topic(partitions=2)
        with Producer(broker.bootstrap, native=native, batch_size=1_000, linger_ms=1) as made:
            with Load(made, topic, 2) as load:
                for _ in range(3):
                    broker.kill()
                    broker.start()
                    load.await_more()
                    if native == "auto":
                        until(lambda: made.metrics()["rings"], "a ring again")
            load.check(broker)
            if native == "auto":
                assert made.metrics()["rings_lost"] == 3


def test_killed_worker_loses_no_record(native):
    with Broker(workers=2) as broker:
        topic = broker.topic(partitions=4)
        with Producer(broker.bootstrap, native=native, batch_size=1_000, linger_ms=1) as made:
            with Load(made, topic, 4) as load:
                for node_id in (1, 2, 1):
                    broker.kill(node_id)
                    load.await_more()
            load.check(broker)
            if native == "auto":
                assert made.metrics()["rings_lost"] >= 1


def test_killed_supervisor_stops_no_producer(native):
    with Broker(workers=2) as broker:
        topic = broker.topic(partitions=2)
        with Producer(broker.bootstrap, native=native, batch_size=1_000) as made:
            with Load(made, topic, 2) as load:
                broker.kill(0)
                load.await_more()
            load.check(broker)


def test_moved_partitions_are_followed(native):
    with Broker(workers=2) as broker:
        topic = broker.topic(partitions=4)
        with Producer(broker.bootstrap, native=native, batch_size=1_000, linger_ms=1) as made:
            with Load(made, topic, 4) as load:
                for node_id, other in ((1, 2), (2, 1)):
                    ordered(broker, "drain", str(node_id))
                    until(lambda n=other: led_by(made, topic) == {n}, f"all at node {other}")
                    load.await_more()
                    ordered(broker, "drain", str(node_id), "--undo")
            load.check(broker)


def ordered(broker: Broker, *words: str) -> None:
    kafkalite("node", *words, "--data", str(broker.data))


def kafkalite(*words: str) -> None:
    command = [sys.executable, "-m", "kafkalite", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stderr


def led_by(producer: Producer, topic: str) -> set[int]:
    """Return the leaders that the producer knows; it refreshes them after an error response."""
    return {queue.leader for queue in producer.topics[topic].queues}


def test_lost_ring_is_replaced():
    with Broker(workers=1) as broker:
        topic = broker.topic()
        with Producer(broker.bootstrap) as made:
            made.send(topic, b"0").result(WAIT_S)
            broker.kill(1)
            numbers = 1
            made.send(topic, b"1").result(WAIT_S)

            def comes_back() -> bool:
                nonlocal numbers
                numbers += 1
                before = made.metrics()["ring_batches"]
                made.send(topic, b"%d" % numbers).result(WAIT_S)
                return made.metrics()["ring_batches"] > before

            until(comes_back, "a batch through the new ring")
            counted = made.metrics()
        assert counted["rings_lost"] == 1
        assert counted["tcp_batches"] >= 1, "meanwhile it went by TCP"
        values = [each.value() for each in read_back(broker, topic)]
        assert values == [b"%d" % number for number in range(numbers + 1)]


def test_idle_producer_survives_a_broker_restart(native):
    with Broker() as broker:
        topic = broker.topic()
        with Producer(broker.bootstrap, native=native) as made:
            made.send(topic, b"before").result(WAIT_S)
            broker.kill()
            broker.start()
            assert made.send(topic, b"after").result(WAIT_S).offset == 1


def test_ring_smaller_than_records_in_flight_loses_no_record():
    with Broker(workers=1, config={"native.ring.bytes": "65536"}) as broker:
        topic = broker.topic(partitions=3)
        with Producer(broker.bootstrap, linger_ms=1, batch_size=12_000) as made:
            with Load(made, topic, 3) as load:
                for _ in range(20):
                    load.await_more()
            load.check(broker)
            before = made.metrics()["tcp_batches"]  # batches of a backlog may become as large
            # One larger than a frame of this ring goes by TCP, and keeps its order.
            large = made.send(topic, b"9" * 100_000, partition=0)
            behind = made.send(topic, b"8", partition=0)
            assert behind.result(WAIT_S).offset == large.result(WAIT_S).offset + 1
            assert made.metrics()["tcp_batches"] == before + 1


def test_recreated_topic_is_written(native):
    with Broker() as broker:
        topic = broker.topic()
        words = {"metadata.max.age.ms": 300_000, "delivery.timeout.ms": 60_000}
        with Producer(broker.bootstrap, native=native, **words) as made:
            made.send(topic, b"old").result(WAIT_S)
            kafkalite("topic", "delete", topic, "-b", broker.bootstrap)
            broker.topic(name=topic)
            assert made.send(topic, b"new").result(WAIT_S).offset == 0
        assert [each.value() for each in read_back(broker, topic)] == [b"new"]


def test_recreated_topic_is_written_without_acks(native):
    with Broker() as broker:
        topic = broker.topic()
        words = {"metadata.max.age.ms": 300_000, "acks": "0"}
        with Producer(broker.bootstrap, native=native, **words) as made:
            made.send(topic, b"old").result(WAIT_S)
            kafkalite("topic", "delete", topic, "-b", broker.bootstrap)
            broker.topic(name=topic)
            deadline = time.monotonic() + WAIT_S
            while not read_back(broker, topic):
                assert time.monotonic() < deadline
                made.send(topic, b"new")
                made.flush(WAIT_S)


def test_added_partitions_are_used(native):
    with Broker() as broker:
        topic = broker.topic()
        with Producer(broker.bootstrap, native=native, metadata_max_age_ms=100) as made:
            made.send(topic, b"x").result(WAIT_S)
            kafkalite("topic", "alter", topic, "--partitions", "3", "-b", broker.bootstrap)
            assert made.partitions_for(topic) == 3
            seen = set()

            def all_of_them() -> bool:
                seen.add(made.send(topic, b"y").result(WAIT_S).partition)
                return seen == {0, 1, 2}

            until(all_of_them, "records in each partition")


def test_records_fail_with_request_timed_out_after_the_broker_exits():
    with Broker() as broker:
        topic = broker.topic()
        words = {"delivery_timeout_ms": 1_500, "request_timeout_ms": 1_000}
        with Producer(broker.bootstrap, linger_ms=0, **words) as made:
            made.send(topic, b"x").result(WAIT_S)
            broker.kill()
            sent = [made.send(topic, b"lost") for _ in range(100)]
            for each in sent:
                assert isinstance(each.exception(WAIT_S), RequestTimedOut)
            counted = made.metrics()
            assert counted["buffer_memory_left"] == counted["buffer_memory"]
            assert counted["failed_records"] == 100


def test_close_ends_at_its_timeout_while_the_broker_is_down(native):
    with Broker() as broker:
        topic = broker.topic()
        made = Producer(broker.bootstrap, native=native)
        made.send(topic, b"x").result(WAIT_S)
        broker.kill()
        sent = made.send(topic, b"lost")
        started = time.monotonic()
        made.close(0.5)
        assert time.monotonic() - started < 20
        with contextlib.suppress(Exception):
            sent.result(0)
        assert sent.done() and sent.exception(0) is not None


def test_ring_that_ends_before_its_wake_up_falls_back_to_tcp(monkeypatch):
    def ended(_: RingTransport) -> bool:
        raise NetworkException("The ring ended: it is closed.")

    with Broker(workers=1) as broker:
        topic = broker.topic()
        worker = next(node["pid"] for node in broker.nodes if node["id"] == 1)
        with Producer(broker.bootstrap, native="auto") as producer:
            producer.send(topic, b"0").result(WAIT_S)
            os.kill(worker, signal.SIGSTOP)
            try:
                delivery = producer.send(topic, b"1")
                until(lambda: producer.metrics()["under_way_batches"] == 1, "the batch is sent")
                monkeypatch.setattr(RingTransport, "arm_wakeup", ended)
                called = threading.Event()
                delivery.add_done_callback(lambda _: called.set())
            finally:
                os.kill(worker, signal.SIGCONT)
            assert delivery.result(WAIT_S).offset == 1
            assert called.wait(WAIT_S)
        assert [message.value() for message in read_back(broker, topic)] == [b"0", b"1"]
