"""`make oracle`: the scenarios of tests/conformance hold for Apache Kafka too, client by client.

A scenario that Apache Kafka fails is a wrong scenario; so is a story of its own tools.

Left out: the scenarios that restart the broker, but for that of a transaction under a kill.  They
need several processes, or clients wait for less time than Apache Kafka takes to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import kafka_tools
from tests.conformance.clients import CLIENTS, missing
from tests.conformance.driven import Program
from tests.conformance.table import Client, Kafka, Scenario, cases
from tests.conformance.test_table import CONFIG, SCENARIOS
from tests.oracle import recording
from tools.apache_kafka import CLIENTS_V1, TOOLS, TOOLS_CORE, ApacheKafka, Unavailable, classpath

pytestmark = pytest.mark.oracle
TRANSACTIONS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.num.partitions": "1",
}
RESTART = "a_transaction_has_one_outcome_and_ends[all killed]"
assert SCENARIOS, "importing the test of the table fills it"


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("apache-kafka")
    kafka = ApacheKafka(directory, recording.PROPERTIES | CONFIG | TRANSACTIONS)
    try:
        kafka.start()
    except Unavailable as missing_part:
        pytest.skip(str(missing_part))
    try:
        yield Kafka(kafka.bootstrap)
    finally:
        kafka.stop()


class Restarted:
    """The lifetime of an Apache Kafka."""

    workers = 0

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        self.data = kafka.data

    def kill(self, _: int | None = None) -> None:
        self.kafka.kill()

    def stop(self) -> None:
        self.kafka.stop()

    def start(self) -> None:
        self.kafka.restart()


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """An Apache Kafka that may be restarted."""
    directory = tmp_path_factory.mktemp("restarted")
    try:
        with ApacheKafka(directory, recording.PROPERTIES | CONFIG | TRANSACTIONS) as kafka:
            yield Kafka(kafka.bootstrap, Restarted(kafka))
    except Unavailable as missing_part:
        pytest.skip(str(missing_part))


@pytest.mark.parametrize(
    ("client", "scenario"),
    [
        pytest.param(client, scenario, id=f"{client.name}-{scenario.name}")
        for client, scenario in cases(CLIENTS)
        if not scenario.restarts or scenario.name == RESTART
    ],
)
def test_a_scenario_holds_for_apache_kafka(
    client: Client, scenario: Scenario, request: pytest.FixtureRequest
) -> None:
    if why := missing(client):
        pytest.skip(why)
    scenario.run(
        client, request.getfixturevalue("restarted" if scenario.restarts else "apache_kafka")
    )


@pytest.fixture(scope="module")
def tools() -> Iterator[Program]:
    try:
        # Fetched here, so that tests which run without Apache Kafka find them.
        for artifact in (TOOLS, TOOLS_CORE, CLIENTS_V1):
            classpath(artifact)
        program = kafka_tools.program()
    except Unavailable as missing_part:
        pytest.skip(str(missing_part))
    yield program
    program.kill()


@pytest.mark.parametrize("story", kafka_tools.STORIES)
def test_kafka_tools_accept_apache_kafka(
    story: str, tools: Program, apache_kafka: Kafka, tmp_path: Path
) -> None:
    wrong = kafka_tools.tell(story, tools, apache_kafka, tmp_path)
    assert not wrong, wrong
