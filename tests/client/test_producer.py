"""Producer against real brokers, one process and several, over ring and TCP; its records are
read back with confluent-kafka."""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
import time
from collections import Counter, defaultdict

import pytest

from kafkalite._ext.hashing import partition_of
from kafkalite.client.producer import background
from kafkalite.client.producer.producer import Producer
from kafkalite.errors import (
    BufferExhausted,
    InvalidTopicException,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kafkalite.record_metadata import RecordMetadata
from kafkalite.testing import Broker
from tests.client.reading_back import read_back

WAIT_S = 30


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two workers"])
def broker(request):
    with Broker(workers=request.param, config={"auto.create.topics.enable": "false"}) as made:
        yield made


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


def producer(broker, native, **keywords):
    return Producer(broker.bootstrap, native=native, **keywords)


def test_each_field_of_a_record_is_delivered(broker, native):
    topic = broker.topic()
    headers = [("a", b"1"), ("a", None), ("é", b"\x00\xff")]
    with producer(broker, native) as made:
        sent = [
            made.send(topic, b"value", key=b"key", headers=headers, timestamp=1_700_000_000_123),
            made.send(topic, "späť", key="ключ"),
            made.send(topic, None, key=b"k"),
            made.send(topic, b""),
            made.send(topic, memoryview(b"a view"), key=bytearray(b"array")),
            made.send(topic, value=b"tuple", headers=(("x", "text"),)),
        ]
        places = [each.result(WAIT_S) for each in sent]
    assert [place.offset for place in places] == list(range(6))
    assert places[0] == RecordMetadata(topic, 0, 0, 1_700_000_000_123)
    found = read_back(broker, topic)
    assert [(each.key(), each.value()) for each in found] == [
        (b"key", b"value"),
        ("ключ".encode(), "späť".encode()),
        (b"k", None),
        (None, b""),
        (b"array", b"a view"),
        (None, b"tuple"),
    ]
    assert found[0].headers() == headers
    assert found[0].timestamp()[1] == 1_700_000_000_123
    assert found[5].headers() == [("x", b"text")]
    assert [each.timestamp()[1] for each in found] == [place.timestamp for place in places]


def test_record_without_timestamp_has_its_send_time(broker, native):
    topic = broker.topic()
    with producer(broker, native) as made:
        before = time.time_ns() // 1_000_000
        place = made.send(topic, b"now").result(WAIT_S)
        assert before <= place.timestamp <= time.time_ns() // 1_000_000


def test_broker_of_the_same_host_is_written_through_a_ring(broker):
    topic = broker.topic()
    with producer(broker, "auto") as made:
        made.send(topic, b"x").result(WAIT_S)
        counted = made.metrics()
    assert counted["rings"] == 1
    assert (counted["ring_batches"], counted["tcp_batches"]) == (1, 0)


def test_native_off_uses_tcp(broker):
    topic = broker.topic()
    with producer(broker, "off") as made:
        made.send(topic, b"x").result(WAIT_S)
        counted = made.metrics()
    assert counted["rings"] == 0
    assert (counted["ring_batches"], counted["tcp_batches"]) == (0, 1)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_other_clients_read_every_codec(broker, native, codec):
    topic = broker.topic()
    values = [b"value %d " % number * 20 for number in range(500)]
    with producer(broker, native, compression_type=codec) as made:
        for value in values:
            made.send(topic, value)
    assert [each.value() for each in read_back(broker, topic)] == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_all_records_are_delivered_with_any_acks(broker, native, acks):
    topic = broker.topic()
    values = [b"%d" % number for number in range(2_000)]
    with producer(broker, native, acks=acks) as made:
        sent = [made.send(topic, value) for value in values]
        made.flush(WAIT_S)
        offsets = [each.result(0).offset for each in sent]
    assert offsets == ([-1] * 2_000 if acks == "0" else list(range(2_000)))
    assert [each.value() for each in read_back(broker, topic, 2_000)] == values


def test_records_of_many_batches_and_partitions_keep_order_and_offsets(broker, native):
    topic = broker.topic(partitions=4)
    with producer(broker, native, batch_size=2_000, linger_ms=1) as made:
        sent = [made.send(topic, b"%d" % n, key=b"%d" % (n % 97)) for n in range(20_000)]
        made.flush(WAIT_S)
        places = [each.result(0) for each in sent]
    found = {(each.partition(), each.offset()): each for each in read_back(broker, topic)}
    assert len(found) == 20_000
    for number, place in enumerate(places):
        assert place.partition == partition_of(b"%d" % (number % 97), 4)
        assert found[place.partition, place.offset].value() == b"%d" % number
    latest = {}
    for place in places:
        assert place.offset == latest.get(place.partition, -1) + 1
        latest[place.partition] = place.offset


def test_records_without_key_fill_a_batch_of_one_partition(broker, native):
    topic = broker.topic(partitions=3)
    with producer(broker, native, batch_size=1_000, linger_ms=1_000) as made:
        sent = [made.send(topic, b"x" * 100) for _ in range(300)]
        made.flush(WAIT_S)
        partitions = [each.result(0).partition for each in sent]
    changes = sum(one != other for one, other in zip(partitions, partitions[1:], strict=False))
    assert set(partitions) == {0, 1, 2}
    assert changes <= 300 / 8
    assert len(read_back(broker, topic)) == 300


def test_explicit_partition_is_used(broker, native):
    topic = broker.topic(partitions=3)
    with producer(broker, native) as made:
        places = [
            made.send(topic, b"x", key=b"k", partition=n % 3).result(WAIT_S) for n in range(6)
        ]
        with pytest.raises(ValueError, match="no partition 3 among its 3"):
            made.send(topic, b"x", partition=3)
        for partition in (-1, 1 << 70):
            with pytest.raises(ValueError, match=f"no partition {partition} among its 3"):
                made.send(topic, b"x", partition=partition)
    assert [place.partition for place in places] == [0, 1, 2, 0, 1, 2]


def test_round_robin_partitioner_uses_each_partition(broker, native):
    topic = broker.topic(partitions=3)
    with producer(broker, native, partitioner="round_robin") as made:
        sent = [made.send(topic, b"x", key=b"same") for _ in range(30)]
        made.flush(WAIT_S)
        assert Counter(each.result(0).partition for each in sent) == {0: 10, 1: 10, 2: 10}


def test_custom_partitioner_is_called_once_per_record(broker, native):
    topic = broker.topic(partitions=3)
    calls = []

    def last(name, key, count):
        calls.append((name, key, count))
        return count - 1

    with producer(broker, native, partitioner=last, batch_size=500) as made:
        sent = [made.send(topic, b"x" * 100, key=f"k{number}") for number in range(20)]
        made.flush(WAIT_S)
        assert {each.result(0).partition for each in sent} == {2}
    assert calls == [(topic, b"k%d" % number, 3) for number in range(20)]


def test_partitioner_result_out_of_range_is_rejected(broker, native):
    topic = broker.topic()
    with producer(broker, native, partitioner=lambda *_: 7) as made:
        for _ in range(2):
            with pytest.raises(ValueError, match="no partition 7"):
                made.send(topic, b"x")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"value": 1}, TypeError),
        ({"value": b"x", "key": 1.5}, TypeError),
        ({"value": b"x", "headers": [(b"name", b"")]}, TypeError),
        ({"value": b"x", "headers": [("name", 3)]}, TypeError),
        ({"value": b"x", "headers": 3}, TypeError),
        ({"value": b"x", "timestamp": -1}, ValueError),
        ({"value": b"x", "timestamp": "now"}, TypeError),
        ({"value": b"x", "partition": "0"}, TypeError),
    ],
)
def test_invalid_record_is_rejected_and_the_next_delivered(broker, native, words, fault):
    topic = broker.topic()
    with producer(broker, native) as made:
        for _ in range(2):
            with pytest.raises(fault):
                made.send(topic, **words)
            made.send(topic, b"good")
        made.flush(WAIT_S)
    assert [each.value() for each in read_back(broker, topic)] == [b"good", b"good"]


def test_result_ends_linger(broker, native):
    topic = broker.topic()
    with producer(broker, native, linger_ms=20_000) as made:
        sent = [made.send(topic, b"%d" % number) for number in range(100)]
        assert not any(each.done() for each in sent)
        started = time.monotonic()
        assert sent[0].result(WAIT_S).offset == 0
        assert time.monotonic() - started < 10
        assert all(each.done() for each in sent)
        assert made.metrics()["batches"] == 1


def test_batch_is_sent_after_linger(broker, native):
    topic = broker.topic()
    arrived = threading.Event()
    with producer(broker, native, linger_ms=10) as made:
        made.send(topic, b"x", on_delivery=lambda error, place: arrived.set())
        assert arrived.wait(WAIT_S)


def test_record_is_delivered_at_once_without_linger(broker, native):
    topic = broker.topic()
    arrived = threading.Event()
    with producer(broker, native, linger_ms=0) as made:
        made.send(topic, b"x", on_delivery=lambda error, place: arrived.set())
        assert arrived.wait(WAIT_S)


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_delivery_completes_without_a_waiting_thread(broker, native, linger_ms):
    topic = broker.topic()
    with producer(broker, native, linger_ms=linger_ms) as made:
        for _ in range(3):
            made.send(topic, b"x").result(WAIT_S)
            asleep(made)
            late = made.send(topic, b"y")
            deadline = time.monotonic() + WAIT_S
            while not late.done():
                assert time.monotonic() < deadline
                time.sleep(0.002)


def asleep(made):
    """Wait until its thread sleeps without a timeout."""
    deadline = time.monotonic() + WAIT_S
    while made._state.wakeup.sleeps_until_s < math.inf:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_batch_size_zero_sends_each_record_alone(broker, native):
    topic = broker.topic()
    with producer(broker, native, batch_size=0) as made:
        for number in range(20):
            made.send(topic, b"%d" % number)
        made.flush(WAIT_S)
        assert made.metrics()["batches"] == 20
    assert [each.value() for each in read_back(broker, topic)] == [b"%d" % n for n in range(20)]


# Delivery callbacks and waits.


def test_each_delivery_callback_runs_once_with_its_metadata(broker, native):
    topic = broker.topic(partitions=2)
    told = []
    with producer(broker, native, batch_size=1_000) as made:
        for number in range(1_000):
            made.send(
                topic, b"%d" % number, on_delivery=lambda *what, n=number: told.append((n, *what))
            )
        made.flush(WAIT_S)
    assert sorted(number for number, *_ in told) == list(range(1_000))
    assert all(error is None for _, error, _ in told)
    found = {(each.partition(), each.offset()): each.value() for each in read_back(broker, topic)}
    for number, _, place in told:
        assert found[place.partition, place.offset] == b"%d" % number


def test_failing_callback_is_logged_and_stops_no_other(broker, native, caplog):
    topic = broker.topic()

    def fail(*_):
        raise RuntimeError("on purpose")

    with producer(broker, native) as made:
        made.send(topic, b"a", on_delivery=fail)
        made.send(topic, b"b").result(WAIT_S)
        made.flush(WAIT_S)
        assert made.send(topic, b"c").result(WAIT_S).offset == 2
    assert "on purpose" in caplog.text


def test_done_callbacks_run_before_and_after_completion(broker, native):
    topic = broker.topic()
    told = []
    with producer(broker, native) as made:
        sent = made.send(topic, b"x")
        sent.add_done_callback(told.append)
        sent.result(WAIT_S)
        made.flush(WAIT_S)
        sent.add_done_callback(told.append)
    assert told == [sent, sent]
    assert sent.done() and sent.exception() is None


def test_callback_may_send_and_must_not_wait(broker, native):
    topic = broker.topic()
    told, refused = threading.Event(), []
    with producer(broker, native, linger_ms=1) as made:

        def again(error, place):
            sent = made.send(topic, b"again")
            try:
                sent.result(WAIT_S)
            except RuntimeError as fault:
                refused.append(str(fault))
            told.set()

        # No thread waits, so the background thread calls the callback.
        made.send(topic, b"x", on_delivery=again)
        assert told.wait(WAIT_S)
        made.flush(WAIT_S)
    assert len(read_back(broker, topic)) == 2
    assert len(refused) == 1
    assert "cannot wait" in refused[0]


# Limits of size and memory.


def test_record_above_max_request_size_is_rejected_at_once(broker, native):
    topic = broker.topic()
    with producer(broker, native, max_request_size=10_000) as made:
        with pytest.raises(MessageTooLarge, match="max.request.size allows 10000"):
            made.send(topic, b"x" * 10_000)
        made.send(topic, b"x" * 9_000).result(WAIT_S)


def test_record_above_batch_size_has_its_own_batch(broker, native):
    topic = broker.topic()
    values = [b"a", b"b" * 900_000, b"c", b"d" * 50_000]
    with producer(broker, native) as made:
        for value in values:
            made.send(topic, value)
    assert [each.value() for each in read_back(broker, topic)] == values


def test_batches_too_large_for_the_topic_are_split_with_exact_offsets(broker, native):
    topic = broker.topic(config={"max.message.bytes": "2000"})
    with producer(broker, native) as made:
        sent = [
            made.send(topic, b"%04d" % n + b"x" * 200, headers=[("n", b"1")]) for n in range(300)
        ]
        made.flush(WAIT_S)
        assert [each.result(0).offset for each in sent] == list(range(300))
    assert [each.value()[:4] for each in read_back(broker, topic)] == [
        b"%04d" % n for n in range(300)
    ]


def test_record_too_large_for_the_topic_fails_alone(broker, native):
    topic = broker.topic(config={"max.message.bytes": "2000"})
    told = []
    with producer(broker, native) as made:
        before = made.send(topic, b"before")
        large = made.send(topic, b"x" * 3_000, on_delivery=lambda *what: told.append(what))
        behind = made.send(topic, b"behind")
        made.flush(WAIT_S)
        assert before.result(0).offset == 0
        with pytest.raises(MessageTooLarge, match=topic):
            large.result(0)
        assert isinstance(large.exception(), MessageTooLarge)
        assert behind.result(0).offset == 1
        assert made.metrics()["failed_records"] == 1
    ((error, place),) = told
    assert isinstance(error, MessageTooLarge) and place is None


def test_send_to_unknown_topic_fails_after_max_block_ms(broker, native):
    with producer(broker, native, max_block_ms=300) as made:
        started = time.monotonic()
        with pytest.raises(UnknownTopicOrPartition):
            made.send("nowhere", b"x")
        assert time.monotonic() - started < 10
        with pytest.raises(InvalidTopicException):
            made.send("no topic/at all", b"x")
        with pytest.raises(TypeError, match="name must be text"):
            made.send(b"bytes", b"x")


def test_send_waits_for_memory_and_fails_after_max_block_ms(native):
    with Broker() as broker:
        topic = broker.topic()
        with producer(
            broker, native, buffer_memory=100_000, max_block_ms=500, linger_ms=60_000,
            delivery_timeout_ms=200_000, request_timeout_ms=100_000,
        ) as made:  # fmt: skip
            made.send(topic, b"x").result(WAIT_S)
            os.kill(broker.pid, signal.SIGSTOP)
            os.killpg(broker.pid, signal.SIGSTOP)
            try:
                sent = []
                with pytest.raises(BufferExhausted, match="buffer.memory"):
                    for _ in range(1_000):
                        sent.append(made.send(topic, b"x" * 1_000))
                assert 50 < len(sent) < 1_000
                assert made.metrics()["buffer_memory_left"] < 17_000
            finally:
                os.killpg(broker.pid, signal.SIGCONT)
            # Sends continue once memory is free.
            sent += [made.send(topic, b"y" * 1_000) for _ in range(300)]
            made.flush(WAIT_S)
            assert [each.result(0).offset for each in sent] == list(range(1, len(sent) + 1))
            assert made.metrics()["buffer_memory_left"] == 100_000


def test_delivery_timeout_fails_the_record(native):
    with Broker() as broker:
        topic = broker.topic()
        with producer(
            broker, native, linger_ms=0, request_timeout_ms=400, delivery_timeout_ms=1_000
        ) as made:
            made.send(topic, b"x").result(WAIT_S)
            os.killpg(broker.pid, signal.SIGSTOP)
            try:
                late = made.send(topic, b"late")
                with pytest.raises(RequestTimedOut, match="delivery.timeout.ms"):
                    late.result(WAIT_S)
            finally:
                os.killpg(broker.pid, signal.SIGCONT)
            assert made.send(topic, b"after").result(WAIT_S).offset >= 1
        values = [each.value() for each in read_back(broker, topic)]
        assert values[0] == b"x" and values[-1] == b"after" and len(values) in (2, 3)


def test_delivery_timeout_applies_while_metadata_request_hangs(native, monkeypatch):
    monkeypatch.setattr(background, "REQUEST_TIMEOUT_S", 10 * WAIT_S)
    monkeypatch.setattr(background, "CONNECT_TIMEOUT_S", 10 * WAIT_S)
    with Broker() as broker:
        topic = broker.topic()
        with producer(
            broker, native, linger_ms=0, request_timeout_ms=400, delivery_timeout_ms=1_000,
            socket_connection_setup_timeout_ms=10_000 * WAIT_S,
        ) as made:  # fmt: skip
            made.send(topic, b"x").result(WAIT_S)
            os.killpg(broker.pid, signal.SIGSTOP)
            try:
                heard = queue.SimpleQueue()
                made.send(topic, b"late", on_delivery=lambda error, _: heard.put(error))
                assert isinstance(heard.get(timeout=WAIT_S), RequestTimedOut)
            finally:
                os.killpg(broker.pid, signal.SIGCONT)


# Lifetime.


def test_flush_completes_all_deliveries(broker, native):
    topic = broker.topic()
    with producer(broker, native, linger_ms=60_000, delivery_timeout_ms=200_000) as made:
        made.flush(0)
        sent = [made.send(topic, b"x") for _ in range(10)]
        made.flush(WAIT_S)
        assert all(each.done() for each in sent)


def test_close_delivers_all_records_and_rejects_further_ones(broker, native):
    topic = broker.topic()
    made = producer(broker, native, linger_ms=60_000, delivery_timeout_ms=200_000)
    sent = [made.send(topic, b"%d" % number) for number in range(100)]
    made.close()
    made.close()
    assert [each.result(0).offset for each in sent] == list(range(100))
    for call in (lambda: made.send(topic, b"x"), lambda: made.partitions_for(topic)):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    assert "closed" in repr(made)


def test_result_and_flush_time_out_and_may_be_called_again(native):
    with Broker() as broker:
        topic = broker.topic()
        with producer(broker, native) as made:
            made.send(topic, b"x").result(WAIT_S)
            os.killpg(broker.pid, signal.SIGSTOP)
            try:
                sent = made.send(topic, b"y")
                with pytest.raises(TimeoutError):
                    sent.result(0.2)
                with pytest.raises(TimeoutError, match="1 batches"):
                    made.flush(0.2)
                assert not sent.done()
            finally:
                os.killpg(broker.pid, signal.SIGCONT)
            made.flush(WAIT_S)
            assert sent.result(0).offset == 1


def test_records_of_each_thread_keep_their_order(broker, native):
    topic = broker.topic(partitions=2)
    faults = []

    def write(made, name):
        try:
            for number in range(2_000):
                sent = made.send(topic, b"%s %d" % (name, number), key=name)
                if number % 500 == 0:
                    sent.result(WAIT_S)
        except BaseException as fault:
            faults.append(fault)

    with producer(broker, native, batch_size=2_000) as made:
        threads = [threading.Thread(target=write, args=(made, b"t%d" % n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        made.flush(WAIT_S)
    assert not faults
    by_thread = defaultdict(list)
    for each in read_back(broker, topic):
        name, _, number = each.value().partition(b" ")
        by_thread[name].append(int(number))
    assert by_thread == {b"t%d" % n: list(range(2_000)) for n in range(4)}


def test_partitions_for_returns_the_partition_count(broker, native):
    topic = broker.topic(partitions=5)
    with producer(broker, native, max_block_ms=300) as made:
        assert made.partitions_for(topic) == 5
        with pytest.raises(UnknownTopicOrPartition):
            made.partitions_for("nowhere")


def test_known_partitions_sends_no_request(broker, native):
    topic = broker.topic(partitions=5)
    with producer(broker, native) as made:
        assert made.known_partitions(topic) is None
        made.send(topic, b"x").result(WAIT_S)
        assert made.known_partitions(topic) == 5


def test_send_batch_delivers_an_encoded_batch(broker, native):
    from kafkalite._ext.record_writer import BatchBuilder

    topic = broker.topic(partitions=2)
    builder = BatchBuilder(1_000)
    for number in range(5):
        builder.append(None, b"%d" % number, None, 1_700_000_000_000 + number)
    told = []
    with producer(broker, native) as made:
        room = bytearray(2_000)
        room[61 : 61 + builder.size] = builder.payload()
        words = (builder.size, 5, builder.base_timestamp, builder.max_timestamp)
        sent = made.send_batch(topic, 1, room, *words, lambda *what: told.append(what))
        assert sent.result(WAIT_S) == RecordMetadata(topic, 1, 0, 1_700_000_000_000)
        made.flush(WAIT_S)
        with pytest.raises(MessageTooLarge):
            made.send_batch(topic, 1, bytearray(3 << 20), 2 << 20, 5, 0, 0)
    assert told == [(None, sent.result(0))]
    assert [each.value() for each in read_back(broker, topic)] == [b"%d" % n for n in range(5)]
