"""Replication: what three replicas cost, and what they save.

Estimate: each byte is written and checked three times instead of once, on the same cores: the first
touch of a page dominates, so factor 3 has 0.35 to 0.5 of the throughput of factor 1.  With acks=all
a record waits for two hops between processes, 60 to 150 us.  A killed worker is noticed within a
millisecond, and a default librdkafka client asks for metadata again after 100 ms.

Most figures compare topics of one broker with three workers, factor 3 and factor 1 in turn.  The
last ones compare it with three brokers of Apache Kafka and their controller, in turn.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.failover import await_process, process_at
from benchmarks.frames import PRODUCE_VERSION, batch_of, produce_frame
from benchmarks.harness import Bench, Run, cpu_s, have_memory_at_hand, pss_mib, topic
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import KafkaCluster, Kafkalite, Subject
from benchmarks.wire import Wire, frame, leaders, metadata
from kafkalite.errors import raise_for
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.storage.files import layout

WORKERS = FACTOR = 3
PARTITIONS = 6
FIVE_IN_FLIGHT = 5
BATCH, BATCHES = 1_000_000, 600
REPEATS_MAX = 3
ROUND_TRIPS = 3_000
SMALL = 170
"""Size of a batch with one record of 100 bytes."""
KILLS = 20
KILLS_OF_BOTH = 5
KILL_WINDOW_S = (0.3, 2.0)
"""Records sent this long before and after a kill are those that it delays."""
PACE_S = 0.001
IDLE_PARTITIONS = 1_000
IDLE_S = 20.0
CATCH_UP_BYTES = 1_000_000_000
CATCH_UP_BATCH = 1_000_000
WAIT_S_MAX = 120.0
LOOK_S = 0.005
CONFIGS = {"file.delete.delay.ms": "0"}
FSYNC, ALONE, COPY = "fsync", "factor 1", "a copy of the files"


def run(bench: Bench) -> None:
    with started(bench, "replicated") as broker:
        throughput(bench, broker)
        flushed(bench, broker)
        round_trips(bench, broker)
    with started(bench, "replicated-idle") as broker:
        idle(bench, broker)
    with started(bench, "replicated-killed") as broker:
        failover(bench, broker)
    with started(bench, "replicated-emptied") as broker:
        catch_up(bench, broker)
    if len(bench.subjects) > 1:
        beside_kafka(bench)


def started(bench: Bench, name: str) -> Kafkalite:
    return Kafkalite(bench.scratch / name, workers=WORKERS)


def compare(
    bench: Bench,
    what: str,
    other: str,
    measure: Callable[[bool], Mapping[str, float]],
    budgets: Mapping[str, Budget],
) -> None:
    """Measure both in turn; `measure(True)` is the first one, which is compared with `other`."""
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(min(bench.scale.repeats, REPEATS_MAX)):
        for is_first, who in ((True, OURS), (False, other)):
            for key, value in measure(is_first).items():
                taken.setdefault(key, {}).setdefault(who, []).append(value)
    for key, values in taken.items():
        name, _, unit = key.rpartition(", ")
        bench.figures.append(Figure(f"{what}: {name}", unit, values, budgets.get(key)))


def throughput(bench: Bench, broker: Kafkalite) -> None:
    def measure(is_replicated: bool) -> Mapping[str, float]:
        factor = FACTOR if is_replicated else 1
        return loaded(bench, broker, factor, PARTITIONS, factor=factor)

    budgets = {"throughput, MB/s": Budget(at_least=0.4), "CPU, us/MB": Budget(at_most=2.6)}
    compare(bench, "factor 3, acks=all, 1 MB batches", ALONE, measure, budgets)


def flushed(bench: Bench, broker: Kafkalite) -> None:
    def measure(is_flushed: bool) -> Mapping[str, float]:
        options = {"durability": FSYNC} if is_flushed else {}
        return loaded(bench, broker, FACTOR, FIVE_IN_FLIGHT, factor=FACTOR, **options)

    budgets = {"throughput, MB/s": Budget(at_least=0.8)}
    compare(bench, "factor 3, fsync, 5 requests in flight", "os", measure, budgets)


def loaded(
    bench: Bench, broker: Subject, copies: int, partitions: int, *, factor: int, **configs: str
) -> Mapping[str, float]:
    """Produce batches that were prepared before, one request in flight to each partition."""
    requests = bench.scale(BATCHES, at_least=partitions)
    batch = batch_of(BATCH)
    megabytes = requests * len(batch) / 1e6
    with topic(broker, partitions, {**CONFIGS, **configs}, factor) as name:
        where = leaders(broker, name)
        have_memory_at_hand(copies * requests * len(batch))
        load = produce_frame(name, batch, partitions=partitions, acks=-1)
        done: Run = load.run(broker, bench.scratch, requests, partitions, where)
    return {
        "throughput, MB/s": megabytes / done.client["seconds"],
        "CPU, us/MB": done.cpu_us_per(megabytes),
    }


def round_trips(bench: Bench, broker: Kafkalite) -> None:
    count = bench.scale(ROUND_TRIPS, at_least=10)

    def measure(is_replicated: bool) -> Mapping[str, float]:
        with topic(broker, 1, CONFIGS, FACTOR if is_replicated else 1) as name:
            taken = sorted(produce_us(name, leaders(broker, name)[0], SMALL, count))
        return {"p50, us": statistics.median(taken), "p99, us": taken[len(taken) * 99 // 100]}

    compare(bench, "factor 3, round trip of 100 bytes, acks=all", ALONE, measure, {})


def produce_us(name: str, address: str, size: int, count: int) -> list[float]:
    """Produce batches to partition 0 with acks=all, each after the other; return their times."""
    entries = [{"index": 0, "records": batch_of(size)}]
    request = frame(PRODUCE, PRODUCE_VERSION, {
        "acks": -1, "timeout_ms": 30_000, "topic_data": [{"name": name, "partition_data": entries}],
    })  # fmt: skip
    taken = []
    with Wire(address) as wire:
        for _ in range(count):
            begun_ns = time.perf_counter_ns()
            (answered,) = wire.send(PRODUCE, PRODUCE_VERSION, request)["responses"]
            taken.append((time.perf_counter_ns() - begun_ns) / 1_000)
            raise_for(answered["partition_responses"][0]["error_code"])
    return taken


def idle(bench: Bench, broker: Kafkalite) -> None:
    """Measure the CPU time of all processes while no client is connected."""
    count = bench.scale(IDLE_PARTITIONS, at_least=10)
    span_s = bench.scale.factor * IDLE_S

    def share() -> float:
        time.sleep(span_s / 4)
        before = sum(cpu_s(broker.pids))
        time.sleep(span_s)
        return 100 * (sum(cpu_s(broker.pids)) - before) / span_s

    with topic(broker, count, CONFIGS, 1):
        alone = share()
    with topic(broker, count, CONFIGS, FACTOR) as name:
        await_in_sync(broker, name)
        replicated = share()
    bench.figures.append(
        Figure(
            f"idle, {count:,} partitions of factor 3: CPU of all processes", "% of a core",
            {OURS: [replicated], ALONE: [alone]}, Budget(at_most=1.0, of_value=True),
        )  # fmt: skip
    )


def await_in_sync(broker: Subject, name: str) -> None:
    """Wait until all replicas of a topic are in sync."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not all(len(each.isr_nodes) == FACTOR for each in partitions_of(broker, name)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the replicas of {name} are not in sync after {WAIT_S_MAX:.0f} s")
        time.sleep(LOOK_S)


def partitions_of(broker: Subject, name: str) -> list[Fields]:
    return list(metadata(broker.bootstrap, name).topics[0].partitions)


# -- failover ------------------------------------------------------------------------------------


def failover(bench: Bench, broker: Kafkalite) -> None:
    """Kill leaders under the load of a producer with default settings."""
    kills = bench.scale(KILLS)
    with topic(broker, PARTITIONS, {**CONFIGS, "min.insync.replicas": "2"}, FACTOR) as name:
        load = Load(broker.bootstrap, name)
        taken = sorted(killed_leader_s(broker, load, number) for number in range(kills))
        load.close()
    for which, value in (("p50", statistics.median(taken)), ("p99", taken[-1])):
        budget = Budget(at_most=0.3, of_value=True) if which == "p99" else None
        what = f"a killed leader, seen by a default producer: {which} of {kills}"
        bench.figures.append(Figure(what, "s", {OURS: [value]}, budget))


class Load:
    """A producer with default settings that sends a small record to each partition in turn."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        self.name = name
        self.sent = 0
        self.delivered: list[tuple[float, float]] = []
        """Time of sending, and time until the delivery report."""
        self.failures = 0

    def run(self, until_s: float) -> None:
        """Send records until a time."""
        while (now_s := time.monotonic()) < until_s:
            self.producer.produce(
                self.name, b"x" * 100, partition=self.sent % PARTITIONS,
                on_delivery=lambda error, _, sent_s=now_s: self.reported(error, sent_s),
            )  # fmt: skip
            self.sent += 1
            self.producer.poll(PACE_S)

    def reported(self, error: object, sent_s: float) -> None:
        self.failures += error is not None
        self.delivered.append((sent_s, time.monotonic() - sent_s))

    def close(self) -> None:
        """Wait for all records; raise if one was not acknowledged."""
        left = self.producer.flush(WAIT_S_MAX)
        if left or self.failures:
            raise RuntimeError(f"{left + self.failures} records were not acknowledged")


def killed_leader_s(broker: Kafkalite | KafkaCluster, load: Load, number: int) -> float:
    """Return the longest time to an acknowledgement of records around a kill of a leader."""
    await_in_sync(broker, load.name)
    before_s, after_s = KILL_WINDOW_S
    load.delivered.clear()
    load.run(time.monotonic() + before_s)
    address = leaders(broker, load.name)[number % PARTITIONS]
    if isinstance(broker, KafkaCluster):
        broker.kill(address)
        load.run(time.monotonic() + after_s)
        load.producer.flush(WAIT_S_MAX)
        broker.restart(address)
    else:
        killed = process_at(broker, address)
        os.kill(killed, signal.SIGKILL)
        load.run(time.monotonic() + after_s)
        await_process(broker, address, killed)
        load.producer.flush(WAIT_S_MAX)
    return max(latency_s for _, latency_s in load.delivered)


# -- beside Apache Kafka -------------------------------------------------------------------------


def beside_kafka(bench: Bench) -> None:
    """Compare with three brokers of Apache Kafka, on the same machine and in turn."""
    with (
        started(bench, "replicated-beside") as ours,
        KafkaCluster(bench.scratch / "three-brokers") as theirs,
    ):
        subjects: list[Kafkalite | KafkaCluster] = [ours, theirs]
        for subject in subjects:  # a JVM reaches its speed only after a while
            loaded(bench, subject, FACTOR, PARTITIONS, factor=FACTOR)
        budgets = {"throughput, MB/s": Budget(at_least=2.0)}
        bench.compare(
            "three brokers, factor 3, acks=all, 1 MB batches",
            lambda subject: loaded(bench, subject, FACTOR, PARTITIONS, factor=FACTOR),
            budgets, subjects, repeats_max=REPEATS_MAX,
        )  # fmt: skip
        bench.figures.append(
            Figure(
                "three brokers: memory of all processes after a load", "MiB",
                {each.name: [pss_mib(each.pids)] for each in subjects}, Budget(at_most=1 / 8),
            )  # fmt: skip
        )
        worst = {each.name: [worst_of_kills_s(bench, each)] for each in subjects}
        bench.figures.append(
            Figure(
                f"three brokers: a killed leader, seen by a default producer: worst of"
                f" {bench.scale(KILLS_OF_BOTH)}", "s", worst, Budget(at_most=0.1),
            )  # fmt: skip
        )


def worst_of_kills_s(bench: Bench, broker: Kafkalite | KafkaCluster) -> float:
    with topic(broker, PARTITIONS, {**CONFIGS, "min.insync.replicas": "2"}, FACTOR) as name:
        load = Load(broker.bootstrap, name)
        kills = bench.scale(KILLS_OF_BOTH)
        taken = [killed_leader_s(broker, load, number) for number in range(kills)]
        load.close()
    return max(taken)


# -- catch-up ------------------------------------------------------------------------------------


def catch_up(bench: Bench, broker: Kafkalite) -> None:
    """Remove a follower's log while its worker is down, and measure how fast it is filled again."""
    size = bench.scale(CATCH_UP_BYTES, at_least=CATCH_UP_BATCH)
    with topic(broker, 1, CONFIGS, FACTOR) as name:
        produce_us(name, leaders(broker, name)[0], CATCH_UP_BATCH, size // CATCH_UP_BATCH)
        (partition,) = partitions_of(broker, name)
        follower = next(each for each in partition.replica_nodes if each != partition.leader_id)
        await_in_sync(broker, name)
        emptied = layout.node_directory(broker.data, follower) / layout.directory_name(name, 0)
        have_memory_at_hand(2 * size)
        copied_s = copy_s(emptied, bench.scratch / "copied")
        remove_log(broker, follower, emptied)
        filled_s = filled_s_of(broker, name, emptied)
    megabytes = size / 1e6
    bench.figures.append(
        Figure(
            f"catch-up of an empty follower with {megabytes:,.0f} MB", "MB/s",
            {OURS: [megabytes / filled_s], COPY: [megabytes / copied_s]}, Budget(at_least=0.5),
        )  # fmt: skip
    )


def remove_log(broker: Kafkalite, node_id: int, log: Path) -> None:
    """Kill a worker, and remove one of its logs before the launcher starts it again."""
    assert broker.ready is not None
    launcher = broker.ready["launcher_pid"]
    (pid,) = (node["pid"] for node in broker.nodes if node["id"] == node_id)
    os.kill(launcher, signal.SIGSTOP)
    try:
        with open(os.pidfd_open(pid), "rb", buffering=0) as process:
            os.kill(pid, signal.SIGKILL)
            select.select([process], [], [], WAIT_S_MAX)
        shutil.rmtree(log)
    finally:
        os.kill(launcher, signal.SIGCONT)


def copy_s(source: Path, target: Path) -> float:
    """Copy the segments of a log, and return the seconds that it took."""
    target.mkdir()
    begun_s = time.monotonic()
    for path in source.glob("*.log"):
        shutil.copyfile(path, target / path.name)
    taken_s = time.monotonic() - begun_s
    shutil.rmtree(target)
    return taken_s


def filled_s_of(broker: Kafkalite, name: str, log: Path) -> float:
    """Return the time from the first byte in a log until its replica is in sync."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not any(path.stat().st_size for path in log.glob("*.log")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing is written to {log}")
        time.sleep(LOOK_S)
    begun_s = time.monotonic()
    await_in_sync(broker, name)
    return time.monotonic() - begun_s
