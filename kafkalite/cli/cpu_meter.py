"""CPU use during a measurement: by this client, by the broker, by all other processes.

    meter = CpuMeter(pids)              # processes of the broker, if it runs on this machine
    …
    meter.shares()                      # CpuShares(client=0.97, broker=0.4, waited=0.0, others=0.1)

The busiest thread limits a client or a broker.  Its share is the time in which it ran or waited for
a core, read from /proc; on systems other than Linux all shares are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BUSY = 0.8
"""Share of the time from which on a thread limits the throughput."""
MANY = 0.25
"""Share from which on waiting for a core, or other processes, are reported."""
SHORT_S = 0.2
"""Shortest time that can be measured: the kernel counts in hundredths of a second."""
TICKS_S = os.sysconf("SC_CLK_TCK")


class CpuShares(NamedTuple):
    """Shares of the elapsed time, of all cores for `others`; None if unknown."""

    client: float | None
    broker: float | None
    waited: float | None
    """Share of the time in which the client or the broker waited for a core."""
    others: float | None

    @property
    def limit(self) -> str | None:
        """Return the limit of the throughput that follows from the shares, or None."""
        if self.client is None:
            return None
        if (self.waited or 0) >= MANY:
            return "cores"
        client, broker = self.client >= BUSY, (self.broker or 0) >= BUSY
        if client and broker:
            return "both"
        if client or broker:
            return "client" if client else "broker"
        return "waiting" if self.broker is not None else None


class ThreadTimes(NamedTuple):
    """Run time and wait time of a thread so far, in nanoseconds."""

    ran: int
    waited: int


class CpuMeter:
    """Measures the CPU use from its creation on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids
        self.began_s = time.monotonic()
        self.before = {pid: threads(pid) for pid in (os.getpid(), *pids)}
        self.machine = machine_s()

    def shares(self) -> CpuShares:
        """Return the CPU shares since this object was created."""
        elapsed_s = time.monotonic() - self.began_s
        if elapsed_s < SHORT_S:
            return CpuShares(None, None, None, None)
        spent = {pid: since(before, threads(pid)) for pid, before in self.before.items()}
        client = busiest(spent[os.getpid()])
        broker = busiest([each for pid in self.pids for each in spent[pid]])
        machine, others = machine_s(), None
        if machine is not None and self.machine is not None and client is not None:
            ours_s = sum(each.ran for threads in spent.values() for each in threads) / 1e9
            cores = os.cpu_count() or 1
            others = min(1.0, max(0.0, machine - self.machine - ours_s) / (elapsed_s * cores))
        both = [each.waited for each in (client, broker) if each is not None]
        waited = min(1.0, max(both) / 1e9 / elapsed_s) if both else None
        return CpuShares(share(client, elapsed_s), share(broker, elapsed_s), waited, others)


def threads(pid: int) -> dict[str, ThreadTimes]:
    """Return the times of each thread of a process; empty if they cannot be read."""
    found = {}
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):  # it has just ended
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                found[task.name] = ThreadTimes(ran, waited)
    return found


def since(before: Mapping[str, ThreadTimes], now: Mapping[str, ThreadTimes]) -> list[ThreadTimes]:
    """Return the times of threads since an earlier measurement."""
    zero = ThreadTimes(0, 0)
    return [
        ThreadTimes(spent.ran - then.ran, spent.waited - then.waited)
        for name, spent in now.items()
        for then in [before.get(name, zero)]
    ]


def busiest(threads: Sequence[ThreadTimes]) -> ThreadTimes | None:
    """Return the thread that ran or waited for a core longest."""
    return max(threads, key=sum, default=None)


def share(thread: ThreadTimes | None, elapsed_s: float) -> float | None:
    """Return the share of the time in which a thread ran or waited for a core."""
    return min(1.0, sum(thread) / 1e9 / elapsed_s) if thread is not None else None


def machine_s() -> float | None:
    """Return the seconds that all cores together have been busy so far."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / TICKS_S
