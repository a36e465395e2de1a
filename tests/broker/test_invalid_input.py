"""A real broker under invalid input: it keeps running in bounded memory and serves its clients.

Each test attacks the session's one broker and then has a well-behaved client write and read.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kafkalite.broker.dispatch  # noqa: F401  (SERVED is whole once it is imported)
from kafkalite import errors
from kafkalite._ext.record_batch import crc32c
from kafkalite.broker.served_apis import SERVED
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, batches, build
from kafkalite.records.compression import Codec
from kafkalite.testing import Broker

TIMEOUT_S = 10
GROWTH_MAX = 24 << 20
"""Memory growth allowed to a test: buffers that are kept, but not the data it was sent."""

SERVED_VERSIONS = [
    (key, version)
    for key, handler in sorted(SERVED.items())
    for version in range(handler.low, handler.high + 1)
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        started.topic(name="kept")
        yield started


@contextmanager
def connection(broker: Broker) -> Iterator[socket.socket]:
    host, port = broker.bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as made:
        yield made


def framed(api, version: int, **request) -> bytes:
    flexible = api.request_header_flexible(version)
    frame = write_header(api.key, version, 7, "test", flexible)
    frame += api.request.write(version, request)
    return struct.pack(">i", len(frame)) + frame


def received(peer: socket.socket) -> bytes:
    """Return one whole response, or b"" when the connection was closed instead."""
    came = b""
    while len(came) < 4 or len(came) < 4 + struct.unpack_from(">i", came)[0]:
        more = peer.recv(1 << 20)
        if not more:
            return b""
        came += more
    return came[4:]


def wait_for_close_or_response(peer: socket.socket) -> None:
    try:
        peer.recv(1)
    except ConnectionResetError:
        return


def resident(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) << 10


def produced(peer: socket.socket, batch: bytes, topic="kept") -> tuple[int, int]:
    """Return (error code, base offset) of one batch sent to partition 0."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    peer.sendall(framed(PRODUCE, 9, acks=-1, timeout_ms=1_000, topic_data=data))
    answer = PRODUCE.response.read(9, received(peer), 5)
    entry = answer.responses[0].partition_responses[0]
    return entry.error_code, entry.base_offset


def fetching(offset: int, topic="kept", size_max=1 << 20) -> bytes:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size_max}
    return framed(
        FETCH, 11, replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=size_max,
        session_epoch=-1, topics=[{"topic": topic, "partitions": [wanted]}], rack_id="",
    )  # fmt: skip


def works(broker: Broker) -> None:
    """Write a record and read it back, as a well-behaved client."""
    mark = random.randbytes(16)
    with connection(broker) as peer:
        code, offset = produced(peer, build([Record(timestamp=1, value=mark)]))
        assert code == 0
        peer.sendall(fetching(offset))
        answer = FETCH.response.read(11, received(peer), 4)
        (batch,) = batches(answer.responses[0].partitions[0].records)
        assert [record.value for record in batch] == [mark]


@pytest.fixture
def unmoved(broker: Broker) -> Iterator[None]:
    """Assert that the broker still works, is the same process, and has not grown."""
    works(broker)
    pid, before = broker.pid, resident(broker)
    yield
    works(broker)
    assert Path(f"/proc/{pid}/status").exists()
    assert resident(broker) - before < GROWTH_MAX


@pytest.mark.parametrize(("key", "version"), SERVED_VERSIONS)
def test_random_request_gets_a_response_or_is_disconnected(broker, unmoved, key, version):
    chance = random.Random(key * 100 + version)
    for size in (0, 1, 7, 64, 3_000):
        frame = struct.pack(">hhih", key, version, 7, -1) + chance.randbytes(size)
        with connection(broker) as peer:
            peer.sendall(struct.pack(">i", len(frame)) + frame)
            peer.shutdown(socket.SHUT_WR)
            wait_for_close_or_response(peer)


@pytest.mark.parametrize("size", [-1, 0, -(2**31), 2**31 - 1, (100 << 20) + 1])
def test_invalid_frame_size_closes_the_connection(broker, unmoved, size):
    with connection(broker) as peer:
        peer.sendall(struct.pack(">i", size) + bytes(64))
        wait_for_close_or_response(peer)


@pytest.mark.parametrize("count", [2**31 - 1, -2, 10**6])
def test_invalid_array_length_is_refused(broker, unmoved, count):
    frame = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", count)
    with connection(broker) as peer:
        peer.sendall(struct.pack(">i", len(frame)) + frame)
        wait_for_close_or_response(peer)


def test_unfinished_frames_use_only_the_received_memory(broker, unmoved):
    peers = []
    for _ in range(100):
        host, port = broker.bootstrap.rsplit(":", 1)
        peer = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        peer.sendall(struct.pack(">i", 100 << 20) + bytes(10_000))
        peers.append(peer)
    works(broker)
    assert resident(broker) < (200 << 20)
    for peer in peers:
        peer.close()


def test_client_that_does_not_read_does_not_delay_others(broker, unmoved):
    with connection(broker) as peer:
        for _ in range(8):
            assert produced(peer, build([Record(timestamp=1, value=bytes(900_000))]))[0] == 0
        greedy = fetching(0, size_max=50 << 20)
        peer.settimeout(1)
        try:
            for _ in range(2_000):
                peer.sendall(greedy)
        except TimeoutError:
            pass  # the broker has stopped reading this connection, as it should
        works(broker)


def bomb(codec: Codec) -> bytes:
    """Return a small batch with 100 MB of compressed zeros."""
    return build([Record(timestamp=1, value=bytes(100 << 20))], codec=codec)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_decompression_bomb_is_refused(broker, unmoved, codec):
    topic = f"reopened-{codec.name.lower()}"
    broker.topic(name=topic, config={"compression.type": "lz4"})
    batch = bomb(codec)
    assert len(batch) < 1 << 20
    with connection(broker) as peer:
        code, _ = produced(peer, batch, topic)
    assert errors.BY_CODE[code] in (
        errors.CorruptMessage, errors.MessageTooLarge, errors.RecordListTooLarge,
        errors.InvalidRecord,
    )  # fmt: skip


@pytest.mark.parametrize("codec", [c for c in Codec if c is not Codec.NONE])
def test_undecompressible_records_are_refused(broker, unmoved, codec):
    topic = f"broken-{codec.name.lower()}"
    other = "gzip" if codec is not Codec.GZIP else "lz4"
    broker.topic(name=topic, config={"compression.type": other})
    honest = build([Record(timestamp=1, value=b"v" * 100)], codec=codec)
    with connection(broker) as peer:
        assert produced(peer, honest, topic)[0] == 0
        assert produced(peer, with_broken_payload(honest), topic)[0] != 0
        assert produced(peer, honest, topic) == (0, 1)


def with_broken_payload(batch: bytes) -> bytes:
    """Return the batch with a changed payload and a valid CRC."""
    broken = bytearray(batch)
    broken[61:] = b"\xff" * (len(batch) - 61)
    broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
    return bytes(broken)


def test_pipelined_requests_get_responses_in_order(broker, unmoved):
    with connection(broker) as peer:
        for correlation in range(500):
            frame = struct.pack(">hhih", API_VERSIONS.key, 0, correlation, -1)
            peer.sendall(struct.pack(">i", len(frame)) + frame)
        came = b""
        seen = []
        while len(seen) < 500:
            came += peer.recv(1 << 16)
            while len(came) >= 4 and len(came) >= 4 + struct.unpack_from(">i", came)[0]:
                size, correlation = struct.unpack_from(">ii", came)
                seen.append(correlation)
                came = came[4 + size :]
    assert seen == list(range(500))
