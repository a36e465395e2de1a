"""How a figure is taken.

Two subjects are loaded by the same program in turn, A B A B, so that what the machine does
meanwhile meets both.  A figure is the median of the repeats, and what counts is the ratio of the
two medians within one run: other machines, and this one tomorrow, give other numbers.  CPU time
is the kernel's account of the broker's processes (user and system apart) before and after.
Memory is PSS, the sum over its processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
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
"""What a MB of a file costs at the most where its memory is at hand; how often that is tried."""


@dataclass(frozen=True)
class Scale:
    """How much load: a count is what takes a second or two at full scale, times a factor."""

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
    """Nanoseconds of one call in this process: the best of `repeats` rounds of about `round_ns`."""
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
    """What a benchmark file is handed: the subjects, the scale, and where its figures go."""

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
    ) -> None:
        """Measure every subject in turn; each key of the answer ("name, unit") is a figure."""
        chosen = subjects if subjects is not None else self.subjects
        taken: dict[str, dict[str, list[float]]] = {}
        for _ in range(self.scale.repeats):
            for subject in chosen:
                for key, value in measure(subject).items():
                    taken.setdefault(key, {}).setdefault(subject.name, []).append(value)
        for key, values in taken.items():
            name, _, unit = key.rpartition(", ")
            budget = (budgets or {}).get(key)
            self.figures.append(Figure(f"{what}: {name}", unit, values, budget, at))


def run_client(subject: Subject, mode: str, **options: object) -> Run:
    """Run the client to its end against the subject; a client that fails is a failed benchmark."""
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
    """client.c, built when it is newer than what was built; needs cc and librdkafka-dev."""
    if not _client:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalite"
        place.mkdir(parents=True, exist_ok=True)
        program = place / "bench-client"
        if not program.exists() or program.stat().st_mtime < CLIENT_SOURCE.stat().st_mtime:
            fresh = place / f"bench-client.{os.getpid()}"
            command = ["cc", "-O2", "-Wall", "-o", str(fresh), str(CLIENT_SOURCE), "-lrdkafka"]
            subprocess.run(command, check=True)
            fresh.rename(program)
        _client.append(program)
    return _client[0]


def what_is_missing() -> str:
    """Why client.c cannot be built here; empty when it can."""
    if shutil.which("cc") is None:
        return "the load is a C program, and there is no `cc` on the path"
    probe = ["cc", "-E", "-include", "librdkafka/rdkafka.h", "-x", "c", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return "the load is a C program over librdkafka, whose headers (librdkafka-dev) are missing"
    return ""


def cpu_s(pids: Sequence[int]) -> tuple[float, float]:
    """User and system seconds these processes have used so far."""
    user = system = 0
    for pid in pids:
        # The name in parentheses may hold anything; the numbers begin after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        user += int(fields[11])
        system += int(fields[12])
    return user * CLOCK_TICK_S, system * CLOCK_TICK_S


def pss_mib(pids: Sequence[int]) -> float:
    """The memory these processes use, what they share counted once."""
    return sum(memory_mib(pid, "Pss") for pid in pids)


def private_mib(pid: int) -> float:
    """The memory that is a process's own: what ending it alone would give back."""
    return memory_mib(pid, "Private_Clean") + memory_mib(pid, "Private_Dirty")


def memory_mib(pid: int, kind: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"the kernel does not tell {kind} of process {pid}")


def have_memory_at_hand(size: int) -> None:
    """Have the machine's next pages be ones that it has, for files that will hold so much.

    What a guest does not use for a while its host takes back, and gives again a page at a time: a
    MB of a file then costs 3 ms instead of 0.3.  Without this it is luck who pays.  It is a file
    that takes and frees them, in a log's portions, for the kernel keeps free memory by how much of
    it lies together: what other kinds of memory leave behind is not what a file is given next.
    And it is done again while it shows that there were more of the others, on each processor, for
    each has free memory of its own.
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
    """The seconds that a file of this size takes, which is gone again."""
    portion = bytes(PORTION_SIZE)
    began_s = time.monotonic()
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(0, size, len(portion)):
            file.write(portion)
        return time.monotonic() - began_s


_topic_numbers = iter(range(1, 1 << 30))


@contextmanager
def topic(
    subject: Subject, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A new topic, led everywhere, and gone afterwards so that disks do not fill."""
    admin = AdminClient({"bootstrap.servers": subject.bootstrap, "log_level": 4})
    name = f"bench-{os.getpid()}-{next(_topic_numbers)}"
    wanted = NewTopic(name, partitions, 1, config=dict(configs or {}))
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
    """A directory on the disk of the temporary files, or there, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-", dir=where) as path:
        yield Path(path)


def file_system_in_memory() -> Path | None:
    """For figures of which a disk is no part; None where there is none, and the disk must do."""
    path = Path("/dev/shm")
    roomy = path.is_dir() and shutil.disk_usage(path).free >= IN_MEMORY_SIZE_MIN
    return path if roomy and os.access(path, os.W_OK) else None
