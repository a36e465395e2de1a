"""Node.js programs: their packages are installed once, outside the source tree."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.apache_kafka import Unavailable

HERE = Path(__file__).parent / "kafkajs"
MANIFEST = ("package.json", "package-lock.json")
INSTALL_S_MAX = 300


def kafkajs_words() -> Sequence[str]:
    """Return the command of the kafkajs program; raise Unavailable if it cannot be installed."""
    node = executable("node")
    return [node, str(HERE / "program.js"), str(installed(HERE, "kafkajs"))]


def executable(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"Node is needed, and there is no `{name}` on the path")
    return found


def installed(manifest: Path, called: str) -> Path:
    """Return the directory with the packages of a package-lock.json, installed if necessary."""
    state = hashlib.sha256(b"".join((manifest / name).read_bytes() for name in MANIFEST))
    place = Path(sys.prefix) / f"{called}-{state.hexdigest()[:12]}"
    if not place.is_dir():
        with Path(sys.prefix, f"{called}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.is_dir():
                install(manifest, called, place)
    return place


def install(manifest: Path, called: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        for name in MANIFEST:
            shutil.copy(manifest / name, scratch)
        command = [executable("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["npm did not say why"])[-1]
            raise Unavailable(f"npm could not install {called}: {reason}")
        # All or nothing: a directory that exists is complete.
        Path(scratch).rename(place)
        Path(scratch).mkdir()
