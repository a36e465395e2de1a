"""Requests of transactional producers in a cluster: node 0 coordinates, the workers refuse."""

from __future__ import annotations

from kafkalite import errors
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)

NOT_COORDINATOR = errors.NotCoordinator.code
ID = "payments"


def init(cluster, at):
    return cluster.request(
        at, INIT_PRODUCER_ID, 5, transactional_id=ID, transaction_timeout_ms=60_000
    )


def test_node_0_coordinates_and_workers_are_not_the_coordinator(begun):
    cluster = begun(2)
    cluster.create("t", 2)
    # Any node finds the coordinator, and it serves at once.
    (found,) = cluster.request(
        1, FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[ID]
    ).coordinators
    assert (found.error_code, found.node_id) == (0, 0)
    answer = init(cluster, 0)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    of_producer = {"producer_id": answer.producer_id, "producer_epoch": 0}
    topics = [{"name": "t", "partitions": [0, 1]}]
    adding = {f"v3_and_below_{name}": value for name, value in of_producer.items()} | {
        "v3_and_below_transactional_id": ID, "v3_and_below_topics": topics,
    }  # fmt: skip

    def codes(at):
        """Return the error codes of all requests to a node."""
        (added,) = cluster.request(
            at, ADD_PARTITIONS_TO_TXN, 3, **adding
        ).results_by_topic_v3_and_below
        (described,) = cluster.request(
            at, DESCRIBE_TRANSACTIONS, 0, transactional_ids=[ID]
        ).transaction_states
        of_offsets = cluster.request(
            at, ADD_OFFSETS_TO_TXN, 3, transactional_id=ID, group_id="g", **of_producer
        )
        ended = cluster.request(
            at, END_TXN, 3, transactional_id=ID, committed=True, **of_producer
        )
        return {
            *(each.partition_error_code for each in added.results_by_partition),
            described.error_code, of_offsets.error_code, ended.error_code,
        }  # fmt: skip

    for worker in (1, 2):
        assert init(cluster, worker).error_code == NOT_COORDINATOR
        assert codes(worker) == {NOT_COORDINATOR}
    assert codes(0) == {0}
    # Each node lists what it coordinates.
    listed = {
        node_id: len(
            cluster.request(
                node_id, LIST_TRANSACTIONS, 2, state_filters=[], producer_id_filters=[]
            ).transaction_states
        )
        for node_id in range(3)
    }
    assert listed == {0: 1, 1: 0, 2: 0}
