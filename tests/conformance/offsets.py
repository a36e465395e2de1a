"""Scenarios of committed offsets: automatic, by commit, by an admin, and reset."""

from __future__ import annotations

import pytest

from tests.conformance.members import Group
from tests.conformance.table import (
    ASYNC_COMMITS,
    COMMITS,
    GROUPS,
    METADATA,
    Client,
    Kafka,
    Refused,
    Sent,
    scenario,
    until,
)

TEN = [Sent(b"%d" % i, b"k", timestamp_ms=1000 * (i + 1)) for i in range(10)]
BY_HAND = {"enable.auto.commit": "false"}


def read_by_the_next(group: Group, count: int) -> list[int]:
    """Return the first `count` offsets that a new member reads."""
    member = group.join()
    until(lambda: len(member.read) >= count)
    group.leave(member)
    assert member.faults == []
    return [read.offset for read in member.read]


@scenario(GROUPS)
def a_group_goes_on_where_it_was(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with Group(client, kafka, topic) as group:
        for times in range(2):
            client.produce(kafka, topic, TEN)
            first = times * len(TEN)
            assert read_by_the_next(group, len(TEN)) == [*range(first, first + len(TEN))]
            assert group.committed(topic) == first + len(TEN)


@scenario(COMMITS)
def what_is_not_committed_is_read_again(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic, **BY_HAND) as group:
        assert read_by_the_next(group, len(TEN)) == [*range(10)]
        assert group.committed(topic) == -1
        assert read_by_the_next(group, len(TEN)) == [*range(10)]


@scenario(COMMITS)
def what_is_committed_when_told_is_not_read_again(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic, **BY_HAND) as group:
        member = group.join()
        until(lambda: len(member.read) == len(TEN))
        member.commit()
        assert group.committed(topic) == len(TEN)
        client.produce(kafka, topic, TEN)
        until(lambda: len(member.read) == 2 * len(TEN))
        group.leave(member)
        assert read_by_the_next(group, len(TEN)) == [*range(10, 20)]


@scenario(COMMITS, ASYNC_COMMITS)
def a_commit_that_nobody_waits_for_arrives(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic, **BY_HAND) as group:
        member = group.join()
        until(lambda: len(member.read) == len(TEN))
        member.commit(wait=False)
        until(lambda: group.committed(topic) == len(TEN))


@scenario(COMMITS, METADATA)
def offsets_are_committed_with_a_text_beside_each(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    with Group(client, kafka, topic, **BY_HAND) as group:
        member = group.join()
        group.settle()
        given = {(topic, 0): (7, "seven, größer als 6"), (topic, 1): (0, "")}
        member.commit(given)
        assert kafka.committed(group.name) == given
        with pytest.raises(Refused, match="etadata"):
            member.commit({(topic, 0): (8, "x" * 4097)})
        assert kafka.committed(group.name) == given


@scenario(GROUPS, "set_group_offsets")
def a_group_begins_where_it_is_set_to(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic) as group:
        client.ask(kafka, "set_group_offsets", group=group.name, offsets=[[topic, 0, 6, ""]])
        assert read_by_the_next(group, 4) == [6, 7, 8, 9]
        client.ask(kafka, "set_group_offsets", group=group.name, offsets=[[topic, 0, 2, ""]])
        assert read_by_the_next(group, 8) == [*range(2, 10)]


@scenario(GROUPS, "set_group_offsets", "offset")
def a_group_is_reset_to_a_time(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic) as group:
        read_by_the_next(group, len(TEN))
        at = client.ask(kafka, "offset", topic=topic, partition=0, at=7500)
        client.ask(kafka, "set_group_offsets", group=group.name, offsets=[[topic, 0, at, ""]])
        assert read_by_the_next(group, 3) == [7, 8, 9]


@scenario(GROUPS)
def a_new_group_that_wants_the_latest_reads_what_comes_next(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic, auto_offset_reset="latest") as group:
        member = group.join()
        group.settle()

        def read() -> bool:
            # The time when the member is at the end cannot be seen here.
            client.produce(kafka, topic, [Sent(b"late", b"k")])
            return bool(member.read)

        until(read)
        assert all(read.offset >= len(TEN) for read in member.read)


@scenario(GROUPS)
def a_group_whose_offset_is_gone_begins_at_what_is_left(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with Group(client, kafka, topic) as group:
        read_by_the_next(group, len(TEN))
        client.produce(kafka, topic, TEN)
        kafka.remove_records(topic, 15)
        assert read_by_the_next(group, 5) == [*range(15, 20)]
