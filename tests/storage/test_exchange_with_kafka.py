"""Exchange of partition directories: Apache Kafka reads what our Log wrote, and Log reads Kafka's.

Kafka's dump tool walks segments, both indexes and the producer snapshot; a Kafka broker then serves
the whole directory, and Log opens a directory that the broker wrote.  Needs Java and Maven's
repository: `make oracle`.
"""

import base64
import re
import shutil
import time
import uuid
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.clock import ManualClock
from kafkalite.config.settings import Settings
from kafkalite.records.batch import Record, batches, build
from kafkalite.records.compression import Codec
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.compaction import cleaner_checkpoint
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.storage import cleaning_harness as harness
from tests.storage.factories import close
from tools import apache_kafka

pytestmark = pytest.mark.oracle

NOW = 1_700_000_000_000
TOPIC = "flights"
DISAGREEMENTS = re.compile(r"mismatch|out of order|non-consecutive|not found|corrupt", re.I)


def open_log(directory, topic_id, **topic):
    topic = {"segment.bytes": str(1 << 20), "index.interval.bytes": "256"} | topic
    settings = Settings.broker({"durability": "os"}).for_topic(topic)
    environment = LogEnvironment.of(directory, ManualClock(wall_ms=NOW + 60_000), DISK)
    owner = TopicIdPartition(TOPIC, 0, topic_id)
    return Log.open(directory, owner, LogConfig.of(settings), environment)


def filled(directory, topic_id, second_epoch=2):
    """Return a log of several segments: every codec, two producers, two leader epochs, timestamps
    that go back."""
    log = open_log(directory, topic_id)
    sequences = {4_000: 0, 4_001: 0}
    codecs = list(Codec)
    for n in range(600):
        producer_id = (4_000, 4_001, -1)[n % 3]
        records = [
            Record(-1, NOW + 10 * n - 25 * (n % 4) + place, b"%d" % n, b"%d " % place * 1_500)
            for place in range(1 + n % 3)
        ]
        idempotent = {}
        if producer_id >= 0:
            sequence = sequences[producer_id]
            idempotent = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": sequence,
            }
            sequences[producer_id] += len(records)
        batch = build(records, codec=codecs[n % 5 if n % 2 else 0], **idempotent)
        log.append(batch, leader_epoch=0 if n < 300 else second_epoch)
        log.write_index_page()
    assert len(log.segments) > 2
    return log


def records_of(directory):
    return [
        record
        for path in sorted(directory.glob("*.log"))
        for batch in batches(path.read_bytes())
        for record in batch
    ]


def dump(directory, suffix, *options):
    files = ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))
    assert files
    return apache_kafka.dump(["--files", files, *options])


@pytest.fixture(scope="module")
def kafka_tools():
    try:
        apache_kafka.java_executable()
        apache_kafka.classpath(apache_kafka.TOOLS)
    except apache_kafka.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def written(tmp_path, kafka_tools):
    directory = tmp_path / f"{TOPIC}-0"
    directory.mkdir()
    log = filled(directory, uuid.uuid4().bytes)
    end_offset = log.end_offset
    close(log)
    return SimpleNamespace(directory=directory, end_offset=end_offset)


def test_kafka_dump_tool_finds_every_batch_valid(written):
    shown = dump(written.directory, ".log", "--deep-iteration")
    found = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) .* isvalid: (\w+)", shown, re.M)
    assert {valid for _, _, valid in found} == {"true"}
    firsts = [int(first) for first, _, _ in found]
    assert firsts == [0, *(int(last) + 1 for _, last, _ in found[:-1])]
    assert int(found[-1][1]) == written.end_offset - 1
    # The tool begins every file at -1, and so reports a gap before each file but the first.
    assert {before for before, _ in re.findall(r"(\S+) is followed by (\d+)", shown)} == {"-1"}
    assert not DISAGREEMENTS.search(re.sub("Non-consecutive offsets", "", shown))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_dump_tool_finds_no_index_mismatch(written, suffix):
    shown = dump(written.directory, suffix)
    assert len(re.findall(r"^(offset|timestamp): ", shown, re.M)) > 100, "there are entries"
    assert not DISAGREEMENTS.search(shown), shown
    sane = dump(written.directory, suffix, "--index-sanity-check")
    assert len(re.findall("passed sanity check", sane)) == len(
        list(written.directory.glob(f"*{suffix}"))
    )


@pytest.mark.parametrize(("suffix", "byte"), [(".index", 8 * 50 + 2), (".timeindex", 12 * 50 + 6)])
def test_kafka_dump_tool_reports_a_damaged_index(written, suffix, byte):
    """Damage makes the dump tool report an error, so the test above can fail."""
    path = min(written.directory.glob(f"*{suffix}"))
    entries = bytearray(path.read_bytes())
    entries[byte] ^= 1
    path.write_bytes(entries)
    assert DISAGREEMENTS.search(dump(written.directory, suffix))


def test_kafka_dump_tool_reads_producer_snapshots(written):
    shown = dump(written.directory, ".snapshot")
    last = shown.rpartition("Dumping")[2]
    assert "Checksum" not in last and "corrupt" not in last.lower()
    producers = {
        int(producer): int(sequence)
        for producer, sequence in re.findall(
            r"producerId: (\d+) producerEpoch: 0 .*lastSequence: (\d+)", last
        )
    }
    expected = {
        batch.header.producer_id: batch.header.base_sequence + batch.header.count - 1
        for path in sorted(written.directory.glob("*.log"))
        for batch in batches(path.read_bytes())
        if batch.header.producer_id >= 0
    }
    assert producers == expected and len(expected) == 2


def topic_id_in(directory):
    text = (directory / "partition.metadata").read_text()
    coded = re.search(r"topic_id: (\S+)", text)[1]
    return base64.urlsafe_b64decode(coded + "==")


def consumed(bootstrap, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "any"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    messages = []
    while len(messages) < count:
        taken = consumer.consume(count - len(messages), timeout=30)
        assert taken, f"nothing came after {len(messages)} of {count}"
        messages += taken
    consumer.close()
    assert [message.error() for message in messages if message.error()] == []
    return messages


def produced(bootstrap, values, **settings):
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    failed = []
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(30) == 0 and not failed


@pytest.fixture
def kafka(tmp_path, kafka_tools):
    """Return a Kafka broker on which the topic was created, stopped again."""
    broker = apache_kafka.ApacheKafka(tmp_path / "kafka", {"log.index.interval.bytes": "256"})
    try:
        with broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            topic = NewTopic(TOPIC, 1, 1, config={"retention.ms": "-1"})
            admin.create_topics([topic])[TOPIC].result(30)
            produced(broker.bootstrap, [b"kafka's own"])
    except apache_kafka.Unavailable as reason:
        pytest.skip(str(reason))
    return broker


def test_kafka_serves_a_partition_written_by_kafkalite(kafka):
    directory = kafka.data / f"{TOPIC}-0"
    topic_id = topic_id_in(directory)
    metadata = (directory / "partition.metadata").read_bytes()
    shutil.rmtree(directory)
    directory.mkdir()
    # The leader epoch is set by Kafka's controller, which has not elected a leader twice.
    log = filled(directory, topic_id, second_epoch=0)
    close(log)
    (directory / "partition.metadata").write_bytes(metadata)
    expected = records_of(directory)
    # Kafka trusts its checkpoints and its clean shutdown file, which describe the replaced log.
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint",
                 "replication-offset-checkpoint", "log-start-offset-checkpoint"):  # fmt: skip
        (kafka.data / name).unlink(missing_ok=True)
    with kafka:
        messages = consumed(kafka.bootstrap, len(expected))
        produced(kafka.bootstrap, [b"after ours"])
        (last,) = consumed(kafka.bootstrap, len(expected) + 1)[-1:]
    assert [
        (message.offset(), message.timestamp()[1], message.key(), message.value())
        for message in messages
    ] == [record[:4] for record in expected]
    assert (last.offset(), last.value()) == (len(expected), b"after ours")


def test_kafkalite_opens_a_partition_written_by_kafka(kafka):
    values = [b"%d " % n * 400 for n in range(3_000)]
    with kafka:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            chosen = {"compression.type": codec, "enable.idempotence": True}
            produced(kafka.bootstrap, values[:: 1 + len(codec)], **chosen)
        count = 1 + sum(len(values[:: 1 + n]) for n in (4, 4, 6, 3, 4))
        expected = [
            (message.offset(), message.value()) for message in consumed(kafka.bootstrap, count)
        ]
    directory = kafka.data / f"{TOPIC}-0"
    log = open_log(directory, topic_id_in(directory))
    assert (log.log_start_offset, log.end_offset) == (0, count)
    found = []
    while len(found) < count:
        part = read(log, len(found), 1 << 20, log.end_offset)
        found += [
            (record.offset, record.value)
            for batch in batches(part.read())
            for record in batch
            if record.offset >= len(found)
        ]
    assert found == expected
    appended = log.append(build([Record(-1, NOW, b"k", b"after Kafka's")]), leader_epoch=9)
    assert appended.base_offset == count
    close(log)


# -- compaction ----------------------------------------------------------------------------------


def compacted(directory):
    """Return a log with updates, tombstones and transactions in every codec, cleaned twice."""
    log = open_log(directory, uuid.uuid4().bytes, **{"segment.bytes": str(1 << 20)})
    codecs, sequences = list(Codec), {7: 0, 8: 0}
    for n in range(800):
        producer_id = (7, 8, -1)[n % 3]
        records = [
            Record(-1, NOW + n, b"key %d" % ((7 * n + i) % 40), value_of(n, i)) for i in range(4)
        ]
        how = {}
        if producer_id >= 0:
            how = {
                "producer_id": producer_id, "producer_epoch": 0, "transactional": True,
                "base_sequence": sequences[producer_id],
            }  # fmt: skip
            sequences[producer_id] += len(records)
        log.append(build(records, codec=codecs[n % 5], **how), 0, guard=NOT_REQUIRED)
        if n % 10 == 9:
            for producer in (7, 8):
                log.append_marker(TransactionMarker(producer, 0, n % 20 > 10, 0), 0)
    log.roll()
    log.append(build([Record(-1, NOW + 5000, b"key 1", b"newest")]), 0)
    expected = harness.latest(harness.read_committed(log)).values()
    for later_ms in (0, 500, 5000):
        log.cleaner_offset = -1
        harness.run_pass(log, now_ms=NOW + later_ms, segment_bytes=1 << 20)
    return log, {r.key: (r.offset, r.value) for r in expected if r.value is not None}


def value_of(number, place):
    return None if number % 37 == 5 else b"%d " % (10 * number + place) * 60


@pytest.fixture
def cleaned(tmp_path, kafka_tools):
    directory = tmp_path / f"{TOPIC}-0"
    directory.mkdir()
    log, expected = compacted(directory)
    end_offset = log.end_offset
    log.deferred_deletes.remove_due()
    close(log)
    for path in directory.glob("*.deleted"):
        path.unlink()
    return SimpleNamespace(directory=directory, end_offset=end_offset, expected=expected)


def test_kafka_dump_tool_finds_cleaned_segments_valid(cleaned):
    shown = dump(cleaned.directory, ".log", "--deep-iteration")
    found = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) .* isvalid: (\w+)", shown, re.M)
    assert {valid for _, _, valid in found} == {"true"}
    assert len(found) > 10
    assert not DISAGREEMENTS.search(re.sub("(?i)non-consecutive offsets", "", shown))
    for suffix in (".index", ".timeindex"):
        assert not DISAGREEMENTS.search(dump(cleaned.directory, suffix))
        sane = dump(cleaned.directory, suffix, "--index-sanity-check")
        assert "passed sanity check" in sane


def by_key(messages):
    found = {message.key(): message for message in messages}
    return {k: (m.offset(), m.value()) for k, m in found.items() if m.value() is not None}


def read_to(bootstrap, end_offset):
    """Return what a read_committed consumer gets of a topic, up to its end."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "any", "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    messages = []
    while True:
        (message,) = consumer.consume(1, timeout=30)
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            assert end_offset in (None, message.offset())
            break
        messages.append(message)
    consumer.close()
    return messages


def test_kafka_serves_segments_that_were_cleaned_here(cleaned, kafka):
    directory = kafka.data / f"{TOPIC}-0"
    metadata = (directory / "partition.metadata").read_bytes()
    shutil.rmtree(directory)
    shutil.copytree(cleaned.directory, directory)
    (directory / "partition.metadata").write_bytes(metadata)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint",
                 "replication-offset-checkpoint", "log-start-offset-checkpoint"):  # fmt: skip
        (kafka.data / name).unlink(missing_ok=True)
    with kafka:
        messages = read_to(kafka.bootstrap, cleaned.end_offset)
    assert by_key(messages) == cleaned.expected


COMPACTED_BY_KAFKA = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "500",
    "delete.retention.ms": "0",
}  # fmt: skip


def test_kafkalite_opens_and_cleans_segments_that_kafka_has_cleaned(tmp_path, kafka_tools):
    broker = apache_kafka.ApacheKafka(tmp_path / "kafka", {"log.cleaner.backoff.ms": "100"})
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    try:
        with broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            topic = NewTopic(TOPIC, 1, 1, config=COMPACTED_BY_KAFKA)
            admin.create_topics([topic])[TOPIC].result(30)
            deadline = time.monotonic() + 60
            number = 0
            while (TOPIC, 0) not in cleaner_checkpoint.read(checkpoint):
                assert time.monotonic() < deadline, "Kafka did not clean the log"
                write_transactions(broker.bootstrap, number)
                number += 1
            messages = read_to(broker.bootstrap, None)
    except apache_kafka.Unavailable as reason:
        pytest.skip(str(reason))
    directory = broker.data / f"{TOPIC}-0"
    offset = cleaner_checkpoint.read(checkpoint)[TOPIC, 0]
    log = open_log(directory, topic_id_in(directory), **{"cleanup.policy": "compact"})
    assert log.failure is None
    log.cleaner_offset = offset
    expected = by_key(messages)
    assert committed_by_key(log) == expected
    log.roll()
    harness.clean_all(log, slots=100_000, now_ms=int(time.time() * 1000))
    assert committed_by_key(log) == expected
    assert len(list(harness.records_of(log))) <= 2 * len(expected) + 20
    close(log)


def write_transactions(bootstrap, number):
    """Write a committed and an aborted transaction, with updates and tombstones."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer"})
    producer.init_transactions(30)
    for commit in (True, False):
        producer.begin_transaction()
        for n in range(50):
            value = None if n % 7 == 3 else b"%d %d " % (number, n) * 20
            producer.produce(TOPIC, value, b"key %d" % (n % 20 + commit))
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)


def committed_by_key(log):
    found = harness.latest(harness.read_committed(log)).values()
    return {r.key: (r.offset, r.value) for r in found if r.value is not None}
