"""MOVES: partitions move between workers under load, and processes are killed meanwhile.

Commands are given as an operator gives them, by `kafkalite node`.  A command to a supervisor that
is just being killed may fail, and a plan to rebalance is lost with it; so each is repeated until
its effect is there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.faults.harness import WAIT_S_MAX, FaultHarness
from tests.faults.processes import SUPERVISOR

DONE_S_MAX = 15.0
LATE = "request to the supervisor timed out"
ASK_AGAIN_S = 1.0
ORDER_S_MAX = 30.0
PAUSED_S_MAX = 3.0
COMES_OR_GOES = ("add", "remove")
"""Commands whose effect may be there although their process reported an error."""
DISTURBED = 0.5
"""Probability of a fault while partitions move: mostly a kill, sometimes a stop."""
DELAY_S_MAX = 0.4
"""Maximum delay of a fault after a command: its process takes a while to start, too."""


class Moves:
    """Commands and their effects, on one stage."""

    def __init__(self, harness: FaultHarness) -> None:
        self.harness = harness
        self.epochs_before = self.epochs()
        self.killed = False

    def play(self, count: int) -> None:
        """Run until `count` partitions have moved."""
        base = self.harness.faults_done
        while self.harness.faults_done < base + count and self.harness.goes_on:
            self.harness.work()
            self.harness.dice.choice([self.empty_one, self.one_more_for_a_while])()
            self.harness.faults_done = base + self.epochs() - self.epochs_before

    def epochs(self) -> int:
        """Return the number of moves of all partitions so far: each raises an epoch by one."""
        return sum(leader.leader_epoch for leader in self.harness.directory.leaders.values())

    # Commands.

    def empty_one(self) -> None:
        """Drain a worker, undo it, and rebalance."""
        node = self.harness.dice.choice(self.harness.processes.workers)
        self.ordered(["drain", str(node)], lambda: not self.harness.directory.led_by(node))
        self.ordered(["drain", str(node), "--undo"], lambda: True)
        self.ordered(["rebalance"], self.balanced)

    def one_more_for_a_while(self) -> None:
        """Add a worker, rebalance, and remove it."""
        before = set(self.harness.processes.workers)
        self.ordered(["add"], lambda: len(self.workers_there() - before) == 1, once=True)
        added = self.workers_there() - before
        if len(added) != 1:
            return
        (node,) = added
        self.ordered(["rebalance"], self.balanced)
        # A restarted launcher has the configured number of workers, and this one is gone.
        if node in self.nodes_listed():
            self.ordered(["remove", str(node)], lambda: node not in self.nodes_listed())

    def workers_there(self) -> set[int]:
        return self.nodes_listed() - {SUPERVISOR}

    def nodes_listed(self) -> set[int]:
        return {int(str(node["id"])) for node in self.harness.processes.status()}

    def balanced(self) -> bool:
        """Return True if the workers lead equally many partitions, within one."""
        counts = Counter(dict.fromkeys(self.workers_there(), 0))
        counts.update(leader.node for leader in list(self.harness.directory.leaders.values()))
        return max(counts.values()) - min(counts.values()) <= 1

    # Execution of commands.

    def ordered(self, words: list[str], done: Callable[[], bool], once: bool = False) -> None:
        """Run a command and wait for its effect; repeat it if it was lost.

        `once` is for a command that must not be repeated after it was accepted.
        """
        if not self.harness.goes_on:
            return
        begin = time.monotonic()
        asked_at, accepted, said = 0.0, False, ""
        disturbance = self.disturbance(begin)
        while not (accepted and done()):
            now = time.monotonic()
            if now - begin > WAIT_S_MAX:
                self.harness.faults.append(f"I14: node {' '.join(words)} is not done: {said}")
                return
            if now - asked_at > ASK_AGAIN_S and not (once and accepted):
                asked_at = now
                running = self.command(words)
                while running.poll() is None and time.monotonic() - now < ORDER_S_MAX:
                    disturbance()
                    time.sleep(0.002)
                said = ended(running)
                accepted = accepted or running.returncode == 0
                if self.killed and words[0] in COMES_OR_GOES:
                    accepted = accepted or done()
                slow = LATE in said and not self.harness.timed
                if running.returncode != 0 and not self.killed and not slow:
                    self.harness.faults.append(f"MOVES: node {' '.join(words)} failed: {said}")
            disturbance()
            time.sleep(0.002)
        self.harness.note(f"node {words[0]}", time.monotonic() - begin, DONE_S_MAX)
        self.judge(words[0], begin)

    def command(self, words: list[str]) -> subprocess.Popen[str]:
        data = str(self.harness.processes.broker.data)
        return subprocess.Popen(
            [sys.executable, "-m", "kafkalite", "node", *words, "--data", data],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def disturbance(self, begin: float) -> Callable[[], None]:
        """Return a function that injects a fault at a random time, or never."""
        dice = self.harness.dice
        self.killed = False
        at = begin + dice.random() * DELAY_S_MAX if dice.random() < DISTURBED else float("inf")
        node = dice.choice([SUPERVISOR, *self.harness.processes.workers])
        drawn = dice.random()

        def disturb() -> None:
            nonlocal at
            if time.monotonic() < at:
                return
            at = float("inf")
            self.killed = True
            processes = self.harness.processes
            if drawn < 0.15:
                processes.kill_launcher()
                processes.start()
            elif drawn < 0.3 and (pid := processes.pids().get(node)) is not None:
                # A stopped worker is fenced, the supervisor continues after a while.
                processes.signal(pid, signal.SIGSTOP)
                if node == SUPERVISOR:
                    time.sleep(dice.random())
                    processes.signal(pid, signal.SIGCONT)
            else:
                processes.kill(node)

        return disturb

    def judge(self, verb: str, begin: float) -> None:
        """Check that all partitions are served, and that no pause was long."""
        harness = self.harness
        killed = " disturbed" if self.killed else ""
        now = time.monotonic()
        harness.served(f"after {verb}{killed}", now, list(harness.partitions), PAUSED_S_MAX)
        harness.note(
            f"longest pause in {verb}{killed}", max(harness.gaps(begin, now)), PAUSED_S_MAX
        )


def ended(running: subprocess.Popen[str]) -> str:
    """Return the output of a command after its end."""
    if running.poll() is None:
        running.kill()
    said, _ = running.communicate()
    return " ".join(said.split())


def move(harness: FaultHarness, count: int) -> None:
    """Run the scenario MOVES."""
    Moves(harness).play(count)
