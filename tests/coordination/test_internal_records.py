"""Records of the metadata log: every version that was ever written can be read."""

from __future__ import annotations

import random

import pytest

from kafkalite.coordination.image import NodeImage, node_record
from kafkalite.coordination.partition_image import (
    PartitionImage,
    RecoveryState,
    change_record,
    partition_record,
)
from kafkalite.errors import CorruptMessage, UnsupportedVersion
from kafkalite.protocol.schemas import internal

ID = bytes(range(16))
BEFORE = PartitionImage(1, 3, (1, 2), (1, 2), partition_epoch=5)
AFTER = PartitionImage(
    3, 4, (2, 3, 1), (3,), 6, (3,), (1,), elr=(2,), witnesses=(1,),
    recovery_state=RecoveryState.RECOVERING,
)  # fmt: skip

WRITTEN = {
    "Cluster": (internal.CLUSTER(cluster_id="c"), "01 00 0263 00"),
    "Node": (
        node_record(NodeImage(1, "h", 9092)),
        "02 00 00000001 0268 00002384 00 00",
    ),
    "Node 1": (
        node_record(NodeImage(4, "", 0, rack="r", dedicated=True)),
        "02 01 00000004 01 00000000 0272 01 00 00",
    ),
    "Node 2": (
        node_record(NodeImage(4, "h", 1, node_epoch=9, fenced=True, incarnation=7)),
        "02 02 00000004 0268 00000001 00 00 00 0000000000000009 01 00 0000000000000007 00",
    ),
    "Node 3": (
        node_record(NodeImage(4, "h", 1, log_directory="/d")),
        "02 03 00000004 0268 00000001 00 00 00 0000000000000000 00 00 ffffffffffffffff 032f64 00",
    ),
    "Topic": (internal.TOPIC(name="t", topic_id=ID), f"03 00 0274 {ID.hex()} 00"),
    "Partition": (
        partition_record(ID, 2, PartitionImage(1, 3, (1,), (1,))),
        f"04 00 {ID.hex()} 00000002 00000001 00000003 0200000001 0200000001 00",
    ),
    "Partition 1": (
        partition_record(ID, 2, AFTER),
        f"04 01 {ID.hex()} 00000002 00000003 00000004 0400000002 00000003 00000001 0200000003"
        " 00000006 0200000003 0200000001 0200000002 01 0200000001 01 00",
    ),
    "Partition 2": (
        partition_record(ID, 2, BEFORE._replace(flushed_copies=2)),
        f"04 02 {ID.hex()} 00000002 00000001 00000003 0300000001 00000002 0300000001 00000002"
        " 00000005 01 01 01 01 01 00 0002 00",
    ),
    "RemoveTopic": (internal.REMOVE_TOPIC(topic_id=ID), f"05 00 {ID.hex()} 00"),
    "Config": (
        internal.CONFIG(resource_type=2, resource_name="t", name="k", value="v"),
        "06 00 02 0274 026b 0276 00",
    ),
    "ProducerIdsBlock": (
        internal.PRODUCER_IDS_BLOCK(first_id=1000, count=1000, node_id=1),
        "07 00 00000000000003e8 000003e8 00000001 00",
    ),
    "RemoveNode": (internal.REMOVE_NODE(node_id=4), "08 00 00000004 00"),
    "Partitions": (
        internal.PARTITIONS(topic_id=ID, first=2, replicas=[1, 2], factor=1),
        f"09 00 {ID.hex()} 00000002 0300000001 00000002 00",
    ),
    "Partitions 1": (
        internal.PARTITIONS(topic_id=ID, first=2, replicas=[1, 2, 2, 3], factor=2),
        f"09 01 {ID.hex()} 00000002 0500000001 00000002 00000002 00000003 00000002 00",
    ),
    "PartitionChange": (
        change_record(ID, 2, BEFORE, AFTER),
        f"0b 00 {ID.hex()} 00000002 08 00 04 00000003 01 05 0200000003"
        " 02 0d 0400000002 00000003 00000001 03 05 0200000003 04 05 0200000001"
        " 05 05 0200000002 07 05 0200000001 08 01 01",
    ),
    "PartitionChange of flushed copies": (
        change_record(ID, 2, BEFORE, BEFORE._replace(partition_epoch=6, flushed_copies=2)),
        f"0b 00 {ID.hex()} 00000002 01 09 02 0002",
    ),
    "Feature": (internal.FEATURE(name="f", level=2), "0a 00 0266 0002 00"),
}
"""Each kind in each version as it is in existing logs.  Never change an entry: add a version."""


def test_recorded_examples_cover_every_version_of_every_kind():
    written = {tuple(bytes.fromhex(text)[:2]) for _, text in WRITTEN.values()}
    known = [(key, v) for key, kind in internal.BY_KEY.items() for v in range(kind.version + 1)]
    assert sorted(written) == sorted(known)


@pytest.mark.parametrize("name", WRITTEN)
def test_records_of_all_versions_are_readable(name):
    record, text = WRITTEN[name]
    assert internal.read(bytes.fromhex(text)) == record


@pytest.mark.parametrize("name", WRITTEN)
def test_records_round_trip(name):
    record, _ = WRITTEN[name]
    assert internal.read(internal.write(record)) == record


@pytest.mark.parametrize("value", [b"\x00\x00", b"\xff\x00", b"\x01\x01", b"\x01\xff"])
def test_unknown_kind_or_version_is_refused(value):
    with pytest.raises(UnsupportedVersion, match="newer kafkalite"):
        internal.read(value + b"rest")


@pytest.mark.parametrize("name", WRITTEN)
def test_truncated_or_extended_record_is_corrupt(name):
    whole = internal.write(WRITTEN[name][0])
    for value in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(CorruptMessage):
            internal.read(value)


@pytest.mark.parametrize("name", WRITTEN)
def test_changed_bytes_are_read_or_refused(name):
    dice = random.Random(name)
    for _ in range(200):
        value = bytearray(internal.write(WRITTEN[name][0]))
        value[dice.randrange(len(value))] = dice.randrange(256)
        try:
            internal.read(bytes(value))
        except (CorruptMessage, UnsupportedVersion):
            pass


def test_record_requires_exactly_the_fields_of_its_kind():
    with pytest.raises(AssertionError, match="name, topic_id"):
        internal.TOPIC(name="t")
    with pytest.raises(AssertionError, match="name, topic_id"):
        internal.TOPIC(name="t", topic_id=ID, more=1)


def test_record_kinds_are_unique():
    with pytest.raises(AssertionError, match="have the same kind 3"):
        internal.KINDS.declare(3, "Another", "0", internal.TOPIC.message.struct)
