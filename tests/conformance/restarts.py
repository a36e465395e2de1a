"""Scenarios of broker restarts: no acknowledged record or commit is lost, members continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.conformance.members import Group, feeding
from tests.conformance.table import (
    COMMAND,
    GROUPS,
    LONG_LIVED,
    STEADY,
    Client,
    Kafka,
    Lifetime,
    Refused,
    Sent,
    scenario,
    until,
)

PARTITIONS = 3
RESTARTS = 2


@scenario(LONG_LIVED, restarts=True)
def a_clean_restart_under_load_loses_and_doubles_nothing(client: Client, kafka: Kafka) -> None:
    under_load(client, kafka, restarted)


@scenario(LONG_LIVED, restarts=True)
def a_killed_broker_under_load_loses_and_doubles_nothing(client: Client, kafka: Kafka) -> None:
    under_load(client, kafka, killed)


def restarted(lifetime: Lifetime) -> None:
    lifetime.stop()
    lifetime.start()


def killed(lifetime: Lifetime) -> None:
    lifetime.kill()
    lifetime.start()


def under_load(client: Client, kafka: Kafka, end_and_start: Callable[[Lifetime], None]) -> None:
    """Restart the broker under an idempotent producer; the log must match its acknowledgements."""
    assert kafka.lifetime is not None
    topic = kafka.topic(partitions=PARTITIONS)
    stream = client.stream(kafka, topic, PARTITIONS)
    for _ in range(RESTARTS):
        seen = stream.count
        until(lambda: stream.count > seen + 500)  # noqa: B023
        end_and_start(kafka.lifetime)
    sent = stream.end()
    assert stream.faults == []
    for index in range(PARTITIONS):
        got = client.consume(kafka, topic, index)
        assert {record.offset: record.value for record in got} == stream.acked[index]
        values = [record.value for record in got]
        expected = [b"%d" % i for i in range(index, sent, PARTITIONS)]
        assert values == expected, difference(values, expected)


def difference(values: list[bytes | None], expected: list[bytes]) -> str:
    """Return the number of missing and repeated values and the first place that differs."""
    counts = Counter(values)
    first = next(
        (i for i, (value, want) in enumerate(zip(values, expected, strict=False)) if value != want),
        min(len(values), len(expected)),
    )
    return (
        f"{len(values)} values, {len(expected)} expected,"
        f" {sum(value not in counts for value in expected)} missing,"
        f" {sum(count - 1 for count in counts.values())} repeated;"
        f" first difference at {first}: {values[first:first + 1]}, {expected[first:first + 1]}"
    )


def coordinator_killed(lifetime: Lifetime) -> None:
    """Kill the coordinator's process; with workers the launcher restarts it."""
    if lifetime.workers:
        lifetime.kill(0)
    else:
        killed(lifetime)


ENDS = {"stopped": restarted, "its coordinator killed": coordinator_killed}


@scenario(STEADY, restarts=True, end=[*ENDS])
def members_read_on_as_if_nothing_happened(client: Client, kafka: Kafka, end: str) -> None:
    assert kafka.lifetime is not None
    topic = kafka.topic(partitions=4)
    with Group(client, kafka, topic, auto_commit_interval_ms="100") as group:
        for _ in range(2):
            group.join()
            group.settle()
        with feeding(kafka, topic, 4) as feed:
            until(lambda: committed(group, topic) > 0)
            seen = [[*member.changes] for member in group.members]
            ENDS[end](kafka.lifetime)
            # The coordinator is back, has the offsets, and accepts commits.
            until(lambda: committed(group, topic) > 0)
            before = committed(group, topic)
            until(lambda: committed(group, topic) > before)
        group.has_read_once(feed.count)
        assert [member.changes for member in group.members] == seen


def committed(group: Group, topic: str) -> int:
    """Return the committed offset, or 0 while no coordinator is available."""
    try:
        found = group.kafka.committed(group.name)
    except Refused:
        return 0
    return found.get((topic, 0), (0, ""))[0]


@scenario(GROUPS, restarts=True)
def a_group_goes_on_where_it_was_before_a_restart(client: Client, kafka: Kafka) -> None:
    assert kafka.lifetime is not None
    topic = kafka.topic()
    sent = [Sent(b"%d" % i, b"k") for i in range(10)]
    client.produce(kafka, topic, sent)
    with Group(client, kafka, topic) as group:
        member = group.join()
        group.has_read(len(sent))
        group.leave(member)
        restarted(kafka.lifetime)
        assert committed(group, topic) == len(sent)
        client.produce(kafka, topic, sent)
        group.join()
        group.has_read_once(2 * len(sent))


@scenario(COMMAND, restarts=True)
def what_was_in_before_a_restart_is_there_after_it(client: Client, kafka: Kafka) -> None:
    assert kafka.lifetime is not None
    topic = kafka.topic()
    sent = [Sent(b"%d" % i, b"k") for i in range(1_000)]
    client.produce(kafka, topic, sent)
    restarted(kafka.lifetime)
    client.produce(kafka, topic, [Sent(b"after", b"k")])
    got = client.consume(kafka, topic)
    assert [record.offset for record in got] == [*range(1_001)]
    assert [record.value for record in got] == [*(r.value for r in sent), b"after"]
