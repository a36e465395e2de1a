"""Where everything stands in a ring and its counters, and how two processes take turns there.

The ring's memory is the producer's to write, the counters' the worker's; the producer can map
the counters only to read.  Little-endian; each counter on a line of its own, so that one side's
stores do not take the line from under the other's.

    ring       0 u64  answers taken by the producer, ever growing
             128 u32  how the producer sleeps: 0 not, else the sum of AWAITS and WANTS_ROOM
            4096      frames, in a power of two of bytes
    counters   0 u64  bytes the worker has consumed, padding too, ever growing
             128 u32  how the worker sleeps: 0 not, AWAITS or WANTS_ROOM
             256 u64  answers given by the worker, ever growing
            4096      ANSWERS answers of 32 bytes; the n-th stands at place n modulo ANSWERS

    frame      0 u32  its size with the header, stored last: what makes it one
               4 u32  CRC-32C of the rest of the header, 8 to 48; the batch brings its own
               8 u64  its number, from 0; padding has one as well
              16      topic id, 16 bytes
              32 i32  partition
              36 u32  correlation, chosen by the producer, found again in the answer
              40 i16  acks
              42 u16  0
              44 i32  time-out in milliseconds
              48      one RecordBatch

    answer     0 u32  correlation
               4 i16  error code
               6 u16  0
               8 i64  base offset
              16 i64  append time in milliseconds, -1: the batch keeps the producer's times
              24 i64  log start offset

A frame begins at a multiple of 8 and lies in one piece: where the end is too near, a padding
frame takes what is left.  Of a padding frame only the word is there, its size and PADDING.  The
word after a frame is set to 0 before that frame's own is stored, so the reader finds nothing yet
or a whole frame, and no number of the producer's position is shared at all.
"""


cdef enum:
    ANSWERS_TAKEN = 0
    PRODUCER_SLEEPS = 128
    FRAMES_POSITION = 4096

    CONSUMED = 0
    WORKER_SLEEPS = 128
    ANSWERS_GIVEN = 256
    ANSWERS_POSITION = 4096
    ANSWERS = 1024
    ANSWER_SIZE = 32
    COUNTERS_SIZE = ANSWERS_POSITION + ANSWERS * ANSWER_SIZE

    AWAITS = 1                      # frames, or answers: whatever comes next
    WANTS_ROOM = 2                  # for a frame, or in the lane of answers

    CAPACITY_MIN = 4096
    CAPACITY_MAX = 1 << 30
    SHARE = 4                       # a frame takes at most so small a part of the ring


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

    ANSWER_CORRELATION = 0
    ANSWER_ERROR = 4
    ANSWER_BASE_OFFSET = 8
    ANSWER_APPEND_TIME = 16
    ANSWER_LOG_START = 24


cdef extern from *:
    """
    #define RING_PADDING 0x80000000u
    """
    unsigned int PADDING "RING_PADDING"


# Why a ring is left; transport/ring.py has the sentences.
cdef enum:
    WRONG_SIZE = 1
    WRONG_PADDING = 2
    WRONG_CHECKSUM = 3
    WRONG_SEQUENCE = 4
    WRONG_RESERVED = 5
    WRONG_ANSWERS_TAKEN = 6
