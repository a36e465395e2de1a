"""Compaction: records a second that the log cleaner takes, its memory, and a producer beside it.

Estimate: bench_cleaner.py's 0.2 us of processor time a record, so 5 million records a second, and
with zstd 1.5 million; Apache Kafka's cleaner decodes every record into objects, about 2 us.  The
cleaner has a lower priority than the broker: a producer beside it shares the other core with the
broker and the client only.

A topic is written with cleanup.policy=delete, and its policy is then changed to compact.  A pass
lasts from then on until cleaner-offset-checkpoint, which has the same format on both sides, has the
offset of the active segment.  The rate on one core is by the processor time of the cleaner: of
kafkalite's process, or of Kafka's thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.harness import CLOCK_TICK_S, Bench, Run, private_mib, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Kafkalite, Subject
from tools.apache_kafka import ApacheKafka

CODECS = {"none": 3_000_000, "zstd": 1_000_000}
"""The goal for each codec, in records a second on one core."""
RECORDS, RECORDS_MIN = 10_000_000, 60_000
"""The least are two segments of the least size, also compressed."""
RECORDS_PER_KEY = 10
BESIDE_RECORDS = 2_000_000
VALUE_SIZE = 76
BATCH_BYTES = 64 << 10
SEGMENT_BYTES, SEGMENT_BYTES_MIN = 100 << 20, 1 << 20
BACKOFF_MS = 100
DEDUPE_MIB, MORE_MIB = 128, 16
PASS_S_MAX = 300.0
SAMPLE_S = 0.01
CLEANER_THREAD = "kafka-log-clean"
"""The beginning of its name, as far as the kernel keeps it."""


def run(bench: Bench) -> None:
    for subject in bench.subjects:
        for broker in AdminClient({"bootstrap.servers": subject.bootstrap}).list_topics().brokers:
            config = {"log.cleaner.backoff.ms": str(BACKOFF_MS)}
            alter(subject, ResourceType.BROKER, str(broker), config)
        # The first pass includes the start of the cleaner.
        with written(subject, RECORDS_MIN, "none", SEGMENT_BYTES_MIN) as name:
            Pass(subject, name).wait()
    for codec in ("none", "zstd"):
        passes(bench, codec)
    producer_beside(bench)


def passes(bench: Bench, codec: str) -> None:
    """Measure one pass over a whole log."""
    records = bench.scale(RECORDS, at_least=RECORDS_MIN)
    segment_bytes = bench.scale(SEGMENT_BYTES, at_least=SEGMENT_BYTES_MIN)

    def measure(subject: Subject) -> Mapping[str, float]:
        with written(subject, records, codec, segment_bytes) as name:
            cleaner = CleanerProcess(subject)
            cleaned = Pass(subject, name)
            peak_mib = 0.0
            while not cleaned.is_done():
                peak_mib = max(peak_mib, cleaner.memory_mib())
                time.sleep(SAMPLE_S)
            taken = {
                "rate, records/s": cleaned.records / cleaned.seconds,
                "rate on one core, records/s": cleaned.records / cleaner.cpu_s(),
            }
        return taken | ({"memory of the cleaner, MiB": peak_mib} if peak_mib else {})

    budgets = {
        "rate, records/s": Budget(at_least=5),
        "rate on one core, records/s": Budget(at_least=CODECS[codec], of_value=True),
        "memory of the cleaner, MiB": Budget(at_most=DEDUPE_MIB + MORE_MIB, of_value=True),
    }
    what = f"compaction of {records:,} records, {RECORDS_PER_KEY} a key, codec {codec}"
    bench.compare(what, measure, budgets)


def producer_beside(bench: Bench) -> None:
    """Measure a producer while a pass over another topic runs, and without one."""
    records = bench.scale(RECORDS, at_least=RECORDS_MIN)
    segment_bytes = bench.scale(SEGMENT_BYTES, at_least=SEGMENT_BYTES_MIN)
    sent = bench.scale(BESIDE_RECORDS, at_least=1_000)

    def produce(subject: Subject) -> Run:
        with topic(subject) as name:
            return run_client(subject, "produce", topic=name, records=sent)

    def measure(subject: Subject) -> Mapping[str, float]:
        with written(subject, records, "zstd", segment_bytes) as name:
            alone = produce(subject)
            cleaned = Pass(subject, name)
            waiting = threading.Thread(target=cleaned.wait)
            waiting.start()
            beside = produce(subject)
            waiting.join()
        return {
            "throughput, records/s": beside.per_second,
            "throughput of one alone, share": beside.per_second / alone.per_second,
            "time beside the pass, share": min(1.0, cleaned.seconds / beside.client["seconds"]),
        }

    budgets = {"throughput of one alone, share": Budget(at_least=0.9, of_value=True)}
    bench.compare("producer beside the log cleaner", measure, budgets)


@contextmanager
def written(subject: Subject, records: int, codec: str, segment_bytes: int) -> Iterator[str]:
    """Make a topic of several segments with so many records."""
    keys = records // RECORDS_PER_KEY
    with topic(subject, configs={"segment.bytes": str(segment_bytes)}) as name:
        run_client(
            subject, "produce", topic=name, records=records, keys=keys, size=VALUE_SIZE,
            compression=codec, batch_bytes=BATCH_BYTES,
        )  # fmt: skip
        yield name


class Pass:
    """A pass of the log cleaner over a topic's only partition, from the change of its policy."""

    def __init__(self, subject: Subject, topic: str) -> None:
        assert isinstance(subject, Kafkalite | ApacheKafka)
        (directory,) = [
            *subject.data.glob(f"{topic}-0"), *subject.data.glob(f"nodes/*/{topic}-0")
        ]  # fmt: skip
        self._checkpoint = directory.parent / "cleaner-offset-checkpoint"
        self._topic = topic
        self.records = max(int(path.stem) for path in directory.glob("*.log"))
        """The offset of the active segment, below which every offset has a record."""
        assert self.records > 0, "no segment is closed"
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        self._begun_s = time.monotonic()
        self.seconds = 0.0
        alter(subject, ResourceType.TOPIC, topic, config)

    def is_done(self) -> bool:
        """Return whether the pass has ended; raise RuntimeError if it takes too long."""
        self.seconds = time.monotonic() - self._begun_s
        if self.seconds > PASS_S_MAX:
            raise RuntimeError(f"{self._topic} was not compacted in {PASS_S_MAX} seconds")
        lines = self._checkpoint.read_text().splitlines() if self._checkpoint.exists() else []
        entries = [line.split(" ") for line in lines[2:]]
        return any(entry[0] == self._topic and int(entry[2]) >= self.records for entry in entries)

    def wait(self) -> None:
        while not self.is_done():
            time.sleep(SAMPLE_S)


class CleanerProcess:
    """The processor time and the memory of a subject's log cleaner."""

    def __init__(self, subject: Subject) -> None:
        self._is_own = isinstance(subject, Kafkalite)
        """True if the cleaner is a process, false if it is a thread of the broker."""
        self._pid = subject.pids[0]
        if isinstance(subject, Kafkalite):
            lines = (subject.data / "kafkalite.log").read_text()
            self._pid = int(re.findall(r"Log cleaner started\. pid=(\d+)", lines)[-1])
        self._begun_s = self._spent_s()

    def _spent_s(self) -> float:
        ticks = 0
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has ended
                name = (task / "comm").read_text()
                if self._is_own or name.startswith(CLEANER_THREAD):
                    fields = (task / "stat").read_text().rpartition(") ")[2].split()
                    ticks += int(fields[11]) + int(fields[12])
        return ticks * CLOCK_TICK_S

    def cpu_s(self) -> float:
        """Return the processor time since this object was made."""
        return max(CLOCK_TICK_S, self._spent_s() - self._begun_s)

    def memory_mib(self) -> float:
        """Return the memory of its own process, 0 if it has none."""
        return private_mib(self._pid) if self._is_own else 0.0


def alter(subject: Subject, kind: ResourceType, name: str, config: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    admin = AdminClient({"bootstrap.servers": subject.bootstrap})
    resource = ConfigResource(kind, name, incremental_configs=entries)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()
