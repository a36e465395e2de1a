"""Kafka's own command-line tools print the same for kafkalite as for Apache Kafka.

`make oracle` runs the same against Apache Kafka (tests/oracle/test_conformance.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafkalite.testing import Broker
from tests.conformance import kafka_tools
from tests.conformance.driven import Program
from tests.conformance.kafka_tools import STORIES
from tests.conformance.replica_stories import AFTER_FAILOVER, BEFORE_FAILOVER
from tests.conformance.says import Says
from tests.conformance.table import Kafka
from tests.conformance.throttle_stories import REASSIGNMENT
from tools.apache_kafka import Unavailable


@pytest.fixture(scope="module")
def tools() -> Iterator[Program]:
    try:
        program = kafka_tools.program()
    except Unavailable as missing:
        pytest.skip(str(missing))
    yield program
    program.kill()


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with Broker(workers=1) as broker:
        yield Kafka(broker.bootstrap)


@pytest.mark.parametrize("story", STORIES)
def test_kafka_tools_accept_kafkalite(
    story: str, tools: Program, broker: Kafka, tmp_path: Path
) -> None:
    wrong = kafka_tools.tell(story, tools, broker, tmp_path)
    assert not wrong, wrong


def test_kafka_tools_follow_a_replicated_topic_through_a_failover(tools: Program) -> None:
    names = {"t": "replicated"}
    with Broker(workers=3) as broker:
        wrong = kafka_tools.tell_all(BEFORE_FAILOVER, tools, broker.bootstrap, names)
        assert not wrong, wrong
        broker.kill(1)
        wrong = kafka_tools.tell_all(AFTER_FAILOVER, tools, broker.bootstrap, names)
        assert not wrong, wrong


def test_kafka_tools_throttle_a_reassignment(tools: Program, tmp_path: Path) -> None:
    moves = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [1, 2]}]}
    (tmp_path / "moves.json").write_text(json.dumps(moves))
    names = {"t": "moved", "d": str(tmp_path)}
    with Broker(workers=3) as broker:
        create = Says(
            "kafka-topics --create --topic {t} --replica-assignment 1", "Created topic {t}."
        )
        wrong = kafka_tools.tell_all([create], tools, broker.bootstrap, names)
        assert not wrong, wrong
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(40):
            producer.produce("moved", bytes(500_000))
            producer.flush()
        wrong = kafka_tools.tell_all(REASSIGNMENT, tools, broker.bootstrap, names)
        assert not wrong, wrong


ANSWER = {"code": 0, "printed": "a  1\n\nb 2\n", "complained": ""}


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        (Says("", "a 1\nb 2"), True),
        (Says("", "a *\n..."), True),
        (Says("", "...\nb 2\n..."), True),
        (Says("", "a 1"), False),
        (Says("", "b 2\na 1"), False),
        (Says("", "...", code=1), False),
        (Says("", "...", complains="no"), False),
    ],
)
def test_tool_output_is_compared_with_expected_lines(says: Says, fits: bool) -> None:
    assert kafka_tools.fits(ANSWER, says, {}) is fits


def test_unexpected_tool_error_is_reported() -> None:
    assert not kafka_tools.fits({**ANSWER, "complained": "SomeException: no"}, Says("", "..."), {})
