"""Log: the cost of append, read and recovery, against the system calls they need.

append    One pwritev of a 16 KiB batch is the minimum.  Estimate: one pass of CRC (1 us), a header
          read, a header written, a look-up of the producer, an index entry: about forty steps of
          Python at 50 to 100 ns.  Above 6 us beside the write, the broker exceeds its budget of
          15 us for a Produce.
read      A slice is a search in the index and a scan to the batch: at most twenty cached preads.
          Above 10 us it would show in a fetch of many partitions.
recovery  Every byte above the recovery point passes the CRC once: memory speed for large batches,
          and a few tens of ns per header for tiny ones.  A gigabyte must take seconds, whatever
          its batch sizes.

Times are CPU times of the thread, kernel included, so that other load on the machine counts less.

    python -m benchmarks.bench_log
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkalite.clock import SystemClock
from kafkalite.config.settings import Settings
from kafkalite.records.batch import Record, build
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition

BATCH_SIZE = 16 << 10
REPEATS = 7


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a directory in memory where possible: the speed of the disk is not measured."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def opened(directory: Path) -> Log:
    directory.mkdir(exist_ok=True)
    config = LogConfig.of(Settings.broker({"durability": "os"}).for_topic())
    environment = LogEnvironment.of(directory, SystemClock(), DISK)
    return Log.open(directory, TopicIdPartition("t", 0, bytes(16)), config, environment)


def batch_of(size: int, sequence: int = -1) -> memoryview:
    how = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    record = Record(timestamp=SystemClock().wall_ms(), value=os.urandom(max(0, size - 75)))
    return memoryview(build([record], **(how if sequence >= 0 else {})))


def append_us(directory: Path, count: int, idempotent: bool) -> tuple[float, float]:
    """Return microseconds of an append and of a bare pwritev of the same bytes: the best rounds."""
    best = [float("inf"), float("inf")]
    for repeat in range(REPEATS):
        log = opened(directory / f"log-{repeat}")
        # Few enough to stay in the processor cache: memory speed is not measured.
        batches = [batch_of(BATCH_SIZE, i if idempotent else -1) for i in range(20)]
        raw = os.open(directory / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        spent = [0.0, 0.0]
        for round_ in range(count // len(batches)):
            if idempotent:
                log.producers.clear()
            began = time.thread_time()
            for batch in batches:
                log.append(batch, 0)
            spent[0] += time.thread_time() - began
            position = round_ * len(batches) * BATCH_SIZE
            began = time.thread_time()
            for batch in batches:
                position += os.pwritev(raw, (batch[:61], batch[61:]), position)
            spent[1] += time.thread_time() - began
        appended = count // len(batches) * len(batches)
        best = [min(known, new / appended * 1e6) for known, new in zip(best, spent, strict=True)]
        log.release()
        os.close(raw)
        shutil.rmtree(directory / f"log-{repeat}")
    return best[0], best[1]


def read_us(directory: Path, count: int) -> dict[str, float]:
    """Return microseconds of a read at the tail and anywhere, in a log of small batches."""
    log = opened(directory / "read")
    batch = batch_of(200)
    for _ in range(count):
        log.append(batch, 0)
    log.write_index_page()
    end = log.end_offset

    def best(offsets: list[int]) -> float:
        return best_of(lambda: [read(log, offset, 1 << 20, end) for offset in offsets]) / 1000

    steps = range(1000)
    return {
        "read at the tail": best([end - 1 - step % min(end, 10) for step in steps]),
        "read anywhere": best([step * 7919 % end for step in steps]),
    }


def best_of(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        began = time.thread_time()
        run()
        best = min(best, time.thread_time() - began)
    return best * 1e6


def recovery(directory: Path, size: int, batch_size: int, idempotent: bool) -> tuple[float, float]:
    """Return (GB/s, batches/s) of opening a log after a crash, its pages in memory."""
    log = opened(directory / "recover")
    count = size // batch_size
    for sequence in range(count):
        batch = batch_of(batch_size, sequence if idempotent else -1)
        log.append(batch, 0)
    written = log.size
    log.release()
    shutil.rmtree(directory / "again", ignore_errors=True)
    best = float("inf")
    for _ in range(3):
        shutil.copytree(directory / "recover", directory / "again")
        began = time.thread_time()
        again = opened(directory / "again")
        best = min(best, time.thread_time() - began)
        assert again.end_offset == count
        again.release()
        shutil.rmtree(directory / "again")
    shutil.rmtree(directory / "recover")
    return written / best / 1e9, count / best


def test_tiny() -> None:  # every benchmark is also a test, so that it does not break unnoticed
    with workplace() as directory:
        append, write = append_us(directory, 40, idempotent=True)
        assert append > write > 0
        assert min(read_us(directory, 200).values()) > 0
        assert min(recovery(directory, 1 << 16, 200, idempotent=True)) > 0


@pytest.mark.bench
def test_append_is_within_its_budget() -> None:
    with workplace() as directory:
        append, write = append_us(directory, 5000, idempotent=False)
        assert append - write < 6


def main() -> None:
    with workplace() as directory:
        for idempotent in (False, True):
            append, write = append_us(directory, 5000, idempotent)
            name = "append, idempotent" if idempotent else "append"
            print(
                f"{name:28} {append:8.1f} us   pwritev {write:.1f} us   beside it"
                f" {append - write:.1f} us   ratio {append / write:.2f}"
            )
        for name, us in read_us(directory, 200_000).items():
            print(f"{name:28} {us:8.1f} us")
        for batch_size, idempotent in ((BATCH_SIZE, False), (150, False), (150, True)):
            speed, count = recovery(directory, 128 << 20, batch_size, idempotent)
            name = f"recovery, {batch_size} B{', idempotent' if idempotent else ''}"
            print(f"{name:28} {speed:8.2f} GB/s {count / 1e6:.2f} M batches/s")


if __name__ == "__main__":
    main()
