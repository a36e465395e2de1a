"""Requests of transactional producers to a node, through its dispatcher: the steps of tests."""

from __future__ import annotations

from kafkalite.coordination.machine import DecisionResult
from kafkalite.errors import NotLeaderOrFollower
from kafkalite.protocol.schemas.transaction_records import TransactionRecord
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
)

TRANSACTION_STATE = "__transaction_state"


def init(broker, version=5, name="payments", timeout_ms=60_000, pair=(-1, -1)):
    """Return (error code, producer id, epoch) of InitProducerId."""
    request = {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
    if version >= 3:
        request |= {"producer_id": pair[0], "producer_epoch": pair[1]}
    answer = broker.request(INIT_PRODUCER_ID, version, **request)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def adding(partitions):
    topics = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()]


def add(broker, version, pair, *partitions, name="payments", verify_only=False):
    """Return the error code of each partition."""
    if version < 4:
        answer = broker.request(
            ADD_PARTITIONS_TO_TXN, version, v3_and_below_transactional_id=name,
            v3_and_below_producer_id=pair[0], v3_and_below_producer_epoch=pair[1],
            v3_and_below_topics=adding(partitions),
        )  # fmt: skip
        topics = answer.results_by_topic_v3_and_below
    else:
        transaction = {
            "transactional_id": name, "producer_id": pair[0], "producer_epoch": pair[1],
            "verify_only": verify_only, "topics": adding(partitions),
        }  # fmt: skip
        answer = broker.request(ADD_PARTITIONS_TO_TXN, version, transactions=[transaction])
        assert answer.error_code == 0
        (result,) = answer.results_by_transaction
        assert result.transactional_id == name
        topics = result.topic_results
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in topics
        for each in topic.results_by_partition
    }


def add_offsets(broker, version, pair, name="payments", group="g"):
    return broker.request(
        ADD_OFFSETS_TO_TXN, version, transactional_id=name, producer_id=pair[0],
        producer_epoch=pair[1], group_id=group,
    ).error_code  # fmt: skip


def end(broker, version, pair, name="payments", committed=True):
    """Return (error code, producer id, epoch) of EndTxn; below v5 there is no pair."""
    answer = broker.request(
        END_TXN, version, transactional_id=name, producer_id=pair[0], producer_epoch=pair[1],
        committed=committed,
    )  # fmt: skip
    if version < 5:
        return answer.error_code, None, None
    return answer.error_code, answer.producer_id, answer.producer_epoch


def host(broker, name="payments"):
    return broker.node.transactions.host_of(name)


def stored(broker, name="payments"):
    """Return the state of a transactional id."""
    return host(broker, name).machine.describe(name)


def store(broker, name, transaction):
    """Give a transactional id this state."""
    record = TransactionRecord(name, transaction)
    committed = host(broker, name).decide(lambda _: DecisionResult(None, [record]))
    broker.until(lambda: committed.settled)


def hold_markers(broker):
    """Let no partition take a marker, so that prepared transactions remain as they are."""

    def refuse(*_):
        raise NotLeaderOrFollower()

    broker.node.replicas.append_marker = refuse


def complete(broker, name="payments"):
    """Complete a prepared transaction, as after its last marker."""
    found = host(broker, name)
    prepared = stored(broker, name)
    found.decide(
        lambda machine: machine.complete(name, prepared, broker.clock.wall_ms())
    )
