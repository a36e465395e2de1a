"""ZeroMQ gateway: a service beside the broker that produces messages of ZeroMQ clients.

    PUSH   ─▶ PULL   ┐ gathered into one batch per partition ─▶ Producer ─▶ ring, or TCP
    DEALER ◀▶ ROUTER ┘      ◀─ delivery outcome of each ────────┘

README.md beside this file defines the frames.

Guarantees: a message with a positive response to its DEALER is written as `gateway.acks` requires.
While the broker is slow the gateway receives nothing, so that the senders' own queues fill.
Messages of a PUSH are lost with the gateway's process, or expire after the producer's delivery
timeout, which is counted.  A refused message is reported to its DEALER, or counted and logged for a
PUSH, one by one; no message of a peer ends the gateway.

`kafkalite start --gateway ENDPOINT` starts it and restarts it when it ends; `kafkalite gateway
serve` runs it alone.
"""
