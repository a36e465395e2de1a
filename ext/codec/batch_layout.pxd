"""The layout of a RecordBatch: field positions, attribute bits, and error codes of invalid ones.

     0 base offset         i64  ┐ the prefix: the batch length counts what follows it
     8 batch length        i32  ┘
    12 leader epoch        i32
    16 magic               i8     2
    17 CRC-32C             u32    of all bytes from the attributes to the end
    21 attributes          i16
    23 last offset delta   i32
    27 base timestamp      i64
    35 maximum timestamp   i64
    43 producer id         i64
    51 producer epoch      i16
    53 base sequence       i32
    57 record count        i32
    61 records, compressed together if the attributes have a codec
"""


cdef enum:
    BASE_OFFSET = 0
    BATCH_LENGTH = 8
    LEADER_EPOCH = 12
    MAGIC = 16
    CRC = 17
    ATTRIBUTES = 21
    LAST_OFFSET_DELTA = 23
    BASE_TIMESTAMP = 27
    MAX_TIMESTAMP = 35
    PRODUCER_ID = 43
    PRODUCER_EPOCH = 51
    BASE_SEQUENCE = 53
    RECORD_COUNT = 57
    HEADER_SIZE = 61

    PREFIX_SIZE = 12
    CURRENT_MAGIC = 2
    # Length, attributes, both deltas, two lengths and a header count, one byte each.
    RECORD_SIZE_MIN = 7


cdef enum:
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    # The base timestamp is the time from which the cleaner may drop this batch's tombstones.
    DELETE_HORIZON = 0x40


cdef enum:
    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4


# Kafka's error codes, as far as compiled functions return them (all of them: errors.py).
cdef enum:
    NONE = 0
    CORRUPT_MESSAGE = 2
    INVALID_TIMESTAMP = 32
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
