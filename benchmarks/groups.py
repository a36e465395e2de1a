"""Consumer groups: the time of a rebalance, and the cost of idle members, commits and a start.

Estimate: a group request is 50 us in the coordinator, most of it the table-driven codec and the
state machine in Python.  A rebalance lasts until the last member learns of it by its heartbeat, so
the number of heartbeats it needs counts, and not the 100 requests.  5,000 members with a heartbeat
every 3 s are 1,700 requests/s: 0.1 of a core.  A commit costs a heartbeat and a batch of 150
bytes.  A start reads the log of offsets, 5 us per commit.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping

from benchmarks.harness import Bench, cpu_s, topic
from benchmarks.members import Members, coordinator
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import Kafkalite, Subject
from benchmarks.wire import METADATA_VERSION, Wire, frame
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import OFFSET_COMMIT, OFFSET_FETCH

MEMBERS, PARTITIONS = 50, 200
IDLE_MEMBERS, IDLE_GROUP = 5_000, 50
IDLE_S = 10.0
BEAT_S = 3.0
HASTY_BEAT_S = 0.1
COMMIT_CONNECTIONS, COMMITS = 16, 20_000
METADATA_PARTITIONS, METADATA_REQUESTS = 1_000, 500
OFFSETS, OFFSETS_A_COMMIT, OFFSET_PARTITIONS = 100_000, 10, 100
RESTARTS = 5
COMMIT, FETCH = 8, 7
JOIN_S_MAX = 120.0
AGAIN_S_MAX = 30.0

_numbers = itertools.count()


def run(bench: Bench) -> None:
    join(bench)
    idle(bench)
    commit(bench)
    metadata(bench)
    restart(bench)


def new_group() -> str:
    return f"bench-{next(_numbers)}"


def join(bench: Bench) -> None:
    """Measure members that join at once, with a heartbeat every 3 s, which is the default of
    clients, and with one so frequent that only the coordinator's own time is left."""
    count = bench.scale(MEMBERS, at_least=3)
    what = f"a group of {count} members over {PARTITIONS} partitions"

    def beating(beat_s: float) -> Callable[[Subject], Mapping[str, float]]:
        def measure(subject: Subject) -> Mapping[str, float]:
            group = new_group()
            address = coordinator(subject.bootstrap, group)
            members = Members(address, [group] * count, beat_s, 4 * PARTITIONS // count)
            try:
                members.join()
                return {"join to stable, s": members.run(lambda: members.stable, JOIN_S_MAX)}
            finally:
                members.close()

        return measure

    budgets = {"join to stable, s": Budget(at_most=0.5)}
    bench.compare(what, beating(BEAT_S), budgets)
    bench.compare(f"{what}, beating every {HASTY_BEAT_S} s", beating(HASTY_BEAT_S))


def idle(bench: Bench) -> None:
    """Measure members of many groups that only send heartbeats."""
    count = bench.scale(IDLE_MEMBERS, at_least=IDLE_GROUP)
    seconds = IDLE_S * min(1.0, bench.scale.factor * 10)

    def measure(subject: Subject) -> Mapping[str, float]:
        names = [new_group() for _ in range(count // IDLE_GROUP)]
        (address,) = {coordinator(subject.bootstrap, name) for name in names}
        groups = [name for name in names for _ in range(IDLE_GROUP)]
        members = Members(address, groups, BEAT_S, 20)
        try:
            members.join()
            members.run(lambda: members.stable, JOIN_S_MAX)
            end = time.monotonic() + BEAT_S
            members.run(lambda: time.monotonic() > end, JOIN_S_MAX)  # all are stable
            before = sum(cpu_s(subject.pids))
            begun = time.monotonic()
            members.run(lambda: time.monotonic() > begun + seconds, JOIN_S_MAX)
            used = sum(cpu_s(subject.pids)) - before
            return {"of a core, cores": used / (time.monotonic() - begun)}
        finally:
            members.close()

    budgets = {"of a core, cores": Budget(at_most=0.5, of_value=True)}
    name = f"{count:,} idle members in groups of {IDLE_GROUP}"
    bench.compare(name, measure, budgets, bench.subjects[:1])


def commit(bench: Bench) -> None:
    """Measure OffsetCommit of one partition, one request at a time on each of some connections."""
    count = bench.scale(COMMITS, at_least=COMMIT_CONNECTIONS)

    def measure(subject: Subject) -> Mapping[str, float]:
        group = new_group()
        with topic(subject) as name:
            request = framed_commit(group, name, [0], offset=1)
            address = coordinator(subject.bootstrap, group)
            wires = [Wire(address) for _ in range(COMMIT_CONNECTIONS)]
            before = sum(cpu_s(subject.pids))
            seconds = asked_again_and_again(wires, request, count)
            used = sum(cpu_s(subject.pids)) - before
        return {"throughput, commits/s": count / seconds, "CPU, us/commit": used / count * 1e6}

    budgets = {"throughput, commits/s": Budget(at_least=5_000, of_value=True)}
    bench.compare("OffsetCommit", measure, budgets)


def framed_commit(group: str, name: str, partitions: list[int], offset: int) -> bytes:
    parts = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
        for index in partitions
    ]
    body = {"group_id": group, "topics": [{"name": name, "partitions": parts}]}
    request = frame(OFFSET_COMMIT, COMMIT, body)
    return len(request).to_bytes(4, "big") + request


def asked_again_and_again(wires: list[Wire], request: bytes, count: int) -> float:
    """Send a request `count` times, in turn on each connection; return the seconds."""
    with selectors.DefaultSelector() as selector:
        for wire in wires:
            selector.register(wire.socket, selectors.EVENT_READ, wire)
        begun = time.monotonic()
        left = answers = count
        for wire in wires:
            wire.socket.sendall(request)
            left -= 1
        while answers:
            for key, _ in selector.select():
                wire = key.data
                wire.take(int.from_bytes(wire.take(4), "big"))
                answers -= 1
                if left > 0:
                    left -= 1
                    wire.socket.sendall(request)
        seconds = time.monotonic() - begun
    for wire in wires:
        wire.socket.close()
    return seconds


def metadata(bench: Bench) -> None:
    """Measure Metadata of a topic with many partitions, which each client of a group requests."""
    partitions = bench.scale.up_to((10, METADATA_PARTITIONS))[-1]
    count = bench.scale(METADATA_REQUESTS, at_least=2)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, partitions) as name, Wire(subject.bootstrap) as wire:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            request = frame(METADATA, METADATA_VERSION, body)
            framed = len(request).to_bytes(4, "big") + request
            before = sum(cpu_s(subject.pids))
            for _ in range(count):
                wire.socket.sendall(framed)
                wire.take(int.from_bytes(wire.take(4), "big"))
            return {"CPU, us/request": (sum(cpu_s(subject.pids)) - before) / count * 1e6}

    budgets = {"CPU, us/request": Budget(at_most=1.0)}
    bench.compare(f"Metadata of {partitions:,} partitions", measure, budgets)


def restart(bench: Bench) -> None:
    """Kill the supervisor and measure the time until a group's offsets can be fetched again."""
    count = bench.scale(OFFSETS, at_least=OFFSETS_A_COMMIT)
    groups = max(1, count // OFFSET_PARTITIONS)
    taken = []
    with (
        Kafkalite(bench.scratch / "restarted", workers=2) as broker,
        topic(broker, OFFSET_PARTITIONS) as name,
    ):
        address = coordinator(broker.bootstrap, "g-0")
        with Wire(address) as wire:
            for group in range(groups):
                for begin in range(0, OFFSET_PARTITIONS, OFFSETS_A_COMMIT):
                    indexes = [*range(begin, begin + OFFSETS_A_COMMIT)]
                    wire.socket.sendall(framed_commit(f"g-{group}", name, indexes, group + 1))
                    wire.take(int.from_bytes(wire.take(4), "big"))
        for _ in range(bench.scale(RESTARTS)):
            os.kill(supervisor(broker), signal.SIGKILL)
            begun = time.monotonic()
            while fetched(address, f"g-{groups - 1}") != (OFFSET_PARTITIONS, groups):
                if time.monotonic() - begun > AGAIN_S_MAX:
                    raise RuntimeError("the offsets do not come back")
            taken.append(time.monotonic() - begun)
    bench.figures.append(
        Figure(
            f"a killed supervisor tells {groups * OFFSET_PARTITIONS:,} committed offsets again",
            "s",
            {OURS: taken},
            Budget(at_most=1.0, of_value=True),
        )
    )


def supervisor(broker: Kafkalite) -> int:
    """Return the supervisor's process id, once the launcher has found it ready."""
    deadline = time.monotonic() + AGAIN_S_MAX
    while time.monotonic() < deadline:
        for node in broker.nodes:
            if node["id"] == 0:
                return node["pid"]
        time.sleep(0.01)
    raise RuntimeError("the supervisor does not come back")


def fetched(address: str, group: str) -> tuple[int, int]:
    """Return the group's number of offsets and the last of them; (0, 0) without a response."""
    try:
        with Wire(address) as wire:
            answer = wire.ask(OFFSET_FETCH, FETCH, {"group_id": group, "topics": None})
    except OSError:
        return 0, 0
    offsets = [part.committed_offset for each in answer.topics for part in each.partitions]
    return len(offsets), max(offsets, default=0)
