"""Loads and stores in Kafka's byte order, at any alignment.  Inline only: see _ext/__init__.py.

Both platforms the broker runs on are little-endian, so each of these is one load and one swap.
"""

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy


cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "big_endian.pxd swaps bytes always: it wants a little-endian machine"
    #endif
    """
    uint16_t __builtin_bswap16(uint16_t) noexcept nogil
    uint32_t __builtin_bswap32(uint32_t) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t) noexcept nogil


cdef inline int16_t load_i16(const uint8_t* at) noexcept nogil:
    cdef uint16_t raw
    memcpy(&raw, at, 2)
    return <int16_t> __builtin_bswap16(raw)


cdef inline uint16_t load_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t> load_i16(at)


cdef inline int32_t load_i32(const uint8_t* at) noexcept nogil:
    cdef uint32_t raw
    memcpy(&raw, at, 4)
    return <int32_t> __builtin_bswap32(raw)


cdef inline uint32_t load_u32(const uint8_t* at) noexcept nogil:
    return <uint32_t> load_i32(at)


cdef inline int64_t load_i64(const uint8_t* at) noexcept nogil:
    cdef uint64_t raw
    memcpy(&raw, at, 8)
    return <int64_t> __builtin_bswap64(raw)


cdef inline void store_i16(uint8_t* at, int16_t value) noexcept nogil:
    cdef uint16_t raw = __builtin_bswap16(<uint16_t> value)
    memcpy(at, &raw, 2)


cdef inline void store_i32(uint8_t* at, int32_t value) noexcept nogil:
    cdef uint32_t raw = __builtin_bswap32(<uint32_t> value)
    memcpy(at, &raw, 4)


cdef inline void store_u32(uint8_t* at, uint32_t value) noexcept nogil:
    store_i32(at, <int32_t> value)


cdef inline void store_i64(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint64_t raw = __builtin_bswap64(<uint64_t> value)
    memcpy(at, &raw, 8)
