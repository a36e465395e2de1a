"""Delivery callbacks and their threads, and failures that no result() or callback reported."""

from __future__ import annotations

import logging
import threading

import pyarrow as pa
import pytest

from kafkalite import Producer
from kafkalite.client.net.topology import PartitionMetadata, TopicMetadata
from kafkalite.errors import InvalidRecord, KafkaError, MessageTooLarge, UnknownTopicOrPartition
from kafkalite.testing import Broker
from tests.simulation.producer import NODE, Harness

WAIT_S = 30


@pytest.fixture(scope="module")
def broker():
    with Broker() as made:
        yield made


@pytest.fixture
def harness(tmp_path):
    made = Harness(tmp_path)
    made.begin()
    yield made
    made.close()


@pytest.mark.parametrize("native", ["auto", "off"])
def test_callbacks_never_run_inside_send(broker, native):
    topic = broker.topic()
    sending, inside, told = threading.local(), [], []
    done = threading.Event()
    count = 200

    def on_delivery(error, place):
        if getattr(sending, "now", False):
            inside.append(place)
        told.append(place)
        if len(told) == count:
            done.set()

    with Producer(broker.bootstrap, native=native, batch_size=300) as producer:
        for _ in range(count):
            sending.now = True
            producer.send(topic, b"x" * 50, on_delivery=on_delivery)
            producer.send_arrow(topic, pa.table({"value": [b"y"]}))
            sending.now = False
        assert done.wait(WAIT_S), "the background thread runs callbacks that nobody waits for"
    assert not inside
    assert len(told) == count


def test_lock_may_be_held_around_send_and_taken_in_the_callback(broker):
    topic = broker.topic()
    lock, told = threading.Lock(), threading.Semaphore(0)

    def on_delivery(error, place):
        with lock:
            told.release()

    with Producer(broker.bootstrap, batch_size=300, linger_ms=0) as producer:
        for _ in range(1_000):
            with lock:
                producer.send(topic, b"x" * 50, on_delivery=on_delivery)
        for _ in range(1_000):
            assert told.acquire(timeout=WAIT_S)


def refuse(harness, count=1):
    """Let `count` batches fail, and return them."""
    batches = []
    for _ in range(count):
        harness.gather(b"x" * 100)
        batches.append(harness.queue.batches[-1])
        harness.push()
        harness.serve(InvalidRecord.code, written=False)
        harness.hear()
    assert all(batch.error is not None for batch in batches)
    return batches


def test_unobserved_failures_are_logged_and_raised_by_check(harness, caplog):
    refuse(harness, 3)
    callbacks = harness.state.callbacks
    callbacks.run_callbacks()
    (queue,) = caplog.records
    assert queue.levelno == logging.ERROR
    assert "topic=t partition=0 records=3 batches=3" in queue.message
    refuse(harness, 2)
    callbacks.run_callbacks()
    assert len(caplog.records) == 1, "log lines about failures are limited in time"
    callbacks.run_callbacks(final=True)
    assert "records=2 batches=2" in caplog.records[1].message
    with pytest.raises(InvalidRecord, match="^5 records were not delivered"):
        callbacks.check()


@pytest.mark.parametrize("when", ["before", "after"])
def test_observed_failure_is_not_reported(harness, caplog, when):
    harness.gather(b"x" * 100)
    (batch,) = harness.queue.batches
    if when == "before":
        batch.request_outcome()
    harness.push()
    harness.serve(InvalidRecord.code, written=False)
    harness.hear()
    if when == "after":
        batch.call_when_done(batch, lambda _: None)
    harness.state.callbacks.run_callbacks(final=True)
    harness.state.callbacks.check()
    assert harness.state.callbacks.unseen_records == 0
    assert not caplog.records


def test_observed_batch_reports_no_failure_of_its_parts(harness):
    harness.gather(b"1")
    harness.gather(b"2")
    (batch,) = harness.queue.batches
    batch.request_outcome()
    for _ in range(3):  # the batch, then each of its halves
        harness.push()
        harness.serve(MessageTooLarge.code, written=False)
        harness.hear()
    assert [part.error is None for _, part in batch.parts] == [False, False]
    assert harness.state.callbacks.unseen_records == 0


def test_with_block_raises_after_unobserved_failures(broker, caplog):
    topic = broker.topic(config={"max.message.bytes": "200"})
    with pytest.raises(MessageTooLarge, match="^1 records were not delivered"):
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, b"x" * 500)
    assert "topic=" in caplog.text
    with Producer(broker.bootstrap) as producer:
        assert isinstance(producer.send(topic, b"x" * 500).exception(WAIT_S), MessageTooLarge)
    with Producer(broker.bootstrap) as producer:
        sent = producer.send_arrow(topic, pa.table({"value": [b"x" * 500]}))
        with pytest.raises(KafkaError):
            sent.result(WAIT_S)


def test_exception_in_a_with_block_is_kept_and_limits_close(caplog):
    with pytest.raises(ZeroDivisionError):
        with Producer("127.0.0.1:1", max_block_ms=10) as producer:
            closed_in = []
            producer._lifetime.close = closed_in.append
            1 / 0  # noqa: B018
    assert closed_in == [5.0]
    del producer._lifetime.close
    producer._lifetime.close(0)


def test_empty_failed_batch_is_not_reported(harness, caplog):
    assert harness.sender.locked(harness.sender.open_batch_in, harness.queue, None, 200, 0)
    batch = harness.queue.open_batch
    harness.sender.locked(harness.state.fail_all, InvalidRecord("over"))
    assert batch.done and batch.error is not None
    harness.state.callbacks.run_callbacks(final=True)
    assert not caplog.records


def test_interrupted_callback_keeps_the_other_callbacks(harness):
    harness.gather(b"x")
    (batch,) = harness.queue.batches
    told = []

    def interrupted(_):
        raise KeyboardInterrupt

    for callback in (told.append, interrupted, told.append):
        batch.call_when_done("told", callback)
    harness.push()
    harness.serve()
    harness.hear()
    with pytest.raises(KeyboardInterrupt):
        harness.state.callbacks.run_callbacks()
    assert told == ["told"]
    harness.state.callbacks.run_callbacks()
    assert told == ["told", "told"]


@pytest.mark.parametrize("native", ["auto", "off"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_callback_that_raises_exit_keeps_the_background_thread(broker, native, error, caplog):
    topic, called = broker.topic(), threading.Event()

    def on_delivery(_error, _place):
        called.set()
        raise error

    with Producer(broker.bootstrap, native=native) as producer:
        producer.send(topic, b"x", on_delivery=on_delivery)
        assert called.wait(WAIT_S), "the background thread runs callbacks that nobody waits for"
        assert producer.send(topic, b"y").result(WAIT_S).offset == 1
    assert caplog.records[0].exc_info[1] is error


def test_topic_recreated_with_fewer_partitions_fails_records_of_the_others(harness):
    sender, topic = harness.sender, harness.queue.topic
    partitions = {index: PartitionMetadata(NODE, 0) for index in range(3)}
    sender.locked(sender.update_metadata, topic, TopicMetadata("t", b"i" * 16, partitions))
    assert len(topic.queues) == 3
    topic.sticky = lost = topic.queues[2]
    memory = harness.state.accumulator.memory_left
    assert sender.locked(sender.open_batch_in, lost, None, 200, 0)
    batch = lost.open_batch
    batch.content.builder.append(b"key", b"value", None, 1)
    anew = TopicMetadata("t", b"j" * 16, {0: PartitionMetadata(NODE, 0)})
    sender.locked(sender.update_metadata, topic, anew)
    assert topic.queues == [harness.queue]
    assert topic.sticky is None
    assert isinstance(batch.error, UnknownTopicOrPartition)
    assert "created again with fewer partitions" in str(batch.error)
    assert harness.state.accumulator.memory_left == memory
    for way in (sender.open_batch_in, sender.add_batch):
        with pytest.raises(UnknownTopicOrPartition):
            sender.locked(way, lost, None, 200, 0)
    assert harness.state.accumulator.memory_left == memory


def test_stale_metadata_removes_no_partition(harness):
    sender, topic = harness.sender, harness.queue.topic
    two = TopicMetadata(
        "t", b"i" * 16, {0: PartitionMetadata(NODE, 0), 1: PartitionMetadata(NODE, 0)}
    )
    sender.locked(sender.update_metadata, topic, two)
    one = TopicMetadata("t", b"i" * 16, {0: PartitionMetadata(NODE, 0)})
    sender.locked(sender.update_metadata, topic, one)
    assert len(topic.queues) == 2
