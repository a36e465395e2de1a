"""The classic member against the coordinator's machine, its assignors and its bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.client.group.assignment_bytes import read_assignment, write_subscription
from kafkalite.client.group.classic_protocol_member import ClassicProtocolMember
from kafkalite.client.group.client_assignors import (
    ClassicSubscription,
    assign_range,
    assign_sticky,
)
from kafkalite.client.group.membership import ChangeKind, MembershipState, SubscribedTopics
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import IllegalGeneration, InvalidRequest, RebalanceInProgress, UnknownMemberId
from kafkalite.protocol.schemas.groups import JOIN_GROUP
from tests.client.group_members import SETTINGS, SimulatedGroup, SimulatedMember, metadata_of

EAGER = ("range", "cooperative-sticky")
COOPERATIVE = ("cooperative-sticky",)


class ClassicGroup(SimulatedGroup):
    """A group whose members have the same strategies."""

    def __init__(self, strategies: tuple[str, ...], partitions: int = 5) -> None:
        super().__init__(partitions)
        self.strategies = strategies

    def add(self, **options: Any) -> SimulatedMember:
        return self.add_classic(*self.strategies, **options)


@pytest.mark.parametrize("strategies", [EAGER, COOPERATIVE])
def test_members_share_partitions_as_they_come_and_go(strategies):
    group = ClassicGroup(strategies)
    first = group.add()
    group.settle()
    assert len(first.membership.owned) == 5
    second = group.add()
    group.settle()
    assert sorted(len(each.membership.owned) for each in group.members) == [2, 3]
    second.membership.leave(group.now_s)
    second.poll(group.now_s)
    second.step(group.now_s)
    assert second.membership.state is MembershipState.UNSUBSCRIBED
    group.members.remove(second)
    group.settle()
    assert len(first.membership.owned) == 5


def test_cooperative_member_keeps_partitions_through_a_rebalance():
    group = ClassicGroup(COOPERATIVE)
    first = group.add()
    group.settle()
    group.add()
    group.settle()
    assert [kind for kind, _ in first.log] == [ChangeKind.ASSIGNED, ChangeKind.REVOKED]
    assert len(first.log[1][1]) == 2, "only what moves is revoked"


def test_eager_member_revokes_everything_before_it_joins_again():
    group = ClassicGroup(EAGER)
    first = group.add()
    group.settle()
    group.add()
    group.settle()
    kinds = [kind for kind, _ in first.log]
    assert kinds == [ChangeKind.ASSIGNED, ChangeKind.REVOKED, ChangeKind.ASSIGNED]
    assert len(first.log[1][1]) == 5


@pytest.mark.parametrize("strategies", [EAGER, COOPERATIVE])
def test_member_that_does_not_poll_leaves_and_returns_when_it_polls(strategies):
    group = ClassicGroup(strategies)
    first, second = group.add(), group.add()
    group.settle()
    for _ in range(80):
        group.harness.after(500)
        first.step(group.now_s)
        second.poll(group.now_s)
        second.step(group.now_s)
    assert first.membership.state is MembershipState.STALE
    assert second.is_stable and len(second.membership.owned) == 5
    first.poll(group.now_s)
    assert first.log[-1][0] is ChangeKind.LOST
    group.settle()
    assert sorted(len(each.membership.owned) for each in group.members) == [2, 3]


def test_member_that_lost_its_partitions_names_its_last_generation():
    """A transaction accepts offsets without a generation, although others have the partitions."""
    group = ClassicGroup(EAGER)
    first, second = group.add(), group.add()
    group.settle()
    before = first.membership.identity
    assert before.generation_id > 0 and before.member_id
    for _ in range(80):
        group.harness.after(500)
        first.step(group.now_s)
        second.poll(group.now_s)
        second.step(group.now_s)
    assert first.membership.state is MembershipState.STALE and first.membership.owned
    assert first.membership.identity == before
    group.settle()
    assert first.membership.identity.generation_id > before.generation_id


def test_member_that_leaves_and_hangs_in_its_callback_is_removed_after_the_poll_interval():
    group = ClassicGroup(EAGER)
    member = group.add()
    group.settle()
    member.membership.leave(group.now_s)
    member.begin_change(group.now_s)
    for _ in range(80):
        group.harness.after(500)
        member.step(group.now_s)
    assert not group.known_ids()
    member.end_change(group.now_s)
    assert member.membership.state is MembershipState.UNSUBSCRIBED


@pytest.mark.parametrize("error", [UnknownMemberId, IllegalGeneration, RebalanceInProgress])
def test_coordinator_that_refuses_each_assignment_gets_no_requests_without_a_pause(error):
    membership = ClassicProtocolMember(SETTINGS)
    membership.subscribe(SubscribedTopics(("t",)), 0.0)
    joined = {
        "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range",
        "leader": "other", "member_id": "m", "members": [],
    }  # fmt: skip
    sent = 0
    for tick in range(1000):
        request = membership.next_request(tick / 1000)
        if request is not None:
            sent += 1
            schema, version = request.api.response, request.api.versions[1]
            fields = joined if request.api is JOIN_GROUP else {"error_code": error.code}
            response = schema.read(version, schema.write(version, fields))
            membership.handle_response(request, response, tick / 1000)
    assert sent < 24


def test_static_member_that_restarts_gets_its_partitions_without_a_rebalance():
    group = ClassicGroup(EAGER)
    first = group.add(instance_id="a")
    second = group.add(instance_id="b")
    group.settle()
    before = set(second.membership.owned)
    second.membership.leave(group.now_s)
    second.poll(group.now_s)
    second.step(group.now_s)
    assert second.membership.state is MembershipState.UNSUBSCRIBED
    group.members.remove(second)
    returned = group.add(instance_id="b")
    group.settle()
    assert set(returned.membership.owned) == before
    assert [kind for kind, _ in first.log].count(ChangeKind.REVOKED) <= 1


def test_leader_joins_again_when_a_topic_has_more_partitions():
    group = ClassicGroup(EAGER, partitions=2)
    member = group.add()
    group.settle()
    group.topics["t"] = metadata_of("t", 4)
    assert set(member.membership.topics_watched) == {"t"}
    member.membership.update_topics(group.topics, group.now_s)
    group.settle()
    assert len(member.membership.owned) == 4


def test_range_assigns_contiguous_runs_in_member_order():
    members = [ClassicSubscription(name, None, frozenset({"a", "b"})) for name in ("y", "x")]
    members.append(ClassicSubscription("z", "static", frozenset({"a"})))
    found = assign_range(members, {"a": 7, "b": 3})
    assert [p.partition for p in found["z"]] == [0, 1, 2]
    assert [p for p in found["x"] if p.topic == "a"] == [TopicPartition("a", n) for n in (3, 4)]
    assert [p for p in found["y"] if p.topic == "b"] == [TopicPartition("b", 2)]


@given(
    counts=st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
    wants=st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_sticky_assignment_settles_balanced(counts, wants, data):
    """Each round every member owns its former share of what it was assigned, as clients do."""
    everything = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
    names = [f"m{index}" for index in range(len(wants))]
    owned = {name: [] for name in names}
    for partition in everything:
        owner = data.draw(st.sampled_from([*names, ""]))
        if owner:
            owned[owner].append(partition)
    for generation in range(6):
        members = [
            ClassicSubscription(name, None, frozenset(topics), tuple(owned[name]), generation)
            for name, topics in zip(names, wants, strict=True)
        ]
        found = assign_sticky(members, counts)
        for name, partitions in found.items():
            others = {p for other in names if other != name for p in owned[other]}
            assert not others & set(partitions), "what moves is first revoked"
        if {name: set(each) for name, each in found.items()} == {
            name: set(each) for name, each in owned.items()
        }:
            break
        owned = found
    else:
        raise AssertionError("it does not settle in five rebalances")
    wanted = {topic for topics in wants for topic in topics}
    assert sorted(p for each in owned.values() for p in each) == sorted(
        p for p in everything if p.topic in wanted
    )
    if all(topics == wants[0] for topics in wants):
        sizes = [len(each) for each in owned.values()]
        assert max(sizes) - min(sizes) <= 1


def lines_executed(function: Callable[[], object]) -> int:
    """Return how many lines of Python a call executes: its time, without chance."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("assign", [assign_range, assign_sticky])
@pytest.mark.parametrize("topics", [1, 500], ids=["one topic", "many topics"])
def test_time_of_an_assignor_is_linear(assign, topics):
    """Half of the members own everything, so that half of the partitions move."""
    everything = [TopicPartition(f"t{n % topics}", n // topics) for n in range(1000)]
    counts = {f"t{n}": 1000 // topics for n in range(topics)}

    def lines(members: int) -> int:
        subscriptions = [
            ClassicSubscription(
                f"m{n:03}", None, frozenset(counts),
                tuple(everything[n::members // 2]) if n < members // 2 else (), 1,
            )
            for n in range(members)
        ]  # fmt: skip
        return lines_executed(lambda: assign(subscriptions, counts))

    few, many = lines(10), lines(100)
    assert many < few + 90 * (topics + 50), "each member costs its own subscription only"


def test_leader_that_leaves_while_it_assigns_sends_no_assignment():
    group = ClassicGroup(EAGER)
    member = group.add()
    membership = member.membership
    member.step(group.now_s)
    while membership.assignment_task is None:
        member.take_response(group.now_s)
        request = membership.next_request(group.now_s)
        if request is not None:
            member._sent = request, group.send(member, request)
        membership.update_topics(group.topics, group.now_s)
        group.harness.after(100)
    task = membership.assignment_task
    assert not membership.topics_wanted, "metadata is requested once"
    membership.leave(group.now_s)
    membership.assign(task, task.compute(), group.now_s)
    assert membership.state is MembershipState.LEAVING
    member.step(group.now_s)
    assert membership.state is MembershipState.UNSUBSCRIBED


def test_subscription_has_the_bytes_of_kafkas_consumer_protocol():
    """Written by Java's ConsumerProtocol and CooperativeStickyAssignor, version 3."""
    owned = [TopicPartition("a", 1), TopicPartition("a", 0)]
    metadata = write_subscription("cooperative-sticky", ["b", "a"], owned, 7)
    assert metadata == bytes.fromhex(
        "0003"  # version
        "00000002" "000161" "000162"  # topics
        "00000004" "00000007"  # user data: the generation
        "00000001" "000161" "00000002" "00000000" "00000001"  # owned partitions
        "00000007"  # generation
        "ffff"  # no rack
    )  # fmt: skip


@pytest.mark.parametrize(
    "assignment",
    [
        b"\x00",
        b"\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x7f\xff\xff\xff",
        bytes.fromhex("0000" "00000001" "000161" "00000002" "00000000" "00000000" "ffffffff"),
        bytes.fromhex("0000" "00000001" "000161" "00000001" "ffffffff" "ffffffff"),
    ],
)
def test_invalid_assignment_is_refused(assignment):
    with pytest.raises(InvalidRequest):
        read_assignment(assignment)
    assert read_assignment(b"") == frozenset()
