"""A stream: how many flights of each carrier come in per window of time, back into a topic.

    kafkalite start                                 # in another terminal
    kafkalite topic create flights-per-carrier
    kafkalite spark run spark/pipelines/windows.py --checkpoint /tmp/windows
    kafkalite demo                                  # in a third: flights into the topic `flights`
    kafkalite consume -t flights-per-carrier

A window is told once, when it is complete: as soon as a record has come that is later than its end
by what is waited for late ones (the watermark).  A record's time is that of the record, which is
when it was sent if its sender said nothing else.  What is written has the carrier as key and

    {"start":"2026-11-22T06:47:08.000Z","end":"2026-11-22T06:47:09.000Z","flights":2114}

The checkpoint holds the offsets and the windows that are open.  Ctrl-C ends the job, and the same
command goes on where it was; a window that it was just writing may then come twice.  With --once
it reads what is there and ends.  On a cluster DIRECTORY is one that all its machines see.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_kafkalite


def flights(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """The flights as they come in, from the topic's first: carrier and time."""
    records = (
        spark.readStream.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("columns", "value,timestamp")
        .option("startingOffsets", "earliest")  # of the first start; later the checkpoint says
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    carrier = F.get_json_object(F.col("value").cast("string"), "$.carrier")
    return records.select(carrier.alias("carrier"), "timestamp")


def counted(flights: DataFrame, window: str, late: str) -> DataFrame:
    """A record for each carrier and window: what the sink takes."""
    counts = (
        flights.withWatermark("timestamp", late)
        .groupBy("carrier", F.window("timestamp", window).alias("window"))
        .agg(F.count("*").alias("flights"))
    )
    told = F.to_json(F.struct("window.start", "window.end", "flights"), {"timeZone": "UTC"})
    return counts.select(F.col("carrier").alias("key"), told.alias("value"))


def into(counts: DataFrame, bootstrap: str, topic: str, checkpoint: str) -> DataStreamWriter:
    """The query, to be started."""
    return (
        counts.writeStream.format("kafkalite")
        .outputMode("append")  # a window once, when no more can come
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
    )


def main() -> None:
    """Read the command line and run the query."""
    parser = argparse.ArgumentParser(description="flights per carrier and window, into a topic")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--to", default="flights-per-carrier", metavar="TOPIC")
    parser.add_argument("--checkpoint", required=True, metavar="DIRECTORY")
    parser.add_argument("--window", default="1 second", metavar="TIME", help="a window's length")
    parser.add_argument("--late", default="2 seconds", metavar="TIME", help="wait for late ones")
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    given = parser.parse_args()

    spark = pyspark_kafkalite.session("windows")
    counts = counted(flights(spark, given.bootstrap, given.topic), given.window, given.late)
    query = into(counts, given.bootstrap, given.to, given.checkpoint)
    query = query.trigger(availableNow=True) if given.once else query
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
