"""Request frames for `client frames`, and the integers in them that it draws for each request.

One old version of each API, which every broker supports: Produce 7, Fetch 11, ListOffsets 4.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness import Run, run_client
from benchmarks.subjects import Subject
from benchmarks.wire import frame, header_size
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, build

PRODUCE_VERSION, FETCH_VERSION = 7, 11
PARTITION_MARK, OFFSET_MARK = 0x5EEDBEEF, 0x5EEDBEEF5EEDBEEF
RECORD_SIZE = 100


@dataclass(frozen=True)
class Frame:
    """A request without its size prefix.

    `varied` is what the client's --vary takes; `partition_at` is the position of the partition
    index in a request whose partition is drawn.
    """

    api: Api
    version: int
    request: bytes
    varied: tuple[str, ...] = ()
    partition_at: int | None = None

    def run(
        self,
        subject: Subject,
        scratch: Path,
        requests: int,
        connections: int = 1,
        leaders: Sequence[str] = (),
    ) -> Run:
        """Send it `requests` times; first once alone, to see that its response has no error.

        With `leaders`, the leader's address for each partition, each connection keeps to one
        partition and connects to its leader; without, all use the bootstrap address and draw.
        """
        path = scratch / "frame"
        path.write_bytes(self.request)
        answer = scratch / "answer"
        options: dict[str, object] = {"frame": path, "vary": list(self.varied)}
        if leaders:
            assert self.partition_at is not None, "its request is for one partition"
            led = [f"{address}={partition}" for partition, address in enumerate(leaders)]
            options = {"frame": path, "partition_at": self.partition_at, "leader": led}
        run_client(subject, "frames", records=1, answer=answer, **options)
        if subject.name not in ("receive_and_write", "sendfile"):
            self.check(answer.read_bytes())
        requests = max(requests, connections)
        return run_client(subject, "frames", records=requests, connections=connections, **options)

    def check(self, answer: bytes) -> None:
        found = self.api.response.read(self.version, answer, header_size(self.api, self.version))
        for topic in found["responses"] if "responses" in found else found["topics"]:
            for partition in topic.get("partition_responses") or topic["partitions"]:
                if partition["error_code"]:
                    raise RuntimeError(f"{self.api.name} is answered with {partition}")


def produce_frame(topic: str, batch: bytes, *, partitions: int = 1, acks: int = 1) -> Frame:
    """Return a Produce of one batch; with several partitions, each request draws one."""
    index = PARTITION_MARK if partitions > 1 else 0
    body: dict[str, object] = {
        "acks": acks,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
    }
    request = frame(PRODUCE, PRODUCE_VERSION, body)
    if partitions == 1:
        return Frame(PRODUCE, PRODUCE_VERSION, request)
    position = request.index(struct.pack(">i", PARTITION_MARK))
    return Frame(PRODUCE, PRODUCE_VERSION, request, (f"{position}:4:0:{partitions}",), position)


def fetch_frame(topic: str, *, end_offset: int, size_max: int) -> Frame:
    """Return a Fetch of up to `size_max` bytes at an offset drawn for each request."""
    wanted = {"partition": 0, "fetch_offset": OFFSET_MARK, "partition_max_bytes": size_max}
    body: dict[str, object] = {
        "max_wait_ms": 100,
        "min_bytes": 1,
        "max_bytes": size_max,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    request = frame(FETCH, FETCH_VERSION, body)
    position = request.index(struct.pack(">q", OFFSET_MARK))
    return Frame(FETCH, FETCH_VERSION, request, (f"{position}:8:0:{end_offset}",))


def waiting_fetch(topic: str) -> tuple[bytes, int]:
    """Return a Fetch that waits for one record, and the position of its offset in the frame."""
    wanted = {"partition": 0, "fetch_offset": OFFSET_MARK, "partition_max_bytes": 1 << 16}
    body: dict[str, object] = {
        "max_wait_ms": 10_000,
        "min_bytes": 1,
        "max_bytes": 1 << 16,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    request = frame(FETCH, FETCH_VERSION, body)
    return request, request.index(struct.pack(">q", OFFSET_MARK))


@cache
def batch_of(size: int) -> bytes:
    """Return a cached batch of about `size` bytes with records of 100 bytes."""
    now_ms = int(time.time() * 1000)
    count = max(1, (size - 61) // (RECORD_SIZE + 8))
    values = os.urandom(RECORD_SIZE * count)
    return build(
        Record(timestamp=now_ms, value=values[place : place + RECORD_SIZE])
        for place in range(0, len(values), RECORD_SIZE)
    )


def count_in(batch: bytes) -> int:
    return int.from_bytes(batch[57:61], "big")
