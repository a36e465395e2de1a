"""Streams whose topics change under them: every kind of start, failOnDataLoss on and off."""

import json
import random
import time
import uuid

import pytest

pytest.importorskip("pyspark")

from confluent_kafka.admin import NewTopic

from kafkalite import Producer
from tests.spark.queries import TIMEOUT_S, await_sources
from tests.spark.topics import admin, delete, done, grow, trim

pytestmark = [pytest.mark.spark, pytest.mark.spark_session]

BEGUN_MS = 1_700_000_000_000
PARTITIONS, GROWN = 3, 5
STRESS_STEPS = 60
SEED = random.randrange(1 << 32)


class Query:
    """A stream that records its micro-batches, and restarts from its checkpoint."""

    def __init__(self, spark, broker, checkpoint, **options):
        reader = spark.readStream.format("kafkalite").options(**options)
        self.frame = reader.option("kafka.bootstrap.servers", broker.bootstrap).load()
        self.checkpoint = checkpoint
        self.batches = {}
        self.running = None

    def start(self):
        def keep(rows, number):
            self.batches[number] = [bytes(row.value).decode() for row in rows.collect()]

        writer = self.frame.select("value").writeStream.foreachBatch(keep)
        self.running = writer.option("checkpointLocation", str(self.checkpoint)).start()
        await_sources(self.running)

    def stop(self):
        if self.running is not None:
            self.running.stop()

    def rest(self):
        """Stop when its last micro-batch is committed, so that it is not repeated."""
        commit = self.checkpoint / "commits" / str(max(self.batches))
        until_s = time.monotonic() + TIMEOUT_S
        while not commit.exists():
            assert self.running.exception() is None, self.running.exception()
            assert time.monotonic() < until_s
            time.sleep(0.02)
        self.stop()

    def values_read(self):
        return sorted(value for batch in dict(self.batches).values() for value in batch)

    def await_values(self, wanted):
        """Wait for these values, and check that there are no others."""
        until_s = time.monotonic() + TIMEOUT_S
        while len(self.values_read()) < len(wanted) and time.monotonic() < until_s:
            assert self.running.exception() is None, self.running.exception()
            time.sleep(0.02)
        assert self.values_read() == sorted(wanted)

    def await_begin(self):
        """Wait until its first micro-batch is done, an empty one for a stream that begins late."""
        until_s = time.monotonic() + TIMEOUT_S
        while not self.batches:
            assert self.running.exception() is None, self.running.exception()
            assert time.monotonic() < until_s
            time.sleep(0.02)


@pytest.fixture
def query(spark, broker, tmp_path):
    made = []

    def make(**options):
        made.append(Query(spark, broker, tmp_path / "checkpoint", **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def produce(broker, topic, numbers, partitions=range(PARTITIONS)):
    """Write a record of each number into each of these partitions, a second apart."""
    with Producer(broker.bootstrap) as producer:
        for number in numbers:
            for partition in partitions:
                producer.send(topic, f"{partition}-{number}".encode(), partition=partition,
                              timestamp=BEGUN_MS + number * 1000)  # fmt: skip


def wanted(numbers, partitions=range(PARTITIONS)):
    return {f"{partition}-{number}" for number in numbers for partition in partitions}


WAYS = {
    "assign": lambda topic: json.dumps({topic: [*range(PARTITIONS)]}),
    "subscribe": lambda topic: topic,
    "subscribePattern": lambda topic: f"{topic}.*",
}
STARTS = {
    "latest": (lambda topic: {"startingOffsets": "latest"}, set()),
    "earliest": (lambda topic: {"startingOffsets": "earliest"}, wanted(range(10))),
    "offsets": (
        lambda topic: {"startingOffsets": json.dumps({topic: {"0": -2, "1": -1, "2": 4}})},
        wanted(range(10), [0]) | wanted(range(4, 10), [2]),
    ),
    "timestamps": (
        lambda topic: {
            "startingOffsetsByTimestamp": json.dumps(
                {topic: {"0": BEGUN_MS + 2001, "1": BEGUN_MS + 9000, "2": BEGUN_MS}}
            )
        },
        wanted(range(3, 10), [0]) | wanted([9], [1]) | wanted(range(10), [2]),
    ),
    "timestamp": (
        lambda topic: {"startingTimestamp": str(BEGUN_MS + 5000)},
        wanted(range(5, 10)),
    ),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_stream_continues_until_data_loss(broker, query, fails, way, start):
    topic = broker.topic(partitions=PARTITIONS)
    where, read = STARTS[start]
    expected = set(read)
    options = {way: WAYS[way](topic), "failOnDataLoss": fails, **where(topic)}
    stream = query(**options)
    produce(broker, topic, range(10))
    stream.start()
    stream.await_begin()

    produce(broker, topic, range(10, 15))
    expected |= wanted(range(10, 15))
    stream.await_values(expected)

    stream.rest()
    produce(broker, topic, range(15, 20))
    expected |= wanted(range(15, 20))
    stream.start()
    stream.await_values(expected)

    grow(broker, topic, GROWN)
    produce(broker, topic, range(20, 25), range(GROWN))
    expected |= wanted(range(20, 25), range(PARTITIONS if way == "assign" else GROWN))
    stream.await_values(expected)

    stream.rest()
    produce(broker, topic, range(25, 35))
    trim(broker, topic, {0: 30})
    stream.start()
    if fails == "true":
        with pytest.raises(Exception, match="failOnDataLoss"):
            stream.running.awaitTermination(TIMEOUT_S)
        assert set(stream.values_read()) <= expected | wanted(range(25, 35), [1, 2])
        return
    expected |= wanted(range(25, 35), [1, 2]) | wanted(range(30, 35), [0])
    stream.await_values(expected)
    produce(broker, topic, range(35, 40))
    expected |= wanted(range(35, 40))
    stream.await_values(expected)


def test_pattern_stream_follows_created_deleted_and_grown_topics(broker, query):
    """Deleted records may have been read or not; all others are read, and none twice."""
    prefix = f"stress-{uuid.uuid4().hex[:8]}"
    dice = random.Random(SEED)
    stream = query(subscribePattern=f"{prefix}-.*", failOnDataLoss="false",
                   startingOffsets="earliest")  # fmt: skip
    partitions, sent, gone = {}, {}, set()
    client = admin(broker)

    def add():
        topic = f"{prefix}-{len(sent)}"
        partitions[topic] = dice.randint(1, 4)
        sent[topic] = 0
        done(client.create_topics([NewTopic(topic, partitions[topic])]))

    def remove():
        if len(partitions) > 1:
            topic = dice.choice(sorted(partitions))
            del partitions[topic]
            gone.add(topic)
            delete(broker, topic)

    def widen():
        topic = dice.choice(sorted(partitions))
        partitions[topic] += dice.randint(1, 3)
        grow(broker, topic, partitions[topic])

    def write():
        with Producer(broker.bootstrap) as producer:
            for topic, count in partitions.items():
                for _ in range(dice.randint(0, 50)):
                    producer.send(topic, f"{topic}/{sent[topic]}".encode(),
                                  partition=dice.randrange(count))  # fmt: skip
                    sent[topic] += 1

    add()
    stream.start()
    stream.await_begin()
    for _ in range(STRESS_STEPS):
        if dice.random() < 0.1:
            stream.stop()
            stream.start()
        else:
            dice.choice([add, remove, widen, write, write, write])()
        assert stream.running.exception() is None, f"seed {SEED}: {stream.running.exception()}"
    write()
    stay = {f"{topic}/{number}" for topic in partitions for number in range(sent[topic])}
    until_s = time.monotonic() + TIMEOUT_S
    while not stay <= set(stream.values_read()) and time.monotonic() < until_s:
        assert stream.running.exception() is None, f"seed {SEED}: {stream.running.exception()}"
        time.sleep(0.05)
    received = stream.values_read()
    assert stay <= set(received), f"seed {SEED}: {sorted(stay - set(received))[:5]} did not come"
    assert len(set(received)) == len(received), f"seed {SEED}: something came twice"
    assert {value.split("/")[0] for value in received} <= gone | partitions.keys()


OLD_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.shuffle.partitions": "5",
}
OLD_CHECKPOINTS = {
    "2.1": ({"batchWatermarkMs": 0, "batchTimestampMs": BEGUN_MS}, "{}"),
    "2.4": (
        {"batchWatermarkMs": 0, "batchTimestampMs": BEGUN_MS, "conf": OLD_SETTINGS},
        '{"nextBatchWatermarkMs":0}',
    ),
}


@pytest.mark.parametrize("version", OLD_CHECKPOINTS)
def test_checkpoint_of_an_older_spark_is_continued(broker, query, tmp_path, version):
    """The checkpoint has the layout of Spark's own Kafka source of that version.

    Its offsets are read and must not be repeated.  One micro-batch is committed, and another is
    begun and must be done with the planned offsets.
    """
    topic = broker.topic(partitions=PARTITIONS)
    produce(broker, topic, range(10))
    about, over = OLD_CHECKPOINTS[version]
    checkpoint = tmp_path / "checkpoint"
    first = {topic: {"0": 4, "1": 0, "2": 10}}
    for name, lines in {
        "metadata": [json.dumps({"id": str(uuid.uuid4())})],
        "offsets/0": ["v1", json.dumps(about), json.dumps(first)],
        "offsets/1": ["v1", json.dumps(about), json.dumps({topic: {"0": 7, "1": 2, "2": 10}})],
        "commits/0": ["v1", over],
    }.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("\n".join(lines))
    stream = query(subscribe=topic, startingOffsets="earliest", includeHeaders="true")
    stream.start()
    stream.await_values(wanted(range(4, 10), [0]) | wanted(range(10), [1]))
    assert sorted(stream.batches[1]) == sorted(wanted(range(4, 7), [0]) | wanted(range(2), [1]))
