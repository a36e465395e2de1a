"""Scenarios of transactions: what a read_committed consumer is shown, who is fenced, and offsets
that are committed with the records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.settings import producer_settings
from kafkalite.protocol.schemas.cluster import UPDATE_FEATURES
from kafkalite.protocol.schemas.groups import OFFSET_FETCH
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from tests.conformance.members import MEMBER
from tests.conformance.restarts import coordinator_killed, killed
from tests.conformance.table import (
    ABORTABLE,
    ANY_OFFSETS,
    COPIES,
    INTERLEAVED,
    MEMBER_OFFSETS,
    TRANSACTIONS,
    VERSION_1,
    VERSION_2,
    Client,
    Copier,
    Kafka,
    Lifetime,
    Refused,
    Sent,
    Transactions,
    done,
    scenario,
    until,
)

COMMITTED = {"isolation.level": "read_committed"}
LAST = b"the last record"
FENCED = "old epoch|fenced|Fenced|newer producer|InvalidProducerEpoch|PRODUCER_FENCED"
TIMEOUT_MS = 60_000
UNSTABLE_OFFSET_COMMIT = 88
TRANSACTIONS_COUNT = 50
ENDS_S_MAX = 10.0
"""Time in which a transaction must have ended after a fault, or what it has lost."""
EPOCH_MAX = 32_766
"""A producer epoch from here on is exhausted: another producer id follows."""
UNCOMMITTING = {**MEMBER, "enable.auto.commit": "false"}
RETRIABLE = {14, 15, 16, 51}
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


@contextmanager
def connected(kafka: Kafka) -> Iterator[BrokerConnection]:
    """Yield a connection for requests that the clients do not make."""
    settings = producer_settings(kafka.bootstrap, {})
    connection = BrokerConnection(settings.addresses[0], settings)
    connection.open()
    try:
        yield connection
    finally:
        connection.close()


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


@scenario(TRANSACTIONS, ANY_OFFSETS)
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


@scenario(TRANSACTIONS, ANY_OFFSETS, commit=OUTCOMES)
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
    topics = [{"name": topic, "partition_indexes": [0]}]
    asked = {"group_id": group, "topics": topics, "require_stable": stable}
    with connected(kafka) as connection:
        response = connection.request(OFFSET_FETCH, asked, at_most=7)
    (partition,) = response.topics[0].partitions
    return partition.error_code, partition.committed_offset


@scenario(TRANSACTIONS, commit=OUTCOMES)
def a_transaction_may_be_empty(client: Client, kafka: Kafka, commit: bool) -> None:
    topic = kafka.topic()
    with producer(client, kafka, topic) as transactional:
        for _ in range(3):
            transactional.begin()
            transactional.end(commit=commit)
        for number in range(2):
            transactional.begin()
            transactional.send(topic, [(0, b"%d" % number)])
            transactional.end(commit=number == 1)
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == [b"1"]


@scenario(TRANSACTIONS, ANY_OFFSETS, commit=OUTCOMES)
def a_transaction_may_have_offsets_alone(client: Client, kafka: Kafka, commit: bool) -> None:
    topic = kafka.topic()
    group = f"{topic}-group"
    with producer(client, kafka, topic) as transactional:
        transactional.begin()
        transactional.end(commit=commit)
        transactional.begin()
        transactional.add_offsets(group, {(topic, 0): 7})
        transactional.end(commit=commit)
        transactional.begin()
        transactional.send(topic, [(0, b"after")])
        transactional.end(commit=True)
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == [b"after"]
    assert kafka.committed(group) == ({(topic, 0): (7, "")} if commit else {})


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


@scenario(TRANSACTIONS, VERSION_2)
def a_lasting_producer_of_version_2_is_refused_once_version_0_is_finalized(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    try:
        with producer(client, kafka, topic) as lasting:
            for level, upgrade_type in ((2, 1), (1, 2)):
                set_transaction_version(kafka, level, upgrade_type)
                lasting.begin()
                lasting.send(topic, [(0, b"%d" % level)])
                lasting.end(commit=True)
            set_transaction_version(kafka, 0, 2)
            lasting.begin()
            with pytest.raises(Refused, match="UnsupportedVersion|UNSUPPORTED_VERSION"):
                lasting.send(topic, [(0, b"refused")])
    finally:
        set_transaction_version(kafka, 2, 1)
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == [b"2", b"1"]


def set_transaction_version(kafka: Kafka, level: int, upgrade_type: int) -> None:
    update = {
        "feature": "transaction.version", "max_version_level": level, "upgrade_type": upgrade_type
    }
    asked = {"timeout_ms": 10_000, "feature_updates": [update]}
    with connected(kafka) as connection:
        assert connection.request(UPDATE_FEATURES, asked).error_code == 0


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


@scenario(TRANSACTIONS, MEMBER_OFFSETS)
def a_zombie_member_cannot_commit_offsets_in_a_transaction(client: Client, kafka: Kafka) -> None:
    source = kafka.topic(partitions=2)
    group = f"{source}-group"
    with producer(client, kafka, group) as transactional:
        member = transactional.join(kafka, group, [source], UNCOMMITTING)
        until(lambda: len(member.assigned) == 2)
        transactional.keep_membership()
        transactional.begin()
        transactional.add_offsets(group, {(source, 0): 1}, as_member=True)
        transactional.end(commit=True)
        other = client.join(kafka, group, [source], UNCOMMITTING)
        try:
            until(lambda: len(member.assigned) == len(other.assigned) == 1)
            transactional.begin()
            with pytest.raises(Refused, match="(?i)generation|CommitFailed"):
                transactional.add_offsets(group, {(source, 0): 2}, as_member=True)
            transactional.end(commit=False)
            member.leave()
            until(lambda: len(other.assigned) == 2)
            transactional.begin()
            with pytest.raises(Refused, match="(?i)member|CommitFailed"):
                transactional.add_offsets(group, {(source, 0): 3}, as_member=True)
            transactional.end(commit=False)
            # Without a member it is not fenced, as before KIP-447.
            transactional.begin()
            transactional.add_offsets(group, {(source, 1): 4})
            transactional.end(commit=True)
        finally:
            other.kill()
    until(lambda: kafka.committed(group) == {(source, 0): (1, ""), (source, 1): (4, "")})


@scenario(TRANSACTIONS, COPIES)
def copiers_that_come_and_go_copy_each_record_once(client: Client, kafka: Kafka) -> None:
    source, sink = kafka.topic(partitions=2), kafka.topic(partitions=2)
    group = f"{source}-group"
    for partition in range(2):
        values = [Sent(b"%d" % number) for number in range(partition, 60, 2)]
        client.produce(kafka, source, values, partition)

    def copier(id: str) -> Copier:
        copiers.append(client.copier(kafka, f"{group}-{id}", group, source, sink))
        return copiers[-1]

    def has_committed(end: int) -> bool:
        return [offset for offset, _ in kafka.committed(group).values()] == [end, end]

    def has_copied(*those: Copier) -> bool:
        return sum(each.copy(4, "commit") for each in those) > 0

    copiers: list[Copier] = []
    try:
        first = copier("a")
        until(lambda: has_copied(first))
        assert first.copy(4, "abort") == 0
        until(lambda: has_copied(first))
        second = copier("b")
        until(lambda: has_copied(second))
        until(lambda: first.copy(4, "leave") > 0)
        first.kill()
        third = copier("a")
        until(lambda: has_copied(third))
        until(lambda: not has_copied(second, third) and has_committed(30))
    finally:
        for each in copiers:
            each.kill()
    await_markers(kafka, sink, range(2))
    for partition in range(2):
        found = shown(client, kafka, sink, partition)
        wanted = [b"%d" % number for number in range(partition, 60, 2)]
        assert sorted(found, key=lambda value: int(value or b"")) == wanted


@scenario(TRANSACTIONS)
def an_exhausted_epoch_is_followed_by_another_producer_id(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with producer(client, kafka, topic):
        pass
    first = raise_epoch(kafka, topic, EPOCH_MAX - 4)
    wanted = []
    for number in range(6):
        with producer(client, kafka, topic) as transactional:
            for commit in OUTCOMES:
                value = b"%d %d" % (number, commit)
                transactional.begin()
                transactional.send(topic, [(0, value)])
                transactional.end(commit=commit)
                wanted += [value] if commit else []
    await_markers(kafka, topic)
    assert shown(client, kafka, topic) == wanted
    assert raise_epoch(kafka, topic, 0) != first


def raise_epoch(kafka: Kafka, id: str, epoch: int) -> int:
    """Repeat InitProducerId until it returns this epoch or a higher one; return the producer id."""
    asked = {"transactional_id": id, "transaction_timeout_ms": TIMEOUT_MS}
    found = -1
    with connected(kafka) as connection:
        while True:
            # Each request may raise it by one.
            for _ in range(in_flight := max(1, min(100, epoch - found))):
                connection.send(INIT_PRODUCER_ID, 2, asked)
            for _ in range(in_flight):
                _, content = connection.receive()
                response = INIT_PRODUCER_ID.response.read(2, content)
                assert response.error_code in {0, *RETRIABLE}
                if response.error_code == 0:
                    found = response.producer_epoch
            if found >= epoch and response.error_code == 0:
                return int(response.producer_id)


@scenario(TRANSACTIONS, commit=OUTCOMES)
def a_transaction_ends_although_one_of_its_topics_is_deleted(
    client: Client, kafka: Kafka, commit: bool
) -> None:
    kept, gone = kafka.topic(), kafka.topic()
    with producer(client, kafka, kept) as transactional:
        transactional.begin()
        for topic in (kept, gone):
            transactional.send(topic, [(0, b"before")])
        done(kafka.admin.delete_topics([gone]))
        transactional.end(commit=commit)
        until(lambda: settled(kafka, kept), ENDS_S_MAX)
        transactional.begin()
        transactional.send(kept, [(0, b"after")])
        transactional.end(commit=True)
    await_markers(kafka, kept)
    assert shown(client, kafka, kept) == [b"before", b"after"][not commit :]


def worker_killed(lifetime: Lifetime) -> None:
    """Kill the leader of some partitions; the launcher restarts it."""
    if lifetime.workers:
        lifetime.kill(1)
    else:
        killed(lifetime)


def drained(lifetime: Lifetime) -> None:
    """Move all partitions of a worker to the others; one process can only be killed."""
    if not lifetime.workers:
        killed(lifetime)
        return
    command = [sys.executable, "-m", "kafkalite", "node", "drain", "1", "--data"]
    subprocess.run([*command, str(lifetime.data)], check=True, capture_output=True)


STRIKES: dict[str, Callable[[Lifetime], None]] = {
    "a worker killed": worker_killed,
    "its coordinator killed": coordinator_killed,
    "all killed": killed,
    "a worker drained": drained,
}


@scenario(TRANSACTIONS, restarts=True, strike=[*STRIKES])
def a_transaction_has_one_outcome_and_ends(client: Client, kafka: Kafka, strike: str) -> None:
    assert kafka.lifetime is not None
    topic = kafka.topic(partitions=3)
    everywhere = range(3)
    first = client.transactional(kafka, topic, TIMEOUT_MS)
    is_committed = False
    try:
        first.begin()
        first.send(topic, [(at, b"before") for at in everywhere])
        STRIKES[strike](kafka.lifetime)
        first.send(topic, [(at, b"during") for at in everywhere])
        first.end(commit=True)
        is_committed = True
        first.retire()
    except Refused:
        first.kill()  # some clients give a transaction up for a lost connection
    except BaseException:
        first.kill()
        raise
    with producer(client, kafka, topic) as second:
        # If the first has not ended its transaction, the second has aborted it.
        until(lambda: all(has_settled(kafka, topic, at) for at in everywhere), ENDS_S_MAX)
        second.begin()
        second.send(topic, [(at, b"after") for at in everywhere])
        second.end(commit=True)
    await_markers(kafka, topic, everywhere)
    found = [shown(client, kafka, topic, at) for at in everywhere]
    whole = [b"before", b"during", b"after"]
    assert found == [whole] * 3 or (not is_committed and found == [[b"after"]] * 3)


def has_settled(kafka: Kafka, topic: str, partition: int) -> bool:
    """Return whether no transaction is open; False while a leader does not respond."""
    try:
        return settled(kafka, topic, partition)
    except Refused:
        return False
