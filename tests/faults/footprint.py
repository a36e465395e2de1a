"""Resources of a broker on its host, and the check that faults leave no leak of them (I13).

A Footprint is taken of an idle broker, without clients, before the faults and after them.  The
numbers of descriptors, threads, processes and partition directories must be the same afterwards;
no temporary files may remain; memory may have grown a little.  Flush threads start when they are
first needed, so there may be fewer threads.

Partitions' files are opened when they are first needed, so the number of open ones means little.
But each is open at most once, in the one process that has the partition, and no removed one is.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.faults.processes import Processes, children_of

REST_S_MAX = 10.0
LOOK_S = 0.05
SAME_TIMES = 5
"""A broker is at rest when this many consecutive footprints are the same."""
RSS_GROWTH_MAX = 0.25
RSS_SPARE = 6 << 20
"""Growth above this is a leak.  An allocator keeps freed memory, so less may be none."""

REMOVED = " (deleted)"
OF_A_SEGMENT = re.compile(r"/(?!__cluster_metadata-)[^/]+/\d{20}\.(log|index|timeindex|txnindex)$")
NUMBERS = re.compile(r"\d+")
WITH_TIME = {
    "N.snapshot", "kafkalite.log.N", "recovery-checkpoint", "recovery-checkpoint.previous",
    "replication-offset-checkpoint",
}  # fmt: skip
"""Files that appear with time, and need not be there before."""
LEFTOVERS = re.compile(r"\.tmp$|\.cleaned$|\.swap$|\.deleted$|-delete$|-stray$|/handover$")


@dataclass
class Footprint:
    """The resources of a broker at one moment."""

    descriptors: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    """Partitions' files, by their full path."""
    processes: int = 0
    threads: int = 0
    rss: int = 0
    directories: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)
    leftovers: list[str] = field(default_factory=list)

    def same_as(self, other: Footprint) -> bool:
        """Return True if all but the memory is equal; memory never stays the same."""
        return replace(self, rss=0) == replace(other, rss=0)


def look(processes: Processes, directories: list[Path]) -> Footprint:
    """Take the footprint of the launcher, its children, and these directories."""
    launcher = processes.broker.pid
    footprint = Footprint()
    for pid in (launcher, *children_of(launcher)):
        try:
            targets = targets_of(pid)
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        footprint.processes += 1
        for target in targets:
            if OF_A_SEGMENT.search(target.removesuffix(REMOVED)):
                footprint.opened[target] += 1
            else:
                footprint.descriptors[kind_of_descriptor(target)] += 1
        footprint.threads += number_of(status, "Threads")
        footprint.rss += number_of(status, "VmRSS") << 10
    for top in directories:
        # os.walk ignores files that are removed during the walk.
        for directory, directories_in, files in os.walk(top):
            footprint.directories.update(map(kind_of, directories_in))
            footprint.files.update(map(kind_of, files))
            for name in (*directories_in, *files):
                path = os.path.join(directory, name)
                if LEFTOVERS.search(path):
                    footprint.leftovers.append(os.path.relpath(path, top))
    footprint.leftovers.sort()
    return footprint


def at_rest(processes: Processes, directories: list[Path], like: Footprint | None) -> Footprint:
    """Return a footprint once it is stable; or as soon as it has not grown from `like`."""
    deadline = time.monotonic() + REST_S_MAX
    same, last = 0, look(processes, directories)
    while time.monotonic() < deadline:
        if like is None and same >= SAME_TIMES and not last.leftovers:
            return last
        if like is not None and not list(grown(like, last)):
            return last
        time.sleep(LOOK_S)
        now = look(processes, directories)
        same = same + 1 if now.same_as(last) else 0
        last = now
    return last


def grown(before: Footprint, after: Footprint) -> Iterator[str]:
    """Yield the differences that are leaks, or missing files and processes."""
    if after.descriptors != before.descriptors:
        yield f"I13: descriptors changed: {difference(before.descriptors, after.descriptors)}"
    for path, count in after.opened.items():
        if count > 1 or path.endswith(REMOVED):
            yield f"I13: {path} is open {count} times"
    if after.threads > before.threads:
        yield f"I13: {after.threads} threads, and before the faults {before.threads}"
    if after.processes != before.processes:
        yield f"I13: {after.processes} processes, and before the faults {before.processes}"
    if after.rss > before.rss * (1 + RSS_GROWTH_MAX) + RSS_SPARE:
        yield f"I13: {after.rss >> 20} MiB resident, and before the faults {before.rss >> 20}"
    if after.directories != before.directories:
        yield f"I13: directories changed: {difference(before.directories, after.directories)}"
    if unknown := sorted(after.files - before.files - WITH_TIME):
        yield f"I13: files of a kind that was not there: {unknown}"
    if after.leftovers:
        yield f"I13: leftovers: {after.leftovers[:5]}"


def difference(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    return {
        kind: after[kind] - before[kind]
        for kind in sorted(before.keys() | after.keys())
        if after[kind] != before[kind]
    }


def targets_of(pid: int) -> list[str]:
    """Return the link targets of a process's descriptors."""
    found = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(entry.path))
        except FileNotFoundError:
            continue
    return found


def kind_of_descriptor(target: str) -> str:
    """Return a file's name without numbers, or the kernel's name of anything else."""
    return (
        kind_of(os.path.basename(target)) if target.startswith("/") else target.partition(":[")[0]
    )


def kind_of(name: str) -> str:
    """Replace every number in a name by N: 00000000000000000123.log is N.log."""
    return NUMBERS.sub("N", name)


def number_of(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else 0
