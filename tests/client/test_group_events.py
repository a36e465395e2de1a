"""Members of both protocols under random events: all settle, and no partition has two owners.

The coordinator's machine is the broker's own; requests and responses are lost, the coordinator
restarts, members stop, do not poll, or leave while their callbacks run.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.group_members import SimulatedGroup

KINDS = {
    "eager": ["eager"],
    "cooperative": ["cooperative"],
    "consumer": ["consumer"],
    "mixed": ["cooperative", "consumer", "eager"],
}

EVENT = st.tuples(
    st.sampled_from(
        ["step", "step", "step", "begin", "end", "poll", "lose response", "lose request", "wait",
         "wait long", "start", "stop", "restart coordinator", "leave", "subscribe", "grow",
         "recreate"]
    ),
    st.integers(0, 3),
)  # fmt: skip


def add(group: SimulatedGroup, kinds: list[str]) -> None:
    match kinds[len(group.members) % len(kinds)]:
        case "eager":
            group.add_classic("range", "cooperative-sticky")
        case "cooperative":
            group.add_classic("cooperative-sticky")
        case "consumer":
            group.add_consumer()


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS.keys())
@given(events=st.lists(EVENT, max_size=60))
@settings(max_examples=50, deadline=None)
def test_any_order_of_events_settles_without_a_partition_owned_twice(kinds, events):
    group = SimulatedGroup()
    add(group, kinds)
    for event, index in events:
        member = group.members[index % len(group.members)]
        if not member.is_running and event not in ("wait", "wait long", "start"):
            continue
        match event:
            case "step":
                member.step(group.now_s)
            case "begin":
                member.begin_change(group.now_s)
            case "end":
                member.end_change(group.now_s)
            case "poll":
                member.end_change(group.now_s)
                member.poll(group.now_s)
            case "lose response" | "lose request":
                member.step(group.now_s, loses=event.removeprefix("lose "))
            case "wait":
                group.harness.after(1_000)
            case "wait long":
                group.harness.after(9_000)
            case "start" if len(group.members) < 4:
                add(group, kinds)
            case "stop":
                member.is_running = False
            case "restart coordinator":
                group.harness.restart()
            case "leave":
                member.membership.leave(group.now_s)
            case "subscribe":
                member.subscribe("t", now_s=group.now_s)
            case "grow" if len(group.topics["t"].partitions) < 8:
                group.grow(len(group.topics["t"].partitions) + 1)
            case "recreate" if kinds == ["consumer"]:
                group.create(3)
        group.check()
    for member in group.members:
        if member.is_running and not member.is_stable:
            member.subscribe("t", now_s=group.now_s)
    group.settle()
