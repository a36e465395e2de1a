"""Conversion of bytes that may not be UTF-8 to valid text.  Inline only.

Invalid bytes become U+FFFD, one for each longest prefix of a broken character, as Unicode
recommends and Python's `errors="replace"` does.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy


cdef enum:
    # Bytes of output for one invalid byte.
    GROWTH_MAX = 3


cdef inline Py_ssize_t character(
    const uint8_t* at, const uint8_t* end, Py_ssize_t* good
) noexcept nogil:
    """Return the size of the character at `at`, and in `good` how many of its bytes are valid.

    For a valid one that is its size; for any other it is the length of the longest prefix that a
    valid one could have, at least one.
    """
    cdef uint8_t first = at[0], low = 0x80, high = 0xBF
    cdef Py_ssize_t size = 2
    good[0] = 1
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 2                # not the first byte of a character
    if first >= 0xE0:
        size = 3
        if first == 0xE0:
            low = 0xA0          # overlong encodings
        elif first == 0xED:
            high = 0x9F         # surrogates
        elif first >= 0xF0:
            size = 4
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F     # above U+10FFFF
    while good[0] < size and at + good[0] < end and low <= at[good[0]] <= high:
        good[0] += 1
        low, high = 0x80, 0xBF
    return size


cdef inline uint8_t* store_text(
    uint8_t* to, const uint8_t* at, Py_ssize_t size
) noexcept nogil:
    """Store valid text; return where the next text goes.  Needs GROWTH_MAX times the size."""
    cdef const uint8_t* end = at + size
    cdef Py_ssize_t good
    while at < end:
        if character(at, end, &good) == good:
            memcpy(to, at, good)
            to += good
        else:
            memcpy(to, b"\xEF\xBF\xBD", 3)
            to += 3
        at += good
    return to
