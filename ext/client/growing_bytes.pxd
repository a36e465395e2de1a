"""Byte arrays that grow, in reused memory if there is some.  Inline only.

At least STEP_SIZE unused bytes always follow the content, so it can be written in whole steps.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef extern from "block_cache.h" nogil:
    void* block_cache_take(size_t size, size_t* room) noexcept
    void block_cache_free(void* piece, size_t room) noexcept


cdef enum:
    STEP_SIZE = 32


cdef struct Bytes:
    uint8_t* at
    Py_ssize_t size
    Py_ssize_t room


cdef inline bint make_room(Bytes* bytes, Py_ssize_t size, Py_ssize_t likely) noexcept nogil:
    """Make room for `size` more bytes, or for `likely` if the array must grow; return False if
    memory ran out."""
    cdef size_t room = bytes.room
    cdef uint8_t* at
    if bytes.room - bytes.size >= size + STEP_SIZE:
        return True
    room = max(2 * bytes.room, bytes.size + max(size, likely) + STEP_SIZE)
    at = <uint8_t*> block_cache_take(room, &room)
    if at != NULL:
        if bytes.room:
            memcpy(at, bytes.at, bytes.room)
        block_cache_free(bytes.at, bytes.room)
    else:
        at = <uint8_t*> realloc(bytes.at, room)
        if at == NULL:
            return False
    bytes.at, bytes.room = at, room
    return True


cdef inline void free_bytes(Bytes* bytes) noexcept nogil:
    block_cache_free(bytes.at, bytes.room)
