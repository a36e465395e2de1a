"""Scenarios of transactions: what a read_committed consumer is shown, who is fenced, and offsets
that are committed with the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.settings import producer_settings
from kafkalite.protocol.schemas.cluster import UPDATE_FEATURES
from kafkalite.protocol.schemas.groups import OFFSET_FETCH
from tests.conformance.table import (
    ABORTABLE,
    INTERLEAVED,
    TRANSACTIONS,
    VERSION_1,
    Client,
    Kafka,
    Refused,
    Sent,
    Transactions,
    scenario,
    until,
)

COMMITTED = {"isolation.level": "read_committed"}
LAST = b"the last record"
FENCED = "old epoch|fenced|Fenced|newer producer|InvalidProducerEpoch|PRODUCER_FENCED"
TIMEOUT_MS = 60_000
UNSTABLE_OFFSET_COMMIT = 88
TRANSACTIONS_COUNT = 50
OUTCOMES = [True, False]


@contextmanager
def producer(
    client: Client, kafka: Kafka, id: str, timeout_ms: int = TIMEOUT_MS
) -> Iterator[Transactions]:
    """Yield a transactional producer, which is closed at the end, or killed by an error."""
    made = client.transactional(kafka, id, timeout_ms)
    try:
        yield made
    except BaseException:
        made.kill()
        raise
    made.retire()


def shown(client: Client, kafka: Kafka, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return the values that a read_committed consumer is shown of a partition."""
    # kafkajs waits for a record at the end of the partition, which may be a marker.
    client.produce(kafka, topic, [Sent(LAST)], partition)
    *values, last = [
        record.value for record in client.consume(kafka, topic, partition, settings=COMMITTED)
    ]
    assert last == LAST
    return values


def settled(kafka: Kafka, topic: str, partition: int = 0) -> bool:
    """Return True if no transaction of a partition is open."""
    ends = {kafka.end(topic, partition, committed=each) for each in (True, False)}
    return len(ends) == 1


def await_markers(kafka: Kafka, topic: str, partitions: Sequence[int] = (0,)) -> None:
    for partition in partitions:
        until(lambda: settled(kafka, topic, partition))  # noqa: B023


@scenario(TRANSACTIONS)
def exactly_the_committed_transactions_are_shown(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    wanted: list[list[bytes]] = [[], [], []]
    with producer(client, kafka, topic) as transactional:
        for number in range(TRANSACTIONS_COUNT):
            transactional.begin()
            records = [(at, b"%d at %d" % (number, at)) for at in range(3)]
            transactional.send(topic, records)
            commit = number % 2 == 0
            transactional.end(commit=commit)
            for partition, value in records if commit else ():
                wanted[partition].append(value)
    await_markers(kafka, topic, range(3))
    assert [shown(client, kafka, topic, at) for at in range(3)] == wanted


@scenario(TRANSACTIONS, INTERLEAVED, commit=OUTCOMES)
def the_last_stable_offset_waits_for_the_oldest_transaction(
    client: Client, kafka: Kafka, commit: bool
) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, [Sent(b"before")])
    with (
        producer(client, kafka, f"{topic}-a") as first,
        producer(client, kafka, f"{topic}-b") as second,
    ):
        first.begin()
        first.send(topic, [(0, b"first 1")])
        for number in range(4):
            second.begin()
            second.send(topic, [(0, b"second %d" % number)])
            second.end(commit=number % 2 == 0)
        first.send(topic, [(0, b"first 2")])
        # The second's transactions are complete once it can begin another.
        second.begin()
        second.send(topic, [(0, b"second 4")])
        assert kafka.end(topic, committed=True) == 1
        assert kafka.end(topic, committed=False) > 9
        first.end(commit=commit)
        until(lambda: kafka.end(topic, committed=True) > 1)
        second.end(commit=True)
        await_markers(kafka, topic)
    firsts = [b"first 1", b"first 2"] if commit else [b"", b""]
    wanted = [b"before", firsts[0], b"second 0", b"second 2", firsts[1], b"second 4"]
    assert shown(client, kafka, topic) == [value for value in wanted if value]


@scenario(TRANSACTIONS)
def a_second_producer_of_the_id_fences_the_first_and_aborts_its_transaction(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    first = client.transactional(kafka, topic, TIMEOUT_MS)
    try:
        first.begin()
        first.send(topic, [(0, b"the first's")])
        with producer(client, kafka, topic) as second:
            await_markers(kafka, topic)
            with pytest.raises(Refused, match=FENCED):
                first.send(topic, [(0, b"too late")])
            with pytest.raises(Refused):
                first.end(commit=True)
            second.begin()
            second.send(topic, [(0, b"the second's")])
            second.end(commit=True)
        await_markers(kafka, topic)
    finally:
        first.kill()
    assert shown(client, kafka, topic) == [b"the second's"]


@scenario(TRANSACTIONS)
def a_transaction_over_its_timeout_is_aborted_and_its_producer_fenced(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    sleeper = client.transactional(kafka, topic, 1_000)
    try:
        sleeper.begin()
        sleeper.send(topic, [(0, b"asleep")])
        await_markers(kafka, topic)
        with pytest.raises(Refused):
            sleeper.send(topic, [(0, b"awake")])
            sleeper.end(commit=True)
    finally:
        sleeper.kill()
    with producer(client, kafka, topic) as next_one:
        next_one.begin()
        next_one.send(topic, [(0, b"the next one's")])
        next_one.end(commit=True)
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == [b"the next one's"]


@scenario(TRANSACTIONS)
def records_and_the_offsets_they_were_made_from_are_committed_together(
    client: Client, kafka: Kafka
) -> None:
    source, sink = kafka.topic(), kafka.topic(partitions=2)
    group = f"{source}-group"
    given = [b"%d" % number for number in range(24)]
    client.produce(kafka, source, [Sent(value) for value in given])

    def copy(transactional: Transactions, how: str) -> None:
        """Copy four records from the committed position on; end as `how` says."""
        position, _ = kafka.committed(group).get((source, 0), (0, ""))
        read = client.consume(kafka, source, start=position, count=4, settings=COMMITTED)
        transactional.begin()
        transactional.send(sink, [(int(r.value or b"") % 2, b"copy of %s" % r.value) for r in read])
        transactional.add_offsets(group, {(source, 0): read[-1].offset + 1})
        if how != "crash":
            transactional.end(commit=how == "commit")

    with producer(client, kafka, group) as transactional:
        for how in ("commit", "abort", "commit", "abort", "abort", "commit"):
            copy(transactional, how)
            await_markers(kafka, "__consumer_offsets")
    crashing = client.transactional(kafka, group, TIMEOUT_MS)
    try:
        copy(crashing, "crash")
    finally:
        crashing.kill()
    with producer(client, kafka, group) as transactional:
        for _ in range(3):
            copy(transactional, "commit")
            await_markers(kafka, "__consumer_offsets")
    assert kafka.committed(group) == {(source, 0): (24, "")}
    await_markers(kafka, sink, range(2))
    for partition in range(2):
        wanted = [b"copy of %s" % value for value in given if int(value) % 2 == partition]
        assert shown(client, kafka, sink, partition) == wanted


@scenario(TRANSACTIONS, commit=OUTCOMES)
def an_offset_of_an_open_transaction_is_unstable_until_it_ends(
    client: Client, kafka: Kafka, commit: bool
) -> None:
    topic = kafka.topic()
    group = f"{topic}-group"
    with producer(client, kafka, topic) as transactional:
        transactional.begin()
        transactional.add_offsets(group, {(topic, 0): 5})
        assert fetched(kafka, group, topic) == (UNSTABLE_OFFSET_COMMIT, -1)
        assert fetched(kafka, group, topic, stable=False) == (0, -1)
        transactional.end(commit=commit)
        until(lambda: fetched(kafka, group, topic) == (0, 5 if commit else -1))


def fetched(kafka: Kafka, group: str, topic: str, *, stable: bool = True) -> tuple[int, int]:
    """Return the error and the offset that OffsetFetch returns for a partition."""
    settings = producer_settings(kafka.bootstrap, {})
    connection = BrokerConnection(settings.addresses[0], settings)
    connection.open()
    try:
        topics = [{"name": topic, "partition_indexes": [0]}]
        asked = {"group_id": group, "topics": topics, "require_stable": stable}
        response = connection.request(OFFSET_FETCH, asked, at_most=7)
    finally:
        connection.close()
    (partition,) = response.topics[0].partitions
    return partition.error_code, partition.committed_offset


@scenario(TRANSACTIONS, commit=OUTCOMES)
def a_transaction_may_be_empty(client: Client, kafka: Kafka, commit: bool) -> None:
    topic = kafka.topic()
    group = f"{topic}-group"
    with producer(client, kafka, topic) as transactional:
        for _ in range(3):
            transactional.begin()
            transactional.end(commit=commit)
        transactional.begin()
        transactional.add_offsets(group, {(topic, 0): 7})
        transactional.end(commit=commit)
        for number in range(2):
            transactional.begin()
            transactional.send(topic, [(0, b"%d" % number)])
            transactional.end(commit=number == 1)
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == [b"1"]
    assert kafka.committed(group) == ({(topic, 0): (7, "")} if commit else {})


# Apache Kafka answers a producer that knows version 2 with UNSUPPORTED_VERSION after a downgrade.
@scenario(TRANSACTIONS, VERSION_1)
def producers_go_on_while_the_transaction_version_changes(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    wanted = []
    with producer(client, kafka, f"{topic}-lasting") as lasting:
        for number, (level, upgrade_type) in enumerate([(1, 2), (2, 1), (0, 2), (2, 1)]):
            set_transaction_version(kafka, level, upgrade_type)
            with producer(client, kafka, f"{topic}-{number}") as fresh:
                for name, each in (("lasting", lasting), ("fresh", fresh)):
                    for commit in OUTCOMES:
                        each.begin()
                        value = f"{name} {number} {commit}".encode()
                        each.send(topic, [(0, value)])
                        each.end(commit=commit)
                        wanted += [value] if commit else []
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == wanted


def set_transaction_version(kafka: Kafka, level: int, upgrade_type: int) -> None:
    update = {
        "feature": "transaction.version", "max_version_level": level, "upgrade_type": upgrade_type
    }
    settings = producer_settings(kafka.bootstrap, {})
    connection = BrokerConnection(settings.addresses[0], settings)
    connection.open()
    try:
        asked = {"timeout_ms": 10_000, "feature_updates": [update]}
        assert connection.request(UPDATE_FEATURES, asked).error_code == 0
    finally:
        connection.close()


@scenario(TRANSACTIONS, ABORTABLE)
def a_producer_goes_on_after_aborting_a_transaction_that_failed(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic(partitions=2, max_message_bytes="5000")
    with producer(client, kafka, topic) as transactional:
        for number in range(3):
            transactional.begin()
            transactional.send(topic, [(0, b"dropped %d" % number)])
            with pytest.raises(Refused, match="too large|MESSAGE_TOO_LARGE|MessageSizeTooLarge"):
                transactional.send(topic, [(1, b"x" * 6_000)])
            transactional.end(commit=False)
            transactional.begin()
            transactional.send(topic, [(at, b"kept %d" % number) for at in range(2)])
            transactional.end(commit=True)
    await_markers(kafka, topic, range(2))
    for partition in range(2):
        assert shown(client, kafka, topic, partition) == [b"kept 0", b"kept 1", b"kept 2"]
