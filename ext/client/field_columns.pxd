"""Columns of variable-size values in Arrow's layout, to which fields are appended.  Inline only."""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from growing_bytes cimport STEP_SIZE, Bytes, free_bytes, make_room
from record_walk cimport Field

cdef enum:
    COPY_BY_STEPS_MAX = 512


# A column of variable-size values.
cdef struct Fields:
    Bytes offsets
    Bytes data
    Bytes validity      # all ones up to the row; a null clears its bit
    Py_ssize_t null_count


cdef inline bint make_rows(
    Fields* column, Py_ssize_t row, Py_ssize_t count, Py_ssize_t likely
) noexcept nogil:
    """Reserve space for `count` rows after `row`; return False if out of memory."""
    cdef Py_ssize_t bits_size = (row + count + 7) // 8
    cdef Py_ssize_t more = bits_size - column.validity.size
    column.offsets.size = 4 * row
    if not (
        make_room(&column.offsets, 4 * (count + 1), 4 * (likely + 1))
        and make_room(&column.data, 0, 0)
        and make_room(&column.validity, more, more + likely // 8)
    ):
        return False
    if row == 0:
        (<int32_t*> column.offsets.at)[0] = 0
    if more > 0:
        memset(column.validity.at + column.validity.size, 0xFF, more)
        column.validity.size = bits_size
    return True


cdef inline void reset_validity(Fields* column, Py_ssize_t row) noexcept nogil:
    """Set the validity bits from this row on, after a batch that was not appended."""
    cdef Py_ssize_t place = row >> 3
    if place < column.validity.size:
        column.validity.at[place] |= <uint8_t> (0xFF << (row & 7))
        memset(column.validity.at + place + 1, 0xFF, column.validity.size - place - 1)


cdef inline void copy(
    uint8_t* to, const uint8_t* at, Py_ssize_t size, const uint8_t* end
) noexcept nogil:
    """Copy, in fixed steps if the bytes up to `end` allow it, which is faster for short fields."""
    cdef Py_ssize_t done = 0
    if size > COPY_BY_STEPS_MAX or end - at < size + STEP_SIZE:
        memcpy(to, at, size)
        return
    while done < size:
        memcpy(to + done, at + done, STEP_SIZE)
        done += STEP_SIZE


cdef inline bint append_field(
    Fields* column, Py_ssize_t row, const Field* field, const uint8_t* end
) noexcept nogil:
    """Append a field, whose row must be reserved; return False if out of memory."""
    if field.size > 0:
        if not make_room(&column.data, field.size, 0):
            return False
        copy(column.data.at + column.data.size, field.at, field.size, end)
        column.data.size += field.size
    elif field.size < 0:
        column.validity.at[row >> 3] &= <uint8_t> ~(1 << (row & 7))
        column.null_count += 1
    (<int32_t*> column.offsets.at)[row + 1] = <int32_t> column.data.size
    return True


cdef inline void truncate_fields(
    Fields* column, Py_ssize_t row, const Fields* before
) noexcept nogil:
    """Restore the column to this number of rows; keep the allocated memory."""
    column.data.size = before.data.size
    column.null_count = before.null_count
    reset_validity(column, row)


cdef inline void free_fields(Fields* column) noexcept:
    free_bytes(&column.offsets)
    free_bytes(&column.data)
    free_bytes(&column.validity)
