"""kafkalite bench: measure what a broker does on this machine, as one client sees it.

Works against any Kafka.  It measures a client and a broker together, and says which of the two was
the limit: this client is librdkafka driven from Python, one producer and one consumer.  What
brokers do by themselves is measured by the project's own benchmarks.
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

from kafkalite.cli.bench_busy import MANY, SHORT_S, CpuShares
from kafkalite.cli.bench_load import (
    BenchLoad,
    BenchPhase,
    Look,
    fetched,
    produced,
    topic_for,
    trips,
)
from kafkalite.cli.broker import DATA, address_of, chosen, known_here
from kafkalite.cli.clients import CONNECTION, ClusterClients, ConnectionArguments, sentences
from kafkalite.cli.command import argument, command
from kafkalite.cli.ending import SignalHandling
from kafkalite.cli.progress import count_words, size_words
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
        help="how many go in and out again (default 500000)",
    ),
    argument(
        "--size", metavar="BYTES", type=number(1, SIZE_MAX), default=200,
        help="of each record's value (default 200)",
    ),
    argument(
        "--trips", metavar="N", type=number(0, TRIPS_MAX), default=1_000,
        help="how many go there and back one by one (default 1000)",
    ),
    argument(
        "--acks", choices=("0", "1", "all"), default="all",
        help="what the producer waits for (default all)",
    ),
    argument(
        "-p", "--partitions", metavar="N", type=number(1, PARTITIONS_MAX), default=3,
        help="of the topic that it makes for this and removes (default 3)",
    ),
    argument(
        "-z", "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none",
        help="compress (default: none)",
    ),
    argument(
        "--seconds", metavar="N", type=number(1, SECONDS_MAX), default=10,
        help="the longest that each of the three parts takes (default 10)",
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
    """Measure what a broker does on this machine: produce, fetch, and there and back.

    The topic is one of its own, and is removed at the end, also after Ctrl-C.  With --data and no
    address it is the broker there.

    Examples:
      kafkalite bench
      kafkalite bench --size 1000 --acks 1 -z lz4 -p 6
      kafkalite bench --records 5000000 --seconds 60 --json
      kafkalite bench -b kafka.example.org:9092
    """
    if data is not None and connection["bootstrap"] is None and connection["profile"] is None:
        connection["bootstrap"] = address_of(data)
    asked = SignalHandling()
    gc.disable()  # no cycles are made here, and it would walk every batch again and again
    cluster = ClusterClients(**connection)
    load = BenchLoad(records, size, trips, seconds, acks, compression)
    with asked.at_a_look():
        result = measured(cluster, load, partitions, chosen(data), asked.look)
    if as_json:
        print(json.dumps(result))
    else:
        print("\n".join(lines(result)))


def measured(
    cluster: ClusterClients, load: BenchLoad, partitions: int, directory: Path, look: Look
) -> dict[str, Any]:
    """Run the three parts and return their figures, as `--json` prints them.

    A signal ends it only where `look` raises: exceptions in librdkafka's callbacks are swallowed.
    """
    with topic_for(cluster, partitions) as topic, sentences():
        look()
        admin = cluster.admin()
        ready = known_here(directory, cluster.metadata(admin).cluster_id)
        pids = [node["pid"] for node in ready["nodes"]] if ready else []
        into = produced(cluster, topic, load, pids, look)
        least = into.records if load.acks != "0" else 0
        out = fetched(cluster, topic, load, pids, least, look)
        took_s = trips(cluster, topic, load, look) if load.trips else []
    result = {
        "bootstrap": cluster.bootstrap,
        "partitions": partitions,
        **{name: value for name, value in load._asdict().items() if name != "trips"},
        "durability": ready["durability"] if ready else None,
        "produce": phase(into, load.size),
        "fetch": phase(out, load.size),
        "round_trip": round_trip(took_s),
    }
    return {**result, "verdict": list(verdict(result, into, out, ready))}


def phase(of: BenchPhase, size: int) -> dict[str, Any]:
    rate = of.records / of.seconds
    return {
        "records": of.records,
        "ended_early": of.records < of.wanted,
        "bytes": of.records * size,
        "seconds": round(of.seconds, 6),
        "records_per_s": round(rate, 1),
        "bytes_per_s": round(rate * size, 1),
        "limit": of.shares.limit,
        "busy": {
            who: None if share is None else round(share, 3)
            for who, share in of.shares._asdict().items()
        },
    }


def round_trip(took_s: Sequence[float]) -> dict[str, Any] | None:
    """Return the figures of the round trips, or None if no record came back."""
    if not took_s:
        return None
    ordered = sorted(took_s)

    def share(part: float) -> float:
        """Return the time within which this share of the records was back."""
        return round(1_000 * ordered[max(0, math.ceil(part * len(ordered)) - 1)], 4)

    return {
        "records": len(ordered),
        "p50_ms": share(0.5),
        "p99_ms": share(0.99),
        "max_ms": share(1.0),
    }


# -- in plain words ------------------------------------------------------------------------------


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the result as text."""
    for name in "produce", "fetch":
        part = result[name]
        yield (
            f"{name:<11} {part['records_per_s']:>11,.0f} records/s"
            f"  {size_words(part['bytes_per_s'])}/s"
            f"  ({count_words(part['records'])} in {part['seconds']:.2f} s)"
        )
    trip = result["round_trip"]
    if trip is not None:
        yield (
            f"round trip  p50 {trip['p50_ms']:.2f} ms  p99 {trip['p99_ms']:.2f} ms"
            f"  max {trip['max_ms']:.2f} ms  ({count_words(trip['records'])}, one by one)"
        )
    yield ""
    yield from result["verdict"]


def verdict(
    result: dict[str, Any], into: BenchPhase, out: BenchPhase, ready: Ready | None
) -> Iterator[str]:
    """Yield the lines that summarize the result."""
    size, trip = result["size"], result["round_trip"]
    took, gave = (rounded(result[name]["records_per_s"]) for name in ("produce", "fetch"))
    sentence = (
        f"This client gets {took} records of {size_words(size)} a second in, and {gave} a second"
        " out again"
    )
    if trip is not None:
        sentence += f"; one is there and back in {rounded(trip['p50_ms'])} ms"
        sentence += f", 99 of 100 within {rounded(trip['p99_ms'])} ms"
    yield f"{sentence}."
    if into.shares.limit == out.shares.limit:
        yield from limited("Both ways", into.shares, ready)
    else:
        yield from limited("Producing", into.shares, ready)
        yield from limited("Fetching", out.shares, ready)
    for name, part in ("Producing", into), ("Fetching", out):
        if part.records < part.wanted:
            yield (
                f"{name} was ended after {result['seconds']:g} s, with {part.records:,} of"
                f" {part.wanted:,} records."
            )
    if min(into.seconds, out.seconds) < SHORT_S:
        yield "So short a run says little: give it more --records."
    others = max(into.shares.others or 0, out.shares.others or 0)
    if others >= MANY:
        yield (
            f"Other programs had up to {100 * others:.0f} % of this machine's"
            f" {os.cpu_count() or 1} cores meanwhile; without them it would be more."
        )
    if ready is not None:
        yield DURABILITIES[ready["durability"]]


DURABILITIES = {
    "fsync": "Durability is fsync: what is acknowledged to acks=all survives a power cut.",
    "interval": "Durability is interval: a power cut may take what was acknowledged last.",
    "os": "Durability is os: a power cut may take what the system has not written yet.",
}


def limited(what: str, shares: CpuShares, ready: Ready | None) -> Iterator[str]:
    """Yield a sentence on what limited a phase."""
    client, broker = (f"{100 * (share or 0):.0f} %" for share in shares[:2])
    alone = f"its busiest thread wanted a core {client} of the time"
    match shares.limit:
        case "cores":
            yield (
                f"{what} this machine's cores are the limit: client or broker had to wait for one"
                f" {100 * (shares.waited or 0):.0f} % of the time."
            )
        case "client" if ready is not None:
            yield (
                f"{what} this client is the limit: {alone}, the broker's {broker}; more clients get"
                " more out of it."
            )
        case "client":
            yield f"{what} this client is the limit: {alone}; more clients get more out of it."
        case "broker":
            yield (
                f"{what} the broker is the limit: its busiest thread wanted a core {broker} of the"
                f" time, this client's {client}."
            )
        case "both":
            yield (
                f"{what} client and broker are both at their limit: their busiest threads wanted a"
                f" core {client} and {broker} of the time."
            )
        case "waiting":
            yield (
                f"{what} neither is the limit by itself (client {client}, broker {broker} of the"
                " time): they wait for each other, for the disk or the network."
            )
        case None if shares.client is not None:
            yield (
                f"{what} this client is not the limit ({client} of the time): it waits for the"
                " broker or the network."
            )


def rounded(value: float) -> str:
    """Return a rate rounded to three digits, since runs differ by more than that."""
    if value < 1_000:
        return f"{value:.3g}"
    step = 10 ** (int(math.log10(value)) - 2)
    return f"{round(value / step) * step:,.0f}"
