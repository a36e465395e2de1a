"""MurmurHash2 with Kafka's seed: the hash by which Kafka's clients partition keys.  Inline only.

Java takes four bytes at a time, lowest first, which is a plain load here.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy


cdef enum:
    MULTIPLIER = 0x5BD1E995
    SEED = 0x9747B28C
    SHIFT = 24


cdef inline int32_t murmur2(const uint8_t* key, int64_t size) noexcept nogil:
    cdef uint32_t hashed = <uint32_t> SEED ^ <uint32_t> size
    cdef uint32_t four
    cdef const uint8_t* tail = key + (size & ~3)
    while key < tail:
        memcpy(&four, key, 4)
        four *= <uint32_t> MULTIPLIER
        four ^= four >> SHIFT
        four *= <uint32_t> MULTIPLIER
        hashed = hashed * <uint32_t> MULTIPLIER ^ four
        key += 4
    if size & 3:
        if size & 3 == 3:
            hashed ^= <uint32_t> tail[2] << 16
        if size & 2:
            hashed ^= <uint32_t> tail[1] << 8
        hashed = (hashed ^ tail[0]) * <uint32_t> MULTIPLIER
    hashed ^= hashed >> 13
    hashed *= <uint32_t> MULTIPLIER
    return <int32_t> (hashed ^ hashed >> 15)


cdef inline int32_t partition_of(const uint8_t* key, int64_t size, int32_t count) noexcept nogil:
    """Return the partition of a key, the same as every Kafka client's."""
    return (murmur2(key, size) & 0x7FFFFFFF) % count
