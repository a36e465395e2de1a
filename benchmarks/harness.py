"""Benchmark harness: runs the client, compares the subjects and records the figures.

Subjects are loaded by the same program in turn, A B A B, so that other load on the machine
affects both.  A figure is the median of the repeats, and the ratio of the two medians within one
run is what counts: absolute numbers differ between machines and between days.  CPU time is the
kernel's account of the broker's processes (user and system apart) before and after.  Memory is
PSS, the sum over its processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.report import Budget, Figure
from benchmarks.subjects import ROOT, Subject
from benchmarks.wire import await_served

CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
CLIENT_SOURCE = ROOT / "benchmarks" / "client.c"
CLIENT_S_MAX = 600
IN_MEMORY_SIZE_MIN = 4 << 30
PORTION_SIZE = 128 << 10
AT_HAND_S_PER_MB, AT_HAND_TRIES = 0.0005, 5
"""Maximum cost of a MB of a file whose memory is available; number of attempts to reach it."""


@dataclass(frozen=True)
class Scale:
    """Amount of load: a count that takes a second or two at full scale, times a factor."""

    repeats: int
    factor: float
    things_max: int  # partitions, connections

    def __call__(self, count: int, at_least: int = 1) -> int:
        return max(at_least, int(count * self.factor))

    def up_to(self, counts: Sequence[int]) -> list[int]:
        return [count for count in counts if count <= self.things_max]


FULL = Scale(repeats=5, factor=1.0, things_max=1000)
SMALL = Scale(repeats=3, factor=0.1, things_max=1000)
TINY = Scale(repeats=1, factor=0.0005, things_max=10)


def best_ns(repeats: int, call: Callable[[], object], round_ns: int = 4_000_000) -> float:
    """Return nanoseconds of one call in this process: the best of `repeats` rounds."""
    began = time.perf_counter_ns()
    call()
    count = max(1, round_ns // max(1, time.perf_counter_ns() - began))
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter_ns()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter_ns() - began) / count)
    return best


@dataclass(frozen=True)
class Run:
    """One run of the client against one subject."""

    client: dict[str, float]
    user_s: float
    system_s: float

    @property
    def per_second(self) -> float:
        return self.client["records"] / self.client["seconds"]

    @property
    def mb_per_second(self) -> float:
        return self.client["bytes"] / self.client["seconds"] / 1e6

    def user_us_per(self, count: float) -> float:
        return self.user_s * 1e6 / count

    def system_us_per(self, count: float) -> float:
        return self.system_s * 1e6 / count

    def cpu_us_per(self, count: float) -> float:
        return self.user_us_per(count) + self.system_us_per(count)


@dataclass
class Bench:
    """Argument of each benchmark: the subjects, the scale, and the list of its figures."""

    subjects: Sequence[Subject]
    scale: Scale
    scratch: Path
    figures: list[Figure] = field(default_factory=list)

    @property
    def ours(self) -> Subject:
        return self.subjects[0]

    def compare(
        self,
        what: str,
        measure: Callable[[Subject], Mapping[str, float]],
        budgets: Mapping[str, Budget] | None = None,
        subjects: Sequence[Subject] | None = None,
        at: float | None = None,
        repeats_max: int = 5,
    ) -> None:
        """Measure every subject in turn; each key of the result ("name, unit") is a figure."""
        chosen = subjects if subjects is not None else self.subjects
        taken: dict[str, dict[str, list[float]]] = {}
        for _ in range(min(self.scale.repeats, repeats_max)):
            for subject in chosen:
                for key, value in measure(subject).items():
                    taken.setdefault(key, {}).setdefault(subject.name, []).append(value)
        for key, values in taken.items():
            name, _, unit = key.rpartition(", ")
            budget = (budgets or {}).get(key)
            self.figures.append(Figure(f"{what}: {name}", unit, values, budget, at))


def run_client(subject: Subject, mode: str, **options: object) -> Run:
    """Run the client to its end against the subject; raise if it fails."""
    command = [str(client_program()), mode, "--broker", subject.bootstrap]
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            command += [f"--{name.replace('_', '-')}", str(each)]
    user_s, system_s = cpu_s(subject.pids)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CLIENT_S_MAX, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{subject.name}, {mode}: {done.stderr.strip()}")
    user_after_s, system_after_s = cpu_s(subject.pids)
    return Run(json.loads(done.stdout), user_after_s - user_s, system_after_s - system_s)


_client: list[Path] = []


def client_program() -> Path:
    """Return client.c's program, compiled once for each source; needs cc, librdkafka-dev."""
    if not _client:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalite"
        place.mkdir(parents=True, exist_ok=True)
        # Named for its source: trees of different ages share the directory.
        program = place / f"bench-client-{zlib.crc32(CLIENT_SOURCE.read_bytes()):08x}"
        if not program.exists():
            fresh = place / f"bench-client.{os.getpid()}"
            command = ["cc", "-O2", "-Wall", "-pthread", "-o", str(fresh), str(CLIENT_SOURCE)]
            command += ["-lrdkafka"]
            subprocess.run(command, check=True)
            fresh.rename(program)
        _client.append(program)
    return _client[0]


def what_is_missing() -> str:
    """Return the reason why client.c cannot be compiled here, or an empty string."""
    if shutil.which("cc") is None:
        return "the load is a C program, and there is no `cc` on the path"
    probe = ["cc", "-E", "-include", "librdkafka/rdkafka.h", "-x", "c", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return "the load is a C program over librdkafka, whose headers (librdkafka-dev) are missing"
    return ""


def cpu_s(pids: Sequence[int]) -> tuple[float, float]:
    """Return user and system seconds these processes have used so far."""
    user = system = 0
    for pid in pids:
        # The name in parentheses may contain spaces; the numbers begin after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        user += int(fields[11])
        system += int(fields[12])
    return user * CLOCK_TICK_S, system * CLOCK_TICK_S


def pss_mib(pids: Sequence[int]) -> float:
    """Return the memory these processes use, shared pages counted once."""
    return sum(memory_mib(pid, "Pss") for pid in pids)


def private_mib(pid: int) -> float:
    """Return the memory that would be freed if only this process ended."""
    return memory_mib(pid, "Private_Clean") + memory_mib(pid, "Private_Dirty")


def memory_mib(pid: int, kind: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"the kernel does not tell {kind} of process {pid}")


def have_memory_at_hand(size: int) -> None:
    """Write and delete files until the machine has free pages for files of this size.

    A virtual machine's host takes back memory that is unused for a while and returns it a page at
    a time: a MB of a file then costs 3 ms instead of 0.3, at random to one subject or the other.
    The pages are taken by a file written in a log's portions because the kernel sorts free memory
    by contiguous size: pages freed by other kinds of memory are not those a file gets next.  This
    repeats while the write is slow, and on each processor, because each has its own free list.
    """
    allowed = os.sched_getaffinity(0)
    try:
        for processor in allowed:
            os.sched_setaffinity(0, {processor})
            for _ in range(AT_HAND_TRIES):
                if write_for_nothing(size) < AT_HAND_S_PER_MB * size / 1e6:
                    break
    finally:
        os.sched_setaffinity(0, allowed)


def write_for_nothing(size: int) -> float:
    """Return the seconds it takes to write a temporary file of this size."""
    portion = bytes(PORTION_SIZE)
    began_s = time.monotonic()
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(0, size, len(portion)):
            file.write(portion)
        return time.monotonic() - began_s


_topic_numbers = iter(range(1, 1 << 30))


@contextmanager
def topic(
    subject: Subject,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    replicas: int = 1,
) -> Iterator[str]:
    """Create a topic, wait for all its leaders, and delete it afterwards to free the disk."""
    admin = AdminClient({"bootstrap.servers": subject.bootstrap, "log_level": 4})
    name = f"bench-{os.getpid()}-{next(_topic_numbers)}"
    wanted = NewTopic(name, partitions, replicas, config=dict(configs or {}))
    for created in admin.create_topics([wanted]).values():
        created.result()
    await_served(subject, name, partitions)
    try:
        yield name
    finally:
        for deleted in admin.delete_topics([name]).values():
            deleted.result()


@contextmanager
def scratch_directory(where: Path | None = None) -> Iterator[Path]:
    """Make a temporary directory, in `where` if given, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-", dir=where) as path:
        yield Path(path)


def file_system_in_memory() -> Path | None:
    """Return a file system in memory for figures without a disk, or None if there is none."""
    path = Path("/dev/shm")
    roomy = path.is_dir() and shutil.disk_usage(path).free >= IN_MEMORY_SIZE_MIN
    return path if roomy and os.access(path, os.W_OK) else None
