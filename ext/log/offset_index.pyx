"""Searches in a segment's indexes for the last entry at or before a key.

    offset entry    i32 relative offset, i32 position          8 bytes
    time entry      i64 timestamp, i32 relative offset        12 bytes

An index is entries in a file, then a tail of entries in memory.  The file is read by pread, one
entry a step and finally a block, and never mapped: a mapping of a file that another program
truncates ends the process with SIGBUS, and each mapping counts against vm.max_map_count.  A search
of 2^18 entries takes ten reads of cached pages, or two if it ends in the last block.

After a failed read the result is that of an empty index: the caller then walks from the segment's
beginning, which is slow but correct.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy
from posix.unistd cimport pread

from big_endian cimport load_i32, load_i64


cdef enum:
    OFFSET_ENTRY_SIZE_ = 8
    TIME_ENTRY_SIZE_ = 12
    BLOCK_SIZE = 4096

OFFSET_ENTRY_SIZE = OFFSET_ENTRY_SIZE_
TIME_ENTRY_SIZE = TIME_ENTRY_SIZE_


cdef inline int64_t key_of(const uint8_t* entry, int entry_size) noexcept nogil:
    # The key of an offset entry is its offset, that of a time entry its timestamp.
    return load_i32(entry) if entry_size == OFFSET_ENTRY_SIZE_ else load_i64(entry)


cdef Py_ssize_t floor_in_memory(
    const uint8_t* entries, Py_ssize_t count, int entry_size, int64_t key
) noexcept nogil:
    """Return the slot of the last entry whose key is at most `key`; -1 if there is none."""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if key_of(entries + middle * entry_size, entry_size) <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef bint floor_in_file(
    int fd, Py_ssize_t count, int entry_size, int64_t key, uint8_t* found
) noexcept nogil:
    """Copy the last entry whose key is at most `key` to `found`; return False if there is none."""
    cdef Py_ssize_t room = BLOCK_SIZE // entry_size, low = 0, high = count, middle, slot
    cdef uint8_t block[BLOCK_SIZE]
    # Most readers are near the end, so the last block is searched first.
    middle = count - room
    while high - low > room:
        if pread(fd, block, entry_size, middle * entry_size) != entry_size:
            return False
        if key_of(block, entry_size) <= key:
            low = middle            # at or before the key, but maybe not the last such entry
        else:
            high = middle
        middle = (low + high) >> 1
    if pread(fd, block, (high - low) * entry_size, low * entry_size) != (high - low) * entry_size:
        return False
    slot = floor_in_memory(block, high - low, entry_size, key)
    if slot < 0:
        return False
    memcpy(found, block + slot * entry_size, entry_size)
    return True


cdef bint floor_entry(
    int fd, Py_ssize_t count, tail, int entry_size, int64_t key, uint8_t* found
) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t slot
    cdef bint any
    PyObject_GetBuffer(tail, &view, PyBUF_SIMPLE)
    slot = floor_in_memory(<const uint8_t*> view.buf, view.len // entry_size, entry_size, key)
    if slot >= 0:
        memcpy(found, <const uint8_t*> view.buf + slot * entry_size, entry_size)
    PyBuffer_Release(&view)
    if slot >= 0:
        return True
    if count <= 0:
        return False
    with nogil:
        any = floor_in_file(fd, count, entry_size, key, found)
    return any


def floor_offset(int fd, Py_ssize_t count, tail, int64_t relative_offset) -> tuple:
    """Return (relative offset, position) of the last entry at or before an offset; (-1, 0) if there
    is none."""
    cdef uint8_t found[TIME_ENTRY_SIZE_]
    if floor_entry(fd, count, tail, OFFSET_ENTRY_SIZE_, relative_offset, found):
        return load_i32(found), load_i32(found + 4)
    return -1, 0


def floor_time(int fd, Py_ssize_t count, tail, int64_t timestamp) -> tuple:
    """Return (timestamp, relative offset) of the last entry at or before a timestamp; (-1, 0) if
    there is none."""
    cdef uint8_t found[TIME_ENTRY_SIZE_]
    if floor_entry(fd, count, tail, TIME_ENTRY_SIZE_, timestamp, found):
        return load_i64(found), load_i32(found + 8)
    return -1, 0


def count_valid_offsets(entries, int64_t end_position) -> int:
    """Return the number of leading entries that can be valid: offsets and positions increase, and
    no position is at or beyond `end_position`."""
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Py_ssize_t slot = 0, count
    cdef int64_t offset, position, last_offset = -1, last_position = -1
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    at = <const uint8_t*> view.buf
    count = view.len // OFFSET_ENTRY_SIZE_
    with nogil:
        while slot < count:
            offset, position = load_i32(at), load_i32(at + 4)
            if offset <= last_offset or position <= last_position or position >= end_position:
                break
            last_offset, last_position = offset, position
            at += OFFSET_ENTRY_SIZE_
            slot += 1
    PyBuffer_Release(&view)
    return slot


def count_valid_times(entries, int64_t last_relative_offset) -> int:
    """Return the number of leading entries that can be valid: timestamps increase, offsets do not
    decrease, and none is beyond `last_relative_offset`."""
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Py_ssize_t slot = 0, count
    cdef int64_t timestamp, offset, last_timestamp = -1, last_offset = 0
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    at = <const uint8_t*> view.buf
    count = view.len // TIME_ENTRY_SIZE_
    with nogil:
        while slot < count:
            timestamp, offset = load_i64(at), load_i32(at + 8)
            if timestamp <= last_timestamp or offset < last_offset:
                break
            if offset > last_relative_offset:
                break
            last_timestamp, last_offset = timestamp, offset
            at += TIME_ENTRY_SIZE_
            slot += 1
    PyBuffer_Release(&view)
    return slot
