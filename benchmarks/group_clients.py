"""Native consumers in a group, and a group whose members restart one after the other.

    python -m benchmarks.group_clients BOOTSTRAP TOPIC GROUP

is a member that prints a line when partitions are assigned to it, and reads until it is killed.

Estimate: a member notes each call for records under a lock, a microsecond for a batch of a
millisecond.  The session of a killed member ends a session timeout after its last heartbeat, and
the others learn of that with their next one.  Partitions of a member that leaves have a new owner
after the next heartbeat of one of the others.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.consumer_members import ConsumerMember, ConsumerMembers
from benchmarks.harness import SMALL, Bench, run_client, topic
from benchmarks.members import coordinator
from benchmarks.native import against, in_turn, program, rate
from benchmarks.report import Budget
from benchmarks.subjects import ROOT, Subject
from kafkalite import Admin, Consumer

RECORDS = 3_000_000
IN_GROUP, ALONE = "batches of a member", "batches without a group"
SESSION_S, HEARTBEAT_S = 2.0, 0.5
TINY_SESSION_S, TINY_HEARTBEAT_S = 1.0, 0.1
RESPONSE_S = 0.05
"""Time for requests and responses, beyond the interval after which a member sends the next."""
PARTITIONS = 2
POLL_S = 0.05
FAILOVER_S_MAX = 60.0

RESTARTED, RESTARTED_PARTITIONS = 50, 200
RESTART_S = 0.2
"""Time for which a member is gone."""
SETTLED_S_MAX = 120.0

_numbers = itertools.count()


def run(bench: Bench) -> None:
    batches(bench)
    failover(bench)
    rolling_restart(bench)


def group_times(bench: Bench) -> tuple[float, float]:
    """Return session timeout and heartbeat interval; waits would be all of a tiny load's time."""
    if bench.scale.factor < SMALL.factor:
        return TINY_SESSION_S, TINY_HEARTBEAT_S
    return SESSION_S, HEARTBEAT_S


def new_group(bench: Bench) -> str:
    """Return the name of a group with short times."""
    name = f"bench-{os.getpid()}-clients-{next(_numbers)}"
    session_s, heartbeat_s = group_times(bench)
    times = {"session.timeout.ms": session_s, "heartbeat.interval.ms": heartbeat_s}
    with Admin(bench.ours.bootstrap) as admin:
        admin.alter_config(
            "group", name, {f"consumer.{key}": int(value * 1000) for key, value in times.items()}
        )
    return name


def batches(bench: Bench) -> None:
    """Measure the batches of a consumer as a member of a group, beside one without a group."""
    records = bench.scale(RECORDS, at_least=20_000)
    with topic(bench.ours) as name:
        run_client(bench.ours, "produce", topic=name, records=records, linger_ms=50)

        def read(in_group: bool) -> float:
            options = {"group": new_group(bench)} if in_group else {}
            return rate(
                program(
                    "programs", "batches", bootstrap=bench.ours.bootstrap, topic=name,
                    records=records, **options,
                )
            )  # fmt: skip

        values = in_turn(bench, {IN_GROUP: lambda: read(True), ALONE: lambda: read(False)})
    against(bench, IN_GROUP, values, IN_GROUP, {ALONE: Budget(at_least=0.9)})


def failover(bench: Bench) -> None:
    """Measure how long the partitions of a killed member have no owner."""

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group(bench)
        with (
            topic(subject, PARTITIONS) as name,
            Consumer(subject.bootstrap, topics=name, group=group) as survivor,
        ):
            poll_until_assigned(survivor, PARTITIONS)
            command = [sys.executable, "-m", __name__, subject.bootstrap, name, group]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as member:
                try:
                    poll_until_assigned(survivor, PARTITIONS - 1)
                    assert member.stdout is not None and member.stdout.readline()
                finally:
                    member.kill()
                begun_s = time.monotonic()
            poll_until_assigned(survivor, PARTITIONS)
            return {"its partitions have an owner, s": time.monotonic() - begun_s}

    session_s, _ = group_times(bench)
    what = f"a member is killed, session timeout {session_s:.0f} s"
    budgets = {"its partitions have an owner, s": Budget(at_most=session_s + 1, of_value=True)}
    bench.compare(what, measure, budgets, [bench.ours])


def poll_until_assigned(consumer: Consumer, count: int) -> None:
    """Poll until a consumer has this many partitions."""
    deadline_s = time.monotonic() + FAILOVER_S_MAX
    while len(consumer.assignment) != count:
        consumer.poll(POLL_S)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the consumer has {consumer.assignment}, not {count} partitions")


def rolling_restart(bench: Bench) -> None:
    """Measure the longest time that a partition has no owner while all members restart in turn."""
    count = bench.scale(RESTARTED, at_least=3)

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group(bench)
        with (
            topic(subject, RESTARTED_PARTITIONS) as name,
            RestartedMembers(coordinator(subject.bootstrap, group)) as members,
        ):
            for _ in range(count):
                members.join(group, name)
            members.run(lambda: members.is_settled(RESTARTED_PARTITIONS), SETTLED_S_MAX)
            members.longest_s = 0.0
            for member in [*members.members]:
                members.leave(member)
                back_s = time.monotonic() + RESTART_S
                members.run(lambda back_s=back_s: time.monotonic() > back_s, SETTLED_S_MAX)
                members.join(group, name)
                members.run(lambda: members.is_settled(RESTARTED_PARTITIONS), SETTLED_S_MAX)
        return {"longest stop of a partition, s": members.longest_s}

    _, heartbeat_s = group_times(bench)
    what = f"rolling restart of {count} members, heartbeat interval {heartbeat_s} s"
    longest = Budget(at_most=heartbeat_s + RESPONSE_S, of_value=True)
    budgets = {"longest stop of a partition, s": longest}
    bench.compare(what, measure, budgets, [bench.ours], repeats_max=1)


class RestartedMembers(ConsumerMembers):
    """Members of one group, and the longest time that a partition had no owner."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.longest_s = 0.0
        self._stopped_s: dict[int, float] = {}

    def leave(self, member: ConsumerMember) -> None:
        self._stop(member.owned)
        super().leave(member)

    def _receive(self, member: ConsumerMember) -> None:
        before = member.owned
        super()._receive(member)
        self._stop(before - member.owned)
        now_s = time.monotonic()
        for index in member.owned - before:
            self.longest_s = max(self.longest_s, now_s - self._stopped_s.pop(index, now_s))

    def _stop(self, partitions: frozenset[int]) -> None:
        now_s = time.monotonic()
        self._stopped_s.update(dict.fromkeys(partitions, now_s))


def main(bootstrap: str, topic_name: str, group: str) -> None:
    """Be a member until the process is killed."""

    def assigned(partitions: object) -> None:
        print("assigned", flush=True)

    with Consumer(bootstrap, topics=topic_name, group=group, on_assign=assigned) as consumer:
        while True:
            consumer.poll(1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
