"""F15: transactions through a proxy that delays, duplicates and reorders their requests.

    python -m tests.faults.perturbing --transactions 2000 --client java         version 2
    python -m tests.faults.perturbing --transactions 2000 --client java-v1      version 1
    python -m tests.faults.perturbing --against apache                          with Apache Kafka

The proxy holds requests of transactions back, sends them twice, or closes the connection instead
and sends them later on another one, maybe in the next transaction.  Of each transaction a
read_committed consumer must then read all records or none; all if its commit was acknowledged, none
if its abort was.

In version 1 a late EndTxn ends the next transaction, in Kafka as well: such torn transactions are
counted, and no violation.  In version 2 (KIP-890) there must be none.
Every run appends a line to record.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
)
from kafkalite.testing import Broker
from tests.conformance.clients import JAVA, JAVA_V1, KAFKA_PYTHON, LIBRDKAFKA
from tests.conformance.driven import Driven
from tests.conformance.table import Kafka, Refused, Transactions, until
from tests.faults.processes import free_address
from tests.faults.record import recorded, write_down
from tools.apache_kafka import ApacheKafka

CLIENTS = {client.name: client for client in (JAVA, JAVA_V1, LIBRDKAFKA, KAFKA_PYTHON)}
VERSION_2 = {JAVA.name}
TXN_OFFSET_COMMIT_KEY = 28
PERTURBED = {
    api.key
    for api in (PRODUCE, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, INIT_PRODUCER_ID)
} | {TXN_OFFSET_COMMIT_KEY}
PARTITIONS = 3
STEPS = 2
"""Each transaction sends one record to each partition so many times."""
SHARE, END_SHARE = 0.08, 0.4
"""The share of requests that is perturbed: of all, and of EndTxn."""
DELAY_S = (0.005, 0.4)
TIMEOUT_MS = 10_000
HEAL_S_MAX = 60.0


class Proxy:
    """Forwards the connections of clients to a broker, and perturbs requests of transactions."""

    def __init__(self, address: tuple[str, int], upstream: tuple[str, int], seed: int) -> None:
        self.address = address
        self.upstream = upstream
        self.dice = random.Random(seed)
        self.acts: Counter[str] = Counter()
        self.is_calm = False
        self.late: set[asyncio.Task[None]] = set()
        self.is_ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()))
        self.thread.start()
        self.is_ready.wait()

    async def serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        server = await asyncio.start_server(self.connected, *self.address)
        self.is_ready.set()
        await self.ended.wait()
        server.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.ended.set)
        self.thread.join()

    async def connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        answering = asyncio.ensure_future(self.answer(up_reader, writer))
        # asyncio.streams takes no cancelled connection.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size, "big"))
                if not await self.forward(frame, up_writer):
                    break
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        up_writer.close()
        writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await reader.read(1 << 16):
                writer.write(content)
                await writer.drain()
        writer.close()

    async def forward(self, frame: bytes, upstream: asyncio.StreamWriter) -> bool:
        """Send a request on, perturbed or not; return False to close the connection."""
        key = int.from_bytes(frame[4:6], "big")
        share = END_SHARE if key == END_TXN.key else SHARE
        if self.is_calm or key not in PERTURBED or self.dice.random() > share:
            upstream.write(frame)
            await upstream.drain()
            return True
        act = self.dice.choice(["delayed", "sent twice", "sent late"])
        self.acts[f"{act}: {key}"] += 1
        if act == "delayed":
            await asyncio.sleep(self.dice.uniform(*DELAY_S))
        else:
            task = asyncio.ensure_future(self.send_late(frame, self.dice.uniform(*DELAY_S)))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
        if act == "sent late":
            return False
        upstream.write(frame)
        await upstream.drain()
        return True

    async def send_late(self, frame: bytes, delay_s: float) -> None:
        """Send a request after a while on a connection of its own."""
        await asyncio.sleep(delay_s)
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*self.upstream)
            writer.write(frame)
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 5)
            writer.close()


@dataclass
class Perturbing:
    """The parameters and the result of a run."""

    count: int
    seed: int
    client: str
    seconds: float = 0.0
    outcomes: dict[int, str] = field(default_factory=dict)
    """By transaction: "commit", "abort", or "unknown" after an error."""
    errors: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    torn: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""
        return recorded(
            "F15",
            count=self.acts.total(),
            seed=self.seed,
            workers=0,
            durability="os",
            client=self.client,
            transactions=2 if self.client in VERSION_2 else 1,
            acked=sum(outcome != "unknown" for outcome in self.outcomes.values()),
            torn=len(self.torn),
            violations=len(self.complaints),
        )


def run_transactions(run: Perturbing, client: Driven, kafka: Kafka, topic: str) -> None:
    """Run transactions one after the other; a producer that failed is replaced."""
    dice = random.Random(run.seed)
    producer: Transactions | None = None
    for number in range(run.count):
        is_commit = dice.random() < 0.7
        run.outcomes[number] = "unknown"
        try:
            if producer is None:
                producer = client.transactional(kafka, "perturbed", TIMEOUT_MS)
            producer.begin()
            for step in range(STEPS):
                values = [(at, b"%d/%d" % (number, step)) for at in range(PARTITIONS)]
                producer.send(topic, values)
            producer.end(commit=is_commit)
            run.outcomes[number] = "commit" if is_commit else "abort"
        except Refused as error:
            run.errors[str(error)[:60]] += 1
            if producer is not None:
                producer.kill()
            producer = None
    if producer is not None:
        producer.kill()


def judge(run: Perturbing, kafka: Kafka, topic: str) -> None:
    """Read everything; note torn transactions and wrong outcomes."""
    for at in range(PARTITIONS):
        try:
            until(partial(settled, kafka, topic, at), HEAL_S_MAX)
        except AssertionError:
            run.complaints.append(f"partition {at} has an open transaction after {HEAL_S_MAX} s")
            return
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for value in read(kafka, topic):
        number, _, step = value.partition("/")
        found[int(number)][step] += 1
    whole = {str(step): PARTITIONS for step in range(STEPS)}
    for number, outcome in run.outcomes.items():
        records = dict(found[number])
        if records not in ({}, whole):
            run.torn.append(f"transaction {number} ({outcome}) has records {records}")
        elif outcome != "unknown" and records != (whole if outcome == "commit" else {}):
            run.torn.append(f"transaction {number} ended with {outcome}: {records}")
    if run.client in VERSION_2:
        run.complaints += run.torn


def settled(kafka: Kafka, topic: str, partition: int) -> bool:
    """Return True if no transaction of a partition is open."""
    return len({kafka.end(topic, partition, committed=each) for each in (True, False)}) == 1


def read(kafka: Kafka, topic: str) -> Iterator[str]:
    consumer = Consumer({
        "bootstrap.servers": kafka.bootstrap, "group.id": "none", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
    ends = 0
    while ends < PARTITIONS:
        for message in consumer.consume(1_000, timeout=1):
            if message.error() is None:
                yield (message.value() or b"").decode()
            else:
                ends += 1
    consumer.close()


@contextmanager
def proxied(run: Perturbing, against: str) -> Iterator[Proxy]:
    """Start a broker that advertises the proxy's address, and the proxy."""
    listen = free_address()
    host, _, port = listen.partition(":")
    address = host, int(port) + 1
    advertised = {"advertised.listeners": f"PLAINTEXT://{host}:{address[1]}"}
    if against == "apache":
        with (
            tempfile.TemporaryDirectory() as scratch,
            ApacheKafka(Path(scratch), advertised) as kafka,
        ):
            yield Proxy(address, (kafka.host, kafka.port), run.seed)
        return
    with Broker(config=advertised, listen=listen):
        yield Proxy(address, (host, int(port)), run.seed)


def played(run: Perturbing, against: str) -> Perturbing:
    begun = time.monotonic()
    client = CLIENTS[run.client]
    with proxied(run, against) as proxy:
        proxy.is_calm = True
        try:
            kafka = Kafka(f"{proxy.address[0]}:{proxy.address[1]}")
            topic = kafka.topic(PARTITIONS)
            proxy.is_calm = False
            run_transactions(run, client, kafka, topic)
            proxy.is_calm = True
            judge(run, kafka, topic)
        finally:
            proxy.close()
            client.close()
        run.acts = proxy.acts
    run.seconds = time.monotonic() - begun
    return run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.perturbing", description=__doc__)
    parser.add_argument("--transactions", type=int, default=200)
    parser.add_argument("--client", choices=CLIENTS, default=JAVA.name)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--against", choices=("kafkalite", "apache"), default="kafkalite")
    words = parser.parse_args(arguments)
    run = played(Perturbing(words.transactions, words.seed, words.client), words.against)
    if words.against == "kafkalite":
        write_down(run)
    print(
        f"{'BAD ' if run.complaints else 'good'} F15 {run.client} seed {run.seed}"
        f"  {run.count} transactions, {len(run.torn)} torn  {run.seconds:.0f} s",
        f"outcomes {dict(Counter(run.outcomes.values()))}, errors {dict(run.errors)}",
        f"perturbed {dict(sorted(run.acts.items()))}",
        *run.torn[:10], *run.complaints[:10], sep="\n      ", flush=True,
    )  # fmt: skip
    return bool(run.complaints)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
