"""Segment grants: local programs get the same offsets as by Fetch, in whole batches, for as long as
the segment exists."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.broker.local import direct_reads
from kafkalite.broker.replica.readable_partition import READ_COMMITTED
from kafkalite.broker.security import AclOperation
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.batch import Record, batches, build
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.compaction.cleaning import clean
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.segment import aborted_lookup
from kafkalite.storage.segment.aborted_lookup import AbortedLookup
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.broker.local_harness import LocalClient, LocalNode, batch_of, descriptor_count
from tests.handlers.denying import Denying
from tests.storage.cleaning_harness import job_of, no_throttle

DELAY_MS = 60_000


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalNode]:
    made = LocalNode(tmp_path / "data")
    made.topic = made.create("t", segment_bytes=str(1 << 20), file_delete_delay_ms=str(DELAY_MS))
    yield made
    made.remove()


@pytest.fixture
def local_client(host: LocalNode) -> LocalClient:
    return host.connect_client()


def append(host: LocalNode, *values: bytes, topic: str = "t") -> None:
    partition = host.node.replicas.leader(topic, 0)
    for value in values:
        host.node.replicas.append_own(partition, batch_of(value))
    host.reactor.tick(0)


def values(local_client: LocalClient, grant: dict[str, Any]) -> list[bytes | None]:
    return [row.value for batch in batches(local_client.content(grant)) for row in batch]


def is_whole(content: bytes) -> bool:
    """Return whether the content ends at a batch boundary."""
    position = 0
    while position < len(content):
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    return position == len(content)


def fill(host: LocalNode, segments: int) -> None:
    """Write `segments` closed segments of three batches each, and an active one."""
    for number in range(segments):
        append(host, *(b"%d-%d " % (number, each) + b"x" * 300_000 for each in range(3)))
        host.node.replicas.leader("t", 0).log.roll()
    append(host, b"last")


def delete_before(host: LocalNode, offset: int) -> None:
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = host.request(DELETE_RECORDS, 2, topics=asked, timeout_ms=1_000)
    assert answer.topics[0].partitions[0].error_code == 0


def future(host: LocalNode, ms: int) -> None:
    host.clock.advance(ms)
    host.reactor.tick(0)


# -- granted ranges ------------------------------------------------------------------------------


def test_read_returns_a_grant_of_the_available_records(host, local_client):
    append(host, b"a", b"b")
    grant = local_client.read(host.topic)
    assert values(local_client, grant) == [b"a", b"b"]
    assert grant | {"request_id": 0} == {
        "request_id": 0, "error_code": 0, "error_message": None, "high_watermark": 2,
        "last_stable_offset": 2, "log_start_offset": 0, "file": 0, "fresh": True, "position": 0,
        "size": 2 * len(batch_of(b"a")), "end_offset": 2, "dropped": [], "aborted": [],
    }  # fmt: skip


def test_file_is_sent_once_and_referenced_later(host, local_client):
    append(host, b"a")
    first = local_client.read(host.topic)
    append(host, b"b")
    second = local_client.read(host.topic, offset=first["end_offset"])
    assert (second["file"], second["fresh"]) == (first["file"], False)
    assert values(local_client, second) == [b"b"]


def abort_transactions(host: LocalNode, producer_ids: range, *, together: bool = False) -> None:
    """Write a record in a transaction of each producer, and abort it."""
    partition = host.node.replicas.leader("t", 0)
    record = Record(timestamp=host.clock.wall_ms(), value=b"aborted")

    def write(producer_id: int) -> None:
        batch = build([record], producer_id=producer_id, producer_epoch=0, base_sequence=0,
                      transactional=True)  # fmt: skip
        host.node.replicas.append_own(partition, batch, NOT_REQUIRED)

    def abort(producer_id: int) -> None:
        partition.log.append_marker(TransactionMarker(producer_id, 0, False, 0), 0)

    if together:
        for producer_id in producer_ids:
            write(producer_id)
    for producer_id in producer_ids:
        if not together:
            write(producer_id)
        abort(producer_id)
    host.reactor.tick(0)


def test_grant_is_smaller_the_more_aborted_transactions_it_has(host, local_client):
    abort_transactions(host, range(5_000))
    offset, found = 0, []
    while offset < 10_000:
        grant = local_client.read(
            host.topic, offset=offset, size_max=16 << 20, isolation_level=READ_COMMITTED
        )
        assert grant["error_code"] == 0
        assert is_whole(local_client.content(grant))
        found += [each.producer_id for each in grant["aborted"]]
        offset = grant["end_offset"]
    assert [*dict.fromkeys(found)] == [*range(5_000)]


def test_grant_lists_no_transaction_without_a_batch_in_it(host, local_client, monkeypatch):
    monkeypatch.setattr(direct_reads, "ABORTED_MAX", 30)
    abort_transactions(host, range(100), together=True)
    offset = 0
    while offset < 200:
        grant = local_client.read(
            host.topic, offset=offset, size_max=1 << 20, isolation_level=READ_COMMITTED
        )
        assert grant["error_code"] == 0
        found = [each.header for each in batches(local_client.content(grant))]
        assert len(grant["aborted"]) == len(found) <= 30
        assert {each.producer_id for each in grant["aborted"]} == {
            header.producer_id for header in found
        }
        assert grant["end_offset"] == found[-1].last_offset + 1
        offset = grant["end_offset"]


COMMITTED_READ = {"offset": 99, "size_max": 1 << 20, "isolation_level": READ_COMMITTED}


@pytest.mark.parametrize("wait_ms", [0, 1_000])
def test_grant_is_sent_after_a_lookup_in_steps(host, local_client, monkeypatch, wait_ms):
    abort_transactions(host, range(100), together=True)
    wanted = local_client.read(host.topic, **COMMITTED_READ)
    monkeypatch.setattr(aborted_lookup, "BUDGET", 1)
    monkeypatch.setattr(aborted_lookup, "BLOCK_COUNT", 8)
    local_client.send_read(host.topic, wait_ms=wait_ms, **COMMITTED_READ)
    counts = host.local_listener.counts
    host.until(lambda: counts["waiting"])
    host.until(lambda: future(host, 1) or not counts["waiting"])
    grant = local_client.receive_grant()
    assert len(grant["aborted"]) == 100
    assert (grant["size"], grant["aborted"]) == (wanted["size"], wanted["aborted"])


def test_connection_that_ends_cancels_its_lookups(host, local_client, monkeypatch):
    abort_transactions(host, range(100), together=True)
    monkeypatch.setattr(aborted_lookup, "BUDGET", 0)
    local_client.send_read(host.topic, **COMMITTED_READ)
    counts = host.local_listener.counts
    host.until(lambda: counts["waiting"])
    local_client.close()
    host.until(lambda: not counts["waiting"])


def test_index_that_cannot_be_read_in_a_later_step_is_an_error(host, local_client, monkeypatch):
    abort_transactions(host, range(100), together=True)
    monkeypatch.setattr(aborted_lookup, "BUDGET", 0)
    local_client.send_read(host.topic, **COMMITTED_READ)
    counts = host.local_listener.counts
    host.until(lambda: counts["waiting"])

    def failing(self, budget):
        raise KafkaStorageError("The index was truncated by another program.")

    monkeypatch.setattr(AbortedLookup, "step", failing)
    future(host, 1)
    assert local_client.receive_grant()["error_code"] == KafkaStorageError.code
    assert counts["waiting"] == 0


def test_partition_deleted_during_a_lookup_is_an_error(host, local_client, monkeypatch):
    abort_transactions(host, range(100), together=True)
    monkeypatch.setattr(aborted_lookup, "BUDGET", 0)
    local_client.send_read(host.topic, **COMMITTED_READ)
    host.until(lambda: host.local_listener.counts["waiting"])
    host.request(DELETE_TOPICS, 1, topic_names=["t"], timeout_ms=1_000)
    future(host, 1)
    assert local_client.receive_grant()["error_code"] == UnknownTopicOrPartition.code


def test_each_connection_has_its_own_file_numbers(host, local_client):
    append(host, b"a")
    for each in (local_client, host.connect_client()):
        grant = each.read(host.topic)
        assert (grant["file"], grant["fresh"]) == (0, True)


def test_granted_descriptor_is_read_only(host, local_client):
    append(host, b"a")
    descriptor = local_client.files[local_client.read(host.topic)["file"]]
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    for write in (
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.posix_fallocate(descriptor, 0, 1 << 20),
    ):
        with pytest.raises(OSError):
            write()


def test_consecutive_grants_cover_every_record_once(host, local_client):
    fill(host, 3)
    found, offset, grants = [], 0, 0
    while offset < 10:
        grant = local_client.read(host.topic, offset=offset, size_max=700_000)
        found += values(local_client, grant)
        offset = grant["end_offset"]
        grants += 1
    assert found == host.values() and len(found) == 10
    assert grants == 7 and len(local_client.files) == 4


@pytest.mark.parametrize("size_max", [0, -1, 1, 1_000, 5_000, 20_000, 1 << 30])
def test_grant_has_whole_batches_within_the_requested_size(host, local_client, size_max):
    for number in range(300):
        append(host, b"%d " % number + b"x" * (number * 7 % 400))
    found, offset = [], 0
    while offset < 300:
        grant = local_client.read(host.topic, offset=offset, size_max=size_max)
        came = values(local_client, grant)
        assert is_whole(local_client.content(grant))
        assert grant["size"] <= max(size_max, 0) or len(came) == 1
        found += came
        offset += len(came)
        assert grant["end_offset"] == offset
    assert found == host.values()


def test_read_within_a_batch_is_granted_that_batch(host, local_client):
    partition = host.node.replicas.leader("t", 0)
    partition.append(batch_of(b"a", b"b", b"c"))
    append(host, b"d")
    assert values(local_client, local_client.read(host.topic, offset=1)) == [b"a", b"b", b"c", b"d"]


def test_grant_ends_at_the_high_watermark(host, local_client, monkeypatch):
    topic = host.create("safe", durability="fsync")
    append(host, b"durable", topic="safe")
    partition = host.node.replicas.leader("safe", 0)
    host.until(lambda: partition.high_watermark == 1)
    monkeypatch.setattr(host.node.flusher, "submit", lambda flushes: None)
    append(host, b"not yet", topic="safe")
    grant = local_client.read(topic)
    assert (values(local_client, grant), grant["end_offset"], grant["high_watermark"]) == (
        [b"durable"], 1, 1,
    )  # fmt: skip
    assert local_client.read(topic, offset=1)["file"] == -1


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_read_committed_grant_ends_at_the_last_stable_offset(
    host, local_client, isolation_level, monkeypatch
):
    append(host, b"a", b"b")
    kind = type(host.node.replicas.leader("t", 0))
    monkeypatch.setattr(kind, "last_stable_offset", property(lambda self: 1))
    grant = local_client.read(host.topic, isolation_level=isolation_level)
    assert (grant["end_offset"], grant["last_stable_offset"]) == (2 - isolation_level, 1)
    assert len(values(local_client, grant)) == 2 - isolation_level


def test_granted_bytes_are_counted_as_bytes_out(host, local_client):
    append(host, b"a")
    grant = local_client.read(host.topic)
    local_client.read(host.topic, offset=1)
    local_client.read(host.topic, offset=9)
    traffic = host.node.replicas.traffic["t"]
    assert (traffic.bytes_out, traffic.fetches, traffic.failed_fetches) == (grant["size"], 3, 1)


# -- waiting reads -------------------------------------------------------------------------------


def test_read_of_an_empty_log_returns_at_once(host, local_client):
    grant = local_client.read(host.topic)
    assert (grant["error_code"], grant["file"], grant["size"], grant["high_watermark"]) == (
        0, -1, 0, 0,
    )  # fmt: skip


@pytest.mark.parametrize("wait_ms", [-1, -(2**31), 0])
def test_read_without_positive_wait_returns_at_once(host, local_client, wait_ms):
    assert local_client.read(host.topic, wait_ms=wait_ms)["file"] == -1


def test_read_waits_for_the_next_append(host, local_client):
    local_client.send_read(host.topic, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    assert local_client.try_receive() is None
    append(host, b"a")
    assert values(local_client, local_client.receive_grant()) == [b"a"]
    assert host.node.replicas.purgatory.size == 0


def test_expired_read_returns_no_file(host, local_client):
    local_client.send_read(host.topic, wait_ms=5_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    future(host, 5_000)
    grant = local_client.receive_grant()
    assert (grant["error_code"], grant["file"], grant["high_watermark"]) == (0, -1, 0)


def test_waiting_read_does_not_delay_other_reads(host, local_client):
    other = host.create("u")
    first = local_client.send_read(host.topic, wait_ms=60_000)
    append(host, b"a", topic="u")
    second = local_client.send_read(other)
    assert local_client.receive_grant()["request_id"] == second
    append(host, b"b")
    assert local_client.receive_grant()["request_id"] == first


def test_reads_of_a_disconnected_client_are_removed(host, local_client):
    for _ in range(3):
        local_client.send_read(host.topic, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 3)
    local_client.close()
    host.until(lambda: host.node.replicas.purgatory.size == 0)
    append(host, b"a")


# -- refused reads -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read, fault",
    [
        ({"topic_id": bytes(15) + b"x"}, UnknownTopicId),
        ({"partition": 7}, UnknownTopicOrPartition),
        ({"partition": -1}, UnknownTopicOrPartition),
        ({"offset": 2}, OffsetOutOfRange),
        ({"offset": -1}, OffsetOutOfRange),
        ({"offset": 2**63 - 1}, OffsetOutOfRange),
        ({"offset": 2, "wait_ms": 60_000}, OffsetOutOfRange),
        ({"leader_epoch": 7}, UnknownLeaderEpoch),
    ],
)
def test_read_of_unknown_partition_or_offset_is_refused(host, local_client, read, fault):
    append(host, b"a")
    local_client.send_read(**({"topic_id": host.topic} | read))
    grant = local_client.receive_grant()
    assert (grant["error_code"], grant["file"], grant["fresh"]) == (fault.code, -1, False)
    bounds = grant["high_watermark"], grant["log_start_offset"]
    assert bounds == ((1, 0) if fault is OffsetOutOfRange else (-1, -1))
    assert values(local_client, local_client.read(host.topic)) == [b"a"]


def test_read_with_older_leader_epoch_is_fenced(host, local_client):
    partition = host.node.replicas.leader("t", 0)
    local_client.send_read(host.topic, leader_epoch=0, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    partition.lead(3)
    host.node.replicas.purgatory.wake(partition)
    assert local_client.receive_grant()["error_code"] == FencedLeaderEpoch.code
    assert local_client.read(host.topic, leader_epoch=0)["error_code"] == FencedLeaderEpoch.code


def test_read_without_permission_returns_no_offsets(host):
    append(host, b"a")
    host.node.authorizer = Denying(AclOperation.READ)
    local_client = host.connect_client()
    grant = local_client.read(host.topic)
    assert (grant["error_code"], grant["high_watermark"]) == (TopicAuthorizationFailed.code, -1)


def test_other_user_gets_no_descriptors(host, monkeypatch):
    append(host, b"a")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    local_client = host.local_client()
    assert local_client.hello().fields["reads"] is False
    assert local_client.read(host.topic)["error_code"] == ClusterAuthorizationFailed.code


def test_read_without_descriptors_is_refused_and_can_be_retried(host, local_client, monkeypatch):
    append(host, b"a")
    with monkeypatch.context() as patch:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        patch.setattr(direct_reads, "DESCRIPTORS_RESERVED", most)
        assert local_client.read(host.topic)["error_code"] == KafkaStorageError.code
    assert values(local_client, local_client.read(host.topic)) == [b"a"]


# -- removal of granted segments -----------------------------------------------------------------


def test_removed_file_stays_readable_until_its_deferred_delete(host, local_client):
    fill(host, 2)
    first = local_client.read(host.topic)
    before = local_client.content(first)
    delete_before(host, 5)
    assert local_client.content(first) == before
    future(host, DELAY_MS)
    host.until(lambda: os.fstat(local_client.files[first["file"]]).st_blocks == 0)
    assert local_client.content(first) == b""
    assert local_client.read(host.topic)["error_code"] == OffsetOutOfRange.code


def test_segment_without_grants_is_removed_without_truncation(host):
    """A connection that was given a slice of it over TCP may still be sending."""
    fill(host, 2)
    log = host.node.replicas.leader("t", 0).log
    held = read(log, 0, 100, log.end_offset)
    delete_before(host, 5)
    future(host, DELAY_MS)
    assert len(held.read()) == held.size > 0


def test_grant_lists_files_that_are_not_granted_any_more(host, local_client):
    fill(host, 3)
    first = local_client.read(host.topic, offset=0)
    second = local_client.read(host.topic, offset=3)
    assert first["dropped"] == second["dropped"] == []
    delete_before(host, 3)
    told = local_client.read(host.topic, offset=4)
    assert (told["dropped"], told["fresh"]) == ([first["file"]], False)
    assert told["file"] == second["file"]
    assert local_client.read(host.topic, offset=4)["dropped"] == []


def test_grant_lists_files_of_segments_that_compaction_replaced(host, local_client):
    fill(host, 2)
    local_client.read(host.topic, offset=0)
    second = local_client.read(host.topic, offset=3)
    before = local_client.content(second)
    log = host.node.replicas.leader("t", 0).log
    log.replace_segments(clean(job_of(log), no_throttle).groups[1])
    told = local_client.read(host.topic, offset=3)
    assert (told["dropped"], told["fresh"]) == ([second["file"]], True)
    assert (told["end_offset"], told["size"]) == (6, 61)  # an emptied batch
    assert local_client.content(second) == before
    assert local_client.read(host.topic, offset=6)["dropped"] == []


def test_expired_read_lists_removed_files(host, local_client):
    fill(host, 3)
    first = local_client.read(host.topic, offset=0)
    second = local_client.read(host.topic, offset=3)
    end = second["log_start_offset"] + second["high_watermark"]
    assert local_client.read(host.topic, offset=end)["dropped"] == []
    delete_before(host, 3)
    local_client.send_read(host.topic, offset=end, wait_ms=500)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    future(host, 500)
    told = local_client.receive_grant()
    assert (told["error_code"], told["size"], told["dropped"]) == (0, 0, [first["file"]])
    assert local_client.read(host.topic, offset=end)["dropped"] == []


def test_files_of_a_deleted_topic_are_dropped_and_truncated(host, local_client):
    fill(host, 1)
    grants = [local_client.read(host.topic, offset=offset) for offset in (0, 3)]
    local_client.send_read(host.topic, offset=4, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    host.request(DELETE_TOPICS, 1, topic_names=["t"], timeout_ms=1_000)
    told = local_client.receive_grant()
    assert told["error_code"] == UnknownTopicOrPartition.code
    assert told["dropped"] == [0, 1]
    assert all(local_client.content(grant) for grant in grants)
    future(host, DELAY_MS)
    host.until(lambda: [local_client.content(grant) for grant in grants] == [b"", b""])


def test_moved_partition_drops_its_files(host, local_client):
    append(host, b"a")
    grant = local_client.read(host.topic)
    local_client.send_read(host.topic, offset=1, wait_ms=60_000)
    host.until(lambda: host.node.replicas.purgatory.size == 1)
    partition = host.node.replicas.leader("t", 0)
    host.node.replicas.retire(partition, lambda: None)
    told = local_client.receive_grant()
    assert (told["error_code"], told["dropped"]) == (NotLeaderOrFollower.code, [grant["file"]])
    assert values(local_client, grant) == [b"a"]


def test_granted_files_are_bounded_and_the_least_recent_dropped(host, local_client, monkeypatch):
    monkeypatch.setattr(direct_reads, "FILES_MAX", 2)
    fill(host, 3)
    reads = [local_client.read(host.topic, offset=offset) for offset in (0, 3, 0, 6, 3, 0)]
    assert [(each["file"], each["fresh"], each["dropped"]) for each in reads] == [
        (0, True, []), (1, True, []), (0, False, []),
        (2, True, [1]), (3, True, [0]), (4, True, [2]),
    ]  # fmt: skip
    assert [values(local_client, each)[0][:4] for each in reads] == [
        b"0-0 ", b"1-0 ", b"0-0 ", b"2-0 ", b"1-0 ", b"0-0 ",
    ]  # fmt: skip


def test_repeated_reads_leave_no_descriptor_open(host, local_client):
    fill(host, 3)
    local_client.read(host.topic)
    before = descriptor_count() - len(local_client.files)
    for offset in (0, 3, 6, 9, 0, 3):
        local_client.read(host.topic, offset=offset)
    opened = descriptor_count() - len(local_client.files)
    # The log itself has opened the other segments, and their indexes.
    assert opened - before <= 2 * 3
    for offset in (0, 3, 6, 9, 0, 3):
        local_client.read(host.topic, offset=offset)
    assert descriptor_count() - len(local_client.files) == opened
