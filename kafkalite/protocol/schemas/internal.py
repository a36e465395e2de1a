"""Records of the metadata log, in kafkalite's own format: each change of the cluster's state.

A record is the value of one Kafka record whose key is null; record_kinds.py defines the first
bytes.  The batch of the records has their CRC-32C, and one batch is one change: applied whole or
not at all.

Left out: a checksum for each record.  Within a checked batch it would add nothing.
"""

from __future__ import annotations

from kafkalite.protocol.record_kinds import RecordKinds
from kafkalite.protocol.record_kinds import TypedRecord as TypedRecord
from kafkalite.protocol.types import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    Uuid,
)

KINDS = RecordKinds("record of the metadata log")
BY_KEY = KINDS.by_key
read, write = KINDS.read, KINDS.write

CLUSTER = KINDS.declare(
    1, "Cluster", "0",
    Struct(cluster_id=String()),
)  # fmt: skip

NODE = KINDS.declare(
    2, "Node", "0-3",
    Struct(
        node_id=Int32(),
        host=String(),
        port=Int32(),
        rack=String(nullable="0+", default=None),
        dedicated=Bool("1+"),
        draining=Bool("1+"),
        node_epoch=Int64("2+"),
        fenced=Bool("2+"),
        shutting_down=Bool("2+"),
        # The launcher's number of the process that is registered.
        incarnation=Int64("2+", default=-1),
        # The directory of log.dirs in which the node keeps its logs; "" if there is only one.
        log_directory=String("3+"),
    ),
)  # fmt: skip

TOPIC = KINDS.declare(
    3, "Topic", "0",
    Struct(name=String(), topic_id=Uuid()),
)  # fmt: skip

PARTITION = KINDS.declare(
    4, "Partition", "0-2",
    Struct(
        topic_id=Uuid(),
        partition=Int32(),
        leader=Int32(),
        leader_epoch=Int32(),
        replicas=Array(Int32()),
        isr=Array(Int32()),
        partition_epoch=Int32("1+"),
        adding=Array(Int32(), "1+"),
        removing=Array(Int32(), "1+"),
        elr=Array(Int32(), "1+"),
        last_known_elr=Array(Int32(), "1+"),
        witnesses=Array(Int32(), "1+"),
        recovery_state=Int8("1+"),
        flushed_copies=Int16("2+", default=1),
    ),
)  # fmt: skip

REMOVE_TOPIC = KINDS.declare(
    5, "RemoveTopic", "0",
    Struct(topic_id=Uuid()),
)  # fmt: skip

CONFIG = KINDS.declare(
    6, "Config", "0",
    Struct(
        resource_type=Int8(),
        resource_name=String(),
        name=String(),
        value=String(nullable="0+", default=None),
    ),
)  # fmt: skip

PRODUCER_IDS_BLOCK = KINDS.declare(
    7, "ProducerIdsBlock", "0",
    Struct(first_id=Int64(), count=Int32(), node_id=Int32()),
)  # fmt: skip

REMOVE_NODE = KINDS.declare(
    8, "RemoveNode", "0",
    Struct(node_id=Int32()),
)  # fmt: skip

PARTITIONS = KINDS.declare(
    9, "Partitions", "0-1",
    # New partitions from `first` on: the replicas of each, one after another, in epoch 0.  All have
    # `factor` replicas, which are in sync; the first one leads.
    # One record for a whole topic costs a hundredth of one record for each partition.
    Struct(
        topic_id=Uuid(),
        first=Int32(),
        replicas=Array(Int32()),
        factor=Int32("1+", default=1),
    ),
)  # fmt: skip

FEATURE = KINDS.declare(
    10, "Feature", "0",
    # The finalized level of a feature; 0 disables it.
    Struct(name=String(), level=Int16()),
)  # fmt: skip

PARTITION_CHANGE = KINDS.declare(
    11, "PartitionChange", "0",
    # What has changed of a partition.  Each one increases the partition epoch; one with a leader,
    # also the same one, increases the leader epoch.
    Struct(
        topic_id=Uuid(),
        partition=Int32(),
        leader=Int32(tag=0, default=-2),
        isr=Array(Int32(), nullable="0+", default=None, tag=1),
        replicas=Array(Int32(), nullable="0+", default=None, tag=2),
        adding=Array(Int32(), nullable="0+", default=None, tag=3),
        removing=Array(Int32(), nullable="0+", default=None, tag=4),
        elr=Array(Int32(), nullable="0+", default=None, tag=5),
        last_known_elr=Array(Int32(), nullable="0+", default=None, tag=6),
        witnesses=Array(Int32(), nullable="0+", default=None, tag=7),
        recovery_state=Int8(tag=8, default=-1),
        flushed_copies=Int16(tag=9, default=-1),
    ),
)  # fmt: skip
