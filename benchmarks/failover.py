"""How long a killed worker's partitions are away: from SIGKILL to the first accepted produce.

The sketch: the launcher learns of the death by a pidfd at once and forks a process that has all
modules loaded (3 ms); that one reads the metadata log and opens its partitions, each checked from
its recovery point on.  The listener never closed, so a client that comes back waits in its
backlog: what it sees is those milliseconds and nothing of a time-out.
"""

from __future__ import annotations

import os
import signal
import time

from benchmarks.frames import PRODUCE_VERSION, batch_of, produce_frame
from benchmarks.harness import Bench, topic
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import Kafkalite
from benchmarks.wire import Wire, frame, leaders
from kafkalite.protocol.schemas.produce import PRODUCE

WORKERS = 2
PARTITIONS = 8
KILLS = 20
BATCH = 1_000_000
"""Between two kills each partition takes some such batches, so that there is a tail to check."""
AGAIN_S_MAX = 30.0
LOOK_S = 0.001


def run(bench: Bench) -> None:
    taken = []
    with (
        Kafkalite(bench.scratch / "killed", workers=WORKERS) as broker,
        topic(broker, PARTITIONS) as name,
    ):
        load = produce_frame(name, batch_of(BATCH), partitions=PARTITIONS)
        for _ in range(bench.scale(KILLS)):
            where = leaders(broker, name)
            load.run(broker, bench.scratch, bench.scale(4 * PARTITIONS), PARTITIONS, where)
            killed = process_at(broker, where[0])
            taken.append(away_s(killed, name, where[0]))
            await_process(broker, where[0], killed)
    budget = Budget(at_most=0.3, of_value=True)
    bench.figures += [
        Figure(f"a killed worker serves again: median of {len(taken)}", "s", {OURS: taken}, budget),
        Figure(f"a killed worker serves again: worst of {len(taken)}", "s",
               {OURS: [max(taken)]}, budget),
    ]  # fmt: skip


def away_s(pid: int, topic: str, address: str) -> float:
    """Kill the process that leads partition 0 at this address, and produce until one accepts."""
    entry = {"index": 0, "records": batch_of(200)}
    body: dict[str, object] = {
        "acks": 1, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": [entry]}],
    }  # fmt: skip
    request = frame(PRODUCE, PRODUCE_VERSION, body)
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while not is_accepted(address, request):
        if time.monotonic() - begun > AGAIN_S_MAX:
            raise RuntimeError(f"the node at {address} was killed and does not serve again")
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def is_accepted(address: str, request: bytes) -> bool:
    try:
        with Wire(address) as wire:
            (answered,) = wire.send(PRODUCE, PRODUCE_VERSION, request)["responses"]
    except OSError:
        return False
    return bool(answered["partition_responses"][0]["error_code"] == 0)


def await_process(broker: Kafkalite, address: str, killed: int) -> None:
    """Wait until the broker says of this node that another process is it."""
    deadline = time.monotonic() + AGAIN_S_MAX
    while process_at(broker, address) in (0, killed):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker names nobody in the place of process {killed}")
        time.sleep(LOOK_S)


def process_at(broker: Kafkalite, address: str) -> int:
    """The process of the node that listens there; 0 while it has none that answers."""
    pids = {f"{node['host']}:{node['port']}": node["pid"] for node in broker.nodes}
    return pids.get(address, 0)
