"""Messages of the local socket: programs on this host, and the node whose fast lane they use.

A node listens on a SOCK_SEQPACKET Unix socket in the run directory (transport/run_directory.py).
A packet is one frame (record_kinds.py), and descriptors come with it where that is said.  What a
kind gains it gains as tagged fields, for a program may be older or newer than the broker.

    client                                          node
    HELLO  ──────────────────────────────────────▶
           ◀────────────────────────────── WELCOME
    ATTACH ──────────────────────────────────────▶        at most once
           ◀───────────── ATTACHED + 4 descriptors
    READ, READ, … ───────────────────────────────▶        many may be outstanding
           ◀──── GRANTED (+ 1 descriptor), GRANTED        each once, in any order

The connection is the lease: its end ends the ring and the reads, at both ends.  What is refused is
answered with a Kafka error code and a sentence, and the connection goes on; what does not read, or
comes out of turn, ends it.
"""

from __future__ import annotations

from kafkalite.protocol.record_kinds import Record as Record
from kafkalite.protocol.record_kinds import RecordKinds
from kafkalite.protocol.types import Array, Bool, Int8, Int16, Int32, Int64, String, Struct, Uuid

PACKET_SIZE_MAX = 64 << 10
"""The largest packet there is."""

REQUEST_SIZE_MAX = 4 << 10
"""The largest that a node takes."""

ATTACHED_DESCRIPTORS = 4
"""How many come with a ring: ring, counters, the worker's event, the producer's event."""

MESSAGES = RecordKinds("packet of the local socket", exact=False, units_max=PACKET_SIZE_MAX)

write_packet = MESSAGES.write_frame
read_packet = MESSAGES.read_frame


# From a client.

HELLO = MESSAGES.declare(
    1, "LocalHello", "0",
    # Whom it looks for: a socket's file may be another's by now.
    Struct(
        cluster_id=String(),
        node_id=Int32(),
        client_id=String(nullable="0+", default=None),
    ),
)  # fmt: skip

ATTACH = MESSAGES.declare(
    2, "Attach", "0",
    Struct(request_id=Int64()),
)  # fmt: skip

READ = MESSAGES.declare(
    3, "Read", "0",
    Struct(
        request_id=Int64(),
        topic_id=Uuid(),
        partition=Int32(),
        # -1: whichever it is.
        leader_epoch=Int32(default=-1),
        offset=Int64(),
        # What a grant may hold; its first batch is given whole however large it is.
        size_max=Int32(),
        isolation_level=Int8(),
        wait_ms=Int32(),
    ),
)  # fmt: skip


# From a node.

WELCOME = MESSAGES.declare(
    4, "LocalWelcome", "0",
    Struct(
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        cluster_id=String(),
        node_id=Int32(),
        # Where it serves TCP.
        port=Int32(),
        # Another one with each start of the node.
        generation=Int64(),
        # Whether READ is for this client: it runs as the broker's own user.
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
        # Files of a connection are counted from 0; -1: the time is up, and nothing to read.
        file=Int32(default=-1),
        # Whether its descriptor comes with this packet; else it came before.
        fresh=Bool(),
        position=Int64(),
        size=Int64(),
        # What is granted ends before this offset; read on from there.
        end_offset=Int64(default=-1),
        # Files that will not be granted again: their descriptors may be closed.
        dropped=Array(Int32()),
        # Transactions that were aborted, with their first records in what is granted.
        aborted=Array(Struct(producer_id=Int64(), first_offset=Int64())),
    ),
)  # fmt: skip
