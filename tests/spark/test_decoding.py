"""Values become columns one for one, whatever they contain; a bad one affects no other row."""

from __future__ import annotations

import io
import json
import pickle
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.client.consumer.consumer import Consumer
from pyspark_kafkalite.decoding import BadRow, Decode, decode_of, sifting
from pyspark_kafkalite.decoding.bad_rows import BadRows
from pyspark_kafkalite.decoding.ddl import arrow_schema
from pyspark_kafkalite.decoding.json_values import JsonFormat
from pyspark_kafkalite.decoding.registry import Registry
from tests.client.consuming import take

fastavro = pytest.importorskip("fastavro")
DROP = BadRows("drop")
MOMENT = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)


def batch(values):
    count = len(values)
    return pa.record_batch({
        "topic": pa.array(["t"] * count, pa.string()),
        "partition": pa.array([2] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "key": pa.array([b"k"] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
    })  # fmt: skip


def places_and_rows(decode, values):
    """Return the decoded row of each good value, by the position of the value."""
    found = decode(batch(values))
    found.validate(full=True)
    names = decode.columns.names
    return {row["offset"] - 100: tuple(row[name] for name in names) for row in found.to_pylist()}


def good(decode, *values):
    found = places_and_rows(decode, list(values))
    assert list(found) == list(range(len(values)))
    return list(found.values())


def framed(number, value):
    return struct.pack(">bI", 0, number) + value


# Schemas.


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("a INT", [("a", pa.int32())]),
        ("a: bigint, `b c` STRING NOT NULL COMMENT 'it''s'", [("a", pa.int64()),
                                                              ("b c", pa.string())]),
        ("d DECIMAL(10, 2), e decimal, f varchar(7)", [("d", pa.decimal128(10, 2)),
                                                       ("e", pa.decimal128(10, 0)),
                                                       ("f", pa.string())]),
        ("a ARRAY<STRUCT<x: DOUBLE, y: MAP<STRING, DATE>>>",
         [("a", pa.list_(pa.field("element", pa.struct([
             ("x", pa.float64()), ("y", pa.map_(pa.string(), pa.date32()))]))))]),
        ("t TIMESTAMP, n TIMESTAMP_NTZ", [("t", pa.timestamp("us", "UTC")),
                                          ("n", pa.timestamp("us"))]),
    ],
)  # fmt: skip
def test_schema_is_parsed_from_text(text, schema):
    if "''" in text:
        text = text.replace("it''s", "its")
    assert arrow_schema(text) == pa.schema(schema)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a INT,", "a INT b", "a FOO", "a ARRAY<INT", "a STRUCT<>", "a INT, A INT",
     "a DECIMAL(50,2)", "a DECIMAL(x)", "a MAP<INT>", "1 + 1", "a INT NOT", "a " + "ARRAY<" * 99],
)  # fmt: skip
def test_invalid_schema_text_is_rejected(text):
    with pytest.raises(ValueError, match="cannot be parsed"):
        arrow_schema(text)


def test_schema_equals_the_schema_of_spark():
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    inner = types.StructType().add("x", types.DoubleType(), False)
    schema = (
        types.StructType()
        .add("i", types.IntegerType(), False).add("t", types.TimestampType())
        .add("l", types.ArrayType(inner)).add("m", types.MapType(types.StringType(),
                                                                 types.LongType()))
        .add("d", types.DecimalType(9, 3)).add("b", types.BinaryType())
    )  # fmt: skip
    text = (
        "i INT, t TIMESTAMP, l ARRAY<STRUCT<x: DOUBLE>>, m MAP<STRING, LONG>, d DECIMAL(9,3),"
        " b BINARY"
    )
    assert [f.type for f in arrow_schema(text)] == [
        f.type for f in to_arrow_schema(arrow_spark(text), timezone="UTC")
    ]
    assert arrow_schema(schema).names == arrow_schema(text).names
    with pytest.raises(ValueError, match="A schema must be a text like"):
        arrow_schema(7)


def arrow_spark(text):
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(text))


# JSON.

JSON = "a INT, s STRING, t TIMESTAMP, d DATE, l ARRAY<STRUCT<k: INT>>, m DECIMAL(6,2)"


def test_json_fields_become_columns():
    value = (
        b'{"a": 1, "s": "\\u00e9", "t": "2024-01-02T03:04:05Z", "d": "2024-01-02", "more": {"x":'
        b' [1, {"y": null}]},\n "l": [{"k": 1}, {}, null], "m": 1.25}'
    )
    decode = Decode("json", JSON)
    row = (1, "é", MOMENT, date(2024, 1, 2), [{"k": 1}, {"k": None}, None], Decimal("1.25"))
    nothing = (None,) * 6
    assert good(decode, value, None, b"{}", b"null", b" {} ", value) == [
        row, nothing, nothing, nothing, nothing, row,
    ]  # fmt: skip
    assert good(decode) == []
    assert good(decode, None, None) == [nothing] * 2


BAD_JSON = [
    b"", b" ", b"\n", b"x", b"{", b'{"a":1', b'{"a":1}}', b"5", b"[]", b'"x"', b"[" * 100_000,
    b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":1}}\n{"v":{"a":2}', b'{"a":"x"}', b'{"a":1.5}',
    b'{"a":3000000000}', b'{"a":1,"a":2}', b'{"s":5}', b'{"s":"\xff"}', b'{"s":"\\ud800"}',
    b'{"s":"\x00"}', b'{"d":"yesterday"}', b'{"t":"x"}', b'{"l":{}}', b'{"l":[1]}',
    b'{"m":"x"}', b"\xff\xfe", b"\xef\xbb\xbf{}", b"nul", b'{"a":1},"v":{"a":3}', b"\x00" * 9,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_JSON)
def test_bad_json_affects_no_other_row(value):
    values = [b'{"a":%d}' % number for number in range(5)]
    values.insert(3, value)
    found = places_and_rows(Decode("json", JSON, bad_rows=DROP), values)
    assert {place: row[0] for place, row in found.items()} == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}


@settings(deadline=None, max_examples=80)
@given(st.lists(st.one_of(
    st.integers(0, 9),
    st.sampled_from([None, *(value for value in BAD_JSON if len(value) < 100)]),
    st.binary(max_size=4),
    st.text('{}[]"\\,:v1 \n', max_size=12).map(str.encode),
), max_size=12))  # fmt: skip
def test_any_json_keeps_the_other_rows_in_place(cells):
    values = [b'{"a":%d}' % each if isinstance(each, int) else each for each in cells]
    found = places_and_rows(Decode("json", "a INT", bad_rows=DROP), values)
    for place, each in enumerate(cells):
        if isinstance(each, int):
            assert found[place] == (each,)
        elif each is None:
            assert found[place] == (None,)


@pytest.mark.parametrize("depth", [1_000, 1_000_000])
def test_deep_json_is_decoded(depth):
    deep = b'{"more":' + b"[" * depth + b"]" * depth + b',"a":1}'
    objects = b'{"more":' + b'{"x":' * depth + b"1" + b"}" * depth + b',"a":2}'
    assert good(Decode("json", "a INT"), deep, objects) == [(1,), (2,)]


def test_json_rejects_a_map_type():
    with pytest.raises(ValueError, match="cannot be decoded to a MAP"):
        Decode("json", "m MAP<STRING, INT>")


# CSV.

CSV = "a INT, s STRING, t TIMESTAMP"


def test_csv_fields_become_columns():
    values = [
        b"1,x,2024-01-02T03:04:05Z", b'2,"a,""b""",2024-01-02 03:04:05\r\n', b",,", None,
        b'3,"two\nlines",2024-01-02 04:04:05+01:00', b'4,"",\n',
    ]  # fmt: skip
    assert good(Decode("csv", CSV), *values) == [
        (1, "x", MOMENT), (2, 'a,"b"', MOMENT), (None,) * 3, (None,) * 3,
        (3, "two\nlines", MOMENT), (4, "", None),
    ]  # fmt: skip
    assert good(Decode("csv", "s STRING"), b"", b"x", b"", b'""') == [(None,), ("x",), (None,),
                                                                      ("",)]  # fmt: skip
    assert good(Decode("csv", "a INT, b INT", separator="\t"), b"1\t2") == [(1, 2)]


BAD_CSV = [
    b"1", b"1,x", b"1,x,,", b"x,x,", b'1,"x', b'1,"x,', b"1,x,yesterday", b"1,\xff,",
    b"1,x,\n2,y,", b"99999999999,,", b'1,"x"y"', b"1.5,,",
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_CSV)
def test_bad_csv_affects_no_other_row(value):
    values = [b"%d,x," % number for number in range(5)]
    values.insert(3, value)
    found = places_and_rows(Decode("csv", CSV, bad_rows=DROP), values)
    assert {place: row[0] for place, row in found.items()} == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}


@settings(deadline=None, max_examples=80)
@given(st.lists(st.one_of(
    st.integers(0, 9),
    st.sampled_from([None, *BAD_CSV]),
    st.text('",\n\rx1 ', max_size=8).map(str.encode),
), max_size=12))  # fmt: skip
def test_any_csv_keeps_the_other_rows_in_place(cells):
    values = [b"%d,x," % each if isinstance(each, int) else each for each in cells]
    found = places_and_rows(Decode("csv", CSV, bad_rows=DROP), values)
    for place, each in enumerate(cells):
        if isinstance(each, int):
            assert found[place] == (each, "x", None)


def test_csv_rejects_list_columns_and_long_separators():
    with pytest.raises(ValueError, match="cannot represent column 'l'"):
        Decode("csv", "l ARRAY<INT>")
    with pytest.raises(ValueError, match="csv_separator"):
        Decode("csv", CSV, separator="::")


# Text.


def test_text_that_is_not_utf8_is_a_bad_row():
    assert good(Decode("string"), "é".encode(), b"", None) == [("é",), ("",), (None,)]
    assert places_and_rows(Decode("string", bad_rows=DROP), [b"a", b"\xff", b"b"]) == {
        0: ("a",), 2: ("b",),
    }  # fmt: skip


# Avro.

AVRO = {
    "type": "record", "name": "Flight", "namespace": "x.y",
    "fields": [
        {"name": "a", "type": ["null", "int"], "default": None},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "e2", "type": "E"},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "c", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6,
                               "scale": 2}},
        {"name": "l", "type": {"type": "array", "items": "string"}},
    ],
}  # fmt: skip
ROW = {
    "a": 1, "m": {"k": 2}, "e": "Y", "e2": "X", "u": "not one", "t": MOMENT, "c": 7,
    "d": Decimal("1.25"), "l": ["x", "y"],
}  # fmt: skip


def avro(schema, row):
    out = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType": "uuid"', '"x": 1')
                       .replace('"logicalType": "time-millis"', '"x": 1'))  # fmt: skip
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), row)
    return out.getvalue()


def test_avro_fields_become_columns():
    for schema in (AVRO, json.dumps(AVRO)):
        decode = pickle.loads(pickle.dumps(Decode("avro", schema)))
        row = tuple([("k", 2)] if name == "m" else value for name, value in ROW.items())
        assert good(decode, avro(AVRO, ROW), None) == [row, (None,) * 9]
        assert decode.columns.field("t").type == pa.timestamp("us", "UTC")


def test_truncated_avro_is_a_bad_row():
    whole = avro(AVRO, ROW)
    values = [whole, *(whole[:end] for end in range(len(whole))), whole + b"\0", whole]
    found = places_and_rows(Decode("avro", AVRO, bad_rows=DROP), values)
    assert list(found) == [0, len(values) - 1]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_after_avro_affect_no_other_row(noise):
    whole = avro(AVRO, ROW)
    found = places_and_rows(Decode("avro", AVRO, bad_rows=DROP), [whole, noise, whole])
    assert {0, 2} <= found.keys()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "Avro schema is invalid"),
        ('"int"', "must be a record"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "foo"}]}, "'foo'"),
        ({"type": "record", "name": "r"}, "no fields"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]},
         "union of several"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "null"}]}, "type null"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]},
         "contains itself"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "a", "type": {"type": "array", "items": "null"}}]}, "has no limit"),
        ("[" * 100_000, "Avro schema is invalid"),
        ("a INT", "must be an Avro schema in JSON"),
    ],
)  # fmt: skip
def test_unusable_avro_schema_is_rejected(schema, words):
    with pytest.raises(ValueError, match=words):
        Decode("avro", schema)


# Protobuf.


def descriptor(recursive=False):
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other")
    message = file.message_type.add(name="M")
    inner = message.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=1, label=1)
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("NONE", "SOME")):
        kind.value.add(name=name, number=number)
    named = {".p.M.Inner": 11, ".p.Kind": 14, ".google.protobuf.Timestamp": 11}
    for number, (name, kind, label, type_name) in enumerate([
        ("a", 5, 1, ""), ("s", 9, 1, ""), ("u", 4, 3, ""), ("b", 12, 1, ""),
        ("i", 11, 1, ".p.M.Inner"), ("k", 14, 1, ".p.Kind"), ("w", 13, 1, ""),
        ("t", 11, 1, ".google.protobuf.Timestamp"),
    ], 1):  # fmt: skip
        assert named.get(type_name, kind) == kind
        message.field.add(
            name=name, number=number, type=kind, label=label, type_name=type_name or None
        )
    entry = message.nested_type.add(name="NEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    message.field.add(name="n", number=20, type=11, label=3, type_name=".p.M.NEntry")
    if recursive:
        message.field.add(name="r", number=21, type=11, label=1, type_name=".p.M")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def message(**fields):
    from google.protobuf import message_factory

    from pyspark_kafkalite.decoding.protobuf_values import descriptor_of

    made = message_factory.GetMessageClass(descriptor_of(descriptor(), "p.M"))
    return made(**fields).SerializeToString()


def test_protobuf_fields_become_columns(tmp_path):
    pytest.importorskip("google.protobuf")
    path = tmp_path / "f.desc"
    path.write_bytes(descriptor())
    decode = pickle.loads(pickle.dumps(Decode("protobuf", str(path), message="p.M")))
    value = message(a=-1, s="é", u=[(1 << 64) - 1], b=b"\xff", i={"x": 0.5}, k=1, w=1 << 31,
                    n={"k": 5}, t={"seconds": int(MOMENT.timestamp())})  # fmt: skip
    row = (-1, "é", [Decimal((1 << 64) - 1)], b"\xff", {"x": 0.5}, "SOME", 1 << 31, MOMENT,
           [("k", 5)])  # fmt: skip
    default = (0, "", [], b"", None, "NONE", 0, None, [])
    assert good(decode, value, b"", None, b"\x30\x07") == [
        row, default, (None,) * 9, default[:5] + ("7",) + default[6:],
    ]  # fmt: skip


BAD_PROTOBUF = [b"\x08", b"\x12\x05x", b"\x12\x02\xff\xff", b"\x0f", b"\xff" * 20, b"\x2a\x01\x08"]


@pytest.mark.parametrize("value", BAD_PROTOBUF)
def test_bad_protobuf_affects_no_other_row(value):
    pytest.importorskip("google.protobuf")
    decode = Decode("protobuf", descriptor(), message="p.M", bad_rows=DROP)
    assert list(places_and_rows(decode, [b"", value, b""])) == [0, 2]


def test_registry_protobuf_selects_its_message_by_index():
    pytest.importorskip("google.protobuf")
    decode = Decode("protobuf", descriptor(), message="p.M", bad_rows=DROP,
                    registry=Registry.at("http://127.0.0.1:1"))  # fmt: skip
    one = message(a=3)
    headers = (b"\x02\x02", b"\x00", b"\x02\x04")
    values = [framed(1, header + one) for header in headers]
    values += [framed(1, b""), framed(1, b"\xff" * 9), one, framed(1, b"\xfe\xff\xff\x01")]
    found = places_and_rows(decode, values)
    assert {place: row[0] for place, row in found.items()} == {0: 3}
    inner = Decode("protobuf", descriptor(), message="p.M.Inner", bad_rows=DROP,
                   registry=Registry.at("http://127.0.0.1:1"))  # fmt: skip
    assert places_and_rows(inner, [framed(1, b"\x04\x02\x00")]) == {0: (0.0,)}


def test_invalid_protobuf_descriptor_is_rejected(tmp_path):
    pytest.importorskip("google.protobuf")
    for schema, name, words in (
        (b"\xff\xff", "p.M", "The descriptor file is invalid"),
        (descriptor(), "p.N", "no message 'p.N'.*p.Other, p.M"),
        (descriptor(), "p.Other", "has no fields"),
        (descriptor(recursive=True), "p.M", "contains itself"),
        (str(tmp_path / "nope"), "p.M", "cannot be read"),
        (descriptor(), None, "value_message"),
    ):
        with pytest.raises(ValueError, match=words):
            Decode("protobuf", schema, message=name)


# Handling of bad rows.


def test_bad_row_error_names_its_offset():
    with pytest.raises(BadRow, match="1 of 3 values.*t-2 at offset 101: .*on_bad_rows to drop"):
        Decode("json", "a INT")(batch([b"{}", b"x", b"{}"]))


def test_dropped_rows_are_counted_in_the_log(caplog):
    found = Decode("json", "a INT", bad_rows=DROP)(batch([b"x", b"{}", b"y"]))
    assert found.column("offset").to_pylist() == [101]
    assert "2 of 3 rows were bad" in caplog.text and "t-2 at offset 100" in caplog.text


def test_quarantine_topic_receives_bad_rows_unchanged(broker):
    topic = broker.topic()
    kafka = {"bootstrap.servers": broker.bootstrap, "isolation.level": "read_committed"}
    options = {"value_format": "json", "value_schema": "a INT", "On_Bad_Rows": "quarantine",
               "quarantine_topic": topic}  # fmt: skip
    decode = pickle.loads(pickle.dumps(decode_of(options, kafka)))
    assert "key" in decode.needs
    found = decode(batch([b"{}", b"\xff", None, b'{"a":"x"}']))
    assert found.column("offset").to_pylist() == [100, 102]
    with Consumer(broker.bootstrap, topics=[topic], auto_offset_reset="earliest") as consumer:
        messages = take(consumer, 2)
    assert [each.value for each in messages] == [b"\xff", b'{"a":"x"}']
    assert {each.key for each in messages} == {b"k"}
    headers = [dict(each.headers) for each in messages]
    assert [each["offset"] for each in headers] == [b"101", b"103"]
    assert headers[0]["topic"] == b"t" and headers[0]["partition"] == b"2"
    assert b"UTF8" in headers[0]["reason"]


def test_unwritable_quarantine_topic_raises(broker):
    kafka = {"bootstrap.servers": broker.bootstrap, "max.block.ms": "500"}
    bad_rows = BadRows("quarantine", "no/topic", kafka)
    with pytest.raises(Exception, match="no/topic"):
        Decode("json", "a INT", bad_rows=bad_rows)(batch([b"x"]))


# Options.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"value_format": "xml"}, "one of json, avro, protobuf, csv, string"),
        ({"value_format": "json"}, "requires value_schema"),
        ({"value_format": "json", "value_schema": "a FOO"}, "unknown type 'FOO'"),
        ({"value_schema": "a INT"}, "requires value_format"),
        ({"value_format": "string", "on_bad_rows": "ignore"}, "fail, drop, quarantine"),
        ({"value_format": "string", "on_bad_rows": "quarantine"}, "requires quarantine_topic"),
        ({"value_format": "string", "quarantine_topic": "q"}, "requires on_bad_rows"),
        ({"value_format": "string", "schema.registry.url": "x"}, "schema.registry.url"),
        ({"value_format": "string", "schema.registry.url": "http://h", "schema.registry.timeout.ms":
            "soon"}, "timeout.ms"),
        ({"value_format": "avro", "schema.registry.url": "http://h"}, "schema.registry.subject"),
    ],
)  # fmt: skip
def test_invalid_decoding_options_are_rejected_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        decode_of(options, {})


def test_duplicate_column_name_is_rejected():
    decode = Decode("json", "Offset INT")
    with pytest.raises(ValueError, match="'Offset'.*value_prefix"):
        decode.schema_of(pa.schema([("value", pa.binary()), ("offset", pa.int64())]))
    decode = Decode("json", "offset INT", prefix="v_")
    assert decode(batch([b'{"offset": 1}'])).column("v_offset").to_pylist() == [1]


@pytest.mark.parametrize(
    ("decode", "one"),
    [
        (Decode("json", JSON, bad_rows=DROP), b'{"a":%d}'),
        (Decode("csv", CSV, bad_rows=DROP), b"%d,x,"),
    ],
)
def test_bad_rows_are_found_without_parsing_each_alone(decode, one, monkeypatch):
    bad = [value for value in (BAD_JSON if b"{" in one else BAD_CSV) if len(value) < 100]
    values = [one % (number % 7) if number % 5 == 0 else bad[number % len(bad)]
              for number in range(500)]  # fmt: skip
    found = places_and_rows(decode, values)
    assert {place: row[0] for place, row in found.items()} == {
        number: number % 7 for number in range(0, 500, 5)
    }
    parses = []
    halved = sifting.halved

    def counted(values, parse, *rest):
        return halved(values, lambda part: (parses.append(len(part)), parse(part))[1], *rest)

    monkeypatch.setattr(sifting, "halved", counted)
    decode(batch([b'{"a":"x"}' if b"{" in one else b"x,x,"] * 20_000))
    assert 0 < len(parses) < 200


def test_row_checks_accept_every_value_of_the_parser():
    values = [
        b'{"n":"2024-01-02T03:04:05Z"}', b'{"n":"2024-01-02 03:04:05"}', b'{"x":1}', b'{"m":"1.5"}',
        b'{"t":"2024-01-02T03:04:05"}', b'{"t":"2024-01-02T03:04:05+02:00"}', b'{"x":NaN}',
        b'{"l":[1,null]}', b'{"d":"2024-01-02"}', b'{"b":true,"i":-128}', b"null", b'{"z":[{}]}',
    ]  # fmt: skip
    schema = ("n TIMESTAMP_NTZ, t TIMESTAMP, x DOUBLE, m DECIMAL(5,1), l ARRAY<INT>, d DATE,"
              " b BOOLEAN, i TINYINT")  # fmt: skip
    decode = Decode("json", schema, bad_rows=DROP)
    assert list(map(repr, good(decode, *values))) == [
        repr(row) for row in places_and_rows(decode, [*values, *[b"x"] * 50]).values()
    ]
    cells = [b"0x1F,2024-01-02,nan,true", b" 7 ,,1e3,0", b"-5,2024-01-02,-inf,FALSE"]
    decode = Decode("csv", "i INT, d DATE, x DOUBLE, b BOOLEAN", bad_rows=DROP)
    assert list(map(repr, good(decode, *cells))) == [
        repr(row) for row in places_and_rows(decode, [*cells, *[b"x,,,"] * 50]).values()
    ]


NANOSECONDS = {
    b'"2024-01-02T03:04:05.123456789Z"': "2024-01-02T03:04:05.123456Z",
    b'"2024-01-02T05:04:05.1234567+02:00"': "2024-01-02T03:04:05.123456Z",
    b'"2024-01-02T03:04:05.123456789"': "2024-01-02T03:04:05.123456Z",
    b'"1969-12-31T23:59:59.999999999Z"': "1969-12-31T23:59:59.999999Z",
}


@pytest.mark.parametrize("beside", [1, 20])
def test_json_timestamps_are_truncated_to_microseconds(beside):
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    values = [b'{"t":%b}' % each for each in [*NANOSECONDS, *[b"5"] * beside]]
    found, bad = JsonFormat(schema).read(pa.array(values))
    wanted = pa.array(NANOSECONDS.values()).cast(schema.field("t").type)
    assert found.field("t")[: len(NANOSECONDS)].equals(wanted)
    assert sorted(bad) == list(range(len(NANOSECONDS), len(values)))


@pytest.mark.parametrize("beside", [1, 20])
def test_json_integers_may_have_a_decimal_point(beside):
    schema = pa.schema([("s", pa.struct([("n", pa.int64()), ("l", pa.list_(pa.int8()))]))])
    good = [
        (b"1.0", 1), (b"-3.0e2", -300), (b"null", None), (b"9007199254740993.0", (1 << 53) + 1),
        (b"9223372036854775807", (1 << 63) - 1),
    ]  # fmt: skip
    wrong = [b"1.5", b"1e30", b"1e300", b"1e40", b"9223372036854775808", b'"1"', b"true"] * beside
    values = [b'{"s":{"n":%b,"l":[1.0,null,2]}}' % number for number, _ in good]
    values += [b'{"s":{"n":%b}}' % number for number in wrong] + [b'{"s":null}']
    found, bad = JsonFormat(schema).read(pa.array(values))
    rows = found.field("s").to_pylist()
    assert rows[: len(good)] == [{"n": number, "l": [1, None, 2]} for _, number in good]
    assert sorted(bad) == list(range(len(good), len(good) + len(wrong))) and rows[-1] is None
