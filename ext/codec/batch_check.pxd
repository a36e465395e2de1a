"""Validation of a whole RecordBatch, shared by produce, recovery and rings.  Inline only.

Every module that walks batches uses it, so that all of them accept the same bytes.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from batch_layout cimport (
    ATTRIBUTES, BATCH_LENGTH, CORRUPT_MESSAGE, CRC, CURRENT_MAGIC, HEADER_SIZE, MAGIC, NONE,
    PREFIX_SIZE, UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
from big_endian cimport load_i32, load_u32


cdef extern from "crc32c.h" nogil:
    uint32_t crc32c(const uint8_t* at, size_t size) noexcept
    ctypedef uint32_t (*crc32c_way)(const uint8_t* at, size_t size) noexcept
    crc32c_way[3] crc32c_ways
    int crc32c_way_count


cdef inline int check_batch(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    """Return the error code of these bytes as one batch, compacted or not; 0 if valid."""
    if size < HEADER_SIZE:
        return CORRUPT_MESSAGE
    if <int64_t> load_i32(batch + BATCH_LENGTH) + PREFIX_SIZE != size:
        return CORRUPT_MESSAGE
    if batch[MAGIC] != CURRENT_MAGIC:
        return UNSUPPORTED_FOR_MESSAGE_FORMAT
    if load_u32(batch + CRC) != crc32c(batch + ATTRIBUTES, size - ATTRIBUTES):
        return CORRUPT_MESSAGE
    return NONE
