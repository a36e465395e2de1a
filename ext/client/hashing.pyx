"""Partitioning by key: Kafka's hash of a key, or of an Arrow column of keys, and its partition.

    murmur2(b"21")              -973932308, a signed 32-bit number as in Java
    partition_of(b"21", 12)     0

The partitions of a column are written to a buffer with an int32 per row.  A row that has a
partition keeps it; a row below 0 gets that of its key, or is left unchanged if its key is null: the
caller then chooses one.  `group_rows` then groups the rows by partition, keeping their order.

A column has the form described in arrow_columns.pxd, and is checked as described there.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

cimport murmur2 as kafka

from arrow_columns cimport Column, Columns, release_buffers, take_cell, take_column
from field_store cimport Field


cdef enum:
    PARTITIONS_MAX = 1 << 24


cdef int check_count(int64_t count) except -1:
    if not 0 < count <= PARTITIONS_MAX:
        raise ValueError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {count}")
    return 0


def murmur2(key) -> int:
    """Return Kafka's hash of a key."""
    cdef Py_buffer view
    cdef int32_t hashed
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    hashed = kafka.murmur2(<const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    return hashed


def partition_of(key, int64_t count) -> int:
    """Return the partition of a key, for a topic with `count` partitions."""
    cdef Py_buffer view
    cdef int32_t partition
    check_count(count)
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    partition = kafka.partition_of(<const uint8_t*> view.buf, view.len, <int32_t> count)
    PyBuffer_Release(&view)
    return partition


cdef int64_t place(
    const Column* keys, int64_t rows, int32_t count, int32_t* partitions
) noexcept nogil:
    """Set the partitions of rows below 0; return the first row with invalid offsets, or `rows`."""
    cdef int64_t row
    cdef Field key
    for row in range(rows):
        if partitions[row] >= 0:
            continue
        if not take_cell(keys, row, &key):
            return row
        if key.size >= 0:
            partitions[row] = kafka.partition_of(key.at, key.size, count)
    return rows


def partitions_of(tuple keys not None, int64_t count, partitions):
    """Write to `partitions` the partition of each row that has none but has a key."""
    cdef Columns columns
    cdef Column column
    cdef Py_buffer out
    cdef int64_t rows, reached
    check_count(count)
    PyObject_GetBuffer(partitions, &out, PyBUF_WRITABLE)
    columns.buffer_count = 0
    try:
        take_column(&columns, keys, &column)
        rows = out.len // 4
        if rows > column.count:
            raise ValueError(f"{rows} rows have partitions, and {column.count} have keys")
        with nogil:
            reached = place(&column, rows, <int32_t> count, <int32_t*> out.buf)
        if reached < rows:
            raise ValueError(f"the offsets of row {reached}'s key lie outside its column")
    finally:
        release_buffers(&columns)
        PyBuffer_Release(&out)


cdef int64_t group(
    const int32_t* partitions, int64_t row_count, int32_t count, int64_t* nexts, int64_t* ends,
    int32_t* rows
) noexcept nogil:
    """Group the rows; return the first row without a valid partition, or `row_count`.

    `ends` has a zero for each partition.
    """
    cdef int64_t row, end = 0
    cdef int32_t index
    for row in range(row_count):
        index = partitions[row]
        if not 0 <= index < count:
            return row
        ends[index] += 1
    for index in range(count):
        nexts[index] = end
        end += ends[index]
        ends[index] = end
    for row in range(row_count):
        index = partitions[row]
        # Detects another thread that writes to the partitions meanwhile, and stays in bounds.
        if not 0 <= index < count or nexts[index] == ends[index]:
            return row
        rows[nexts[index]] = <int32_t> row
        nexts[index] += 1
    return row_count


def group_rows(partitions, int64_t count, rows) -> list:
    """Write the row numbers into `rows`, an int32 each, grouped by partition.

    Returns for each partition the index at which its rows end and those of the next one begin.
    """
    cdef Py_buffer given, out
    cdef int64_t* counters
    cdef int64_t reached, row_count
    cdef int32_t index
    check_count(count)
    PyObject_GetBuffer(partitions, &given, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(rows, &out, PyBUF_WRITABLE)
        try:
            row_count = given.len // 4
            if out.len < row_count * 4 or row_count > 0x7FFFFFFF:
                raise ValueError(f"there is room for {out.len // 4} of {row_count} rows")
            counters = <int64_t*> calloc(2 * count, sizeof(int64_t))
            if counters == NULL:
                raise MemoryError
            try:
                with nogil:
                    reached = group(
                        <const int32_t*> given.buf, row_count, <int32_t> count,
                        counters, counters + count, <int32_t*> out.buf,
                    )
                if reached < row_count:
                    raise ValueError(f"row {reached} has none of the {count} partitions")
                return [counters[count + index] for index in range(count)]
            finally:
                free(counters)
        finally:
            PyBuffer_Release(&out)
    finally:
        PyBuffer_Release(&given)
