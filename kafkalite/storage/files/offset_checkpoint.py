"""Kafka's text files with an offset per partition: cleaner-offset-checkpoint and others.

    0                      version
    2                      number of entries
    prices 0 48211         topic, partition, offset
    prices 1 47310
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VERSION = "0"

Offsets = dict[tuple[str, int], int]


def encoded(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Return the content of a file."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return "".join(f"{line}\n" for line in [VERSION, str(len(lines)), *lines]).encode()


def read(path: Path) -> Offsets:
    """Return the entries of a file, none if it is missing; raise OSError or ValueError if it is
    damaged."""
    try:
        lines = path.read_text("ascii").splitlines()
    except FileNotFoundError:
        return {}
    version, count, *entries = lines
    found: Offsets = {}
    for entry in entries:
        topic, partition, offset = entry.split(" ")
        found[topic, int(partition)] = int(offset)
    if version != VERSION or int(count) != len(entries) or min(found.values(), default=0) < 0:
        raise ValueError("its version or count is wrong")
    return found
