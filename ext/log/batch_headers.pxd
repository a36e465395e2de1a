"""Headers of the batches of a segment file, read through a window of the file.  Inline only."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport malloc

from batch_layout cimport *
from big_endian cimport load_i32, load_i64
from file_bytes cimport pread_whole

cdef enum:
    # Holds the walk from one index entry to the next if batches are small.
    WINDOW_SIZE = 8 * 1024
    EMPTY_LENGTH = HEADER_SIZE - PREFIX_SIZE

# Result codes of a walk.  NONE and CORRUPT_MESSAGE are Kafka's, and so is the storage error for a
# failed read.  The others apply to files only: three kinds of end, and a valid batch after a gap.
cdef enum:
    STORAGE_ERROR_ = 56
    AT_END_ = -1
    TORN_ = -2
    ZEROS_ = -3
    GAP_ = -4


cdef struct Window:
    int fd
    int64_t end
    int64_t position
    Py_ssize_t filled
    uint8_t bytes[WINDOW_SIZE]


cdef struct Header:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    bint is_empty


cdef inline bint is_empty(const uint8_t* batch) noexcept nogil:
    """Return whether compaction has removed all records of a batch."""
    return load_i32(batch + RECORD_COUNT) == 0 and load_i32(batch + BATCH_LENGTH) == EMPTY_LENGTH


cdef inline int read_header(Window* window, int64_t position, Header* header) noexcept nogil:
    """Read the header at a position; return WHOLE, AT_END, TORN, DAMAGED or STORAGE_ERROR."""
    cdef const uint8_t* at
    cdef int32_t length, delta
    cdef Py_ssize_t wanted
    header.position = position
    if position == window.end:
        return AT_END_
    if window.end - position < HEADER_SIZE:
        return TORN_
    if position < window.position or position + HEADER_SIZE > window.position + window.filled:
        wanted = min(WINDOW_SIZE, window.end - position)
        window.position = position
        window.filled = pread_whole(window.fd, window.bytes, wanted, position)
        if window.filled < 0:
            window.filled = 0
            return STORAGE_ERROR_
        if window.filled < HEADER_SIZE:
            return TORN_
    at = window.bytes + (position - window.position)
    length = load_i32(at + BATCH_LENGTH)
    delta = load_i32(at + LAST_OFFSET_DELTA)
    header.size = <int64_t> length + PREFIX_SIZE
    header.base_offset = load_i64(at + BASE_OFFSET)
    header.is_empty = is_empty(at)
    # A batch that compaction has emptied keeps the time of records that it no longer has.
    header.max_timestamp = -1 if header.is_empty else load_i64(at + MAX_TIMESTAMP)
    if header.size < HEADER_SIZE or at[MAGIC] != CURRENT_MAGIC or delta < 0:
        return CORRUPT_MESSAGE
    if header.base_offset < 0 or header.base_offset >= INT64_MAX - delta:
        return CORRUPT_MESSAGE          # no offset would be left after its last one
    header.last_offset = header.base_offset + delta
    if position + header.size > window.end:
        return TORN_
    return NONE


cdef inline Window* new_window(int fd, int64_t end) except NULL:
    cdef Window* window = <Window*> malloc(sizeof(Window))
    if window == NULL:
        raise MemoryError
    window.fd = fd
    window.end = end
    window.position = 0
    window.filled = 0
    return window
