"""Our own small files: one line that says what they are, then JSON.

    kafkalite 1 9f0c4b1e7a2d3356
    {"flights-0":[120,0,"pT3mGvYJQ3m2aV0hD1kq9Q"], …}

The hexadecimal is the XXH3-64 of what follows its line.  They are replaced whole (put_file), and
where losing one would hurt, the one before is kept beside it as NAME.previous and read when NAME
does not check.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from kafkalite.storage.disk import Disk, put_file

MARK = b"kafkalite 1 "
PREVIOUS = ".previous"


def sealed(content: object) -> bytes:
    """The file's bytes."""
    rest = json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    return MARK + xxhash.xxh3_64_hexdigest(rest).encode() + b"\n" + rest


def unsealed(file: bytes) -> Any:
    """What it says; ValueError when it does not check."""
    line, newline, rest = file.partition(b"\n")
    if not newline or line != MARK + xxhash.xxh3_64_hexdigest(rest).encode():
        raise ValueError("its checksum does not hold")
    return json.loads(rest)


def read(path: Path) -> Any:
    """What the file says, or the one before it; None when neither is there and whole."""
    for generation in (path, previous(path)):
        try:
            return unsealed(generation.read_bytes())
        except (OSError, ValueError):
            continue
    return None


def write(disk: Disk, path: Path, content: object) -> None:
    """Replace the file, and keep the one before."""
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        before = b""
    if before:
        put_file(disk, previous(path), before)
    put_file(disk, path, sealed(content))


def previous(path: Path) -> Path:
    return path.with_name(path.name + PREVIOUS)
