"""The Java client as a program of the table: compiled once, against the jars `make oracle` fetches.

Its sources are in `java/`.  The classes stay in the user's cache beside the jars, under a name that
holds a hash of the sources, so that a change of them is another compilation.
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
    TOOLS_API,
    Unavailable,
    classpath,
    fetched,
    java_executable,
)

SOURCES = Path(__file__).with_name("java")
# Many small ones at once, each for a short time.
SMALL = (
    "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dorg.apache.logging.log4j.level=OFF",
)  # fmt: skip


@functools.cache
def java_words() -> Sequence[str]:
    """The command that runs the Java program, compiled; Unavailable where it cannot be had."""
    if not shutil.which("java") or not shutil.which("javac"):
        raise Unavailable("the Java client needs `java` and `javac`")
    if not fetched(BROKER):
        raise Unavailable("the Java client's jars are fetched by `make oracle`")
    jars = classpath(BROKER, managed=[TOOLS_API])
    return [java_executable(), *SMALL, "-cp", f"{compiled(jars)}:{jars}", "Lines"]


def compiled(jars: str) -> Path:
    """Where the classes are, after compiling them if need be."""
    sources = sorted(SOURCES.glob("*.java"))
    marks = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    cache = Path(jars).parent.parent
    classes = cache / f"java-client-{BROKER[1]}-{marks[:16]}"
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch, "classes")
            words = ["javac", "-Xlint:all,-classfile,-processing", "-Werror", "-d", str(fresh)]
            subprocess.run([*words, "-cp", jars, *map(str, sources)], check=True)
            # Another process may have been quicker; its classes are the same.
            if not classes.is_dir():
                fresh.rename(classes)
    return classes
