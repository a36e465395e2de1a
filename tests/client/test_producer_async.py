"""AsyncProducer against a real broker, over ring and TCP."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pyarrow as pa
import pytest

from kafkalite.client.producer.async_producer import AsyncProducer
from kafkalite.errors import BufferExhausted, MessageTooLarge, UnknownTopicOrPartition
from kafkalite.record_metadata import RecordMetadata
from kafkalite.testing import Broker
from tests.client.reading_back import read_back

WAIT_S = 30


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=1, config={"auto.create.topics.enable": "false"}) as made:
        yield made


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


def play(made) -> None:
    asyncio.run(asyncio.wait_for(made, WAIT_S))


def test_awaited_record_returns_its_metadata(broker, native):
    topic = broker.topic()

    async def main():
        async with AsyncProducer(broker.bootstrap, native=native) as producer:
            delivery = await producer.send(topic, "späť", key="k", timestamp=1_700_000_000_000)
            assert await delivery == RecordMetadata(topic, 0, 0, 1_700_000_000_000)
            assert delivery.done() and await delivery == await delivery

    play(main())
    (found,) = read_back(broker, topic)
    assert (found.key(), found.value()) == (b"k", "späť".encode())


def test_record_arguments_are_read_once_during_topic_lookup(broker):
    topic, serialized = broker.topic(), []

    def serializer(value):
        serialized.append(value)
        return value

    async def main():
        async with AsyncProducer(broker.bootstrap, key_serializer=serializer) as producer:
            headers = zip(["a", "b"], [b"1", b"2"], strict=True)
            await producer.send(topic, b"v", b"k", headers=headers, serializer=serializer)
            await producer.send(topic, b"w", headers=iter([("c", b"3")]))

    play(main())
    first, second = read_back(broker, topic)
    assert (first.headers(), second.headers()) == ([("a", b"1"), ("b", b"2")], [("c", b"3")])
    assert serialized == [b"v", b"k"]


def test_concurrent_sends_share_a_batch(broker, native):
    topic = broker.topic()

    async def main():
        async with AsyncProducer(broker.bootstrap, native=native, linger_ms=20_000) as producer:
            await (await producer.send(topic, b"first"))

            async def one(number):
                return await (await producer.send(topic, b"%d" % number))

            places = await asyncio.gather(*(one(number) for number in range(1_000)))
            assert [place.offset for place in places] == list(range(1, 1_001))
            assert producer.metrics()["batches"] < 100

    play(main())
    values = [each.value() for each in read_back(broker, topic)]
    assert values == [b"first", *(b"%d" % number for number in range(1_000))]


def test_topic_lookup_does_not_block_the_event_loop(broker, native):
    async def main():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        async with AsyncProducer(broker.bootstrap, native=native, max_block_ms=300) as producer:
            counting = asyncio.create_task(count())
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("nowhere", b"x")
            counting.cancel()
            assert turns > 5

    play(main())


def test_full_buffer_does_not_block_the_event_loop(native):
    with Broker() as broker:
        topic = broker.topic()

        async def main():
            async with AsyncProducer(
                broker.bootstrap, native=native, buffer_memory=50_000, batch_size=10_000
            ) as producer:
                await (await producer.send(topic, b"first"))
                os.killpg(broker.pid, signal.SIGSTOP)
                sending = asyncio.create_task(send_all(producer))
                started = time.monotonic()
                while producer.metrics()["buffer_memory_left"] >= 10_000:
                    assert time.monotonic() - started < WAIT_S
                    await asyncio.sleep(0.001)
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert not sending.done()
                os.killpg(broker.pid, signal.SIGCONT)
                await sending

        async def send_all(producer):
            for number in range(200):
                await producer.send(topic, b"%d " % number * 300)

        try:
            play(main())
        finally:
            os.killpg(broker.pid, signal.SIGCONT)
        assert len(read_back(broker, topic)) == 201


def test_failed_record_raises_where_it_is_awaited(broker, native):
    topic = broker.topic(config={"max.message.bytes": "2000"})

    async def main():
        async with AsyncProducer(broker.bootstrap, native=native) as producer:
            with pytest.raises(MessageTooLarge):
                await (await producer.send(topic, b"x" * 3_000))
            assert (await (await producer.send(topic, b"y"))).offset == 0

    play(main())


def test_cancelled_task_affects_no_other(broker, native):
    topic = broker.topic()

    async def main():
        async with AsyncProducer(broker.bootstrap, native=native) as producer:
            await (await producer.send(topic, b"first"))
            sent = [await producer.send(topic, b"%d" % number) for number in range(2)]
            waiting = [asyncio.ensure_future(awaited(each)) for each in sent]
            waiting[0].cancel()
            assert (await waiting[1]).offset == 2
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]

    async def awaited(delivery):
        return await delivery

    play(main())
    assert len(read_back(broker, topic)) == 3


def test_send_arrow_is_awaitable(broker, native):
    topic = broker.topic(partitions=2)

    async def main():
        async with AsyncProducer(broker.bootstrap, native=native) as producer:
            assert await producer.partitions_for(topic) == 2
            rows = pa.table({"value": [b"%d" % number for number in range(1_000)]})
            sent = await producer.send_arrow(topic, rows)
            assert sum(count for _, _, count in await sent) == 1_000
            assert sent.done()

    play(main())
    assert sorted(int(each.value()) for each in read_back(broker, topic)) == list(range(1_000))


def test_flush_and_close_complete_all_deliveries(broker, native):
    topic = broker.topic()

    async def main():
        producer = AsyncProducer(broker.bootstrap, native=native, linger_ms=20_000)
        sent = [await producer.send(topic, b"x") for _ in range(10)]
        await producer.flush(WAIT_S)
        assert all(each.done() for each in sent)
        last = await producer.send(topic, b"y")
        await producer.close()
        assert last.done() and (await last).offset == 10
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send(topic, b"z")

    play(main())


def test_back_pressure_leaves_default_executor_free_and_cancels_sends(native):
    with Broker() as broker:
        topic = broker.topic()

        async def main():
            async with AsyncProducer(
                broker.bootstrap, native=native, buffer_memory=50_000, batch_size=10_000
            ) as producer:
                await (await producer.send(topic, b"first"))
                os.killpg(broker.pid, signal.SIGSTOP)
                sends = [
                    asyncio.create_task(producer.send(topic, b"%d " % number * 500))
                    for number in range(400)
                ]
                taken = 0
                while (now := sum(each.done() for each in sends)) > taken or not now:
                    taken = now
                    await asyncio.sleep(0.05)
                assert 0 < taken < 400
                assert await asyncio.to_thread(lambda: "free") == "free"
                for each in sends:
                    each.cancel()
                done = await asyncio.gather(*sends, return_exceptions=True)
                os.killpg(broker.pid, signal.SIGCONT)
                return [await each for each in done if not isinstance(each, BaseException)]

        try:
            written = asyncio.run(asyncio.wait_for(main(), WAIT_S))
        finally:
            os.killpg(broker.pid, signal.SIGCONT)
        assert len(read_back(broker, topic)) == 1 + len(written)


def test_send_without_memory_fails_after_max_block_ms(native):
    with Broker() as broker:
        topic = broker.topic()

        async def main():
            async with AsyncProducer(
                broker.bootstrap, native=native, buffer_memory=20_000, batch_size=10_000,
                max_block_ms=100,
            ) as producer:  # fmt: skip
                await (await producer.send(topic, b"first"))
                os.killpg(broker.pid, signal.SIGSTOP)
                with pytest.raises(BufferExhausted):
                    for _ in range(400):
                        await producer.send(topic, b"x" * 5_000)
                os.killpg(broker.pid, signal.SIGCONT)

        try:
            play(main())
        finally:
            os.killpg(broker.pid, signal.SIGCONT)


def test_concurrent_sends_to_an_unknown_topic_share_one_lookup(broker):
    async def main():
        async with AsyncProducer(broker.bootstrap, max_block_ms=300) as producer:
            calls = []
            look_up = producer._producer.partitions_for
            producer._producer.partitions_for = lambda name: calls.append(name) or look_up(name)
            sends = [producer.send("nowhere", b"x") for _ in range(50)]
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(error) for error in errors} == {UnknownTopicOrPartition}
            assert calls == ["nowhere"]

    play(main())
