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
def hasty_broker():
    """A broker that accepts short session timeouts."""
    with Broker(config={"group.min.session.timeout.ms": "500"}) as broker:
        yield broker


@pytest.fixture
def short_sessions(monkeypatch):
    monkeypatch.setattr(demo_group, "SESSION_MS", 600)


def test_flights_become_json_with_numbers_words_and_nulls(few_flights):
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


def test_the_demo_proves_its_promise_and_a_second_run_adds(
    few_flights, hasty_broker, short_sessions, capsys
):
    words = ["demo", "-b", hasty_broker.bootstrap, "-t", "few-flights", "--json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "every flight arrived once" in said.err
    assert "already" not in said.err
    result = json.loads(said.out)
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
    said = capsys.readouterr()
    assert f"holds {len(ROWS)} records already; this run adds its own" in said.err
    assert "United" in said.out


def test_a_record_that_the_demo_did_not_send_fails_the_check(
    few_flights, hasty_broker, short_sessions, monkeypatch, capsys
):
    produced = demos.produced_flights

    def before_another_writer(*arguments):
        producer = Producer({"bootstrap.servers": hasty_broker.bootstrap})
        producer.produce("disturbed", next(records(few_flights[0]))[1], "UA")
        producer.flush()
        return produced(*arguments)

    monkeypatch.setattr(demos, "produced_flights", before_another_writer)
    assert main(["demo", "-b", hasty_broker.bootstrap, "-t", "disturbed"]) == 1
    assert "the check failed: of UA 3 were sent and 4 arrived" in capsys.readouterr().err


def tally(*values: bytes) -> CarrierTally:
    made = CarrierTally()
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize(
    ("arrived", "sentence"),
    [
        (tally(b"a"), "2 were sent and 1 arrived"),
        (tally(b"a", b"b", b"b"), "2 were sent and 3 arrived"),
        (tally(b"b", b"a"), "changed or in another order"),
        (tally(b"ab", b""), "changed or in another order"),
    ],
)
def test_what_is_lost_doubled_changed_or_moved_is_noticed(arrived, sentence):
    with pytest.raises(Refusal, match=sentence):
        check({"UA": tally(b"a", b"b")}, {"UA": arrived})


def test_a_carrier_nobody_sent_is_noticed():
    with pytest.raises(Refusal, match="of ZZ 0 were sent and 1 arrived"):
        check({}, {"ZZ": tally(b"a")})


def test_what_arrived_as_it_was_sent_passes():
    check({"UA": tally(b"a", b"b")}, {"UA": tally(b"a", b"b")})


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refusal, match="pip install"):
        flight_files()


def test_a_broker_that_was_named_and_is_not_there_is_not_replaced(few_flights, capsys):
    assert main(["demo", "-b", "127.0.0.1:1"]) == 1
    assert "no broker answers at 127.0.0.1:1" in capsys.readouterr().err


def test_what_the_dead_had_handed_on_counts_once_and_what_it_had_not_is_read_again(
    hasty_broker, short_sessions
):
    topic = hasty_broker.topic(2)
    producer = Producer({"bootstrap.servers": hasty_broker.bootstrap})
    taken = []
    before = [TopicPartition(topic, partition, 0) for partition in range(2)]
    settings = {"bootstrap.servers": hasty_broker.bootstrap}

    def send(count):
        for number in range(count):
            producer.produce(topic, str(number), partition=number % 2)
        producer.flush()

    with demo_group.ReaderGroup(settings, before, lambda key, value: taken.append(value)) as group:
        group.wait_for_members()
        send(1_000)
        while group.readers < 2:
            group.look(0.1)
        group.kill_one()
        send(1_000)
        group.drain([TopicPartition(topic, partition, 1_000) for partition in range(2)])
        assert group.taken_over_s > 0
    wanted = [str(number).encode() for number in range(1_000)] * 2
    assert sorted(taken) == sorted(wanted)


def test_a_group_that_is_at_work_is_no_group_for_the_demo(hasty_broker, short_sessions):
    topic = hasty_broker.topic(2)
    settings = {"bootstrap.servers": hasty_broker.bootstrap}
    before = [TopicPartition(topic, partition, 0) for partition in range(2)]
    with demo_group.ReaderGroup(settings, before, lambda key, value: None) as group:
        group.wait_for_members()
        with pytest.raises(Refusal, match="another demo may be running"):
            demo_group.ReaderGroup(settings, before, lambda key, value: None)
