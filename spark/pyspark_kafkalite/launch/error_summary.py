"""Original messages in Spark's errors.

Spark wraps the exception of a Python worker: its message is the end of the worker's traceback,
which is in a message of a Java exception, followed by the Java stack trace.
"""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*: (?P<sentence>\S.*)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] ")
_SQLSTATE = re.compile(r" ?SQLSTATE: \w+;?$")


def is_sparks(error: BaseException) -> bool:
    """Return whether PySpark or its bridge to Java raised this error."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def sentence_of(error: BaseException) -> str:
    """Return the original message of a Spark error, in one line."""
    text = str(error)
    _, found, trace = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(trace) if found else None
    line = raised["sentence"] if raised else text.strip().partition("\n")[0]
    return _SQLSTATE.sub("", _CONDITION.sub("", line)).strip() or type(error).__name__
