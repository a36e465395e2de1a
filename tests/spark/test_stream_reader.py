"""The stream reader as Spark calls it, without Spark: the offsets of each micro-batch."""

import time

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from kafkalite import Producer
from kafkalite.client.net import offset_requests
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import consumer_settings
from kafkalite.errors import UnknownTopicOrPartition
from kafkalite.testing import Broker
from pyspark_kafkalite.connector import range_planning
from pyspark_kafkalite.connector import stream_reader as stream_module
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.range_batches import DataLoss
from pyspark_kafkalite.connector.stream_reader import StreamReader
from tests.client.consuming import until
from tests.spark.topics import delete, grow, trim


@pytest.fixture(scope="module")
def broker():
    with Broker(config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture
def topic(broker):
    return broker.topic(partitions=2)


def produce(broker, topic, *counts, size=10, first=0):
    """Write this many records into partition 0, 1, …"""
    with Producer(broker.bootstrap) as producer:
        for partition, count in enumerate(counts):
            for number in range(first, first + count):
                producer.send(topic, b"%d" % number + bytes(size), partition=partition,
                              timestamp=1_000_000 + number)  # fmt: skip


@pytest.fixture
def reader(broker, topic):
    made = []

    def make(**options):
        said = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest"}
        if not {"assign", "subscribePattern"} & options.keys():
            said["subscribe"] = topic
        made.append(StreamReader({**said, **options}))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def latest(reader, start):
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def ranges(reader, start, end):
    return [each.wanted[:4] for each in reader.partitions(start, end)]


def test_new_query_reads_from_earliest_to_latest(broker, topic, reader):
    produce(broker, topic, 3, 2)
    stream = reader()
    assert stream.initialOffset() == {topic: {"0": 0, "1": 0}}
    end = latest(stream, stream.initialOffset())
    assert end == {topic: {"0": 3, "1": 2}}
    assert ranges(stream, stream.initialOffset(), end) == [(topic, 0, 0, 3), (topic, 1, 0, 2)]
    batches = [b for part in stream.partitions({topic: {"0": 1, "1": 2}}, end)
               for b in stream.read(part)]  # fmt: skip
    assert sum(batch.num_rows for batch in batches) == 2


def test_new_query_from_latest_keeps_its_start_in_an_empty_batch(broker, topic, reader):
    produce(broker, topic, 3)
    stream = reader(startingOffsets="latest")
    start = stream.initialOffset()
    produce(broker, topic, 2)
    assert latest(stream, start) == start == {topic: {"0": 3, "1": 0}}
    assert latest(stream, start) == {topic: {"0": 5, "1": 0}}


def test_query_that_runs_once_has_no_empty_batch(broker, topic, reader):
    produce(broker, topic, 4)
    stream = reader(startingTimestamp="1000001", startingOffsetsByTimestampStrategy="latest")
    start = stream.initialOffset()
    assert start == {topic: {"0": 1, "1": 0}}
    assert stream.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 4, "1": 0}}


def test_byte_limit_applies_to_a_new_topic_of_larger_records(broker, topic, reader):
    produce(broker, topic, 100)
    stream = reader(maxBytesPerTrigger="100k", subscribePattern=f"{topic}.*")
    at = latest(stream, stream.initialOffset())
    assert at == {topic: {"0": 100, "1": 0}}
    large = broker.topic(name=f"{topic}-large")
    produce(broker, large, 100, size=10_000)
    until_s = time.monotonic() + 30
    while large not in (end := latest(stream, at)):
        assert time.monotonic() < until_s
    assert 1 <= end[large]["0"] <= 20


def test_latest_offset_without_new_records_returns_after_a_pause(broker, topic, reader):
    stream = reader()
    start = stream.initialOffset()
    before = time.monotonic()
    assert latest(stream, start) == start
    assert time.monotonic() - before >= 0.1


def test_max_offsets_are_divided_by_records_per_partition(broker, topic, reader):
    produce(broker, topic, 90, 10)
    stream = reader(maxOffsetsPerTrigger="50")
    start = stream.initialOffset()
    assert latest(stream, start) == {topic: {"0": 45, "1": 5}}
    assert stream.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 90, "1": 10}}
    assert stream.reportLatestOffset() == {topic: {"0": 90, "1": 10}}


def test_max_offsets_advance_every_partition_without_overflow(broker, topic, reader):
    produce(broker, topic, 90, 1)
    few = reader(maxOffsetsPerTrigger="2")
    assert latest(few, few.initialOffset()) == {topic: {"0": 1, "1": 1}}
    most = reader(maxOffsetsPerTrigger=str((1 << 63) - 1))
    assert latest(most, most.initialOffset()) == {topic: {"0": 90, "1": 1}}


def test_min_offsets_wait_until_max_trigger_delay(broker, topic, reader):
    produce(broker, topic, 2)
    stream = reader(minOffsetsPerTrigger="3", maxTriggerDelay="1s")
    first = latest(stream, stream.initialOffset())
    assert first == {topic: {"0": 2, "1": 0}}, "the first batch always runs"
    produce(broker, topic, 2)
    assert latest(stream, first) == first
    until_s = time.monotonic() + 30
    while (end := latest(stream, first)) == first:
        assert time.monotonic() < until_s
    assert end == {topic: {"0": 4, "1": 0}}
    produce(broker, topic, 3)
    assert latest(stream, end) == {topic: {"0": 7, "1": 0}}


def test_max_bytes_limit_a_batch(broker, topic, reader):
    produce(broker, topic, 100, 100, size=1000)
    stream = reader(maxBytesPerTrigger="50k")
    end = latest(stream, stream.initialOffset())
    assert 10 <= end[topic]["0"] <= 30 and 10 <= end[topic]["1"] <= 30


def test_available_now_ends_at_the_offsets_of_its_start(broker, topic, reader):
    produce(broker, topic, 10)
    stream = reader(maxOffsetsPerTrigger="4")
    stream.prepareForTriggerAvailableNow()
    produce(broker, topic, 10)
    at, seen = stream.initialOffset(), []
    while (end := latest(stream, at)) != at:
        seen.append(end[topic]["0"])
        at = end
    assert seen == [4, 8, 10]


def test_available_now_beyond_its_end_after_a_crash_ends(broker, topic, reader):
    produce(broker, topic, 5)
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    produce(broker, topic, 5)
    start = {topic: {"0": 8, "1": 0}}
    assert latest(stream, start) == start
    grow(broker, topic, 3)
    start = {topic: {"0": 8, "1": 0, "2": 0}}
    assert latest(stream, start) == start


@pytest.mark.parametrize("what", ["were deleted", "were truncated"])
def test_available_now_fails_if_its_records_are_lost(broker, topic, reader, what):
    produce(broker, topic, 5)
    stream = reader(failOnDataLoss="false")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    delete(broker, topic)
    if what == "were truncated":
        broker.topic(partitions=2, name=topic)
    with pytest.raises(DataLoss, match=what):
        latest(stream, start)


def test_new_partitions_are_read_from_the_beginning(broker, topic, reader):
    produce(broker, topic, 1)
    stream = reader(startingOffsets="latest")
    start = stream.initialOffset()
    assert latest(stream, start) == start
    grow(broker, topic, 3)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"new", partition=2).result(10)
    end = start
    until_s = time.monotonic() + 30
    while end == start:
        assert time.monotonic() < until_s
        end = latest(stream, start)
    assert end[topic]["2"] == 1
    assert ranges(stream, start, end) == [(topic, 2, 0, 1)]


def test_pattern_finds_topics_created_later(broker, reader):
    names = [f"pattern-{number}-{time.monotonic_ns()}" for number in range(2)]
    broker.topic(name=names[0])
    stream = reader(subscribePattern=f"({names[0]}|{names[1]})")
    start = stream.initialOffset()
    assert start == {names[0]: {"0": 0}}
    broker.topic(name=names[1])
    produce(broker, names[1], 2)
    until_s = time.monotonic() + 30
    while names[1] not in (end := latest(stream, start)):
        assert time.monotonic() < until_s
    assert end == {names[0]: {"0": 0}, names[1]: {"0": 2}}


def test_deleted_topic_fails_the_query_or_is_skipped(broker, topic, reader):
    produce(broker, topic, 5)
    strict, lax = reader(), reader(failOnDataLoss="false")
    start = strict.initialOffset()
    assert lax.initialOffset() == start
    delete(broker, topic)
    with pytest.raises(DataLoss, match=f"{topic} 0, {topic} 1 were deleted.*failOnDataLoss"):
        latest(strict, start)
    end = latest(lax, start)
    assert end == {} and ranges(lax, start, end) == []


@pytest.mark.parametrize("more", [{}, {"minPartitions": "5"}])
def test_topic_may_be_deleted_before_its_ranges_are_planned(broker, topic, reader, more):
    late = broker.topic()
    produce(broker, topic, 3, 2)
    produce(broker, late, 4)
    start = {topic: {"0": 0, "1": 0}}
    strict, going_on = (
        reader(subscribe=f"{topic},{late}", failOnDataLoss=fails, **more)
        for fails in ("true", "false")
    )
    ends = [latest(each, start) for each in (strict, going_on)]
    assert ends == [{topic: {"0": 3, "1": 2}, late: {"0": 4}}] * 2
    delete(broker, late)
    with pytest.raises(DataLoss, match=f"{late} 0 were deleted"):
        strict.partitions(start, ends[0])
    found = ranges(going_on, start, ends[1])
    assert {each[0] for each in found} == {topic}
    assert sum(end - begin for *_, begin, end in found) == 5


def test_recreated_topic_fails_the_query_or_is_read_from_its_beginning(
    broker, topic, reader, monkeypatch
):
    monkeypatch.setattr(stream_module, "PARTITIONS_S", 0)
    produce(broker, topic, 5)
    strict, lax = reader(), reader(failOnDataLoss="false")
    for stream in (strict, lax):
        start = stream.initialOffset()
        assert (end := latest(stream, start)) == {topic: {"0": 5, "1": 0}}
    delete(broker, topic)
    broker.topic(partitions=2, name=topic)
    produce(broker, topic, 7)
    with pytest.raises(DataLoss, match="was deleted and recreated"):
        latest(strict, end)
    anew = latest(lax, end)
    assert anew == {topic: {"0": 7, "1": 0}}
    assert ranges(lax, end, anew) == [(topic, 0, 0, 7)]


def test_end_offset_that_moved_back_fails_the_query(broker, topic, reader):
    produce(broker, topic, 1)
    stream = reader()
    with pytest.raises(DataLoss, match="partition 0 of .* went back from 2 to 1"):
        latest(stream, {topic: {"0": 2, "1": 0}})
    lax = reader(failOnDataLoss="false")
    end = latest(lax, {topic: {"0": 2, "1": 0}})
    assert end == {topic: {"0": 1, "1": 0}}
    assert ranges(lax, {topic: {"0": 2, "1": 0}}, end) == []


def test_unknown_topic_is_named_at_once(broker, reader):
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        reader(subscribe="nowhere").initialOffset()


def test_specific_offsets_must_name_all_partitions(broker, topic, reader):
    with pytest.raises(ValueError, match=f"lacks {topic} 1"):
        reader(startingOffsets=f'{{"{topic}": {{"0": 1}}}}').initialOffset()
    with pytest.raises(ValueError, match=f"has unknown partitions: {topic} 7"):
        reader(startingOffsets=f'{{"{topic}": {{"0": 1, "1": 0, "7": 0}}}}').initialOffset()
    produce(broker, topic, 5)
    mixed = reader(startingOffsets=f'{{"{topic}": {{"0": -1, "1": -2}}}}')
    assert mixed.initialOffset() == {topic: {"0": 5, "1": 0}}


def test_starting_timestamp_selects_the_first_record_as_recent(broker, topic, reader):
    produce(broker, topic, 5, 3)
    at = reader(startingTimestamp="1000002").initialOffset()
    assert at == {topic: {"0": 2, "1": 2}}
    with pytest.raises(ValueError, match="startingOffsetsByTimestampStrategy"):
        reader(startingTimestamp="1000004").initialOffset()
    late = reader(startingTimestamp="1000004", startingOffsetsByTimestampStrategy="latest")
    assert late.initialOffset() == {topic: {"0": 4, "1": 3}}


def test_group_start_reads_committed_offsets_and_commit_writes_them(broker, topic, reader):
    produce(broker, topic, 5, 5)
    group = f"group-{topic}"
    cluster = Cluster(consumer_settings(broker.bootstrap, {}))
    offset_requests.commit_offsets(cluster, group, {(topic, 0): 3})
    stream = reader(startingOffsets="group", commitGroup=group)
    start = stream.initialOffset()
    assert start == {topic: {"0": 3, "1": 0}}
    end = latest(stream, start)
    assert end == start, "the first batch only keeps where it began"
    stream.commit({topic: {"0": 4, "1": 2}})
    assert offset_requests.committed_offsets(cluster, group, [(topic, 0), (topic, 1)]) == {
        (topic, 0): 4, (topic, 1): 2
    }  # fmt: skip
    cluster.close()


def test_trimmed_log_starts_at_its_log_start_offset(broker, topic, reader):
    produce(broker, topic, 5)
    trim(broker, topic, {0: 2})
    assert reader().initialOffset() == {topic: {"0": 2, "1": 0}}


# Parts.


def batch_ranges(broker, topic, **options):
    said = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    return [each[:4] for each in range_planning.batch_ranges(said)]


def test_batch_has_one_range_per_partition_with_records(broker, topic):
    produce(broker, topic, 5)
    assert batch_ranges(broker, topic) == [(topic, 0, 0, 5)]
    assert batch_ranges(broker, topic, endingOffsets=f'{{"{topic}": {{"0": 2, "1": -1}}}}') == [
        (topic, 0, 0, 2)
    ]
    with pytest.raises(ValueError, match="startingOffsets is after endingOffsets: partition 0"):
        batch_ranges(
            broker, topic,
            startingOffsets=f'{{"{topic}": {{"0": 4, "1": 0}}}}',
            endingOffsets=f'{{"{topic}": {{"0": 2, "1": -1}}}}',
        )  # fmt: skip


def test_ending_timestamp_beyond_the_log_ends_at_latest(broker, topic):
    produce(broker, topic, 5)
    assert batch_ranges(broker, topic, endingTimestamp="9000000") == [(topic, 0, 0, 5)]
    assert batch_ranges(broker, topic, endingTimestamp="1000003") == [(topic, 0, 0, 3)]


def test_ranges_are_split_by_records_and_min_partitions(broker, topic):
    produce(broker, topic, 100, 10)
    by_records = batch_ranges(broker, topic, maxRecordsPerPartition="40")
    assert by_records == [(topic, 0, 0, 33), (topic, 0, 33, 66), (topic, 0, 66, 100),
                          (topic, 1, 0, 10)]  # fmt: skip
    tasks = batch_ranges(broker, topic, minPartitions="5")
    assert len(tasks) == 5 and tasks[-1] == (topic, 1, 0, 10)
    assert sum(end - start for _, _, start, end in tasks) == 110


def test_larger_records_are_split_into_more_tasks(broker, topic):
    produce(broker, topic, 50, size=10_000)
    with Producer(broker.bootstrap) as producer:
        for _ in range(500):
            producer.send(topic, b"small", partition=1)
    tasks = batch_ranges(broker, topic, minPartitions="6")
    assert sum(partition == 0 for _, partition, _, _ in tasks) == 5


def test_range_is_not_split_into_more_parts_than_offsets():
    whole = OffsetRange("t", 0, 5, 8)
    assert [each[2:4] for each in range_planning.parts(whole, 10)] == [(5, 6), (6, 7), (7, 8)]


def test_read_committed_plans_up_to_the_last_stable_offset_and_skips_aborted_records(
    broker, topic, reader
):
    def read(start, end):
        batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    stream = reader(**{"kafka.isolation.level": "read_committed"})
    everything = reader()
    start = stream.initialOffset()
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        for number, commits in enumerate([False, True, False, False, True, False]):
            transaction = producer.transaction()
            transaction.begin()
            for partition in range(2):
                producer.send(topic, b"%d" % number, partition=partition)
            producer.flush()
            transaction.commit() if commits else transaction.abort()
        # Two offsets for each transaction: its record and its marker.
        until(lambda: latest(everything, start) == {topic: {"0": 12, "1": 12}})
        open_one = producer.transaction()
        open_one.begin()
        producer.send(topic, b"open", partition=0).result()
        produce(broker, topic, 3, 1, size=0)
        until(lambda: latest(everything, start) == {topic: {"0": 16, "1": 13}})
        end = latest(stream, start)
        assert end == {topic: {"0": 12, "1": 13}}
        assert sorted(read(start, end)) == [b"0", b"1", b"1", b"4", b"4"]
        for begin in range(12):  # also inside an aborted transaction, and at its marker
            inside = {topic: {"0": begin, "1": 13}}
            assert read(inside, end) == [b"%d" % each for each in (1, 4) if 2 * each >= begin]
        open_one.abort()
        until(lambda: latest(stream, end) == {topic: {"0": 17, "1": 13}})
    assert read(end, {topic: {"0": 17, "1": 13}}) == [b"0", b"1", b"2"]
