"""Spark session with configuration suitable for Kafka topics.

    spark = pyspark_kafkalite.session("report")
    spark = pyspark_kafkalite.session("report", "local[4]", driver_memory="4g")
    spark = pyspark_kafkalite.session("report", **{"spark.sql.shuffle.partitions": 8})

The settings here are defaults.  spark-defaults.conf, the arguments of spark-submit (and so of
`kafkalite spark run`), and above these the arguments of session() take precedence.  The session's
time zone is not changed.

Before Spark's JVM starts, environment variables are set: JAVA_HOME (java.py), PYSPARK_PYTHON,
PYTHONPATH, and with a local master SPARK_LOCAL_IP, so that Spark does not listen on the network.

Left out: Spark Connect, whose server is configured where it runs.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalite.launch import java
from pyspark_kafkalite.launch.versions import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
HERE = ("127.0.0.1", "localhost", "[::1]")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Required: without it Spark rejects a Python data source that supports filter pushdown."""
STATE = "spark.sql.streaming.stateStore"
DEFAULTS = {
    PUSHDOWN: "true",
    # between the JVM and Python: a third less latency per micro-batch than over TCP
    "spark.python.unix.domain.socket.enabled": "true",
    # state on disk; a micro-batch writes only the changes
    f"{STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
PARTITIONS = "spark.sql.shuffle.partitions"
"""Set to the number of cores with a local master; Spark's default of 200 is for clusters."""


def session(
    name: str = "kafkalite", master: str | None = None, **conf: str | int | bool | Path
) -> SparkSession:
    """Return the Spark session of this process; start one if there is none.

    Args:
        name: Application name.
        master: Spark master, such as "local[2]" or "spark://host:7077".  None: the master the
            process was submitted to, or all cores of this machine.
        conf: Spark settings: full names, or short ones with underscores (`driver_memory` is
            spark.driver.memory).

    Returns:
        The SparkSession.  On a session that already runs, `conf` is set as far as Spark allows.

    Raises:
        Refusal: pyspark or pyarrow is missing or too old, or no Java is found.
        ValueError: A session with another master runs.
        AnalysisException: A setting cannot be changed in a running session.
    """
    check()
    from pyspark.sql import SparkSession

    requested = {key_of(key): text_of(value) for key, value in conf.items()}
    running = SparkSession.getActiveSession()
    if running is not None:
        return changed(running, master, requested)
    given = submitted()
    where = master or given.get("spark.master", LOCAL)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started the JVM
        complete(os.environ, where)
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in {**defaults(where), **requested}.items():
        if key in requested or key not in given:
            builder = builder.config(key, value)
    return builder.getOrCreate()


def changed(running: SparkSession, master: str | None, requested: dict[str, str]) -> SparkSession:
    """Return the running session with the requested settings."""
    if master is not None and master != running.sparkContext.master:
        raise ValueError(
            f"this process has a session on {running.sparkContext.master}: stop() it before"
            f" starting another on {master}"
        )
    for key, value in {PUSHDOWN: "true", **requested}.items():
        if running.conf.get(key, None) != value:
            running.conf.set(key, value)
    return running


def key_of(name: str) -> str:
    """Return Spark's name of a setting: `driver_memory` is spark.driver.memory."""
    if "." in name:
        return name
    return "spark." + name.removeprefix("spark_").replace("_", ".")


def text_of(value: str | int | bool | Path) -> str:
    """Return a setting's value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def defaults(master: str) -> dict[str, str]:
    """Return the default configuration for a master."""
    chosen = dict(DEFAULTS)
    if cores := cores_of(master):
        chosen[PARTITIONS] = str(cores)
    paths = search_path()
    if paths:
        chosen["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(paths)
    return chosen


def cores_of(master: str) -> int | None:
    """Return the number of cores of a local master; None for a cluster."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if not found:
        return None
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1] or 1)


def search_path(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return PYTHONPATH entries for Spark's Python workers.

    Workers find installed packages by themselves, and must not see another Python's installation.
    Packages used from a source directory are put before the existing PYTHONPATH.
    """
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    paths = [str(place) for place in roots() if place not in installed]
    paths += filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    return list(dict.fromkeys(paths))


def roots() -> Iterator[Path]:
    """Yield the directories that contain kafkalite and pyspark_kafkalite."""
    import kafkalite

    yield Path(__file__).resolve().parents[2]
    yield Path(kafkalite.__file__).resolve().parents[1]


def complete(environment: MutableMapping[str, str], master: str) -> None:
    """Set the environment variables that Spark's launcher and its Python workers need."""
    java.prepare(environment)
    if paths := search_path(environment):
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    here = cores_of(master) is not None
    if here or master.startswith(tuple(f"spark://{host}:" for host in HERE)):
        # Spark's default is `python3`; on this machine the job's own Python is available.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if here:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


# Existing configuration.


def submitted() -> dict[str, str]:
    """Return the settings of spark-defaults.conf and of spark-submit's arguments."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # SparkConf then reads the JVM's settings
        return dict(SparkConf().getAll())
    return {**from_file(defaults_file()), **from_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS"))}


def defaults_file() -> Path:
    """Return the path at which spark-submit looks for spark-defaults.conf."""
    from pyspark.find_spark_home import _find_spark_home

    directory = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    return Path(directory) / "spark-defaults.conf"


def from_file(path: Path) -> dict[str, str]:
    """Return the settings in a Java properties file: `key value`, `key=value` or `key: value`."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    found = (re.fullmatch(r"\s*(spark\.[^\s=:]+)\s*[\s=:]\s*(.*?)\s*", line) for line in lines)
    return {each[1]: each[2] for each in found if each}


def from_arguments(arguments: str | None) -> dict[str, str]:
    """Return the settings among spark-submit's arguments, as in PYSPARK_SUBMIT_ARGS."""
    found: dict[str, str] = {}
    words = iter(shlex.split(arguments or ""))
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("--conf", "-c"):
            key, _, setting = (value if equals else next(words, "")).partition("=")
            found[key] = setting
        elif flag in FLAGS:
            found[FLAGS[flag]] = value if equals else next(words, "")
    return found


FLAGS = {"--master": "spark.master", "--name": "spark.app.name"}
