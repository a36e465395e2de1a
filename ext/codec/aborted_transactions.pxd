"""Aborted transactions of a fetched record set, whose batches a reader skips.  Inline only.

    i64 ended                       the entries before this one have ended
    i64 producer id, first offset   an entry, sorted by first offset

A Fetch response lists the aborted transactions of its range.  From the first offset of an entry on
the producer's transactional batches are skipped, up to its abort marker.  Only entries that have
begun are looked at: as many as there are open transactions.  An entry that ends is removed from
them, so that the list can be used for the next part of the range.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyObject_GetBuffer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from batch_check cimport check_batch
from batch_layout cimport *
from big_endian cimport load_i16, load_i32, load_i64
from control_record cimport NO_CONTROL_TYPE, read_control


cdef enum:
    ABORT_MARKER = 0
    # The batch does not belong to an aborted transaction.
    COMMITTED = -5


cdef struct Aborted:
    int64_t* ended
    int64_t* entries
    int64_t count


cdef inline int open_aborted(object transactions, Py_buffer* view, Aborted* aborted) except -1:
    """Get the buffer of a list, to be released by the caller."""
    cdef int64_t words
    PyObject_GetBuffer(transactions, view, PyBUF_WRITABLE)
    words = view.len // sizeof(int64_t)
    assert words % 2 == 1 and words * sizeof(int64_t) == <size_t> view.len
    aborted.ended = <int64_t*> view.buf
    aborted.entries = aborted.ended + 1
    aborted.count = words // 2
    assert 0 <= aborted.ended[0] <= aborted.count
    return 0


cdef inline void remove_entry(Aborted* aborted, int64_t place) noexcept nogil:
    """Remove an entry that has begun, and keep the order of the others."""
    while place > aborted.ended[0]:
        aborted.entries[2 * place] = aborted.entries[2 * place - 2]
        aborted.entries[2 * place + 1] = aborted.entries[2 * place - 1]
        place -= 1
    aborted.ended[0] += 1


cdef inline int skip_aborted(
    Aborted* aborted, const uint8_t* batch, Py_ssize_t size, int64_t last_offset
) noexcept nogil:
    """Return 0 if a whole batch is to be skipped, COMMITTED if not, or an error code.

    A marker is checked in any case: a damaged one would show or hide the records behind it.
    """
    cdef int64_t place, producer_id
    cdef int16_t control_type
    cdef int32_t coordinator_epoch
    cdef int16_t attributes = load_i16(batch + ATTRIBUTES)
    if not attributes & TRANSACTIONAL:
        return COMMITTED
    producer_id = load_i64(batch + PRODUCER_ID)
    for place in range(aborted.ended[0], aborted.count):
        if aborted.entries[2 * place + 1] > last_offset:
            return COMMITTED
        if aborted.entries[2 * place] != producer_id:
            continue
        if not attributes & CONTROL:
            return NONE
        if check_batch(batch, size):
            return CORRUPT_MESSAGE
        read_control(batch, size, &control_type, &coordinator_epoch)
        if control_type == NO_CONTROL_TYPE and load_i32(batch + RECORD_COUNT):
            return CORRUPT_MESSAGE
        if control_type == ABORT_MARKER:    # one emptied by compaction ends none
            remove_entry(aborted, place)
        return NONE
    return COMMITTED
