"""Validation of record batches, and the header fields that a leader writes.

The functions take untrusted bytes.  They return 0 or a Kafka error code, never an exception.  A
buffer of GIL_SIZE_MIN bytes or more is read without the GIL: for a smaller one, releasing the GIL
costs more than the read.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

cimport batch_check
from batch_check cimport check_batch
from batch_layout cimport *
from big_endian cimport load_i16, load_i32, load_i64, load_u32
from big_endian cimport store_i16, store_i32, store_i64, store_u32
from control_record cimport read_control


cdef enum:
    GIL_SIZE_MIN = 32 * 1024


# The layout's constants, for Python.
globals().update(
    HEADER_SIZE=HEADER_SIZE,
    PREFIX_SIZE=PREFIX_SIZE,
    CODEC_MASK=CODEC_MASK,
    LOG_APPEND_TIME=LOG_APPEND_TIME,
    TRANSACTIONAL=TRANSACTIONAL,
    CONTROL=CONTROL,
    DELETE_HORIZON=DELETE_HORIZON,
    CRC32C_WAYS=batch_check.crc32c_way_count,
)


cdef int check_client_framing(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    """Return the error code of a client's record set before its fields are used.

    Kafka takes batches from a record set until the bytes run out, and refuses the set unless it
    found exactly one of the current magic; only a batch that it found can be corrupt.
    """
    cdef int64_t claimed
    if size < PREFIX_SIZE:
        return INVALID_RECORD
    claimed = <int64_t> load_i32(batch + BATCH_LENGTH) + PREFIX_SIZE
    if claimed <= MAGIC:
        return CORRUPT_MESSAGE
    if size <= MAGIC:
        return INVALID_RECORD
    if batch[MAGIC] > CURRENT_MAGIC:
        return CORRUPT_MESSAGE
    if batch[MAGIC] < CURRENT_MAGIC or claimed != size:
        return INVALID_RECORD
    return check_batch(batch, size)


cdef int check_client_fields(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    """Return the error code of the header of a whole batch that came from a client."""
    cdef int16_t attributes = load_i16(batch + ATTRIBUTES)
    cdef int16_t codec = attributes & CODEC_MASK
    cdef int32_t count = load_i32(batch + RECORD_COUNT)
    cdef bint has_producer = load_i64(batch + PRODUCER_ID) >= 0

    if attributes & (CONTROL | DELETE_HORIZON):
        return INVALID_RECORD
    if codec > CODEC_ZSTD:
        return UNSUPPORTED_COMPRESSION_TYPE
    if attributes & LOG_APPEND_TIME:
        return INVALID_TIMESTAMP
    if count < 1 or load_i32(batch + LAST_OFFSET_DELTA) != count - 1:
        return INVALID_RECORD
    if codec == CODEC_NONE and <int64_t> count * RECORD_SIZE_MIN > size - HEADER_SIZE:
        return INVALID_RECORD
    if has_producer:
        if load_i16(batch + PRODUCER_EPOCH) < 0 or load_i32(batch + BASE_SEQUENCE) < 0:
            return INVALID_RECORD
    elif attributes & TRANSACTIONAL:
        return INVALID_RECORD
    return NONE


cdef int check_client_bytes(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    cdef int code = check_client_framing(batch, size)
    return code if code else check_client_fields(batch, size)


ctypedef int (*Rule)(const uint8_t* batch, Py_ssize_t size) noexcept nogil


cdef int code_of(object batch, Rule rule) except -1:
    """Return the error code that a rule finds for these bytes."""
    cdef Py_buffer view
    cdef int code
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    if view.len < GIL_SIZE_MIN:
        code = rule(<const uint8_t*> view.buf, view.len)
    else:
        with nogil:
            code = rule(<const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    return code


def check(batch) -> int:
    """Return the error code of these bytes as exactly one batch, compacted or not; 0 if valid."""
    return code_of(batch, check_batch)


def check_client_batch(batch) -> int:
    """Return the error code of these bytes as a client's data for one partition; 0 if valid.

    Valid is one whole batch of the current magic with dense offsets, a known codec, the client's
    own timestamps, no control records, and either all three producer fields or none.
    """
    return code_of(batch, check_client_bytes)


def header(batch) -> tuple:
    """Return the header's fields in their order; records.batch.BatchHeader names them."""
    cdef Py_buffer view
    cdef const uint8_t* at
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        assert view.len >= HEADER_SIZE, "the batch is shorter than its header"
        at = <const uint8_t*> view.buf
        return (
            load_i64(at + BASE_OFFSET),
            load_i32(at + BATCH_LENGTH),
            load_i32(at + LEADER_EPOCH),
            <int8_t> at[MAGIC],
            load_u32(at + CRC),
            load_i16(at + ATTRIBUTES),
            load_i32(at + LAST_OFFSET_DELTA),
            load_i64(at + BASE_TIMESTAMP),
            load_i64(at + MAX_TIMESTAMP),
            load_i64(at + PRODUCER_ID),
            load_i16(at + PRODUCER_EPOCH),
            load_i32(at + BASE_SEQUENCE),
            load_i32(at + RECORD_COUNT),
        )
    finally:
        PyBuffer_Release(&view)


def control_record(batch) -> tuple:
    """Return (type, coordinator epoch) of a control batch; -1 for what it lacks."""
    cdef Py_buffer view
    cdef int16_t control_type
    cdef int32_t coordinator_epoch
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        assert view.len >= HEADER_SIZE, "a batch has a header"
        read_control(<const uint8_t*> view.buf, view.len, &control_type, &coordinator_epoch)
        return control_type, coordinator_epoch
    finally:
        PyBuffer_Release(&view)


def assign_offset(header, int64_t base_offset, int32_t leader_epoch):
    """Write the base offset and the leader epoch; the CRC does not cover either."""
    cdef Py_buffer view
    PyObject_GetBuffer(header, &view, PyBUF_WRITABLE)
    try:
        assert view.len >= HEADER_SIZE, "the buffer is shorter than a header"
        assert base_offset >= 0
        store_i64(<uint8_t*> view.buf + BASE_OFFSET, base_offset)
        store_i32(<uint8_t*> view.buf + LEADER_EPOCH, leader_epoch)
    finally:
        PyBuffer_Release(&view)


def stamp_append_time(batch, int64_t timestamp_ms):
    """Set LogAppendTime and the append time in a whole batch, and update its CRC."""
    cdef Py_buffer view
    cdef uint8_t* at
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
    try:
        assert view.len >= HEADER_SIZE, "the batch is shorter than its header"
        at = <uint8_t*> view.buf
        store_i16(at + ATTRIBUTES, load_i16(at + ATTRIBUTES) | LOG_APPEND_TIME)
        store_i64(at + MAX_TIMESTAMP, timestamp_ms)
        store_u32(at + CRC, batch_check.crc32c(at + ATTRIBUTES, view.len - ATTRIBUTES))
    finally:
        PyBuffer_Release(&view)


def correct_max_timestamp(batch, int64_t timestamp_ms):
    """Write the maximum timestamp of a whole batch, and update its CRC."""
    cdef Py_buffer view
    cdef uint8_t* at
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
    try:
        assert view.len >= HEADER_SIZE, "the batch is shorter than its header"
        at = <uint8_t*> view.buf
        store_i64(at + MAX_TIMESTAMP, timestamp_ms)
        store_u32(at + CRC, batch_check.crc32c(at + ATTRIBUTES, view.len - ATTRIBUTES))
    finally:
        PyBuffer_Release(&view)


def crc32c(buffer) -> int:
    """Return the CRC-32C (Castagnoli) of these bytes."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    if view.len < GIL_SIZE_MIN:
        crc = batch_check.crc32c(<const uint8_t*> view.buf, view.len)
    else:
        with nogil:
            crc = batch_check.crc32c(<const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_by(int way, buffer) -> int:
    """Return the CRC-32C by one of the CRC32C_WAYS implementations that this processor supports, 0
    being the table; exported so that all of them are tested."""
    cdef Py_buffer view
    cdef uint32_t crc
    if not 0 <= way < batch_check.crc32c_way_count:
        raise ValueError(f"this processor has {batch_check.crc32c_way_count} implementations")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    crc = batch_check.crc32c_ways[way](<const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc
