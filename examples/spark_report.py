"""Write a DataFrame to a topic with Spark, read the topic, and aggregate it.

pip install 'kafkalite[spark]'                          # PySpark, and a Java if there is none
make start                                              # in another terminal
kafkalite spark run examples/spark_report.py [HOST:PORT]
"""

import sys

from pyspark.sql import functions as F

import pyspark_kafkalite

ROW_COUNT = 1000


def main(bootstrap: str) -> None:
    spark = pyspark_kafkalite.session("report")
    address = {"kafka.bootstrap.servers": bootstrap}

    flights = spark.range(ROW_COUNT).select(
        F.concat(F.lit("carrier "), F.col("id") % 3).alias("key"),
        F.to_json(F.struct((F.col("id") % 60).alias("delay"))).alias("value"),
    )
    flights.write.format("kafkalite").mode("append").options(**address, topic="departures").save()

    topic = spark.read.format("kafkalite").options(**address, subscribe="departures").load()
    delays = topic.select(
        F.col("key").cast("string").alias("carrier"),
        F.from_json(F.col("value").cast("string"), "delay int")["delay"].alias("delay"),
    )
    report = delays.groupBy("carrier").agg(F.count("*").alias("flights"), F.max("delay"))
    report.orderBy("carrier").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
