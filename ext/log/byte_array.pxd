"""Byte arrays that make room as they are filled.  Inline only."""

from libc.stdint cimport uint8_t
from libc.stdlib cimport realloc


cdef struct Bytes:
    # `size` bytes are used of `room`.
    uint8_t* at
    Py_ssize_t size
    Py_ssize_t room


cdef inline bint reserve(Bytes* bytes, Py_ssize_t size) noexcept nogil:
    """Make room for `size` more bytes; return False if memory ran out."""
    cdef Py_ssize_t room = bytes.room
    cdef uint8_t* at
    if bytes.size + size > room:
        room = 2 * room + size
        at = <uint8_t*> realloc(bytes.at, room)
        if at == NULL:
            return False
        bytes.at, bytes.room = at, room
    return True


cdef inline uint8_t* extended(Bytes* bytes, Py_ssize_t size) noexcept nogil:
    """Return where to write `size` more bytes; NULL if memory ran out."""
    if not reserve(bytes, size):
        return NULL
    bytes.size += size
    return bytes.at + bytes.size - size
