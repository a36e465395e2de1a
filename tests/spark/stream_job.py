"""A job to be killed: it streams a topic into Parquet files until it ends.

    python -m tests.spark.stream_job BOOTSTRAP TOPIC DIRECTORY SOCKETS

Prints a line when its query runs, and restarts it only if Spark timed out a start that was late.
"""

import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from pyspark_kafkalite import session
from tests.spark.queries import failure_of
from tests.spark.settling import settings_in


def main(bootstrap: str, topic: str, directory: str, sockets: str) -> None:
    place = Path(directory)
    spark = session("stream job", "local[2]", **settings_in(place / "spark", sockets))
    records = (
        spark.readStream.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "2000")
        .load()
    )
    writer = (
        records.select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
    )
    while True:
        query = writer.start(str(place / "out"))
        print("running", flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException:
            if failure_of(query) is not None:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
