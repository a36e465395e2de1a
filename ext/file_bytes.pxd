"""A file's bytes by position, and where they end: what follows may be a hole.  Inline only.

A hole is read as zeros.  It is a range that was never written, or space that was set aside.
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
    """The bytes read, fewer only at the file's end; -1 when reading failed."""
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
    """Return where the hole begins that reaches to `end`; `end` itself if nobody can say.

    A hole is not read: to have the kernel make pages of zeros for each of a thousand logs takes
    longer than all the rest.
    """
    cdef int64_t hole, data = position
    cdef int ranges = 0
    if lseek(fd, 0, SEEK_END) < end:
        return end                      # a shorter file ends in a hole, too
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
