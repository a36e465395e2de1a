"""A storm of connects: many a second, half of which send nothing, or nothing valid.

    python -m tests.fuzz.connects --connects 50000 --a-minute 10000

Some of the silent ones stay for a while, so that there are always many of them.  The other half
send ApiVersions and must get a response.  Afterwards the broker has no more descriptors than
before, its processes and its log are unaffected, and the healthy client was served.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.testing import Broker
from tests.fuzz.healthy import Connection, Healthy
from tests.fuzz.requests import HEALTHY
from tests.fuzz.sockets import Campaign, resident
from tests.process.waiting import until

SILENT_MAX = 200
GROWTH_MAX = 32 << 20
RESET = struct.pack("ii", 1, 0)


def storm(broker: Broker, dice: random.Random, connects: int, a_minute: float) -> None:
    """Make `connects` connects, at most `a_minute` a minute; all are closed at the return."""
    addresses = [(node["host"], node["port"]) for node in broker.nodes if node["port"]]
    silent: deque[socket.socket] = deque()
    begun = time.monotonic()
    for number in range(connects):
        ahead_s = number * 60 / a_minute - (time.monotonic() - begun)
        if ahead_s > 0:
            time.sleep(ahead_s)
        address = dice.choice(addresses)
        if dice.random() < 0.5:
            ask(address)
        else:
            silent.append(disturb(address, dice))
            if len(silent) > SILENT_MAX:
                silent.popleft().close()
    for peer in silent:
        peer.close()


def ask(address: tuple[str, int]) -> None:
    connection = Connection(f"{address[0]}:{address[1]}")
    assert connection.ask(API_VERSIONS, 0, {}).error_code == 0
    connection.close()


def disturb(address: tuple[str, int], dice: random.Random) -> socket.socket:
    """Connect, and send garbage or nothing; some reset the connection when they close it."""
    peer = socket.create_connection(address, timeout=30)
    if dice.random() < 0.3:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    if dice.random() < 0.6:
        peer.sendall(dice.randbytes(dice.choice([1, 4, 50, 2_000])))
    return peer


def descriptors(pids: list[int]) -> dict[int, int]:
    """Count each process's descriptors except files: a log's files increase with its records."""
    return {pid: sum(map(is_no_file, Path(f"/proc/{pid}/fd").iterdir())) for pid in pids}


def additional(pids: list[int], before: dict[int, int]) -> dict[int, int]:
    """Count the descriptors that each process has beyond those of `before`."""
    now = descriptors(pids)
    return {pid: now[pid] - before[pid] for pid in pids if now[pid] > before[pid]}


def is_no_file(descriptor: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
        return not str(descriptor.readlink()).startswith("/")
    return False


def weathered(workers: int, seed: int, connects: int, a_minute: float = 1e9) -> str:
    """Run a broker through a storm; return a report with the healthy client's figures."""
    dice = random.Random(seed)
    with Broker(workers=workers) as broker:
        broker.topic(name=HEALTHY)
        campaign = Campaign(broker, seed)
        with Healthy(broker.bootstrap, HEALTHY) as healthy:
            healthy.phase()
            # Counted before the first storm, and compared with "no more than": a connection whose
            # end the broker has not read yet would be counted here, and be closed afterwards.
            before = descriptors(campaign.processes)
            storm(broker, dice, connects // 10, a_minute)
            healthy.phase()
            campaign.resident = resident(campaign.processes)
            time.sleep(1)
            alone = healthy.phase()
            begun = time.monotonic()
            storm(broker, dice, connects, a_minute)
            seconds = time.monotonic() - begun
            meanwhile = healthy.phase()
            until(
                lambda: not additional(campaign.processes, before),
                explain=lambda: f"left open: {additional(campaign.processes, before)}",
            )
            campaign.judge()
            assert campaign.growth < GROWTH_MAX
        return (
            f"seed {seed}, workers {workers}: {connects} connects in {seconds:.1f} s,"
            f" {60 * connects / seconds:,.0f} a minute, {campaign.growth >> 20} MiB more\n"
            f"    the healthy client alone: {alone}\n    meanwhile: {meanwhile},"
            f" {meanwhile['a_second'] / alone['a_second']:.0%}"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.connects", description=__doc__)
    parser.add_argument("--connects", type=float, default=1e4, help="of all shapes together")
    parser.add_argument("--a-minute", type=float, default=1e4)
    parser.add_argument("--workers", type=int, action="append", help="a shape; 0 and 2 if not said")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    words = parser.parse_args(arguments)
    shapes = words.workers or [0, 2]
    for workers in shapes:
        connects = int(words.connects) // len(shapes)
        print(weathered(workers, words.seed, connects, words.a_minute), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
