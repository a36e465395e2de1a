"""Batch job: delays of the flights in a topic, by carrier and hour of the day.

    kafkalite start                                 # in another terminal
    kafkalite demo                                  # 336,776 flights into the topic `flights`
    kafkalite spark run spark/pipelines/delays.py --to /tmp/delays

It reads the current records of the topic, and replaces the table, which is Parquet:

    carrier  hour  flights  cancelled  departure_minutes  arrival_minutes

Minutes are means over the flights that departed, or arrived.  On a cluster DIRECTORY must be shared
by all machines; `kafkalite spark run --master spark://HOST:7077 …` runs it there.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_kafkalite

FLIGHT = "carrier string, hour int, dep_delay double, arr_delay double, dep_time int"
"""Fields of a flight that are read; the rest of its JSON is ignored."""


def flights(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return the flights in the topic, one row each."""
    records = (
        spark.read.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("columns", "value")  # only this column is fetched
        .load()
    )
    return records.select(
        F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    ).select("flight.*")


def delays(flights: DataFrame) -> DataFrame:
    """Return a row for each carrier and hour, sorted."""
    return (
        flights.groupBy("carrier", "hour")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
            F.round(F.avg("dep_delay"), 1).alias("departure_minutes"),
            F.round(F.avg("arr_delay"), 1).alias("arrival_minutes"),
        )
        .orderBy("carrier", "hour")
    )


def main() -> None:
    """Read the command line and write the table."""
    parser = argparse.ArgumentParser(description="delays by carrier and hour, into Parquet")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--to", required=True, metavar="DIRECTORY")
    given = parser.parse_args()

    spark = pyspark_kafkalite.session("delays")
    table = delays(flights(spark, given.bootstrap, given.topic))
    # Some hundred rows: one file.
    table.coalesce(1).write.mode("overwrite").parquet(given.to)
    written = spark.read.parquet(given.to)
    written.orderBy(F.desc("departure_minutes")).show(10)
    print(f"{written.count()} rows in {given.to}")
    spark.stop()


if __name__ == "__main__":
    main()
