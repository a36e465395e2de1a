"""Topic names and ids of requests and responses; names are interned.

Included by wire.pyx, because Produce and Fetch share the table of names.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp

from wire_bytes cimport (
    NULL_LENGTH, Cursor, PyUnicode_AsUTF8AndSize, Sink, put_raw, put_text, take, take_length,
    take_text,
)


cdef enum:
    UUID_SIZE = 16
    NAME_SIZE_MAX = 249
    NAME_SLOTS = 1024


cdef list names = [None] * NAME_SLOTS


cdef object known_name(Cursor* cursor, Py_ssize_t length):
    """Return the next `length` bytes as a string, interned if possible.

    The cursor must have that many bytes left.
    """
    cdef const uint8_t* at = cursor.at
    cdef uint32_t digest = 2166136261
    cdef Py_ssize_t index, interned_size
    cdef const char* interned_at
    if length > NAME_SIZE_MAX:
        return take_text(cursor, length)
    for index in range(length):
        digest = (digest ^ at[index]) * 16777619
    digest ^= digest >> 16
    interned = names[digest % NAME_SLOTS]
    if interned is not None:
        interned_at = PyUnicode_AsUTF8AndSize(interned, &interned_size)
        if interned_size == length and memcmp(interned_at, at, length) == 0:
            take(cursor, length)
            return interned
    name = take_text(cursor, length)
    if name is not None:
        names[digest % NAME_SLOTS] = name
    return name


cdef object take_name(Cursor* cursor):
    cdef Py_ssize_t length = take_length(cursor, 2, False)
    return None if cursor.invalid else known_name(cursor, length)


cdef object take_nullable_name(Cursor* cursor):
    cdef Py_ssize_t length = take_length(cursor, 2, True)
    if cursor.invalid or length == NULL_LENGTH:
        return None
    return known_name(cursor, length)


cdef object take_topic(Cursor* cursor, bint by_id):
    """Return a topic's name, or the 16 bytes of its id."""
    cdef const uint8_t* at
    if not by_id:
        return take_name(cursor)
    at = take(cursor, UUID_SIZE)
    return None if at == NULL else PyBytes_FromStringAndSize(<const char*> at, UUID_SIZE)


cdef int put_topic(Sink* sink, object topic, bint by_id) except -1:
    if not by_id:
        return put_text(sink, topic)
    assert type(topic) is bytes and len(topic) == UUID_SIZE, "a topic id is 16 bytes"
    return put_raw(sink, <const char*> topic, UUID_SIZE)
