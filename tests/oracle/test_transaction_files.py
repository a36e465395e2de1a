"""`make oracle`: Kafka's dump tool reads the files of transactions that kafkalite has written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkalite.testing import Broker
from tools import apache_kafka

pytestmark = pytest.mark.oracle
WAIT_S = 30
OUTCOMES = [True, False, True, True, False]
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)


@pytest.fixture(scope="module")
def data():
    """Yield the data directory of a stopped broker; each transaction has two records in topic `t`,
    a marker, and an offset of a group."""
    with Broker() as broker:
        producer = Producer({
            "bootstrap.servers": broker.bootstrap, "transactional.id": "dumped", "log_level": 0,
        })  # fmt: skip
        consumer = Consumer({
            "bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0,
        })  # fmt: skip
        producer.init_transactions(WAIT_S)
        for number, commit in enumerate(OUTCOMES):
            producer.begin_transaction()
            for _ in range(2):
                producer.produce("t", b"%d" % number, partition=0)
            assert producer.flush(WAIT_S) == 0
            offsets = [TopicPartition("t", 0, number)]
            producer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), WAIT_S
            )
            end = producer.commit_transaction if commit else producer.abort_transaction
            end(WAIT_S)
        consumer.close()
        broker.stop()
        yield broker.data


def dumped(partition: Path, suffix: str, *flags: str) -> str:
    (path,) = partition.glob(f"*{suffix}")
    try:
        return apache_kafka.dump([*flags, "--files", str(path)])
    except apache_kafka.Unavailable as missing:
        pytest.skip(str(missing))


def test_dump_tool_decodes_the_state_of_transactions(data):
    text = dumped(data / "__transaction_state-0", ".log", "--transaction-log-decoder")
    payloads = [json.loads(each) for each in re.findall("payload: (.*)", text)]
    states = [payload["data"]["transactionStatus"] for payload in payloads]
    wanted = [EMPTY]
    for commit in OUTCOMES:
        wanted += [ONGOING, ONGOING]
        wanted += [PREPARE_COMMIT, COMPLETE_COMMIT] if commit else [PREPARE_ABORT, COMPLETE_ABORT]
    assert states == wanted
    prepared = payloads[states.index(PREPARE_ABORT)]["data"]
    assert sorted(each["topic"] for each in prepared["transactionPartitions"]) == [
        "__consumer_offsets", "t",
    ]  # fmt: skip
    assert prepared["transactionTimeoutMs"] == 60_000
    assert {payload["version"] for payload in payloads} == {"1"}
    assert text.count('key: {"type":"0","data":{"transactionalId":"dumped"}}') == len(states)


@pytest.mark.parametrize(("partition", "size"), [("t-0", 3), ("__consumer_offsets-0", 2)])
def test_dump_tool_reads_markers_and_transaction_indexes(data, partition, size):
    text = dumped(data / partition, ".log", "--print-data-log")
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", text)
    assert markers == [("COMMIT" if commit else "ABORT", "0") for commit in OUTCOMES]
    entries = re.findall(
        r"firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)",
        dumped(data / partition, ".txnindex"),
    )
    firsts = [size * number for number, commit in enumerate(OUTCOMES) if not commit]
    wanted = [(first, first + size - 1, first + size) for first in firsts]
    assert [tuple(map(int, entry)) for entry in entries] == wanted
