"""DescribeTransactions and ListTransactions, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.security import DESCRIBE
from kafkalite.ids import new_id
from kafkalite.protocol.schemas import transaction_records
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kafkalite.protocol.schemas.transactions import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS
from kafkalite.records.batch import Record, build
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying

TRANSACTION_STATE = "__transaction_state"


def describe(node: InProcess, *transactional_ids: str) -> list:
    response = node.request(DESCRIBE_TRANSACTIONS, 0, transactional_ids=list(transactional_ids))
    return list(response.transaction_states)


def listed(node: InProcess, version: int = 1, **filters) -> list[tuple[str, int, str]]:
    request = {"state_filters": [], "producer_id_filters": [], **filters}
    response = node.request(LIST_TRANSACTIONS, version, **request)
    assert response.error_code == 0
    return sorted(
        (each.transactional_id, each.producer_id, each.transaction_state)
        for each in response.transaction_states
    )


def write(node: InProcess, *records: TransactionRecord) -> None:
    """Append records as another broker has written them, and load them."""
    partition = node.node.replicas.leader(TRANSACTION_STATE, 0)
    for record in records:
        key, value = transaction_records.write(record)
        batch = build([Record(timestamp=node.clock.wall_ms(), key=key, value=value)])
        node.node.replicas.append_own(partition, batch)
    node.restart()


@pytest.fixture
def coordinator(broker):
    """Return a node that coordinates three transactional ids of a copied log."""
    now_ms = broker.clock.wall_ms()
    broker.node.local_controller.execute(
        lambda machine: machine.create_internal_topic(TRANSACTION_STATE, new_id(), 1, {})
    )
    broker.until(lambda: TRANSACTION_STATE in {each.topic for each in broker.node.replicas})
    ongoing = Transaction(
        7, 3, 60_000, TransactionState.ONGOING, frozenset({("a", 1), ("a", 0), ("b", 0)}),
        now_ms, now_ms - 5_000,
    )  # fmt: skip
    write(
        broker,
        TransactionRecord("idle", Transaction(8, 0, 1_000, TransactionState.EMPTY)),
        TransactionRecord("expired", Transaction(9, 0, 1_000, TransactionState.EMPTY)),
        TransactionRecord("ongoing", ongoing._replace(producer_epoch=2), 0),
        TransactionRecord("ongoing", ongoing),
        TransactionRecord("expired", None),
    )
    return broker


def test_describe_returns_the_last_record_of_an_id(coordinator):
    ongoing, idle = describe(coordinator, "ongoing", "idle")
    assert ongoing.error_code == 0
    assert ongoing.transaction_state == "Ongoing"
    assert (ongoing.producer_id, ongoing.producer_epoch) == (7, 3)
    assert ongoing.transaction_timeout_ms == 60_000
    assert ongoing.transaction_start_time_ms == coordinator.clock.wall_ms() - 5_000
    assert [(topic.topic, topic.partitions) for topic in ongoing.topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]
    assert (idle.transaction_state, idle.transaction_start_time_ms) == ("Empty", -1)


@pytest.mark.parametrize(
    "transactional_id, error",
    [
        ("none", errors.TransactionalIdNotFound),
        ("expired", errors.TransactionalIdNotFound),
        ("", errors.InvalidRequest),
    ],
)
def test_describe_of_an_unknown_id_fails(coordinator, transactional_id, error):
    (found,) = describe(coordinator, transactional_id)
    assert found.error_code == error.code


def test_describe_without_coordinator_topic_is_not_coordinator(broker):
    (found,) = describe(broker, "id")
    assert found.error_code == errors.NotCoordinator.code


def test_describe_needs_describe_on_the_id_and_omits_other_topics(coordinator):
    coordinator.node.authorizer = Denying(DESCRIBE, names="idle|b")
    ongoing, idle = describe(coordinator, "ongoing", "idle")
    assert idle.error_code == errors.TransactionalIdAuthorizationFailed.code
    assert [topic.topic for topic in ongoing.topics] == ["a"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_list_returns_the_ids_of_every_version(coordinator, version):
    assert listed(coordinator, version) == [("idle", 8, "Empty"), ("ongoing", 7, "Ongoing")]


@pytest.mark.parametrize(
    "filters, expected",
    [
        ({"state_filters": ["Ongoing", "PrepareAbort"]}, ["ongoing"]),
        ({"state_filters": ["Dead"]}, []),
        ({"producer_id_filters": [8, 99]}, ["idle"]),
        ({"producer_id_filters": [8], "state_filters": ["Ongoing"]}, []),
        ({"duration_filter": 4_000, "state_filters": ["Ongoing"]}, ["ongoing"]),
        ({"duration_filter": 6_000, "state_filters": ["Ongoing"]}, []),
    ],
)
def test_list_returns_the_ids_that_pass_all_filters(coordinator, filters, expected):
    assert [found[0] for found in listed(coordinator, **filters)] == expected


@pytest.mark.parametrize(
    "pattern, expected",
    [
        (None, ["idle", "ongoing"]),
        ("", ["idle", "ongoing"]),
        ("ongo", []),
        ("ongo.*", ["ongoing"]),
        ("(?i)IDLE|ON[a-z]{5}", ["idle", "ongoing"]),
    ],
)
def test_list_returns_the_ids_that_match_a_pattern_as_a_whole(coordinator, pattern, expected):
    found = listed(coordinator, 2, transactional_id_pattern=pattern)
    assert [each[0] for each in found] == expected


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "a**"])
def test_list_refuses_an_invalid_pattern(coordinator, pattern):
    response = coordinator.request(
        LIST_TRANSACTIONS, 2, state_filters=[], producer_id_filters=[],
        transactional_id_pattern=pattern,
    )  # fmt: skip
    assert response.error_code == errors.InvalidRegularExpression.code
    assert response.transaction_states == []


def test_list_reports_unknown_states(coordinator):
    response = coordinator.request(
        LIST_TRANSACTIONS, 1, state_filters=["Ongoing", "Waiting"], producer_id_filters=[]
    )
    assert response.unknown_state_filters == ["Waiting"]
    assert [each.transactional_id for each in response.transaction_states] == ["ongoing"]


def test_list_omits_ids_without_describe(coordinator):
    coordinator.node.authorizer = Denying(DESCRIBE, names="ongoing")
    assert [found[0] for found in listed(coordinator)] == ["idle"]


def test_list_without_coordinator_topic_is_empty(broker):
    assert listed(broker) == []


def test_ongoing_transaction_of_a_copied_log_times_out(coordinator):
    coordinator.clock.advance(60_000)
    coordinator.reactor.tick(0)
    coordinator.clock.advance(1_000)  # after a late timer, waiting requests are read first
    coordinator.until(lambda: describe(coordinator, "ongoing")[0].transaction_state != "Ongoing")
    (found,) = describe(coordinator, "ongoing")
    assert found.transaction_state in ("PrepareAbort", "CompleteAbort")
    assert found.producer_epoch == 4
