"""Exceptions of a stopped query: failures, and the two that are Spark's own."""

from types import SimpleNamespace

import pytest

from tests.spark.queries import ABORT_JOB, failure_of

RACE = "java.util.ConcurrentModificationException: mutation occurred during iteration"
ITERATION = [
    "scala.collection.mutable.MutationTracker$.checkMutations(MutationTracker.scala:43)",
    "scala.collection.mutable.CheckedIndexedSeqView$CheckedIterator.hasNext(X.scala:47)",
    "scala.collection.AbstractIterable.foreach(Iterable.scala:936)",
]
ABORT = [
    f"{ABORT_JOB}ManifestFileCommitProtocol.scala:103)",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter$.write(FileFormatWriter.scala:2)",
]
LATE = "org.apache.spark.SparkException: Python worker failed to connect back."
START = ["org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(X.scala:328)"]
TIMEOUT = "java.net.SocketTimeoutException: Timed out while waiting for the Python worker"
PLANNING = ["org.apache.spark.sql.execution.python.PythonMicroBatchStream.planInputPartitions(X:1)"]


def stopped(words, frames, deeper=None):
    """Return a query that ended with this Java exception, and with its cause."""
    stack = [SimpleNamespace(toString=lambda frame=frame: frame) for frame in frames]
    first = None if deeper is None else SimpleNamespace(toString=lambda: deeper)
    cause = SimpleNamespace(
        toString=lambda: words, getStackTrace=lambda: stack, getCause=lambda: first
    )
    wrapped = SimpleNamespace(getCause=lambda: cause)
    java = SimpleNamespace(exception=lambda: SimpleNamespace(get=lambda: wrapped))
    return SimpleNamespace(exception=lambda: words, _jsq=java)


def test_query_without_exception_succeeded():
    assert failure_of(SimpleNamespace(exception=lambda: None)) is None


def test_race_of_the_file_sink_is_no_failure():
    assert failure_of(stopped(RACE, ITERATION + ABORT)) is None


def test_worker_connect_timeout_is_no_failure():
    assert failure_of(stopped(LATE, START, TIMEOUT)) is None


@pytest.mark.parametrize("deeper", [None, "java.io.IOException: the worker exited"])
def test_worker_exit_at_start_is_a_failure(deeper):
    assert failure_of(stopped(LATE, START, deeper)) == LATE


@pytest.mark.parametrize(
    ("words", "frames"),
    [
        (RACE, ITERATION + PLANNING + ABORT),
        (RACE, ITERATION + PLANNING),
        (RACE, []),
        ("org.apache.spark.SparkException: no such file", ABORT),
    ],
    ids=["elsewhere", "without-the-sink", "no-stack", "another-class"],
)
def test_other_exceptions_are_failures(words, frames):
    assert failure_of(stopped(words, frames)) == words
