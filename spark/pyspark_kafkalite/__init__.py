"""Topics in PySpark: the data source `kafkalite`, and a faster way for who can use it.

    spark.read.format("kafkalite")…            as Spark's own Kafka source, without a jar
    pyspark_kafkalite.read(spark, "flights")   offsets planned here, all else in one mapInArrow
    pyspark_kafkalite.session()                a session in our configuration
    appending(**options)                       a topic to write to, for foreachBatch
    LagListener()                              how far streams are behind and how many rows were
                                               bad, after every micro-batch
"""

from __future__ import annotations

from typing import Any

# At once, so that the name stays the function's: a module of this name is imported by others.
from pyspark_kafkalite.session import session
from pyspark_kafkalite.versions import check

__all__ = ["DefaultSource", "LagListener", "appending", "read", "read_stream", "session"]


def __getattr__(name: str) -> Any:
    # Spark imports this module in each of its workers, and looks for its source here; the commands
    # import it to say what is missing.
    if name in __all__:
        check()
    if name == "DefaultSource":
        from pyspark_kafkalite.source import DefaultSource

        return DefaultSource
    if name in ("read", "read_stream"):
        from pyspark_kafkalite import fast

        return getattr(fast, name)
    if name == "appending":
        from pyspark_kafkalite.sink import appending

        return appending
    if name == "LagListener":
        from pyspark_kafkalite.listener import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
