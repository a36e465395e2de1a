"""Kafka topics in PySpark: the data source `kafkalite`, and a faster read path.

spark.read.format("kafkalite")…            like Spark's own Kafka source, without a jar
pyspark_kafkalite.read(spark, "flights")   plans offsets on the driver, reads in one mapInArrow
pyspark_kafkalite.session()                a Spark session with suitable configuration
appending(**options)                       writes to a topic from foreachBatch
LagListener()                              lag and number of bad rows of streams, after every
                                           micro-batch
"""

from __future__ import annotations

from typing import Any

from pyspark_kafkalite.launch.session import session
from pyspark_kafkalite.launch.versions import check

__all__ = ["DefaultSource", "LagListener", "appending", "read", "read_stream", "session"]


def __getattr__(name: str) -> Any:
    # Lazy: Spark imports this module in each of its workers to find the data source, and the
    # commands import it to report missing packages.
    if name in __all__:
        check()
    if name == "DefaultSource":
        from pyspark_kafkalite.connector.source import DefaultSource

        return DefaultSource
    if name in ("read", "read_stream"):
        from pyspark_kafkalite.connector import fast_path

        return getattr(fast_path, name)
    if name == "appending":
        from pyspark_kafkalite.connector.sink import appending

        return appending
    if name == "LagListener":
        from pyspark_kafkalite.connector.lag_listener import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
