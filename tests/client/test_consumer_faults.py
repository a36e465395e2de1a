"""Consumers while brokers die, partitions move and logs are trimmed: in order, or an error."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import confluent_kafka
import confluent_kafka.admin
import pytest

from kafkalite.client.consumer import record_range as record_range
from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.net.topology import PartitionMetadata, TopicMetadata
from kafkalite.errors import (
    CorruptMessage,
    NetworkException,
    OffsetOutOfRange,
    RequestTimedOut,
)
from kafkalite.testing import Broker
from tests.client.consuming import (
    TIMEOUT_S,
    TRANSPORT,
    delete,
    in_thread,
    numbered,
    produce,
    take,
    until,
)

SEGMENT_SIZE = 4 << 20


@pytest.fixture
def broker(request):
    """A broker of this test alone, of two workers unless the test says otherwise."""
    with Broker(workers=getattr(request, "param", 2)) as broker:
        yield broker


def values(messages):
    return [message.value for message in messages]


@pytest.mark.parametrize("broker", [0, 2], indirect=True, ids=["one process", "workers"])
def test_consumer_continues_after_a_broker_restart(broker, native):
    topic = broker.topic(2)
    produce(broker.bootstrap, topic, numbered(10), 1)
    with Consumer(broker.bootstrap, topics=[topic], native=native) as consumer:
        assert values(take(consumer, 10)) == numbered(10)
        broker.restart()
        produce(broker.bootstrap, topic, numbered(10, 10), 1)
        assert values(take(consumer, 10)) == numbered(10, 10)
        kinds = consumer.buffer.assignment_reader.transports
        until(lambda: consumer.poll(0.1) or set(kinds.kinds.values()) == {TRANSPORT[native]})


def test_consumer_continues_after_a_worker_is_killed(broker, native):
    topic = broker.topic(2)
    with Consumer(broker.bootstrap, topics=[topic], native=native) as consumer:
        for round in range(3):
            thread, outcome = in_thread(lambda: take(consumer, 20))
            for partition in range(2):
                produce(broker.bootstrap, topic, numbered(10, 10 * round), partition)
            thread.join(TIMEOUT_S)
            for partition in range(2):
                of_it = [m for m in outcome[0] if m.partition == partition]
                assert values(of_it) == numbered(10, 10 * round)
            broker.kill(1 + round % 2)


def test_consumer_follows_moved_partitions(broker, native):
    topic = broker.topic(4)

    def node(*words):
        command = [sys.executable, "-m", "kafkalite", "node", *words, "--data", str(broker.data)]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)

    with Consumer(broker.bootstrap, topics=[topic], native=native) as consumer:
        for round, order in enumerate((["drain", "1"], ["drain", "1", "--undo"], ["rebalance"])):
            for partition in range(4):
                produce(broker.bootstrap, topic, numbered(5, 5 * round), partition)
            messages = take(consumer, 10)
            node(*order)
            messages += take(consumer, 10)
            for partition in range(4):
                of_it = [m for m in messages if m.partition == partition]
                assert values(of_it) == numbered(5, 5 * round)


def test_closed_local_socket_is_replaced_by_tcp_and_retried(served):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        take(consumer, 5)
        transports = consumer.buffer.assignment_reader.transports
        (transport,) = transports._transports.values()
        transport._local.socket.shutdown(2)
        produce(served.bootstrap, topic, numbered(5, 5))
        assert values(take(consumer, 5)) == numbered(5, 5)
        assert set(transports.kinds.values()) == {"tcp"}
        until(lambda: consumer.poll(0.05) or set(transports.kinds.values()) == {"direct"})
        produce(served.bootstrap, topic, numbered(5, 10))
        assert values(take(consumer, 5)) == numbered(5, 10)


def test_recreated_topic_is_read_from_its_beginning(served, native, caplog):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(
        served.bootstrap, topics=[topic], native=native, auto_offset_reset="latest"
    ) as consumer:
        consumer.seek_to_beginning()
        assert values(take(consumer, 5)) == numbered(5)
        delete(served.bootstrap, topic)
        assert consumer.poll(0.1) is None
        recreate(served, topic)
        # More than there were before: the old offset would be among them.
        produce(served.bootstrap, topic, numbered(10, 100))
        assert values(take(consumer, 10)) == numbered(10, 100)
    assert "deleted and recreated" in caplog.text


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_fetches_of_a_deleted_topic_do_not_affect_its_successor(served, native, reset):
    topic = served.topic()
    place = (topic, 0)
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(
        served.bootstrap, topics=[topic], native=native, auto_offset_reset=reset
    ) as consumer:
        consumer.seek_to_beginning()
        take(consumer, 5)
        (position,) = consumer.buffer.assignment_reader.assignment
        old_id = position.topic_id
        delete(served.bootstrap, topic)
        recreate(served, topic)
        until(lambda: consumer.poll(0.05) or position.topic_id != old_id)
        assert consumer.poll(0.05) is None and consumer.position(place) == 0
        consumer.pause(place)
        consumer.resume(place)
        produce(served.bootstrap, topic, numbered(10, 100))
        assert values(take(consumer, 10)) == numbered(10, 100)


def recreate(broker, topic):
    """Create the topic again as soon as its deletion is complete."""

    def made():
        try:
            return broker.topic(name=topic)
        except Exception:
            return None

    until(made, "the topic's making")


def test_table_of_a_recreated_topic_has_only_its_new_records(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        take(consumer, 5)
        delete(served.bootstrap, topic)
        recreate(served, topic)
        consumer.seek((topic, 0), 3)
        assert consumer.to_table(start=3, timeout=TIMEOUT_S).num_rows == 0
        # More than there were before: the old end would be within them.
        produce(served.bootstrap, topic, numbered(10, 100))
        table = consumer.to_table(start=3, timeout=TIMEOUT_S)
        assert table["value"].to_pylist() == numbered(7, 103)
        assert table["offset"].to_pylist() == list(range(3, 10))


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_consumer_in_a_deleted_segment_resets_or_raises(broker, native, reset):
    topic = broker.topic(config={
        "segment.bytes": str(SEGMENT_SIZE), "file.delete.delay.ms": "0",
    })  # fmt: skip
    row = os.urandom(1000)
    count = 5 * SEGMENT_SIZE // 1000
    produce(broker.bootstrap, topic, [row] * count)
    place = (topic, 0)
    with Consumer(
        broker.bootstrap, topics=[topic], native=native, auto_offset_reset=reset
    ) as consumer:
        consumer.seek(place, 0)
        offsets = [take(consumer, 1)[0].offset]
        low = count - 1000
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        begin = confluent_kafka.TopicPartition(topic, 0, low)
        list(admin.delete_records([begin]).values())[0].result(TIMEOUT_S)
        # A deleted segment is truncated, so a reader's open file is empty then.
        until(lambda: not list(broker.data.rglob(f"{topic}-0/*.deleted")), "the deletion")
        while offsets[-1] < low and reset == "earliest":
            offsets.append(take(consumer, 1)[0].offset)
        if reset == "earliest":
            jumps = [b for a, b in zip(offsets, offsets[1:], strict=False) if b != a + 1]
            assert offsets[0] == 0
            assert len(jumps) == 1
            assert jumps[0] == low
            assert consumer.metrics()["offset_resets"] == 1
            before = max(offset for offset in offsets if offset < low)
            assert consumer.metrics()["missed_records"] == low - before - 1
            assert [m.offset for m in take(consumer, 999)] == list(range(low + 1, count))
        else:
            with pytest.raises(OffsetOutOfRange, match="is out of range"):
                while offsets[-1] < low:
                    offsets.append(take(consumer, 1)[0].offset)
            assert offsets == list(range(len(offsets)))
            assert consumer.position(place) == len(offsets)


def test_records_skipped_by_latest_reset_are_not_counted_as_missed(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(100))
    place = (topic, 0)
    with Consumer(
        broker.bootstrap, topics=[topic], native="off", auto_offset_reset="latest"
    ) as consumer:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        begin = confluent_kafka.TopicPartition(topic, 0, 60)
        list(admin.delete_records([begin]).values())[0].result(TIMEOUT_S)
        consumer.seek(place, 20)
        assert consumer.poll(1) is None
        assert consumer.position(place) == 100
        assert consumer.metrics()["missed_records"] == 40


def test_damaged_batch_raises_until_a_seek(served, native):
    topic = served.topic()
    for first in range(0, 15, 5):
        produce(served.bootstrap, topic, numbered(5, first))
    (segment,) = served.data.rglob(f"{topic}-0/*.log")
    content = bytearray(segment.read_bytes().rstrip(b"\0"))
    second = 12 + int.from_bytes(content[8:12], "big")
    assert int.from_bytes(content[second : second + 8], "big") == 5, "one batch each"
    with segment.open("r+b") as file:
        file.seek(second + 61 + 20)
        file.write(b"\xff\xff")
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        assert values(take(consumer, 5)) == numbered(5)
        for _ in range(2):
            with pytest.raises(CorruptMessage, match=f"{topic}-0: At offset 5"):
                consumer.poll(TIMEOUT_S)
            assert consumer.position((topic, 0)) == 5
        with pytest.raises(CorruptMessage):
            consumer.to_table()
        consumer.seek((topic, 0), 10)
        assert values(take(consumer, 5)) == numbered(5, 10)


def test_unreachable_broker_raises_at_the_timeout():
    with Consumer("127.0.0.1:1", topics=["t"], default_api_timeout_ms=300) as consumer:
        began = time.monotonic()
        with pytest.raises(NetworkException, match="refused"):
            consumer.poll()
        assert time.monotonic() - began < TIMEOUT_S / 2
        with pytest.raises((NetworkException, RequestTimedOut)):
            consumer.to_table(timeout=0.2)


@pytest.mark.parametrize("broker", [0], indirect=True, ids=["one process"])
def test_watermarks_wait_for_a_restarted_broker(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    with Consumer(broker.bootstrap, topics=[topic]) as consumer:
        broker.stop()
        starting, _ = in_thread(broker.start)
        assert consumer.watermarks((topic, 0), timeout=TIMEOUT_S) == (0, 3)
        starting.join()


def test_poll_returns_in_time_while_the_broker_is_stopped(broker, native):
    topic = broker.topic()
    with Consumer(broker.bootstrap, topics=[topic], native=native) as consumer:
        assert consumer.poll(0.2) is None
        broker.stop()
        for _ in range(3):
            began = time.monotonic()
            assert consumer.poll(0.3) is None
            assert time.monotonic() - began < TIMEOUT_S / 4
        broker.start()
        produce(broker.bootstrap, topic, numbered(3))
        assert values(take(consumer, 3)) == numbered(3)


def test_short_reads_of_granted_files_fall_back_to_tcp(served, monkeypatch):
    monkeypatch.setattr(record_range, "pread_all", lambda *_: 0)
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        assert values(take(consumer, 5)) == numbered(5)
        assert set(consumer.buffer.assignment_reader.transports.kinds.values()) == {"tcp"}


def test_stale_metadata_does_not_restore_a_deleted_topic(served, monkeypatch):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        take(consumer, 5)
        assignment_reader = consumer.buffer.assignment_reader
        (position,) = assignment_reader.assignment
        leader = PartitionMetadata(position.leader, position.leader_epoch)
        former, now = position.topic_id, bytes(16)[:-1] + b"n"
        assignment_reader._update_topic(topic, TopicMetadata(topic, now, {0: leader}))
        assignment_reader._mark_unknown([topic])
        assignment_reader._update_topic(topic, TopicMetadata(topic, former, {0: leader}))
        assert position.topic_id == now
        assert topic in assignment_reader._unknown, "it is asked about again"
        monkeypatch.setattr("kafkalite.client.consumer.assignment_reader.LAG_S_MAX", 0)
        assignment_reader._update_topic(topic, TopicMetadata(topic, former, {0: leader}))
        assert position.topic_id == former, "by now no node can lag: it was the other one that did"
