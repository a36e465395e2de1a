"""Encoding of the rows of Arrow columns as records.  Inline only.

The columns are a user's and may be invalid (arrow_columns.pxd), so each cell is checked when it is
written.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from arrow_columns cimport Columns, Lists, take_cell, take_list, time_of
from field_store cimport Field, field_size, store_field, store_number, number_size


cdef enum ColumnError:
    VALID = 0
    INVALID_VALUE
    INVALID_KEY
    INVALID_HEADERS
    NULL_NAME
    NEGATIVE_TIMESTAMP
    NO_SUCH_ROW


cdef struct Written:
    int64_t taken
    int64_t size
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t invalid_row


cdef inline int headers_size(
    const Lists* lists, int64_t begin, int64_t end, int64_t* size
) noexcept nogil:
    cdef int64_t place, total = number_size(end - begin)
    cdef Field name, content
    for place in range(begin, end):
        if not take_cell(&lists.names, place, &name):
            return INVALID_HEADERS
        if not take_cell(&lists.contents, place, &content):
            return INVALID_HEADERS
        if name.size < 0:
            return NULL_NAME
        total += field_size(name) + field_size(content)
    size[0] = total
    return VALID


cdef inline uint8_t* store_headers(
    uint8_t* at, const uint8_t* end_of_record, const Lists* lists, int64_t begin, int64_t end
) noexcept nogil:
    """Store a row's headers; return where the next byte goes, or NULL if the columns changed since
    they were measured."""
    cdef int64_t place
    cdef Field name, content
    at = store_number(at, end - begin)
    for place in range(begin, end):
        if not take_cell(&lists.names, place, &name):
            return NULL
        if not take_cell(&lists.contents, place, &content):
            return NULL
        if name.size < 0 or field_size(name) + field_size(content) > end_of_record - at:
            return NULL
        at = store_field(store_field(at, name), content)
    return at if at == end_of_record else NULL


cdef inline int64_t row_at(const uint8_t* rows, int64_t place) noexcept nogil:
    cdef int32_t row
    if rows == NULL:
        return place
    memcpy(&row, rows + 4 * place, 4)
    return row


cdef inline int take_row(
    const Columns* columns, int64_t row, Field* key, Field* value
) noexcept nogil:
    """Find the key and the value of a row; return a ColumnError."""
    if row < 0 or row >= columns.count:
        return NO_SUCH_ROW
    if not take_cell(&columns.value, row, value):
        return INVALID_VALUE
    if not take_cell(&columns.key, row, key):
        return INVALID_KEY
    return VALID


cdef inline int write_rows(
    uint8_t* out, int64_t room, const uint8_t* rows, int64_t first, int64_t end,
    const Columns* columns, int64_t now_ms, int64_t before, Written* written,
) noexcept nogil:
    """Write as many of the rows as fit; after an error the output is not valid.

    If the batch has records already, `before` of them, their timestamps are in `written`.
    """
    cdef uint8_t* at = out
    cdef const uint8_t* limit = out + room
    cdef const uint8_t* end_of_record
    cdef int64_t place, row, timestamp, size, delta
    cdef int64_t header_begin = 0, header_end = 0, in_headers = 1
    cdef bint has_headers = columns.headers.offsets != NULL
    cdef int code
    cdef Field key, value
    written.taken = written.size = 0
    if not before:
        written.base_timestamp = written.max_timestamp = -1
    for place in range(first, end):
        row = row_at(rows, place)
        written.invalid_row = row
        code = take_row(columns, row, &key, &value)
        if code:
            return code
        if has_headers:
            if not take_list(&columns.headers, row, &header_begin, &header_end):
                return INVALID_HEADERS
            code = headers_size(&columns.headers, header_begin, header_end, &in_headers)
            if code:
                return code
        timestamp = time_of(&columns.times, row, now_ms)
        if not before and place == first:
            written.base_timestamp = written.max_timestamp = timestamp
        # Overflow wraps as in Java.
        delta = <int64_t> (<uint64_t> timestamp - <uint64_t> written.base_timestamp)
        size = 1 + number_size(delta) + number_size(before + place - first)
        size += field_size(key) + field_size(value) + in_headers
        if number_size(size) + size > limit - at:
            break
        at = store_number(at, size)
        end_of_record = at + size
        at[0] = 0
        at = store_number(at + 1, delta)
        at = store_number(at, before + place - first)
        at = store_field(store_field(at, key), value)
        if not has_headers:
            at[0] = 0
            at += 1
        else:
            at = store_headers(at, end_of_record, &columns.headers, header_begin, header_end)
            if at == NULL:
                return INVALID_HEADERS
        written.max_timestamp = max(written.max_timestamp, timestamp)
        written.taken += 1
    written.size = at - out
    if not written.taken and not before:
        written.base_timestamp = written.max_timestamp = -1
    return VALID
