"""The layout of a ring and its counters, and the protocol by which two processes share them.

The producer writes the ring's memory, the worker writes the counters'; the producer can map the
counters read-only.  Little-endian.  Each counter has a cache line of its own, so that the stores of
one side do not invalidate the line of the other.

    ring       0 u64  responses taken by the producer, monotonic
             128 u32  sleep state of the producer: 0 awake, else a sum of WAITS_FOR_DATA and
                      WAITS_FOR_SPACE
            4096      frames, in a power of two of bytes
    counters   0 u64  bytes consumed by the worker, padding included, monotonic
             128 u32  sleep state of the worker: 0 awake, WAITS_FOR_DATA or WAITS_FOR_SPACE
             256 u64  responses written by the worker, monotonic
            4096      RESPONSE_SLOTS responses of 32 bytes; the n-th is in slot n % RESPONSE_SLOTS

    frame      0 u32  size with the header, stored last to publish the frame
               4 u32  CRC-32C of the rest of the header, 8 to 48; the batch has its own
               8 u64  sequence, from 0; padding frames have one as well
              16      topic id, 16 bytes
              32 i32  partition
              36 u32  correlation id, chosen by the producer and returned in the response
              40 i16  acks
              42 u16  0
              44 i32  timeout in milliseconds
              48      one RecordBatch

    response   0 u32  correlation id
               4 i16  error code
               6 u16  0
               8 i64  base offset
              16 i64  append time in milliseconds, -1: the batch keeps the producer's timestamps
              24 i64  log start offset

A frame begins at a multiple of 8 and is contiguous: if the space up to the ring's end is too small,
a padding frame fills it.  A padding frame consists of its first word only, its size and PADDING.
The word after a frame is set to 0 before the frame's own size is stored, so the reader finds either
nothing or a whole frame, and the producer's position is not shared at all.
"""


cdef enum:
    RESPONSES_TAKEN = 0
    PRODUCER_SLEEPS = 128
    FRAMES_POSITION = 4096

    CONSUMED = 0
    WORKER_SLEEPS = 128
    RESPONSES_WRITTEN = 256
    RESPONSES_POSITION = 4096
    RESPONSE_SLOTS = 1024
    RESPONSE_SIZE = 32
    COUNTERS_SIZE = RESPONSES_POSITION + RESPONSE_SLOTS * RESPONSE_SIZE

    WAITS_FOR_DATA = 1                      # waits for the next frame or response
    WAITS_FOR_SPACE = 2                  # waits for room for a frame or a response

    CAPACITY_MIN = 4096
    CAPACITY_MAX = 1 << 30
    SHARE = 4                       # a frame takes at most this fraction of the ring


cdef enum:
    HEADER_CRC = 4
    SEQUENCE = 8
    TOPIC_ID = 16
    PARTITION = 32
    CORRELATION = 36
    ACKS = 40
    RESERVED = 42
    TIMEOUT = 44
    HEADER_SIZE = 48
    TOPIC_ID_SIZE = 16

    RESPONSE_CORRELATION = 0
    RESPONSE_ERROR = 4
    RESPONSE_BASE_OFFSET = 8
    RESPONSE_APPEND_TIME = 16
    RESPONSE_LOG_START = 24


cdef extern from *:
    """
    #define RING_PADDING 0x80000000u
    """
    unsigned int PADDING "RING_PADDING"


# Reasons for which a ring is closed; transport/ring.py has the messages.
cdef enum:
    WRONG_SIZE = 1
    WRONG_PADDING = 2
    WRONG_CHECKSUM = 3
    WRONG_SEQUENCE = 4
    WRONG_RESERVED = 5
    WRONG_RESPONSES_TAKEN = 6
