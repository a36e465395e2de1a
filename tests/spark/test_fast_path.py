"""The fast path (RangePipeline): it returns the columns requested, and fetches nothing in vain."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark_kafkalite.connector import fast_path
from pyspark_kafkalite.connector.fast_path import read, read_stream
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.range_batches import COLUMNS
from pyspark_kafkalite.connector.range_pipeline import RangePipeline
from pyspark_kafkalite.connector.source_options import source_options
from pyspark_kafkalite.decoding import Decode
from tests.client.consuming import numbered, produce

SCHEMA = "carrier STRING, delay INT"
COUNT = 1000


def flight(number):
    return json.dumps({"carrier": "ABC"[number % 3], "delay": number}).encode()


@pytest.fixture(scope="module")
def flights(broker):
    topic = broker.topic(2)
    for partition in range(2):
        values = [flight(number) for number in range(partition, COUNT, 2)]
        produce(broker.bootstrap, topic, values, partition)
    return topic


def pipeline(broker, topic="t", decode=None, columns=None, **keywords):
    said = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    return RangePipeline(source_options(said, stream=False), decode, columns, **keywords)


def rows(made, topic, partition=0, end=COUNT // 2):
    batches = list(made.of(OffsetRange(topic, partition, 0, end)))
    assert all(batch.schema.equals(made.schema) for batch in batches)
    return pa.Table.from_batches(batches, made.schema).to_pylist()


def late(batch):
    return pc.greater(batch.column("delay"), 990)


# Without a JVM.


def test_default_columns_are_those_of_the_record(broker, flights):
    made = pipeline(broker, flights)
    assert made.schema.names == list(COLUMNS)
    assert len(rows(made, flights)) == COUNT // 2


def test_values_are_decoded_filtered_and_projected(broker, flights):
    decode = Decode("json", SCHEMA)
    for keep in (late, pc.field("delay") > 990, lambda batch: [False] * len(batch)):
        made = pipeline(broker, flights, decode, ["delay", "partition"], filter=keep)
        found = rows(made, flights)
        delays = [] if found == [] else [992, 994, 996, 998]
        assert found == [{"delay": delay, "partition": 0} for delay in delays]


def test_filter_may_use_columns_outside_the_result(broker, flights):
    made = pipeline(broker, flights, columns=["value"], filter=pc.field("offset") == 7)
    assert made._fetched == ["value", "offset"]
    assert rows(made, flights) == [{"value": flight(14)}]
    made = pipeline(broker, flights, columns=["value"], filter=lambda b: pc.less(b["offset"], 2))
    assert made._fetched == ["value", "offset"]
    assert len(rows(made, flights)) == 2


def test_only_required_columns_are_fetched(broker):
    assert pipeline(broker, columns=["offset"])._fetched == ["offset"]
    decode = Decode("json", SCHEMA)
    assert pipeline(broker, decode=decode, columns=["delay"])._fetched == [
        "value", "topic", "partition", "offset",
    ]  # fmt: skip


def test_map_arrow_transforms_batches(broker, flights):
    def counted(batch):
        return pa.record_batch({"n": pa.array([len(batch)], pa.int32()), "more": ["x"]})

    made = pipeline(broker, flights, map_arrow=counted, schema="n BIGINT")
    assert sum(row["n"] for row in rows(made, flights)) == COUNT // 2
    with pytest.raises(ValueError, match="map_arrow must return.* m; it returned"):
        rows(pipeline(broker, flights, map_arrow=counted, schema="m INT"), flights)
    with pytest.raises(ValueError, match="map_arrow must return.* n; it returned NoneType"):
        rows(pipeline(broker, flights, map_arrow=lambda batch: None, schema="n INT"), flights)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"map_arrow": len}, "map_arrow requires schema"),
        ({"schema": "a INT"}, "schema requires map_arrow"),
        ({"columns": ["nope"]}, "no column 'nope'; the columns are key, value"),
        ({"columns": "value"}, "list of distinct names"),
        ({"columns": []}, "list of distinct names"),
        ({"decode": Decode("json", "topic STRING")}, "value_prefix"),
        ({"decode": Decode("json", SCHEMA), "columns": ["value"]}, "no column 'value'"),
    ],
)
def test_invalid_arguments_raise_on_the_driver(broker, keywords, words):
    with pytest.raises(ValueError, match=words):
        pipeline(broker, **keywords)


def test_invalid_filter_mask_raises(broker, flights):
    for keep in (lambda batch: [True], lambda batch: batch.column("offset")):
        with pytest.raises(ValueError, match="a mask of 500 booleans"):
            rows(pipeline(broker, flights, columns=["offset"], filter=keep), flights)


def test_prefix_allows_value_columns_named_as_record_columns(broker, flights):
    decode = Decode("json", "delay INT, offset INT", prefix="v_")
    made = pipeline(broker, flights, decode, ["v_delay", "offset"])
    assert rows(made, flights)[3] == {"v_delay": 6, "offset": 3}
    # Without the record's own column there is no conflict of names.
    made = pipeline(broker, flights, Decode("json", "delay INT, key STRING"), ["delay", "key"])
    assert rows(made, flights)[3] == {"delay": 6, "key": None}


def test_pipeline_survives_pickle(broker, flights):
    made = pipeline(broker, flights, Decode("json", SCHEMA), filter=pc.field("delay") > 990)
    again = pickle.loads(pickle.dumps(made))
    assert rows(again, flights) == rows(made, flights)


def test_duplicate_options_are_rejected():
    given = {"startingOffsets": "earliest", "failOnDataLoss": False, "value_schema": SCHEMA}
    said, decoding = fast_path.options_of(["a", "b"], "h:1", "json", given)
    assert said == {"startingOffsets": "earliest", "failOnDataLoss": "false", "subscribe": "a,b",
                    "kafka.bootstrap.servers": "h:1"}  # fmt: skip
    assert decoding == {"value_schema": SCHEMA, "value_format": "json"}
    for wrong in (
        ("t", None, None, {"Subscribe": "t"}),
        (None, "h:1", None, {"kafka.bootstrap.servers": "h:1"}),
        (None, None, "json", {"value_format": "json"}),
        (None, None, Decode("string"), {"value_schema": SCHEMA}),
    ):
        with pytest.raises(ValueError, match="exclude each other|pass them to Decode|use columns="):
            fast_path.options_of(*wrong)


# With Spark.


@pytest.mark.spark_session
def test_read_returns_a_spark_data_frame(spark, broker, flights):
    frame = read(
        spark, flights, bootstrap=broker.bootstrap, decode="json", value_schema=SCHEMA,
        columns=["carrier", "delay"], filter=pc.field("delay") >= 10, minPartitions=4,
    )  # fmt: skip
    assert [field.simpleString() for field in frame.schema] == ["carrier:string", "delay:int"]
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.delay for row in frame.collect()) == list(range(10, COUNT))
    assert frame.groupBy("carrier").count().count() == 3


@pytest.mark.spark_session
@pytest.mark.spark
def test_read_without_columns_equals_the_data_source(spark, broker, flights):
    frame = read(spark, flights, bootstrap=broker.bootstrap)
    whole = spark.read.format("kafkalite").options(
        **{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": flights}
    ).load()  # fmt: skip
    assert frame.schema == whole.schema
    assert sorted(frame.collect()) == sorted(whole.collect())


@pytest.mark.spark_session
@pytest.mark.spark
def test_offsets_are_fixed_when_read_is_called(spark, broker):
    topic = broker.topic()
    assert read(spark, topic, bootstrap=broker.bootstrap).count() == 0
    produce(broker.bootstrap, topic, numbered(10))
    frame = read(spark, topic, bootstrap=broker.bootstrap, columns=["offset"])
    produce(broker.bootstrap, topic, numbered(10))
    assert frame.count() == 10


@pytest.mark.spark_session
@pytest.mark.spark
def test_read_stream_continues_from_its_checkpoint(spark, broker, tmp_path):
    topic = broker.topic(2)

    def values(batch):
        return pa.record_batch({"n": pc.cast(pc.cast(batch["value"], pa.string()), pa.int32())})

    def run():
        stream = read_stream(
            spark, topic, bootstrap=broker.bootstrap, startingOffsets="earliest",
            columns=["value"], map_arrow=values, schema="n INT",
        )  # fmt: skip
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sorted(row.n for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    produce(broker.bootstrap, topic, numbered(500), 0)
    produce(broker.bootstrap, topic, numbered(500, 500), 1)
    assert run() == list(range(1000))
    produce(broker.bootstrap, topic, numbered(500, 1000), 1)
    assert run() == list(range(1500))


@pytest.mark.spark_session
def test_bad_row_in_spark_names_its_offset(spark, broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, [flight(0), b"{", flight(1)])
    words = {"bootstrap": broker.bootstrap, "decode": "json", "value_schema": SCHEMA}
    with pytest.raises(Exception, match=f"{topic}-0 at offset 1.*on_bad_rows"):
        read(spark, topic, **words).collect()
    kept = read(spark, topic, **words, on_bad_rows="drop", columns=["offset"]).collect()
    assert [row.offset for row in kept] == [0, 2]


@pytest.mark.spark_session
def test_nested_types_are_read_in_spark(spark, broker):
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record", "name": "r",
        "fields": [
            {"name": "m", "type": {"type": "map", "values": ["null", "long"]}},
            {"name": "l", "type": {"type": "array", "items": {
                "type": "record", "name": "leg", "fields": [{"name": "gate", "type": "string"}]}}},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
            {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }  # fmt: skip
    row = {"m": {"k": 1, "n": None}, "l": [{"gate": "B7"}, {"gate": "B9"}], "d": Decimal("1.25"),
           "day": date(2024, 1, 2), "at": datetime(2024, 1, 2, 3, tzinfo=UTC)}  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    topic = broker.topic()
    produce(broker.bootstrap, topic, [out.getvalue(), None])
    frame = read(
        spark, topic, bootstrap=broker.bootstrap, decode="avro", value_schema=schema,
        columns=["m", "l", "d", "day", "at"],
    )  # fmt: skip
    kinds = dict(frame.dtypes)
    assert kinds["m"] == "map<string,bigint>" and kinds["l"] == "array<struct<gate:string>>"
    assert (kinds["d"], kinds["day"], kinds["at"]) == ("decimal(9,2)", "date", "timestamp")
    chosen = ("m", "l.gate[1] gate", "d", "day", "unix_micros(at) at")
    first, second = frame.selectExpr(*chosen).collect()
    assert first.asDict() == {"m": row["m"], "gate": "B9", "d": row["d"], "day": row["day"],
                              "at": int(row["at"].timestamp()) * 1_000_000}  # fmt: skip
    assert set(second.asDict().values()) == {None}


@pytest.mark.spark_session
@pytest.mark.spark
def test_lost_records_fail_the_query_unless_allowed(spark, broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(100))
    words = {"bootstrap": broker.bootstrap, "columns": ["offset"]}
    strict = read(spark, topic, **words)
    lenient = read(spark, topic, **words, failOnDataLoss=False)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, 40)
    admin.delete_records([place])[place].result(60)
    with pytest.raises(Exception, match="begins at offset 40.*set failOnDataLoss to false"):
        strict.collect()
    assert sorted(row.offset for row in lenient.collect()) == list(range(40, 100))
