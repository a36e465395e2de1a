"""Walks over the records of an untrusted payload.  Inline only.

`records.pyx` shows the format of a record and says when a payload is valid.  All code that walks
over a payload takes each record by `take_record`, so the same rules apply everywhere; the caller
checks that the count is exact, offsets increase and nothing is left over.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from batch_layout cimport RECORD_SIZE_MIN
from varint cimport load_varint32, load_varint64, unzigzag


cdef enum:
    # Length, attributes, deltas and the key's length; two bytes each, but one for the attributes.
    SHORT_HEAD_SIZE_MAX = 9
    # The lengths of a name and a value, one byte each.
    HEADER_SIZE_MIN = 2


cdef struct Field:
    const uint8_t* at
    int32_t size    # -1: null


cdef struct Record:
    int64_t timestamp_delta
    int32_t offset_delta
    Field key
    Field value
    const uint8_t* headers
    int32_t header_count


cdef inline const uint8_t* take_field(
    const uint8_t* at, const uint8_t* end, Field* field
) noexcept nogil:
    """Return what follows the field, or NULL if the field does not fit before `end`."""
    cdef Py_ssize_t taken
    field.at = at
    field.size = -1
    taken = load_varint32(at, end, &field.size)
    if taken == 0 or field.size < -1:
        return NULL
    field.at = at + taken
    if field.size <= 0:
        return field.at
    if field.size > end - field.at:
        return NULL
    return field.at + field.size


cdef inline const uint8_t* take_headers(
    const uint8_t* at, const uint8_t* end, Record* record
) noexcept nogil:
    """Return what follows a record's headers, or NULL if they are invalid."""
    cdef int32_t _
    cdef Field name, value
    cdef Py_ssize_t taken = load_varint32(at, end, &record.header_count)
    if taken == 0:
        return NULL
    at += taken
    record.headers = at
    if record.header_count < 0 or record.header_count > (end - at) // HEADER_SIZE_MIN:
        return NULL
    for _ in range(record.header_count):
        at = take_field(at, end, &name)
        if at == NULL or name.size < 0:
            return NULL
        at = take_field(at, end, &value)
        if at == NULL:
            return NULL
    return at


cdef inline const uint8_t* take_any_record(
    const uint8_t* at, const uint8_t* end, Record* record
) noexcept nogil:
    """Return what follows a record of any kind, or NULL if its bytes are invalid."""
    cdef int32_t length
    cdef Py_ssize_t taken = load_varint32(at, end, &length)
    if taken == 0:
        return NULL
    at += taken
    if length < RECORD_SIZE_MIN - 1 or length > end - at:
        return NULL
    end = at + length
    at += 1

    taken = load_varint64(at, end, &record.timestamp_delta)
    if taken == 0:
        return NULL
    at += taken
    taken = load_varint32(at, end, &record.offset_delta)
    if taken == 0:
        return NULL
    at = take_field(at + taken, end, &record.key)
    if at == NULL:
        return NULL
    at = take_field(at, end, &record.value)
    if at == NULL:
        return NULL
    at = take_headers(at, end, record)
    return at if at == end else NULL


cdef inline Py_ssize_t load_short(const uint8_t* at, uint32_t* raw) noexcept nogil:
    """Load a number of one or two bytes; return its size, 0 if longer.  Two bytes must exist."""
    raw[0] = at[0]
    if at[0] < 0x80:
        return 1
    raw[0] = (at[0] & 0x7F) | <uint32_t> at[1] << 7
    return 2 if at[1] < 0x80 else 0


cdef inline const uint8_t* take_short_field(
    const uint8_t* at, const uint8_t* end, Field* field
) noexcept nogil:
    """Return what follows the field, or NULL.  Two bytes must exist."""
    cdef uint32_t raw
    cdef Py_ssize_t taken = load_short(at, &raw)
    field.at = at + taken
    if raw & 1:
        field.size = -1
        return field.at if raw == 1 and taken else NULL
    field.size = raw >> 1
    return field.at + field.size if taken and field.size <= end - field.at else NULL


cdef inline const uint8_t* take_short_record(
    const uint8_t* at, const uint8_t* end, Record* record
) noexcept nogil:
    """Return what follows a record without headers whose numbers take two bytes at most, as nearly
    every record's do; NULL for any other record, and for invalid bytes."""
    cdef uint32_t raw
    cdef Py_ssize_t taken
    if end - at < SHORT_HEAD_SIZE_MAX:
        return NULL
    taken = load_short(at, &raw)
    at += taken
    if taken == 0 or raw & 1 or <int64_t> (raw >> 1) > end - at:
        return NULL
    end = at + (raw >> 1)
    at += 1
    taken = load_short(at, &raw)
    if taken == 0:
        return NULL
    record.timestamp_delta = unzigzag(raw)
    at += taken
    taken = load_short(at, &raw)
    if taken == 0:
        return NULL
    record.offset_delta = <int32_t> unzigzag(raw)
    at = take_short_field(at + taken, end, &record.key)
    if at == NULL or end - at < 2:
        return NULL
    at = take_short_field(at, end, &record.value)
    if at == NULL or end - at != 1 or at[0] != 0:
        return NULL
    record.headers = end
    record.header_count = 0
    return end


cdef inline const uint8_t* take_record(
    const uint8_t* at, const uint8_t* end, Record* record
) noexcept nogil:
    """Return what follows the record, or NULL if its bytes are invalid."""
    cdef const uint8_t* after = take_short_record(at, end, record)
    return after if after != NULL else take_any_record(at, end, record)
