"""Java programs: compiled once, against the jars that `make oracle` fetches.

The client of the table is in `java/`, and the runner of Kafka's own tools in `java_tools/`.  The
classes are kept in the user's cache beside the jars, under a name with a hash of the sources, so
that a change of the sources compiles them again.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.apache_kafka import (
    BROKER,
    CLIENTS_V1,
    TOOLS,
    TOOLS_API,
    TOOLS_CORE,
    Unavailable,
    classpath,
    fetched,
    java_executable,
)

HERE = Path(__file__).parent
# Settings for many small JVMs that run at the same time, each for a short time.
SMALL = (
    "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dorg.apache.logging.log4j.level=OFF",
)  # fmt: skip


@functools.cache
def java_words() -> Sequence[str]:
    """Return the command of the Java client; raise Unavailable if it cannot be compiled."""
    return words("java", "Lines", BROKER)


@functools.cache
def java_v1_words() -> Sequence[str]:
    """Return the command of the Java client with the classes of its release 3.9."""
    program = words("java", "Lines", BROKER)
    if not fetched(CLIENTS_V1):
        raise Unavailable("the jar of Java's former client is fetched by `make oracle`")
    at = program.index("-cp") + 1
    return [*program[:at], f"{classpath(CLIENTS_V1)}:{program[at]}", *program[at + 1 :]]


@functools.cache
def tools_words() -> Sequence[str]:
    """Return the command of Kafka's tools; raise Unavailable if they cannot be compiled."""
    return words("java_tools", "Tools", TOOLS, TOOLS_CORE)


def words(folder: str | Path, program: str, *artifacts: tuple[str, str]) -> Sequence[str]:
    """Return the command of a program; `folder` is relative to this one, unless it is absolute."""
    if not shutil.which("java") or not shutil.which("javac"):
        raise Unavailable("Java's programs need `java` and `javac`")
    if not all(map(fetched, artifacts)):
        raise Unavailable("the jars of Java's programs are fetched by `make oracle`")
    jars = [classpath(artifact, managed=[TOOLS_API]) for artifact in artifacts]
    where = ":".join([str(compiled(HERE / folder, jars)), *jars])
    return [java_executable(), *SMALL, "-cp", where, program]


def compiled(folder: Path, jars: Sequence[str]) -> Path:
    """Return the directory of the classes, after compiling them if necessary."""
    sources = sorted(folder.glob("*.java"))
    marks = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    first = Path(jars[0]).parent
    classes = first.parent / f"{folder.name}-{first.name}-{marks[:16]}"
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(dir=first.parent) as scratch:
            fresh = Path(scratch, "classes")
            command = ["javac", "-Xlint:all,-classfile,-processing", "-Werror", "-d", str(fresh)]
            subprocess.run([*command, "-cp", ":".join(jars), *map(str, sources)], check=True)
            # Another process may have been faster; its classes are the same.
            if not classes.is_dir():
                fresh.rename(classes)
    return classes
