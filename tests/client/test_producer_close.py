"""Closing a producer: close and flush around delivery callbacks, exit, and forked children."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

from kafkalite import AsyncProducer, Producer
from kafkalite.client.producer.async_producer import THREADS
from kafkalite.client.producer.delivery_callbacks import UNSEEN_BATCHES_MAX
from kafkalite.errors import InvalidRecord, MessageTooLarge, PolicyViolation
from kafkalite.testing import Broker
from tests.client.consuming import until
from tests.client.reading_back import read_back
from tests.client.test_producer_lifetime import producer_threads
from tests.client.test_producer_process import run
from tests.simulation.producer import Harness

WAIT_S = 30


@pytest.fixture(scope="module")
def broker():
    with Broker() as made:
        yield made


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


@pytest.fixture
def harness(tmp_path):
    made = Harness(tmp_path)
    made.begin()
    yield made
    made.close()


class Blocking:
    """A delivery callback that does not return until it is released."""

    def __init__(self):
        self.opened_count, self.released = threading.Event(), threading.Event()

    def __call__(self, error, place):
        self.opened_count.set()
        assert self.released.wait(WAIT_S)


@pytest.fixture
def blocking():
    made = Blocking()
    yield made
    made.released.set()


@pytest.mark.parametrize("thread", ["background", "flush"])
def test_close_in_a_callback_is_rejected_and_loses_no_record(broker, native, thread):
    topic, raised, called = broker.topic(), [], threading.Event()
    producer = Producer(broker.bootstrap, native=native, linger_ms=60_000)

    def on_delivery(error, place):
        unsent.append(producer.send(topic, b"unsent"))
        try:
            producer.close()
        except RuntimeError as fault:
            raised.append(str(fault))
        called.set()

    unsent = []
    delivery = producer.send(topic, b"x", on_delivery=on_delivery)
    if thread == "flush":
        producer.flush()
    else:
        producer.want(delivery.batch)
    assert called.wait(WAIT_S)
    assert "nor close it" in raised[0]
    assert producer.is_open
    assert unsent[0].result(WAIT_S).offset == 1
    producer.close()


def test_flush_waits_for_callbacks_of_another_thread(broker, native, blocking):
    topic = broker.topic()
    with Producer(broker.bootstrap, native=native) as producer:
        producer.send(topic, b"x", on_delivery=blocking)
        assert blocking.opened_count.wait(WAIT_S)
        with pytest.raises(TimeoutError, match="delivery callbacks still run"):
            producer.flush(0.05)
        ended = threading.Event()
        threading.Thread(target=lambda: (producer.flush(), ended.set())).start()
        assert not ended.wait(0.05)
        blocking.released.set()
        assert ended.wait(WAIT_S)


def test_close_with_a_timeout_does_not_wait_for_a_callback(broker, native, blocking, caplog):
    topic, threads = broker.topic(), len(producer_threads())
    producer = Producer(broker.bootstrap, native=native)
    producer.send(topic, b"x", on_delivery=blocking)
    assert blocking.opened_count.wait(WAIT_S)
    producer.close(0)  # without a timeout it would wait for the callback
    assert "A delivery callback has not returned" in caplog.text
    assert not blocking.released.is_set()
    blocking.released.set()
    until(lambda: len(producer_threads()) == threads, "the end of the thread")


@pytest.mark.parametrize("call", ["result", "flush"])
def test_call_with_a_timeout_runs_no_callback_itself(broker, native, call):
    topic, by, called = broker.topic(), [], threading.Event()

    def on_delivery(error, place):
        by.append(threading.get_ident())
        called.set()

    with Producer(broker.bootstrap, native=native) as producer:
        delivery = producer.send(topic, b"x", on_delivery=on_delivery)
        (delivery.result if call == "result" else producer.flush)(WAIT_S)
        assert called.wait(WAIT_S)
    assert by != [threading.get_ident()]


def test_program_ends_although_a_callback_blocks(broker, native):
    ended = run(
        """
        import sys, threading
        from kafkalite import Producer
        from kafkalite.client.producer import lifetime
        lifetime.EXIT_TIMEOUT_S = 0.1
        begun = threading.Event()
        def on_delivery(error, place):
            begun.set()
            threading.Event().wait()
        producer = Producer(sys.argv[1], native=sys.argv[3])
        producer.send(sys.argv[2], b"x", on_delivery=on_delivery)
        begun.wait()
        """,
        broker.bootstrap, broker.topic(), native,
    )  # fmt: skip
    assert ended.returncode == 0
    assert "A delivery callback has not returned" in ended.stderr


def test_callbacks_of_abandoned_records_run_before_close_returns(native):
    told = []
    with Broker() as broker:
        topic = broker.topic()
        producer = Producer(broker.bootstrap, native=native, linger_ms=60_000)
        producer.send(topic, b"x", on_delivery=lambda error, place: told.append(error))
        producer.close(0)
    assert ["closed before" in str(error) for error in told] == [True]


def test_sys_exit_in_a_callback_reaches_the_calling_thread(harness, caplog):
    harness.gather(b"x")
    (batch,) = harness.queue.batches
    told = []

    def exits(_):
        raise SystemExit(3)

    for callback in (told.append, exits, told.append):
        batch.call_when_done("told", callback)
    harness.push()
    harness.serve()
    harness.hear()
    with pytest.raises(SystemExit):
        harness.state.callbacks.run_callbacks()
    harness.state.callbacks.run_callbacks()
    assert told == ["told", "told"]
    assert not caplog.records


def test_cancelled_table_that_waits_for_a_thread_is_not_sent(broker):
    topic = broker.topic()

    async def main():
        async with AsyncProducer(broker.bootstrap) as producer:
            release = threading.Event()
            held = [producer._in_thread(release.wait) for _ in range(THREADS)]
            sending = asyncio.create_task(producer.send_arrow(topic, pa.table({"value": [b"x"]})))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.sleep(0)
            release.set()
            producer._threads.submit(int).result(WAIT_S)  # what was submitted before has begun
            await asyncio.gather(*held)
            return await asyncio.gather(sending, return_exceptions=True)

    assert isinstance(asyncio.run(main())[0], asyncio.CancelledError)
    assert not read_back(broker, topic)


def test_sys_exit_in_a_with_block_closes_without_a_timeout():
    for error, expected in ((SystemExit, None), (GeneratorExit, None), (ZeroDivisionError, 5.0)):
        with pytest.raises(error):
            with Producer("127.0.0.1:1") as producer:
                closed_in = []
                producer._lifetime.close = closed_in.append
                raise error
        assert closed_in == [expected]
        del producer._lifetime.close
        producer.close(0)


def test_forked_child_leaves_a_with_block_without_closing_the_producer(broker, native):
    topic = broker.topic()
    ended = run(
        """
        import os, sys, warnings
        from kafkalite import Producer
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork with threads
        with Producer(sys.argv[1], native=sys.argv[3], linger_ms=60_000) as producer:
            producer.send(sys.argv[2], b"x")
            child = os.fork()
            if child == 0:
                producer.close()
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        broker.bootstrap, topic, native,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7\n", "")
    assert [each.value() for each in read_back(broker, topic)] == [b"x"]


# Errors that no result() or callback reported.


def refuse(harness, error=InvalidRecord):
    harness.gather(b"x")
    batch = harness.queue.batches[-1]
    harness.push()
    harness.serve(error.code, written=False)
    harness.hear()
    return batch


def test_check_raises_failures_since_the_last_check(harness):
    callbacks = harness.state.callbacks
    refuse(harness, MessageTooLarge).request_outcome()
    refuse(harness, InvalidRecord)
    refuse(harness, PolicyViolation)
    with pytest.raises(InvalidRecord, match="^2 records"):
        callbacks.check()
    callbacks.check()
    batch = refuse(harness, PolicyViolation)
    batch.request_outcome()
    callbacks.check()
    refuse(harness, PolicyViolation)
    with pytest.raises(PolicyViolation, match="^1 records"):
        callbacks.check()


def test_check_counts_records_of_all_failed_batches(harness):
    first = refuse(harness, PolicyViolation)
    for _ in range(UNSEEN_BATCHES_MAX):
        refuse(harness)
    first.request_outcome()
    with pytest.raises(PolicyViolation, match=f"^{UNSEEN_BATCHES_MAX + 1} records"):
        harness.state.callbacks.check()


def test_batch_failed_in_an_interrupted_section_is_counted_once(harness):
    harness.gather(b"x")
    (batch,) = harness.queue.batches
    harness.push()
    callbacks, taken_in = harness.state.callbacks, harness.state.callbacks.completed

    def interrupted(completed):
        taken_in(completed)
        raise KeyboardInterrupt

    callbacks.completed = interrupted
    with pytest.raises(KeyboardInterrupt):
        harness.sender.locked(
            lambda: harness.state.fail(batch, InvalidRecord("refused"), unwritten=True)
        )
    callbacks.completed = taken_in
    harness.sender.locked(lambda: None)  # repairs the interrupted section
    assert callbacks.unseen_records == 1


def test_failure_report_is_scheduled_without_other_events(harness):
    callbacks = harness.state.callbacks
    refuse(harness)
    callbacks.run_callbacks()
    before_s = callbacks.report_due_s
    refuse(harness)
    assert before_s == float("inf") and 0 < callbacks.report_due_s < float("inf")


# AsyncProducer.


def test_closed_async_producer_raises_closed(broker):
    topic = broker.topic()

    async def main():
        producer = AsyncProducer(broker.bootstrap)
        await (await producer.send(topic, b"x"))
        await producer.close()
        await producer.close()
        await producer.flush()
        for call in (
            producer.send(topic, b"x"), producer.send_arrow(topic, None),
            producer.send_table(topic, None), producer.partitions_for(topic),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match="The producer is closed"):
                await call

    asyncio.run(main())


def test_calls_waiting_for_a_thread_fail_when_the_producer_closes():
    async def main():
        producer = AsyncProducer("127.0.0.1:1", max_block_ms=200)
        calls = [asyncio.create_task(producer.partitions_for(f"t{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await producer.close(0)
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(main())
    assert not [each for each in found if isinstance(each, asyncio.CancelledError)]
    assert "The producer is closed" in str(found[-1])
