"""A job that is killed: a topic into Parquet files, for as long as it lives.

    python -m tests.spark.stream_job BOOTSTRAP TOPIC DIRECTORY SOCKETS

Says a line when its query runs.
"""

import sys
from pathlib import Path

from pyspark_kafkalite import session
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
    query = (
        records.select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .start(str(place / "out"))
    )
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
