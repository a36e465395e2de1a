"""The Go program of the table, with franz-go: built once, outside the source tree.

    python -m tests.conformance.go_client       build it now

The program is kept in the user's cache, under a name with a hash of its sources.  Its modules come
from Go's module proxy.  Debian 12's Go is older than franz-go needs, so `.ci/run` does not install
it; without Go the tests are skipped.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.apache_kafka import Unavailable, cache_directory

SOURCES = Path(__file__).with_name("franz_go")
BUILD_S_MAX = 600


@functools.cache
def franz_go_words() -> Sequence[str]:
    """Return the command of the program; raise Unavailable if it cannot be built."""
    return [str(built())]


@functools.cache
def franz_go_v1_words() -> Sequence[str]:
    """Return the command of the program without version 2 of transactions."""
    return [*franz_go_words(), "v1"]


def built() -> Path:
    """Return the path of the program, after building it if necessary."""
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir())))
    program = cache_directory() / f"franz-go-{state.hexdigest()[:16]}"
    if not program.is_file():
        with (cache_directory() / "franz-go.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.is_file():
                build(program)
    return program


def build(program: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("franz-go needs Go, and there is no `go` on the path")
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        fresh = Path(scratch, "program")
        command = [go, "build", "-buildvcs=false", "-trimpath", "-o", str(fresh), "."]
        done = subprocess.run(
            command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no error output"])[-1]
            raise Unavailable(f"go could not build the program of franz-go: {reason}")
        # All or nothing: a file that exists is complete.
        fresh.rename(program)


if __name__ == "__main__":
    try:
        print(built())
    except Unavailable as missing:
        sys.exit(str(missing))
