"""Write pandas and polars frames to a topic and read columns back, without a loop over records.

pip install 'kafkalite[arrow]' pandas polars
make start                                              # in another terminal
python examples/data_frames.py [HOST:PORT]              # default: 127.0.0.1:9092
"""

import sys

import pandas as pd
import polars as pl

from kafkalite import Consumer, Producer

ROW_COUNT = 10_000


def main(bootstrap: str) -> None:
    prices = pd.DataFrame(
        {"symbol": ["ABC", "XYZ"] * (ROW_COUNT // 2), "price": range(ROW_COUNT)},
    )
    readings = pl.DataFrame(
        {
            "key": ["attic", "cellar"] * (ROW_COUNT // 2),
            "value": ["21.5", "16.0"] * (ROW_COUNT // 2),
        },
    )
    with Producer(bootstrap) as producer:
        producer.send_table("prices", prices, key="symbol").result()  # a JSON object per row
        producer.send_arrow("readings", readings).result()  # key and value as they are

    with Consumer(bootstrap, topics="prices") as consumer:
        values = pl.from_arrow(consumer.to_table(columns=["value"]))["value"].cast(pl.String)
        frame = values.str.json_decode(pl.Struct({"symbol": pl.String, "price": pl.Int64}))
        print(frame.struct.unnest().group_by("symbol").agg(pl.col("price").max()).sort("symbol"))

    with Consumer(bootstrap, topics="readings") as consumer:
        table = consumer.to_table(columns=["key", "timestamp"]).to_pandas()
        print(table["key"].value_counts().sort_index())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
