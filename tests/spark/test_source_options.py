"""Options of the source: those that are rejected, and the setting of each."""

from datetime import datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from kafkalite.client.net.topology import TopicPartition
from pyspark_kafkalite.connector.columns import schema_of
from pyspark_kafkalite.connector.offset_ranges import (
    EARLIEST,
    LATEST,
    OffsetRange,
    offsets_from_json,
    offsets_to_json,
)
from pyspark_kafkalite.connector.pushdown import bound_of
from pyspark_kafkalite.connector.source_options import source_options

GOOD = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}


def options(stream=False, **said):
    return source_options({**GOOD, **said}, stream=stream)


def test_option_names_ignore_case_and_topics_are_trimmed():
    read = source_options(
        {"KAFKA.bootstrap.Servers": "h:1", "SUBSCRIBE": " a , b,a,", "FailOnDataLoss": "False"},
        stream=False,
    )
    assert read.settings == {"bootstrap.servers": "h:1"}
    assert read.subscribe == ("a", "b")
    assert not read.fail_on_data_loss


def test_default_offsets_are_those_of_kafka():
    batch, stream = options(), options(stream=True)
    assert batch.starting.everywhere == EARLIEST and batch.ending.everywhere == LATEST
    assert stream.starting.everywhere == LATEST
    assert batch.fail_on_data_loss and batch.timeout_s == 120 and stream.delay_s == 15 * 60


WRONG = {
    "no strategy": ({"subscribe": None}, "One of the options assign, subscribe"),
    "two strategies": ({"assign": '{"t": [0]}'}, "Only one of assign, subscribe"),
    "no topics": ({"subscribe": " , "}, "No topics to subscribe"),
    "empty pattern": ({"subscribe": None, "subscribePattern": ""}, "Pattern to subscribe is empty"),
    "no pattern": ({"subscribe": None, "subscribePattern": "("}, "subscribePattern '(' is not"),
    "no partitions": ({"subscribe": None, "assign": "{}"}, "No topicpartitions to assign"),
    "not JSON": ({"subscribe": None, "assign": "t"}, "assign must be JSON like"),
    "no partition": ({"subscribe": None, "assign": '{"t": ["x"]}'}, "topic 't' has ['x']"),
    "no servers": ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers must be specified"),
    "no address": ({"kafka.bootstrap.servers": "nowhere:x"}, "Invalid option kafka.*"),
    "reset": ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
    "deserializer": ({"kafka.value.deserializer": "x"}, "cannot be specified"),
    "auto commit": ({"kafka.enable.auto.commit": "true"}, "commitGroup"),
    "interceptors": ({"kafka.interceptor.classes": "x"}, "cannot be specified"),
    "no such setting": ({"kafka.isolation.levell": "x"}, "isolation.level"),
    "latest in a batch": ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
    "-1 in a batch": ({"startingOffsets": '{"t": {"0": -1}}'}, "cannot be latest"),
    "earliest end": ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
    "-2 end": ({"endingOffsets": '{"t": {"0": -2}}'}, "cannot be earliest"),
    "word": ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest or JSON"),
    "offset": ({"startingOffsets": '{"t": {"0": -3}}'}, "partition 0 of topic 't'"),
    "float": ({"startingOffsets": '{"t": {"0": 1.5}}'}, "partition 0 of topic 't'"),
    "huge": ({"startingOffsets": '{"t": {"0": 9223372036854775808}}'}, "partition 0 of topic 't'"),
    "partition name": ({"startingOffsets": '{"t": {"x": 1}}'}, "'x' is not a partition"),
    "deep": ({"startingOffsets": '{"t":' * 10**6 + "1" + "}" * 10**6}, "must be JSON like"),
    "time": ({"startingTimestamp": "today"}, "startingTimestamp must be"),
    "late time": ({"startingTimestamp": "9223372036854775808"}, "startingTimestamp must be"),
    "endless time": ({"startingTimestamp": "9" * 5000}, "startingTimestamp must be"),
    "endless number": ({"minPartitions": "9" * 5000}, "minPartitions must be an integer"),
    "times": ({"startingOffsetsByTimestamp": '{"t": {"0": -5}}'}, "partition 0 of topic 't'"),
    "by strategy": ({"startingOffsetsByTimestampStrategy": "first"}, "error or latest"),
    "boolean": ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false"),
    "no partitions min": ({"minPartitions": "0"}, "minPartitions must be an integer"),
    "no records max": ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be an"),
    "bytes": ({"maxBytesPerTrigger": "lots"}, "maxBytesPerTrigger must be a size"),
    "group without name": ({"startingOffsets": "group"}, "requires commitGroup"),
}


@pytest.mark.parametrize(("said", "words"), WRONG.values(), ids=WRONG)
def test_invalid_option_is_rejected_by_name(said, words):
    wanted = {name: value for name, value in {**GOOD, **said}.items() if value is not None}
    with pytest.raises(ValueError) as refused:
        source_options(wanted, stream=False)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"])
def test_stream_rejects_ending_offsets(name):
    with pytest.raises(ValueError, match=f"{name}"):
        options(stream=True, **{name: '{"t": {"0": 1}}' if "Time" not in name else "5"})


def test_min_offsets_above_max_offsets_are_rejected():
    with pytest.raises(ValueError, match="minOffsetsPerTrigger"):
        options(stream=True, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="5")


def test_starting_options_are_used_in_order_of_precedence():
    both = {"startingOffsets": '{"t": {"0": 3}}', "startingOffsetsByTimestamp": '{"t": {"0": 4}}'}
    assert options(**both).starting.option == "startingOffsetsByTimestamp"
    assert options(**both, startingTimestamp="9").starting == ("startingTimestamp", 9, None, None,
                                                               True, False)  # fmt: skip


def test_offsets_of_a_topic_may_be_a_word():
    starting = options(startingOffsets='{"a": "earliest", "b": {"1": 7}}').starting
    assert starting.topics == {"a": EARLIEST}
    assert starting.offsets == {TopicPartition("b", 1): 7}


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("30s", 30), ("500ms", 0.5), ("2 h", 7200), ("250", 0.25)]
)
def test_delay_is_parsed_with_its_unit(text, seconds):
    assert options(stream=True, maxTriggerDelay=text).delay_s == seconds


@pytest.mark.parametrize(("text", "size"), [("512m", 512 << 20), ("1g", 1 << 30), ("77", 77)])
def test_size_is_parsed_with_its_unit(text, size):
    assert options(stream=True, maxBytesPerTrigger=text).bytes_max == size


def test_offsets_json_is_ordered_and_read_back():
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert str(offsets_to_json(offsets)) == "{'a': {'0': 3}, 'b': {'9': 2, '10': 1}}"
    assert offsets_from_json(offsets_to_json(offsets)) == offsets


def test_misspelled_option_is_warned_of(caplog):
    options(startingOfsets="earliest")
    assert "did you mean startingOffsets" in caplog.text


def test_columns_are_those_of_kafka_or_the_requested_ones():
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert schema_of({}).fieldNames() == names
    assert schema_of({"includeHeaders": "true"}).fieldNames() == [*names, "headers"]
    assert schema_of({"columns": "Value, offset"}).fieldNames() == ["value", "offset"]
    for wrong in ("", "value,value", "size"):
        with pytest.raises(ValueError, match="columns must be a list"):
            schema_of({"columns": wrong})


@pytest.mark.parametrize(("each", "left"), [
    (EqualTo(("partition",), 1), [("t", 1, 0, 10)]),
    (In(("partition",), (0, 5)), [("t", 0, 5, 20)]),
    (EqualTo(("offset",), 7), [("t", 0, 7, 8), ("t", 1, 7, 8)]),
    (In(("offset",), (3, 12)), [("t", 0, 5, 13), ("t", 1, 3, 10)]),
    (GreaterThan(("offset",), 15), [("t", 0, 16, 20)]),
    (LessThanOrEqual(("offset",), 5), [("t", 0, 5, 6), ("t", 1, 0, 6)]),
    (EqualTo(("topic",), "u"), []),
])  # fmt: skip
def test_filter_bounds_offset_ranges(each, left):
    ranges = [OffsetRange("t", 0, 5, 20), OffsetRange("t", 1, 0, 10)]
    assert [one[:4] for one in bound_of(each, ())(ranges, None)] == left


@pytest.mark.parametrize("each", [
    EqualNullSafe(("offset",), None), In(("offset",), (1, None)), In(("offset",), ()),
    GreaterThan(("offset",), 1.5), EqualTo(("partition",), True), EqualTo(("key",), b"k"),
    EqualTo(("headers", "key"), "k"), Not(EqualTo(("partition",), 1)),
    LessThan(("timestamp",), datetime(2026, 1, 1)),
], ids=str)  # fmt: skip
def test_filter_without_bounds_is_not_pushed_down(each):
    assert bound_of(each, ()) is None


def test_filter_on_a_value_column_does_not_bound_offsets():
    assert bound_of(EqualTo(("offset",), 7), ["offset"]) is None
