"""Waiting for streaming queries, and their exceptions."""

import time

TIMEOUT_S = 120
STARTING = "Initializing"


def await_sources(query):
    """Wait until the query has its sources, or has failed.

    Each start brings up a Python process that plans.  Spark gives it ten seconds to connect, and
    one that is stopped earlier still finishes its start: with many of these at once, none of them
    connects in time.
    """
    until_s = time.monotonic() + TIMEOUT_S
    while query.isActive and query.status["message"].startswith(STARTING):
        assert time.monotonic() < until_s, query.status
        time.sleep(0.02)


ABORT_JOB = "org.apache.spark.sql.execution.streaming.ManifestFileCommitProtocol.abortJob("
"""The method of Spark's file sink that removes what the tasks of an interrupted batch wrote."""


def failure_of(query):
    """Return the exception of a query that was stopped, or None if it ended without one.

    Two exceptions of Spark's own count as none:

    A race of its file sink (seen in 4.3.0, with Spark's own rate source too).  stop() interrupts
    the thread of the query, which calls abortJob and iterates over the files of finished tasks,
    while the scheduler's thread adds the files of one that finished just then (onTaskCommit).
    Scala 2.13 notices and throws a ConcurrentModificationException, which replaces the
    interruption that Spark expects after stop().  The batch is not committed, so the next start
    repeats it.

    A start that took too long: the process that plans did not connect within Spark's fixed ten
    seconds, as on a machine with ten times its load.  It connects before it knows of any source.
    """
    if query.exception() is None:
        return None
    cause = query._jsq.exception().get().getCause()
    return None if is_abort_race(cause) or is_late_start(cause) else query.exception()


def is_abort_race(cause):
    """Return True if a Java exception was thrown by abortJob's own iteration."""
    if not cause.toString().startswith("java.util.ConcurrentModificationException"):
        return False
    frames = (frame.toString() for frame in cause.getStackTrace())
    first = next((frame for frame in frames if not frame.startswith("scala.")), "")
    return first.startswith(ABORT_JOB)


def is_late_start(cause):
    """Return True if Spark's wait for a Python process to connect timed out."""
    if not cause.toString().endswith("SparkException: Python worker failed to connect back."):
        return False
    deeper = cause.getCause()
    return deeper is not None and deeper.toString().startswith("java.net.SocketTimeoutException")
