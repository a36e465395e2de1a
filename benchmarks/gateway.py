"""ZeroMQ gateway: the produce rate of programs that speak ZeroMQ.

Estimate: pyzmq sends a message of three frames in about 5 us, and receives one in the same time;
libzmq itself needs under 1 us at either end.  The gateway receives in C, so the sender should be
the limit: at least 0.9 of its rate into a PULL in Python that only counts.  With a thousand
messages of 100 bytes in a frame ZeroMQ's cost disappears, and the rest is to find each message and
to write it as a record: above a million per second.

The sender is one program for both; the time runs from its first message until the last one is
counted, or written to the log.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import zmq
from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.harness import Bench, topic
from benchmarks.report import Budget
from benchmarks.subjects import ROOT, Kafkalite

VALUE = b"x" * 100
PACK_COUNT = 1_000
GIVEN_UP_S = 120.0
LOOK_S = 0.002


class Gated:
    """A broker with a gateway."""

    def __init__(self, broker: Kafkalite) -> None:
        self.broker = broker
        self.name = "kafkalite"
        self.bootstrap = broker.bootstrap
        self.pids = broker.pids

    def rate(self, packed: bool, count: int) -> float:
        """Return messages per second, from the first sent to the last written."""
        assert self.broker.ready is not None
        push = self.broker.ready["gateway"]["push"]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench"})
        try:
            with topic(self) as name, sending(push, name, packed, count) as began_s:
                given_up = time.monotonic() + GIVEN_UP_S
                while end_of(consumer, name) < count:
                    if time.monotonic() > given_up:
                        raise RuntimeError("not all messages were written")
                    time.sleep(LOOK_S)
                return count / (time.monotonic() - began_s)
        finally:
            consumer.close()


class Counting:
    """A PULL that counts messages."""

    name = "a PULL that only counts"
    bootstrap = ""
    pids: list[int] = []

    def rate(self, packed: bool, count: int) -> float:
        """Return messages per second, from the first sent to the last counted."""
        with zmq.Context() as context, context.socket(zmq.PULL) as pull:
            port = pull.bind_to_random_port("tcp://127.0.0.1")
            each = PACK_COUNT if packed else 1
            with sending(f"tcp://127.0.0.1:{port}", "t", packed, count) as began_s:
                for _ in range(count // each):
                    pull.recv_multipart()
                return count / (time.monotonic() - began_s)


@contextlib.contextmanager
def sending(endpoint: str, name: str, packed: bool, count: int) -> Iterator[float]:
    """Run the sender in a process of its own; yield the time of its first message."""
    command = [sys.executable, "-m", "benchmarks.gateway", endpoint, name]
    command += ["packed" if packed else "plain", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        try:
            yield float(sender.stdout.readline())
        finally:
            sender.kill()


def end_of(consumer: Any, name: str) -> int:
    """Return the end offset of the topic's one partition; 0 while it does not exist."""
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=1)
    except KafkaException:
        return 0
    return int(end)


def run(bench: Bench) -> None:
    options = {"gateway.listener": "tcp://127.0.0.1:0"}
    with Kafkalite(bench.scratch / "gated", options=options) as broker:
        gated, counting = Gated(broker), Counting()
        for packed, count, what, budget in (
            (False, bench.scale(300_000), "three frames", Budget(at_least=0.9)),
            (
                True, bench.scale(5_000, 1) * PACK_COUNT, "packs of 1,000",
                Budget(at_least=1e6, of_value=True),
            ),
        ):  # fmt: skip

            def measure(
                subject: Any, packed: bool = packed, count: int = count
            ) -> Mapping[str, float]:
                return {"messages a second, /s": subject.rate(packed, count)}

            budgets = {"messages a second, /s": budget}
            bench.compare(f"gateway, {what}", measure, budgets, [gated, counting])


def send(endpoint: str, topic_name: str, packed: bool, count: int) -> None:
    """Send `count` messages, and print the time of the first."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(endpoint)
        name = topic_name.encode()
        print(time.monotonic(), flush=True)
        if packed:
            entry = struct.pack(">I", len(VALUE)) + VALUE
            pack = b"KLV1" + entry * PACK_COUNT
            for _ in range(count // PACK_COUNT):
                push.send_multipart([name, pack], copy=False)
        else:
            for _ in range(count):
                push.send_multipart([name, b"", VALUE])


if __name__ == "__main__":
    send(sys.argv[1], sys.argv[2], sys.argv[3] == "packed", int(sys.argv[4]))
