"""Produce and consume in the tasks of one asyncio event loop.

One task writes readings; the other reads each of them and writes the alarms to a second topic.

    make start                                              # in another terminal
    python examples/asyncio_pipeline.py [HOST:PORT]         # default: 127.0.0.1:9092
"""

import asyncio
import json
import sys

from kafkalite import AsyncConsumer, AsyncProducer

READING_COUNT = 200


async def measure(producer: AsyncProducer) -> None:
    """Write the readings; a send waits only while `buffer.memory` is used up."""
    for number in range(READING_COUNT):
        reading = {"sensor": number % 5, "celsius": 20 + number % 50}
        await producer.send("temperatures", json.dumps(reading), key=f"sensor {number % 5}")


async def watch(producer: AsyncProducer, consumer: AsyncConsumer) -> int:
    """Write an alarm for each reading of 60 degrees or more; return the number of alarms."""
    deliveries = []
    count = 0
    async for message in consumer:
        reading = json.loads(message.value)
        if reading["celsius"] >= 60:
            deliveries.append(await producer.send("alarms", message.value, key=message.key))
        count += 1
        if count == READING_COUNT:
            break
    for delivery in deliveries:
        await delivery  # raises if the record was not written
    return len(deliveries)


async def main(bootstrap: str) -> None:
    async with (
        AsyncProducer(bootstrap) as producer,
        AsyncConsumer(bootstrap, topics="temperatures") as consumer,
    ):
        _, alarm_count = await asyncio.gather(measure(producer), watch(producer, consumer))
    print(f"{READING_COUNT} readings, {alarm_count} alarms")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"))
