"""Access to the buffers and cells of a user's Arrow columns.  Inline only.

A column comes as a tuple, or None if it is missing and every cell is null:

    bytes         validity or None, offsets, bytes, the array's offset, whether offsets have 64 bits
    headers       validity or None, offsets, the array's offset, column of names, column of values
    timestamps    validity or None, int64 milliseconds, the array's offset

An array can be made over any buffers, so the number of rows is computed from the buffers' sizes,
and a cell is returned only if its begin and end increase and are inside the bytes.  Both are loaded
once: if another thread writes to an array meanwhile, cells may be wrong, but reads stay in bounds.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from field_store cimport Field


cdef enum:
    BUFFERS_MAX = 16
    ANY_COUNT = 0x7FFFFFFFFFFFFFFF


cdef struct Column:
    const uint8_t* validity     # NULL: nothing is null
    const uint8_t* offsets      # NULL: everything is null
    const uint8_t* content
    int64_t content_size
    int64_t start               # index of row 0 in the buffers
    int64_t count               # number of rows in the buffers
    bint wide                   # offsets of 64 bits


cdef struct Times:
    const uint8_t* validity
    const uint8_t* values       # NULL: the current time
    int64_t start
    int64_t count


cdef struct Lists:
    const uint8_t* validity
    const uint8_t* offsets      # NULL: no record has headers
    int64_t start
    int64_t count
    Column names
    Column contents


cdef struct Columns:
    Column value
    Column key
    Lists headers
    Times times
    int64_t count               # number of rows that all columns have
    Py_buffer buffers[BUFFERS_MAX]
    int buffer_count


cdef inline bint is_null(const uint8_t* validity, int64_t place) noexcept nogil:
    return validity != NULL and not (validity[place >> 3] >> (place & 7)) & 1


cdef inline int64_t load_offset(const uint8_t* offsets, int64_t place, bint wide) noexcept nogil:
    cdef int64_t offset
    cdef int32_t narrow
    if wide:
        memcpy(&offset, offsets + place * 8, 8)
        return offset
    memcpy(&narrow, offsets + place * 4, 4)
    return narrow


cdef inline bint take_cell(const Column* column, int64_t row, Field* field) noexcept nogil:
    """Read a cell into `field`; return False if its offsets are invalid."""
    cdef int64_t begin, end
    field.at = NULL
    field.size = -1
    if column.offsets == NULL:
        return True
    row += column.start
    if is_null(column.validity, row):
        return True
    begin = load_offset(column.offsets, row, column.wide)
    end = load_offset(column.offsets, row + 1, column.wide)
    if begin < 0 or end < begin or end > column.content_size:
        return False
    field.at = column.content + begin
    field.size = end - begin
    return True


cdef inline int64_t longest_cell(const Column* column, int64_t count) noexcept nogil:
    """Return the size of the longest of the first `count` cells; -1 if any offset is invalid.

    For a column without nulls.  The loop has no branches, so that the compiler vectorizes it.
    """
    cdef const uint8_t* at
    cdef int64_t place, wide_begin, wide_end, wide_longest = 0, wide_signs
    cdef int32_t begin, end, longest = 0, signs
    if load_offset(column.offsets, column.start + count, column.wide) > column.content_size:
        return -1
    if column.wide:
        at = column.offsets + 8 * column.start
        memcpy(&wide_signs, at, 8)
        for place in range(count):
            memcpy(&wide_begin, at + 8 * place, 8)
            memcpy(&wide_end, at + 8 * place + 8, 8)
            wide_begin = <int64_t> (<uint64_t> wide_end - <uint64_t> wide_begin)
            wide_signs |= wide_end | wide_begin
            wide_longest = max(wide_longest, wide_begin)
        return -1 if wide_signs < 0 else wide_longest
    at = column.offsets + 4 * column.start
    memcpy(&signs, at, 4)
    for place in range(count):
        memcpy(&begin, at + 4 * place, 4)
        memcpy(&end, at + 4 * place + 4, 4)
        begin = <int32_t> (<uint32_t> end - <uint32_t> begin)
        signs |= end | begin
        longest = max(longest, begin)
    return -1 if signs < 0 else longest


cdef inline bint take_list(
    const Lists* lists, int64_t row, int64_t* begin, int64_t* end
) noexcept nogil:
    """Find the range of a row's headers; return False if its offsets are invalid."""
    begin[0] = end[0] = 0
    if lists.offsets == NULL:
        return True
    row += lists.start
    if is_null(lists.validity, row):
        return True
    begin[0] = load_offset(lists.offsets, row, False)
    end[0] = load_offset(lists.offsets, row + 1, False)
    return (
        0 <= begin[0] <= end[0]
        and end[0] <= lists.names.count and end[0] <= lists.contents.count
    )


cdef inline int64_t time_of(const Times* times, int64_t row, int64_t now_ms) noexcept nogil:
    cdef int64_t timestamp
    if times.values == NULL or is_null(times.validity, times.start + row):
        return now_ms
    memcpy(&timestamp, times.values + (times.start + row) * 8, 8)
    return timestamp


# Conversion of Python's tuples.


cdef inline const uint8_t* view_buffer(Columns* columns, object buffer, int64_t* size) except? NULL:
    """Return a buffer's bytes, valid until `release_buffers`; NULL for None and an empty buffer."""
    cdef Py_buffer* view = &columns.buffers[columns.buffer_count]
    size[0] = 0
    if buffer is None:
        return NULL
    assert columns.buffer_count < BUFFERS_MAX
    PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
    columns.buffer_count += 1
    size[0] = view.len
    return <const uint8_t*> view.buf if view.len else NULL


cdef inline void release_buffers(Columns* columns):
    while columns.buffer_count:
        columns.buffer_count -= 1
        PyBuffer_Release(&columns.buffers[columns.buffer_count])


cdef inline int64_t rows_of(
    int64_t start, int64_t slots, bint has_validity, int64_t validity_size
) except -1:
    """Return the number of rows from `start` on in buffers of these sizes."""
    if has_validity:
        slots = min(slots, validity_size * 8)
    if start < 0 or start > max(slots, 0):
        raise ValueError(f"a column that begins at {start} has buffers for {max(slots, 0)} rows")
    return max(slots, 0) - start


cdef inline int take_column(Columns* columns, tuple given, Column* column) except -1:
    cdef int64_t validity_size, offsets_size
    memset(column, 0, sizeof(Column))
    column.count = ANY_COUNT
    if given is None:
        return 0
    validity, offsets, content, column.start, column.wide = given
    column.validity = view_buffer(columns, validity, &validity_size)
    column.offsets = view_buffer(columns, offsets, &offsets_size)
    column.content = view_buffer(columns, content, &column.content_size)
    if column.content == NULL:
        column.content = <const uint8_t*> b""   # empty cells need an address, too
    column.count = rows_of(
        column.start, offsets_size // (8 if column.wide else 4) - 1,
        validity is not None, validity_size,
    )
    return 0


cdef inline int take_lists(Columns* columns, tuple given, Lists* lists) except -1:
    cdef int64_t validity_size, offsets_size
    memset(lists, 0, sizeof(Lists))
    lists.count = ANY_COUNT
    if given is None:
        return 0
    validity, offsets, lists.start, names, contents = given
    lists.validity = view_buffer(columns, validity, &validity_size)
    lists.offsets = view_buffer(columns, offsets, &offsets_size)
    lists.count = rows_of(
        lists.start, offsets_size // 4 - 1, validity is not None, validity_size
    )
    take_column(columns, names, &lists.names)
    take_column(columns, contents, &lists.contents)
    return 0


cdef inline int take_times(Columns* columns, tuple given, Times* times) except -1:
    cdef int64_t validity_size, values_size
    memset(times, 0, sizeof(Times))
    times.count = ANY_COUNT
    if given is None:
        return 0
    validity, values, times.start = given
    times.validity = view_buffer(columns, validity, &validity_size)
    times.values = view_buffer(columns, values, &values_size)
    times.count = rows_of(times.start, values_size // 8, validity is not None, validity_size)
    return 0


cdef inline int take_columns(
    Columns* columns, tuple value, tuple key, tuple headers, tuple timestamps
) except -1:
    """Open all columns; the caller must call `release_buffers`, also if this raises."""
    columns.buffer_count = 0
    take_column(columns, value, &columns.value)
    take_column(columns, key, &columns.key)
    take_lists(columns, headers, &columns.headers)
    take_times(columns, timestamps, &columns.times)
    columns.count = min(
        columns.value.count, columns.key.count, columns.headers.count, columns.times.count
    )
    return 0
