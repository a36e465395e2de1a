"""Producers on rings that die, stop, hoard, share and stay too long; and the scribbler in C.

    python -m tests.faults.ring_victims LEDGER SABOTEUR TEMPLATES…

SABOTEUR is ring_saboteur.c, compiled; TEMPLATES is `NODE=FILE` for each node.  A line of JSON on
standard input is an act: its name, its seed, its count, and the places to choose from.  Results are
reported as in ring_client.py.  A victim is forked, so that one costs milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from kafkalite.transport.ring import ProducerRing, RingError
from tests.faults.ring_client import (
    BACK_S_MAX,
    Lease,
    Ledger,
    Place,
    attach,
    batch_of,
    commit,
    tell,
)

KILLED_S_MAX = 0.006
STOPPED_S_MAX = 0.2
IN_FLIGHT_MAX = 100
HOARD_COUNT = 1_500
LATE_COUNT = 50
REST_S = 0.0005
"""Pause of a wait: spinning would keep a processor from all other processes."""
SABOTEUR_S_MAX = 300.0
SHARER = "sharer"


class Victims:
    """The program; see the module."""

    def __init__(self, ledger: Ledger, saboteur: str, templates: dict[int, str]) -> None:
        self.note = ledger.note
        self.saboteur = saboteur
        self.templates = templates
        self.made = 0

    # Victims.

    def write(self, name: str, lease: Lease, place: Place, dice: random.Random) -> None:
        """Write frame after frame, and take the acknowledgements, until killed."""
        number = self.write_on(name, ProducerRing(lease.descriptors), lease, place, dice)
        tell("fault", f"F24: {name}, which had done nothing wrong, was left at frame {number}")

    def outlive(self, name: str, lease: Lease, place: Place, dice: random.Random) -> None:
        """Write frames until the lease ends, and some more."""
        ring = ProducerRing(lease.descriptors)
        number = self.write_on(name, ring, lease, place, dice)
        for late in range(number + 1, number + 1 + LATE_COUNT):
            self.note("late", name, late, place.partition)
            if not commit(ring, place, batch_of(name, late), late, 1):
                return

    def write_on(
        self, name: str, ring: ProducerRing, lease: Lease, place: Place, dice: random.Random
    ) -> int:
        """Write until the lease ends; return the number of frames."""
        number = answered = 0
        while not lease.ended:
            if number - answered < IN_FLIGHT_MAX:
                batch = batch_of(name, number)
                self.note("sent", name, number, place.partition)
                while not commit(ring, place, batch, number, dice.choice((1, -1)), dice):
                    time.sleep(REST_S)
                    answered += self.take_acks(name, ring)
                    if lease.ended:
                        return number
                number += 1
            else:
                time.sleep(REST_S)
            answered += self.take_acks(name, ring)
        return number

    def take_acks(self, name: str, ring: ProducerRing) -> int:
        answers = ring.take_acks()
        for number, code, base_offset, *_ in answers:
            if code:
                tell("fault", f"C: {name} was answered {number}: {code}")
            else:
                self.note("acked", name, number, base_offset)
        return len(answers)

    def hoard(self, name: str, lease: Lease, place: Place, dice: random.Random) -> None:
        """Fill the ring and its acknowledgements, take none, and stay."""
        ring = ProducerRing(lease.descriptors)
        for number in range(HOARD_COUNT):
            self.note("sent", name, number, place.partition)
            if not commit(ring, place, batch_of(name, number), number, 1):
                break
        signal.pause()

    def share(self, name: str, lease: Lease, place: Place, dice: random.Random) -> None:
        """Write into one ring from two processes, each as if alone; ignore acknowledgements."""
        mine = [os.dup(descriptor) for descriptor in lease.descriptors]
        name += "-b" if os.fork() else "-a"
        ring = ProducerRing(mine)
        for number in range(HOARD_COUNT):
            self.note("sent", name, number, place.partition)
            while not commit(ring, place, batch_of(name, number), number, 1, dice):
                time.sleep(REST_S)
                ring.take_acks()
                if lease.ended:
                    return
            ring.take_acks()

    # The acts.

    def forked(self, act: str, play: Callable[..., Any], place: Place, dice: random.Random) -> int:
        """Fork a victim into a process group of its own; return its process id."""
        lease = attach(place)
        self.made += 1
        name, seed = f"{act}-{os.getpid()}-{self.made}", dice.random()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                play(name, lease, place, random.Random(seed))
                code = 0
            except RingError as fault:
                if act != SHARER:  # its numbers are mixed with the other process's
                    tell("fault", f"F24: {name}: {fault}")
            except BaseException:
                tell("fault", f"{name}: {traceback.format_exc()[-600:]!r}")
            finally:
                os._exit(code)
        os.setpgid(pid, pid)
        for descriptor in lease.descriptors:
            os.close(descriptor)
        lease.close()
        return pid

    @staticmethod
    def ended(group: int) -> None:
        """Kill a victim and all processes it has forked, and reap it."""
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(group, 0)

    def kill(self, places: list[Place], dice: random.Random, count: int) -> int:
        """Kill `count` producers, each at any point of its frame; some are stopped before."""
        for _ in range(count):
            pid = self.forked("victim", self.write, dice.choice(places), dice)
            time.sleep(dice.random() * KILLED_S_MAX)
            if dice.random() < 0.05:
                os.killpg(pid, signal.SIGSTOP)
                time.sleep(dice.random() * STOPPED_S_MAX)
                if dice.random() < 0.5:
                    os.killpg(pid, signal.SIGCONT)
                    time.sleep(dice.random() * KILLED_S_MAX)
            self.ended(pid)
        return count

    def hoarded(self, places: list[Place], dice: random.Random, count: int) -> int:
        """Run one producer that takes no acknowledgements."""
        pid = self.forked("hoarder", self.hoard, dice.choice(places), dice)
        time.sleep(0.2 + dice.random() * STOPPED_S_MAX)
        self.ended(pid)
        return 1

    def shared(self, places: list[Place], dice: random.Random, count: int) -> int:
        """Run two producers that overwrite each other."""
        pid = self.forked(SHARER, self.share, dice.choice(places), dice)
        time.sleep(0.02 + dice.random() * 0.05)
        self.ended(pid)
        return 2

    def stale(self, places: list[Place], dice: random.Random, count: int) -> int:
        """Run `count` producers that keep writing when their worker is killed, which is due now."""
        pids = [self.forked("stale", self.outlive, dice.choice(places), dice) for _ in range(count)]
        time.sleep(dice.random() * 0.02)
        tell("done", "ready", 0)
        deadline = time.monotonic() + BACK_S_MAX
        for pid in pids:
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() > deadline:
                    tell("fault", "F24: a producer's lease outlived its worker")
                    break
                time.sleep(0.001)
            self.ended(pid)
        return count

    def scribble(self, places: list[Place], dice: random.Random, count: int) -> int:
        """Write `count` frames by the C program, in as many rings as it takes."""
        left = count
        while left > 0:
            place = dice.choice(places)
            lease = attach(place)
            handed = [*lease.descriptors, lease.socket.fileno()]
            seed = dice.randrange(1 << 60)
            try:
                came = subprocess.run(
                    [self.saboteur, *map(str, handed), str(seed), str(left), place.topic_id,
                     self.templates[place.node]],
                    pass_fds=handed, capture_output=True, text=True, timeout=SABOTEUR_S_MAX,
                )  # fmt: skip
            finally:
                for descriptor in lease.descriptors:
                    os.close(descriptor)
                lease.close()
            if came.returncode:
                tell("fault", f"F24: the saboteur of seed {seed}: {came.returncode} {came.stdout}")
                break
            left -= max(1, int(came.stdout.split()[0]))
        return count - left

    ACTS = {"kill": kill, "hoard": hoarded, "share": shared, "stale": stale, "scribble": scribble}

    def serve(self) -> None:
        for line in sys.stdin:
            said = json.loads(line)
            places = [Place(*place) for place in said["places"]]
            done = self.ACTS[said["act"]](self, places, random.Random(said["seed"]), said["count"])
            tell("done", said["act"], done)


def main(ledger: str, saboteur: str, *templates: str) -> None:
    named = (each.split("=", 1) for each in templates)
    Victims(Ledger(ledger), saboteur, {int(node): path for node, path in named}).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
