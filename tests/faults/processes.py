"""Processes of a broker: their ids, and the faults injected into them.

Node processes are the launcher's children.  Their ids are read from the status file, and a pid is
used only while it is a child of the launcher: a pid in a file may be any process's.
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

from kafkalite.process.status.ready import STATUS_FILE
from kafkalite.testing import Broker
from tests.faults.raw_connection import Address

SUPERVISOR = 0
LOOK_S = 0.002
GONE_S_MAX = 10.0
PORTS = 60
"""For all nodes, including those added later: a node id is never reused."""


class Processes:
    """The processes of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.alone = self.pids() == {SUPERVISOR: broker.pid}

    def pids(self) -> dict[int, int]:
        """Return node id → pid of the running nodes."""
        launcher = self.broker.pid
        return {
            node["id"]: node["pid"]
            for node in self.status()
            if node["pid"] == launcher or parent_of(node["pid"]) == launcher
        }

    def status(self) -> list[dict[str, object]]:
        """Return the nodes of the launcher's status file; none while it does not exist."""
        try:
            return json.loads((self.broker.data / STATUS_FILE).read_text())["nodes"]
        except (OSError, ValueError):
            return []

    @property
    def workers(self) -> list[int]:
        """The nodes that lead partitions."""
        return [SUPERVISOR] if self.alone else sorted(self.pids().keys() - {SUPERVISOR})

    def addresses(self) -> list[Address]:
        """Return the nodes' addresses in the order of their ids."""
        nodes = sorted(self.broker.ready["nodes"], key=lambda node: node["id"])
        return [(node["host"], node["port"]) for node in nodes]

    # Faults.  Each method returns the time.

    def kill(self, node: int) -> float:
        """Send SIGKILL to a node's process; with a single process that is also the launcher."""
        pid = self.pids().get(node)
        if pid is None:
            return time.monotonic()
        return self.signal(pid, signal.SIGKILL)

    def kill_launcher(self) -> float:
        """Send SIGKILL to the launcher and wait until its children have ended themselves."""
        children = children_of(self.broker.pid)
        at = time.monotonic()
        self.broker.kill()
        until(lambda: not any(map(lives, children)), GONE_S_MAX, "a child outlives the launcher")
        return at

    def kill_all(self, dice: random.Random) -> float:
        """Send SIGKILL to every process, as nearly at once as possible, in random order."""
        family = [self.broker.pid, *children_of(self.broker.pid)]
        dice.shuffle(family)
        at = time.monotonic()
        for pid in family:
            self.signal(pid, signal.SIGKILL)
        self.broker.kill()
        until(lambda: not any(map(lives, family)), GONE_S_MAX, "a killed process lives on")
        return at

    def start(self) -> None:
        """Restart the broker with the same data and ports."""
        self.broker.start()

    @staticmethod
    def signal(pid: int, number: signal.Signals) -> float:
        """Send a signal to a process, if it still exists; return the time."""
        at = time.monotonic()
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        return at


def free_address() -> str:
    """Return an address whose port, and those after it for further nodes, the kernel never assigns.

    An ephemeral port may be in use by another process when a killed broker binds it again; clients
    that try to connect to it meanwhile may even connect to themselves.
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
    """Wait for a condition and return the seconds; raise TimeoutError after `seconds_max`."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > seconds_max:
            raise TimeoutError(f"{otherwise} after {seconds_max} s")
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def exists(pid: int) -> bool:
    """Return True if the process exists, including one that has ended and was not reaped."""
    return Path(f"/proc/{pid}").exists()


def lives(pid: int) -> bool:
    """Return True if the process has not ended; orphans may be reaped by init at any time."""
    return parent_of(pid) is not None


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone, or has ended and was not reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])


def children_of(pid: int) -> list[int]:
    """Return the children of a process, including ended ones that were not reaped."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split()]
