"""AsyncConsumer against a real broker: the same records, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kafkalite.client.consumer.async_consumer import AsyncConsumer
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.errors import InvalidConfig
from tests.client.consuming import TIMEOUT_S, descriptors, no_more_than, numbered, produce


def run(main):
    """Run a coroutine, and check that it leaves neither threads nor descriptors."""
    threads, before = threading.active_count(), descriptors()
    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S * 2))
    assert threading.active_count() == threads
    no_more_than(before)


async def take(consumer, count):
    messages = []
    while len(messages) < count:
        message = await consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(messages)} of {count} came"
        messages.append(message)
    return messages


async def until_it_waits(consumer, waiting=None):
    while not (consumer._waiting or (waiting is not None and waiting.done())):
        await asyncio.sleep(0.001)


def test_async_iteration_yields_every_message_once_and_in_order(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(2000))

    async def main():
        values = []
        async with AsyncConsumer(served.bootstrap, topics=[topic], native=native) as consumer:
            async for message in consumer:
                values.append(message.value)
                if len(values) == 1000:
                    assert await consumer.position((topic, 0)) == 1000
                if len(values) == 2000:
                    break
            assert await consumer.poll(0.05) is None
        assert values == numbered(2000)

    run(main)


def test_async_batches_and_tables_equal_the_consumer(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(2000))

    async def main():
        async with AsyncConsumer(served.bootstrap, topics=[topic], native=native) as consumer:
            values = []
            async for batch in consumer.batches(columns=["value"], timeout=TIMEOUT_S):
                values += batch["value"].to_pylist()
                if len(values) == 2000:
                    break
            assert values == numbered(2000)
            table = await consumer.to_table(start=-5, columns=["value"])
            assert table["value"].to_pylist() == numbered(5, 1995)
            assert [each async for each in consumer.batches(timeout=0.05)] == []

    run(main)


def test_all_other_consumer_methods_are_coroutines(served):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(10))
    place = (topic, 0)

    async def main():
        group = f"g-{topic}"
        async with AsyncConsumer(served.bootstrap, group=group) as consumer:
            await consumer.assign([place])
            assert consumer.assignment == [place]
            assert await consumer.watermarks(place) == (0, 10)
            await take(consumer, 4)
            assert await consumer.lag() == 6
            await consumer.commit()
            assert await consumer.committed() == {place: 4}
            await consumer.commit(offsets_to_keep={place: 3})
            assert await consumer.committed() == {place: 3}
            await consumer.commit(offsets={place: 4})
            assert await consumer.committed() == {place: 4}
            await consumer.seek(place, 8)
            assert (await take(consumer, 1))[0].offset == 8
            await consumer.seek_to_beginning()
            assert await consumer.position(place) == 0
            await consumer.seek_to_end(place)
            assert await consumer.position(place) == 10
            await consumer.seek_to_time(0)
            assert await consumer.position(place) == 0
            assert (await consumer.offsets_for_times({place: 0}))[place].offset == 0
            await consumer.pause(place)
            assert consumer.paused == [place]
            assert await consumer.poll(0.05) is None
            await consumer.resume(place)
            assert len(await take(consumer, 10)) == 10
            assert consumer.metrics()["offset_resets"] == 0

    run(main)


def test_waiting_for_records_does_not_block_the_event_loop(served, native):
    topic = served.topic()

    async def main():
        async with AsyncConsumer(served.bootstrap, topics=[topic], native=native) as consumer:
            waiting = asyncio.create_task(take(consumer, 1))
            await until_it_waits(consumer)
            await asyncio.to_thread(produce, served.bootstrap, topic, numbered(1))
            assert (await waiting)[0].value == b"0"

    run(main)


def test_call_is_not_delayed_by_a_task_waiting_for_records(served, native):
    topic = served.topic()

    async def main():
        async with AsyncConsumer(served.bootstrap, topics=[topic], native=native) as consumer:
            waiting = asyncio.create_task(take(consumer, 2))
            for _ in range(20):
                await until_it_waits(consumer)
                assert await consumer.watermarks((topic, 0)) == (0, 0)
            await asyncio.to_thread(produce, served.bootstrap, topic, numbered(2))
            assert [message.value for message in await waiting] == numbered(2)

    run(main)


@pytest.mark.parametrize("way", ["rows", "columns"])
def test_cancelled_wait_loses_no_record(served, native, way):
    topic = served.topic()

    async def main():
        async with AsyncConsumer(served.bootstrap, topics=[topic], native=native) as consumer:
            values = []

            async def next_values():
                if way == "rows":
                    return [(await take(consumer, 1))[0].value]
                return (await anext(consumer.batches(columns=["value"])))["value"].to_pylist()

            for number in range(30):
                waiting = asyncio.create_task(next_values())
                if number % 2:
                    await until_it_waits(consumer, waiting)
                writing = asyncio.create_task(
                    asyncio.to_thread(produce, served.bootstrap, topic, numbered(1, number))
                )
                await asyncio.sleep(0.001 * (number % 5))
                waiting.cancel()
                try:
                    values += await waiting
                except asyncio.CancelledError:
                    pass
                await writing
            while len(values) < 30:
                values += await next_values()
            assert values == numbered(30)

    run(main)


def test_close_ends_iteration_and_fails_a_waiting_poll(served, native):
    topic = served.topic()

    async def main():
        async def iterate(consumer):
            return [message async for message in consumer]

        for waits, expected in ((iterate, None), (lambda consumer: consumer.poll(), ClientClosed)):
            consumer = AsyncConsumer(served.bootstrap, topics=[topic], native=native)
            waiting = asyncio.create_task(waits(consumer))
            await until_it_waits(consumer)
            await consumer.close()
            if expected is None:
                assert await waiting == []
            else:
                with pytest.raises(expected):
                    await waiting
            with pytest.raises(ClientClosed):
                await consumer.poll()
            await consumer.close()

    run(main)


def test_invalid_settings_are_rejected_on_construction():
    with pytest.raises(InvalidConfig, match="given twice"):
        AsyncConsumer("127.0.0.1:1", group="g", group_id="g")
