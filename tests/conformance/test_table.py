"""The table through every client, against kafkalite, or the broker of CONFORMANCE_BOOTSTRAP.

kafkalite has two shapes: one process, and a supervisor with workers.  No client may see a
difference.

`make clients` runs every scenario through every client that can, against several processes, and
through librdkafka and kafkalite's command against one process as well, as are the newer groups
through each of their clients.  `make test` runs each scenario once: the clients take turns, and so
do the shapes.
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
    compaction,
    configs,
    consumer_groups,
    consuming,
    group_admin,
    groups,
    offsets,
    producing,
    restarts,
    share_groups,
    topics,
    transactions,
)
from tests.conformance.clients import CLIENTS, LIBRDKAFKA, NEW_MEMBERS, OURS, missing
from tests.conformance.members import Group
from tests.conformance.table import SCENARIOS, Client, Kafka, Read, Scenario, cases

assert SCENARIOS, (configs, consuming, group_admin, groups, offsets, producing, restarts, topics)
assert transactions and compaction
assert consumer_groups and share_groups

ELSEWHERE = os.environ.get("CONFORMANCE_BOOTSTRAP")
CONFIG = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "50",
    "group.share.min.record.lock.duration.ms": "1000",
    "log.retention.ms": "-1",
}
"""The session of a killed member expires soon, and records of 1970 are kept."""
CPU_MS_MAX = 250
"""Processor time of one tick: five times the limit, because other tests run at the same time."""
SLOW_TICKS_MAX = 2
"""At times a virtual machine's host takes its processors away for so long, and the kernel counts
that as the thread's time: a real cause of slow ticks occurs more often."""

SHAPES = {"elsewhere": 0} if ELSEWHERE else {"one_process": 0, "workers": 3}
WHOLE = bool(ELSEWHERE) or "CONFORMANCE_WHOLE" in os.environ


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


def chosen_cases() -> Iterator[tuple[str, Client, Scenario]]:
    """Yield the shapes, clients and scenarios of this run; see the module."""
    by_scenario: dict[str, list[Client]] = {}
    for client, scenario in cases(CLIENTS):
        by_scenario.setdefault(scenario.name, []).append(client)
    for place, (name, able) in enumerate(by_scenario.items()):
        if not WHOLE:
            # Each client has a scenario in either shape before the next client's turn.
            turn, shape = divmod(place, len(SHAPES))
            yield list(SHAPES)[shape], able[turn % len(able)], SCENARIOS[name]
            continue
        scenario = SCENARIOS[name]
        for client in able:
            if (client in (LIBRDKAFKA, OURS) or NEW_MEMBERS & scenario.needs) and not ELSEWHERE:
                yield "one_process", client, scenario
            yield ("elsewhere" if ELSEWHERE else "workers"), client, scenario


@pytest.mark.parametrize(
    ("shape", "client", "scenario"),
    [
        pytest.param(
            shape,
            client,
            scenario,
            id=f"{shape}-{client.name}-{scenario.name}",
        )
        for shape, client, scenario in sorted(chosen_cases(), key=lambda case: case[0])
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
