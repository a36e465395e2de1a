"""Fetches over TCP from old, wrong and failing brokers: each record once and in order."""

from __future__ import annotations

import pytest

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.errors import (
    CorruptMessage,
    InvalidTopicException,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicId,
    UnsupportedForMessageFormat,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.records.batch import Record, build
from tests.client.consuming import TIMEOUT_S, until
from tests.client.scripted_broker import CloseConnection, ScriptedBroker, framed, metadata

QUICK = {"retry_backoff_ms": 1, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 2}
TOPIC = "t"
COUNT = 5
NO_BATCH = (CorruptMessage, UnsupportedForMessageFormat)


def batch(first=0, count=COUNT):
    return build([Record(value=b"%d" % (first + n)) for n in range(count)], base_offset=first)


class Log:
    """A broker of one partition; `alter` changes its correct response."""

    def __init__(
        self, alter=lambda response, request: response, versions=(4, 17), topic_id=bytes([7]) * 16
    ):
        self.topic_id = topic_id
        self.alter = alter
        self.broker = ScriptedBroker(
            {METADATA: self.described, LIST_OFFSETS: self.listed, FETCH: self.fetched},
            versions={FETCH: versions},
        )
        self.address = self.broker.address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.broker.close()

    def consumer(self, **keywords):
        return Consumer(self.address, topics=[TOPIC], **QUICK | keywords)

    def described(self, request):
        response = metadata({0: self.broker.port}, {TOPIC: {0: (0, 3)}})
        response["topics"][0]["topic_id"] = self.topic_id
        return response

    def listed(self, request):
        partition = {"partition_index": 0, "offset": 0, "timestamp": -1}
        return {"topics": [{"name": TOPIC, "partitions": [partition]}]}

    def fetched(self, request):
        (topic,) = request.body.topics
        (partition,) = topic.partitions
        whole = partition.fetch_offset == 0
        partition = {
            "partition_index": 0, "error_code": 0, "high_watermark": COUNT,
            "last_stable_offset": COUNT, "log_start_offset": 0, "aborted_transactions": [],
            "records": batch() if whole else b"",
        }  # fmt: skip
        response_topic = {
            "topic": topic.topic,
            "topic_id": topic.topic_id,
            "partitions": [partition],
        }
        return self.alter({"responses": [response_topic]}, request)


def read(consumer):
    messages = []
    until(lambda: (m := consumer.poll(0.2)) and (messages.append(m) or len(messages) == COUNT))
    assert consumer.poll(0.05) is None
    return [message.offset for message in messages]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_fetch_version_returns_the_records(version):
    with Log(versions=(version, version)) as log, log.consumer() as consumer:
        assert read(consumer) == list(range(COUNT))
        fetches = [each for each in log.broker.requests if each.api is FETCH]
        assert {each.version for each in fetches} == {version}
        assert {each.body.session_epoch for each in fetches} == {-1}


def test_topic_without_id_is_fetched_by_name():
    with Log(topic_id=NO_ID) as log, log.consumer() as consumer:
        assert read(consumer) == list(range(COUNT))
        assert {each.version for each in log.broker.requests if each.api is FETCH} == {12}


def entry(response):
    return response["responses"][0]["partitions"][0]


def once(alter):
    """Alter the first response, and none after it."""
    altered = []

    def alter_once(response, request):
        if altered:
            return response
        altered.append(request)
        return alter(response, request)

    return alter_once


def invalid_responses():
    def another_partition(response, request):
        entry(response)["partition_index"] = 1
        return response

    def twice(response, request):
        response["responses"].append(response["responses"][0])
        return response

    def another_topic(response, request):
        response["responses"][0] |= {"topic": "u", "topic_id": bytes(15) + b"u"}
        return response

    def garbage(response, request):
        return framed(request.correlation_id.to_bytes(4, "big") + b"\0garbage")

    def wrong_number(response, request):
        return framed((request.correlation_id + 1).to_bytes(4, "big") + bytes(40))

    def huge(response, request):
        return b"\x7f\xff\xff\xff"

    def hangs_up(response, request):
        raise CloseConnection

    def nothing(response, request):
        return {"responses": []}

    def null(response, request):
        entry(response)["records"] = None
        return response

    return [
        another_partition, twice, another_topic, garbage, wrong_number, huge, hangs_up, nothing,
        null,
    ]  # fmt: skip


@pytest.mark.parametrize("alter", invalid_responses(), ids=lambda alter: alter.__name__)
def test_invalid_response_is_fetched_again(alter):
    with Log(once(alter)) as log, log.consumer() as consumer:
        assert read(consumer) == list(range(COUNT))


@pytest.mark.parametrize("fault", [NotLeaderOrFollower, UnknownTopicId, KafkaStorageError])
@pytest.mark.parametrize("whole", [False, True], ids=["partition", "response"])
def test_retriable_error_refreshes_metadata(fault, whole):
    def erring(response, request):
        (response if whole else entry(response))["error_code"] = fault.code
        return response

    with Log(once(erring)) as log, log.consumer() as consumer:
        assert read(consumer) == list(range(COUNT))
        assert log.broker.count(METADATA) >= 2


@pytest.mark.parametrize(
    "fault", [TopicAuthorizationFailed, UnknownServerError, InvalidTopicException, CorruptMessage]
)
def test_fatal_error_is_raised_and_keeps_the_position(fault):
    def erring(response, request):
        entry(response)["error_code"] = fault.code
        return response

    with Log(erring) as log, log.consumer() as consumer:
        for _ in range(2):
            with pytest.raises(fault, match="t-0"):
                consumer.poll(TIMEOUT_S)
        assert consumer.position((TOPIC, 0)) == 0
        log.alter = lambda response, request: response
        with_fault = until(lambda: attempt(consumer))
        assert with_fault.offset == 0


def attempt(consumer):
    try:
        return consumer.poll(0.2)
    except Exception:
        return None  # requested before the error was cleared


def test_offset_out_of_range_is_reset_or_raised():
    def erring(response, request):
        entry(response)["error_code"] = OffsetOutOfRange.code
        return response

    with Log(once(erring)) as log, log.consumer() as consumer:
        assert read(consumer) == list(range(COUNT))
        assert consumer.metrics()["offset_resets"] == 1
    with Log(erring) as log, log.consumer(auto_offset_reset="none") as consumer:
        consumer.seek((TOPIC, 0), 2)
        with pytest.raises(OffsetOutOfRange, match="offset 2 is out of range"):
            consumer.poll(TIMEOUT_S)
        assert consumer.position((TOPIC, 0)) == 2


@pytest.mark.parametrize(
    "records",
    [batch()[:-1], batch()[:30], bytes(100), b"\xff" * 100, batch()[:-1] + b"\xff"],
    ids=["cut off", "no header", "zeros", "ones", "a flipped byte"],
)
def test_damaged_records_raise_and_keep_the_position(records):
    def damaged(response, request):
        entry(response)["records"] = records
        return response

    with Log(damaged) as log, log.consumer() as consumer:
        for _ in range(2):
            with pytest.raises(NO_BATCH, match="t-0: At offset 0"):
                consumer.poll(TIMEOUT_S)
        assert consumer.position((TOPIC, 0)) == 0


def test_silent_broker_is_fetched_from_over_another_connection():
    def silent(response, request):
        return None

    with (
        Log(once(silent)) as log,
        log.consumer(request_timeout_ms=200, fetch_max_wait_ms=10) as consumer,
    ):
        assert read(consumer) == list(range(COUNT))


def test_records_before_the_offset_are_discarded():
    def from_the_beginning(response, request):
        entry(response)["records"] = batch()
        return response

    with Log(from_the_beginning) as log, log.consumer() as consumer:
        consumer.seek((TOPIC, 0), 3)
        assert [consumer.poll(TIMEOUT_S).offset for _ in range(2)] == [3, 4]


def test_fetch_settings_are_sent():
    settings = {
        "fetch_min_bytes": 7, "fetch_max_wait_ms": 8, "fetch_max_bytes": 9,
        "max_partition_fetch_bytes": 10, "isolation_level": "read_committed",
    }  # fmt: skip
    with Log() as log, log.consumer(**settings) as consumer:
        read(consumer)
        request = next(each.body for each in log.broker.requests if each.api is FETCH)
        assert (request.min_bytes, request.max_wait_ms, request.max_bytes) == (7, 8, 9)
        (partition,) = request.topics[0].partitions
        assert (partition.partition_max_bytes, partition.current_leader_epoch) == (10, 3)
        assert request.isolation_level == 1
        listed = next(each.body for each in log.broker.requests if each.api is LIST_OFFSETS)
        assert listed.isolation_level == 1
