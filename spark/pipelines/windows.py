"""Streaming job: number of flights per carrier and time window, written to a topic.

    kafkalite start                                 # in another terminal
    kafkalite topic create flights-per-carrier
    kafkalite spark run spark/pipelines/windows.py --checkpoint /tmp/windows
    kafkalite demo                                  # in a third: flights into the topic `flights`
    kafkalite consume -t flights-per-carrier

A window is written once, when it is complete: after a record whose timestamp is later than the
window's end by the watermark delay (--late).  A record's timestamp is the producer's, by default
the time when it was sent.  The output has the carrier as key and as value

    {"start":"2026-11-22T06:47:08.000Z","end":"2026-11-22T06:47:09.000Z","flights":2114}

The checkpoint has the offsets and the open windows.  Ctrl-C ends the job, and the same command
continues it; a window that was being written may then be written twice.  With --once it reads the
current records and ends.  On a cluster DIRECTORY must be shared by all machines.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_kafkalite


def flights(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return the flights from the topic's first record on: carrier and time."""
    records = (
        spark.readStream.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("columns", "value,timestamp")
        .option("startingOffsets", "earliest")  # for the first start; later ones use the checkpoint
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    carrier = F.get_json_object(F.col("value").cast("string"), "$.carrier")
    return records.select(carrier.alias("carrier"), "timestamp")


def counted(flights: DataFrame, window: str, late: str) -> DataFrame:
    """Return a record for each carrier and window, for the sink."""
    counts = (
        flights.withWatermark("timestamp", late)
        .groupBy("carrier", F.window("timestamp", window).alias("window"))
        .agg(F.count("*").alias("flights"))
    )
    told = F.to_json(F.struct("window.start", "window.end", "flights"), {"timeZone": "UTC"})
    return counts.select(F.col("carrier").alias("key"), told.alias("value"))


def into(counts: DataFrame, bootstrap: str, topic: str, checkpoint: str) -> DataStreamWriter:
    """Return the query, to be started."""
    return (
        counts.writeStream.format("kafkalite")
        .outputMode("append")  # each window once, when it is complete
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
