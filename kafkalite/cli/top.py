"""kafkalite top: show rates, lag, leaders and nodes of a cluster, live.

Works with any Kafka broker: rates are computed from periodic samples of end offsets and committed
offsets.  For a kafkalite broker on this machine, the metrics of its nodes are shown too: bytes in
and out, CPU time, memory, connections, requests.

The lag of share groups is counted by the broker.

Left out: groups other than consumer and share groups; over SASL or TLS, share groups, and topic
sizes of a remote broker.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from kafkalite.cli.broker import DATA, address_of, data_directory
from kafkalite.cli.clients import CONNECTION, ClusterClients, ConnectionArguments
from kafkalite.cli.command import argument, command, warn
from kafkalite.cli.top_rates import Measurements, RateMeter
from kafkalite.cli.top_sampling import ClusterSampler, ClusterUnreachable
from kafkalite.cli.top_screen import TopScreen, text_of
from kafkalite.errors import Refusal

if TYPE_CHECKING:
    from rich.console import Console

FIRST_S = 1.2
"""Delay of the second sample: nodes update their metrics every second."""
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 3_600.0


def seconds(text: str) -> float:
    """Parse an interval in seconds; an argument type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not INTERVAL_S_MIN <= value <= INTERVAL_S_MAX:
        raise ArgumentTypeError(
            f"{text!r} is not an interval of {INTERVAL_S_MIN} to {INTERVAL_S_MAX:,.0f} s"
        )
    return value


@command(
    argument(
        "pattern", nargs="?", default="", help="only topics and groups whose name contains this"
    ),
    argument(
        "--interval",
        metavar="SECONDS",
        type=seconds,
        default=2.0,
        help="interval between samples (default 2)",
    ),
    argument(
        "--sort",
        choices=("rate", "size", "name"),
        default="rate",
        help="order of topics and groups: rate or lag (default), size, name",
    ),
    argument("--internal", action="store_true", help="include internal topics"),
    argument("--once", action="store_true", help="print one sample and exit"),
    argument(
        "--json", action="store_true", dest="as_json", help="print one JSON object per sample"
    ),
    DATA,
    *CONNECTION,
)
def top(
    pattern: str,
    interval: float,
    sort: str,
    internal: bool,
    once: bool,
    as_json: bool,
    data: Path | None,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Show rates of topics, lag of groups and leaders of nodes, live.

    On a terminal the screen is redrawn until q or Ctrl-C; otherwise each sample is printed.  Rates
    are those since the previous sample.  With --data and without -b, the broker on that data
    directory is shown.

    Examples:
      kafkalite top
      kafkalite top flights --interval 5 --sort size
      kafkalite top --once
      kafkalite top --json | jq -c '.totals'
      kafkalite top -b kafka.example.org:9092
    """
    if data is not None and connection["bootstrap"] is None and connection["profile"] is None:
        connection["bootstrap"] = address_of(data)
    cluster = ClusterClients(**connection)
    rounds = SampleRounds(
        cluster, ClusterSampler(cluster, pattern, internal, data_directory(data)), sort, interval
    )
    console = None if as_json or once else terminal()
    if console is None:
        print_rounds(rounds, as_json, once)
        return
    with TopScreen(console) as screen:
        while screen.show(*rounds.newest(), rounds.wait_s()):
            pass


class SampleRounds:
    """Samples at intervals, each with the rates since the one before."""

    def __init__(
        self, cluster: ClusterClients, sampler: ClusterSampler, sort: str, interval_s: float
    ) -> None:
        self.cluster = cluster
        self.sampler = sampler
        self.meter = RateMeter()
        self.sort = sort
        self.interval_s = interval_s
        self.sampled_at_s = 0.0
        self.delay_s = 0.0
        self.round: Measurements | None = None

    def newest(self) -> tuple[Measurements, str]:
        """Return a new sample; while no broker responds, the last one and an error message."""
        self.sampled_at_s = time.monotonic()
        try:
            measured = self.meter.measured(self.sampler.sample())
        except ClusterUnreachable:
            error = f"no broker responds at {self.cluster.bootstrap}"
            if self.round is None:
                raise Refusal(error) from None
            return self.round, error
        # Rates need two samples, so the second follows soon after the first.
        self.delay_s = min(self.interval_s, FIRST_S) if self.round is None else self.interval_s
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.round = {"at": at, "bootstrap": self.cluster.bootstrap, **measured}
        self.round["topics"].sort(key=TOPIC_ORDER[self.sort])
        self.round["groups"].sort(key=GROUP_ORDER[self.sort])
        return self.round, ""

    def wait_s(self) -> float:
        """Return the seconds until the next sample."""
        return max(0.0, self.sampled_at_s + self.delay_s - time.monotonic())


def by(key: str) -> Callable[[Measurements], Any]:
    """Return a sort key: largest first, unknown values last."""
    return lambda each: math.inf if each[key] is None else -each[key]


TOPIC_ORDER = {"rate": by("records_per_s"), "size": by("size"), "name": itemgetter("name")}
GROUP_ORDER = {"rate": by("lag"), "size": by("lag"), "name": itemgetter("name")}


def print_rounds(rounds: SampleRounds, as_json: bool, once: bool) -> None:
    """Print each sample that has rates, until Ctrl-C or once."""
    rounds.newest()  # the first sample has no rates
    warned = False
    while True:
        time.sleep(rounds.wait_s())
        round, error = rounds.newest()
        if error and once:
            raise Refusal(error)
        if error and not warned:
            warn(f"connection to {rounds.cluster.bootstrap} lost; retrying (press Ctrl-C to stop)")
        warned = bool(error)
        if warned:
            continue
        print(json.dumps(round) if as_json else text_of(round), flush=True)
        if once:
            return
        if not as_json:
            print()


def terminal() -> Console | None:
    """Return a console if stdout is a terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console(highlight=False)
    return None if console.is_dumb_terminal else console
