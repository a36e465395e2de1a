"""Transactions that the command lines of kafka-transactions find: ended, open and hanging ones.

The broker must not verify partitions of transactions, so that one can be opened without its
coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.cli.clients import ClusterClients
from kafkalite.cli.transaction_admin import TransactionAdmin
from tests.conformance.transaction_stories import VERIFICATION, produce_without_a_coordinator

UNVERIFIED = {VERIFICATION: "false"}
"""The broker's configuration."""
TIMEOUT_S = 30.0


def write_transactions(bootstrap: str, names: str) -> None:
    """Write a committed, an aborted, an open and a hanging transaction; `names` is the prefix."""
    topics = [f"{names}t", f"{names}hanging"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        created.result(TIMEOUT_S)
    produce(bootstrap, f"{names}committed", topics[0]).commit_transaction(TIMEOUT_S)
    produce(bootstrap, f"{names}aborted", topics[0]).abort_transaction(TIMEOUT_S)
    produce(bootstrap, f"{names}open", topics[0])
    found = {"t": topics[1], "g": names}
    until(lambda: not produce_without_a_coordinator(bootstrap, found))
    known = TransactionAdmin(ClusterClients(bootstrap, properties=()))
    ended = [f"{names}committed", f"{names}aborted"]
    until(lambda: all(each.state.startswith("Complete") for each in known.described(ended)))


def produce(bootstrap: str, transactional_id: str, topic: str) -> Producer:
    """Begin a transaction, and write a record to the topic."""
    config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    producer = Producer({**config, "transaction.timeout.ms": 600_000})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"record")
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
