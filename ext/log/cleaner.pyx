"""The log cleaner's work per record: an offset map of keys, and the filter of batches.

    BatchReader     takes whole, valid batches from a segment file, a window at a time
    OffsetMap       key → last offset: digest (16 bytes, XXH3-128) and offset + 1 (8 bytes) a slot,
                    open addressing, in one block that is allocated once
    BatchFilter     drops the records that have later ones, rewrites their batches into a buffer of
                    output, and collects the index entries of the new segment

Both loops run without the GIL over uncompressed batches and return at each batch about which
storage/compaction/cleaning.py decides: compressed ones, those of transactions, and empty ones.

Two keys with the same digest would be one key, as in Apache Kafka, whose digest is MD5.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from batch_check cimport check_batch, crc32c
from batch_layout cimport *
from batch_walk cimport Batch, timestamp_of
from big_endian cimport load_i16, load_i32, load_i64, store_i16, store_i32, store_i64, store_u32
from byte_array cimport Bytes, reserve
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from file_bytes cimport pread_whole
from record_walk cimport Record, take_record
from varint cimport load_varint32, load_varint64, store_varint, varint_size

cdef extern from "xxh3.h" nogil:
    ctypedef struct xxh3_digest:
        uint64_t low
        uint64_t high
    xxh3_digest xxh3_128(const uint8_t* at, size_t size)
    uint64_t xxh3_scaled(uint64_t hash, uint64_t count)

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* at, size_t size, int protection, int flags, int fd, long offset)
    int munmap(void* at, size_t size)
    int madvise(void* at, size_t size, int advice)
    void* MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MADV_HUGEPAGE

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void* at) noexcept nogil


cdef enum:
    WINDOW_SIZE_MIN = 16 * 1024
    KEYS_AHEAD = 32
    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12
    FILE_SIZE_MAX = 0x7FFFFFFF
    # Re-encoding a timestamp delta adds at most nine bytes to it and four to the record's length.
    REBASED_GROWTH_MAX = 13

cdef enum:
    STORAGE_ERROR_ = 56
    AT_END_ = -1
    TORN_ = -2
    WINDOW_ = -3
    FULL_ = -4
    DECIDE_ = -5
    ROLL_ = -6
    NO_MEMORY_ = -7
    UNCHANGED_ = 0
    REWRITTEN_ = -8
    EMPTIED_ = -9

WHOLE = NONE
DAMAGED = CORRUPT_MESSAGE
STORAGE_ERROR = STORAGE_ERROR_
AT_END = AT_END_
TORN = TORN_
WINDOW = WINDOW_
FULL = FULL_
DECIDE = DECIDE_
ROLL = ROLL_
UNCHANGED = UNCHANGED_
REWRITTEN = REWRITTEN_
EMPTIED = EMPTIED_


cdef class BatchReader:
    """The batches of one segment file at a time; the current one stays until `skip`."""

    cdef int fd
    cdef int64_t end, window_at
    cdef readonly int64_t position
    cdef Bytes window
    cdef const uint8_t* batch
    cdef Batch fields
    cdef bint has_batch
    cdef readonly Py_ssize_t window_size

    def __cinit__(self, Py_ssize_t window_size):
        self.window_size = max(window_size, <Py_ssize_t> WINDOW_SIZE_MIN)
        if not reserve(&self.window, self.window_size):
            raise MemoryError
        self.fd = -1

    def __dealloc__(self):
        free(self.window.at)

    def open(self, int fd, int64_t position, int64_t end):
        """Begin at a position of a file, whose batches end at `end`."""
        assert 0 <= position <= end
        self.fd, self.position, self.window_at, self.end = fd, position, position, end
        self.window.size = 0
        self.has_batch = False

    cdef int fill(self, Py_ssize_t wanted) noexcept nogil:
        """Read a window that begins at the position and has at least `wanted` bytes."""
        cdef Py_ssize_t size = <Py_ssize_t> min(
            <int64_t> max(wanted, self.window_size), self.end - self.position
        )
        self.window.size = 0
        self.window_at = self.position
        if not reserve(&self.window, size):
            return NO_MEMORY_
        self.window.size = pread_whole(self.fd, self.window.at, size, self.position)
        if self.window.size < 0:
            self.window.size = 0
            return STORAGE_ERROR_
        return NONE if self.window.size >= wanted else TORN_

    cdef int next(self) noexcept nogil:
        """Take the batch at the position, unless one is current."""
        cdef int code = NONE
        cdef int64_t left = self.end - self.position, at = self.position - self.window_at
        cdef Batch* fields = &self.fields
        cdef const uint8_t* batch
        cdef int32_t delta
        if self.has_batch:
            return NONE
        if left == 0:
            return AT_END_
        if left < HEADER_SIZE:
            return TORN_
        if self.window.size - at < HEADER_SIZE:
            code = self.fill(HEADER_SIZE)
            at = 0
        if code:
            return code
        fields.size = <Py_ssize_t> load_i32(self.window.at + at + BATCH_LENGTH) + PREFIX_SIZE
        if fields.size < HEADER_SIZE:
            return CORRUPT_MESSAGE
        if fields.size > left:
            return TORN_
        if self.window.size - at < fields.size:
            code = self.fill(fields.size)
            at = 0
        if code:
            return code
        batch = self.window.at + at
        code = check_batch(batch, fields.size)
        if code:
            return CORRUPT_MESSAGE
        delta = load_i32(batch + LAST_OFFSET_DELTA)
        fields.base_offset = load_i64(batch + BASE_OFFSET)
        fields.last_offset = fields.base_offset + delta
        fields.attributes = load_i16(batch + ATTRIBUTES)
        fields.base_timestamp = load_i64(batch + BASE_TIMESTAMP)
        fields.max_timestamp = load_i64(batch + MAX_TIMESTAMP)
        fields.count = load_i32(batch + RECORD_COUNT)
        if fields.base_offset < 0 or delta < 0 or fields.count < 0:
            return CORRUPT_MESSAGE
        self.batch = batch
        self.has_batch = True
        return NONE

    cdef void pass_batch(self) noexcept nogil:
        self.position += self.fields.size
        self.has_batch = False

    def skip(self):
        """Pass over the current batch."""
        assert self.has_batch
        self.pass_batch()

    def batch_bytes(self) -> bytes:
        """Return the current batch."""
        assert self.has_batch
        return (<const char*> self.batch)[:self.fields.size]

    @property
    def is_at_last(self) -> bool:
        """True if the current batch is the last one of the file."""
        return self.has_batch and self.position + self.fields.size == self.end


include "offset_map.pxi"
include "batch_filter.pxi"


def digest(key) -> bytes:
    """Return the XXH3-128 of a key, as its canonical 16 bytes."""
    cdef Py_buffer view
    cdef xxh3_digest found
    cdef uint8_t[16] canonical
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    found = xxh3_128(<const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    store_i64(canonical, <int64_t> found.high)
    store_i64(canonical + 8, <int64_t> found.low)
    return (<const char*> canonical)[:16]
