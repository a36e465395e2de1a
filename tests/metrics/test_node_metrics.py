"""Metrics of a node: traffic, errors, partitions, flushes and ticks, as its page has them."""

from __future__ import annotations

from collections import Counter

import pytest

from kafkalite import errors
from kafkalite.broker import node_metrics
from kafkalite.broker.request_metrics import RequestCounts, TopicTraffic
from kafkalite.broker.security import AclOperation
from kafkalite.broker.served_apis import SERVED
from kafkalite.metrics import SAMPLES_PER_STEP
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import DELETE_TOPICS, DESCRIBE_LOG_DIRS
from kafkalite.records.batch import Record, build
from tests.handlers.denying import Denying
from tests.opcodes import opcodes_of

TOPIC = "kafka_server_brokertopicmetrics_{}_total"
ERRORS = "kafka_network_requestmetrics_errors_total"
REQUESTS = "kafka_network_requestmetrics_requests_total"
BATCH = build([Record(timestamp=1, value=b"v") for _ in range(3)])


def produce(broker, *partitions, version=9, acks=1):
    """Produce batches, each given as (topic, partition, batch)."""
    topics = [
        {"name": name, "partition_data": [{"index": index, "records": batch}]}
        for name, index, batch in partitions
    ]
    return broker.send(PRODUCE, version, acks=acks, timeout_ms=1_000, topic_data=topics)


def fetch(broker, *partitions, min_bytes=0, max_wait_ms=0):
    """Fetch partitions, each given as (topic, partition, offset)."""
    topics = [
        {
            "topic": name,
            "partitions": [
                {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            ],
        }
        for name, index, offset in partitions
    ]
    return broker.send(
        FETCH, 11, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, topics=topics
    )


def test_produced_and_fetched_traffic_is_counted_per_topic_and_in_total(metered):
    broker = metered.broker
    broker.create("a")
    broker.create("b")
    produce(broker, ("a", 0, BATCH), ("b", 0, BATCH))
    produce(broker, ("a", 0, BATCH))
    fetch(broker, ("a", 0, 0))
    fetch(broker, ("a", 0, 6))
    sample = metered.sample
    counted = {
        name: (sample(TOPIC.format(name), topic="a"), sample(TOPIC.format(name), topic="b"),
               sample(TOPIC.format(name)))
        for name in ("messagesin", "bytesin", "bytesout", "totalproducerequests",
                     "totalfetchrequests", "failedproducerequests", "failedfetchrequests")
    }  # fmt: skip
    size = len(BATCH)
    assert counted == {
        "messagesin": (6, 3, 9),
        "bytesin": (2 * size, size, 3 * size),
        "bytesout": (2 * size, 0, 2 * size),
        "totalproducerequests": (2, 1, 3),
        "totalfetchrequests": (2, 0, 2),
        "failedproducerequests": (0, 0, 0),
        "failedfetchrequests": (0, 0, 0),
    }
    assert sample(REQUESTS, request="Produce", version="9") == 2
    assert sample(REQUESTS, request="Fetch", version="11") == 2


def test_delayed_fetch_counts_its_bytes_once(metered):
    broker = metered.broker
    broker.create("a")
    produce(broker, ("a", 0, BATCH))
    size = len(BATCH)
    waiting = fetch(broker, ("a", 0, 0), min_bytes=size + 1, max_wait_ms=30_000)
    assert waiting.sent is None
    name = "kafka_server_delayedoperationpurgatory_purgatorysize"
    assert metered.sample(name, delayedOperation="Fetch") == 1
    produce(broker, ("a", 0, BATCH))
    broker.until(lambda: waiting.sent is not None)
    sample = metered.sample
    assert sample(TOPIC.format("bytesout"), topic="a") == 2 * size
    assert sample(name, delayedOperation="Fetch") == sample(name, delayedOperation="Produce") == 0


def test_errors_are_counted_by_request_and_code_at_any_depth(metered):
    broker = metered.broker
    broker.create("a")
    produce(broker, ("gone", 0, BATCH), ("a", 0, BATCH[:-1] + b"?"))
    fetch(broker, ("a", 0, 99), ("gone", 0, 0))
    broker.request(METADATA, 12, topics=[{"name": "gone"}], allow_auto_topic_creation=False)
    partitions = [{"partition_index": index, "timestamp": -1} for index in (0, 7)]
    broker.request(LIST_OFFSETS, 5, topics=[{"name": "a", "partitions": partitions}])
    broker.request(DELETE_TOPICS, 6, topics=[{"name": "gone"}, {"name": "gone2"}])
    broker.node.authorizer = Denying(AclOperation.DESCRIBE)
    broker.request(DESCRIBE_LOG_DIRS, 4, topics=[])
    sample = metered.sample
    unknown, corrupt = "UNKNOWN_TOPIC_OR_PARTITION", "CORRUPT_MESSAGE"
    assert sample(ERRORS, request="Produce", error=unknown) == 1
    assert sample(ERRORS, request="Produce", error=corrupt) == 1
    assert sample(ERRORS, request="Fetch", error=unknown) == 1
    assert sample(ERRORS, request="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
    assert sample(ERRORS, request="Metadata", error=unknown) == 1
    assert sample(ERRORS, request="ListOffsets", error=unknown) == 1
    assert sample(ERRORS, request="DeleteTopics", error=unknown) == 2
    assert sample(ERRORS, request="DescribeLogDirs", error="CLUSTER_AUTHORIZATION_FAILED") == 1
    assert sample(ERRORS, request="CreateTopics", error=unknown) is None


def test_every_response_with_an_error_code_has_a_path_to_it():
    paths = {api: set(RequestCounts(api).paths) for api in (METADATA, LIST_OFFSETS)}
    assert paths[METADATA] == {(), ("topics",), ("topics", "partitions")}
    assert paths[LIST_OFFSETS] == {("topics", "partitions")}
    for handler in SERVED.values():
        if handler.codec is None:
            assert RequestCounts(handler.api).paths, handler.api


def test_batch_too_large_counts_rejected_bytes_and_bad_timestamp_a_failure(metered):
    broker = metered.broker
    broker.create("a", max_message_bytes="100")
    broker.create("b", message_timestamp_after_max_ms="1")
    produce(broker, ("a", 0, build([Record(value=bytes(200))])))
    late = build([Record(timestamp=broker.clock.wall_ms() + 60_000, value=b"v")])
    produce(broker, ("b", 0, late))
    sample = metered.sample
    assert sample(TOPIC.format("bytesrejected"), topic="a") > 200
    assert sample(TOPIC.format("failedproducerequests"), topic="a") == 0
    assert sample(TOPIC.format("failedproducerequests"), topic="b") == 1
    assert sample(TOPIC.format("messagesin")) == 0


def test_totals_keep_traffic_of_deleted_topics(metered):
    broker = metered.broker
    broker.create("a", 2)
    produce(broker, ("a", 0, BATCH))
    produce(broker, ("a", 1, BATCH))
    broker.request(DELETE_TOPICS, 6, topics=[{"name": "a"}])
    broker.create("a")
    produce(broker, ("a", 0, BATCH))
    sample = metered.sample
    assert sample(TOPIC.format("messagesin"), topic="a") == 3
    assert sample(TOPIC.format("messagesin")) == 9


def test_requests_for_unknown_topics_add_no_labels(metered):
    broker = metered.broker
    for n in range(5):
        produce(broker, (f"gone{n}", 0, BATCH))
        fetch(broker, (f"gone{n}", 0, 0))
    sample = metered.sample
    assert not [key for key in sample.values if any("gone" in str(part) for part in key)]
    assert sample(TOPIC.format("totalproducerequests")) == 5


def test_page_contains_partition_log_and_cluster_gauges(metered):
    broker = metered.broker
    broker.create("a", 2)
    produce(broker, ("a", 1, BATCH))
    sample = metered.sample
    assert sample("kafka_server_replicamanager_partitioncount") == 2
    assert sample("kafka_server_replicamanager_leadercount") == 2
    assert sample("kafka_server_replicamanager_offlinereplicacount") == 0
    assert sample("kafka_log_log_logendoffset", topic="a", partition="1") == 3
    assert sample("kafka_log_log_logstartoffset", topic="a", partition="1") == 0
    assert sample("kafka_log_log_size", topic="a", partition="1") == len(BATCH)
    assert sample("kafka_log_log_numlogsegments", topic="a", partition="0") == 1
    assert sample("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert sample("kafka_controller_kafkacontroller_globaltopiccount") == 1
    assert sample("kafka_controller_kafkacontroller_globalpartitioncount") == 2
    assert sample("kafka_controller_kafkacontroller_offlinepartitionscount") == 0
    assert 0 <= sample("kafka_network_socketserver_networkprocessoravgidlepercent") <= 1
    assert sample("process_resident_memory_bytes") > 1 << 20
    assert sample("kafkalite_disk_total_bytes") > sample("kafkalite_disk_usable_bytes") > 0


def test_failed_partitions_count_as_offline(metered):
    broker = metered.broker
    topic_id = broker.create("a", 2)
    broker.node.replicas.leader("a", 0).log.failure = "damaged"
    broker.node.replicas.remove(broker.node.replicas.leader("a", 1))
    broker.node.replicas.take_offline("a", topic_id, 1, errors.KafkaStorageError())
    sample = metered.sample
    assert sample("kafka_server_replicamanager_offlinereplicacount") == 2
    assert sample("kafka_controller_kafkacontroller_offlinepartitionscount") == 2


def test_flush_duration_is_counted(metered):
    broker = metered.broker
    broker.create("a", durability="fsync")
    wire_ = produce(broker, ("a", 0, BATCH), acks=-1)
    broker.until(lambda: wire_.sent is not None)
    total, *counts = metered.sample("kafka_log_logflushstats_logflushrateandtimems")
    assert sum(counts) == 1


def test_request_duration_is_counted_when_the_response_is_sent(metered):
    broker = metered.broker
    broker.create("a")
    waiting = fetch(broker, ("a", 0, 0), min_bytes=1, max_wait_ms=30_000)
    name = "kafka_network_requestmetrics_totaltimems"
    assert sum(metered.sample(name, request="Fetch")[1:]) == 0
    broker.clock.advance(30_000)
    broker.until(lambda: waiting.sent is not None)
    total_ns, *counts = metered.sample(name, request="Fetch")
    assert sum(counts) == 1
    assert total_ns >= 30_000_000_000


def test_traffic_counters_are_added():
    one, other = TopicTraffic(), TopicTraffic()
    for number, name in enumerate(TopicTraffic.__slots__):
        setattr(one, name, number)
        setattr(other, name, 100)
    one.add(other)
    slots = TopicTraffic.__slots__
    assert [getattr(one, name) for name in slots] == list(range(100, 100 + len(slots)))


def test_start_metrics_without_run_directory_returns_none(metered, tmp_path, caplog):
    assert node_metrics.start_metrics(metered.broker.node, tmp_path / "gone") is None


@pytest.mark.parametrize("code", [0, 3, 9999, -1])
def test_every_error_code_has_a_name(code):
    assert node_metrics.error_name(code)


def test_ticks_are_counted_by_duration_and_slow_ones_by_cause(metered):
    slow = metered.broker.reactor.slow_ticks
    slow.add(80_000_000, 60_000_000, 70_000_000, METADATA.key)
    slow.add(90_000_000, 1_000_000, 70_000_000, None)
    sample = metered.sample
    assert sample("kafkalite_loop_slow_ticks_total", cause="Metadata") == 1
    assert sample("kafkalite_loop_slow_ticks_total", cause="sending responses") == 1
    assert sample("kafkalite_loop_slow_ticks_cpu_total", cause="Metadata") == 1
    assert sample("kafkalite_loop_slow_ticks_cpu_total", cause="sending responses") is None
    assert sample("kafkalite_loop_longest_tick_seconds") == 0.09
    assert sample("kafkalite_loop_longest_tick_cpu_seconds") == 0.06
    total_ns, *counts = sample("kafkalite_loop_tickms")
    assert total_ns > 0 and sum(counts) > 0


def test_page_is_written_in_steps_of_bounded_time(metered, monkeypatch):
    broker, keeper = metered.broker, metered.keeper
    write_steps = keeper.page.write_steps
    steps = []

    def slow(families, at_ms):
        for step in write_steps(families, at_ms):
            broker.clock.advance(2)
            steps.append(at_ms)
            yield step

    monkeypatch.setattr(keeper.page, "write_steps", slow)
    keeper._periods = node_metrics.IDLE_PERIODS
    keeper.update()
    most = node_metrics.STEP_MS // 2 + 1
    assert 1 <= len(steps) <= most
    counts = []
    while not counts or counts[-1]:
        before = len(steps)
        broker.clock.advance(node_metrics.STEP_PAUSE_MS)
        broker.reactor.tick(0)
        counts.append(len(steps) - before)
    assert len(counts) > 5 and max(counts) <= most


def test_gauges_of_many_partitions_are_looked_up_in_steps(metered, monkeypatch):
    broker, keeper = metered.broker, metered.keeper
    broker.create("many", 3 * SAMPLES_PER_STEP)
    looked: Counter[str] = Counter()
    for name, (sentence, value) in node_metrics.PARTITION_GAUGES.items():

        def counting(log, name=name, value=value):
            looked[name] += 1
            return value(log)

        monkeypatch.setitem(node_metrics.PARTITION_GAUGES, name, (sentence, counting))
    per_step = []
    steps = keeper.page.write_steps(keeper.families(), 0)
    before = 0
    for _ in steps:
        per_step.append(looked.total() - before)
        before = looked.total()
    gauges = len(node_metrics.PARTITION_GAUGES)
    assert looked == dict.fromkeys(node_metrics.PARTITION_GAUGES, 3 * SAMPLES_PER_STEP)
    assert max(per_step) == SAMPLES_PER_STEP and per_step.count(SAMPLES_PER_STEP) == 3 * gauges


def test_purgatory_size_is_counted_without_iteration(metered):
    broker, keeper = metered.broker, metered.keeper
    broker.create("a", 60)
    name = "kafka_server_delayedoperationpurgatory_purgatorysize"

    def wait():
        fetch(broker, *(("a", index, 0) for index in range(60)), min_bytes=1, max_wait_ms=30_000)
        return opcodes_of(lambda: [*keeper._replicas()])

    wait()  # CPython 3.14 counts the first pass over code that it has not specialized differently
    first = wait()
    for _ in range(8):
        last = wait()
    assert metered.sample(name, delayedOperation="Fetch") == 10
    assert last == first
