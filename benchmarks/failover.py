"""Failover: the time from SIGKILL of a worker to the first accepted produce to its partitions.

Estimate: the launcher gets the death from a pidfd at once and forks a process that has all
modules loaded (3 ms); it reads the metadata log and opens its partitions, each checked from its
recovery point on, 0.1 ms/MB.  The listener never closed, so a client that reconnects waits in its
backlog: it sees those milliseconds and no timeout.  The curve over the bytes written since the
last recovery points therefore shows how long a busy worker is unavailable.

With many partitions their number counts, not their size: what a checkpoint covers is not read
again.  Each log costs 0.2 to 0.3 ms of opening files and finding its end, on two threads that
share one interpreter.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.frames import PRODUCE_VERSION, batch_of, count_in, produce_frame
from benchmarks.harness import Bench, topic
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import Kafkalite
from benchmarks.wire import Wire, frame, leaders
from kafkalite.errors import raise_for
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.storage.files import checkpoint, layout

WORKERS = 2
PARTITIONS = 8
KILLS = 20
KILLS_OF_A_SIZE = 3
BATCH = 1_000_000
BATCHES_BETWEEN = 32
"""Batches written between two kills, so that there is a tail to check."""
TAILS_MB = (100, 300, 1000)
MANY = {2_500: (2, BATCH, 1.0), 10_000: (1, BATCH // 10, 4.0)}
"""Numbers of partitions: the batches in each, their size, and the bound in seconds until all are
served again."""
REQUEST_BYTES = 50_000_000
CHECKPOINT_S_MAX = 300.0
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
            # A new broker for each kill: what one has checked it need not check again.
            place = bench.scratch / f"killed-{size_mb}-{repeat}"
            with Kafkalite(place, workers=1) as broker:
                batches = bench.scale(size_mb * 1_000_000 // BATCH)
                taken += killed_again_and_again(bench, broker, 1, batches)
        name = f"a killed worker with a tail of {size_mb:,} MB: serves again after"
        bench.figures.append(Figure(name, "s", {OURS: taken}, BUDGET, at=size_mb))
    for count, (batches, size, s_max) in MANY.items():
        taken = []
        for repeat in range(bench.scale(KILLS_OF_A_SIZE)):
            place = bench.scratch / f"killed-many-{count}-{repeat}"
            taken.append(many_away_s(place, bench.scale(count, PARTITIONS), batches, size))
        held = f"{batches * size / 1e6:.1f} MB"
        name = f"a killed worker with {count:,} partitions of {held}: serves again after"
        bench.figures.append(
            Figure(name, "s", {OURS: taken}, Budget(at_most=s_max, of_value=True), at=count)
        )


def many_away_s(place: Path, partitions: int, batches: int, size: int) -> float:
    """Return how long the last of these partitions is unavailable after a complete checkpoint.

    The files are read before the kill: a killed process leaves them in the page cache, but some
    virtual machines return idle pages to their host within seconds.
    """
    with (
        Kafkalite(place, workers=1, durability="fsync") as broker,
        topic(broker, partitions, {"file.delete.delay.ms": "0"}) as name,
    ):
        where = leaders(broker, name)
        batch = batch_of(size)
        for _ in range(batches):
            fill(name, where, batch)
        await_checkpoint(broker, name, partitions, batches * count_in(batch))
        for path in broker.data.rglob("*.*"):
            path.read_bytes()
        killed = process_at(broker, where[-1])
        taken = away_s(killed, name, where[-1], partitions - 1)
        await_process(broker, where[-1], killed)
    shutil.rmtree(place)
    return taken


def fill(topic: str, where: Sequence[str], batch: bytes) -> None:
    """Write a batch into every partition."""
    led: defaultdict[str, list[int]] = defaultdict(list)
    for partition, address in enumerate(where):
        led[address].append(partition)
    at_once = max(1, REQUEST_BYTES // len(batch))
    for address, partitions in led.items():
        with Wire(address) as wire:
            for first in range(0, len(partitions), at_once):
                body = produce_body(topic, batch, *partitions[first : first + at_once])
                answered = wire.ask(PRODUCE, PRODUCE_VERSION, body)["responses"][0]
                for each in answered["partition_responses"]:
                    raise_for(each["error_code"])


def await_checkpoint(broker: Kafkalite, topic: str, partitions: int, end_offset: int) -> None:
    """Wait until the recovery checkpoints say that all partitions are durable up to their end."""
    deadline = time.monotonic() + CHECKPOINT_S_MAX
    names = {layout.directory_name(topic, partition) for partition in range(partitions)}
    while time.monotonic() < deadline:
        durable = 0
        for directory in layout.node_directories(broker.data).values():
            points = checkpoint.read(directory / layout.RECOVERY_CHECKPOINT) or {}
            durable += sum(points[name][0] == end_offset for name in names & points.keys())
        if durable == partitions:
            return
        time.sleep(0.1)
    raise RuntimeError(f"no checkpoint knows of all {partitions} partitions")


def killed_again_and_again(
    bench: Bench, broker: Kafkalite, kills: int, batches: int
) -> list[float]:
    """Return how long partition 0 was unavailable after each kill; `batches` precede each."""
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


def produce_body(topic: str, batch: bytes, *partitions: int) -> dict[str, object]:
    """Return a Produce request that writes this batch into each of these partitions."""
    entries = [{"index": partition, "records": batch} for partition in partitions]
    return {
        "acks": 1, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": entries}],
    }  # fmt: skip


def away_s(pid: int, topic: str, address: str, partition: int = 0) -> float:
    """Kill the process that leads a partition at this address, and produce until it accepts."""
    request = frame(PRODUCE, PRODUCE_VERSION, produce_body(topic, batch_of(200), partition))
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
    """Wait until the broker reports a new process for this node."""
    deadline = time.monotonic() + AGAIN_S_MAX
    while process_at(broker, address) in (0, killed):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker names nobody in the place of process {killed}")
        time.sleep(LOOK_S)


def process_at(broker: Kafkalite, address: str) -> int:
    """Return the process id of the node at this address; 0 while it has none that responds."""
    pids = {f"{node['host']}:{node['port']}": node["pid"] for node in broker.nodes}
    return pids.get(address, 0)
