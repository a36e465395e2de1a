"""kafkalite transaction, as run from a shell."""

from __future__ import annotations

import itertools
import json
import os
import time

import pytest
from confluent_kafka import Producer

from kafkalite.cli.clients import ClusterClients
from kafkalite.cli.transaction import page
from kafkalite.cli.transaction_admin import DescribedTransaction, TransactionAdmin
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, build
from kafkalite.testing import Broker
from tests.cli.conftest import RunCommand
from tests.faults.raw_connection import RawConnection
from tests.process.waiting import until

_numbers = itertools.count(1)
CONFIG = {"transaction.partition.verification.enable": "false"}
HANGING_ID, EPOCH = 900_000_000, 3


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=2, config=CONFIG) as broker:
        yield broker


@pytest.fixture
def command(broker: Broker, run_command: RunCommand):
    def command(*words: object):
        return run_command("transaction", *map(str, words), "-b", broker.bootstrap)

    return command


@pytest.fixture
def transactional_id() -> str:
    return f"billing-{os.getpid()}-{next(_numbers)}"


def producer_of(broker: Broker, transactional_id: str) -> Producer:
    config = {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id}
    producer = Producer(config)
    producer.init_transactions(30)
    return producer


@pytest.fixture
def ongoing(broker: Broker, transactional_id: str):
    """A topic of two partitions, of which an open transaction has records in the second."""
    topic = broker.topic(2)
    producer = producer_of(broker, transactional_id)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=1)
    assert producer.flush(30) == 0
    yield topic
    producer.abort_transaction(30)


@pytest.fixture
def hanging(broker: Broker) -> str:
    """A topic with an open transaction that no coordinator knows."""
    topic = broker.topic(1)
    batch = build(
        [Record(value=b"x", timestamp=1_000)],
        producer_id=HANGING_ID + next(_numbers), producer_epoch=EPOCH, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    admin = TransactionAdmin(ClusterClients(broker.bootstrap, properties=()))
    admin.partitions([topic])
    leader = admin.leader_of((topic, 0))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    request = {"transactional_id": "unknown", "acks": -1, "timeout_ms": 5_000, "topic_data": data}
    with RawConnection(leader, 30) as connection:
        response = connection.request(PRODUCE, 9, request)
    assert [each.error_code for each in response.responses[0].partition_responses] == [0]
    return topic


def test_ids_without_an_open_transaction_are_not_listed_by_its_age(
    broker, command, transactional_id
):
    producer = producer_of(broker, transactional_id)
    producer.begin_transaction()
    producer.produce(broker.topic(1), b"x")
    producer.commit_transaction(30)
    # A commit returns once it is decided, before its markers are written.
    until(lambda: command("list", transactional_id, "--state", "CompleteCommit", "--json").json)
    for words in ((), ("--state", "Ongoing")):
        assert command("list", transactional_id, "--longer-than", "0s", *words, "--json").json == []


def test_ids_are_listed_with_state_and_producer(command, ongoing, transactional_id):
    rows = command("list", transactional_id).table
    assert rows[0] == ["TRANSACTIONAL-ID", "STATE", "PRODUCER-ID", "COORDINATOR"]
    assert [rows[1][0], rows[1][1], rows[1][3]] == [transactional_id, "Ongoing", "0"]
    (listed,) = command("list", transactional_id, "--json").json
    assert listed["state"] == "Ongoing" and listed["producer_id"] == int(rows[1][2])
    assert command("list", transactional_id, "--names").out == f"{transactional_id}\n"


def test_list_is_filtered_by_state_and_duration(command, ongoing, transactional_id):
    assert command("list", transactional_id, "--state", "Ongoing", "--json").json
    assert not command("list", transactional_id, "--state", "Empty", "--json").json
    assert not command("list", transactional_id, "--longer-than", "1h", "--json").json
    assert not command("list", "another", "--json").json


def test_id_is_described_with_its_partitions(command, ongoing, transactional_id):
    (described,) = command("describe", transactional_id, "--json").json
    assert described["partitions"] == [{"topic": ongoing, "partition": 1}]
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)
    page = command("describe", transactional_id).out
    assert f"partitions        {ongoing}-1" in page and "s ago)" in page


def test_id_outside_of_a_transaction_is_described(broker, command, transactional_id):
    producer_of(broker, transactional_id)
    page = command("describe", transactional_id).out
    assert "state             Empty" in page and "partitions        none" in page
    assert "begun" not in page


def test_unknown_id_is_an_error_beside_known_ones(command, ongoing, transactional_id):
    result = command("describe", "no-such-id", transactional_id)
    assert result.code == 1
    assert "transactional id no-such-id does not exist" in result.err
    assert transactional_id in result.out


def test_hanging_transaction_is_found_and_aborted(command, hanging):
    found = command("find-hanging", "-t", hanging, "--json")
    (producer,) = json.loads(found.out)
    assert (found.code, producer["topic"], producer["start_offset"]) == (1, hanging, 0)
    result = command("find-hanging", "-t", f"{hanging}:0")
    assert result.code == 1 and "kafkalite transaction abort" in result.err
    assert result.out.splitlines()[1].split()[:2] == [hanging, "0"]
    aborted = command("abort", f"{hanging}:0", 0)
    assert (aborted.code, aborted.out.endswith("aborted\n")) == (0, True), aborted.err
    after = command("find-hanging", "-t", hanging, "--json")
    assert (after.code, after.json) == (0, [])


def test_transaction_of_a_coordinator_is_not_hanging(command, ongoing):
    assert command("find-hanging", "-t", ongoing, "--max-timeout", "0s", "--json").json == []
    refused = command("abort", f"{ongoing}:1", 0)
    assert refused.code == 1 and "is not hanging" in refused.err


def test_young_transaction_is_not_looked_at(command, hanging):
    week = f"{int(time.time()) + 1}s"
    assert command("find-hanging", "-t", hanging, "--max-timeout", week, "--json").json == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["abort", "TOPIC:0", "7"], "no transaction of"),
        (["abort", "TOPIC:9", "0"], "has no partition 9"),
        (["abort", "TOPIC", "0"], "is not of the form TOPIC:PARTITION"),
        (["find-hanging", "-t", "no-such-topic"], "topic no-such-topic"),
        (["list", "--longer-than", "soon"], "is not a duration"),
        (["list", "--state", "Odd"], "invalid choice"),
        (["describe"], "required"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(command, hanging, words, expected):
    result = command(*(word.replace("TOPIC", hanging) for word in words))
    assert result.code in (1, 2) and expected in result.err and "Traceback" not in result.err


@pytest.mark.parametrize("timeout_ms, expected", [(60_500, "60.5 s"), ((1 << 31) - 1, "none")])
def test_timeout_of_two_phase_commit_is_described_as_none(timeout_ms, expected):
    described = DescribedTransaction("a", 0, 7, 3, "Ongoing", timeout_ms, -1, frozenset())
    assert f"timeout           {expected}" in page(described).splitlines()
