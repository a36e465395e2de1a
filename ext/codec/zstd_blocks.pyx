"""Divides zstd frames between blocks (RFC 8878, section 3.1).

zstd's decoder does not bound the output of one call, and four bytes can stand for a block of
128 KiB.  A block's output is at most that, though, so passing a few blocks at a time to the decoder
bounds the output.  Nothing else is validated here; the decoder does that.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t


cdef enum:
    MAGIC = 0xFD2FB528
    SKIPPABLE = 0x184D2A50
    BLOCK_SIZE_MAX = 128 * 1024
    RAW = 0
    RLE = 1
    RESERVED = 3


cdef uint32_t load_little(const uint8_t* at, int size) noexcept nogil:
    cdef uint32_t value = 0
    cdef int i
    for i in range(size):
        value |= <uint32_t> at[i] << (8 * i)
    return value


cdef Py_ssize_t header_size(uint8_t descriptor) noexcept nogil:
    """Return the size of a frame's header after the magic number and the descriptor."""
    cdef bint single = descriptor >> 5 & 1
    cdef int content = descriptor >> 6
    cdef int dictionary = descriptor & 3
    return (
        (0 if single else 1)
        + (4 if dictionary == 3 else dictionary)
        + ((1 if single else 0) if content == 0 else 1 << content)
    )


cdef Py_ssize_t take_blocks(
    const uint8_t* start, Py_ssize_t size, Py_ssize_t position, Py_ssize_t output_max, bint* last
) noexcept nogil:
    """Return the end of the next blocks of a frame with output up to `output_max`, or -1."""
    cdef Py_ssize_t made = 0
    cdef Py_ssize_t first = position
    cdef Py_ssize_t length, makes
    cdef uint32_t head
    cdef int kind
    last[0] = False
    while not last[0]:
        if size - position < 3:
            return -1
        head = load_little(start + position, 3)
        kind = head >> 1 & 3
        length = head >> 3
        makes = BLOCK_SIZE_MAX if kind > RLE else length
        if kind == RESERVED or length > BLOCK_SIZE_MAX:
            return -1
        if made + makes > output_max and position != first:
            return position
        made += makes
        position += 3 + (1 if kind == RLE else length)
        if position > size:
            return -1
        last[0] = head & 1
    return position


def divide(payload, Py_ssize_t output_max, Py_ssize_t frames_max):
    """Divide the payload into parts with an output of at most `output_max` bytes each.

    Returns a list of (end position, True if a frame ends there).  Returns None if the payload is
    not a sequence of complete frames, or has more than `frames_max`: a skippable frame takes eight
    bytes of the payload and ten times as many in the list.
    """
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef Py_ssize_t size, position = 0, frames = 0
    cdef uint32_t magic
    cdef uint8_t descriptor
    cdef bint last
    cdef list parts = []
    assert output_max >= BLOCK_SIZE_MAX
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        at, size = <const uint8_t*> view.buf, view.len
        while position < size:
            frames += 1
            if frames > frames_max or size - position < 8:
                return None
            magic = load_little(at + position, 4)
            if magic & 0xFFFFFFF0 == SKIPPABLE:
                position += 8 + <Py_ssize_t> load_little(at + position + 4, 4)
                if position > size:
                    return None
                parts.append((position, True))
                continue
            if magic != MAGIC:
                return None
            descriptor = at[position + 4]
            position += 5 + header_size(descriptor)
            last = False
            while not last:
                position = take_blocks(at, size, position, output_max, &last)
                if position < 0:
                    return None
                if last and descriptor & 4:
                    position += 4
                    if position > size:
                        return None
                parts.append((position, last))
        return parts
    finally:
        PyBuffer_Release(&view)
