"""Parsing of the frames of a gateway's message (kafkalite/gateway/README.md).  Inline only.

Frames are untrusted until measured: a `measure_` function walks over a frame once and returns False
if it is invalid; a measured frame is then walked over without further checks.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from big_endian cimport load_u32
from field_store cimport Field, field_size, number_size, store_field, store_number


cdef enum:
    TOPIC = 0
    KEY = 1
    VALUE = 2
    HEADERS = 3
    TIMESTAMP = 4
    PARTITION = 5
    BODY_FRAMES_MAX = 6
    # A message of two frames is a topic and a pack.
    PACK_FRAMES = 2
    PACK = 1

    MARK_SIZE = 4
    LENGTH_SIZE = 4
    NULL_SIZE = 0xFFFFFFFF
    DIGITS_MAX = 18


cdef struct Body:
    Field frames[BODY_FRAMES_MAX]
    int count


cdef inline bint read_digits(Field frame, int64_t* number) noexcept nogil:
    """Read a decimal number; an empty frame is valid and gives -1."""
    cdef int64_t place
    number[0] = -1
    if not frame.size:
        return True
    if frame.size > DIGITS_MAX:
        return False
    number[0] = 0
    for place in range(frame.size):
        if not c'0' <= frame.at[place] <= c'9':
            return False
        number[0] = 10 * number[0] + (frame.at[place] - c'0')
    return True


cdef inline const uint8_t* take_length(const uint8_t* at, Field* field) noexcept nogil:
    """Read a length and its bytes, which must exist; return what follows."""
    cdef uint32_t size = load_u32(at)
    field.at = at + LENGTH_SIZE
    field.size = -1 if size == NULL_SIZE else size
    return field.at + max(field.size, 0)


cdef inline bint has_field(const uint8_t* at, const uint8_t* end, bint nullable) noexcept nogil:
    """Return whether a length and as many bytes are before `end`."""
    cdef uint32_t size
    if end - at < LENGTH_SIZE:
        return False
    size = load_u32(at)
    if size == NULL_SIZE:
        return nullable
    return size <= end - at - LENGTH_SIZE


cdef inline bint measure_headers(Field frame, int64_t* count, int64_t* size) noexcept nogil:
    """Return in `count` and `size` the number of headers and their size in a record, with the count
    before them; False if the frame does not hold headers."""
    cdef const uint8_t* at = frame.at
    cdef const uint8_t* end = frame.at + frame.size
    cdef Field name, value
    count[0] = size[0] = 0
    while at < end:
        if not has_field(at, end, False):
            return False
        at = take_length(at, &name)
        if not has_field(at, end, True):
            return False
        at = take_length(at, &value)
        count[0] += 1
        size[0] += field_size(name) + field_size(value)
    size[0] += number_size(count[0])
    return True


cdef inline void store_headers(uint8_t* at, Field frame, int64_t count) noexcept nogil:
    cdef const uint8_t* read = frame.at
    cdef Field name, value
    cdef int64_t _
    at = store_number(at, count)
    for _ in range(count):
        read = take_length(take_length(read, &name), &value)
        at = store_field(store_field(at, name), value)


cdef inline bint measure_pack(Field frame, bint* keyed, int64_t* largest) noexcept nogil:
    """Return in `keyed` whether entries have keys, in `largest` the size of the largest; False if
    the frame is not a valid pack."""
    cdef const uint8_t* at = frame.at + MARK_SIZE
    cdef const uint8_t* end = frame.at + frame.size
    cdef Field key, value
    largest[0] = 0
    if frame.size <= MARK_SIZE:
        return False
    keyed[0] = not memcmp(frame.at, b"KLK1", MARK_SIZE)
    if not keyed[0] and memcmp(frame.at, b"KLV1", MARK_SIZE):
        return False
    key.size = 0
    while at < end:
        if keyed[0]:
            if not has_field(at, end, False):
                return False
            at = take_length(at, &key)
        if not has_field(at, end, False):
            return False
        at = take_length(at, &value)
        largest[0] = max(largest[0], key.size + value.size)
    return True


# Frames as Python objects.


cdef enum:
    # Memory that a parked frame takes besides its bytes.
    PARKED_FRAME_SIZE = 64


cdef inline bytes bytes_of(Field field):
    return PyBytes_FromStringAndSize(<const char*> field.at, field.size)


cdef inline int64_t load_parked(tuple frames, Body* body):
    """Load parked frames into `body`; return the size that they were counted as."""
    cdef bytes frame
    cdef int64_t size = 0
    body.count = 0
    for frame in frames:
        body.frames[body.count].at = <const uint8_t*> PyBytes_AS_STRING(frame)
        body.frames[body.count].size = PyBytes_GET_SIZE(frame)
        size += PyBytes_GET_SIZE(frame) + PARKED_FRAME_SIZE
        body.count += 1
    return size
