"""The table through every client, against kafkalite, or the broker of CONFORMANCE_BOOTSTRAP.

kafkalite has two shapes: one process, and a supervisor with workers.  No client may see a
difference.

`make clients` runs every scenario through every client that can, against several processes, and
through librdkafka and kafkalite's command against one process as well, as are the newer groups
through each of their clients.  `make test` runs each scenario once: the clients take turns, and so
do the shapes.

In a third shape, `replicated`, the topics of three workers have three replicas each.  `make
clients` runs the scenarios in which that matters, by three clients that are independent of each
other; with CONFORMANCE_REPLICATED set, all scenarios run in that shape, by all clients, and in no
other.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
from tests.conformance.clients import (
    CLIENTS,
    JAVA,
    LIBRDKAFKA,
    NATIVE,
    NEW_MEMBERS,
    OURS,
    missing,
)
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

SHAPES = ["elsewhere"] if ELSEWHERE else ["one_process", "workers"]
WORKERS = {"one_process": 0, "workers": 3, "replicated": 3}
REPLICAS = {"elsewhere": 1, "one_process": 1, "workers": 1, "replicated": 3}
REPLICATED = {
    "a_group_goes_on_where_it_was_before_a_restart",
    "a_killed_broker_under_load_loses_and_doubles_nothing",
    "a_reader_at_the_end_gets_what_comes_next",
    "a_share_group_that_reads_committed_gets_no_aborted_record",
    "a_topic_deleted_is_gone_with_its_records",
    "a_topic_grows_and_keeps_what_it_has",
    "a_transaction_has_one_outcome_and_ends[a worker killed]",
    "a_transaction_has_one_outcome_and_ends[all killed]",
    "all_records_can_be_deleted_and_offsets_go_on",
    "exactly_the_committed_transactions_are_shown",
    "offsets_are_found_at_both_ends_and_by_time",
    "records_and_the_offsets_they_were_made_from_are_committed_together",
    "records_deleted_are_gone_and_the_others_keep_their_offsets",
    "reading_goes_on_from_segment_to_segment",
    "transactions_on_a_cleaned_topic_are_read_from_its_start[read_committed]",
}
"""The scenarios in which the number of replicas matters most."""
NOT_REPLICATED = {"a_transaction_has_one_outcome_and_ends[a worker drained]"}
"""With a replica on each node, none can be drained."""
WHOLE = bool(ELSEWHERE) or "CONFORMANCE_WHOLE" in os.environ
ALL_REPLICATED = "CONFORMANCE_REPLICATED" in os.environ


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
    with started(shape) as broker:
        yield Kafka(broker.bootstrap, replicas=REPLICAS[shape])
        slow = broker.slow_ticks(CPU_MS_MAX)
        causes = Counter(re.search("cause='(.*?)'", line)[1] for line in slow)
        assert all(count <= SLOW_TICKS_MAX for count in causes.values()), slow


@pytest.fixture
def restarted(shape: str) -> Iterator[Kafka]:
    """A Kafka of this test alone, which may be restarted."""
    if ELSEWHERE:
        pytest.skip("the Kafka of CONFORMANCE_BOOTSTRAP is not ours to restart")
    with started(shape) as broker:
        yield Kafka(broker.bootstrap, broker, REPLICAS[shape])


def started(shape: str) -> Broker:
    """Return a broker of a shape; its new topics have the shape's number of replicas."""
    factor = {"default.replication.factor": str(REPLICAS[shape])}
    return Broker(workers=WORKERS[shape], config=CONFIG | factor)


def chosen_cases() -> Iterator[tuple[str, Client, Scenario]]:
    """Yield the shapes, clients and scenarios of this run; see the module."""
    by_scenario: dict[str, list[Client]] = {}
    for client, scenario in cases(CLIENTS):
        by_scenario.setdefault(scenario.name, []).append(client)
    if ALL_REPLICATED:
        yield from replicated_cases(CLIENTS, SCENARIOS.keys() - NOT_REPLICATED)
        return
    if WHOLE and not ELSEWHERE:
        yield from replicated_cases([LIBRDKAFKA, JAVA, NATIVE], REPLICATED)
    for place, (name, able) in enumerate(by_scenario.items()):
        if not WHOLE:
            # Each client has a scenario in either shape before the next client's turn.
            turn, shape = divmod(place, len(SHAPES))
            yield SHAPES[shape], able[turn % len(able)], SCENARIOS[name]
            continue
        scenario = SCENARIOS[name]
        for client in able:
            if (client in (LIBRDKAFKA, OURS) or NEW_MEMBERS & scenario.needs) and not ELSEWHERE:
                yield "one_process", client, scenario
            yield ("elsewhere" if ELSEWHERE else "workers"), client, scenario


def replicated_cases(
    clients: Sequence[Client], names: Collection[str]
) -> Iterator[tuple[str, Client, Scenario]]:
    for client, scenario in cases(clients):
        if scenario.name in names:
            yield "replicated", client, scenario


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


def test_every_scenario_of_replicated_topics_is_in_the_table() -> None:
    assert REPLICATED | NOT_REPLICATED <= SCENARIOS.keys()


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
