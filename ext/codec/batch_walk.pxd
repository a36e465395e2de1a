"""Walks over the batches of an untrusted record set.  Inline only.

A batch must be valid as in `batch_check.pxd` and have an offset for each of its records.  Besides
Kafka's error codes there are AT_END (the set has no further whole batch) and COMPRESSED (the batch
at this position is valid, but must be decompressed first).
"""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t

from aborted_transactions cimport COMMITTED, Aborted, skip_aborted
from batch_check cimport check_batch
from batch_layout cimport *
from big_endian cimport load_i16, load_i32, load_i64
from record_walk cimport Record


cdef enum:
    AT_END = -1
    COMPRESSED = -2


cdef struct Batch:
    Py_ssize_t size
    int64_t base_offset
    int64_t last_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t count
    int16_t attributes


cdef inline int check_framing(const uint8_t* at, Py_ssize_t left, bint check_crcs) noexcept nogil:
    """Return AT_END if there is no whole batch, or the error code of the bytes as a batch."""
    cdef int64_t size
    if left < HEADER_SIZE:
        return AT_END
    if at[MAGIC] != CURRENT_MAGIC:
        return UNSUPPORTED_FOR_MESSAGE_FORMAT
    size = <int64_t> load_i32(at + BATCH_LENGTH) + PREFIX_SIZE
    if size < HEADER_SIZE:
        return CORRUPT_MESSAGE
    if size > left:
        return AT_END
    return check_batch(at, size) if check_crcs else NONE


cdef inline int open_batch(
    const uint8_t* at, Py_ssize_t left, bint check_crcs, Batch* batch
) noexcept nogil:
    """Read the header of the batch at `at`; return a code as `check_framing` does."""
    cdef int32_t last_offset_delta
    cdef int code = check_framing(at, left, check_crcs)
    if code:
        return code
    last_offset_delta = load_i32(at + LAST_OFFSET_DELTA)
    batch.size = <Py_ssize_t> load_i32(at + BATCH_LENGTH) + PREFIX_SIZE
    batch.base_offset = load_i64(at + BASE_OFFSET)
    batch.attributes = load_i16(at + ATTRIBUTES)
    batch.base_timestamp = load_i64(at + BASE_TIMESTAMP)
    batch.max_timestamp = load_i64(at + MAX_TIMESTAMP)
    batch.count = load_i32(at + RECORD_COUNT)
    if batch.base_offset < 0 or last_offset_delta < 0:
        return CORRUPT_MESSAGE
    if batch.base_offset >= INT64_MAX - last_offset_delta:
        return CORRUPT_MESSAGE          # no offset would be left after its last one
    batch.last_offset = batch.base_offset + last_offset_delta
    if batch.attributes & CODEC_MASK > CODEC_ZSTD:
        return UNSUPPORTED_COMPRESSION_TYPE
    return NONE


cdef inline int open_only_batch(
    const uint8_t* at, Py_ssize_t size, bint check_crcs, Batch* batch
) noexcept nogil:
    """Do as `open_batch` for bytes that must be exactly one batch."""
    cdef int code = open_batch(at, size, check_crcs, batch)
    if code == AT_END or (code == NONE and batch.size != size):
        return CORRUPT_MESSAGE
    return code


cdef inline bint has_no_records(const Batch* batch, int64_t first_offset) noexcept nogil:
    """Return whether the batch has no records to return; an empty one keeps only its header."""
    return (
        batch.attributes & CONTROL or batch.last_offset < first_offset
        or (batch.count == 0 and batch.size == HEADER_SIZE)
    )


cdef inline bint miscounted(const Batch* batch, Py_ssize_t size) noexcept nogil:
    return batch.count < 0 or batch.count > size // RECORD_SIZE_MIN


cdef inline int64_t timestamp_of(const Batch* batch, const Record* record) noexcept nogil:
    if batch.attributes & LOG_APPEND_TIME:
        return batch.max_timestamp
    # Overflow wraps as in Java.
    return <int64_t> (<uint64_t> batch.base_timestamp + <uint64_t> record.timestamp_delta)


# The unread rest of a record set: a walk advances the position and the next offset.
cdef struct Walk:
    const uint8_t* at
    Py_ssize_t size
    Py_ssize_t position
    int64_t next_offset
    bint check_crcs
    Aborted* aborted        # NULL: none


cdef inline void pass_batch(Walk* walk, const Batch* batch) noexcept nogil:
    walk.position += batch.size
    # Offsets that do not increase are the sender's error; no record is returned twice for it.
    walk.next_offset = max(walk.next_offset, batch.last_offset + 1)


cdef inline int next_batch(Walk* walk, Batch* batch) noexcept nogil:
    """Skip batches without records to return, up to one whose records are uncompressed."""
    cdef const uint8_t* at
    cdef int code
    while True:
        at = walk.at + walk.position
        code = open_batch(at, walk.size - walk.position, walk.check_crcs, batch)
        if code:
            return code
        if walk.aborted != NULL:
            code = skip_aborted(walk.aborted, at, batch.size, batch.last_offset)
            if code == NONE:
                pass_batch(walk, batch)
                continue
            if code != COMMITTED:
                return code
        if not has_no_records(batch, walk.next_offset):
            return COMPRESSED if batch.attributes & CODEC_MASK else NONE
        pass_batch(walk, batch)


cdef inline Py_ssize_t end_of_whole(
    const uint8_t* at, Py_ssize_t size, int64_t* next_offset
) noexcept nogil:
    """Return the end of the last whole batch, judging by the batch lengths alone."""
    cdef Py_ssize_t position = 0, last = -1
    cdef int64_t claimed
    next_offset[0] = -1
    while size - position >= HEADER_SIZE:
        claimed = <int64_t> load_i32(at + position + BATCH_LENGTH) + PREFIX_SIZE
        if claimed < HEADER_SIZE or claimed > size - position:
            break
        last = position
        position += claimed
    if last >= 0:
        next_offset[0] = <int64_t> (
            <uint64_t> load_i64(at + last + BASE_OFFSET)
            + <uint64_t> load_i32(at + last + LAST_OFFSET_DELTA) + 1
        )
    return position
