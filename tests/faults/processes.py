"""A broker's processes: which there are, and what is done to them.

Node processes are the launcher's children.  Which node is which is read from the status file, and
believed of a pid only while it is a child of the launcher: a pid in a file may be any process's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from kafkalite.process.ready import STATUS_FILE
from kafkalite.testing import Broker
from tests.faults.asking import Address

SUPERVISOR = 0
LOOK_S = 0.002
GONE_S_MAX = 10.0
PORTS = 60
"""For the nodes there are, and those that are added: a number is never given twice."""


class Processes:
    """One broker's."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.alone = self.pids() == {SUPERVISOR: broker.pid}

    def pids(self) -> dict[int, int]:
        """Node id → pid, of those that live."""
        launcher = self.broker.pid
        return {
            node["id"]: node["pid"]
            for node in self.status()
            if node["pid"] == launcher or parent_of(node["pid"]) == launcher
        }

    def status(self) -> list[dict[str, object]]:
        """The nodes as the launcher says they are; none while the file is not there."""
        try:
            return json.loads((self.broker.data / STATUS_FILE).read_text())["nodes"]
        except (OSError, ValueError):
            return []

    @property
    def workers(self) -> list[int]:
        """The nodes that lead partitions."""
        return [SUPERVISOR] if self.alone else sorted(self.pids().keys() - {SUPERVISOR})

    def addresses(self) -> list[Address]:
        """Where the nodes listen, in the order of their ids."""
        nodes = sorted(self.broker.ready["nodes"], key=lambda node: node["id"])
        return [(node["host"], node["port"]) for node in nodes]

    # What is done to them.  Each answers the moment.

    def kill(self, node: int) -> float:
        """SIGKILL to a node's process.  Alone, it takes the launcher with it, being the same."""
        pid = self.pids().get(node)
        if pid is None:
            return time.monotonic()
        return self.signal(pid, signal.SIGKILL)

    def kill_launcher(self) -> float:
        """SIGKILL to the launcher; its children have to follow by themselves."""
        children = children_of(self.broker.pid)
        at = time.monotonic()
        self.broker.kill()
        until(lambda: not any(map(lives, children)), GONE_S_MAX, "a child outlives the launcher")
        return at

    def kill_all(self, dice: random.Random) -> float:
        """SIGKILL to every process, as nearly at once as one can, in any order."""
        family = [self.broker.pid, *children_of(self.broker.pid)]
        dice.shuffle(family)
        at = time.monotonic()
        for pid in family:
            self.signal(pid, signal.SIGKILL)
        self.broker.kill()
        until(lambda: not any(map(lives, family)), GONE_S_MAX, "a killed process lives on")
        return at

    def start(self) -> None:
        """Start the broker again, on the same data and ports."""
        self.broker.start()

    @staticmethod
    def signal(pid: int, number: signal.Signals) -> float:
        """Send it, if there still is somebody to send it to; the moment."""
        at = time.monotonic()
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        return at


def free_address() -> str:
    """A place to listen at, free for this node and those after it, and left alone by the kernel.

    A port that the kernel gives to whoever wants any may be another's by the time a broker that
    was killed wants it back; clients that try to reach it meanwhile may even reach themselves.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, first_given - PORTS)
        if all(is_free(each) for each in range(port, port + PORTS)):
            return f"127.0.0.1:{port}"


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def until(holds: Callable[[], bool], seconds_max: float, otherwise: str) -> float:
    """Wait for a condition; how long it took.  When it does not come, TimeoutError says so."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > seconds_max:
            raise TimeoutError(f"{otherwise} after {seconds_max} s")
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def exists(pid: int) -> bool:
    """Whether the process is there; one that ended and was not reaped is."""
    return Path(f"/proc/{pid}").exists()


def lives(pid: int) -> bool:
    """Whether it runs or could; orphans are reaped by init, whenever that may be."""
    return parent_of(pid) is not None


def parent_of(pid: int) -> int | None:
    """The process that made it; None when it is gone, or has ended and waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])


def children_of(pid: int) -> list[int]:
    """The processes it made, those included that ended and were not reaped."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split()]
