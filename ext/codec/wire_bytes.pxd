"""Bounded reads and writes of the protocol's primitive types.  Inline only: see _ext/__init__.py.

A Cursor walks over untrusted bytes and never passes `end`.  The first error sets `invalid` and
moves it to the end, so that every later read fails as well: a caller may check once after a run of
reads, before it uses any of them.  A loop by a decoded count must check inside the loop.

A Sink grows by doubling.  It starts in bytes of its own, so most responses need one allocation: the
bytes object they end in.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from big_endian cimport load_i16, load_i32, load_i64, store_i16, store_i32, store_i64
from varint cimport load_uvarint32, store_uvarint, uvarint_size


cdef extern from "Python.h":
    # Declared to return a bare pointer, so that invalid UTF-8 sets `invalid` instead of raising.
    PyObject* PyUnicode_DecodeUTF8(const char* at, Py_ssize_t size, const char* errors)
    void PyErr_Clear()
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    void release "Py_DECREF" (PyObject* owned)


cdef enum:
    INVALID_REQUEST = 42
    NULL_LENGTH = -1
    # Limit of the memory that one request may take when decoded, in units: an element of an array
    # that is a number or a string is four, a struct its fields and three.  Without a limit two
    # bytes of a frame could become three hundred.  A unit is at most 64 bytes of objects.  Elements
    # also stand for the cost of their response: 2^18 units are decoded within 10 ms and their
    # response is encoded in 30 ms at most, each in one tick; the work between is done in steps
    # (broker/stepping.py).  That is enough for 65,536 partitions of an OffsetFetch, and for 37,000
    # of an OffsetCommit.
    REQUEST_UNITS_MAX = 1 << 18
    STRUCT_UNITS = 3
    ELEMENT_UNITS = 4
    SINK_START_SIZE = 1024


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    int64_t units_left
    bint flexible
    bint invalid


cdef inline void fail(Cursor* cursor) noexcept nogil:
    cursor.invalid = True
    cursor.at = cursor.end


cdef inline Py_ssize_t remaining(const Cursor* cursor) noexcept nogil:
    return cursor.end - cursor.at


cdef inline const uint8_t* take(Cursor* cursor, Py_ssize_t size) noexcept nogil:
    """Return the next `size` bytes; NULL, and `invalid` set, if there are fewer."""
    cdef const uint8_t* at = cursor.at
    if size > cursor.end - at:
        fail(cursor)
        return NULL
    cursor.at = at + size
    return at


cdef inline int8_t take_i8(Cursor* cursor) noexcept nogil:
    cdef const uint8_t* at = take(cursor, 1)
    return 0 if at == NULL else <int8_t> at[0]


cdef inline int16_t take_i16(Cursor* cursor) noexcept nogil:
    cdef const uint8_t* at = take(cursor, 2)
    return 0 if at == NULL else load_i16(at)


cdef inline int32_t take_i32(Cursor* cursor) noexcept nogil:
    cdef const uint8_t* at = take(cursor, 4)
    return 0 if at == NULL else load_i32(at)


cdef inline int64_t take_i64(Cursor* cursor) noexcept nogil:
    cdef const uint8_t* at = take(cursor, 8)
    return 0 if at == NULL else load_i64(at)


cdef inline uint32_t take_uvarint(Cursor* cursor) noexcept nogil:
    cdef uint32_t value = 0
    cdef Py_ssize_t size = load_uvarint32(cursor.at, cursor.end, &value)
    if size == 0:
        fail(cursor)
        return 0
    cursor.at += size
    return value


cdef inline Py_ssize_t take_length(Cursor* cursor, int width, bint nullable) noexcept nogil:
    """Read a length within the bytes left, or NULL_LENGTH; `width` is for non-flexible versions."""
    cdef int64_t length
    if cursor.flexible:
        length = <int64_t> take_uvarint(cursor) - 1
    elif width == 2:
        length = take_i16(cursor)
    else:
        length = take_i32(cursor)
    if cursor.invalid:
        return 0
    if length == NULL_LENGTH and nullable:
        return NULL_LENGTH
    if length < 0 or length > remaining(cursor):
        fail(cursor)
        return 0
    return <Py_ssize_t> length


cdef inline Py_ssize_t take_count(
    Cursor* cursor, Py_ssize_t element_size_min, int units_each, bint nullable
) noexcept nogil:
    """Read a number of elements, or NULL_LENGTH.

    It is bounded by the bytes left and by the units left of the request, so the caller may allocate
    for all elements at once.
    """
    cdef Py_ssize_t count = take_length(cursor, 4, nullable)
    if count <= 0:
        return count
    if count > remaining(cursor) // element_size_min:
        fail(cursor)
        return 0
    cursor.units_left -= <int64_t> count * units_each
    if cursor.units_left < 0:
        fail(cursor)
        return 0
    return count


cdef inline object take_text(Cursor* cursor, Py_ssize_t length):
    """Return the next `length` bytes, which must exist, as a string; set `invalid` if not UTF-8."""
    cdef PyObject* text = PyUnicode_DecodeUTF8(<const char*> take(cursor, length), length, NULL)
    if text == NULL:
        PyErr_Clear()
        fail(cursor)
        return None
    value = <object> text
    release(text)
    return value


cdef inline uint32_t take_tag_count(Cursor* cursor) noexcept nogil:
    """Read the number of tagged fields that follow; each takes two bytes at least."""
    cdef uint32_t count = take_uvarint(cursor)
    if count > remaining(cursor) // 2:
        fail(cursor)
        return 0
    return count


cdef inline void skip_tags(Cursor* cursor) noexcept nogil:
    """Skip tagged fields, none of which is known here."""
    cdef uint32_t count
    if not cursor.flexible:
        return
    count = take_tag_count(cursor)
    while count and not cursor.invalid:
        take_uvarint(cursor)
        take(cursor, take_uvarint(cursor))
        count -= 1


cdef struct Sink:
    uint8_t* at
    Py_ssize_t size
    Py_ssize_t capacity
    bint flexible
    uint8_t[SINK_START_SIZE] start


cdef inline void sink_open(Sink* sink, bint flexible) noexcept nogil:
    sink.at = sink.start
    sink.size = 0
    sink.capacity = SINK_START_SIZE
    sink.flexible = flexible


cdef inline void sink_close(Sink* sink) noexcept nogil:
    if sink.at != sink.start:
        free(sink.at)


cdef inline int sink_grow(Sink* sink, Py_ssize_t size) except -1:
    cdef Py_ssize_t capacity = sink.capacity
    cdef uint8_t* grown
    while capacity - sink.size < size:
        capacity *= 2
    if sink.at == sink.start:
        grown = <uint8_t*> malloc(capacity)
        if grown != NULL:
            memcpy(grown, sink.start, sink.size)
    else:
        grown = <uint8_t*> realloc(sink.at, capacity)
    if grown == NULL:
        raise MemoryError
    sink.at = grown
    sink.capacity = capacity
    return 0


cdef inline uint8_t* room(Sink* sink, Py_ssize_t size) except NULL:
    """Return where to write the next `size` bytes, already counted as written."""
    cdef uint8_t* at
    if sink.capacity - sink.size < size:
        sink_grow(sink, size)
    at = sink.at + sink.size
    sink.size += size
    return at


cdef inline int put_i8(Sink* sink, int8_t value) except -1:
    room(sink, 1)[0] = <uint8_t> value
    return 0


cdef inline int put_i16(Sink* sink, int16_t value) except -1:
    store_i16(room(sink, 2), value)
    return 0


cdef inline int put_i32(Sink* sink, int32_t value) except -1:
    store_i32(room(sink, 4), value)
    return 0


cdef inline int put_i64(Sink* sink, int64_t value) except -1:
    store_i64(room(sink, 8), value)
    return 0


cdef inline int put_uvarint(Sink* sink, uint32_t value) except -1:
    store_uvarint(room(sink, uvarint_size(value)), value)
    return 0


cdef inline int put_raw(Sink* sink, const void* source, Py_ssize_t size) except -1:
    memcpy(room(sink, size), source, size)
    return 0


cdef inline int put_length(Sink* sink, Py_ssize_t length, int width) except -1:
    """Write a length or count, or NULL_LENGTH; `width` is for non-flexible versions."""
    if sink.flexible:
        assert length < 0xFFFFFFFF, "a length does not fit its field"
        put_uvarint(sink, <uint32_t> (length + 1))
    elif width == 2:
        assert length <= 0x7FFF, "a string does not fit its field"
        put_i16(sink, <int16_t> length)
    else:
        assert length <= 0x7FFFFFFF, "a length does not fit its field"
        put_i32(sink, <int32_t> length)
    return 0


cdef inline int put_text(Sink* sink, object text) except -1:
    cdef Py_ssize_t size
    cdef const char* at = PyUnicode_AsUTF8AndSize(text, &size)
    put_length(sink, size, 2)
    return put_raw(sink, at, size)


cdef inline int put_no_tags(Sink* sink) except -1:
    if sink.flexible:
        put_i8(sink, 0)
    return 0


cdef inline int put_sized(Sink* sink, Py_ssize_t start) except -1:
    """Insert the size of what was written since `start` before it: a tagged field's size."""
    cdef Py_ssize_t size = sink.size - start
    cdef Py_ssize_t prefix = uvarint_size(size)
    room(sink, prefix)
    memmove(sink.at + start + prefix, sink.at + start, size)
    store_uvarint(sink.at + start, size)
    return 0


cdef inline bytes sink_bytes(Sink* sink):
    return PyBytes_FromStringAndSize(<char*> sink.at, sink.size)
