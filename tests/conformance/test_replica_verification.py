"""kafka-replica-verification: Kafka's tool that fetches every replica and compares them.

It compares offsets and checksums of batches, and reports the greatest lag of a replica, until it is
ended.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from kafkalite._ext.record_batch import crc32c
from kafkalite.testing import Broker
from tests.conformance.java_client import SMALL
from tests.conformance.table import Kafka, done
from tools.apache_kafka import TOOLS, TOOLS_CORE, Unavailable, classpath, fetched, java_executable

TOPIC, PARTITIONS, RECORDS = "orders", 2, 10
WAIT_S = 30.0
CRC_POSITION, CHECKED_POSITION = 17, 21


def tool_words() -> Sequence[str]:
    """Return the command of the tool; skip the test if it cannot be run."""
    try:
        java = java_executable()
    except Unavailable as missing:
        pytest.skip(str(missing))
    if not all(map(fetched, (TOOLS, TOOLS_CORE))):
        pytest.skip("the jars of Kafka's tools are fetched by `make oracle`")
    jars = ":".join(map(classpath, (TOOLS, TOOLS_CORE)))
    return [java, *SMALL, "-cp", jars, "org.apache.kafka.tools.ReplicaVerificationTool"]


@contextmanager
def verification(words: Sequence[str], bootstrap: str) -> Iterator[Iterator[str]]:
    """Run the tool over the whole topic; yield the lines that it prints."""
    arguments = [
        "--broker-list", bootstrap, "--topics-include", TOPIC, "--time", "-2",
        "--report-interval-ms", "100",
    ]  # fmt: skip
    tool = subprocess.Popen(
        [*words, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert tool.stdout is not None
    try:
        yield iter(tool.stdout)
    finally:
        tool.kill()
        tool.wait()
        tool.stdout.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with RECORDS in every partition of a topic with three replicas."""
    with Broker(workers=3) as broker:
        kafka = Kafka(broker.bootstrap)
        topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=3)
        done(kafka.admin.create_topics([topic]))
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        for number in range(RECORDS * PARTITIONS):
            producer.produce(TOPIC, b"value-%d" % number, partition=number % PARTITIONS)
            assert producer.flush(WAIT_S) == 0  # a batch for each record
        yield broker


def test_replica_verification_reports_no_lag_of_a_healthy_topic(broker: Broker) -> None:
    words = tool_words()
    with verification(words, broker.bootstrap) as lines:
        reports = (line for line in lines if "max lag" in line)
        for report, _ in zip(reports, range(3), strict=False):
            assert re.search(
                rf"max lag is 0 for partition {TOPIC}-\d at offset {RECORDS} among"
                rf" {PARTITIONS} partitions",
                report,
            ), report


def test_replica_verification_finds_a_replica_with_another_batch(broker: Broker) -> None:
    words = tool_words()
    log = Path(broker.data, f"nodes/3/{TOPIC}-1/00000000000000000000.log")
    replace_last_value(log)
    with verification(words, broker.bootstrap) as lines:
        found = next(line for line in lines if "max lag" in line or "match" in line)
    last = RECORDS - 1
    assert re.search(rf"partition {TOPIC}-1 has unmatched checksum at offset {last}; ", found)


def replace_last_value(log: Path) -> None:
    """Give the last batch of a log another value, and the checksum of that."""
    content = log.read_bytes()
    batch = content.rindex((RECORDS - 1).to_bytes(8, "big") + bytes(3))
    changed = bytearray(content[batch:].replace(b"value-", b"VALUE-"))
    assert changed != content[batch:]
    crc = crc32c(memoryview(changed)[CHECKED_POSITION:])
    changed[CRC_POSITION:CHECKED_POSITION] = crc.to_bytes(4, "big")
    with log.open("r+b") as file:
        file.seek(batch)
        file.write(changed)
