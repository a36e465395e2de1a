"""RecordScan: validates the records of one batch whose payload comes in pieces.

A compressed batch is decompressed a step at a time.  `feed` takes the output of one step, of any
size; a record that is incomplete at the end of a piece is kept until the rest of it has come, so a
scan holds one record at most.  A record longer than all that may still come is not kept: either the
payload ends before it, which is invalid, or the decompressor finds that the payload is too large.
The rules are those of `records.pyx`: `code` is 0 as long as they hold, and `end` returns the result
for the whole payload.

A scan also collects the first `hits_max` records whose timestamp is inside, or outside, a range, as
(offset delta, timestamp), the maximum timestamp of all records, and the first KEYLESS_MAX records
without a key.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from batch_layout cimport INVALID_RECORD, NONE, RECORD_SIZE_MIN
from record_walk cimport Record, take_record
from varint cimport VARINT32_SIZE_MAX, load_varint32


cdef enum:
    GIL_SIZE_MIN = 32 * 1024
    HITS_MAX = 100
    NO_TIMESTAMP = -1
    KEYLESS_MAX = 100


cdef struct Hit:
    int32_t offset_delta
    int64_t timestamp


cdef class RecordScan:
    cdef readonly int code
    cdef readonly int64_t max_timestamp
    cdef int64_t left, last_offset_delta, previous, base_timestamp
    cdef Py_ssize_t size_left           # maximum size of the rest of the payload
    cdef bint exceeds_payload           # a record began that is longer than size_left
    cdef int64_t low, high, offset_delta_min
    cdef bint inside
    cdef Hit hits_[HITS_MAX]
    cdef int hit_count, hits_max
    cdef int32_t keyless_[KEYLESS_MAX]  # offset deltas
    cdef readonly int64_t keyless_count
    # The record that was incomplete at the end of the last piece; its length may be, too.
    cdef uint8_t* partial
    cdef Py_ssize_t partial_size, partial_room
    cdef uint8_t head[VARINT32_SIZE_MAX]

    def __cinit__(
        self, int64_t count, int64_t last_offset_delta, Py_ssize_t size_max,
        int64_t base_timestamp=0,
    ):
        self.left = count
        self.last_offset_delta = last_offset_delta
        self.previous = -1
        self.base_timestamp = base_timestamp
        self.size_left = size_max
        self.max_timestamp = NO_TIMESTAMP
        self.code = INVALID_RECORD if count < 0 or last_offset_delta < -1 else NONE

    def __dealloc__(self):
        free(self.partial)

    def collect(
        self, int64_t low, int64_t high, *, bint inside, int64_t offset_delta_min=0,
        int hits_max=HITS_MAX,
    ):
        """Collect the first records from `offset_delta_min` on with a timestamp in `low` to `high`,
        or, without `inside`, outside of it."""
        assert 0 <= hits_max <= HITS_MAX
        self.low, self.high, self.inside = low, high, inside
        self.offset_delta_min = offset_delta_min
        self.hits_max = hits_max

    @property
    def hits(self) -> list:
        """Offset deltas and timestamps of the collected records."""
        return [(self.hits_[i].offset_delta, self.hits_[i].timestamp)
                for i in range(self.hit_count)]

    @property
    def keyless(self) -> list:
        """Offset deltas of the first records without a key; `keyless_count` is their number."""
        return [self.keyless_[i] for i in range(min(self.keyless_count, KEYLESS_MAX))]

    @property
    def hit_all(self) -> bool:
        """True if no more records will be collected."""
        return self.hit_count == self.hits_max

    def feed(self, piece) -> int:
        """Process the payload's next bytes; return `code`."""
        cdef Py_buffer view
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        if view.len < GIL_SIZE_MIN:
            self.walk(<const uint8_t*> view.buf, view.len)
        else:
            with nogil:
                self.walk(<const uint8_t*> view.buf, view.len)
        PyBuffer_Release(&view)
        if self.code < 0:
            raise MemoryError
        return self.code

    def end(self) -> int:
        """Return the error code of the whole payload, which has ended."""
        if self.code == NONE and (self.left or self.partial_size or self.exceeds_payload):
            self.code = INVALID_RECORD
        return self.code

    cdef void walk(self, const uint8_t* at, Py_ssize_t size) noexcept nogil:
        cdef const uint8_t* end = at + size
        cdef const uint8_t* after
        cdef Record record
        if self.code or self.exceeds_payload:
            return
        self.size_left = max(0, self.size_left - size)
        if self.partial_size and at != end:
            at = self.complete_partial(at, end)
            if at == NULL:
                return
        while at != end:
            after = take_record(at, end, &record) if self.left else NULL
            if after == NULL:
                self.keep_partial(at, end)
                return
            if not self.check_record(&record):
                return
            at = after

    cdef bint check_record(self, Record* record) noexcept nogil:
        """Return whether this record is valid at its position."""
        cdef int64_t timestamp
        cdef Hit* hit
        if record.offset_delta <= self.previous or record.offset_delta > self.last_offset_delta:
            self.code = INVALID_RECORD
            return False
        self.previous = record.offset_delta
        self.left -= 1
        if record.key.size < 0:
            if self.keyless_count < KEYLESS_MAX:
                self.keyless_[self.keyless_count] = record.offset_delta
            self.keyless_count += 1
        # Overflow wraps as in Java, whose consumers compute the same timestamp.
        timestamp = <int64_t> (<uint64_t> self.base_timestamp + <uint64_t> record.timestamp_delta)
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if self.hit_count < self.hits_max and record.offset_delta >= self.offset_delta_min:
            if (self.low <= timestamp <= self.high) == self.inside and (
                self.inside or timestamp != NO_TIMESTAMP
            ):
                hit = &self.hits_[self.hit_count]
                hit.offset_delta = record.offset_delta
                hit.timestamp = timestamp
                self.hit_count += 1
        return True

    cdef void keep_partial(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """Copy the beginning of an incomplete record, unless it is invalid."""
        cdef int32_t length
        cdef Py_ssize_t taken = load_varint32(at, end, &length)
        self.code = INVALID_RECORD
        if self.left == 0:
            return
        if taken == 0:
            # Even its length is incomplete.
            if end - at >= VARINT32_SIZE_MAX:
                return
            memcpy(self.head, at, end - at)
            self.partial_size = end - at
            self.code = NONE
            return
        if length < RECORD_SIZE_MIN - 1 or length <= end - at - taken:
            return
        if length - (end - at - taken) > self.size_left:
            self.exceeds_payload = True
            self.code = NONE
            return
        if self.make_room(taken + length):
            memcpy(self.partial, at, end - at)
            self.partial_size = end - at
            self.code = NONE

    cdef bint make_room(self, Py_ssize_t size) noexcept nogil:
        """Allocate memory for this record only."""
        free(self.partial)
        self.partial = <uint8_t*> malloc(size)
        self.partial_room = size
        if self.partial == NULL:
            self.code = -1
        return self.partial != NULL

    cdef const uint8_t* complete_partial(
        self, const uint8_t* at, const uint8_t* end
    ) noexcept nogil:
        """Complete the partial record; return what follows it, NULL if it is still incomplete."""
        cdef int32_t length
        cdef Py_ssize_t taken, size
        cdef Record record
        if self.partial_room == 0:
            # Its length first, byte by byte.
            taken = 0
            while taken == 0:
                if at == end:
                    return NULL
                if self.partial_size == VARINT32_SIZE_MAX:
                    self.code = INVALID_RECORD
                    return NULL
                self.head[self.partial_size] = at[0]
                self.partial_size += 1
                at += 1
                taken = load_varint32(self.head, self.head + self.partial_size, &length)
            if length < RECORD_SIZE_MIN - 1:
                self.code = INVALID_RECORD
                return NULL
            if length > end - at + self.size_left:
                self.exceeds_payload = True
                return NULL
            if not self.make_room(taken + length):
                return NULL
            memcpy(self.partial, self.head, taken)
        size = min(self.partial_room - self.partial_size, end - at)
        memcpy(self.partial + self.partial_size, at, size)
        self.partial_size += size
        if self.partial_size < self.partial_room:
            return NULL
        if take_record(self.partial, self.partial + self.partial_size, &record) == NULL:
            self.code = INVALID_RECORD
            return NULL
        self.partial_size = self.partial_room = 0
        return at + size if self.check_record(&record) else NULL
