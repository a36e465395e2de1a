"""A Spark session in the configuration that suits topics.

    spark = pyspark_kafkalite.session("report")
    spark = pyspark_kafkalite.session("report", "local[4]", driver_memory="4g")
    spark = pyspark_kafkalite.session("report", **{"spark.sql.shuffle.partitions": 8})

What is set here are defaults, and whoever says something else is right: spark-defaults.conf, the
arguments of spark-submit (and so of `kafkalite spark run`), and above these what session() is
given.  The session's time zone is left as Spark has it.

Before Spark's JVM starts, the process's environment is completed: JAVA_HOME (java.py),
PYSPARK_PYTHON, PYTHONPATH, and on this machine alone SPARK_LOCAL_IP, so that nobody else can
connect to it.

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

from pyspark_kafkalite import java
from pyspark_kafkalite.versions import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
HERE = ("127.0.0.1", "localhost", "[::1]")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Without it Spark refuses a source in Python that could prune partitions and offsets."""
STATE = "spark.sql.streaming.stateStore"
DEFAULTS = {
    PUSHDOWN: "true",
    # between the JVM and Python: a third less latency a micro-batch than over TCP
    "spark.python.unix.domain.socket.enabled": "true",
    # state on disk, of which each micro-batch writes only what changed
    f"{STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
PARTITIONS = "spark.sql.shuffle.partitions"
"""On one machine as many as it has cores; Spark's 200 are of clusters."""


def session(
    name: str = "kafkalite", master: str | None = None, **conf: str | int | bool | Path
) -> SparkSession:
    """The session of this process, started if there is none.

    `master` is Spark's: "local[2]", "spark://host:7077"; by default all cores of this machine, or
    what the process was submitted to.  Names in `conf` are Spark's; `driver_memory` is short for
    spark.driver.memory.  A session that runs already is given `conf` as far as Spark lets it, and
    its own AnalysisException says what can no longer be changed.

    Raises Refusal, in one sentence, for a pyspark too old and when there is no Java.
    """
    check()
    from pyspark.sql import SparkSession

    asked = {key_of(key): text_of(value) for key, value in conf.items()}
    running = SparkSession.getActiveSession()
    if running is not None:
        return changed(running, master, asked)
    given = submitted()
    where = master or given.get("spark.master", LOCAL)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started the JVM
        complete(os.environ, where)
    builder = SparkSession.builder.appName(name).master(where)
    for key, value in {**defaults(where), **asked}.items():
        if key in asked or key not in given:
            builder = builder.config(key, value)
    return builder.getOrCreate()


def changed(running: SparkSession, master: str | None, asked: dict[str, str]) -> SparkSession:
    """A session that was there before, with what was asked for."""
    if master is not None and master != running.sparkContext.master:
        raise ValueError(
            f"this process has a session on {running.sparkContext.master}: stop() it before"
            f" another is started on {master}"
        )
    for key, value in {PUSHDOWN: "true", **asked}.items():
        if running.conf.get(key, None) != value:
            running.conf.set(key, value)
    return running


def key_of(name: str) -> str:
    """Spark's name of a setting: `driver_memory` is spark.driver.memory."""
    if "." in name:
        return name
    return "spark." + name.removeprefix("spark_").replace("_", ".")


def text_of(value: str | int | bool | Path) -> str:
    """A setting's value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def defaults(master: str) -> dict[str, str]:
    """Our configuration for a master."""
    chosen = dict(DEFAULTS)
    if cores := cores_of(master):
        chosen[PARTITIONS] = str(cores)
    paths = search_path()
    if paths:
        chosen["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(paths)
    return chosen


def cores_of(master: str) -> int | None:
    """How many cores a local master takes; None of a cluster."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if not found:
        return None
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1] or 1)


def search_path(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Where Spark's Python workers look for modules beside their own installation.

    A package that was installed they find by themselves, and another Python's installation they
    must not be shown; one that is used from its sources is put before PYTHONPATH.
    """
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    paths = [str(place) for place in roots() if place not in installed]
    paths += filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    return list(dict.fromkeys(paths))


def roots() -> Iterator[Path]:
    """The directories that hold our two packages."""
    import kafkalite

    yield Path(__file__).resolve().parents[1]
    yield Path(kafkalite.__file__).resolve().parents[1]


def complete(environment: MutableMapping[str, str], master: str) -> None:
    """Set what Spark's launcher and its Python workers go by, in an environment to start it in."""
    java.prepare(environment)
    if paths := search_path(environment):
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    here = cores_of(master) is not None
    if here or master.startswith(tuple(f"spark://{host}:" for host in HERE)):
        # Spark takes whatever `python3` is; on this machine the job's own Python is there.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if here:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


# What somebody else has set.


def submitted() -> dict[str, str]:
    """The settings of spark-defaults.conf and of spark-submit's arguments, under Spark's names."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # so that SparkConf asks the JVM that submitted us
        return dict(SparkConf().getAll())
    return {**from_file(defaults_file()), **from_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS"))}


def defaults_file() -> Path:
    """Where spark-submit looks for spark-defaults.conf."""
    from pyspark.find_spark_home import _find_spark_home

    directory = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    return Path(directory) / "spark-defaults.conf"


def from_file(path: Path) -> dict[str, str]:
    """The settings in a file of Java properties: `key value`, `key=value` or `key: value`."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    found = (re.fullmatch(r"\s*(spark\.[^\s=:]+)\s*[\s=:]\s*(.*?)\s*", line) for line in lines)
    return {each[1]: each[2] for each in found if each}


def from_arguments(arguments: str | None) -> dict[str, str]:
    """The settings among spark-submit's arguments, as PYSPARK_SUBMIT_ARGS holds them."""
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
