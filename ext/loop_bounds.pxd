"""Bounds of the loop: how much one tick does, for all connections and for each."""

cdef enum:
    SCRATCH = 65536                 # one read at most, and what a connection may always hold
    HELD_MIN = 512                  # the smallest buffer a begun frame gets
    GROWTH = 4                      # a begun frame's buffer: at most so many times what has come
    SPARES_SIZE_MAX = 16 << 20      # buffers kept warm for the next large frames
    EVENTS_PER_TICK = 256
    TICK_NS = 500_000               # for frames: who comes meanwhile waits no longer than that
    SHARE_NS = 100_000              # of it for a connection that is not alone
    SENT_PER_CONNECTION = 1 << 20   # bytes in one tick, so that a long fetch shares the wire
    SENT_PER_TICK = 16 << 20
