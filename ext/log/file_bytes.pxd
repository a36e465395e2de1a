"""Reads of a file by position, and the position at which its data ends.  Inline only.

A hole reads as zeros.  It is a range that was never written, or preallocated space.
"""

from libc.errno cimport EINTR, ENXIO, errno
from libc.stdint cimport int64_t, uint8_t
from posix.types cimport off_t
from posix.unistd cimport pread

cdef extern from "<unistd.h>" nogil:
    off_t lseek(int fd, off_t offset, int whence)
    int SEEK_END, SEEK_HOLE, SEEK_DATA


cdef enum:
    DATA_RANGES_MAX = 16


cdef inline Py_ssize_t pread_whole(
    int fd, uint8_t* into, Py_ssize_t size, int64_t position
) noexcept nogil:
    """Return the number of bytes read, fewer only at the file's end; -1 if the read failed."""
    cdef Py_ssize_t done = 0, got
    while done < size:
        got = pread(fd, into + done, size - done, <off_t> (position + done))
        if got < 0:
            if errno == EINTR:
                continue
            return -1
        if got == 0:
            break
        done += got
    return done


cdef inline int64_t data_end_of(int fd, int64_t position, int64_t end) noexcept nogil:
    """Return the start of the hole that reaches to `end`; `end` itself if it is not known.

    Holes are not read: for a thousand logs, having the kernel make pages of zeros takes longer than
    everything else.
    """
    cdef int64_t hole, data = position
    cdef int ranges = 0
    if lseek(fd, 0, SEEK_END) < end:
        return end                      # the end of a shorter file would count as a hole
    while ranges < DATA_RANGES_MAX:
        hole = lseek(fd, <off_t> data, SEEK_HOLE)
        if hole < 0 or hole >= end:
            return end
        data = lseek(fd, <off_t> hole, SEEK_DATA)
        if data < 0:
            return hole if errno == ENXIO else end
        if data >= end:
            return hole
        ranges += 1
    return end
