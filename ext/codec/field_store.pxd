"""Fast stores of the fields of a record.  Inline only.

Numbers are encoded as in varint.pxd, with separate code for those of one to three bytes, which
nearly all in a batch are.  Fields are copied in steps of fixed size, the last of which overlaps the
one before it: a call of memcpy costs as much as copying a hundred bytes.  No byte outside the field
is touched.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from varint cimport store_uvarint, zigzag


cdef extern from *:
    """
    /* Bytes of seven bits each: 9/64 stands for 1/7, near enough for up to 64 bits. */
    static inline int64_t kafkalite_number_size(uint64_t value) {
        return (9 * (63 - __builtin_clzll(value | 1)) + 73) >> 6;
    }
    """
    int64_t kafkalite_number_size(uint64_t value) noexcept nogil


cdef enum:
    COPY_SIZE_MAX = 1024    # above it memcpy is faster


cdef struct Field:
    const uint8_t* at
    int64_t size    # -1: null


cdef inline int64_t number_size(int64_t value) noexcept nogil:
    return kafkalite_number_size(zigzag(value))


cdef inline int64_t field_size(Field field) noexcept nogil:
    return number_size(field.size) + (field.size if field.size > 0 else 0)


cdef inline uint8_t* store_number(uint8_t* at, int64_t value) noexcept nogil:
    """Store a signed number; return where the next byte goes."""
    cdef uint64_t raw = zigzag(value)
    if raw < 0x80:
        at[0] = <uint8_t> raw
        return at + 1
    if raw < 0x4000:
        at[0] = <uint8_t> (raw | 0x80)
        at[1] = <uint8_t> (raw >> 7)
        return at + 2
    if raw < 0x200000:
        at[0] = <uint8_t> (raw | 0x80)
        at[1] = <uint8_t> (raw >> 7 | 0x80)
        at[2] = <uint8_t> (raw >> 14)
        return at + 3
    return store_uvarint(at, raw)


cdef inline void copy(uint8_t* to, const uint8_t* at, int64_t size) noexcept nogil:
    cdef const uint8_t* last
    cdef uint8_t* to_last
    if size > COPY_SIZE_MAX:
        memcpy(to, at, size)
    elif size >= 32:
        last = at + size - 32
        to_last = to + size - 32
        while at < last:
            memcpy(to, at, 32)
            at += 32
            to += 32
        memcpy(to_last, last, 32)
    elif size >= 16:
        memcpy(to, at, 16)
        memcpy(to + size - 16, at + size - 16, 16)
    elif size >= 8:
        memcpy(to, at, 8)
        memcpy(to + size - 8, at + size - 8, 8)
    elif size >= 4:
        memcpy(to, at, 4)
        memcpy(to + size - 4, at + size - 4, 4)
    elif size > 0:
        to[0] = at[0]
        to[size >> 1] = at[size >> 1]
        to[size - 1] = at[size - 1]


cdef inline uint8_t* store_field(uint8_t* at, Field field) noexcept nogil:
    """Store a field with its length; return where the next byte goes."""
    at = store_number(at, field.size)
    if field.size <= 0:
        return at
    copy(at, field.at, field.size)
    return at + field.size
