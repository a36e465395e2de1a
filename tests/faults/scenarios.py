"""Fault scenarios of a broker under load: F1, F3, F4 and F5, moves, and all of them mixed.

    F1      SIGKILL to a random process: a worker (70 %), the supervisor or the launcher
    F3      a worker is stopped until after its session timeout, or continued just around it
    F4      the supervisor is killed, or stopped for a while: the workers' clients must not notice
    F5      SIGKILL to every process at once
    MOVES   partitions move, and processes are killed meanwhile
    MIX     any of these in any order

A scenario runs until `stage.faults_done` has reached its count, or there is a violation.
The scenario restarts a killed launcher; everything else must recover by itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.faults.harness import SERVE_S_MAX, WAIT_S_MAX, FaultHarness, load_factor
from tests.faults.moves import move
from tests.faults.processes import SUPERVISOR, exists, until

SESSION_S = 1.0
HEARTBEAT_S = 0.2
CONFIG = {
    "broker.session.timeout.ms": str(round(SESSION_S * 1000)),
    "broker.heartbeat.interval.ms": str(round(HEARTBEAT_S * 1000)),
    # Short, so that files with a delayed deletion are gone at the end of a run.
    "log.segment.delete.delay.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "1000",
}
FENCED_S_MAX = SESSION_S + 2.0
BARELY_S = 0.2
"""Maximum distance from the session timeout at which a stopped worker is continued."""
AGAIN_SOON = 0.25
"""Probability that a second process is killed before the first is back."""
NOTICED_S_MAX = 1.0
"""Maximum pause of a partition, on a busy machine, while only the supervisor is away."""
START_S_MAX = 5.0
SHARED = 1.5
"""From this load on, a worker may miss its heartbeats for want of a processor."""


# F1


def kill_any(harness: FaultHarness) -> None:
    """Kill a random process, with F1's probabilities."""
    drawn = harness.dice.random()
    if harness.processes.alone or drawn >= 0.85:
        kill_launcher(harness)
    elif drawn >= 0.7:
        kill_supervisor(harness)
    else:
        kill_worker(harness)


def kill_worker(harness: FaultHarness) -> None:
    """Kill a worker and wait for its partitions.  Sometimes another dies before that."""
    before = harness.processes.pids()
    node = harness.dice.choice(harness.processes.workers)
    led = harness.directory.led_by(node)
    at = harness.processes.kill(node)
    harness.faults_done += 1
    again = harness.dice.random() < AGAIN_SOON
    if again:
        time.sleep(harness.dice.random() * 0.1)
        other = harness.dice.choice(sorted(before))
        if (pid := harness.processes.pids().get(other)) is not None:
            before[other] = pid
            led += harness.directory.led_by(other)
            harness.processes.signal(pid, signal.SIGKILL)
            harness.faults_done += 1
    harness.served("two killed" if again else "worker killed", at, led, SERVE_S_MAX)
    harness.all_up(set(before), {each: pid for each, pid in before.items() if each == node})


def kill_supervisor(harness: FaultHarness) -> None:
    """Kill the supervisor and wait for the controller."""
    before = harness.processes.pids()
    at = harness.processes.kill(SUPERVISOR)
    harness.faults_done += 1
    harness.change_metadata("supervisor killed", at)
    harness.served("supervisor killed: all", at, list(harness.partitions), SERVE_S_MAX)
    harness.all_up(set(before), {SUPERVISOR: before[SUPERVISOR]})


def kill_launcher(harness: FaultHarness) -> None:
    """Kill the launcher, which ends all other processes; restart it."""
    at = harness.processes.kill_launcher()
    start_again(harness, "launcher killed", at)


def start_again(harness: FaultHarness, kind: str, at: float) -> None:
    harness.faults_done += 1
    harness.processes.start()
    harness.note(f"{kind}: ready", time.monotonic() - at, START_S_MAX)
    harness.served(kind, at, list(harness.partitions), START_S_MAX)


# F3


def stop_worker(harness: FaultHarness) -> None:
    """Stop a worker: for long, for a moment, or until about its session timeout."""
    dice, processes = harness.dice, harness.processes
    before = processes.pids()
    node = dice.choice(processes.workers)
    pid = before[node]
    led = harness.directory.led_by(node)
    drawn = dice.random()
    at = processes.signal(pid, signal.SIGSTOP)
    harness.faults_done += 1
    if dice.random() < AGAIN_SOON:
        # A new supervisor, which has not seen its heartbeats stop, must fence it, too.
        processes.kill(SUPERVISOR)
    if drawn < 0.5:
        fenced(harness, node, pid, at)
        harness.served("worker stopped for good", at, led, FENCED_S_MAX)
    elif drawn < 0.85:
        time.sleep(SESSION_S + (dice.random() * 2 - 1) * BARELY_S)
        processes.signal(pid, signal.SIGCONT)
        harness.served("worker stopped until about its time-out", at, led, FENCED_S_MAX)
    else:
        time.sleep(dice.random() * (SESSION_S - 2 * HEARTBEAT_S))
        processes.signal(pid, signal.SIGCONT)
        harness.served("worker stopped for a moment", at, led, SERVE_S_MAX)
        # Other processes may have kept it from a processor for the rest of the session timeout.
        if processes.pids().get(node) != pid and harness.timed and load_factor() < SHARED:
            harness.faults.append(f"F3: node {node} was given up although its pause was short")
    harness.all_up(set(before), {})


def fenced(harness: FaultHarness, node: int, pid: int, at: float) -> None:
    """Wait until the stopped process is killed and reaped, and replaced by another."""
    try:
        until(
            lambda: not exists(pid),
            FENCED_S_MAX * load_factor() if harness.timed else WAIT_S_MAX,
            f"stopped node {node} was not fenced",
        )
    except TimeoutError as fault:
        harness.faults.append(f"F3: {fault}")
        harness.processes.signal(pid, signal.SIGCONT)
        return
    harness.note("stopped worker fenced", time.monotonic() - at, FENCED_S_MAX)
    if time.monotonic() - at < SESSION_S - HEARTBEAT_S and load_factor() < SHARED:
        harness.faults.append(f"F3: node {node} was fenced before its time-out")


# F4


def lose_supervisor(harness: FaultHarness, stopped_s_max: float) -> None:
    """Kill the supervisor, or stop it for a while; no client of a worker may notice."""
    dice, processes = harness.dice, harness.processes
    before = processes.pids()
    begin = time.monotonic()
    if dice.random() < 0.5:
        at = processes.kill(SUPERVISOR)
        gone = {SUPERVISOR: before[SUPERVISOR]}
        kind = "supervisor killed"
    else:
        processes.signal(before[SUPERVISOR], signal.SIGSTOP)
        # Most pauses are short, and some have the maximum length.
        time.sleep(min(stopped_s_max, 1.0 / max(dice.random(), 1e-3)))
        at = processes.signal(before[SUPERVISOR], signal.SIGCONT)
        gone = {}
        kind = "supervisor stopped"
    harness.faults_done += 1
    harness.change_metadata(f"{kind}: metadata", at)
    harness.all_up(set(before), gone)
    harness.served(f"{kind}: all", at, list(harness.partitions), SERVE_S_MAX)
    end = time.monotonic()
    for trouble in harness.troubles(begin, end):
        if trouble.said.startswith(TimeoutError.__name__):
            continue  # a pause, which is checked by its length
        harness.faults.append(f"F4: {kind} for {end - begin:.1f} s, and {trouble}")
    for prober, gap in zip(harness.probers, harness.gaps(begin, end), strict=True):
        harness.recoveries["gap while the supervisor was away"].append(gap)
        if harness.timed and gap > NOTICED_S_MAX * load_factor():
            harness.faults.append(
                f"F4: partition {prober.partition} paused for {gap:.3f} s: {kind}"
            )
    after = processes.pids()
    for node in before.keys() - {SUPERVISOR}:
        if after.get(node) != before[node] and load_factor() < SHARED:
            harness.faults.append(f"F4: node {node} was replaced while the supervisor was away")


# F5


def kill_all(harness: FaultHarness) -> None:
    """Kill every process at once, and restart the broker."""
    at = harness.processes.kill_all(harness.dice)
    start_again(harness, "all killed", at)


# The scenarios.


def repeated(fault: Callable[[FaultHarness], None]) -> Callable[[FaultHarness, int], None]:
    """Return a scenario that repeats one fault, with work between."""

    def play(harness: FaultHarness, count: int) -> None:
        while harness.faults_done < count and harness.goes_on:
            harness.work()
            fault(harness)

    return play


def one_of(*faults: Callable[[FaultHarness], None]) -> Callable[[FaultHarness], None]:
    """Return a fault that draws one of these each time."""
    return lambda harness: harness.dice.choice(faults)(harness)


def f4(stopped_s_max: float) -> Callable[[FaultHarness], None]:
    return lambda harness: lose_supervisor(harness, stopped_s_max)


SCENARIOS: dict[str, Callable[[FaultHarness, int], None]] = {
    "F1": repeated(kill_any),
    "F3": repeated(stop_worker),
    "F4": repeated(f4(30.0)),
    "F5": repeated(kill_all),
    "MOVES": move,
    "MIX": repeated(
        one_of(kill_any, kill_any, stop_worker, f4(3.0), kill_all, lambda harness: move(harness, 1))
    ),
}
FOR_ONE_PROCESS = {"F1", "F5"}
MOVING = {"MOVES", "MIX"}
