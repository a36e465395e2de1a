"""Text out of bytes that may not be any.  Inline only.

What is not UTF-8 becomes U+FFFD, one for each longest start of a character that was broken off, as
Unicode recommends it and as Python's `errors="replace"` does it.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy


cdef enum:
    # What one bad byte may become.
    GROWTH_MAX = 3


cdef inline Py_ssize_t character(
    const uint8_t* at, const uint8_t* end, Py_ssize_t* good
) noexcept nogil:
    """How many bytes the character takes that begins at `at`, and how many of them are good.

    A whole one is all good; of any other as many as a whole one could begin with, at least one.
    """
    cdef uint8_t first = at[0], low = 0x80, high = 0xBF
    cdef Py_ssize_t size = 2
    good[0] = 1
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 2                # no character begins like this
    if first >= 0xE0:
        size = 3
        if first == 0xE0:
            low = 0xA0          # shorter ones exist
        elif first == 0xED:
            high = 0x9F         # halves of pairs
        elif first >= 0xF0:
            size = 4
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F     # beyond the last one
    while good[0] < size and at + good[0] < end and low <= at[good[0]] <= high:
        good[0] += 1
        low, high = 0x80, 0xBF
    return size


cdef inline uint8_t* store_text(
    uint8_t* to, const uint8_t* at, Py_ssize_t size
) noexcept nogil:
    """Where the next text goes; there must be room for GROWTH_MAX times the size."""
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
