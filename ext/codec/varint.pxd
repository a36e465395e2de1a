"""Variable-length integers, seven bits a byte, lowest first.  Inline only.

A loader gets the end of its bytes and never reads past it.  It returns the size of the number in
bytes, or 0 if the bytes end inside it or it does not fit the requested width: five bytes hold 32
bits and ten hold 64, and in the last of them only 4 bits, or 1, may be set.  Shorter zero-padded
encodings are accepted, as in Kafka's own readers.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef enum:
    VARINT32_SIZE_MAX = 5
    VARINT64_SIZE_MAX = 10


cdef inline Py_ssize_t load_uvarint32(
    const uint8_t* at, const uint8_t* end, uint32_t* value
) noexcept nogil:
    cdef uint32_t got = 0
    cdef Py_ssize_t size = 0
    cdef uint8_t byte
    while size < VARINT32_SIZE_MAX and at + size < end:
        byte = at[size]
        if size == VARINT32_SIZE_MAX - 1 and byte > 0x0F:
            return 0
        got |= <uint32_t> (byte & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            value[0] = got
            return size
    return 0


cdef inline Py_ssize_t load_uvarint64(
    const uint8_t* at, const uint8_t* end, uint64_t* value
) noexcept nogil:
    cdef uint64_t got = 0
    cdef Py_ssize_t size = 0
    cdef uint8_t byte
    while size < VARINT64_SIZE_MAX and at + size < end:
        byte = at[size]
        if size == VARINT64_SIZE_MAX - 1 and byte > 0x01:
            return 0
        got |= <uint64_t> (byte & 0x7F) << (7 * size)
        size += 1
        if byte < 0x80:
            value[0] = got
            return size
    return 0


cdef inline int64_t unzigzag(uint64_t value) noexcept nogil:
    return <int64_t> ((value >> 1) ^ (0 - (value & 1)))


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline Py_ssize_t load_varint32(
    const uint8_t* at, const uint8_t* end, int32_t* value
) noexcept nogil:
    cdef uint32_t raw
    cdef Py_ssize_t size
    # Most numbers of a record take one or two bytes, so these are tried first.
    if at < end and at[0] < 0x80:
        value[0] = <int32_t> unzigzag(at[0])
        return 1
    if end - at >= 2 and at[1] < 0x80:
        value[0] = <int32_t> unzigzag((at[0] & 0x7F) | <uint32_t> at[1] << 7)
        return 2
    size = load_uvarint32(at, end, &raw)
    if size:
        value[0] = <int32_t> unzigzag(raw)
    return size


cdef inline Py_ssize_t load_varint64(
    const uint8_t* at, const uint8_t* end, int64_t* value
) noexcept nogil:
    cdef uint64_t raw
    cdef Py_ssize_t size
    if at < end and at[0] < 0x80:
        value[0] = unzigzag(at[0])
        return 1
    if end - at >= 2 and at[1] < 0x80:
        value[0] = unzigzag((at[0] & 0x7F) | <uint32_t> at[1] << 7)
        return 2
    size = load_uvarint64(at, end, &raw)
    if size:
        value[0] = unzigzag(raw)
    return size


cdef inline Py_ssize_t uvarint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline Py_ssize_t varint_size(int64_t value) noexcept nogil:
    return uvarint_size(zigzag(value))


cdef inline uint8_t* store_uvarint(uint8_t* at, uint64_t value) noexcept nogil:
    """Store an unsigned number; return where the next byte goes."""
    while value >= 0x80:
        at[0] = <uint8_t> (value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t> value
    return at + 1


cdef inline uint8_t* store_varint(uint8_t* at, int64_t value) noexcept nogil:
    return store_uvarint(at, zigzag(value))
