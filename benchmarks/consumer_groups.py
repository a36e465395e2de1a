"""Groups of the consumer protocol (KIP-848): joins, leaves, and the cost of heartbeats.

Estimate: the coordinator needs 50 us for a heartbeat.  A member that joins a settled group waits
until the members it takes partitions from have sent their next heartbeat, up to 5 s, and have
revoked them, one more.  10,000 members with a heartbeat every 5 s are 2,000 requests/s: 0.1 of a
core.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from benchmarks import group_clients
from benchmarks.consumer_members import ConsumerMembers
from benchmarks.harness import SMALL, Bench, cpu_s, topic
from benchmarks.members import coordinator
from benchmarks.report import OURS, Budget
from benchmarks.subjects import Subject
from kafkalite import Admin

JOINING, JOINED_PARTITIONS = 50, 200
MEMBERS, PARTITIONS = 200, 1_000
IDLE_MEMBERS = 10_000
HEARTBEATS = 20_000
IDLE_S = 10.0
INTERVAL_S = 5.0
"""The coordinator's default interval of heartbeats."""
TINY_INTERVAL_MS = 100
REPEATS = 2
"""Of figures that wait for heartbeats or settled groups."""
SETTLED_S_MAX = 120.0

_numbers = itertools.count()


def run(bench: Bench) -> None:
    join(bench)
    change(bench)
    heartbeats(bench)
    idle(bench)
    group_clients.run(bench)


def new_group(bench: Bench, subject: Subject) -> str:
    """Return the name of a group, whose heartbeats are frequent if the load is tiny."""
    name = f"bench-{os.getpid()}-consumers-{next(_numbers)}"
    if bench.scale.factor < SMALL.factor:  # the waits would be all of its time
        with Admin(subject.bootstrap) as admin:
            admin.alter_config("group", name, {"consumer.heartbeat.interval.ms": TINY_INTERVAL_MS})
    return name


def join(bench: Bench) -> None:
    """Measure members that join a new group at once."""
    count = bench.scale(JOINING, at_least=3)

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group(bench, subject)
        with (
            topic(subject, JOINED_PARTITIONS) as name,
            ConsumerMembers(coordinator(subject.bootstrap, group)) as members,
        ):
            for _ in range(count):
                members.join(group, name)
            seconds = members.run(lambda: members.is_settled(JOINED_PARTITIONS), SETTLED_S_MAX)
        return {"join to settled, s": seconds}

    what = f"{count} members of the consumer protocol over {JOINED_PARTITIONS} partitions"
    bench.compare(what, measure, {"join to settled, s": Budget(at_most=0.5)})


def change(bench: Bench) -> None:
    """Measure one member that joins a settled group, and one that leaves it."""
    count = bench.scale(MEMBERS, at_least=3)
    partitions = bench.scale(PARTITIONS, at_least=5)

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group(bench, subject)
        with (
            topic(subject, partitions) as name,
            ConsumerMembers(coordinator(subject.bootstrap, group)) as members,
        ):
            for _ in range(count):
                members.join(group, name)
            members.run(lambda: members.is_settled(partitions), SETTLED_S_MAX)
            before = owners(members)
            newcomer = members.join(group, name)
            joined_s = members.run(lambda: members.is_settled(partitions), SETTLED_S_MAX)
            between = owners(members)
            members.leave(newcomer)
            left_s = members.run(lambda: members.is_settled(partitions), SETTLED_S_MAX)
            after = owners(members)
        return {
            "a member joins, s": joined_s,
            "partitions moved by the join, partitions": moved(before, between),
            "a member leaves, s": left_s,
            "partitions moved by the leave, partitions": moved(between, after),
        }

    what = f"{count} members over {partitions:,} partitions"
    least = math.ceil(partitions / (count + 1))
    interval = Budget(at_most=INTERVAL_S + 1, of_value=True)
    minimum = Budget(at_most=least, of_value=True)
    budgets = {
        "a member joins, s": interval,
        "a member leaves, s": interval,
        "partitions moved by the join, partitions": minimum,
        "partitions moved by the leave, partitions": minimum,
    }
    bench.compare(what, measure, budgets, repeats_max=REPEATS)


def owners(members: ConsumerMembers) -> dict[int, object]:
    return {index: member for member in members.members for index in member.owned}


def moved(before: Mapping[int, object], after: Mapping[int, object]) -> float:
    return float(sum(before[index] is not after[index] for index in after))


def heartbeats(bench: Bench) -> None:
    """Measure heartbeats without news, sent without a pause."""
    size = bench.scale(MEMBERS, at_least=3)
    count = bench.scale(HEARTBEATS, at_least=size)

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group(bench, subject)
        with (
            topic(subject, size) as name,
            ConsumerMembers(coordinator(subject.bootstrap, group)) as members,
        ):
            for _ in range(size):
                members.join(group, name)
            members.run(lambda: members.is_settled(size), SETTLED_S_MAX)
            before = sum(cpu_s(subject.pids))
            members.beat_without_pause(count)
            used = sum(cpu_s(subject.pids)) - before
        return {"CPU, us/heartbeat": used / count * 1e6}

    what = f"a heartbeat in a group of {size} members"
    budgets = {"CPU, us/heartbeat": Budget(at_most=0.5)}
    bench.compare(what, measure, budgets, repeats_max=REPEATS)
    found = bench.figures[-1]
    alone, budget = {OURS: found.values[OURS]}, Budget(at_most=50, of_value=True)
    bench.figures.append(replace(found, name=f"{found.name}, alone", values=alone, budget=budget))


def idle(bench: Bench) -> None:
    """Measure a large group whose members only send heartbeats, at the coordinator's interval."""
    count = bench.scale(IDLE_MEMBERS, at_least=10)
    size = min(count, PARTITIONS)  # descriptors for files of more would be lacking for connections
    seconds = IDLE_S * min(1.0, bench.scale.factor * 10)

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group(bench, subject)
        with (
            topic(subject, size) as name,
            ConsumerMembers(coordinator(subject.bootstrap, group)) as members,
        ):
            for _ in range(count):
                members.join(group, name)
            members.run(lambda: members.is_settled(size), SETTLED_S_MAX)
            spread = time.monotonic() + min(INTERVAL_S, seconds)
            members.run(lambda: time.monotonic() > spread, SETTLED_S_MAX)
            before = sum(cpu_s(subject.pids))
            begun = time.monotonic()
            members.run(lambda: time.monotonic() > begun + seconds, SETTLED_S_MAX)
            used = sum(cpu_s(subject.pids)) - before
            return {"of a core, cores": used / (time.monotonic() - begun)}

    budgets = {"of a core, cores": Budget(at_most=0.5, of_value=True)}
    what = f"{count:,} idle members in a group"
    bench.compare(what, measure, budgets, [bench.ours], repeats_max=1)
