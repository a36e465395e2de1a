"""How long a killed worker's partitions are away: from SIGKILL to the first accepted produce.

The sketch: the launcher learns of the death by a pidfd at once and forks a process that has all
modules loaded (3 ms); that one reads the metadata log and opens its partitions, each checked from
its recovery point on, 0.1 ms/MB.  The listener never closed, so a client that comes back waits in
its backlog: what it sees is those milliseconds and nothing of a time-out.  So the curve over what
has come since the last recovery points shows how long a busy worker is away.
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
KILLS_OF_A_SIZE = 3
BATCH = 1_000_000
BATCHES_BETWEEN = 32
"""Batches that come between two kills, so that there is a tail to check."""
TAILS_MB = (100, 300, 1000)
AGAIN_S_MAX = 30.0
LOOK_S = 0.001
BUDGET = Budget(at_most=0.3, of_value=True)


def run(bench: Bench) -> None:
    kills = bench.scale(KILLS)
    with Kafkalite(bench.scratch / "killed", workers=WORKERS) as broker:
        taken = killed_again_and_again(bench, broker, kills, bench.scale(BATCHES_BETWEEN))
    bench.figures += [
        Figure(f"a killed worker serves again: median of {kills}", "s", {OURS: taken}, BUDGET),
        Figure(
            f"a killed worker serves again: worst of {kills}", "s", {OURS: [max(taken)]}, BUDGET
        ),
    ]
    for size_mb in TAILS_MB:
        taken = []
        for repeat in range(bench.scale(KILLS_OF_A_SIZE)):
            # A broker of its own for each kill: what one has checked it need not check again.
            place = bench.scratch / f"killed-{size_mb}-{repeat}"
            with Kafkalite(place, workers=1) as broker:
                batches = bench.scale(size_mb * 1_000_000 // BATCH)
                taken += killed_again_and_again(bench, broker, 1, batches)
        name = f"a killed worker with a tail of {size_mb:,} MB: serves again after"
        bench.figures.append(Figure(name, "s", {OURS: taken}, BUDGET, at=size_mb))


def killed_again_and_again(
    bench: Bench, broker: Kafkalite, kills: int, batches: int
) -> list[float]:
    """How long partition 0 was away each time, with so many batches before each kill."""
    taken = []
    with topic(broker, PARTITIONS, {"file.delete.delay.ms": "0"}) as name:
        load = produce_frame(name, batch_of(BATCH), partitions=PARTITIONS)
        for _ in range(kills):
            where = leaders(broker, name)
            load.run(broker, bench.scratch, batches, PARTITIONS, where)
            killed = process_at(broker, where[0])
            taken.append(away_s(killed, name, where[0]))
            await_process(broker, where[0], killed)
    return taken


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
