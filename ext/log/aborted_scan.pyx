"""Scans for the aborted transactions of a record range: its batch headers, and index entries.

    index entry    i16 version, i64 producer id, i64 first offset, i64 last offset (of the marker),
                   i64 last stable offset when the transaction ended                     34 bytes

    producer ids   i64 each, in the machine's byte order; -1 is a free slot.  A power of two of
                   slots, at least half of them free; an id is in the first free slot from its hash

A range may overlap far more transactions than it has batches of: those that are open meanwhile.  So
the producer ids of its headers select the entries that its reader needs.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int16_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from batch_headers cimport Header, Window, new_window, read_header
from batch_layout cimport *
from big_endian cimport load_i16, load_i64


cdef enum:
    ENTRY_SIZE_ = 34
    ENTRY_PRODUCER_ID = 2
    ENTRY_FIRST_OFFSET = 10
    ENTRY_STABLE_OFFSET = 26
    FREE = -1
    SLOTS_MIN = 16

ENTRY_SIZE = ENTRY_SIZE_


cdef inline Py_ssize_t slot_of(const int64_t* ids, Py_ssize_t count, int64_t id) noexcept nogil:
    """Return the slot of a producer id, or the free one for it."""
    cdef Py_ssize_t slot = (<uint64_t> id * <uint64_t> 0x9E3779B97F4A7C15) >> 32
    slot &= count - 1
    while ids[slot] != id and ids[slot] != FREE:
        slot = (slot + 1) & (count - 1)
    return slot


cdef inline bint has_id(const int64_t* ids, Py_ssize_t count, int64_t id) noexcept nogil:
    return id != FREE and ids[slot_of(ids, count, id)] == id


# ---------------------------------------------------------------------------------------------
# Batch headers


cdef struct Transactions:
    # The producers of the batches so far, and which of them have an open transaction.
    int64_t* ids
    uint8_t* open
    Py_ssize_t slots
    Py_ssize_t left


cdef inline bint admits(Transactions* known, const uint8_t* batch) noexcept nogil:
    """Add a batch; return False if its transaction is one too many."""
    cdef int16_t attributes = load_i16(batch + ATTRIBUTES)
    cdef int64_t id = load_i64(batch + PRODUCER_ID)
    cdef Py_ssize_t slot
    if not attributes & TRANSACTIONAL or id < 0:
        return True
    slot = slot_of(known.ids, known.slots, id)
    if not known.open[slot]:
        if known.left == 0:
            return False
        known.left -= 1
        known.ids[slot] = id
    known.open[slot] = not attributes & CONTROL
    return True


def walk_transactions(
    int fd, int64_t position, int64_t end, int64_t size, int64_t count_max
) -> tuple:
    """Return (code, position, next offset, producer ids) after about `size` bytes of batches that
    belong to at most `count_max` transactions; the next offset is -1 if there is none.

    The code is WHOLE if more batches follow; else it is as in `segment_walk`.  A marker belongs to
    its transaction; so does the next batch of the same producer to another one.
    """
    cdef Transactions known
    cdef Window* window
    cdef Header header = Header(position, 0, -1, -1, -1, False)
    cdef int64_t at = position, next_offset = -1
    cdef int code
    known.left = max(0, min(count_max, (end - position) // HEADER_SIZE + 1))
    known.slots = SLOTS_MIN
    while known.slots < 2 * known.left:
        known.slots *= 2
    known.ids = <int64_t*> malloc(known.slots * sizeof(int64_t))
    known.open = <uint8_t*> calloc(known.slots, 1)
    if known.ids == NULL or known.open == NULL:
        free(known.ids)
        free(known.open)
        raise MemoryError
    memset(known.ids, 0xFF, known.slots * sizeof(int64_t))
    try:
        window = new_window(fd, end)
        with nogil:
            code = read_header(window, at, &header)
            while code == NONE and at < position + size:
                if not admits(&known, window.bytes + (at - window.position)):
                    break
                next_offset = header.last_offset + 1
                at += header.size
                code = read_header(window, at, &header)
        free(window)
        ids = PyBytes_FromStringAndSize(<char*> known.ids, known.slots * sizeof(int64_t))
    finally:
        free(known.ids)
        free(known.open)
    return code, at, next_offset, ids


# ---------------------------------------------------------------------------------------------
# Index entries


def find_aborted(entries, int64_t upper_offset, Py_ssize_t count_max, producer_ids=None) -> tuple:
    """Return ([(producer id, first offset)], number of entries scanned, whether later ones may
    follow, lowest first offset, highest last stable offset).

    Found are the transactions that begin before `upper_offset`, of these producers or of all.  The
    scan ends after `count_max`, and at an entry after which all others begin later.
    """
    cdef Py_buffer view, ids_view
    cdef const uint8_t* entry
    cdef const int64_t* ids = NULL
    cdef Py_ssize_t slots = 0, count, scanned = 0
    cdef int64_t first_offset, stable_offset, producer_id
    cdef int64_t lowest = INT64_MAX, highest = -1
    cdef bint follow = True
    cdef list found = []
    if producer_ids is not None:
        PyObject_GetBuffer(producer_ids, &ids_view, PyBUF_SIMPLE)
        ids, slots = <const int64_t*> ids_view.buf, ids_view.len // sizeof(int64_t)
        assert slots >= SLOTS_MIN and slots & (slots - 1) == 0
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    entry = <const uint8_t*> view.buf
    count = view.len // ENTRY_SIZE_
    while follow and scanned < count:
        first_offset = load_i64(entry + ENTRY_FIRST_OFFSET)
        stable_offset = load_i64(entry + ENTRY_STABLE_OFFSET)
        lowest, highest = min(lowest, first_offset), max(highest, stable_offset)
        follow = stable_offset < upper_offset
        if first_offset < upper_offset:
            producer_id = load_i64(entry + ENTRY_PRODUCER_ID)
            if ids == NULL or has_id(ids, slots, producer_id):
                found.append((producer_id, first_offset))
                follow = follow and len(found) < count_max
        entry += ENTRY_SIZE_
        scanned += 1
    PyBuffer_Release(&view)
    if producer_ids is not None:
        PyBuffer_Release(&ids_view)
    return found, scanned, follow, lowest, highest
