"""The table through every client, against kafkalite, or the broker of CONFORMANCE_BOOTSTRAP.

kafkalite has two shapes: one process, and a supervisor with workers.  No client may see a
difference.

To save time not every client runs against each shape: all but two run against several processes;
librdkafka and kafkalite's command alternate, so that every scenario runs against both shapes; each
of the native client's two transports has every other scenario; and so have kafka-python and Java's
client, of those that both can run.  `make clients` runs all.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.testing import Broker
from tests.conformance import (
    configs,
    consuming,
    group_admin,
    groups,
    offsets,
    producing,
    restarts,
    topics,
    transactions,
)
from tests.conformance.clients import (
    CLIENTS,
    JAVA,
    KAFKA_PYTHON,
    LIBRDKAFKA,
    NATIVE,
    NATIVE_TCP,
    OURS,
    missing,
)
from tests.conformance.members import Group
from tests.conformance.table import SCENARIOS, TRANSACTIONS, Client, Kafka, Read, Scenario, cases

assert SCENARIOS, (configs, consuming, group_admin, groups, offsets, producing, restarts, topics)
assert transactions

ELSEWHERE = os.environ.get("CONFORMANCE_BOOTSTRAP")
CONFIG = {"group.min.session.timeout.ms": "500", "log.retention.ms": "-1"}
"""The session of a killed member expires soon, and records of 1970 are kept."""
CPU_MS_MAX = 250
"""Processor time of one tick: five times the limit, because other tests run at the same time."""
SLOW_TICKS_MAX = 2
"""At times a virtual machine's host takes its processors away for so long, and the kernel counts
that as the thread's time: a real cause of slow ticks occurs more often."""

SHAPES = {"elsewhere": 0} if ELSEWHERE else {"one_process": 0, "workers": 3}
WHOLE = bool(ELSEWHERE) or "CONFORMANCE_WHOLE" in os.environ
OFTEN = {
    "exactly_the_committed_transactions_are_shown",
    "a_second_producer_of_the_id_fences_the_first_and_aborts_its_transaction",
    "records_and_the_offsets_they_were_made_from_are_committed_together",
}
"""The scenarios of transactions that two clients run each time."""
PLACES = {name: place for place, name in enumerate(SCENARIOS)}


@pytest.fixture(scope="session")
def shape(request: pytest.FixtureRequest) -> str:
    """The shape of the broker."""
    return str(request.param)


@pytest.fixture(scope="session")
def kafka(shape: str) -> Iterator[Kafka]:
    """One Kafka of a shape for all scenarios that leave it running."""
    if ELSEWHERE:
        yield Kafka(ELSEWHERE)
        return
    with Broker(workers=SHAPES[shape], config=CONFIG) as broker:
        yield Kafka(broker.bootstrap)
        slow = broker.slow_ticks(CPU_MS_MAX)
        causes = Counter(re.search("cause='(.*?)'", line)[1] for line in slow)
        assert all(count <= SLOW_TICKS_MAX for count in causes.values()), slow


@pytest.fixture
def restarted(shape: str) -> Iterator[Kafka]:
    """A Kafka of this test alone, which may be restarted."""
    if ELSEWHERE:
        pytest.skip("the Kafka of CONFORMANCE_BOOTSTRAP is not ours to restart")
    with Broker(workers=SHAPES[shape], config=CONFIG) as broker:
        yield Kafka(broker.bootstrap, broker)


def asked(shape: str, client: Client, scenario: Scenario) -> bool:
    """Return True if this combination is run; see the module."""
    one_process = shape == "one_process"
    pair = (OURS, LIBRDKAFKA)
    if TRANSACTIONS in scenario.needs:
        often = scenario.name in OFTEN and client in (LIBRDKAFKA, KAFKA_PYTHON)
        return not one_process and (WHOLE or often)
    if WHOLE:
        return not one_process or client in pair
    turn = bool(PLACES[scenario.name] % 2)
    if client in pair:
        both = all(scenario.needs <= each.can for each in pair)
        return not both or one_process is (turn is (client is OURS))
    for alternating in ((NATIVE, NATIVE_TCP), (KAFKA_PYTHON, JAVA)):
        if client in alternating and all(scenario.needs <= each.can for each in alternating):
            return not one_process and turn is (client is alternating[0])
    return not one_process


@pytest.mark.parametrize(
    ("shape", "client", "scenario"),
    [
        pytest.param(
            shape,
            client,
            scenario,
            id=f"{shape}-{client.name}-{scenario.name}",
        )
        for shape in SHAPES
        for client, scenario in cases(CLIENTS)
        if asked(shape, client, scenario)
    ],
    indirect=["shape"],
    scope="session",
)
def test_scenario(
    client: Client, scenario: Scenario, shape: str, request: pytest.FixtureRequest
) -> None:
    if why := missing(client):
        pytest.skip(why)
    scenario.run(client, request.getfixturevalue("restarted" if scenario.restarts else "kafka"))


def test_every_scenario_has_a_client() -> None:
    assert {scenario.name for _, scenario in cases(CLIENTS)} == set(SCENARIOS)


def test_record_read_twice_is_reported_with_the_history_of_its_group() -> None:
    class Silent:
        name = staticmethod(lambda: "g")
        committed = staticmethod(lambda group: {("t", 0): (1, "")})

    def member(*offsets: int) -> Any:
        changes = [("assigned", frozenset({("t", 0)}))]
        return SimpleNamespace(read=[Read("t", 0, at, b"") for at in offsets], changes=changes)

    group = Group(CLIENTS[0], Silent(), "t")  # type: ignore[arg-type]
    group.gone, group.members = [member(0, 1)], [member(1)]
    with pytest.raises(AssertionError) as raised:
        group.has_read_once(2)
    told = str(raised.value)
    assert "read more than once: [('t', 0, 1)]" in told
    assert "committed: {('t', 0): (1, '')}" in told
    assert "0, gone: [('assigned', [('t', 0)])]\n   read: [('t', 0, 0), ('t', 0, 1)]" in told
    assert "1, a member: [('assigned', [('t', 0)])]\n   read: [('t', 0, 1)]" in told
