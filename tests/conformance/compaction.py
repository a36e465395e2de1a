"""Scenarios of compacted topics: what consumers are shown of transactions after passes of the log
cleaner.

Left out: a broker of CONFORMANCE_BOOTSTRAP, as Apache Kafka's cleaner takes no requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest
from confluent_kafka import Producer

import kafkalite
from tests.conformance.table import NULLS_AND_EMPTIES, Client, Kafka, scenario, until

ISOLATION_LEVELS = ["read_committed", "read_uncommitted"]
KEYS = 20
ROUNDS = 6
WAIT_S = 30
COMPACT_S_MAX = 60

Latest = dict[bytes, bytes | None]


def written(producer: Producer, topic: str, numbers: Iterable[int]) -> Latest:
    """Write transactions with librdkafka, of which every third one is aborted; return the last
    committed value of each key."""
    latest: Latest = {}
    for number in numbers:
        producer.begin_transaction()
        records: Latest = {
            b"%d" % key: None if (key + number) % 7 == 0 else b"%d of %d" % (key, number)
            for key in range(number % 3, KEYS, 2)
        }
        for key, value in records.items():
            producer.produce(topic, value, key)
        assert producer.flush(WAIT_S) == 0
        if number % 3 == 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
            latest |= records
    return latest


def written_natively(bootstrap: str, topic: str) -> Latest:
    """Write one transaction with the native client."""
    records: Latest = {b"native": b"1", b"0": b"of native"}
    with kafkalite.Producer(bootstrap, transactional_id=f"{topic}-native") as producer:
        with producer.transaction():
            for key, value in records.items():
                producer.send(topic, value, key=key)
    return records


def compact(kafka: Kafka, topic: str) -> None:
    command = [sys.executable, "-m", "kafkalite", "topic", "compact", topic, "-b", kafka.bootstrap]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPACT_S_MAX, check=False
    )
    assert ended.returncode == 0, ended.stderr


@scenario(NULLS_AND_EMPTIES, isolation=ISOLATION_LEVELS)
def transactions_on_a_cleaned_topic_are_read_from_its_start(
    client: Client, kafka: Kafka, isolation: str
) -> None:
    if "CONFORMANCE_BOOTSTRAP" in os.environ:
        pytest.skip("needs kafkalite's log cleaner")
    topic = kafka.topic(cleanup_policy="compact", delete_retention_ms="0")
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    latest: Latest = {}
    for begin in range(0, 3 * ROUNDS, ROUNDS):
        latest |= written(producer, topic, range(begin, begin + ROUNDS))
        latest |= written_natively(kafka.bootstrap, topic)
        until(lambda: len({kafka.end(topic, committed=each) for each in (True, False)}) == 1)
        compact(kafka, topic)
    # kafkajs waits for a record at the end of the partition, which is a marker now.
    last = Producer({"bootstrap.servers": kafka.bootstrap})
    last.produce(topic, b"the last record", b"last")
    assert last.flush(WAIT_S) == 0
    latest[b"last"] = b"the last record"
    read = client.consume(kafka, topic, settings={"isolation.level": isolation})
    offsets = [record.offset for record in read]
    assert offsets == sorted(set(offsets))
    found = {record.key: record.value for record in read}
    # The cleaner may have removed a tombstone with all other records of its key.
    assert {k: v for k, v in found.items() if v} == {k: v for k, v in latest.items() if v}
    assert found.items() <= latest.items()
    assert len(read) < len(latest) + ROUNDS
