"""Limits of the event loop: the work of one tick, for all connections and for each."""

cdef enum:
    SCRATCH = 65536                 # maximum size of a read; a connection may always hold as much
    HELD_MIN = 512                  # minimum size of the buffer of an incomplete frame
    GROWTH = 4                      # maximum size of that buffer, as a multiple of what came
    DEFERRED_SIZE = 65536           # bytes of unanswered requests at which reading stops
    SPARES_SIZE_MAX = 16 << 20      # buffers kept for the next large frames
    EVENTS_PER_TICK = 256
    TICK_NS = 500_000               # for frames; bounds how long other events wait
    SHARE_NS = 100_000              # of TICK_NS, for one connection of several
    SENT_PER_CONNECTION = 1 << 20   # bytes per tick, so that a long fetch does not block others
    SENT_PER_TICK = 16 << 20
