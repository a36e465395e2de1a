"""The load beside the healthy client, each kind in a thread: topics, retention, hostile reads.

Each loop paces itself and ends when its amount is reached, or the run ends.  A request of ordinary
work that fails is a violation; a hostile client may get errors or be disconnected, which is
counted.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from kafkalite._ext.wire import FETCH_NAMES_MAX
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import EARLIEST, LIST_OFFSETS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from tests.faults.isolation.plan import IsolationPlan
from tests.faults.prober import STALE, guarded
from tests.faults.raw_connection import (
    CREATE_TOPICS_VERSION,
    DELETE_TOPICS_VERSION,
    FETCH_VERSION,
    PRODUCE_VERSION,
    Address,
    RawConnection,
)

RESPONSE_S_MAX = 60.0
BATCH_BYTES = 1_000_000
LIST_OFFSETS_VERSION = 5
UNKNOWN = b"nobody-made-this-topic"


class Load:
    """The threads, their counts, and their violations."""

    def __init__(self, plan: IsolationPlan, bootstrap: Address) -> None:
        self.plan = plan
        self.bootstrap = bootstrap
        self.last_ms = round(time.time() * 1000)
        """The timestamp of the last record of a compressed batch, and only of that one."""
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []
        self.leaders: dict[str, dict[Address, list[int]]] = {}
        """Topic → worker → the partitions it leads."""

    def begin(self, *works: Callable[[], None]) -> None:
        """Start each in a thread."""
        made = [threading.Thread(target=guarded, args=(work, self.faults)) for work in works]
        self.threads += made
        for thread in made:
            thread.start()

    def end(self) -> None:
        """Stop the threads."""
        self.over.set()
        for thread in self.threads:
            thread.join()

    def paced(self, per_s: float) -> Iterator[None]:
        """Yield at this rate until the run is over, without catching up after a delay."""
        while not self.over.is_set():
            begun = time.monotonic()
            yield
            self.over.wait(max(0.0, begun + 1 / per_s - time.monotonic()))

    # -- topics ------------------------------------------------------------------------------

    def create(
        self, line: RawConnection, names: list[str], partitions: int, **config: object
    ) -> None:
        """Create topics by one request, and wait until each partition has a leader."""
        configs = [
            {"name": key.replace("_", "."), "value": str(value)} for key, value in config.items()
        ]
        topics = [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": -1,
                "assignments": [],
                "configs": configs,
            }
            for name in names
        ]
        body = {"topics": topics, "timeout_ms": 60_000, "validate_only": False}
        for topic in line.request(CREATE_TOPICS, CREATE_TOPICS_VERSION, body).topics:
            self.check(topic.error_code, f"CreateTopics of {topic.name}")
        for name in names:
            self.leaders[name] = self.find_leaders(line, name, partitions)

    def find_leaders(
        self, line: RawConnection, name: str, partitions: int
    ) -> dict[Address, list[int]]:
        """Request Metadata until every partition has a leader."""
        deadline = time.monotonic() + RESPONSE_S_MAX
        while time.monotonic() < deadline:
            cluster = line.cluster(name)
            found: dict[Address, list[int]] = {}
            for leader in cluster.leaders:
                if leader.node in cluster.addresses:
                    found.setdefault(cluster.addresses[leader.node], []).append(leader.partition)
            if sum(map(len, found.values())) == partitions:
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{name} has no leader for each partition after {RESPONSE_S_MAX} s")

    def check(self, error_code: int, what: str) -> None:
        if error_code:
            self.fail(f"{what} failed: error {error_code}")

    def fail(self, sentence: str) -> None:
        """Record a violation, once."""
        if sentence not in self.faults:
            self.faults.append(sentence)

    def churn_topics(self) -> None:
        """Create, write to, and delete one half one by one; create and delete the other at once."""
        plan = self.plan
        one_by_one = plan.topics // 2
        with RawConnection(self.bootstrap, RESPONSE_S_MAX) as line:
            pace = self.paced(plan.topics_per_s)
            for number, _ in zip(range(one_by_one), pace, strict=False):
                name = f"churn-{number}"
                self.create(line, [name], 1)
                self.write_once(name)
                self.delete(line, [name])
            if not self.over.is_set():
                names = [f"churn-{number}" for number in range(one_by_one, plan.topics)]
                self.create(line, names, plan.topic_partitions)
                self.delete(line, names)

    def delete(self, line: RawConnection, names: list[str]) -> None:
        body = {"topic_names": names, "timeout_ms": 60_000}
        for told in line.request(DELETE_TOPICS, DELETE_TOPICS_VERSION, body).responses:
            self.check(told.error_code, f"DeleteTopics of {told.name}")
            self.counts["topics deleted"] += not told.error_code
            del self.leaders[told.name]

    def write_once(self, name: str) -> None:
        """Write one record; the leader may not have the new topic yet and respond with an error."""
        ((address, (partition,)),) = self.leaders[name].items()
        with RawConnection(address, RESPONSE_S_MAX) as line:
            code, _ = line.produce(name, partition, "churn")
            self.counts["churned topics written to"] += not code

    def write(self, line: RawConnection, topic: str, partition: int, batch: bytes) -> None:
        """Write a batch, with retries while a leader does not have a new partition yet."""
        data = [{"index": partition, "records": batch}]
        body = {
            "acks": -1,
            "timeout_ms": 30_000,
            "topic_data": [{"name": topic, "partition_data": data}],
        }
        deadline = time.monotonic() + RESPONSE_S_MAX
        while True:
            response = line.request(PRODUCE, PRODUCE_VERSION, body)
            code = response.responses[0].partition_responses[0].error_code
            if code not in STALE or time.monotonic() > deadline or self.over.wait(0.05):
                break
        self.check(code, f"Produce to {topic}-{partition}")

    def write_first(self, topic: str) -> None:
        """Write a record to each partition, which is then served."""
        batch = build([Record(timestamp=self.last_ms, value=b"first")])
        for address, led in self.leaders[topic].items():
            with RawConnection(address, RESPONSE_S_MAX) as line:
                for partition in led:
                    self.write(line, topic, partition, batch)

    # -- ordinary work -----------------------------------------------------------------------

    def feed(self, topic: str) -> None:
        """Write single records to partitions that the consumers read, at random."""
        dice = random.Random(self.plan.seed)
        lines = {address: RawConnection(address, RESPONSE_S_MAX) for address in self.leaders[topic]}
        places = [(a, index) for a, led in self.leaders[topic].items() for index in led]
        for _ in self.paced(self.plan.records_per_s):
            address, partition = dice.choice(places)
            self.write(
                lines[address],
                topic,
                partition,
                build([Record(timestamp=self.last_ms, value=b"n")]),
            )
            self.counts["records to consumers"] += 1
        for line in lines.values():
            line.close()

    def fill(self, topic: str) -> None:
        """Write large batches until retention has removed the planned number of bytes."""
        now_ms = round(time.time() * 1000)
        batch = build([Record(timestamp=now_ms, value=bytes(BATCH_BYTES))])
        lines = [
            (RawConnection(address, RESPONSE_S_MAX), partition)
            for address, led in self.leaders[topic].items()
            for partition in led
        ]
        written = 0
        for _ in self.paced(self.plan.write_mib_per_s * (1 << 20) / BATCH_BYTES / len(lines)):
            for line, partition in lines:
                self.write(line, topic, partition, batch)
                written += BATCH_BYTES
            if written % (64 * BATCH_BYTES) < len(lines) * BATCH_BYTES:
                begins = [self.begin_of(line, topic, partition) for line, partition in lines]
                self.counts["bytes removed"] = sum(begins) * BATCH_BYTES
                if self.counts["bytes removed"] >= self.plan.removed_bytes:
                    break
        self.counts["bytes written"] = written
        for line, _ in lines:
            line.close()

    @staticmethod
    def begin_of(line: RawConnection, topic: str, partition: int) -> int:
        response = lookup(line, topic, [partition], EARLIEST)
        return int(response.topics[0].partitions[0].offset)

    # -- hostile clients ---------------------------------------------------------------------

    def pack(self, topic: str) -> None:
        """Write a compressed batch of many records to each partition, for `look_up`."""
        count = self.plan.lookup_records
        times = [self.last_ms - 1] * (count - 1) + [self.last_ms]
        batch = build([Record(timestamp=ms, value=bytes(40)) for ms in times], codec=Codec.ZSTD)
        for address, led in self.leaders[topic].items():
            with RawConnection(address, RESPONSE_S_MAX) as line:
                for partition in led:
                    self.write(line, topic, partition, batch)

    def look_up(self, topic: str) -> None:
        """Find the last record of each batch by time, all of a worker's in one request."""
        lines = [(RawConnection(a, RESPONSE_S_MAX), led) for a, led in self.leaders[topic].items()]
        pace = self.paced(self.plan.lookups_per_s)
        for number, _ in zip(range(self.plan.time_lookups), pace, strict=False):
            line, led = lines[number % len(lines)]
            for told in lookup(line, topic, led, self.last_ms).topics[0].partitions:
                where = f"ListOffsets by time of {topic}-{told.partition_index}"
                self.check(told.error_code, where)
                if told.offset != self.plan.lookup_records - 1:
                    self.fail(f"{where} found offset {told.offset}")
            self.counts["time lookups"] += 1
        for line, _ in lines:
            line.close()

    def open_sessions(self) -> None:
        """Open fetch sessions of unknown partitions on connections that stay open for a while."""
        workers = list(next(iter(self.leaders.values())))
        # More than a request may name, which is rejected, and as many as it may.
        frames = [
            unknown_partitions(self.plan.session_partitions),
            unknown_topics(self.plan.session_partitions),
            unknown_partitions(FETCH_NAMES_MAX - 1),
            unknown_topics(FETCH_NAMES_MAX // 2),
        ]
        kept: deque[RawConnection] = deque()
        pace = self.paced(self.plan.sessions_per_s)
        for number, _ in zip(range(self.plan.sessions), pace, strict=False):
            line = RawConnection(workers[number % len(workers)], RESPONSE_S_MAX)
            kept.append(line)
            try:
                line.socket.sendall(frames[number // len(workers) % len(frames)])
                size = int.from_bytes(line._exactly(4), "big")
                line._exactly(size)
            except OSError:
                self.counts["hostile sessions disconnected"] += 1
            self.counts["hostile sessions"] += 1
            if len(kept) > self.plan.sessions_kept:
                kept.popleft().close()
        for line in kept:
            line.close()


def lookup(line: RawConnection, topic: str, partitions: list[int], timestamp: int) -> Fields:
    """Send one ListOffsets for partitions of a topic."""
    asked = [{"partition_index": index, "timestamp": timestamp} for index in partitions]
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": asked}],
    }
    return line.request(LIST_OFFSETS, LIST_OFFSETS_VERSION, body)


def framed(api: Api, version: int, body: bytes) -> bytes:
    frame = write_header(api.key, version, 0, "hostile", False) + body
    return struct.pack(">i", len(frame)) + frame


def session_request(topics: bytes) -> bytes:
    """Return a Fetch with these encoded topics that begins a session."""
    # Replica, wait, min and max bytes, isolation level, session id and epoch.
    begin = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, 0)
    return framed(FETCH, FETCH_VERSION, begin + topics + struct.pack(">ih", 0, 0))


def unknown_partitions(count: int) -> bytes:
    """Return a Fetch of one unknown topic with `count` partitions."""
    partitions = b"".join(struct.pack(">iiqqi", index, -1, 0, -1, 4096) for index in range(count))
    name = struct.pack(">h", len(UNKNOWN)) + UNKNOWN
    return session_request(struct.pack(">i", 1) + name + struct.pack(">i", count) + partitions)


def unknown_topics(count: int) -> bytes:
    """Return a Fetch of `count` unknown topics, each with one partition."""
    partition = struct.pack(">iiiqqi", 1, 0, -1, 0, -1, 4096)
    names = (b"%s-%d" % (UNKNOWN, index) for index in range(count))
    topics = b"".join(struct.pack(">h", len(name)) + name + partition for name in names)
    return session_request(struct.pack(">i", count) + topics)


def amounts(plan: IsolationPlan) -> dict[str, Any]:
    """Return the amounts that a complete run has done."""
    return {
        "topics deleted": plan.topics,
        "bytes removed": plan.removed_bytes,
        "time lookups": plan.time_lookups,
        "hostile sessions": plan.sessions,
        "consumers": plan.consumers + plan.wide_consumers,
    }
