"""Log.append against a plain pwrite of the same bytes, in one process, without a socket.

Estimate: validating 16 KiB is 1 us of checksum, assigning its offset a copy of 61 bytes, and the
rest is Python calls: about 5 us in all, beside the kernel's 4 us to copy 16 KiB into the page
cache.  At 1 MB only the checksum is visible.
"""

from __future__ import annotations

import os
import time

from benchmarks.frames import batch_of
from benchmarks.harness import Bench
from benchmarks.report import OURS, Figure
from kafkalite.clock import SystemClock
from kafkalite.config.settings import Settings
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition

SIZES = {"16 KiB": 16 << 10, "1 MB": 1_000_000}
BYTES_A_REPEAT = 300_000_000


def run(bench: Bench) -> None:
    for name, size in SIZES.items():
        batch = batch_of(size)
        count = bench.scale(BYTES_A_REPEAT // size, at_least=5)
        values: dict[str, list[float]] = {OURS: [], "pwrite": []}
        for repeat in range(bench.scale.repeats):
            values[OURS].append(append_us(bench, batch, count, f"{size}-{repeat}"))
            values["pwrite"].append(pwrite_us(bench, batch, count))
        bench.figures.append(Figure(f"append of {name}: a batch", "us", values))


def append_us(bench: Bench, batch: bytes, count: int, name: str) -> float:
    config = LogConfig.of(Settings.broker({"durability": "os"}).for_topic({}))
    directory = bench.scratch / f"{name}-0"
    directory.mkdir()
    environment = LogEnvironment.of(directory, SystemClock(), DISK)
    log = Log.open(directory, TopicIdPartition(name, 0, bytes(16)), config, environment)
    begun = time.perf_counter()
    for _ in range(count):
        log.append(batch, 0)
    log.write_index_page()
    took = time.perf_counter() - begun
    log.release()
    for file in directory.iterdir():
        file.unlink()
    return took * 1e6 / count


def pwrite_us(bench: Bench, batch: bytes, count: int) -> float:
    path = bench.scratch / "plain"
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    begun = time.perf_counter()
    for place in range(count):
        os.pwrite(file, batch, place * len(batch))
    took = time.perf_counter() - begun
    os.close(file)
    path.unlink()
    return took * 1e6 / count
