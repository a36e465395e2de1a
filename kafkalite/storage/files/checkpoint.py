"""Small state files of kafkalite: a header line with a checksum, then JSON.

    kafkalite 1 9f0c4b1e7a2d3356
    {"flights-0":[120,0,"pT3mGvYJQ3m2aV0hD1kq9Q"], …}

The hexadecimal number is the XXH3-64 of everything after the header line.  Files are replaced
atomically (put_file).  `write` also keeps the previous version as NAME.previous, which `read` uses
if NAME is missing or damaged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from kafkalite.storage.files.disk import Disk, put_file

MARK = b"kafkalite 1 "
PREVIOUS = ".previous"


def sealed(content: object) -> bytes:
    """Return the bytes of a file with this content."""
    rest = json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    return MARK + xxhash.xxh3_64_hexdigest(rest).encode() + b"\n" + rest


def unsealed(file: bytes) -> Any:
    """Return the content of a file; raise ValueError if its checksum does not match."""
    line, newline, rest = file.partition(b"\n")
    if not newline or line != MARK + xxhash.xxh3_64_hexdigest(rest).encode():
        raise ValueError("the checksum does not match")
    return json.loads(rest)


def read(path: Path) -> Any:
    """Return the file's content or its previous version's; None if neither is valid."""
    for generation in (path, previous(path)):
        try:
            return unsealed(generation.read_bytes())
        except (OSError, ValueError):
            continue
    return None


def write(disk: Disk, path: Path, content: object) -> None:
    """Replace the file, keeping its previous version if that is valid."""
    try:
        before = path.read_bytes()
        unsealed(before)
    except (FileNotFoundError, ValueError):
        # A damaged file must not take the place of the version that is still good.
        before = b""
    if before:
        put_file(disk, previous(path), before)
    put_file(disk, path, sealed(content))


def previous(path: Path) -> Path:
    return path.with_name(path.name + PREVIOUS)
