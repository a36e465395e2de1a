"""Records in lines and lines of records, and a Java client's properties, by Kafka's rules."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from kafkalite.cli.shell_tools import get_offsets
from kafkalite.cli.shell_tools.configs import pairs as config_pairs
from kafkalite.cli.shell_tools.consumer_groups import age, moment
from kafkalite.cli.shell_tools.flags import ParsedFlags
from kafkalite.cli.shell_tools.get_offsets import rule
from kafkalite.cli.shell_tools.group_tables import members, state, table
from kafkalite.cli.shell_tools.java_properties import pairs, translated
from kafkalite.cli.shell_tools.line_reader import LineReader, java_lines
from kafkalite.cli.shell_tools.record_lines import default, nothing
from kafkalite.client import GroupDescription, MemberDescription
from kafkalite.errors import Refusal


class FakeMessage:
    """A record as librdkafka returns it."""

    def __init__(
        self, key=None, value=None, headers=None, timestamp=(1, 5), epoch=0, delivery=None
    ):
        self.fields = {"key": key, "value": value, "headers": headers, "timestamp": timestamp,
                       "leader_epoch": epoch, "partition": 3, "offset": 7,
                       "delivery_count": delivery}  # fmt: skip

    def __getattr__(self, name):
        return lambda: self.fields[name]


KEYS = {"parse.key": "true"}
HEADERS = {"parse.headers": "true"}


@pytest.mark.parametrize(
    ("properties", "line", "record"),
    [
        ({}, b"a\tb", (None, b"a\tb", [])),
        (KEYS, b"a\tb\tc", (b"a", b"b\tc", [])),
        (KEYS, b"\t", (b"", b"", [])),
        (KEYS | {"key.separator": "::"}, b"a:b::c", (b"a:b", b"c", [])),
        (KEYS | {"ignore.error": "true"}, b"ab", (None, b"ab", [])),
        (HEADERS, b"h:1,j:\tv", (None, b"v", [("h", b"1"), ("j", b"")])),
        (HEADERS, b"h:1,,\tv", (None, b"v", [("h", b"1")])),
        (HEADERS | KEYS, b"h:1:2\tk\tv", (b"k", b"v", [("h", b"1:2")])),
        (HEADERS | {"ignore.error": "true"}, b"h\tv", (None, b"v", [("h", None)])),
        (HEADERS | {"null.marker": "N"}, b"N\tN", (None, None, [])),
        (HEADERS | {"null.marker": "N"}, b"h:N\tv", (None, b"v", [("h", None)])),
        ({"null.marker": ""}, b"", (None, None, [])),
    ],
)
def test_line_is_parsed_by_reader_properties(properties, line, record):
    assert tuple(LineReader(properties).parse(line)) == record


@pytest.mark.parametrize(
    ("properties", "line", "sentence"),
    [
        (KEYS, b"ab", "no key separator in line 1: 'ab'"),
        (HEADERS, b"ab", "no headers delimiter in line 1"),
        (HEADERS, b"h\tv", "no header key separator in 'h' in line 1"),
        (HEADERS, b"\tv", "no header key separator in '' in line 1"),
        (HEADERS | {"null.marker": "N"}, b"N:1\tv", "a header key must not be null"),
    ],
)
def test_invalid_line_error_names_its_number(properties, line, sentence):
    with pytest.raises(Refusal, match=sentence):
        LineReader(properties).parse(line)


@pytest.mark.parametrize(
    "properties", [{"parse.keys": "true"}, {"parse.key": "yes"}, {"key.separator": ""}]
)
def test_invalid_reader_property_is_rejected(properties):
    with pytest.raises(Refusal):
        LineReader(properties)


def test_lines_end_as_in_java():
    assert [*java_lines([b"a\r", b"b\rc", b"\r", b"d"])] == [b"a", b"b", b"c", b"", b"d"]


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ({}, b"v\n"),
        ({"print.key": "true"}, b"k\tv\n"),
        ({"print.key": "true", "print.value": "false", "line.separator": "|"}, b"k|"),
        (
            {f"print.{name}": "true" for name in ("timestamp", "partition", "offset", "epoch")},
            b"CreateTime:5\tPartition:3\tOffset:7\tEpoch:0\tv\n",
        ),
        ({"print.headers": "true", "key.separator": "~"}, b"h:1,n:null~v\n"),
    ],
)
def test_record_is_formatted_by_formatter_properties(properties, line):
    record = FakeMessage(b"k", b"v", [("h", b"1"), ("n", None)])
    assert default(properties)([record]) == line
    assert nothing([record]) == b""


def test_delivery_count_is_printed_after_the_offset():
    every = {f"print.{name}": "true" for name in ("delivery", "epoch", "offset")}
    record = FakeMessage(value=b"v", delivery=2)
    assert default(every)([record]) == b"Offset:7\tDelivery:2\tEpoch:0\tv\n"


def test_missing_fields_have_their_placeholders():
    record = FakeMessage(timestamp=(0, 0), epoch=None)
    names = ("timestamp", "delivery", "epoch", "headers", "key")
    every = {f"print.{name}": "true" for name in names}
    assert default(every)([record]) == (
        b"NO_TIMESTAMP\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\tNO_HEADERS\tnull\tnull\n"
    )
    assert default({"null.literal": "-"})([record, FakeMessage(value=b"x")]) == b"-\nx\n"


def test_numbers_are_decoded_as_by_java_deserializers(capsys):
    long = {"value.deserializer": "org.apache.kafka.common.serialization.LongDeserializer"}
    records = [
        FakeMessage(value=b"\xff" * 8),
        FakeMessage(value=b"short"),
        FakeMessage(value=b"\0" * 8),
    ]
    assert default(long, skip_unreadable=True)(records) == b"-1\n0\n"
    assert "requires 8 bytes, but the record has 5" in capsys.readouterr().err
    with pytest.raises(Refusal, match="requires 8 bytes"):
        default(long)(records)
    with pytest.raises(Refusal, match="AvroDeserializer is not supported"):
        default({"value.deserializer": "x.AvroDeserializer"})


def test_property_files_are_parsed_as_by_java():
    text = "# no\n! no\na=1\n b : 2\nc 3\nd=\\\n   4\ne\\==\\u0041\\t\nf\r\nlast=x\\"
    assert [*pairs(text)] == [
        ("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e=", "A\t"), ("f", ""), ("last", "x"),
    ]  # fmt: skip


def test_java_client_properties_are_translated_to_librdkafka():
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" '
    assert translated(
        [
            ("sasl.jaas.config", login + 'password="b\\"c";'),
            ("security.protocol", "SASL_SSL"),
            ("ssl.truststore.location", "ca.pem"),
            ("ssl.truststore.type", "PEM"),
            ("ssl.endpoint.identification.algorithm", ""),
            ("auto.offset.reset", "none"),
            ("fetch.max.wait.ms", "5"),
            ("buffer.memory", "4096"),
        ]
    ) == {
        "sasl.username": "a",
        "sasl.password": 'b"c',
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": "5",
        "queue.buffering.max.kbytes": "4",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.truststore.location", "trust.jks"),
        ("ssl.keystore.location", "keys.jks"),
        ("sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required;"),
        ("sasl.jaas.config", "x.PlainLoginModule required;"),
        ("auto.offset.reset", "by_duration:PT1H"),
        ("partition.assignment.strategy", "mine.Own"),
        ("buffer.memory", "much"),
    ],
)
def test_properties_unknown_to_librdkafka_are_rejected(name, value):
    with pytest.raises(Refusal):
        translated([(name, value)])


def test_config_values_in_brackets_may_contain_commas():
    assert [*config_pairs("a=1,b=[x,y], c = ,d=[")] == [
        ("a", "1"), ("b", "x,y"), ("c", ""), ("d", "["),
    ]  # fmt: skip
    with pytest.raises(Refusal):
        [*config_pairs("a")]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("t", ("t", 9), ("tt", 0)),
        ("t:2", ("t", 2), ("t", 3)),
        ("t:1-3", ("t", 2), ("t", 3)),
        ("t:4-", ("t", 4), ("t", 3)),
        ("t.*:-2", ("tx", 1), ("tx", 2)),
        (":0", ("any", 0), ("any", 1)),
    ],
)
def test_partition_rule_has_the_meaning_of_kafka(text, inside, outside):
    assert rule(text)(*inside) and not rule(text)(*outside)


@pytest.mark.parametrize(
    ("text", "age_ms"), [("PT1S", 1000), ("P1DT1H1M1.5S", 90_061_500), ("pt0.001s", 1)]
)
def test_iso_durations_are_parsed(text, age_ms):
    assert age(text).age_ms == age_ms


@pytest.mark.parametrize("text", ["P", "PT", "1D", "PT1D", "P-1D", ""])
def test_invalid_duration_is_rejected(text):
    with pytest.raises(ValueError):
        age(text)


def test_datetime_without_zone_is_utc():
    assert moment("1970-01-01T00:00:01.500").timestamp_ms == 1500
    assert moment("1970-01-01T01:00:00.001+01:00").timestamp_ms == 1
    for wrong in ("1970", "1970-01-01", "soonT"):
        with pytest.raises(ValueError):
            moment(wrong)


def test_table_columns_grow_where_allowed():
    shown = table([("A", 3), ("B", 2), ("C", 0)], [["long", "x", None]], grow="A C")
    assert shown == "A    B  C\nlong x  -"
    assert table([("A B", 3), ("C", 0)], [["long", 1]], grow="A") == "A B  C\nlong 1"


EPOCHS = {"epoch": 5, "assignment_epoch": 4}


def consumer_group(*types):
    """Return librdkafka's and the native description of a group with members of these types."""
    members = [f"m{number}" for number in range(len(types))]
    assignment = SimpleNamespace(topic_partitions=[TopicPartition("t", 1), TopicPartition("t", 0)])
    theirs = SimpleNamespace(
        group_id="g",
        partition_assignor="uniform",
        coordinator=SimpleNamespace(host="a-host-with-a-long.name", port=9092, id=1),
        members=[
            SimpleNamespace(
                member_id=member_id, client_id="c", host="/h", group_instance_id=None,
                assignment=assignment, target_assignment=assignment,
            )
            for member_id in members
        ],
    )  # fmt: skip
    native = GroupDescription(
        "g", "consumer", "Assigning", "uniform", **EPOCHS, coordinator=1,
        members=tuple(
            MemberDescription(member_id, None, "c", "/h", (), (), 3, kind)
            for member_id, kind in zip(members, types, strict=True)
        ),
    )  # fmt: skip
    return theirs, native


def test_epochs_of_consumer_group_are_shown_with_verbose():
    theirs, native = consumer_group("consumer")
    titles, row = state(theirs, native, "Assigning", verbose=True).splitlines()
    assert titles.split()[-3:] == ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"]
    assert row.split() == ["g", "a-host-with-a-long.name:9092", "(1)", "uniform", "Assigning",
                           "5", "4", "1"]  # fmt: skip
    assert titles.index("ASSIGNMENT-STRATEGY") == row.index("uniform")
    titles, row = members(theirs, native, verbose=True).splitlines()
    assert titles.split()[-4:] == ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH",
                                   "TARGET-ASSIGNMENT"]  # fmt: skip
    assert row.split() == ["g", "m0", "/h", "c", "2", "3", "t:0,1", "4", "t:0,1"]
    assert members(theirs, None, verbose=True).splitlines()[1].split()[-4:] == [
        "-", "t:0,1", "-", "t:0,1",
    ]  # fmt: skip


def test_members_of_group_in_migration_show_whether_they_are_upgraded():
    theirs, native = consumer_group("classic", "consumer")
    titles, *rows = members(theirs, native, verbose=True).splitlines()
    assert titles.split()[-1] == "UPGRADED"
    assert [row.split()[-1] for row in rows] == ["false", "true"]
    assert "UPGRADED" not in members(theirs, native, verbose=False)


def test_partition_whose_leader_does_not_respond_is_skipped(monkeypatch, capsys):
    topic_partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    futures = {each: Future() for each in topic_partitions}
    for future, offset in zip(futures.values(), (OFFSET_INVALID, 5), strict=True):
        future.set_result(SimpleNamespace(offset=offset))
    admin = SimpleNamespace(list_offsets=lambda _: futures)
    cluster = SimpleNamespace(connected_admin=lambda: admin)
    monkeypatch.setattr(get_offsets, "brokers", lambda _: cluster)
    monkeypatch.setattr(get_offsets, "partitions", lambda *_: topic_partitions)
    assert get_offsets.run(ParsedFlags({"bootstrap-server": ["h:1"]})) == 1
    skipped = "kafkalite: t-0 skipped: its leader did not respond\n"
    assert capsys.readouterr() == ("t:1:5\n", skipped)
