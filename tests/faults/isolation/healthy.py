"""The healthy client: small produce and fetch round trips on a topic of its own, in a process."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import NamedTuple

from tests.faults.raw_connection import Address, RawConnection

RESPONSE_S_MAX = 60.0


class RoundTrip(NamedTuple):
    """One record sent and read."""

    at: float
    produce_ms: float
    fetch_ms: float
    late_ms: float
    """Delay with which this process itself was woken before it: the machine's own noise."""


class HealthyPlan(NamedTuple):
    """The partitions to probe, one on each worker."""

    topic: str
    leaders: list[tuple[Address, int]]
    pace_s: float


def probe(plan: HealthyPlan, control: Connection) -> None:
    """Report the connections, probe the workers in turn until a message comes, send the results."""
    lines = [
        (RawConnection(address, RESPONSE_S_MAX), partition) for address, partition in plan.leaders
    ]
    control.send("connected")
    trips: list[RoundTrip] = []
    due = time.monotonic()
    while not control.poll():
        for line, partition in lines:
            due = max(due + plan.pace_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            at = time.monotonic()
            code, offset = line.produce(plan.topic, partition, "healthy")
            sent_at = time.monotonic()
            if code:
                raise OSError(f"Produce to {plan.topic}-{partition} failed: error {code}")
            code, value = line.value_at(plan.topic, partition, offset)
            read_at = time.monotonic()
            if code or value != "healthy":
                raise OSError(f"Fetch of {plan.topic}-{partition} at {offset}: error {code}")
            trips.append(
                RoundTrip(
                    at, (sent_at - at) * 1e3, (read_at - sent_at) * 1e3, max(0.0, at - due) * 1e3
                )
            )
    control.send(trips)
