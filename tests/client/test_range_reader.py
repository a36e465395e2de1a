"""Range reader: complete, in order, with gaps anywhere; lost records are an error."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from unittest import mock

import confluent_kafka
import confluent_kafka.admin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite import RangeReader, RecordsLost
from kafkalite.client.consumer import range_reader
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.errors import (
    BY_CODE,
    CorruptMessage,
    InvalidConfig,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.records.batch import Record, build
from kafkalite.testing import Broker
from tests.client.consuming import (
    TIMEOUT_S,
    TRANSPORT,
    delete,
    descriptors,
    numbered,
    produce,
    until,
)
from tests.client.scripted_broker import ScriptedBroker, metadata
from tests.client.test_decoding import marker


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "workers"])
def served(request):
    with Broker(workers=request.param, config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(params=["auto", "off"], ids=["direct", "tcp"])
def native(request):
    return request.param


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(range_reader, "STALL_S", 0.05)
    monkeypatch.setattr(range_reader, "LAG_S", 0.2)
    monkeypatch.setattr(range_reader, "GAP_WAIT_MS", 30)


def offsets_of(batches):
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def trim(broker, topic, offset):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(TIMEOUT_S)


# Ranges.


@pytest.mark.parametrize("bounds", [(0, 5000), (0, 1), (1, 4999), (4999, 5000), (77, 77)])
def test_range_is_read_whole_and_in_order(served, native, bounds):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(5000), 1)
    with RangeReader(served.bootstrap, native=native) as reader:
        batches = list(reader.read((topic, 1), *bounds))
    assert offsets_of(batches) == list(range(*bounds))
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert values == numbered(bounds[1] - bounds[0], bounds[0])
    assert {name for batch in batches for name in batch.column("topic").to_pylist()} <= {topic}


def test_columns_and_batch_size_are_those_requested(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 100] * 5000, batch_size=1000)
    with RangeReader(served.bootstrap, native=native) as reader:
        columns = ["timestamp", "value"]
        batches = list(reader.read((topic, 0), 10, 4990, columns=columns, timestamp_unit="us",
                                   max_bytes=10_000))  # fmt: skip
    assert sum(map(len, batches)) == 4980 and len(batches) > 10
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.names == columns
        assert str(batch.schema.types[0]) == "timestamp[us, tz=UTC]"


def test_next_range_uses_the_open_connection(served, native):
    topic = served.topic(2)
    for partition in range(2):
        produce(served.bootstrap, topic, numbered(100), partition)
    with RangeReader(served.bootstrap, native=native) as reader:
        for partition in range(2):  # each has a descriptor from a segment grant
            assert len(offsets_of(reader.read((topic, partition), 0, 100))) == 100
        before = descriptors()
        for partition in (1, 0, 1):
            assert offsets_of(reader.read((topic, partition), 10, 90)) == list(range(10, 90))
        assert descriptors() <= before
        assert set(reader.metrics()["transports"].values()) == {TRANSPORT[native]}


def test_range_that_was_not_read_to_its_end_leaves_nothing_for_the_next(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 1000] * 20_000)
    before = descriptors()
    with RangeReader(served.bootstrap, native=native) as reader:
        for _ in range(3):
            batches = reader.read((topic, 0), 0, 20_000, columns=["value"])
            next(batches)
            del batches
            assert offsets_of(reader.read((topic, 0), 5, 10)) == list(range(5, 10))
    gc.collect()
    until(lambda: descriptors() <= before, "the closing of descriptors")


def test_second_concurrent_range_is_rejected(served):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 1000] * 20_000)
    with RangeReader(served.bootstrap) as reader:
        first = reader.read((topic, 0), 0, 20_000, columns=["offset"])
        begun = offsets_of([next(first)])
        with pytest.raises(RuntimeError, match="one range at a time"):
            next(reader.read((topic, 0), 0, 10))
        assert begun + offsets_of(first) == list(range(20_000))
        assert offsets_of(reader.read((topic, 0), 0, 10)) == list(range(10))


def test_closed_reader_raises_closed(served):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 1000] * 20_000)
    reader = RangeReader(served.bootstrap)
    batches = reader.read((topic, 0), 0, 20_000)
    later = reader.read((topic, 0), 0, 10)
    next(batches)
    reader.close()
    reader.close()
    assert reader.closed
    with pytest.raises(ClientClosed):
        list(batches)
    with pytest.raises(ClientClosed):
        list(later)
    with pytest.raises(ClientClosed):
        reader.read((topic, 0), 0, 1)


def test_reader_closed_with_the_last_batch_ends(served):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    reader = RangeReader(served.bootstrap)
    for batch in reader.read((topic, 0), 0, 10):
        assert len(batch) == 10
        reader.close()


def test_invalid_arguments_are_rejected_before_connecting():
    with RangeReader("127.0.0.1:1") as reader:
        for arguments, error, words in (
            ((("t", 0), -1, 5), ValueError, "start must be at least 0"),
            ((("t", 0), 0, 1.5), TypeError, "end must be an integer"),
            (("t", 0, 1), TypeError, "a partition must be"),
        ):
            with pytest.raises(error, match=words):
                reader.read(*arguments)
        with pytest.raises(InvalidConfig, match="no column 'timestampType'"):
            reader.read(("t", 0), 0, 1, columns=["timestampType"])
        with pytest.raises(ValueError, match="max_bytes must be at least 1"):
            reader.read(("t", 0), 0, 1, max_bytes=0)
        assert list(reader.read(("t", 0), 7, 7)) == []


# Lost records.


def test_trimmed_start_is_raised_or_passed_to_the_callback(served, native, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    trim(served, topic, 40)
    with RangeReader(served.bootstrap, native=native) as reader:
        with pytest.raises(RecordsLost, match=rf"{topic}-0.*offsets 0 to 99.*begins at offset 40"):
            list(reader.read((topic, 0), 0, 100))
        lost = []
        batches = reader.read((topic, 0), 0, 100, on_lost=lost.append)
        assert offsets_of(batches) == list(range(40, 100))
        (only,) = lost
        assert (only.partition, only.start, only.end) == ((topic, 0), 0, 100)
        assert only.resumed_at == 40 and "begins at offset 40" in only.reason


def test_records_trimmed_during_the_read_are_reported(served, native, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 1000] * 20_000, batch_size=10_000)
    lost = []
    keys = {"fetch_max_bytes": 100_000, "max_partition_fetch_bytes": 100_000}
    with RangeReader(served.bootstrap, native=native, **keys) as reader:
        batches = reader.read((topic, 0), 0, 20_000, columns=["offset"], max_bytes=1,
                              on_lost=lost.append)  # fmt: skip
        found = offsets_of([next(batches)])
        trim(served, topic, 15_000)
        found += offsets_of(batches)
    missing = sorted(set(range(20_000)) - set(found))
    assert found == sorted(set(found)) and found[-5000:] == list(range(15_000, 20_000))
    if missing:  # a segment that was granted may be read to its end
        (only,) = lost
        assert missing == list(range(only.start, only.resumed_at)) and only.resumed_at == 15_000


def test_missing_topics_partitions_and_recreated_topics_are_lost(served, native, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with RangeReader(served.bootstrap, native=native) as reader:
        with pytest.raises(RecordsLost, match=f"{topic}-1.*counted from 0"):
            list(reader.read((topic, 1), 0, 10))
        with pytest.raises(RecordsLost, match="deleted and recreated"):
            list(reader.read((topic, 0), 0, 10, topic_id=b"another topic id"))
        delete(served.bootstrap, topic)
        with pytest.raises(RecordsLost, match=topic):
            list(reader.read((topic, 0), 0, 10))
        assert not list(reader.read((topic, 0), 0, 10, on_lost=lambda lost: None))


# Gaps, from a scripted broker.

LIMIT = 60


class Gappy:
    """A broker of one partition, with its batches and the bounds it reports."""

    def __init__(self, batches, high=LIMIT, stable=None, start=0, aborted=()):
        self.batches = sorted(batches)
        self.high, self.start, self.aborted = high, start, list(aborted)
        self.stable = high if stable is None else stable
        self.error_code = 0
        self.broker = ScriptedBroker(
            {METADATA: self.described, LIST_OFFSETS: self.listed, FETCH: self.fetched}
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.broker.close()

    def read(self, start, end, **keywords):
        settings = {
            "bootstrap.servers": self.broker.address, "retry.backoff.ms": "1",
            "isolation.level": "read_committed", "fetch.max.wait.ms": "20",
        }  # fmt: skip
        with RangeReader(settings) as reader:
            return offsets_of(reader.read(("t", 0), start, end, columns=["offset"], **keywords))

    def described(self, request):
        response = metadata({0: self.broker.port}, {"t": {0: (0, 3)}})
        response["topics"][0]["topic_id"] = bytes([7]) * 16
        return response

    def listed(self, request):
        sought = request.body.topics[0].partitions[0].timestamp
        offset = self.start if sought == -2 else self.high
        partition = {"partition_index": 0, "offset": offset, "timestamp": -1}
        return {"topics": [{"name": "t", "partitions": [partition]}]}

    def at_hand(self, request):
        return self.batches

    def fetched(self, request):
        (topic,) = request.body.topics
        (partition,) = topic.partitions
        found = b"".join(
            data for last, data in self.at_hand(request) if last >= partition.fetch_offset
        )
        if not found and request.body.max_wait_ms:
            time.sleep(request.body.max_wait_ms / 1000)
        response = {
            "partition_index": 0, "error_code": self.error_code, "high_watermark": self.high,
            "last_stable_offset": self.stable, "log_start_offset": self.start,
            "aborted_transactions": [
                {"producer_id": who, "first_offset": first} for who, first in self.aborted
            ],
            "records": found,
        }  # fmt: skip
        named = {"topic": topic.topic, "topic_id": topic.topic_id, "partitions": [response]}
        return {"responses": [named]}


def records(*offsets, **words):
    return offsets[-1], build(
        [Record(offset, 0, None, b"%d" % offset) for offset in offsets],
        base_offset=offsets[0],
        **words,
    )


def control(offset, producer_id, kind):
    return offset, marker(offset, producer_id, kind)


GAPS = {
    "begin": [records(*range(20, 60))],
    "middle": [records(*range(10)), records(*range(50, 60))],
    "within a batch": [records(0, 3, 9, 59)],
    "end": [records(*range(10))],
    "everywhere": [],
    "a marker last": [records(*range(59)), control(59, 5, 1)],
    "two markers last": [records(*range(58)), control(58, 5, 1), control(59, 6, 0)],
    "a marker alone": [control(0, 5, 1)],
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("bounds", [(0, 60), (5, 55), (15, 45), (0, 20), (59, 60)])
def test_range_with_a_gap_is_read_to_its_end(name, bounds, quick):
    present = {"middle": [*range(10), *range(50, 60)], "begin": range(20, 60),
               "within a batch": (0, 3, 9, 59), "end": range(10),
               "a marker last": range(59), "two markers last": range(58)}  # fmt: skip
    with Gappy(GAPS[name]) as log:
        expected = [n for n in present.get(name, ()) if bounds[0] <= n < bounds[1]]
        assert log.read(*bounds) == expected


@settings(deadline=None, max_examples=60)
@given(
    present=st.sets(st.integers(0, LIMIT - 1)),
    markers=st.sets(st.integers(0, LIMIT - 1)),
    cuts=st.sets(st.integers(1, LIMIT - 1)),
    bounds=st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)).map(sorted),
)
def test_range_with_any_gaps_returns_all_other_records(present, markers, cuts, bounds):
    batches = [control(at, 5, 1) for at in markers]
    kept = present - markers
    edges = [0, *sorted(cuts | markers | {at + 1 for at in markers}), LIMIT]
    for low, high in itertools.pairwise(edges):
        offsets = [at for at in range(low, high) if at in kept]
        if offsets:
            batches.append(records(*offsets))
    with (
        mock.patch.multiple(range_reader, STALL_S=0.03, GAP_WAIT_MS=5),
        Gappy(batches) as log,
    ):
        start, end = bounds
        assert log.read(start, end) == [at for at in sorted(kept) if start <= at < end]


class Remote(Gappy):
    """A broker whose segments are remote, and are fetched only for a request that waits."""

    arrived = False

    def at_hand(self, request):
        self.arrived = self.arrived or request.body.max_wait_ms == range_reader.GAP_WAIT_MS
        return self.batches if self.arrived else []


def test_gap_is_accepted_only_after_the_leader_waited_for_records(quick):
    with Remote([records(*range(60))]) as log:
        assert log.read(0, 60) == list(range(60))
        assert log.arrived


class Trimming(Gappy):
    """A broker whose log start moves for a while, so that a response about a gap changes."""

    def fetched(self, request):
        if self.start < 8:
            self.start += 1
        else:
            self.batches = [records(*range(40, 60))]
        return super().fetched(request)


def test_gap_is_not_accepted_while_the_log_start_moves(quick):
    with Trimming([]) as log:
        assert log.read(8, 60) == list(range(40, 60))


def test_aborted_records_at_the_end_are_not_lost(quick):
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    batches = [records(*range(40)), records(*range(40, 59), **producer), control(59, 5, 0)]
    with Gappy(batches, aborted=[(5, 40)]) as log:
        assert log.read(0, 60) == list(range(40))
        assert log.read(45, 60) == []


def test_open_transaction_is_waited_for_until_the_timeout(quick):
    with Gappy([records(*range(40))], stable=40) as log:
        with pytest.raises(RequestTimedOut, match="t-0.*0.5 s.*offset 40.*transaction is open"):
            log.read(0, 60, timeout=0.5)
        timer = threading.Timer(0.3, lambda: setattr(log, "stable", 60))
        timer.start()
        assert log.read(0, 60) == list(range(40))
        timer.join()


def test_log_that_is_briefly_too_short_is_waited_for(quick):
    with Gappy([records(*range(40))], high=40) as log:

        def grow():
            log.batches.append(records(*range(40, 60)))
            log.high = log.stable = 60

        timer = threading.Timer(0.12, grow)
        timer.start()
        assert log.read(0, 60) == list(range(60))
        timer.join()


class Forgetful(Gappy):
    """After the first records its node lags: it does not know the topic until a metadata update."""

    forgot, forgot_times = False, 0

    def described(self, request):
        response = super().described(request)
        if self.forgot:
            self.forgot_times += 1
            response["topics"][0] |= {"error_code": UnknownTopicOrPartition.code, "partitions": []}
        return response

    def fetched(self, request):
        if self.forgot:
            self.error_code = NotLeaderOrFollower.code
        elif request.body.topics[0].partitions[0].fetch_offset >= 20 and not self.forgot_times:
            self.forgot = True
            threading.Timer(0.1, self.remember).start()
        return super().fetched(request)

    def remember(self):
        self.forgot, self.error_code = False, 0
        self.batches.append(records(*range(20, 60)))


def test_node_that_briefly_does_not_know_the_topic_is_retried(quick):
    with Forgetful([records(*range(20))]) as log:
        assert log.read(0, 60, on_lost=print) == list(range(60))
        assert log.forgot_times


def test_damaged_batch_raises_corrupt_message(quick):
    last, data = records(*range(60))
    with Gappy([(last, data[:-1] + bytes([data[-1] ^ 1]))]) as log, pytest.raises(CorruptMessage):
        log.read(0, 60)


@pytest.mark.parametrize("code", [29, 55])
def test_error_of_the_leader_is_raised(quick, code):
    with Gappy([records(*range(60))]) as log:
        log.error_code = code
        with pytest.raises(BY_CODE[code]):
            log.read(0, 60)


def test_broker_without_a_response_raises_request_timed_out(quick):
    with Gappy([records(*range(60))]) as log:
        log.broker.responders[FETCH] = lambda request: None
        with pytest.raises(RequestTimedOut, match="t-0: no records arrived for 0.5 s at offset 7"):
            log.read(7, 60, timeout=0.5)
