"""Messages between the processes of one broker: over the bus, and over the launcher's socketpair.

A message is a frame (record_kinds.py).  Between worker and supervisor, and the command line and
supervisor, ZeroMQ carries it (transport/bus.py); between launcher and supervisor a SOCK_SEQPACKET
pair does, a frame a packet.

While a restart renews processes one at a time, an older one hears a newer one.  So what a kind
gains, it gains as tagged fields, which an older reader passes over; a kind or version it does not
know it drops.
"""

from __future__ import annotations

from kafkalite.protocol.record_kinds import Record as Record
from kafkalite.protocol.record_kinds import RecordKinds
from kafkalite.protocol.types import (
    Array,
    Bool,
    Bytes,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    Uuid,
)

FRAME_SIZE_MAX = 128 << 20
"""The largest frame there is: a client's largest request (100 MiB), and room around it."""

MESSAGES = RecordKinds("message of the bus", exact=False)

write_frame = MESSAGES.write_frame
read_frame = MESSAGES.read_frame


# From a worker to the supervisor.

HELLO = MESSAGES.declare(
    1, "Hello", "0",
    # How far it has read the metadata log; deltas begin there.
    Struct(image_offset=Int64()),
)  # fmt: skip

HEARTBEAT = MESSAGES.declare(
    2, "Heartbeat", "0",
    Struct(
        image_offset=Int64(),
        led_count=Int32(),
        size=Int64(),
        # Partitions it shall lead and cannot yet: their directories have not come.
        unmade=Array(Struct(topic_id=Uuid(), partition=Int32())),
    ),
)  # fmt: skip

FORWARD = MESSAGES.declare(
    3, "Forward", "0",
    # A client's request as it came, header and all, and who asked where.
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
    # Partitions whose logs may have lost records of these epochs; a DELTA brings the next ones.
    Struct(partitions=Array(Struct(topic_id=Uuid(), partition=Int32(), leader_epoch=Int32()))),
)  # fmt: skip


# From the supervisor to a worker.

WELCOME = MESSAGES.declare(
    5, "Welcome", "0",
    # Its incarnation, the end of its metadata log, and how often it wants to hear from a worker.
    Struct(incarnation=Int64(), image_offset=Int64(), heartbeat_ms=Int32()),
)  # fmt: skip

DELTA = MESSAGES.declare(
    6, "Delta", "0",
    # Records of the metadata log (internal.py): from its first offset up to, without, its end.
    Struct(begin_offset=Int64(), end_offset=Int64(), records=Array(Bytes())),
)  # fmt: skip

ANSWER = MESSAGES.declare(
    7, "Answer", "0",
    # To a FORWARD: the response as it goes to the client, or the error and why.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        frame=Bytes(nullable="0+", default=None),
    ),
)  # fmt: skip

IDS = MESSAGES.declare(
    8, "Ids", "0",
    # To an ALLOCATE_IDS: producer ids from the first up to, without, the end.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        first_id=Int64(),
        end_id=Int64(),
    ),
)  # fmt: skip


# Between an operator's command and the supervisor.

NODE_ORDER = MESSAGES.declare(
    9, "NodeOrder", "0",
    # The verb is list, add, remove, drain or rebalance; the node matters to remove and drain.
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
            )
        ),
        moves=Array(
            Struct(topic=String(), partition=Int32(), from_node=Int32(), to_node=Int32())
        ),
        moves_left=Int32(),
    ),
)  # fmt: skip


# Between the launcher and the supervisor.

ROSTER = MESSAGES.declare(
    11, "Roster", "0",
    # All the nodes that shall run, and which of them are dedicated; the launcher makes it so.
    Struct(node_ids=Array(Int32()), dedicated=Array(Int32())),
)  # fmt: skip

FENCE = MESSAGES.declare(
    12, "Fence", "0",
    # End this process, reap it, and start the node anew.
    Struct(node_id=Int32(), incarnation=Int64()),
)  # fmt: skip

NODES = MESSAGES.declare(
    13, "Nodes", "0",
    # All the nodes there are, after each change; a state is starting, ready, ending or
    # backoff.
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
