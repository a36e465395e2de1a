"""Programs that speak ZeroMQ produce here: a process beside the broker, a producer to it.

    PUSH   ─▶ PULL   ┐ gathered into one batch a partition ─▶ Producer ─▶ ring, or TCP
    DEALER ◀▶ ROUTER ┘      ◀─ what became of each ─────────────┘

The frames are in README.md beside this file.  What is promised.  A message that a DEALER was told
of is written as `gateway.acks` says.  When the broker is slow the gateway receives nothing, so that
the sender's own queue fills.  What a PUSH sent is lost with the gateway's process, or given up when
the producer's time for it is over, which is counted.
Whatever is refused is answered (DEALER) or counted and complained about (PUSH), message by message;
nothing that a peer sends ends the gateway.

`kafkalite start --gateway ENDPOINT` starts it and starts it again when it dies; `kafkalite gateway
serve` runs it alone.
"""
