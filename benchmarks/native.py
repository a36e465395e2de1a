"""The native client beside confluent-kafka, plain system calls, and other means of messaging.

Each side of a figure is a Python program of its own (programs.py), run in turn; the slower sides
get fewer records, because only rates are compared.

Estimate: a record of 100 bytes is about 107 in a batch.  Written from a column it costs 12 ns with
its checksum, and 30 to 50 ns to get into the log: one copy into the ring, one out of it, one into
the page cache, which is all that plain `write` does.  Read from the page cache into a column it
costs one copy and a checksum more, 20 ns.  A Python object for each record costs 50 to 100 ns on
either side, and that is the difference between rows and columns.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.harness import Bench, cpu_s, run_client, topic
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import ROOT, STOP_S_MAX

PROGRAM_S_MAX = 120
CONFIGS = {"file.delete.delay.ms": "0"}
TCP = "over TCP"
CONFLUENT = "confluent-kafka"
OVER_TCP = {"native": "off"}
PRODUCE, PRODUCE_BATCH = f"{CONFLUENT}'s produce()", f"{CONFLUENT}'s produce_batch()"
CONSUME, POLL = f"{CONFLUENT}'s consume(10000)", f"{CONFLUENT}'s poll()"

SENT_RECORDS = 1_000_000
"""As columns: free memory suffices for their log when it is written (harness.py)."""
ARROW_RECORDS = 3_000_000
TABLE_ROWS = [100, 1_000, 10_000, 100_000, 1_000_000]
"""Rows of the tables, which are sent one after the other."""
TABLE_RATIO_MIN = {10_000: 0.5, 100_000: 0.5, 1_000_000: 0.5}
ROW_RECORDS = 1_000_000
TRIPS = 5_000
IDLE_PRODUCERS = 16
IDLE_S = 3
IDLE_REPEATS = SHARED_REPEATS = TABLE_REPEATS = 3
SHARED_ROWS, SHARED_COLUMNS = 200_000, 2_000_000
REDIS_S_MAX = 10.0

Rate = Callable[[], float]


def run(bench: Bench) -> None:
    sending(bench)
    sending_tables(bench)
    receiving(bench)
    round_trips(bench)
    idle_rings(bench)
    between_programs(bench)


def program(module: str, mode: str, **options: object) -> dict[str, float]:
    """Run a program to its end and return the figures it prints; raise if it fails."""
    with started(module, mode, **options) as output:
        told: dict[str, float] = json.loads(output.read())
        return told


@contextmanager
def started(module: str, mode: str, **options: object) -> Iterator[IO[str]]:
    """Start a program and yield its output; wait for it, and kill it after a deadline."""
    command = [sys.executable, "-m", f"benchmarks.{module}", mode, json.dumps(options)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaint = ""
    with process:
        try:
            yield process.stdout
            process.wait(PROGRAM_S_MAX)
        finally:
            if process.poll() is None:
                process.kill()
            complaint = process.stderr.read()
    if process.returncode != 0:
        raise RuntimeError(f"{module} {mode}: {complaint.strip()}")


def rate(told: Mapping[str, float]) -> float:
    return told["records"] / told["seconds"]


def in_turn(
    bench: Bench, sides: Mapping[str, Rate], repeats_max: int = 5
) -> dict[str, list[float]]:
    """Measure the sides in turn, A B A B, as many times as the scale says."""
    values: dict[str, list[float]] = {who: [] for who in sides}
    for _ in range(min(bench.scale.repeats, repeats_max)):
        for who, side in sides.items():
            values[who].append(side())
    return values


def against(
    bench: Bench,
    name: str,
    values: Mapping[str, list[float]],
    ours: str,
    budgets: Mapping[str, Budget | None],
) -> None:
    """Add a figure of `ours` beside each other side; beside itself, of its own value."""
    for other, budget in budgets.items():
        both = {OURS: values[ours]}
        if other != ours:
            both[other] = values[other]
        bench.figures.append(Figure(name, "records/s", both, budget))


# Sending.


def sending(bench: Bench) -> None:
    bootstrap = bench.ours.bootstrap
    columns = bench.scale(SENT_RECORDS, at_least=5_000)
    rows = bench.scale(ROW_RECORDS, at_least=1_000)

    def sent(mode: str, records: int, **options: object) -> Rate:
        def side() -> float:
            with topic(bench.ours, configs=CONFIGS) as name:
                return rate(
                    program(
                        "programs", mode, bootstrap=bootstrap, topic=name, records=records,
                        **options,
                    )
                )  # fmt: skip

        return side

    def written() -> float:
        path = bench.scratch / "written"
        try:
            return rate(program("programs", "write", path=str(path), records=columns))
        finally:
            path.unlink(missing_ok=True)

    values = in_turn(
        bench,
        {
            "send_arrow": sent("send_arrow", columns),
            "write()": written,
            "send": sent("send", rows),
            PRODUCE: sent("produce", rows),
            PRODUCE_BATCH: sent("produce_batch", rows),
            f"send_arrow {TCP}": sent("send_arrow", columns, **OVER_TCP),
            f"send {TCP}": sent("send", rows, **OVER_TCP),
        },
    )
    of_columns = {
        "send_arrow": Budget(at_least=5e6, of_value=True),
        "write()": Budget(at_least=0.5),
        PRODUCE: Budget(at_least=10),
        PRODUCE_BATCH: None,
        f"send_arrow {TCP}": None,
    }
    against(bench, "send_arrow", values, "send_arrow", of_columns)
    of_rows = {PRODUCE: Budget(at_least=1.5), f"send {TCP}": None}
    against(bench, "send", values, "send", of_rows)


def sending_tables(bench: Bench) -> None:
    """Compare tables of each size with plain `write` of their bytes; add the sender's CPU time."""
    records = bench.scale(SENT_RECORDS, at_least=5_000)
    path = bench.scratch / "written"

    def written() -> float:
        try:
            return rate(program("programs", "write", path=str(path), records=records))
        finally:
            path.unlink(missing_ok=True)

    for rows in [rows for rows in TABLE_ROWS if rows <= records]:
        sent, plain, used = [], [], []
        for _ in range(min(bench.scale.repeats, TABLE_REPEATS)):
            with topic(bench.ours, configs=CONFIGS) as made:
                told = program(
                    "programs", "send_tables", bootstrap=bench.ours.bootstrap, topic=made,
                    records=records, rows=rows,
                )  # fmt: skip
            sent.append(rate(told))
            used.append(1e9 * told["cpu_s"] / told["records"])
            plain.append(written())
        least = TABLE_RATIO_MIN.get(rows)
        budget = None if least is None else Budget(at_least=least)
        both = {OURS: sent, "write()": plain}
        name = f"tables of {rows} rows"
        bench.figures.append(Figure(f"{name}: send_arrow", "records/s", both, budget, at=rows))
        cpu = {OURS: used}
        bench.figures.append(Figure(f"{name}: CPU time of send_arrow", "ns/record", cpu, at=rows))


# Receiving.


def receiving(bench: Bench) -> None:
    columns = bench.scale(ARROW_RECORDS, at_least=20_000)
    rows = bench.scale(ROW_RECORDS, at_least=20_000)
    with topic(bench.ours, configs=CONFIGS) as name:
        run_client(bench.ours, "produce", topic=name, records=columns, linger_ms=50)

        def received(mode: str, records: int, **options: object) -> Rate:
            return lambda: rate(
                program(
                    "programs", mode, bootstrap=bench.ours.bootstrap, topic=name,
                    records=records, **options,
                )
            )  # fmt: skip

        values = in_turn(
            bench,
            {
                "batches": received("batches", columns),
                f"batches {TCP}": received("batches", columns, **OVER_TCP),
                "iteration": received("iterate", rows),
                CONSUME: received("consume", rows),
                POLL: received("poll", rows),
            },
        )
    of_batches = {
        "batches": Budget(at_least=10e6, of_value=True),
        CONSUME: Budget(at_least=10),
    }
    against(bench, "batches", values, "batches", of_batches)
    over_tcp = {f"batches {TCP}": Budget(at_least=3e6, of_value=True), CONSUME: None}
    against(bench, f"batches {TCP}", values, f"batches {TCP}", over_tcp)
    against(bench, "iteration", values, "iteration", {POLL: Budget(at_least=1.5)})


# One at a time, and none.


def round_trips(bench: Bench) -> None:
    count = bench.scale(TRIPS, at_least=20)
    lanes: dict[str, Mapping[str, str]] = {OURS: {}, TCP: OVER_TCP}
    values: dict[str, dict[str, list[float]]] = {}
    with topic(bench.ours, configs=CONFIGS) as name:
        for _ in range(bench.scale.repeats):
            for lane, options in lanes.items():
                told = program(
                    "programs", "round_trips", bootstrap=bench.ours.bootstrap, topic=name,
                    count=count, **options,
                )  # fmt: skip
                for key, taken_us in told.items():
                    values.setdefault(key, {}).setdefault(lane, []).append(taken_us)
    for key, at_most in (("p50_us", 60), ("p99_us", 500)):
        budget = Budget(at_most=at_most, of_value=True)
        name = f"ring round trip, acks=1: {key.partition('_')[0]}"
        bench.figures.append(Figure(name, "us", values[key], budget))


def idle_rings(bench: Bench) -> None:
    """Measure the CPU time of idle attached producers: theirs and the broker's."""
    producers = bench.scale.up_to([2, IDLE_PRODUCERS])[-1]
    seconds = IDLE_S * min(1.0, max(bench.scale.factor, 0.05))
    brokers, theirs = [], []
    with topic(bench.ours, configs=CONFIGS) as name:
        for _ in range(min(bench.scale.repeats, IDLE_REPEATS)):
            with started(
                "programs", "idle", bootstrap=bench.ours.bootstrap, topic=name,
                producers=producers, seconds=seconds,
            ) as output:  # fmt: skip
                assert output.readline() == "idle\n"
                before_s, begun_s = sum(cpu_s(bench.ours.pids)), time.monotonic()
                assert output.readline() == "busy\n"
                used_s, taken_s = sum(cpu_s(bench.ours.pids)) - before_s, time.monotonic() - begun_s
                told = json.loads(output.read())
            brokers.append(100 * used_s / taken_s)
            theirs.append(100 * told["used_s"] / told["seconds"])
    budget = Budget(at_most=1, of_value=True)
    for whose, values in (("the broker's CPU", brokers), ("the producers' CPU", theirs)):
        what = f"{producers} idle rings: {whose}"
        bench.figures.append(Figure(what, "% of a core", {OURS: values}, budget))


# Between programs on one host.


def between_programs(bench: Bench) -> None:
    rows = bench.scale(SHARED_ROWS, at_least=1_000)
    columns = bench.scale(SHARED_COLUMNS, at_least=5_000)
    address = f"ipc://{bench.scratch}/pushed"

    def shared(way: str, records: int, **options: object) -> Rate:
        return lambda: rate(program("sharing", way, records=records, **options))

    def through_us(way: str, records: int) -> Rate:
        def side() -> float:
            with topic(bench.ours, configs=CONFIGS) as name:
                return shared(way, records, bootstrap=bench.ours.bootstrap, topic=name)()

        return side

    with redis_server(bench.scratch) as path:
        redis = {"Redis Streams": shared("Redis Streams", rows, path=str(path))} if path else {}
        by_rows = in_turn(
            bench,
            {
                OURS: through_us("kafkalite, rows", rows),
                CONFLUENT: through_us("confluent-kafka", rows),
                "multiprocessing.Queue": shared("multiprocessing.Queue", rows),
                "pyzmq": shared("pyzmq", rows, address=address),
                **redis,
            },
            SHARED_REPEATS,
        )
    by_columns = in_turn(
        bench,
        {
            OURS: through_us("kafkalite, Arrow", columns),
            CONFLUENT: through_us("confluent-kafka, many", columns),
            "multiprocessing.Queue": shared("multiprocessing.Queue, many", columns),
            "pyzmq": shared("pyzmq, many", columns, address=address),
        },
        SHARED_REPEATS,
    )
    # Redis takes a thousand per call in either case: its one figure is beside both.
    by_columns |= {who: by_rows[who] for who in redis}
    what = "from program to program"
    bench.figures.append(Figure(f"{what}, row by row", "records/s", by_rows))
    bench.figures.append(Figure(f"{what}, many at a time", "records/s", by_columns))


@contextmanager
def redis_server(scratch: Path) -> Iterator[Path | None]:
    """Start Debian's redis-server on a Unix socket; yield None, with a message, if it is missing.

    It appends to its file and leaves the disk to the kernel, as a broker in `os` mode does.
    """
    program_path = shutil.which("redis-server")
    if program_path is None:
        print("without Redis Streams: redis-server is not installed", file=sys.stderr)
        yield None
        return
    import redis

    path = scratch / "redis.sock"
    command = [program_path, "--port", "0", "--unixsocket", str(path), "--dir", str(scratch)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + REDIS_S_MAX
        with redis.Redis(unix_socket_path=str(path)) as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("redis-server does not answer")
                time.sleep(0.01)
        yield path
    finally:
        process.terminate()
        process.wait(STOP_S_MAX)
