"""The demo on a few flights: its checks, and its errors when they fail."""

from __future__ import annotations

import csv
import io
import json
import zipfile

import pytest
from confluent_kafka import Producer, TopicPartition

from kafkalite.cli import demo as demos
from kafkalite.cli import demo_group, main
from kafkalite.cli.demo import CarrierTally, check, flight_files, records
from kafkalite.errors import Refusal
from kafkalite.testing import Broker

NAMES = ["carrier", "flight", "tailnum", "dep_delay", "arr_delay"]
ROWS = [
    ["UA", "1545", "N14228", "2", "11"],
    ["AA", "791", 'N"3\\', "NA", "NA"],
    ["UA", "1714", "NA", "4", "20"],
    ["UA", "7", "N1", "0", "NA"],
]


@pytest.fixture
def few_flights(tmp_path, monkeypatch):
    """Replacements for the package's data files."""
    table = io.StringIO()
    csv.writer(table).writerows([NAMES, *ROWS])
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", table.getvalue())
    (tmp_path / "airlines.csv").write_text("carrier,name\nUA,United\n")
    files = tmp_path / "flights.csv.zip", tmp_path / "airlines.csv"
    monkeypatch.setattr(demos, "flight_files", lambda: files)
    return files


@pytest.fixture(scope="module")
def short_session_broker():
    """A broker that accepts short session timeouts."""
    with Broker(config={"group.min.session.timeout.ms": "500"}) as broker:
        yield broker


@pytest.fixture
def short_sessions(monkeypatch):
    monkeypatch.setattr(demo_group, "SESSION_MS", 600)


def test_flights_become_json_with_numbers_strings_and_nulls(few_flights):
    assert [(carrier, json.loads(record)) for carrier, record in records(few_flights[0])] == [
        (row[0], dict(zip(NAMES, values, strict=True)))
        for row, values in zip(
            ROWS,
            [
                ["UA", 1545, "N14228", 2, 11],
                ["AA", 791, 'N"3\\', None, None],
                ["UA", 1714, None, 4, 20],
                ["UA", 7, "N1", 0, None],
            ],
            strict=True,
        )
    ]


def test_demo_verifies_every_flight_and_a_second_run_adds_its_own(
    few_flights, short_session_broker, short_sessions, capsys
):
    words = ["demo", "-b", short_session_broker.bootstrap, "-t", "few-flights", "--json"]
    assert main(words) == 0
    output = capsys.readouterr()
    assert "every flight arrived once" in output.err
    assert "already" not in output.err
    result = json.loads(output.out)
    assert result["flights"] == len(ROWS)
    assert result["taken_over_s"] == 0 or result["killed_after"] < len(ROWS)
    assert result["carriers"] == [
        {
            "carrier": "UA",
            "name": "United",
            "flights": 3,
            "cancelled": 0,
            "departure_delay_minutes": 2.0,
            "arrival_delay_minutes": 15.5,
            "late_percent": 50.0,
        },
        {
            "carrier": "AA",
            "name": "AA",
            "flights": 1,
            "cancelled": 1,
            "departure_delay_minutes": 0.0,
            "arrival_delay_minutes": 0.0,
            "late_percent": 0.0,
        },
    ]
    assert main(words[:-1]) == 0
    result = capsys.readouterr()
    assert f"contains {len(ROWS)} records already; this run adds its own" in result.err
    assert "United" in result.out


def test_record_of_another_producer_fails_the_demo(
    few_flights, short_session_broker, short_sessions, monkeypatch, capsys
):
    produced = demos.produced_flights

    def before_another_writer(*arguments):
        producer = Producer({"bootstrap.servers": short_session_broker.bootstrap})
        producer.produce("disturbed", next(records(few_flights[0]))[1], "UA")
        producer.flush()
        return produced(*arguments)

    monkeypatch.setattr(demos, "produced_flights", before_another_writer)
    assert main(["demo", "-b", short_session_broker.bootstrap, "-t", "disturbed"]) == 1
    assert "check failed: carrier UA: 3 records were sent and 4 arrived" in capsys.readouterr().err


def tally(*values: bytes) -> CarrierTally:
    made = CarrierTally()
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize(
    ("arrived", "sentence"),
    [
        (tally(b"a"), "2 records were sent and 1 arrived"),
        (tally(b"a", b"b", b"b"), "2 records were sent and 3 arrived"),
        (tally(b"b", b"a"), "changed or in another order"),
        (tally(b"ab", b""), "changed or in another order"),
    ],
)
def test_lost_duplicate_changed_and_moved_records_are_reported(arrived, sentence):
    with pytest.raises(Refusal, match=sentence):
        check({"UA": tally(b"a", b"b")}, {"UA": arrived})


def test_unexpected_carrier_is_reported():
    with pytest.raises(Refusal, match="carrier ZZ: 0 records were sent and 1 arrived"):
        check({}, {"ZZ": tally(b"a")})


def test_matching_tallies_pass():
    check({"UA": tally(b"a", b"b")}, {"UA": tally(b"a", b"b")})


def test_missing_flights_package_names_the_install_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refusal, match="pip install"):
        flight_files()


def test_unreachable_named_broker_is_not_replaced(few_flights, capsys):
    assert main(["demo", "-b", "127.0.0.1:1"]) == 1
    assert "no broker responds at 127.0.0.1:1" in capsys.readouterr().err


def test_records_of_a_killed_reader_count_once(short_session_broker, short_sessions):
    topic = short_session_broker.topic(2)
    producer = Producer({"bootstrap.servers": short_session_broker.bootstrap})
    taken = []
    before = [TopicPartition(topic, partition, 0) for partition in range(2)]
    settings = {"bootstrap.servers": short_session_broker.bootstrap}

    def send(count):
        for number in range(count):
            producer.produce(topic, str(number), partition=number % 2)
        producer.flush()

    with demo_group.ReaderGroup(settings, before, lambda key, value: taken.append(value)) as group:
        group.wait_for_members()
        send(1_000)
        while group.readers < 2:
            group.poll(0.1)
        group.kill_one()
        send(1_000)
        group.drain([TopicPartition(topic, partition, 1_000) for partition in range(2)])
        assert group.taken_over_s > 0
    wanted = [str(number).encode() for number in range(1_000)] * 2
    assert sorted(taken) == sorted(wanted)


def test_group_with_members_is_rejected_by_the_demo(short_session_broker, short_sessions):
    topic = short_session_broker.topic(2)
    settings = {"bootstrap.servers": short_session_broker.bootstrap}
    before = [TopicPartition(topic, partition, 0) for partition in range(2)]
    with demo_group.ReaderGroup(settings, before, lambda key, value: None) as group:
        group.wait_for_members()
        with pytest.raises(Refusal, match="stop other demos on this topic"):
            demo_group.ReaderGroup(settings, before, lambda key, value: None)
