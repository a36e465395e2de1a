"""Ring batches decompressed on the opener's thread are appended and refused like all others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c
import pytest

from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.broker.future import Future
from kafkalite.broker.replica import batch_opener as opener
from kafkalite.errors import InvalidRecord, UnknownTopicId
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.compression import Codec
from kafkalite.records.decode_steps import DecodeSteps
from tests.broker.local_harness import LocalClient, LocalNode, batch_of

OK = 0
CRC, CRC_FROM = 17, 21
"""Position of a batch's CRC, and of the first byte it covers."""
NOTHING = (-1, -1, -1)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalNode]:
    made = LocalNode(tmp_path / "data", **{"native.ring.bytes": str(256 << 10)})
    made.topic = made.create("t", 2)
    monkeypatch.setattr(opener, "BUDGET", 0)  # every compressed batch goes to the thread
    yield made
    made.remove()


@pytest.fixture
def local_client(host: LocalNode) -> LocalClient:
    made = host.connect_client()
    made.attach()
    return made


@pytest.fixture
def let_go(host: LocalNode) -> Iterator[Callable[[], None]]:
    """Block the opener's thread until the returned function is called."""
    gate = threading.Event()

    def waiting() -> DecodeSteps[bytes]:
        gate.wait(30)
        return b""
        yield 0

    host.node.opener._submit(waiting(), Future())
    yield gate.set
    gate.set()


def packed(value: bytes) -> bytes:
    return batch_of(value, codec=Codec.GZIP)


def damaged() -> bytes:
    """Return a batch with a valid CRC whose records cannot be decompressed."""
    batch = bytearray(packed(b"v" * 500))
    batch[HEADER_SIZE:] = bytes(len(batch) - HEADER_SIZE)
    batch[CRC:CRC_FROM] = crc32c.crc32c(bytes(batch[CRC_FROM:])).to_bytes(4, "big")
    return bytes(batch)


def taken(host: LocalNode, count: int) -> None:
    host.until(lambda: host.local_listener.rings.counts["frames"] == count)


def test_batches_behind_a_decompression_keep_their_order(host, local_client, let_go):
    numbers = [
        local_client.put(packed(b"a"), host.topic),
        local_client.put(batch_of(b"b"), host.topic),
        local_client.put(packed(b"c"), host.topic),
        local_client.put(batch_of(b"other"), host.topic, partition=1),
    ]
    assert local_client.wait_for_acks(1) == [(numbers[3], OK, 0, -1, 0)]
    taken(host, 4)
    assert host.values() == [] and len(local_client.take_acks()) == 1
    let_go()
    assert local_client.wait_for_acks(4)[1:] == [
        (number, OK, at, -1, 0) for at, number in enumerate(numbers[:3])
    ]
    assert host.values() == [b"a", b"b", b"c"]
    assert host.node.opener.submitted_count == 3
    assert host.local_listener.rings.errors == {}


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_damaged_batch_is_refused_by_the_thread(host, local_client, acks):
    refused = local_client.put(damaged(), host.topic, acks=acks)
    good = local_client.put(packed(b"good"), host.topic)
    assert sorted(local_client.wait_for_acks(2)) == sorted(
        [(refused, InvalidRecord.code, *NOTHING), (good, OK, 0, -1, 0)]
    )
    assert host.values() == [b"good"]
    assert host.local_listener.rings.errors == {InvalidRecord.code: 1}


def test_record_without_a_key_for_a_compacted_topic_is_refused(host, local_client):
    compacted = host.create("compacted", 1, cleanup_policy="compact")
    numbers = [local_client.put(each, compacted) for each in (batch_of(b"v"), packed(b"v"))]
    assert sorted(local_client.wait_for_acks(2)) == [
        (number, InvalidRecord.code, *NOTHING) for number in numbers
    ]
    assert host.node.replicas.traffic["compacted"].keyless_records == 2


def test_bytes_taken_from_a_ring_during_decompression_are_bounded(host, local_client, let_go):
    batch = packed(os.urandom(30_000))
    (ring,) = host.local_listener.rings.rings
    count = 0
    while local_client.ring.writer.reserve(len(batch)) is not None:
        local_client.put(batch, host.topic)
        count += 1
        for _ in range(5):
            host.reactor.tick(0)
    taken_size = host.local_listener.rings.counts["frames"] * len(batch)
    assert ring.size <= taken_size < ring.size + len(batch), "the rest stays in the ring"
    assert count * len(batch) > 1.5 * ring.size
    let_go()
    local_client.wait_for_acks(count)
    assert len(host.values()) == count


def test_batch_of_a_disconnected_producer_is_appended(host, local_client, let_go):
    local_client.put(packed(b"a"), host.topic)
    local_client.put(batch_of(b"b"), host.topic)
    taken(host, 2)
    local_client.close()
    host.until(lambda: not host.local_listener.rings.rings)
    let_go()
    host.until(lambda: len(host.values()) == 2)
    assert host.values() == [b"a", b"b"] and host.local_listener.rings.closed_counts["fault"] == 0


def test_topic_deleted_during_decompression_is_unknown(host, local_client, let_go):
    local_client.put(packed(b"a"), host.topic)
    local_client.put(batch_of(b"b"), host.topic)
    taken(host, 2)
    host.request(DELETE_TOPICS, 1, topic_names=["t"], timeout_ms=1_000)
    let_go()
    assert {code for _, code, *_ in local_client.wait_for_acks(2)} == {UnknownTopicId.code}
