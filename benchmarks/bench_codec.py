"""Message codec: the cost of reading and writing a message, against kio and kafka-python.

All three process the same bytes.  Messages of infrequent APIs are read and written by an
interpreter of compiled plans.  Estimate: a field is a dict look-up and a store, about 20 ns, so
Metadata of 100 partitions (13 values each with their elements) is near 25 us each way; making the
dicts costs a handler about as much again.  Above 100 us a node with many topics would be slowed by
clients that start.  Produce and Fetch have hand-written codecs because every record passes them: a
request of one partition must stay below 2 us, header and response included, of the 15 us that a
request of 16 KiB may take.

    python -m benchmarks.bench_codec
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.consumer import JoinGroupRequest, JoinGroupResponse, OffsetFetchResponse
from kafka.protocol.metadata import MetadataResponse
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from benchmarks.harness import best_ns
from kafkalite._ext import wire
from kafkalite.protocol.frame import FLEXIBLE_FROM, write_header
from kafkalite.protocol.schema import Api, MessageSchema
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import JOIN_GROUP, OFFSET_FETCH
from kafkalite.protocol.schemas.produce import PRODUCE

PARTITION_COUNT = 100
REPEATS = 30

Values = dict[str, Any]


def metadata(count: int) -> Values:
    nodes = [{"node_id": one, "host": "127.0.0.1", "port": 9092 + one} for one in range(3)]
    partitions = [
        {
            "partition_index": index,
            "leader_id": index % 3,
            "leader_epoch": 5,
            "replica_nodes": [0, 1, 2],
            "isr_nodes": [0, 1, 2],
        }
        for index in range(count)
    ]
    topic = {"name": "flights", "topic_id": bytes(range(16)), "partitions": partitions}
    return {"brokers": nodes, "cluster_id": "x" * 22, "controller_id": 0, "topics": [topic]}


def join_request(count: int) -> Values:
    protocols = [{"name": f"protocol-{one}", "metadata": bytes(60)} for one in range(2)]
    return {"group_id": "delays", "protocol_type": "consumer", "protocols": protocols}


def join_response(count: int) -> Values:
    members = [{"member_id": "m" * 40, "metadata": bytes(60)} for _ in range(count // 10)]
    return {"generation_id": 5, "protocol_type": "consumer", "members": members}


def committed(count: int) -> Values:
    partitions = [
        {"partition_index": index, "committed_offset": index << 20, "metadata": ""}
        for index in range(count)
    ]
    topic = {"name": "flights", "partitions": partitions}
    return {"groups": [{"group_id": "delays", "topics": [topic]}]}


Subject = tuple[Api, MessageSchema, int, Callable[[int], Values], Any]
SUBJECTS: list[Subject] = [
    (METADATA, METADATA.response, 12, metadata, MetadataResponse),
    (JOIN_GROUP, JOIN_GROUP.request, 7, join_request, JoinGroupRequest),
    (JOIN_GROUP, JOIN_GROUP.response, 7, join_response, JoinGroupResponse),
    (OFFSET_FETCH, OFFSET_FETCH.response, 8, committed, OffsetFetchResponse),
]


def read_and_write(subject: Subject, count: int, repeats: int = REPEATS) -> dict[str, float]:
    """Return microseconds by codec and direction."""
    api, message, version, make, kafka_python = subject
    values = make(count)
    frame = message.write(version, values)
    load = load_request_schema if message is api.request else load_response_schema
    entity = load(api.key, version)
    reader, writer = entity_reader(entity), entity_writer(entity)
    of_kio = reader(frame, 0)[0]
    of_kafka_python = kafka_python.decode(frame, version=version)
    of_kafka_python._header = None
    ways: dict[str, Callable[[], object]] = {
        "build": lambda: make(count),
        "write": lambda: message.write(version, values),
        "kio write": lambda: writer(io.BytesIO(), of_kio),
        "kafka-python write": lambda: of_kafka_python.encode(version=version),
        "read": lambda: message.read(version, frame),
        "kio read": lambda: reader(frame, 0),
        "kafka-python read": lambda: kafka_python.decode(frame, version=version),
    }
    return {name: best_ns(repeats, way) / 1e3 for name, way in ways.items()}


def hot(repeats: int = REPEATS) -> dict[str, float]:
    """Return microseconds of the codec steps of a Produce and a Fetch of one partition."""
    produce = {"name": "flights", "partition_data": [{"index": 3, "records": bytes(16 << 10)}]}
    head = write_header(PRODUCE.key, 12, 7, "rdkafka", flexible=True)
    produced = memoryview(head + PRODUCE.request.write(12, {"acks": -1, "topic_data": [produce]}))
    fetch = {"topic": "flights", "partitions": [{"partition": 3, "fetch_offset": 1 << 30}]}
    fetched = memoryview(head + FETCH.request.write(12, {"topics": [fetch]}))
    answers = [("flights", [(3, 0, 1 << 30, -1, 0, (), None, None)])]
    found = [("flights", [(3, 0, 1 << 30, 1 << 30, 0, None, -1, bytes(16 << 10), None, None, -1)])]
    ways: dict[str, Callable[[], object]] = {
        "header, read": lambda: wire.decode_header(produced, FLEXIBLE_FROM),
        "Produce, read": lambda: wire.decode_produce(12, produced, len(head)),
        "Produce, read by schema": lambda: PRODUCE.request.read(12, produced, len(head)),
        "Produce, written": lambda: wire.encode_produce(12, 7, answers, 0),
        "Fetch, read": lambda: wire.decode_fetch(12, fetched, len(head)),
        "Fetch, read by schema": lambda: FETCH.request.read(12, fetched, len(head)),
        "Fetch, written": lambda: wire.encode_fetch(12, 7, 0, 0, 0, found),
    }
    return {name: best_ns(repeats, way) / 1e3 for name, way in ways.items()}


IMPORT = """
import time
began = time.perf_counter()
import kafkalite.protocol.frame
print((time.perf_counter() - began) * 1e3)
"""


def import_ms(repeats: int = 7) -> float:
    """Return the milliseconds a new interpreter takes to import the codec and every schema."""
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        for _ in range(repeats)
    ]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    for subject in SUBJECTS:
        _, message, version, _, _ = subject
        print(f"{message.name} version {version}, us")
        for name, spent in read_and_write(subject, PARTITION_COUNT).items():
            print(f"    {name:20s}{spent:8.2f}")
    print("one partition, us")
    for name, spent in hot().items():
        print(f"    {name:24s}{spent:8.3f}")
    print(f"import of the codec and every schema: {import_ms():.1f} ms")


# Every benchmark is also a test, so that it does not break unnoticed.


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject[1].name)
def test_write_is_faster_than_kio_and_kafka_python(subject):
    spent = read_and_write(subject, PARTITION_COUNT, repeats=2)
    assert spent["write"] < spent["kio write"]
    assert spent["write"] < spent["kafka-python write"]


def test_compiled_codec_is_faster_than_its_twin():
    spent = hot(repeats=2)
    assert spent["Fetch, read"] < spent["Fetch, read by schema"]
    assert spent["Produce, read"] < spent["Produce, read by schema"]


def test_import_time_is_measured():
    assert import_ms(repeats=1) > 0


if __name__ == "__main__":
    main()
