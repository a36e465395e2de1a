"""A consumer's messages and positions, against real brokers, over both transports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import confluent_kafka
import confluent_kafka.admin
import pytest

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.decoding import record_sets
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    InvalidConfig,
    InvalidGroupId,
    OffsetOutOfRange,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from kafkalite.records import compression
from tests.client.consuming import (
    TIMEOUT_S,
    TRANSPORT,
    descriptors,
    in_thread,
    no_more_than,
    numbered,
    produce,
    take,
    until,
)


def test_every_message_is_read_once_and_in_order(served, native):
    topic = served.topic(3)
    for partition in range(3):
        produce(served.bootstrap, topic, numbered(500, 1000 * partition), partition)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        messages = take(consumer, 1500)
        assert consumer.poll(0.1) is None
        metrics = consumer.metrics()
        assert set(metrics["transports"].values()) == {TRANSPORT[native]}
        assert metrics["lanes"] == metrics["transports"], "the former name is kept"
    for partition in range(3):
        of_it = [message for message in messages if message.partition == partition]
        assert [message.value for message in of_it] == numbered(500, 1000 * partition)
        assert [message.offset for message in of_it] == list(range(500))


def test_message_has_every_field_of_the_record(served, native):
    topic = served.topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": served.bootstrap})
    producer.produce(
        topic, key="k", value=None, timestamp=1_700_000_000_123,
        headers=[("a", b"1"), ("a", None)],
    )  # fmt: skip
    assert producer.flush(TIMEOUT_S) == 0
    with Consumer(served.bootstrap, topics=topic, native=native) as consumer:
        (message,) = take(consumer, 1)
    assert (message.topic, message.partition, message.offset) == (topic, 0, 0)
    assert (message.key, message.value) == (b"k", None)
    assert (message.timestamp, message.timestamp_type) == (1_700_000_000_123, 0)
    assert message.headers == [("a", b"1"), ("a", None)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(served, native, codec):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(2000), compression_type=codec)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        assert [message.value for message in take(consumer, 2000)] == numbered(2000)


def test_batch_larger_than_fetch_limits_is_read_whole(served, native):
    topic = served.topic(config={"max.message.bytes": "3000000"})
    large = os.urandom(2_500_000)
    produce(served.bootstrap, topic, [b"first", large, b"last"], message_max_bytes=3_000_000)
    with Consumer(
        served.bootstrap, topics=[topic], native=native,
        max_partition_fetch_bytes=1000, fetch_max_bytes=1000,
    ) as consumer:  # fmt: skip
        assert [message.value for message in take(consumer, 3)] == [b"first", large, b"last"]


def test_records_written_during_a_wait_are_read(served, native):
    topic = served.topic()
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        thread, outcome = in_thread(lambda: take(consumer, 3))
        for value in numbered(3):
            produce(served.bootstrap, topic, [value])
        thread.join(TIMEOUT_S)
    assert [message.value for message in outcome[0]] == numbered(3)


def test_iteration_ends_after_consumer_timeout_ms(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    with Consumer(
        served.bootstrap, topics=[topic], native=native, consumer_timeout_ms=300
    ) as consumer:
        assert len(take(consumer, 100)) == 100
        assert list(consumer) == []
        produce(served.bootstrap, topic, numbered(1))
        assert take(consumer, 1)[0].offset == 100


def test_poll_with_zero_timeout_eventually_returns_records(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        got: list[bytes] = []
        until(lambda: got.extend(m.value for m in [consumer.poll(0)] if m) or len(got) == 10)
    assert got == numbered(10)


# Start and position.


def test_latest_reset_starts_at_the_end(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(
        served.bootstrap, topics=[topic], native=native, auto_offset_reset="latest"
    ) as consumer:
        assert consumer.position((topic, 0)) == 10
        produce(served.bootstrap, topic, numbered(1))
        assert take(consumer, 1)[0].offset == 10


def test_none_reset_raises_until_a_seek(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(
        served.bootstrap, topics=[topic], native=native, auto_offset_reset="none"
    ) as consumer:
        with pytest.raises(OffsetOutOfRange, match="seek"):
            consumer.poll(TIMEOUT_S)
        consumer.seek((topic, 0), 7)
        assert [message.offset for message in take(consumer, 3)] == [7, 8, 9]


def test_position_follows_returned_messages(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        assert consumer.position((topic, 0)) == 0
        for count, message in enumerate(consumer, start=1):
            assert consumer.position((topic, 0)) == message.offset + 1 == count
            if count == 42:
                break
        assert consumer.poll(TIMEOUT_S).offset == 42


def test_seek_during_iteration_moves_it(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(50))
    offsets = []
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        for message in consumer:
            offsets.append(message.offset)
            if offsets == [0, 1, 2]:
                consumer.seek((topic, 0), 40)
            if message.offset == 49:
                break
    assert offsets == [0, 1, 2, *range(40, 50)]


def test_seek_discards_the_outstanding_fetch(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        take(consumer, 10)
        assert consumer.poll(0) is None  # now the end of the log is being fetched
        consumer.seek((topic, 0), 3)
        produce(served.bootstrap, topic, numbered(1, 10))
        assert [message.value for message in take(consumer, 8)] == numbered(8, 3)


def test_seek_to_beginning_end_and_time(served, native):
    topic = served.topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": served.bootstrap})
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=1_700_000_000_000 + 1000 * number)
    assert producer.flush(TIMEOUT_S) == 0
    place = (topic, 0)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        consumer.seek_to_end(place)
        assert consumer.position(place) == 10
        produce(served.bootstrap, topic, [b"new"])
        assert take(consumer, 1)[0].value == b"new"
        consumer.seek_to_beginning()
        assert take(consumer, 1)[0].offset == 0
        consumer.seek_to_time(datetime.fromtimestamp(1_700_000_004.5, UTC))
        assert take(consumer, 1)[0].value == b"5"
        consumer.seek_to_time(4_000_000_000_000, place)
        assert consumer.position(place) == 11
        found = consumer.offsets_for_times({place: 1_700_000_002_001})
        assert found == {place: (3, 1_700_000_003_000)}
        assert consumer.offsets_for_times({place: 4_000_000_000_000}) == {place: None}
        with pytest.raises(ValueError, match="no time zone"):
            consumer.seek_to_time(datetime(2026, 1, 1))


def test_paused_partition_returns_nothing_and_loses_nothing(served, native):
    topic = served.topic(2)
    for partition in range(2):
        produce(served.bootstrap, topic, numbered(100), partition)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        before = take(consumer, 10)
        consumer.pause((topic, 0))
        assert consumer.paused == [TopicPartition(topic, 0)]
        of_other = 100 - sum(message.partition == 1 for message in before)
        while_paused = take(consumer, of_other)
        assert {message.partition for message in while_paused} == {1}
        assert consumer.poll(0.1) is None
        consumer.resume((topic, 0))
        messages = before + while_paused + take(consumer, 200 - len(before) - of_other)
    assert sorted((message.partition, message.offset) for message in messages) == [
        (partition, offset) for partition in range(2) for offset in range(100)
    ]


def test_watermarks_and_lag_are_current(served, native):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(30), 1)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        assert consumer.watermarks((topic, 1)) == (0, 30)
        assert consumer.watermarks((topic, 0)) == (0, 0)
        assert consumer.lag() == 30
        take(consumer, 12)
        assert consumer.lag((topic, 1)) == consumer.lag((topic, 1), (topic, 1)) == 18
        produce(served.bootstrap, topic, numbered(2), 0)
        assert consumer.lag() == 20


def test_only_assigned_partitions_are_read(served, native):
    topic = served.topic(3)
    for partition in range(3):
        produce(served.bootstrap, topic, numbered(5), partition)
    with Consumer(served.bootstrap, native=native) as consumer:
        with pytest.raises(RuntimeError, match="assign"):
            consumer.poll(0)
        consumer.assign([(topic, 1)])
        assert {message.partition for message in take(consumer, 5)} == {1}
        consumer.assign([(topic, 1), TopicPartition(topic, 2)])
        assert consumer.assignment == [(topic, 1), (topic, 2)]
        assert {message.partition for message in take(consumer, 5)} == {2}
        assert consumer.position((topic, 1)) == 5
        with pytest.raises(ValueError, match="not assigned"):
            consumer.seek((topic, 0), 0)


def test_unknown_partition_raises_unknown_topic_or_partition(served):
    topic = served.topic(2)
    with Consumer(served.bootstrap) as consumer:
        for _ in range(2):
            consumer.assign([(topic, 2)])
            with pytest.raises(UnknownTopicOrPartition, match="2 partitions"):
                consumer.poll(TIMEOUT_S)
            consumer.assign([(topic, 1)])
            assert consumer.poll(0.01) is None


def test_missing_topic_fails_at_once_without_auto_creation(served):
    with Consumer(served.bootstrap, topics=["nowhere"], allow_auto_create_topics=False) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
            consumer.poll(TIMEOUT_S)


def test_added_partitions_are_read_from_the_beginning(served, native):
    topic = served.topic(1)
    produce(served.bootstrap, topic, numbered(3))
    with Consumer(
        served.bootstrap, topics=[topic], native=native, metadata_max_age_ms=100,
        auto_offset_reset="latest",
    ) as consumer:  # fmt: skip
        assert consumer.position((topic, 0)) == 3
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": served.bootstrap})
        grown = confluent_kafka.admin.NewPartitions(topic, 2)
        admin.create_partitions([grown])[topic].result(TIMEOUT_S)
        produce(served.bootstrap, topic, numbered(3), 1)
        assert [(m.partition, m.value) for m in take(consumer, 3)] == [
            (1, value) for value in numbered(3)
        ]


# Committed offsets.


def test_committed_offsets_are_read_back(served, native):
    topic = served.topic(2)
    for partition in range(2):
        produce(served.bootstrap, topic, numbered(10), partition)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with Consumer(served.bootstrap, group=f"g-{topic}", native=native) as consumer:
        consumer.assign(places)
        assert consumer.committed() == {places[0]: None, places[1]: None}
        taken = take(consumer, 7)
        consumer.commit()
        kept = consumer.committed()
        assert sum(offset or 0 for offset in kept.values()) == 7
        consumer.commit({places[1]: (9, "by hand")})
    with Consumer(served.bootstrap, group_id=f"g-{topic}", native=native) as consumer:
        consumer.assign(places)
        assert consumer.committed(places[1]) == {places[1]: 9}
        first = sum(message.partition == 0 for message in taken)
        assert [consumer.position(place) for place in places] == [first, 9]
        assert len(take(consumer, 10 - first + 1)) == 11 - first
        assert consumer.lag() == 0


def test_commit_accepts_the_former_name_of_its_argument(served):
    topic = served.topic()
    with Consumer(served.bootstrap, group=f"former-{topic}") as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.commit(offsets_to_keep={place: 3})
        assert consumer.committed(place) == {place: 3}
        consumer.commit(offsets={place: 4})
        assert consumer.committed(place) == {place: 4}
        with pytest.raises(TypeError, match="not both"):
            consumer.commit({place: 5}, offsets_to_keep={place: 6})
        assert consumer.committed(place) == {place: 4}


def test_committed_offset_is_visible_to_other_clients(served):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(served.bootstrap, group=f"g-{topic}") as consumer:
        consumer.assign([(topic, 0)])
        take(consumer, 4)
        consumer.commit()
    other = confluent_kafka.Consumer(
        {"bootstrap.servers": served.bootstrap, "group.id": f"g-{topic}"}
    )
    (found,) = other.committed([confluent_kafka.TopicPartition(topic, 0)], TIMEOUT_S)
    other.close()
    assert found.offset == 4


def test_commit_to_a_group_with_members_raises_unknown_member_id(served):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    member = confluent_kafka.Consumer({
        "bootstrap.servers": served.bootstrap, "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    member.subscribe([topic])
    assert member.poll(TIMEOUT_S).error() is None
    with Consumer(served.bootstrap, group=f"g-{topic}") as consumer:
        consumer.assign([(topic, 0)])
        take(consumer, 1)
        with pytest.raises(UnknownMemberId, match="has members"):
            consumer.commit()
    member.close()


def test_group_given_twice_and_commit_without_group_are_rejected(served):
    with pytest.raises(InvalidConfig, match="given twice"):
        Consumer(served.bootstrap, group="g", group_id="g")
    with Consumer(served.bootstrap) as consumer:
        with pytest.raises(InvalidGroupId, match="create the consumer with a group"):
            consumer.commit()


# Closing.


def test_close_from_another_thread_ends_iteration(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    consumer = Consumer(served.bootstrap, topics=[topic], native=native)
    seen: list[bytes] = []

    def iterate():
        for message in consumer:
            seen.append(message.value)

    thread, outcome = in_thread(iterate)
    until(lambda: len(seen) == 5 and consumer.buffer._owner_thread)
    consumer.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert outcome == [None]
    assert seen == numbered(5)
    with pytest.raises(ClientClosed):
        consumer.poll(0)
    with pytest.raises(ClientClosed):
        next(iter(consumer))
    consumer.close()


def test_close_from_another_thread_fails_a_waiting_poll(served, native):
    topic = served.topic()
    consumer = Consumer(served.bootstrap, topics=[topic], native=native)
    consumer.poll(0)
    thread, outcome = in_thread(consumer.poll)
    until(lambda: consumer.buffer._owner_thread)
    consumer.close()
    thread.join(TIMEOUT_S)
    assert isinstance(outcome[0], ClientClosed)


def test_concurrent_use_by_two_threads_is_rejected(served):
    topic = served.topic()
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        thread, _ = in_thread(consumer.poll)
        until(lambda: consumer.buffer._owner_thread)
        with pytest.raises(RuntimeError, match="one thread at a time"):
            consumer.poll(0)
        consumer.close()
        thread.join(TIMEOUT_S)


def test_signal_handler_may_close_the_interrupted_consumer(served, native):
    topic = served.topic()
    consumer = Consumer(served.bootstrap, topics=[topic], native=native)
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    try:
        main = threading.main_thread().ident
        thread, _ = in_thread(
            lambda: (until(lambda: consumer.buffer._owner_thread), signal.pthread_kill(main, 10))
        )
        assert list(consumer) == []
        thread.join(TIMEOUT_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert consumer.closed


# An interrupt inside socket() leaves its closing to the last reference, which warns of it.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_interrupt_ends_poll_and_loses_no_record(served, native):
    topic = served.topic()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
            main = threading.main_thread().ident
            thread, _ = in_thread(
                lambda: (
                    until(lambda: consumer.buffer._owner_thread),
                    signal.pthread_kill(main, 10),
                )
            )
            with pytest.raises(KeyboardInterrupt):
                consumer.poll()
            thread.join(TIMEOUT_S)
            produce(served.bootstrap, topic, numbered(5))
            assert [message.value for message in take(consumer, 5)] == numbered(5)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_interrupt_during_decompression_repeats_no_record(served, monkeypatch):
    topic = served.topic()
    values = [number * 1_000 for number in numbered(10)]  # smaller batches are left uncompressed
    for at in range(0, 10, 2):
        produce(served.bootstrap, topic, values[at : at + 2], compression_type="gzip")
    opened = []

    def decompress(*arguments):
        opened.append(arguments)
        if len(opened) == 2:
            raise KeyboardInterrupt
        return compression.decompress(*arguments)

    monkeypatch.setattr(record_sets, "decompress", decompress)
    with Consumer(served.bootstrap, topics=[topic], consumer_timeout_ms=500) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(TIMEOUT_S)
        assert [message.value for message in consumer] == values


def test_forked_child_may_only_close_and_parent_continues(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        take(consumer, 5)
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(1)
            except RuntimeError as fault:
                consumer.close()
                os._exit(7 if "fork" in str(fault) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        produce(served.bootstrap, topic, numbered(5, 5))
        assert [message.value for message in take(consumer, 5)] == numbered(5, 5)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(1),
        lambda consumer: consumer.consume(1, 1),
        lambda consumer: next(iter(consumer)),
    ],
    ids=["poll", "consume", "iteration"],
)
def test_forked_child_receives_no_message_of_the_parent(served, call):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(5))
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        assert [message.value for message in take(consumer, 2)] == numbered(2)
        child = os.fork()
        if child == 0:
            try:
                call(consumer)
            except RuntimeError as fault:
                os._exit(7 if "fork" in str(fault) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert [message.value for message in take(consumer, 3)] == numbered(3, 2)


def test_closed_consumer_leaves_no_descriptor_open(served, native):
    topic = served.topic(3)
    for partition in range(3):
        produce(served.bootstrap, topic, numbered(5), partition)
    before = descriptors()
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        take(consumer, 15)
        assert consumer.to_table().num_rows == 15
    no_more_than(before)


def test_rows_import_no_pyarrow_and_columns_name_the_missing_package(served):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(3))
    program = f"""
import sys
from itertools import islice
sys.modules["pyarrow"] = None
from kafkalite.client.consumer.consumer import Consumer
with Consumer({served.bootstrap!r}, topics=[{topic!r}], consumer_timeout_ms=5000) as consumer:
    print(len(list(islice(consumer, 3))), "asyncio" in sys.modules, "numpy" in sys.modules)
    for columns in (consumer.batches, consumer.to_table):
        try:
            columns()
        except ImportError as fault:
            print(fault)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT_S)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "3 False False", done.stderr.decode()
    assert len(lines) == 3
    assert all("pip install 'kafkalite[arrow]'" in line for line in lines[1:])
