"""Log aggregation job: JSON lines of a topic into Parquet files, by day and one of their fields.

    kafkalite start                                 # in another terminal
    kafkalite demo                                  # flights into the topic `flights`, as JSON
    kafkalite spark run spark/pipelines/archive.py --topic flights --time time_hour --by origin \\
        --to /tmp/archive --checkpoint /tmp/archive-checkpoint

writes

    /tmp/archive/day=2013-01-01/origin=JFK/part-….parquet        time, line, partition, offset

Files roll by count, size and time: a micro-batch is written when --records lines have arrived or
after --wait, whichever is first, and takes at most --bytes of the topic; a file has at most
--file-records lines.  A micro-batch writes one file for each day and value, not one per task.

A line is archived exactly once, whatever ends the job; the same command continues it.  Read the
directory with Spark, which knows which files are complete.  A line that is not JSON, or lacks the
fields, is archived by the day of its record's timestamp, under `none`.  With --once the job
archives the current records and ends.  On a cluster all machines must share both
directories.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_kafkalite


def lines(
    spark: SparkSession, bootstrap: str, topic: str, records: int, size: str, wait: str
) -> DataFrame:
    """Return the records of the topic from the first, in micro-batches of `records`."""
    return (
        spark.readStream.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("columns", "value,timestamp,partition,offset")
        .option("startingOffsets", "earliest")  # for the first start; later ones use the checkpoint
        .option("minOffsetsPerTrigger", records)
        .option("maxTriggerDelay", wait)
        .option("maxBytesPerTrigger", size)
        .load()
    )


def filed(lines: DataFrame, time: str, by: str) -> DataFrame:
    """Return each line with its time, its `day`, and a column named after the field."""
    line = F.col("value").cast("string")
    told = F.try_to_timestamp(F.get_json_object(line, f"$.{time}"))
    when = F.coalesce(told, "timestamp")
    return lines.select(
        when.alias("time"),
        line.alias("line"),
        "partition",
        "offset",
        F.to_date(when).alias("day"),
        F.coalesce(F.get_json_object(line, f"$.{by}"), F.lit("none")).alias(by),
    )


def into(filed: DataFrame, by: str, to: str, checkpoint: str, most: int) -> DataStreamWriter:
    """Return the query, to be started; a file has at most `most` lines."""
    return (
        filed.repartition("day", by)  # all lines of a file in one task
        .writeStream.format("parquet")
        .partitionBy("day", by)
        .option("path", to)
        .option("maxRecordsPerFile", most)
        .option("checkpointLocation", checkpoint)
    )


def main() -> None:
    """Read the command line and run the query."""
    parser = argparse.ArgumentParser(description="JSON lines of a topic into Parquet")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--time", default="time", metavar="FIELD", help="holds a line's time")
    parser.add_argument("--by", default="level", metavar="FIELD", help="parts files within a day")
    parser.add_argument("--to", required=True, metavar="DIRECTORY")
    parser.add_argument("--checkpoint", required=True, metavar="DIRECTORY")
    parser.add_argument("--records", type=int, default=1_000_000, help="lines that make a round")
    parser.add_argument("--wait", default="5m", help="how long a round waits for its lines")
    parser.add_argument("--bytes", default="512m", help="the most of the topic in a round")
    parser.add_argument("--file-records", type=int, default=5_000_000, help="the most in a file")
    parser.add_argument("--once", action="store_true", help="archive what is there, and end")
    given = parser.parse_args()

    spark = pyspark_kafkalite.session("archive")
    come = lines(spark, given.bootstrap, given.topic, given.records, given.bytes, given.wait)
    query = into(
        filed(come, given.time, given.by), given.by, given.to, given.checkpoint, given.file_records
    )
    query = query.trigger(availableNow=True) if given.once else query
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
