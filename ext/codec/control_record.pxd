"""Control record of a control batch (records/control.py).  Inline only."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from batch_layout cimport *
from big_endian cimport load_i16, load_i32
from varint cimport load_varint32, load_varint64


cdef enum:
    # A batch without a control record, as compaction leaves it.
    NO_CONTROL_TYPE = -1
    CONTROL_KEY_SIZE = 4
    MARKER_VALUE_SIZE = 6


cdef inline void read_control(
    const uint8_t* batch, int64_t size, int16_t* control_type, int32_t* coordinator_epoch
) noexcept nogil:
    """Read type and coordinator epoch from a valid batch; what it lacks is -1."""
    cdef const uint8_t* at = batch + HEADER_SIZE
    cdef const uint8_t* end = batch + size
    cdef int32_t length = 0
    cdef int64_t delta = 0
    cdef Py_ssize_t got
    cdef int _
    control_type[0] = NO_CONTROL_TYPE
    coordinator_epoch[0] = -1
    if load_i32(batch + RECORD_COUNT) < 1 or load_i16(batch + ATTRIBUTES) & CODEC_MASK:
        return
    got = load_varint32(at, end, &length)
    if not got or end - at < got + 1:
        return
    at += got + 1                       # the attributes of the record
    for _ in range(2):              # the deltas of timestamp and offset
        got = load_varint64(at, end, &delta)
        if not got:
            return
        at += got
    got = load_varint32(at, end, &length)
    if not got or length < CONTROL_KEY_SIZE or length > end - at - got:
        return
    at += got
    control_type[0] = load_i16(at + 2)
    at += length
    got = load_varint32(at, end, &length)
    if got and MARKER_VALUE_SIZE <= length <= end - at - got:
        coordinator_epoch[0] = load_i32(at + got + 2)
