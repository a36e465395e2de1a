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

from tests.faults.harness import GIVE_UP_S, SERVE_S_MAX, Stage, patience
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


def kill_any(stage: Stage) -> None:
    """Kill a random process, with F1's probabilities."""
    drawn = stage.dice.random()
    if stage.processes.alone or drawn >= 0.85:
        kill_launcher(stage)
    elif drawn >= 0.7:
        kill_supervisor(stage)
    else:
        kill_worker(stage)


def kill_worker(stage: Stage) -> None:
    """Kill a worker and wait for its partitions.  Sometimes another dies before that."""
    before = stage.processes.pids()
    node = stage.dice.choice(stage.processes.workers)
    led = stage.directory.led_by(node)
    at = stage.processes.kill(node)
    stage.faults_done += 1
    again = stage.dice.random() < AGAIN_SOON
    if again:
        time.sleep(stage.dice.random() * 0.1)
        other = stage.dice.choice(sorted(before))
        if (pid := stage.processes.pids().get(other)) is not None:
            before[other] = pid
            led += stage.directory.led_by(other)
            stage.processes.signal(pid, signal.SIGKILL)
            stage.faults_done += 1
    stage.served("two killed" if again else "worker killed", at, led, SERVE_S_MAX)
    stage.all_up(set(before), {each: pid for each, pid in before.items() if each == node})


def kill_supervisor(stage: Stage) -> None:
    """Kill the supervisor and wait for the controller."""
    before = stage.processes.pids()
    at = stage.processes.kill(SUPERVISOR)
    stage.faults_done += 1
    stage.change_metadata("supervisor killed", at)
    stage.served("supervisor killed: all", at, list(stage.partitions), SERVE_S_MAX)
    stage.all_up(set(before), {SUPERVISOR: before[SUPERVISOR]})


def kill_launcher(stage: Stage) -> None:
    """Kill the launcher, which ends all other processes; restart it."""
    at = stage.processes.kill_launcher()
    start_again(stage, "launcher killed", at)


def start_again(stage: Stage, kind: str, at: float) -> None:
    stage.faults_done += 1
    stage.processes.start()
    stage.note(f"{kind}: ready", time.monotonic() - at, START_S_MAX)
    stage.served(kind, at, list(stage.partitions), START_S_MAX)


# F3


def stop_worker(stage: Stage) -> None:
    """Stop a worker: for long, for a moment, or until about its session timeout."""
    dice, processes = stage.dice, stage.processes
    before = processes.pids()
    node = dice.choice(processes.workers)
    pid = before[node]
    led = stage.directory.led_by(node)
    drawn = dice.random()
    at = processes.signal(pid, signal.SIGSTOP)
    stage.faults_done += 1
    if dice.random() < AGAIN_SOON:
        # A new supervisor, which has not seen its heartbeats stop, must fence it, too.
        processes.kill(SUPERVISOR)
    if drawn < 0.5:
        fenced(stage, node, pid, at)
        stage.served("worker stopped for good", at, led, FENCED_S_MAX)
    elif drawn < 0.85:
        time.sleep(SESSION_S + (dice.random() * 2 - 1) * BARELY_S)
        processes.signal(pid, signal.SIGCONT)
        stage.served("worker stopped until about its time-out", at, led, FENCED_S_MAX)
    else:
        time.sleep(dice.random() * (SESSION_S - 2 * HEARTBEAT_S))
        processes.signal(pid, signal.SIGCONT)
        stage.served("worker stopped for a moment", at, led, SERVE_S_MAX)
        # Other processes may have kept it from a processor for the rest of the session timeout.
        if processes.pids().get(node) != pid and stage.timed and patience() < SHARED:
            stage.faults.append(f"F3: node {node} was given up although its pause was short")
    stage.all_up(set(before), {})


def fenced(stage: Stage, node: int, pid: int, at: float) -> None:
    """Wait until the stopped process is killed and reaped, and replaced by another."""
    try:
        until(
            lambda: not exists(pid),
            FENCED_S_MAX * patience() if stage.timed else GIVE_UP_S,
            f"stopped node {node} was not fenced",
        )
    except TimeoutError as fault:
        stage.faults.append(f"F3: {fault}")
        stage.processes.signal(pid, signal.SIGCONT)
        return
    stage.note("stopped worker fenced", time.monotonic() - at, FENCED_S_MAX)
    if time.monotonic() - at < SESSION_S - HEARTBEAT_S and patience() < SHARED:
        stage.faults.append(f"F3: node {node} was fenced before its time-out")


# F4


def lose_supervisor(stage: Stage, stopped_s_max: float) -> None:
    """Kill the supervisor, or stop it for a while; no client of a worker may notice."""
    dice, processes = stage.dice, stage.processes
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
    stage.faults_done += 1
    stage.change_metadata(f"{kind}: metadata", at)
    stage.all_up(set(before), gone)
    stage.served(f"{kind}: all", at, list(stage.partitions), SERVE_S_MAX)
    end = time.monotonic()
    for trouble in stage.troubles(begin, end):
        if trouble.said.startswith(TimeoutError.__name__):
            continue  # a pause, which is checked by its length
        stage.faults.append(f"F4: {kind} for {end - begin:.1f} s, and {trouble}")
    for prober, gap in zip(stage.probers, stage.gaps(begin, end), strict=True):
        stage.recoveries["gap while the supervisor was away"].append(gap)
        if stage.timed and gap > NOTICED_S_MAX * patience():
            stage.faults.append(f"F4: partition {prober.partition} paused for {gap:.3f} s: {kind}")
    after = processes.pids()
    for node in before.keys() - {SUPERVISOR}:
        if after.get(node) != before[node] and patience() < SHARED:
            stage.faults.append(f"F4: node {node} was replaced while the supervisor was away")


# F5


def kill_all(stage: Stage) -> None:
    """Kill every process at once, and restart the broker."""
    at = stage.processes.kill_all(stage.dice)
    start_again(stage, "all killed", at)


# The scenarios.


def repeated(fault: Callable[[Stage], None]) -> Callable[[Stage, int], None]:
    """Return a scenario that repeats one fault, with work between."""

    def play(stage: Stage, count: int) -> None:
        while stage.faults_done < count and stage.goes_on:
            stage.work()
            fault(stage)

    return play


def one_of(*faults: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """Return a fault that draws one of these each time."""
    return lambda stage: stage.dice.choice(faults)(stage)


def f4(stopped_s_max: float) -> Callable[[Stage], None]:
    return lambda stage: lose_supervisor(stage, stopped_s_max)


SCENARIOS: dict[str, Callable[[Stage, int], None]] = {
    "F1": repeated(kill_any),
    "F3": repeated(stop_worker),
    "F4": repeated(f4(30.0)),
    "F5": repeated(kill_all),
    "MOVES": move,
    "MIX": repeated(
        one_of(kill_any, kill_any, stop_worker, f4(3.0), kill_all, lambda stage: move(stage, 1))
    ),
}
FOR_ONE_PROCESS = {"F1", "F5"}
MOVING = {"MOVES", "MIX"}
