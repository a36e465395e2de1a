"""`make oracle`: the scenarios of tests/conformance hold for Apache Kafka too, client by client.

A scenario that Apache Kafka fails is a scenario that is wrong.

Left out: the scenarios that end the broker and start it again, which are about our own promises.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.clients import CLIENTS, missing
from tests.conformance.table import Client, Kafka, Scenario, cases
from tests.conformance.test_table import SCENARIOS
from tests.oracle import recording
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle
assert SCENARIOS, "importing the test of the table fills it"


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"), recording.PROPERTIES)
    try:
        kafka.start()
    except Unavailable as missing_part:
        pytest.skip(str(missing_part))
    try:
        yield Kafka(kafka.bootstrap)
    finally:
        kafka.stop()


@pytest.mark.parametrize(
    ("client", "scenario"),
    [
        pytest.param(client, scenario, id=f"{client.name}-{scenario.name}")
        for client, scenario in cases(CLIENTS)
        if not scenario.restarts
    ],
)
def test_a_scenario_holds_for_apache_kafka(
    client: Client, scenario: Scenario, apache_kafka: Kafka
) -> None:
    if why := missing(client):
        pytest.skip(why)
    scenario.run(client, apache_kafka)
