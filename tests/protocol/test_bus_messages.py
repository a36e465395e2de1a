"""Messages of the bus: the bytes of each kind, and errors for invalid bytes."""

from __future__ import annotations

import random

import pytest
import xxhash

from kafkalite.errors import CorruptMessage, UnsupportedVersion
from kafkalite.protocol.record_kinds import RECORD_UNITS_MAX, RecordKinds
from kafkalite.protocol.schemas import bus, internal
from kafkalite.protocol.types import Int32, Int64, String, Struct

ID = bytes(range(16))

LATE_TRANSACTION = {
    "topic_id": ID, "partition": 1, "producer_id": 7, "producer_epoch": 3, "first_offset": 4,
    "last_offset": 9, "is_uncertain": True,
}  # fmt: skip

STATE_BATCH = {"first_offset": 4, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}

MESSAGES = {
    "Hello": bus.HELLO(image_offset=7),
    "Heartbeat": bus.HEARTBEAT(
        image_offset=7, led_count=2, size=1 << 40, unserved=[{"topic_id": ID, "partition": 3}]
    ),
    "Forward": bus.FORWARD(
        request_id=1,
        frame=b"a request",
        peer_host="127.0.0.1",
        peer_port=50000,
        local_host="127.0.0.1",
        local_port=9093,
    ),
    "AllocateIds": bus.ALLOCATE_IDS(request_id=2),
    "RenewEpochs": bus.RENEW_EPOCHS(
        partitions=[{"topic_id": bytes(range(16)), "partition": 3, "leader_epoch": 5}]
    ),
    "VerifyTransactions": bus.VERIFY_TRANSACTIONS(
        request_id=4,
        transactions=[
            {
                "transactional_id": "id",
                "producer_id": 1 << 40,
                "producer_epoch": 32_766,
                "adds": True,
                "partitions": [{"topic": "t", "partition": 3}],
            }
        ],
    ),
    "TransactionsVerified": bus.TRANSACTIONS_VERIFIED(
        request_id=4,
        error_code=0,
        error_message=None,
        transactions=[{"error_codes": [0, 120]}, {"error_codes": []}],
    ),
    "Welcome": bus.WELCOME(image_offset=9, heartbeat_ms=2000, incarnation=1),
    "Delta": bus.DELTA(begin_offset=7, end_offset=9, records=[b"one", b""]),
    "Response": bus.RESPONSE(request_id=1, error_code=0, error_message=None, frame=b"a response"),
    "Ids": bus.IDS(request_id=2, error_code=-1, error_message="why", first_id=0, end_id=0),
    "NodeOrder": bus.NODE_ORDER(request_id=3, verb="drain", node_id=2, dry_run=True),
    "NodeReport": bus.NODE_REPORT(
        request_id=3,
        error_code=0,
        error_message=None,
        nodes=[
            {
                "node_id": 2,
                "role": "worker",
                "host": "127.0.0.1",
                "port": 9094,
                "pid": 17,
                "state": "ready",
                "led_count": 2,
                "size": 5,
                "draining": True,
                "replica_count": 4,
            }
        ],
        moves=[{"topic": "t", "partition": 0, "from_node": 2, "to_node": 1}],
        moves_left=1,
    ),
    "DesiredNodes": bus.DESIRED_NODES(node_ids=[0, 2], dedicated=[2]),
    "MarkersWritten": bus.MARKERS_WRITTEN(request_id=4, incarnation=5, error_codes=[0, 6]),
    "WriteMarkers": bus.WRITE_MARKERS(
        request_id=4,
        incarnation=5,
        markers=[
            {
                "producer_id": 7,
                "producer_epoch": 3,
                "is_commit": True,
                "coordinator_epoch": 2,
                "transaction_version": 2,
                "topics": [{"topic_id": ID, "partitions": [0, 2]}],
            }
        ],
    ),
    "SupportedFeatures": bus.SUPPORTED_FEATURES(
        features=[{"name": "transaction.version", "level_max": 2}]
    ),
    "FindOrphans": bus.FIND_ORPHANS(request_id=1, transactions=[LATE_TRANSACTION]),
    "Orphans": bus.ORPHANS(
        request_id=1, error_code=0, error_message=None, transactions=[LATE_TRANSACTION],
        committed=[0],
    ),  # fmt: skip
    "ShareStates": bus.SHARE_STATES(
        request_id=1,
        reads=[{"group_id": "g", "topic_id": ID, "partition": 2, "leader_epoch": 3}],
        changes=[
            {
                "group_id": "g", "topic_id": ID, "partition": 2, "state_epoch": 1,
                "leader_epoch": 3, "start_offset": 4, "delivery_complete_count": 5,
                "state_batches": [STATE_BATCH],
            },
        ],
    ),  # fmt: skip
    "ShareOutcomes": bus.SHARE_OUTCOMES(
        request_id=1, error_code=0, error_message=None,
        reads=[
            {"error_code": 0, "state_epoch": 1, "start_offset": 4, "state_batches": [STATE_BATCH]},
        ],
        changes=[0, 74],
    ),  # fmt: skip
    "FindShareProgress": bus.FIND_SHARE_PROGRESS(
        request_id=1, incarnation=5,
        groups=[{"group_id": "g", "partitions": [{"topic_id": ID, "partition": 2}]}],
    ),  # fmt: skip
    "ShareProgress": bus.SHARE_PROGRESS(
        request_id=1, incarnation=5,
        partitions=[{"end_offset": 1 << 40, "in_flight_count": -1, "delivery_count": 3}],
    ),  # fmt: skip
    "AppendBatch": bus.APPEND_BATCH(
        request_id=1, incarnation=5, topic_id=ID, partition=2, batch=b"batch"
    ),
    "BatchAppended": bus.BATCH_APPENDED(
        request_id=1, incarnation=5, error_code=6, error_message="moved"
    ),
    "RegisterNode": bus.REGISTER_NODE(
        logs=[
            {"topic_id": ID, "partition": 2, "last_epoch": 4, "end_offset": 9, "is_damaged": True}
        ]
    ),
    "ReplicasFailed": bus.REPLICAS_FAILED(
        node_epoch=3, partitions=[{"topic_id": ID, "partition": 2}]
    ),
    "AlterPartitions": bus.ALTER_PARTITIONS(
        request_id=1, node_epoch=3,
        partitions=[
            {
                "topic_id": ID, "partition": 2, "leader_epoch": 4, "partition_epoch": 5,
                "isr": [{"node_id": 1, "node_epoch": 3}], "recovery_state": 1, "flushed_copies": 2,
            }
        ],
    ),  # fmt: skip
    "PartitionsAltered": bus.PARTITIONS_ALTERED(
        request_id=1, error_code=0, error_message=None,
        partitions=[{"error_code": 107, "partition_epoch": -1}],
    ),  # fmt: skip
    "ShutDownNode": bus.SHUT_DOWN_NODE(request_id=1),
    "NodeShutDown": bus.NODE_SHUT_DOWN(request_id=1, error_code=7, error_message="late"),
    "BrokerEnds": bus.BROKER_ENDS(),
    "DemandService": bus.DEMAND_SERVICE(key="cleaner"),
    "Fence": bus.FENCE(node_id=2, incarnation=1_700_000_000_000),
    "Nodes": bus.NODES(
        nodes=[
            {
                "node_id": 2,
                "incarnation": 1_700_000_000_000,
                "pid": 17,
                "host": "127.0.0.1",
                "port": 9094,
                "state": "ready",
            }
        ]
    ),
}
each_message = pytest.mark.parametrize("name", MESSAGES)


def sealed(body):
    """Return a frame with a valid checksum and any content."""
    return body + xxhash.xxh3_64_digest(body)


def body_of(name):
    return bus.write_frame(MESSAGES[name])[:-8]


def assert_corrupt(frame):
    with pytest.raises((CorruptMessage, UnsupportedVersion)):
        bus.read_frame(frame)


def test_every_message_kind_has_an_example():
    assert {kind.name for kind in bus.MESSAGES.by_key.values()} == MESSAGES.keys()


def test_frame_is_kind_version_fields_and_checksum():
    frame = bus.write_frame(bus.FENCE(node_id=2, incarnation=3))
    assert frame[:-8].hex() == "0c 00 00000002 0000000000000003 00".replace(" ", "")
    assert frame[-8:] == xxhash.xxh3_64_digest(frame[:-8])


@each_message
def test_message_is_read_as_written(name):
    message = MESSAGES[name]
    frame = bus.write_frame(message)
    assert bus.read_frame(frame) == message
    assert bus.read_frame(memoryview(frame)) == message


@each_message
def test_truncated_frame_is_rejected(name):
    frame = bus.write_frame(MESSAGES[name])
    for size in range(len(frame)):
        assert_corrupt(frame[:size])


@each_message
def test_frame_with_changed_byte_is_rejected(name):
    frame = bytearray(bus.write_frame(MESSAGES[name]))
    for at in range(len(frame)):
        frame[at] ^= 0x10
        assert_corrupt(bytes(frame))
        frame[at] ^= 0x10
    assert bus.read_frame(bytes(frame)) == MESSAGES[name]


@each_message
def test_truncated_fields_with_valid_checksum_are_rejected(name):
    whole = body_of(name)
    for size in range(len(whole)):
        assert_corrupt(sealed(whole[:size]))


@each_message
def test_changed_fields_with_valid_checksum_raise_declared_errors_only(name):
    dice = random.Random(name)
    for _ in range(300):
        changed = bytearray(body_of(name))
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        try:
            bus.read_frame(sealed(bytes(changed)))
        except (CorruptMessage, UnsupportedVersion):
            pass


@pytest.mark.parametrize("start", [b"\x00\x00", b"\xff\x00", b"\x01\x01", b"\x01\xff"])
def test_unknown_kind_or_version_raises_unsupported_version(start):
    with pytest.raises(UnsupportedVersion, match="newer kafkalite wrote this message of the bus"):
        bus.read_frame(sealed(start + b"rest"))


def test_array_count_beyond_the_frame_is_rejected():
    offsets = bytes(16)
    for count in (b"\x03", b"\xff\x01", b"\xff\xff\xff\xff\x0f"):
        assert_corrupt(sealed(b"\x06\x00" + offsets + count))


def test_decoded_size_is_bounded():
    count = RECORD_UNITS_MAX // 4
    fields = bytes(16) + b"\x81\x80\x40" + b"\x01" * count + b"\x00"
    assert len(bus.read_frame(sealed(b"\x06\x00" + fields)).fields["records"]) == count
    fields = bytes(16) + b"\x82\x80\x40" + b"\x01" * (count + 1) + b"\x00"
    assert_corrupt(sealed(b"\x06\x00" + fields))


def test_unknown_tagged_fields_are_ignored():
    older, newer = (RecordKinds("message", is_exact=False) for _ in range(2))
    known = older.declare(1, "Kind", "0", Struct(number=Int32()))
    grown = newer.declare(
        1, "Kind", "0", Struct(number=Int32(), word=String(tag=0), size=Int64(tag=9))
    )
    record = older.read(newer.write(grown(number=5, word="more", size=1)))
    assert record == known(number=5)
    assert newer.read(older.write(known(number=5))) == grown(number=5, word="", size=0)


def test_log_record_is_rejected_as_a_message():
    with pytest.raises(AssertionError, match="no message of the bus"):
        bus.write_frame(internal.CLUSTER(cluster_id="c"))


def test_duplicate_message_kind_is_rejected():
    with pytest.raises(AssertionError, match="have the same kind 3"):
        bus.MESSAGES.declare(3, "Another", "0", Struct(number=Int32()))


def test_heartbeat_may_name_sixty_thousand_partitions():
    unserved = [{"topic_id": bytes(16), "partition": index} for index in range(60_000)]
    beat = bus.HEARTBEAT(image_offset=1, led_count=0, size=0, unserved=unserved)
    assert len(bus.read_frame(bus.write_frame(beat)).fields["unserved"]) == 60_000
