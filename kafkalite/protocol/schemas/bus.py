"""Messages between the processes of one broker: on the bus, and on the control channel.

A message is a frame (record_kinds.py).  Between supervisor and workers or commands, ZeroMQ carries
it (transport/bus.py); between launcher and supervisor a SOCK_SEQPACKET pair does, with one frame in
each packet.

While a restart replaces processes one at a time, older code receives messages of newer code.  So
kinds gain only tagged fields, which an older reader skips; a reader drops a kind or version that it
does not know.
"""

from __future__ import annotations

from typing import Any

from kafkalite.protocol.record_kinds import RecordKinds
from kafkalite.protocol.record_kinds import TypedRecord as TypedRecord
from kafkalite.protocol.schemas.share_records import STATE_BATCHES
from kafkalite.protocol.types import (
    Array,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    Uuid,
)

FRAME_SIZE_MAX = 128 << 20
"""Maximum size of a frame: that of a client's request (100 MiB), and some more."""

MESSAGES = RecordKinds("message of the bus", is_exact=False)

write_frame = MESSAGES.write_frame
read_frame = MESSAGES.read_frame


# Worker to supervisor.

HELLO = MESSAGES.declare(
    1, "Hello", "0",
    # The offset up to which it has read the metadata log; deltas begin there.
    Struct(image_offset=Int64()),
)  # fmt: skip

HEARTBEAT = MESSAGES.declare(
    2, "Heartbeat", "0",
    Struct(
        image_offset=Int64(),
        led_count=Int32(),
        size=Int64(),
        # Partitions it leads and cannot serve yet: their directories have not arrived.
        unserved=Array(Struct(topic_id=Uuid(), partition=Int32())),
    ),
)  # fmt: skip

FORWARD = MESSAGES.declare(
    3, "Forward", "0",
    # A client's request as received, with its header, and the client's session.
    Struct(
        request_id=Int64(),
        frame=Bytes(),
        peer_host=String(),
        peer_port=Int32(),
        local_host=String(),
        local_port=Int32(),
    ),
)  # fmt: skip

ALLOCATE_IDS = MESSAGES.declare(
    4, "AllocateIds", "0",
    Struct(request_id=Int64()),
)  # fmt: skip

RENEW_EPOCHS = MESSAGES.declare(
    14, "RenewEpochs", "0",
    # Partitions whose logs may have lost records of these epochs; a DELTA has the next epochs.
    Struct(partitions=Array(Struct(topic_id=Uuid(), partition=Int32(), leader_epoch=Int32()))),
)  # fmt: skip

LATE_TRANSACTION = Struct(
    topic_id=Uuid(),
    partition=Int32(),
    producer_id=Int64(),
    producer_epoch=Int16(),
    first_offset=Int64(),
    last_offset=Int64(),
    is_uncertain=Bool(tag=0),
)

FIND_ORPHANS = MESSAGES.declare(
    21, "FindOrphans", "0",
    # Transactions that are open for too long, of which a coordinator may not know.
    Struct(request_id=Int64(), transactions=Array(LATE_TRANSACTION)),
)  # fmt: skip

MARKERS_WRITTEN = MESSAGES.declare(
    16, "MarkersWritten", "0",
    # To a WRITE_MARKERS, with the incarnation in it: the error code of each partition, in order.
    Struct(request_id=Int64(), incarnation=Int64(), error_codes=Array(Int16())),
)  # fmt: skip

SUPPORTED_FEATURES = MESSAGES.declare(
    17, "SupportedFeatures", "0",
    # The highest level of each feature that the worker supports, after each Welcome.
    Struct(features=Array(Struct(name=String(), level_max=Int16()))),
)  # fmt: skip

VERIFY_TRANSACTIONS = MESSAGES.declare(
    18, "VerifyTransactions", "0",
    # To the transaction coordinators: to verify partitions, or to add them (AddPartitionsToTxn 5).
    Struct(
        request_id=Int64(),
        transactions=Array(
            Struct(
                transactional_id=String(),
                producer_id=Int64(),
                producer_epoch=Int16(),
                adds=Bool(),
                partitions=Array(Struct(topic=String(), partition=Int32())),
            )
        ),
    ),
)  # fmt: skip

SHARE_PARTITION: dict[str, Any] = {
    "group_id": String(),
    "topic_id": Uuid(),
    "partition": Int32(),
}
SHARE_STATES = MESSAGES.declare(
    30, "ShareStates", "0",
    # To the share coordinators: reads and writes of the state of share partitions.
    Struct(
        request_id=Int64(),
        reads=Array(Struct(**SHARE_PARTITION, leader_epoch=Int32())),
        changes=Array(
            Struct(
                **SHARE_PARTITION,
                state_epoch=Int32(),
                leader_epoch=Int32(),
                start_offset=Int64(),
                delivery_complete_count=Int32(),
                state_batches=STATE_BATCHES,
            )
        ),
    ),
)  # fmt: skip

SHARE_PROGRESS = MESSAGES.declare(
    33, "ShareProgress", "0",
    # To a FIND_SHARE_PROGRESS, with the incarnation in it: of each share partition, in order, the
    # high watermark, the number of acquired records and the greatest delivery count; -1 if unknown.
    Struct(
        request_id=Int64(),
        incarnation=Int64(),
        partitions=Array(
            Struct(end_offset=Int64(), in_flight_count=Int32(), delivery_count=Int16())
        ),
    ),
)  # fmt: skip

REGISTER_NODE = MESSAGES.declare(
    36, "RegisterNode", "0",
    # After a Welcome of a supervisor that has not registered this process: the ends of its logs of
    # partitions with several replicas.  The image has the registration.
    Struct(
        logs=Array(
            Struct(
                topic_id=Uuid(),
                partition=Int32(),
                last_epoch=Int32(),
                end_offset=Int64(),
                is_damaged=Bool(),
            )
        )
    ),
)  # fmt: skip

REPLICAS_FAILED = MESSAGES.declare(
    42, "ReplicasFailed", "0",
    # Partitions whose log at the worker has failed: others lead them, and it is not in sync.
    Struct(
        node_epoch=Int64(), partitions=Array(Struct(topic_id=Uuid(), partition=Int32()))
    ),
)  # fmt: skip

ALTER_PARTITIONS = MESSAGES.declare(
    37, "AlterPartitions", "0",
    # The in-sync replicas that the leader of each partition asks for, with the node epochs in their
    # fetches.
    Struct(
        request_id=Int64(),
        node_epoch=Int64(),
        partitions=Array(
            Struct(
                topic_id=Uuid(),
                partition=Int32(),
                leader_epoch=Int32(),
                partition_epoch=Int32(),
                isr=Array(Struct(node_id=Int32(), node_epoch=Int64())),
                recovery_state=Int8(),
                flushed_copies=Int16(),
            )
        ),
    ),
)  # fmt: skip


SHUT_DOWN_NODE = MESSAGES.declare(
    39, "ShutDownNode", "0",
    # The process is about to end: other nodes are to lead its partitions first.
    Struct(request_id=Int64()),
)  # fmt: skip


# Supervisor to worker.

WELCOME = MESSAGES.declare(
    5, "Welcome", "0",
    # Its incarnation, the end of its metadata log, and the interval of a worker's heartbeats.
    Struct(incarnation=Int64(), image_offset=Int64(), heartbeat_ms=Int32()),
)  # fmt: skip

DELTA = MESSAGES.declare(
    6, "Delta", "0",
    # Records of the metadata log (internal.py), from its first offset to its end, exclusive.
    Struct(begin_offset=Int64(), end_offset=Int64(), records=Array(Bytes())),
)  # fmt: skip

RESPONSE = MESSAGES.declare(
    7, "Response", "0",
    # To a FORWARD: the response for the client, or the error and its message.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        frame=Bytes(nullable="0+", default=None),
    ),
)  # fmt: skip

IDS = MESSAGES.declare(
    8, "Ids", "0",
    # To an ALLOCATE_IDS: producer ids from the first to the end, exclusive.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        first_id=Int64(),
        end_id=Int64(),
    ),
)  # fmt: skip

ORPHANS = MESSAGES.declare(
    22, "Orphans", "0",
    # To a FIND_ORPHANS: those of its transactions that no coordinator will end.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        transactions=Array(LATE_TRANSACTION),
        committed=Array(Int32(), tag=0),  # positions of those that were committed
    ),
)  # fmt: skip

WRITE_MARKERS = MESSAGES.declare(
    15, "WriteMarkers", "0",
    # Transaction markers for partitions that the worker leads; the incarnation is the supervisor's.
    Struct(
        request_id=Int64(),
        incarnation=Int64(),
        markers=Array(
            Struct(
                producer_id=Int64(),
                producer_epoch=Int16(),
                is_commit=Bool(),
                coordinator_epoch=Int32(),
                transaction_version=Int16(),
                topics=Array(Struct(topic_id=Uuid(), partitions=Array(Int32()))),
            )
        ),
    ),
)  # fmt: skip

FIND_SHARE_PROGRESS = MESSAGES.declare(
    32, "FindShareProgress", "0",
    # Share partitions of the worker, by group; the incarnation is the supervisor's.
    Struct(
        request_id=Int64(),
        incarnation=Int64(),
        groups=Array(
            Struct(
                group_id=String(),
                partitions=Array(Struct(topic_id=Uuid(), partition=Int32())),
            )
        ),
    ),
)  # fmt: skip

TRANSACTIONS_VERIFIED = MESSAGES.declare(
    19, "TransactionsVerified", "0",
    # To a VERIFY_TRANSACTIONS: for each transaction, the error codes of its partitions.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        transactions=Array(Struct(error_codes=Array(Int16()))),
    ),
)  # fmt: skip

SHARE_OUTCOMES = MESSAGES.declare(
    31, "ShareOutcomes", "0",
    # To a SHARE_STATES: an error, or the state, of each read; the error of each change.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        reads=Array(
            Struct(
                error_code=Int16(),
                state_epoch=Int32(),
                start_offset=Int64(),
                state_batches=STATE_BATCHES,
            )
        ),
        changes=Array(Int16()),
    ),
)  # fmt: skip

PARTITIONS_ALTERED = MESSAGES.declare(
    38, "PartitionsAltered", "0",
    # To an ALTER_PARTITIONS: of each partition, in order, an error or its partition epoch now.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        partitions=Array(Struct(error_code=Int16(), partition_epoch=Int32())),
    ),
)  # fmt: skip


NODE_SHUT_DOWN = MESSAGES.declare(
    40, "NodeShutDown", "0",
    # To a SHUT_DOWN_NODE: the node leads no partition with several replicas any more, and the other
    # nodes know the leaders; or the whole broker ends, or no other node can lead.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
    ),
)  # fmt: skip


# Both directions.

APPEND_BATCH = MESSAGES.declare(
    34, "AppendBatch", "0",
    # To the supervisor: a record batch for a partition of any other node.  To a worker: one for a
    # partition that it leads; the incarnation is the supervisor's.
    Struct(
        request_id=Int64(),
        incarnation=Int64(),
        topic_id=Uuid(),
        partition=Int32(),
        batch=Bytes(),
    ),
)  # fmt: skip

BATCH_APPENDED = MESSAGES.declare(
    35, "BatchAppended", "0",
    # To an APPEND_BATCH, with the incarnation in it, once the batch is committed.
    Struct(
        request_id=Int64(),
        incarnation=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
    ),
)  # fmt: skip


# Operator's command and supervisor.

NODE_ORDER = MESSAGES.declare(
    9, "NodeOrder", "0",
    # The verb is list, add, remove, drain or rebalance; remove and drain use the node.
    Struct(request_id=Int64(), verb=String(), node_id=Int32(), dry_run=Bool()),
)  # fmt: skip

NODE_REPORT = MESSAGES.declare(
    10, "NodeReport", "0",
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        nodes=Array(
            Struct(
                node_id=Int32(),
                role=String(),
                host=String(),
                port=Int32(),
                pid=Int32(),
                state=String(),
                led_count=Int32(),
                size=Int64(),
                draining=Bool(),
                replica_count=Int32(tag=0),
            )
        ),
        moves=Array(
            Struct(topic=String(), partition=Int32(), from_node=Int32(), to_node=Int32())
        ),
        moves_left=Int32(),
    ),
)  # fmt: skip


# Launcher and supervisor.

BROKER_ENDS = MESSAGES.declare(
    41, "BrokerEnds", "0",
    # The whole broker shuts down: the workers need not wait for other leaders.
    Struct(),
)  # fmt: skip

DESIRED_NODES = MESSAGES.declare(
    11, "DesiredNodes", "0",
    # All nodes that should run, and those of them that are dedicated.
    Struct(node_ids=Array(Int32()), dedicated=Array(Int32())),
)  # fmt: skip

DEMAND_SERVICE = MESSAGES.declare(
    20, "DemandService", "0",
    # Start a service of the table that is started on demand.
    Struct(key=String()),
)  # fmt: skip

FENCE = MESSAGES.declare(
    12, "Fence", "0",
    # Kill this process, reap it, and start the node again.
    Struct(node_id=Int32(), incarnation=Int64()),
)  # fmt: skip

NODES = MESSAGES.declare(
    13, "Nodes", "0",
    # All node processes, after each change; a state is starting, ready, ending or backoff.
    Struct(
        nodes=Array(
            Struct(
                node_id=Int32(),
                incarnation=Int64(),
                pid=Int32(),
                host=String(),
                port=Int32(),
                state=String(),
            )
        )
    ),
)  # fmt: skip
