"""Consumer groups: the cost of an assignment of 10,000 members, and of an unchanged heartbeat.

An assignment is computed in steps, of which a tick of the event loop takes some.  Estimate: a
partition costs some list operations, 0.1 µs each, and a member a few more: 50,000 partitions take
10 to 20 ms.  Unequal subscriptions need a heap, a logarithm more.

A heartbeat is decided 2,000 times a second in a group of 10,000 members.  An unchanged one looks up
the group and the member, compares their epochs and sets a deadline: 10 µs.

    python -m benchmarks.bench_groups
"""

from __future__ import annotations

import os
import random
from functools import partial

import pytest

from benchmarks.harness import best_ns
from kafkalite.broker.coordinator.group_coordinators import group_limits
from kafkalite.config.settings import Settings
from kafkalite.coordination.groups.assignment.assignors import (
    Assignment,
    Assignor,
    Subscribers,
    assign_range,
    assign_uniform,
)
from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic
from kafkalite.coordination.groups.group_coordinator import Decision, GroupClient, GroupCoordinator
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.steps import result_of
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT

MEMBERS, TOPICS, PARTITIONS = 10_000, 50, 1_000
TOPICS_OF_ONE = 10
HEARTBEAT_MEMBERS = 200
CLIENT = GroupClient("a-client", "/127.0.0.1")
REPEATS = 5


def subscribers(member_count: int, topic_ids: list[bytes], *, is_equal: bool) -> Subscribers:
    """Return members with all of the topics, or each with some of its own."""
    every, dice = frozenset(topic_ids), random.Random(1)
    some = min(TOPICS_OF_ONE, len(topic_ids))
    return Subscribers(
        [f"member-{number:06}" for number in range(member_count)],
        [None] * member_count,
        [
            every if is_equal else frozenset(dice.sample(topic_ids, some))
            for _ in range(member_count)
        ],
    )


def assignment_ms(
    assign: Assignor, member_count: int, topic_count: int, *, is_equal: bool, repeats: int = REPEATS
) -> tuple[float, float]:
    """Return the milliseconds of a first assignment, and of one that changes nothing."""
    topic_ids = [os.urandom(16) for _ in range(topic_count)]
    counts = dict.fromkeys(topic_ids, PARTITIONS)
    members = subscribers(member_count, topic_ids, is_equal=is_equal)
    before: Assignment = result_of(assign(members, counts, {}))
    first = best_ns(repeats, lambda: result_of(assign(members, counts, {})))
    return first / 1e6, best_ns(repeats, lambda: result_of(assign(members, counts, before))) / 1e6


class OneTopic:
    """A cluster with one topic."""

    known = KnownTopic("t", bytes(15) + b"t", PARTITIONS)

    def topic(self, name: str) -> KnownTopic | None:
        return self.known

    def topic_by_id(self, topic_id: bytes) -> KnownTopic | None:
        return self.known


def heartbeat_us(member_count: int, repeats: int = REPEATS) -> float:
    """Return the microseconds of deciding a heartbeat without news in a group of this size."""
    settings = ConsumerGroupSettings()
    limits = group_limits(Settings.broker())
    machine = GroupCoordinator(limits, lambda _: "", OneTopic(), lambda _: settings)

    def decide(number: int, epoch: int, wall_ms: int) -> Decision:
        request = heartbeat(f"member-{number}", epoch)
        return machine.consumer_heartbeat(request, CLIENT, number, wall_ms, wall_ms)

    def heartbeat(member_id: str, epoch: int) -> Fields:
        join = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
        fields = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
        fields |= {**join, "topic_partitions": []} if epoch == 0 else {}
        written = CONSUMER_GROUP_HEARTBEAT.request.write(1, fields)
        return CONSUMER_GROUP_HEARTBEAT.request.read(1, written)

    epochs = {}
    for epoch in (0, None):
        for number in range(member_count):
            decision = decide(number, epochs[number] if epoch is None else epoch, 10_000)
            for record in decision.records:
                machine.replay(record)
            (reply,) = decision.response
            epochs[number] = reply.response["member_epoch"]
    request = heartbeat("member-0", epochs[0])
    settled = machine.consumer_heartbeat(request, CLIENT, 0, 20_000, 20_000)
    for record in settled.records:
        machine.replay(record)
    request = heartbeat("member-0", settled.response[0].response["member_epoch"])
    assert not machine.consumer_heartbeat(request, CLIENT, 0, 20_000, 20_000).records
    call = partial(machine.consumer_heartbeat, request, CLIENT, 0, 20_000, 20_000)
    return best_ns(repeats, call) / 1e3


def main() -> None:
    print(f"{MEMBERS:,} members, {TOPICS * PARTITIONS:,} partitions; ms first, ms again")
    for name, assign, is_equal in (
        ("range", assign_range, True),
        ("uniform", assign_uniform, True),
        ("uniform, unlike subscriptions", assign_uniform, False),
    ):
        first, again = assignment_ms(assign, MEMBERS, TOPICS, is_equal=is_equal)
        print(f"{name:30} {first:8.1f} {again:8.1f}")
    print(f"a heartbeat without news: {heartbeat_us(HEARTBEAT_MEMBERS):.1f} µs")


@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
@pytest.mark.parametrize("is_equal", [True, False])
def test_assignment_is_measured(assign: Assignor, is_equal: bool) -> None:
    assert min(assignment_ms(assign, 10, 3, is_equal=is_equal, repeats=1)) > 0


def test_heartbeat_is_measured() -> None:
    assert heartbeat_us(3, repeats=1) > 0


if __name__ == "__main__":
    main()
