"""kafkalite bench: measure the throughput and latency of a broker, as one client sees them.

Works with any Kafka broker.  It measures a client and a broker together, and reports which of the
two was the limit: this client is librdkafka driven from Python, one producer and one consumer.
benchmarks/ measures brokers without the limits of this client.
"""

from __future__ import annotations

import gc
import json
import math
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from kafkalite.cli.bench_load import (
    BenchLoad,
    BenchPhase,
    SignalCheck,
    fetched,
    produced,
    topic_for,
    trips,
)
from kafkalite.cli.broker import DATA, address_of, data_directory, local_broker
from kafkalite.cli.clients import (
    CONNECTION,
    ClusterClients,
    ConnectionArguments,
    kafka_errors_as_refusals,
)
from kafkalite.cli.command import argument, command
from kafkalite.cli.cpu_meter import MANY, SHORT_S, CpuShares
from kafkalite.cli.progress import format_count, format_size
from kafkalite.cli.signal_handling import SignalHandling
from kafkalite.cli.topic import PARTITIONS_MAX
from kafkalite.process.status.ready import Ready

RECORDS_MAX = 1_000_000_000
SIZE_MAX = 100 << 20
TRIPS_MAX = 1_000_000
SECONDS_MAX = 3_600


def number(low: int, high: int) -> Callable[[str], int]:
    """Return the argument type of a whole number within bounds."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text!r} is not {low:,} to {high:,}")
        return value

    return read


@command(
    argument(
        "--records", metavar="N", type=number(1, RECORDS_MAX), default=500_000,
        help="number of records to produce and fetch (default 500000)",
    ),
    argument(
        "--size", metavar="BYTES", type=number(1, SIZE_MAX), default=200,
        help="size of each record's value (default 200)",
    ),
    argument(
        "--trips", metavar="N", type=number(0, TRIPS_MAX), default=1_000,
        help="number of round trips, one record each (default 1000)",
    ),
    argument(
        "--acks", choices=("0", "1", "all"), default="all",
        help="acknowledgements that the producer requires (default all)",
    ),
    argument(
        "-p", "--partitions", metavar="N", type=number(1, PARTITIONS_MAX), default=3,
        help="number of partitions of the temporary topic (default 3)",
    ),
    argument(
        "-z", "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none",
        help="compression codec (default none)",
    ),
    argument(
        "--seconds", metavar="N", type=number(1, SECONDS_MAX), default=10,
        help="time limit of each of the three phases (default 10)",
    ),
    argument("--json", action="store_true", dest="as_json", help="print the result as JSON"),
    DATA,
    *CONNECTION,
)  # fmt: skip
def bench(
    records: int,
    size: int,
    trips: int,
    acks: str,
    partitions: int,
    compression: str,
    seconds: int,
    as_json: bool,
    data: Path | None,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Measure the rates of produce and fetch, and the time of round trips.

    A temporary topic is created, and deleted at the end, also after Ctrl-C.  With --data and
    without -b, the broker on that data directory is measured.

    Examples:
      kafkalite bench
      kafkalite bench --size 1000 --acks 1 -z lz4 -p 6
      kafkalite bench --records 5000000 --seconds 60 --json
      kafkalite bench -b kafka.example.org:9092
    """
    if data is not None and connection["bootstrap"] is None and connection["profile"] is None:
        connection["bootstrap"] = address_of(data)
    signals = SignalHandling()
    gc.disable()  # no cycles are created here, and each collection would traverse the batches
    cluster = ClusterClients(**connection)
    load = BenchLoad(records, size, trips, seconds, acks, compression)
    with signals.deferred():
        result = measured(cluster, load, partitions, data_directory(data), signals.check)
    if as_json:
        print(json.dumps(result))
    else:
        print("\n".join(lines(result)))


def measured(
    cluster: ClusterClients,
    load: BenchLoad,
    partitions: int,
    directory: Path,
    check_signal: SignalCheck,
) -> dict[str, Any]:
    """Run the three phases and return their figures, as `--json` prints them.

    A signal ends it only where `check_signal` raises: librdkafka's callbacks discard exceptions.
    """
    with topic_for(cluster, partitions) as topic, kafka_errors_as_refusals():
        check_signal()
        admin = cluster.admin()
        ready = local_broker(directory, cluster.metadata(admin).cluster_id)
        pids = [node["pid"] for node in ready["nodes"]] if ready else []
        into = produced(cluster, topic, load, pids, check_signal)
        least = into.records if load.acks != "0" else 0
        out = fetched(cluster, topic, load, pids, least, check_signal)
        elapsed_s = trips(cluster, topic, load, check_signal) if load.trips else []
    result = {
        "bootstrap": cluster.bootstrap,
        "partitions": partitions,
        **{name: value for name, value in load._asdict().items() if name != "trips"},
        "durability": ready["durability"] if ready else None,
        "produce": phase(into, load.size),
        "fetch": phase(out, load.size),
        "round_trip": round_trip(elapsed_s),
    }
    return {**result, "verdict": list(summary_lines(result, into, out, ready))}


def phase(of: BenchPhase, size: int) -> dict[str, Any]:
    rate = of.records / of.seconds
    return {
        "records": of.records,
        "ended_early": of.records < of.target,
        "bytes": of.records * size,
        "seconds": round(of.seconds, 6),
        "records_per_s": round(rate, 1),
        "bytes_per_s": round(rate * size, 1),
        "limit": of.shares.limit,
        "busy": {
            name: None if share is None else round(share, 3)
            for name, share in of.shares._asdict().items()
        },
    }


def round_trip(elapsed_s: Sequence[float]) -> dict[str, Any] | None:
    """Return the figures of the round trips, or None if no record came back."""
    if not elapsed_s:
        return None
    ordered = sorted(elapsed_s)

    def share(part: float) -> float:
        """Return the time within which this share of the records was back."""
        return round(1_000 * ordered[max(0, math.ceil(part * len(ordered)) - 1)], 4)

    return {
        "records": len(ordered),
        "p50_ms": share(0.5),
        "p99_ms": share(0.99),
        "max_ms": share(1.0),
    }


# -- text ----------------------------------------------------------------------------------------


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the result as text."""
    for name in "produce", "fetch":
        part = result[name]
        yield (
            f"{name:<11} {part['records_per_s']:>11,.0f} records/s"
            f"  {format_size(part['bytes_per_s'])}/s"
            f"  ({format_count(part['records'])} in {part['seconds']:.2f} s)"
        )
    trip = result["round_trip"]
    if trip is not None:
        yield (
            f"round trip  p50 {trip['p50_ms']:.2f} ms  p99 {trip['p99_ms']:.2f} ms"
            f"  max {trip['max_ms']:.2f} ms  ({format_count(trip['records'])}, one by one)"
        )
    yield ""
    yield from result["verdict"]


def summary_lines(
    result: dict[str, Any], into: BenchPhase, out: BenchPhase, ready: Ready | None
) -> Iterator[str]:
    """Yield the lines that summarize the result."""
    size, trip = result["size"], result["round_trip"]
    produce_rate, fetch_rate = (
        rounded(result[name]["records_per_s"]) for name in ("produce", "fetch")
    )
    summary = (
        f"This client produces {produce_rate} records of {format_size(size)} per second and fetches"
        f" {fetch_rate} per second"
    )
    if trip is not None:
        summary += f"; the median round trip is {rounded(trip['p50_ms'])} ms"
        summary += f", the 99th percentile {rounded(trip['p99_ms'])} ms"
    yield f"{summary}."
    if into.shares.limit == out.shares.limit:
        yield from limited("Producing and fetching", into.shares, ready)
    else:
        yield from limited("Producing", into.shares, ready)
        yield from limited("Fetching", out.shares, ready)
    for name, part in ("Producing", into), ("Fetching", out):
        if part.records < part.target:
            yield (
                f"{name} stopped after {result['seconds']:g} s, with {part.records:,} of"
                f" {part.target:,} records."
            )
    if min(into.seconds, out.seconds) < SHORT_S:
        yield "The run was too short for reliable figures: increase --records."
    others = max(into.shares.others or 0, out.shares.others or 0)
    if others >= MANY:
        yield (
            f"Other processes used up to {100 * others:.0f} % of this machine's"
            f" {os.cpu_count() or 1} cores during the run, which lowers the figures."
        )
    if ready is not None:
        yield DURABILITIES[ready["durability"]]


DURABILITIES = {
    "fsync": "Durability is fsync: records acknowledged with acks=all survive a power failure.",
    "interval": "Durability is interval: a power failure may lose the latest acknowledged records.",
    "os": "Durability is os: a power failure may lose records that are not on disk yet.",
}


def limited(what: str, shares: CpuShares, ready: Ready | None) -> Iterator[str]:
    """Yield the line about the limit of a phase."""
    client, broker = (f"{100 * (share or 0):.0f} %" for share in shares[:2])
    client_share = f"its busiest thread needed a core {client} of the time"
    match shares.limit:
        case "cores":
            yield (
                f"{what}: this machine's cores are the limit. Client or broker waited for a core"
                f" {100 * (shares.waited or 0):.0f} % of the time."
            )
        case "client" if ready is not None:
            yield (
                f"{what}: this client is the limit; {client_share}, the broker's {broker}."
                " More clients reach a higher rate."
            )
        case "client":
            yield (
                f"{what}: this client is the limit; {client_share}."
                " More clients reach a higher rate."
            )
        case "broker":
            yield (
                f"{what}: the broker is the limit; its busiest thread needed a core {broker} of the"
                f" time, this client's {client}."
            )
        case "both":
            yield (
                f"{what}: client and broker are both at their limit; their busiest threads needed"
                f" a core {client} and {broker} of the time."
            )
        case "waiting":
            yield (
                f"{what}: neither client nor broker is the limit (busiest threads: {client} and"
                f" {broker} of the time). They wait for each other, the disk or the network."
            )
        case None if shares.client is not None:
            yield (
                f"{what}: this client is not the limit (busiest thread: {client} of the time)."
                " It waits for the broker or the network."
            )


def rounded(value: float) -> str:
    """Return a rate rounded to three digits, since runs differ by more than that."""
    if value < 1_000:
        return f"{value:.3g}"
    step = 10 ** (int(math.log10(value)) - 2)
    return f"{round(value / step) * step:,.0f}"
