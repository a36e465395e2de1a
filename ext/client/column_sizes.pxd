"""Sizes of the rows of Arrow columns as records, and checks of their cells.  Inline only."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from arrow_columns cimport (
    Column, Columns, load_offset, longest_cell, take_cell, take_list, time_of,
)
from column_records cimport *
from field_store cimport Field, field_size, number_size


cdef enum:
    LENGTH_SIZE_MAX = 5


cdef struct Sizes:
    int64_t largest             # size of the largest record, at the beginning of a batch
    int64_t largest_row
    int64_t all                 # upper bound for all records in one batch
    int64_t newest              # the largest timestamp; -1: there is none
    int64_t invalid_row


cdef inline void enclose_largest(Sizes* sizes) noexcept nogil:
    """Add the length and both deltas, which are 0 in the first record."""
    sizes.largest += 2
    sizes.largest += number_size(sizes.largest)


cdef inline bint measure_values(
    int64_t count, const Columns* columns, int64_t around_sizes, Sizes* sizes
) noexcept nogil:
    """Measure rows that have only values; return False for others, or if an offset is invalid.

    Row by row, measuring a large table costs a twentieth of sending it, before the first row is
    sent.
    """
    cdef const Column* values = &columns.value
    cdef int64_t begin, end, longest
    if (
        values.offsets == NULL or values.validity != NULL or columns.key.offsets != NULL
        or columns.headers.offsets != NULL or columns.times.values != NULL
    ):
        return False
    longest = longest_cell(values, count)
    if longest < 0:
        return False
    begin = load_offset(values.offsets, values.start, values.wide)
    end = load_offset(values.offsets, values.start + count, values.wide)
    if end < begin:
        return False    # the column is being written to
    # Attributes, no key, no headers.
    sizes.largest = 3 + number_size(longest) + longest
    sizes.all = end - begin + count * (3 + number_size(longest) + around_sizes)
    for sizes.largest_row in range(count):
        begin = load_offset(values.offsets, values.start + sizes.largest_row, values.wide)
        end = load_offset(values.offsets, values.start + sizes.largest_row + 1, values.wide)
        if end - begin == longest:
            break
    enclose_largest(sizes)
    return True


cdef inline int measure_rows(int64_t count, const Columns* columns, Sizes* sizes) noexcept nogil:
    cdef int64_t row, begin, end, size, timestamp, in_headers = 1
    # Upper bound for a record's length and both deltas.
    cdef int64_t around_sizes = LENGTH_SIZE_MAX + number_size(count)
    cdef Field key, value
    cdef int code
    around_sizes += 1 if columns.times.values == NULL else 10
    sizes.largest = sizes.all = 0
    sizes.largest_row = sizes.newest = -1
    if count and measure_values(count, columns, around_sizes, sizes):
        return VALID
    for row in range(count):
        sizes.invalid_row = row
        if not take_cell(&columns.value, row, &value):
            return INVALID_VALUE
        if not take_cell(&columns.key, row, &key):
            return INVALID_KEY
        if columns.times.values != NULL:
            timestamp = time_of(&columns.times, row, 0)
            if timestamp < 0:
                return NEGATIVE_TIMESTAMP
            sizes.newest = max(sizes.newest, timestamp)
        if columns.headers.offsets != NULL:
            if not take_list(&columns.headers, row, &begin, &end):
                return INVALID_HEADERS
            code = headers_size(&columns.headers, begin, end, &in_headers)
            if code:
                return code
        size = 1 + field_size(key) + field_size(value) + in_headers
        if size > sizes.largest:
            sizes.largest, sizes.largest_row = size, row
        sizes.all += size + around_sizes
    if count:
        enclose_largest(sizes)
    return VALID
