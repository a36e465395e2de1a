"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords, through the dispatcher of a real node."""

from __future__ import annotations

import shutil

import pytest

from kafkalite import errors
from kafkalite.broker.security import AclOperation, Authorizer
from kafkalite.protocol.schemas.offsets import (
    DELETE_RECORDS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec
from kafkalite.records.decode_steps import finish
from kafkalite.storage.log.timestamps import TimestampOffset, search_timestamp
from tests.handlers.denying import Denying

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6

NOTHING = (0, -1, -1)
NOW = 1_700_000_000_000


def listed(broker, timestamp, topic="a", partition=0, version=11, isolation_level=0, **fields):
    """Return (error, timestamp, offset) of one partition."""
    asked = {"partition_index": partition, "timestamp": timestamp, **fields}
    answer = broker.request(
        LIST_OFFSETS,
        version,
        replica_id=-1,
        topics=[{"name": topic, "partitions": [asked]}],
        isolation_level=isolation_level,
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.timestamp, found.offset


@pytest.fixture
def filled(broker):
    """Return a node whose topic has offsets 0 to 4; the largest timestamp is at offset 2."""
    broker.create("a", 2)
    broker.append("a", [NOW, NOW + 10])
    broker.append("a", [NOW + 50, NOW + 20])
    broker.append("a", [NOW + 30])
    return broker


# -- ListOffsets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_of_every_version_returns_both_ends(filled, version):
    assert listed(filled, LATEST, version=version) == (0, -1, 5)
    assert listed(filled, EARLIEST, version=version) == (0, -1, 0)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (0, (0, NOW, 0)),
        (NOW, (0, NOW, 0)),
        (NOW + 1, (0, NOW + 10, 1)),
        (NOW + 11, (0, NOW + 50, 2)),
        (NOW + 50, (0, NOW + 50, 2)),
        (NOW + 51, NOTHING),
        (2**63 - 1, NOTHING),
    ],
)
def test_list_offsets_by_time_returns_the_first_record_not_before_it(filled, timestamp, found):
    assert listed(filled, timestamp) == found


def test_list_offsets_finds_the_max_timestamp(filled):
    assert listed(filled, MAX_TIMESTAMP) == (0, NOW + 50, 2)


def test_list_offsets_by_time_of_a_removed_file_is_a_storage_error(broker):
    broker.create("a")
    broker.append("a", [-1])
    shutil.rmtree(broker.directory / "a-0")
    assert listed(broker, NOW) == (errors.KafkaStorageError.code, -1, -1)


def test_list_offsets_by_time_opens_large_batches_on_a_thread(broker):
    broker.create("a", 3)
    batch = build(
        [Record(timestamp=NOW, value=bytes(6 << 20)), Record(timestamp=NOW + 5, value=b"x")],
        codec=Codec.ZSTD,
    )
    for partition in range(3):
        broker.node.replicas.leader("a", partition).append(batch)
    opener = broker.node.opener
    asked = [{"partition_index": partition, "timestamp": NOW + 1} for partition in range(3)]
    wire = broker.send(
        LIST_OFFSETS, 11, replica_id=-1, topics=[{"name": "a", "partitions": asked}],
        isolation_level=0,
    )  # fmt: skip
    assert (opener.submitted_count, wire.sent) == (1, None)  # one batch at a time
    broker.until(lambda: wire.sent is not None)
    answer = broker.response(wire, LIST_OFFSETS, 11)
    found = [(p.error_code, p.timestamp, p.offset) for p in answer.topics[0].partitions]
    assert found == [(0, NOW + 5, 1)] * 3
    assert opener.submitted_count == 3
    assert listed(broker, MAX_TIMESTAMP) == (0, NOW + 5, 1)


@pytest.mark.parametrize("size", [17, 33])
def test_list_offsets_by_time_returns_an_oversized_batch_as_a_whole(broker, size):
    broker.create("a", compressed_records_validate="false")
    records = [Record(timestamp=NOW, value=bytes(size << 20)), Record(timestamp=NOW + 5)]
    broker.node.replicas.leader("a", 0).append(build(records, codec=Codec.ZSTD))
    for timestamp in (NOW, NOW + 5, MAX_TIMESTAMP):
        assert listed(broker, timestamp) == (0, NOW + 5, 0)


def test_search_by_time_restarts_when_segments_were_removed(broker):
    broker.create("a")
    partition = broker.node.replicas.leader("a", 0)
    batch = build([Record(timestamp=NOW, value=b"x"), Record(timestamp=NOW + 5, value=b"x")])
    partition.append(batch)
    partition.log.delete_records(1)
    partition.log.roll()
    partition.append(batch)
    search = search_timestamp(partition.log, NOW)
    steps = next(search)
    partition.log.delete_records(2)
    with pytest.raises(StopIteration) as end:
        steps = search.send(None)
        search.send(finish(steps))
    assert end.value.value == TimestampOffset(NOW, 2, 0)


def test_list_offsets_of_an_empty_partition_has_no_timestamps(filled):
    assert listed(filled, LATEST, partition=1) == (0, -1, 0)
    assert listed(filled, EARLIEST, partition=1) == (0, -1, 0)
    assert listed(filled, MAX_TIMESTAMP, partition=1) == NOTHING
    assert listed(filled, NOW, partition=1) == NOTHING


def test_list_offsets_returns_no_tiered_offsets(filled):
    assert listed(filled, EARLIEST_LOCAL) == (0, -1, 0)
    assert listed(filled, LATEST_TIERED) == NOTHING
    assert listed(filled, EARLIEST_PENDING_UPLOAD) == NOTHING


@pytest.mark.parametrize(
    ("timestamp", "since"),
    [
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (EARLIEST_PENDING_UPLOAD, 11),
        (-7, 12),
        (-(2**63), 12),
    ],
)
def test_special_timestamp_is_unsupported_before_its_version(filled, timestamp, since):
    for version in range(1, 12):
        code = listed(filled, timestamp, version=version)[0]
        assert code == (0 if version >= since else errors.UnsupportedVersion.code)


def test_list_offsets_returns_the_leader_epoch_from_version_4(filled):
    def epoch(version, timestamp):
        asked = {"partition_index": 0, "timestamp": timestamp}
        answer = filled.request(
            LIST_OFFSETS, version, replica_id=-1, topics=[{"name": "a", "partitions": [asked]}]
        )
        return answer.topics[0].partitions[0].leader_epoch

    assert [epoch(11, timestamp) for timestamp in (LATEST, EARLIEST, NOW)] == [0, 0, 0]
    assert epoch(11, LATEST_TIERED) == epoch(3, LATEST) == -1


def test_list_offsets_checks_the_leader_epoch(filled):
    filled.node.replicas.leader("a", 0).leader_epoch = 5
    assert listed(filled, LATEST, current_leader_epoch=5)[0] == 0
    assert listed(filled, LATEST, current_leader_epoch=-1)[0] == 0
    assert listed(filled, LATEST, current_leader_epoch=4)[0] == errors.FencedLeaderEpoch.code
    assert listed(filled, LATEST, current_leader_epoch=6)[0] == errors.UnknownLeaderEpoch.code


def test_list_offsets_ends_at_the_high_watermark(filled):
    partition = filled.node.replicas.leader("a", 0)
    partition.high_watermark = 2
    for isolation_level in (0, 1):
        assert listed(filled, LATEST, isolation_level=isolation_level) == (0, -1, 2)
        assert listed(filled, MAX_TIMESTAMP, isolation_level=isolation_level) == NOTHING
        assert listed(filled, NOW + 11, isolation_level=isolation_level) == NOTHING


def test_list_offsets_with_unknown_isolation_level_is_refused(filled):
    assert listed(filled, LATEST, isolation_level=2)[0] == errors.InvalidRequest.code


@pytest.mark.parametrize(("topic", "partition"), [("gone", 0), ("a", 2), ("a", -1), ("", 0)])
def test_list_offsets_of_unknown_partition_fails(filled, topic, partition):
    found = listed(filled, LATEST, topic=topic, partition=partition)
    assert found == (errors.UnknownTopicOrPartition.code, -1, -1)


def test_list_offsets_refuses_only_a_repeated_partition(filled):
    asked = [{"partition_index": index, "timestamp": LATEST} for index in (0, 0, 1)]
    answer = filled.request(
        LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": "a", "partitions": asked}]
    )
    codes = [found.error_code for found in answer.topics[0].partitions]
    assert codes == [errors.InvalidRequest.code] * 2 + [0]


def test_list_offsets_without_permission_is_refused(filled):
    filled.node.authorizer = Denying(AclOperation.DESCRIBE)
    for topic in ("a", "gone"):
        assert listed(filled, LATEST, topic=topic)[0] == errors.TopicAuthorizationFailed.code


# -- OffsetForLeaderEpoch ------------------------------------------------------------------------


def end_of(broker, leader_epoch, topic="a", partition=0, version=4, current=-1):
    """Return (error, epoch, end offset) of one partition."""
    asked = {
        "partition": partition,
        "current_leader_epoch": current,
        "leader_epoch": leader_epoch,
    }
    answer = broker.request(
        OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": topic, "partitions": [asked]}]
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.fixture
def led(broker):
    """Return a node whose topic has offsets 0–1 of epoch 0, and 2 of epoch 3."""
    broker.create("a")
    broker.append("a", [NOW, NOW])
    broker.node.replicas.leader("a", 0).leader_epoch = 3
    broker.append("a", [NOW])
    return broker


@pytest.mark.parametrize("version", range(2, 5))
@pytest.mark.parametrize(
    ("leader_epoch", "end"),
    [
        (0, (0, 0, 2)),
        (2, (0, 0, 2)),
        (3, (0, 3, 3)),
        (4, (0, -1, -1)),
        (-1, (0, -1, -1)),
        (2**31 - 1, (0, -1, -1)),
    ],
)
def test_offset_for_leader_epoch_returns_the_end_of_the_epoch(led, version, leader_epoch, end):
    assert end_of(led, leader_epoch, version=version) == end


def test_offset_for_leader_epoch_checks_the_current_epoch(led):
    assert end_of(led, 0, current=2)[0] == errors.FencedLeaderEpoch.code
    assert end_of(led, 0, current=4)[0] == errors.UnknownLeaderEpoch.code
    assert end_of(led, 0, topic="gone")[0] == errors.UnknownTopicOrPartition.code


def test_offset_for_leader_epoch_without_permission_is_refused(led):
    led.node.authorizer = Denying(AclOperation.DESCRIBE)
    assert end_of(led, 0)[0] == errors.TopicAuthorizationFailed.code


# -- DeleteRecords -------------------------------------------------------------------------------


def deleted(broker, offset, topic="a", partition=0, version=2):
    """Delete records before an offset; return (error, low watermark) of the partition."""
    asked = {"partition_index": partition, "offset": offset}
    answer = broker.request(
        DELETE_RECORDS, version, topics=[{"name": topic, "partitions": [asked]}], timeout_ms=1000
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_delete_records_of_every_version_moves_the_log_start_offset(filled, version):
    assert deleted(filled, 3, version=version) == (0, 3)
    assert listed(filled, EARLIEST) == (0, -1, 3)
    assert listed(filled, 0) == (0, NOW + 20, 3)


def test_delete_records_at_minus_one_deletes_up_to_the_high_watermark(filled):
    assert deleted(filled, -1) == (0, 5)
    assert listed(filled, EARLIEST) == listed(filled, LATEST) == (0, -1, 5)


def test_delete_records_never_lowers_the_log_start_offset(filled):
    deleted(filled, 3)
    assert deleted(filled, 1) == (0, 3)


def test_moved_log_start_offset_survives_a_restart(filled):
    deleted(filled, 3)
    filled.restart()
    assert listed(filled, EARLIEST) == (0, -1, 3)


@pytest.mark.parametrize("offset", [6, -2, 2**63 - 1, -(2**63)])
def test_delete_records_outside_the_log_returns_offset_out_of_range(filled, offset):
    assert deleted(filled, offset) == (errors.OffsetOutOfRange.code, -1)


def test_delete_records_stops_at_the_high_watermark(filled):
    filled.node.replicas.leader("a", 0).high_watermark = 2
    assert deleted(filled, 3) == (errors.OffsetOutOfRange.code, -1)
    assert deleted(filled, -1) == (0, 2)


def test_delete_records_of_unknown_partition_fails(filled):
    assert deleted(filled, 0, topic="gone") == (errors.UnknownTopicOrPartition.code, -1)
    assert deleted(filled, 0, partition=9) == (errors.UnknownTopicOrPartition.code, -1)


def test_delete_records_of_a_removed_directory_is_a_storage_error_of_its_own(broker):
    broker.create("a", 2, segment_bytes=str(1 << 20))
    for partition in 0, 1:
        for _ in range(2):
            batch = build([Record(timestamp=NOW, value=bytes(900_000))])
            broker.node.replicas.leader("a", partition).append(batch)
    shutil.rmtree(broker.directory / "a-0")
    wanted = [{"partition_index": partition, "offset": 1} for partition in (0, 1)]
    topics = [{"name": "a", "partitions": wanted}]
    answer = broker.request(DELETE_RECORDS, 2, topics=topics, timeout_ms=1_000)
    codes = [(each.error_code, each.low_watermark) for each in answer.topics[0].partitions]
    assert codes == [(errors.KafkaStorageError.code, -1), (0, 1)]


def test_delete_records_without_permission_deletes_nothing(filled):
    filled.node.authorizer = Denying(AclOperation.DELETE)
    assert deleted(filled, -1) == (errors.TopicAuthorizationFailed.code, -1)
    filled.node.authorizer = Authorizer()
    assert listed(filled, EARLIEST) == (0, -1, 0)
