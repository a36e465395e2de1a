"""Messages on the local listener, between local clients and the node that they use.

A node listens on a SOCK_SEQPACKET Unix socket in the run directory (transport/run_directory.py).
A packet is one frame (record_kinds.py); descriptors are attached where stated.  Kinds gain only
tagged fields, since a client may be older or newer than the broker.

    client                                          node
    HELLO  ──────────────────────────────────────▶
           ◀────────────────────────────── WELCOME
    ATTACH ──────────────────────────────────────▶        at most once
           ◀───────────── ATTACHED + 4 descriptors
    READ, READ, … ───────────────────────────────▶        many may be outstanding
           ◀──── GRANTED (+ 1 descriptor), GRANTED        each once, in any order

The connection is the lease: its end closes the ring and the reads, on both sides.  A refused
request gets a response with a Kafka error code and message, and the connection stays open; a
message that cannot be decoded or is out of order closes it.
"""

from __future__ import annotations

from kafkalite.protocol.record_kinds import RecordKinds
from kafkalite.protocol.record_kinds import TypedRecord as TypedRecord
from kafkalite.protocol.types import Array, Bool, Int8, Int16, Int32, Int64, String, Struct, Uuid

PACKET_SIZE_MAX = 64 << 10
"""Maximum size of a packet."""

REQUEST_SIZE_MAX = 4 << 10
"""Maximum size of a packet that a node accepts."""

ATTACHED_DESCRIPTORS = 4
"""Number of descriptors of a ring: ring, counters, the worker's event, the producer's event."""

MESSAGES = RecordKinds("packet of the local socket", is_exact=False, units_max=PACKET_SIZE_MAX)

write_packet = MESSAGES.write_frame
read_packet = MESSAGES.read_frame


# Client to node.

HELLO = MESSAGES.declare(
    1, "LocalHello", "0",
    # The node it looks for: another node may have the socket's path by now.
    Struct(
        cluster_id=String(),
        node_id=Int32(),
        client_id=String(nullable="0+", default=None),
    ),
)  # fmt: skip

ATTACH = MESSAGES.declare(
    2, "Attach", "0",
    Struct(
        request_id=Int64(),
        # Of the producer's transactions; its batches add their partitions, as Produce 12 does.
        transactional_id=String(nullable="0+", tag=0, default=None),
    ),
)  # fmt: skip

READ = MESSAGES.declare(
    3, "Read", "0",
    Struct(
        request_id=Int64(),
        topic_id=Uuid(),
        partition=Int32(),
        # -1: any epoch.
        leader_epoch=Int32(default=-1),
        offset=Int64(),
        # Maximum size of a grant; its first batch is granted whole even if it is larger.
        size_max=Int32(),
        isolation_level=Int8(),
        wait_ms=Int32(),
    ),
)  # fmt: skip


# Node to client.

WELCOME = MESSAGES.declare(
    4, "LocalWelcome", "0",
    Struct(
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        cluster_id=String(),
        node_id=Int32(),
        # Port of its TCP listener.
        port=Int32(),
        # Different after each start of the node.
        generation=Int64(),
        # True if this client may use READ: it runs as the broker's own user.
        reads=Bool(),
    ),
)  # fmt: skip

ATTACHED = MESSAGES.declare(
    5, "Attached", "0",
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        ring_size=Int32(),
        frame_size_max=Int32(),
    ),
)  # fmt: skip

GRANTED = MESSAGES.declare(
    6, "Granted", "0",
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        high_watermark=Int64(default=-1),
        last_stable_offset=Int64(default=-1),
        log_start_offset=Int64(default=-1),
        # Files of a connection are numbered from 0; -1: the wait time is over without records.
        file=Int32(default=-1),
        # True if the file's descriptor comes with this packet; otherwise it was sent before.
        fresh=Bool(),
        position=Int64(),
        size=Int64(),
        # The granted records end before this offset, at which the client reads on.
        end_offset=Int64(default=-1),
        # Files that will not be granted again: their descriptors may be closed.
        dropped=Array(Int32()),
        # Aborted transactions, with their first offsets in the granted records.
        aborted=Array(Struct(producer_id=Int64(), first_offset=Int64())),
    ),
)  # fmt: skip
