"""A client with ordinary load beside all the others, which must not be affected.

    python -m tests.fuzz.healthy HOST:PORT TOPIC

Several times a second it writes a record, reads it back and requests the topic's metadata.  A line
on its standard input ends a phase, and it prints the phase's number of rounds and their latencies.
It ends with its input.  Any unexpected response ends it with an error.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Self

from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, batches, build

PATIENCE_S = 60
EVERY_S = 0.005


class Connection:
    """One connection with one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.stream = self.socket.makefile("rb")
        self.asked = 0

    def ask(self, api: Api, version: int, request: dict[str, Any]) -> Any:
        return self.answer(api, version, self.send(api, version, request))

    def send(self, api: Api, version: int, request: dict[str, Any]) -> int:
        """Send a request and return its correlation id."""
        self.asked += 1
        flexible = api.request_header_flexible(version)
        frame = write_header(api.key, version, self.asked, "healthy", flexible)
        frame += api.request.write(version, request)
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self.asked

    def answer(self, api: Api, version: int, correlation_id: int) -> Any:
        """Receive the next response, which must have this correlation id."""
        (size,) = struct.unpack(">i", self.stream.read(4))
        answer = self.stream.read(size)
        assert struct.unpack_from(">i", answer) == (correlation_id,)
        return api.response.read(version, answer, 4 + api.response_header_flexible(version))

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


def round_trip(connection: Connection, topic: str, number: int) -> None:
    """Write one record and read it back."""
    # With the current time, or retention could delete it before it is read.
    now_ms = time.time_ns() // 1_000_000
    batch = build([Record(timestamp=now_ms, key=b"k", value=b"%d" % number)])
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    asked = {"acks": -1, "timeout_ms": 10_000, "topic_data": data}
    (written,) = connection.ask(PRODUCE, 9, asked).responses[0].partition_responses
    assert written.error_code == 0, written
    wanted = {"partition": 0, "fetch_offset": written.base_offset, "partition_max_bytes": 1 << 20}
    asked = {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20,
        "session_epoch": -1, "topics": [{"topic": topic, "partitions": [wanted]}], "rack_id": "",
    }  # fmt: skip
    (read,) = connection.ask(FETCH, 11, asked).responses[0].partitions
    assert read.error_code == 0, read
    (found,) = batches(read.records)
    assert [record.value for record in found] == [b"%d" % number]


def leader(address: str, topic: str) -> str:
    """Return the address of the leader of the topic's one partition."""
    connection = Connection(address)
    answer = connection.ask(METADATA, 9, {"topics": [{"name": topic}]})
    connection.close()
    leader_id = answer.topics[0].partitions[0].leader_id
    (there,) = [node for node in answer.brokers if node.node_id == leader_id]
    return f"{there.host}:{there.port}"


def work(address: str, topic: str) -> None:
    connection = Connection(leader(address, topic))
    times: list[float] = []
    number = 0
    while True:
        begun = time.perf_counter()
        round_trip(connection, topic, number)
        times.append(time.perf_counter() - begun)
        number += 1
        if select.select([sys.stdin], [], [], EVERY_S)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(spread(times)), flush=True)
            times = []


def spread(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    at = {"p50": len(times) // 2, "p99": len(times) * 99 // 100, "worst": len(times) - 1}
    return {"rounds": len(times), **{name: round(1000 * times[i], 2) for name, i in at.items()}}


class Healthy:
    """The client in a process of its own."""

    def __init__(self, address: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.fuzz.healthy", address, topic]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.begun = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def phase(self) -> dict[str, float]:
        """End a phase; return its figures, including rounds per second."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        said = self.process.stdout.readline()
        assert said, f"the healthy client noticed: {self.process.stderr.read()}"
        seconds, self.begun = time.monotonic() - self.begun, time.monotonic()
        seen = json.loads(said)
        return {**seen, "a_second": round(seen["rounds"] / seconds, 1)}

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2])
