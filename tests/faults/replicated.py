"""Fault scenarios of a topic with several replicas.

    F1      SIGKILL to a worker, to two workers within a second, to the supervisor or the launcher
    F3      a worker is stopped and continued, or given up; also with the launcher stopped, which
            cannot end it: then it leads on although its session has expired
    F4      the supervisor is killed or stopped, alone, or while a worker dies
    F5      SIGKILL to every process at once

Each worker leads some partitions and follows others.  A worker's death is thus at once that of
leaders and of followers.

Left out: librdkafka may send the records of an idempotent producer twice after a change of leader.
If a batch is refused with NOT_LEADER_OR_FOLLOWER and the next one is received after the node has
become the leader, that is out of sequence; librdkafka then sends all unacknowledged records again
under a new epoch, those that were appended too (its issue 4953).  The checker reports this as I2.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.faults.harness import SERVE_S_MAX, FaultHarness
from tests.faults.processes import SUPERVISOR
from tests.faults.scenarios import (
    f4,
    kill_all,
    kill_launcher,
    kill_supervisor,
    repeated,
    stop_worker,
)

TWO_WITHIN_S = 1.0
HEALED = 0.5
"""Probability that all replicas are in sync again before the next fault."""
PAUSE_S = (0.1, 30.0)
PAUSED_ON_S_MAX = 0.5
"""Maximum time for which a leader runs on before the launcher can end it."""


def kill_a_replica(harness: FaultHarness) -> None:
    """Kill one of the processes, or two workers, with F1's probabilities."""
    drawn = harness.dice.random()
    if drawn < 0.45:
        kill_workers(harness, 1)
    elif drawn < 0.7:
        kill_workers(harness, 2)
    elif drawn < 0.85:
        harness.acts["supervisor killed"] += 1
        kill_supervisor(harness)
    else:
        harness.acts["launcher killed"] += 1
        kill_launcher(harness)
    heal(harness)


def kill_workers(harness: FaultHarness, count: int) -> None:
    """Kill as many workers within a second, and wait for all partitions."""
    before = harness.processes.pids()
    nodes = harness.dice.sample(harness.processes.workers, count)
    harness.acts[f"{count} workers killed"] += 1
    led = harness.directory.led_by(nodes[0]) if count == 1 else list(harness.partitions)
    at = harness.processes.kill(nodes[0])
    harness.faults_done += 1
    for node in nodes[1:]:
        time.sleep(harness.dice.random() * TWO_WITHIN_S)
        at = harness.processes.kill(node)
        harness.faults_done += 1
    harness.served(f"{count} of the workers killed", at, led, SERVE_S_MAX)
    harness.all_up(set(before), {node: before[node] for node in nodes if node in before})


def heal(harness: FaultHarness) -> None:
    """Wait, in some cases, until all replicas are in sync."""
    if harness.dice.random() < HEALED:
        at = time.monotonic()
        harness.in_sync()
        harness.note("all replicas in sync", time.monotonic() - at, SERVE_S_MAX)


def stop_a_replica(harness: FaultHarness) -> None:
    """Stop a worker, half of the time one that nobody can end."""
    if harness.dice.random() < 0.5:
        harness.acts["worker stopped"] += 1
        stop_worker(harness)
    else:
        harness.acts["worker stopped with the launcher"] += 1
        stop_with_the_launcher(harness)
    heal(harness)


def stop_with_the_launcher(harness: FaultHarness) -> None:
    """Stop a worker and the launcher; continue the worker first.

    After its session timeout the supervisor asks the launcher to end the worker.  Until the
    launcher runs again, the worker is a leader whose session has expired.
    """
    dice, processes = harness.dice, harness.processes
    before = processes.pids()
    node = dice.choice(processes.workers)
    led = harness.directory.led_by(node)
    launcher = processes.broker.pid
    shortest, longest = PAUSE_S
    pause_s = shortest * (longest / shortest) ** dice.random()
    processes.signal(launcher, signal.SIGSTOP)
    processes.signal(before[node], signal.SIGSTOP)
    harness.faults_done += 1
    time.sleep(pause_s)
    at = processes.signal(before[node], signal.SIGCONT)
    time.sleep(dice.random() * PAUSED_ON_S_MAX)
    processes.signal(launcher, signal.SIGCONT)
    harness.diary.append(f"{time.time():.3f} node {node} and the launcher stopped: {pause_s:.1f} s")
    harness.served("worker and launcher stopped", at, led, SERVE_S_MAX)
    harness.all_up(set(before), {})


def lose_supervisor_and_worker(harness: FaultHarness) -> None:
    """Stop or kill the supervisor, and kill a worker while it is away."""
    dice, processes = harness.dice, harness.processes
    before = processes.pids()
    node = dice.choice(processes.workers)
    stopped = dice.random() < 0.5
    harness.acts["supervisor " + ("stopped" if stopped else "killed") + ", worker killed"] += 1
    processes.signal(before[SUPERVISOR], signal.SIGSTOP if stopped else signal.SIGKILL)
    time.sleep(dice.random() * 0.5)
    at = processes.kill(node)
    harness.faults_done += 1
    if stopped:
        time.sleep(1.0 / max(dice.random(), 0.2) - 0.9)
        at = processes.signal(before[SUPERVISOR], signal.SIGCONT)
    harness.change_metadata("supervisor and worker lost: metadata", at)
    harness.served("supervisor and worker lost", at, list(harness.partitions), SERVE_S_MAX)
    harness.all_up(set(before), {node: before[node]})
    heal(harness)


def lose_supervisor(harness: FaultHarness) -> None:
    """Stop or kill the supervisor: alone, which no client may notice, or with a worker."""
    if harness.dice.random() < 0.5:
        lose_supervisor_and_worker(harness)
    else:
        # A leader whose follower is catching up needs the supervisor for it.
        harness.in_sync()
        harness.acts["supervisor lost"] += 1
        f4(3.0)(harness)


def kill_all_replicas(harness: FaultHarness) -> None:
    kill_all(harness)
    heal(harness)


REPLICATED: dict[str, Callable[[FaultHarness, int], None]] = {
    "F1": repeated(kill_a_replica),
    "F3": repeated(stop_a_replica),
    "F4": repeated(lose_supervisor),
    "F5": repeated(kill_all_replicas),
}
