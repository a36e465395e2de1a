"""Shared-memory ring between one producer and one worker: frames one way, responses the other.

    RingWriter   the producer's end: reserve, write the batch in place, commit; take_acks
    RingReader   the worker's end: take, respond

Neither end trusts the other.  The worker reads a frame's size once into a local variable, checks it
against its own position, copies the frame out, frees its space and validates only the copy, so
later writes of the producer have no effect.  It never reads back what it wrote to shared memory.
A frame that violates the layout (ring_layout.pxd) gives an error number, and the ring cannot be
used any more; there is no other handling of invalid producers.  The producer computes every address
from its own position, so invalid counters of the worker raise RingError and never cause a write
outside the ring.

A frame exists once its first word is published, so a producer that dies while writing has written
nothing.

No call blocks, except `RingWriter.spin`.  A side calls `begin_sleep` before it sleeps on its
descriptor.  True means that nothing has arrived since the sleep flag was set; from then on, the
other side's calls return True when they must wake it.  A side waits for new data or, if the ring is
full, for space, and is woken only for what it waits for.

Neither end is thread-safe.  A producer's end cannot be used in a forked process.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ring_layout cimport *


cdef extern from "crc32c.h":
    uint32_t crc32c(const uint8_t* at, size_t size) noexcept nogil


cdef extern from "ring_atomics.h":
    uint32_t ring_load_u32(const uint8_t* at) noexcept nogil
    uint64_t ring_load_u64(const uint8_t* at) noexcept nogil
    void ring_publish_u32(uint8_t* at, uint32_t value) noexcept nogil
    void ring_publish_u64(uint8_t* at, uint64_t value) noexcept nogil
    void ring_begin_sleep(uint8_t* sleeping, uint32_t how) noexcept nogil
    void ring_end_sleep(uint8_t* sleeping) noexcept nogil
    uint32_t ring_sleep_state(const uint8_t* sleeping) noexcept nogil
    void ring_commit(uint8_t* frame, uint32_t word, uint8_t* behind) noexcept nogil
    void ring_copy_out(
        uint8_t* copy, const uint8_t* frame, size_t size, uint8_t* consumed, uint64_t position
    ) noexcept nogil
    void ring_pause() noexcept nogil


cdef extern from "pthread.h" nogil:
    int pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)())


cdef enum:
    GIL_SIZE_MIN = 64 * 1024        # for smaller frames, releasing the GIL costs more than the copy
    PAUSES_PER_CHECK = 32            # between two reads of the clock, while spinning


# Constants of the layout, exported to Python.
globals().update(
    HEADER_SIZE=HEADER_SIZE,
    FRAMES_POSITION=FRAMES_POSITION,
    COUNTERS_SIZE=COUNTERS_SIZE,
    RESPONSE_SLOTS=RESPONSE_SLOTS,
    SHARE=SHARE,
    CAPACITY_MIN=CAPACITY_MIN,
    CAPACITY_MAX=CAPACITY_MAX,
    WRONG_SIZE=WRONG_SIZE,
    WRONG_PADDING=WRONG_PADDING,
    WRONG_CHECKSUM=WRONG_CHECKSUM,
    WRONG_SEQUENCE=WRONG_SEQUENCE,
    WRONG_RESERVED=WRONG_RESERVED,
    WRONG_RESPONSES_TAKEN=WRONG_RESPONSES_TAKEN,
)


class RingError(ValueError):
    """The ring cannot be used: the other side's counters are invalid, it is closed, or forked."""


cdef int forks = 0                  # number of forks between the first process and this one


cdef void count_fork() noexcept nogil:
    global forks
    forks += 1


pthread_atfork(NULL, NULL, count_fork)


cdef inline uint64_t padded(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t> 7


cdef inline uint32_t load_u32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline int16_t load_i16(const uint8_t* at) noexcept nogil:
    cdef int16_t value
    memcpy(&value, at, 2)
    return value


cdef inline int64_t load_i64(const uint8_t* at) noexcept nogil:
    cdef int64_t value
    memcpy(&value, at, 8)
    return value


@cython.final
cdef class Memory:
    """A held buffer and a window of it that is exported; a view of the window keeps the buffer."""
    cdef Py_buffer held
    cdef uint8_t* exported
    cdef Py_ssize_t exported_size
    cdef bint read_only

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.exported, self.exported_size, self.read_only, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass

    def __dealloc__(self):
        PyBuffer_Release(&self.held)

    cdef object export(self, uint8_t* at, Py_ssize_t size):
        self.exported = at
        self.exported_size = size
        return PyMemoryView_FromObject(self)


cdef Memory hold(buffer, int flags, bint read_only):
    cdef Memory memory = Memory.__new__(Memory)
    PyObject_GetBuffer(buffer, &memory.held, flags)
    memory.read_only = read_only
    if <size_t> memory.held.buf & 7:
        raise ValueError("the memory of a ring must begin at a multiple of 8")
    return memory


cdef class End:
    """Base of both ends: the memory of both sides, and private counters."""
    cdef Memory ring_memory, counters_memory
    cdef uint8_t* ring              # NULL: closed
    cdef uint8_t* frames
    cdef uint8_t* counters
    cdef uint64_t capacity, position, sequence, responses_written, responses_taken
    cdef readonly Py_ssize_t frame_size_max     # including the frame header

    cdef int open(self, Memory ring, Memory counters) except -1:
        cdef Py_ssize_t capacity = ring.held.len - FRAMES_POSITION
        if capacity < CAPACITY_MIN or capacity > CAPACITY_MAX or capacity & (capacity - 1):
            raise ValueError(
                f"{ring.held.len} bytes cannot be a ring: {FRAMES_POSITION} and a power of two from"
                f" {CAPACITY_MIN} to {CAPACITY_MAX} can"
            )
        if counters.held.len != COUNTERS_SIZE:
            raise ValueError(
                f"the counters of a ring have {COUNTERS_SIZE} bytes, not {counters.held.len}"
            )
        self.ring_memory, self.counters_memory = ring, counters
        self.ring = <uint8_t*> ring.held.buf
        self.frames = self.ring + FRAMES_POSITION
        self.counters = <uint8_t*> counters.held.buf
        self.capacity = capacity
        self.frame_size_max = capacity // SHARE
        return 0

    cdef inline uint64_t place(self) noexcept nogil:
        """Return the position modulo the capacity."""
        return self.position & (self.capacity - 1)

    def close(self):
        """Release the memory; it is unmapped when the last view is gone."""
        self.ring = self.frames = self.counters = NULL
        self.ring_memory = self.counters_memory = None


@cython.final
cdef class RingWriter(End):
    """The producer's end; see the module."""
    cdef int fork_count
    cdef uint64_t consumed          # the worker's position when last read
    cdef bint waits_for_space            # the last reserve found no space
    cdef Py_ssize_t reserved        # bytes of a batch; -1: none
    cdef uint64_t padding           # bytes before the reserved frame

    def __init__(self, ring, counters):
        self.open(hold(ring, PyBUF_WRITABLE, False), hold(counters, PyBUF_SIMPLE, True))
        self.fork_count = forks
        self.reserved = -1

    cdef int check_usable(self) except -1:
        if self.ring is NULL:
            raise RingError("the ring is closed")
        if self.fork_count != forks:
            raise RingError("a ring cannot be used after a fork; open another")
        return 0

    cdef int read_consumed(self) except -1:
        """Read the worker's position; raise RingError if it is invalid."""
        cdef uint64_t consumed = ring_load_u64(self.counters + CONSUMED)
        if consumed < self.consumed or consumed > self.position:
            raise RingError(
                f"the worker reports {consumed} bytes as consumed; {self.consumed} were before, and"
                f" {self.position} are written"
            )
        self.consumed = consumed
        return 0

    def reserve(self, Py_ssize_t batch_size):
        """Return a view of `batch_size` bytes to write a batch to, or None if there is no space.

        Raises ValueError if no batch of this size fits, RingError if the ring cannot be used.
        """
        cdef uint64_t stride, needed, left
        self.check_usable()
        if batch_size < 0 or batch_size > self.frame_size_max - HEADER_SIZE:
            raise ValueError(
                f"a batch of {batch_size} bytes does not fit this ring: its limit is"
                f" {self.frame_size_max - HEADER_SIZE}"
            )
        stride = padded(HEADER_SIZE + batch_size)
        left = self.capacity - self.place()
        self.padding = left if stride > left else 0
        # Includes the first word of the frame after it.
        needed = self.padding + stride + 8
        if self.capacity - (self.position - self.consumed) < needed:
            self.read_consumed()
        self.waits_for_space = self.capacity - (self.position - self.consumed) < needed
        if self.waits_for_space:
            self.reserved = -1
            return None
        self.reserved = batch_size
        return self.ring_memory.export(self.next_frame() + HEADER_SIZE, batch_size)

    cdef inline uint8_t* next_frame(self) noexcept nogil:
        return self.frames + ((self.position + self.padding) & (self.capacity - 1))

    def commit(
        self, bytes topic_id not None, int32_t partition, uint32_t correlation, int16_t acks,
        int32_t timeout_ms, Py_ssize_t batch_size,
    ):
        """Publish the batch written to the reserved bytes; return True if the worker must be woken.

        `batch_size` may be less than what was reserved.
        """
        cdef uint8_t* frame
        cdef uint8_t* word
        cdef uint32_t crc
        self.check_usable()
        if batch_size < 0 or batch_size > self.reserved:
            raise ValueError(f"{batch_size} bytes were committed, {self.reserved} are reserved")
        if PyBytes_GET_SIZE(topic_id) != TOPIC_ID_SIZE:
            raise ValueError(f"{topic_id!r} is not a topic id of {TOPIC_ID_SIZE} bytes")
        frame = self.next_frame()
        word = self.frames + self.place()
        self.sequence += self.padding > 0
        memcpy(frame + SEQUENCE, &self.sequence, 8)
        memcpy(frame + TOPIC_ID, PyBytes_AS_STRING(topic_id), TOPIC_ID_SIZE)
        memcpy(frame + PARTITION, &partition, 4)
        memcpy(frame + CORRELATION, &correlation, 4)
        memcpy(frame + ACKS, &acks, 2)
        memset(frame + RESERVED, 0, 2)
        memcpy(frame + TIMEOUT, &timeout_ms, 4)
        crc = crc32c(frame + SEQUENCE, HEADER_SIZE - SEQUENCE)
        memcpy(frame + HEADER_CRC, &crc, 4)
        self.position += self.padding + padded(HEADER_SIZE + batch_size)
        self.sequence += 1
        ring_commit(frame, <uint32_t> (HEADER_SIZE + batch_size), self.frames + self.place())
        if self.padding:
            # Published last: the worker reads the frame only after the padding before it.
            ring_publish_u32(word, PADDING | <uint32_t> self.padding)
        self.reserved = -1
        return ring_sleep_state(self.counters + WORKER_SLEEPS) & WAITS_FOR_DATA != 0

    def take_acks(self):
        """Return new responses: (correlation id, error code, base offset, append time, log start).

        Raises RingError if the worker's counter is invalid.
        """
        cdef uint64_t written
        cdef uint8_t* response
        cdef list taken = []
        self.check_usable()
        written = ring_load_u64(self.counters + RESPONSES_WRITTEN)
        if written < self.responses_taken or written - self.responses_taken > RESPONSE_SLOTS:
            raise RingError(
                f"the worker reports {written} responses as written; {self.responses_taken} are"
                f" taken, and the ring holds {RESPONSE_SLOTS}"
            )
        if written == self.responses_taken:
            return taken
        while self.responses_taken < written:
            response = response_at(self.counters, self.responses_taken)
            taken.append((
                load_u32(response + RESPONSE_CORRELATION),
                load_i16(response + RESPONSE_ERROR),
                load_i64(response + RESPONSE_BASE_OFFSET),
                load_i64(response + RESPONSE_APPEND_TIME),
                load_i64(response + RESPONSE_LOG_START),
            ))
            self.responses_taken += 1
        ring_publish_u64(self.ring + RESPONSES_TAKEN, self.responses_taken)
        return taken

    def has_acks(self):
        """Return whether `take_acks` would return any response."""
        self.check_usable()
        return ring_load_u64(self.counters + RESPONSES_WRITTEN) != self.responses_taken

    def spin(self, int64_t limit_ns):
        """Busy-wait without the GIL for a response, at most `limit_ns`; return whether one came."""
        cdef bint has_changed
        self.check_usable()
        # Another thread may close this end meanwhile: keep the counters mapped.
        _held = self.counters_memory
        cdef uint8_t* written = self.counters + RESPONSES_WRITTEN
        cdef uint64_t taken = self.responses_taken
        with nogil:
            has_changed = spin(written, taken, limit_ns)
        return has_changed

    def is_space_awaited(self):
        """Return whether the worker sleeps for space for responses and must be woken.

        To be called after `take_acks`.
        """
        self.check_usable()
        return ring_sleep_state(self.counters + WORKER_SLEEPS) & WAITS_FOR_SPACE != 0

    def begin_sleep(self):
        """Set the producer's sleep flag; clear it and return False if data or space arrived."""
        cdef uint64_t consumed
        self.check_usable()
        ring_begin_sleep(
            self.ring + PRODUCER_SLEEPS,
            WAITS_FOR_DATA | (WAITS_FOR_SPACE if self.waits_for_space else 0),
        )
        consumed = self.consumed
        if self.waits_for_space:
            self.read_consumed()
        if self.has_acks() or self.consumed != consumed:
            ring_end_sleep(self.ring + PRODUCER_SLEEPS)
            return False
        return True

    def end_sleep(self):
        """Clear the sleep flag."""
        self.check_usable()
        ring_end_sleep(self.ring + PRODUCER_SLEEPS)


cdef inline uint8_t* response_at(uint8_t* counters, uint64_t number) noexcept nogil:
    return counters + RESPONSES_POSITION + (number % RESPONSE_SLOTS) * RESPONSE_SIZE


cdef bint spin(const uint8_t* at, uint64_t seen, int64_t limit_ns) noexcept nogil:
    cdef timespec now
    cdef int64_t end = 0
    cdef int _pause
    while True:
        for _pause in range(PAUSES_PER_CHECK):
            if ring_load_u64(at) != seen:
                return True
            ring_pause()
        clock_gettime(CLOCK_MONOTONIC, &now)
        if end == 0:
            end = now.tv_sec * 1_000_000_000 + now.tv_nsec + limit_ns
        elif now.tv_sec * 1_000_000_000 + now.tv_nsec >= end:
            return False


@cython.final
cdef class RingReader(End):
    """The worker's end; see the module.  Frames are copied to a scratch that rings may share."""
    cdef Memory scratch
    cdef uint8_t* copy
    cdef readonly int in_flight     # frames taken whose response is pending
    cdef int violation                # error number after a violation of the layout, or 0

    def __init__(self, ring, counters, scratch):
        self.open(hold(ring, PyBUF_WRITABLE, False), hold(counters, PyBUF_WRITABLE, False))
        self.scratch = hold(scratch, PyBUF_WRITABLE, True)
        if self.scratch.held.len < self.frame_size_max:
            raise ValueError(
                f"a scratch of {self.scratch.held.len} bytes cannot hold a frame of"
                f" {self.frame_size_max}"
            )
        self.copy = <uint8_t*> self.scratch.held.buf

    def take(self):
        """Return the next frame: topic id, partition, correlation id, acks, timeout in ms, batch.

        Returns None if there is no frame or no space for its response, and an error number (one
        of WRONG_*) if the producer has violated the layout: the ring must then be closed.  The
        batch is valid until the next frame is copied to the same scratch.
        """
        cdef uint32_t size
        assert self.ring is not NULL
        size = self.next_size()
        if size == 0:
            return self.violation or None
        if size < GIL_SIZE_MIN:
            self.copy_out(size)
        else:
            with nogil:
                self.copy_out(size)
        self.violation = self.check_header()
        if self.violation:
            return self.violation
        self.sequence += 1
        if load_i16(self.copy + ACKS) != 0:
            self.in_flight += 1
        return (
            PyBytes_FromStringAndSize(<char*> self.copy + TOPIC_ID, TOPIC_ID_SIZE),
            <int32_t> load_u32(self.copy + PARTITION),
            load_u32(self.copy + CORRELATION),
            load_i16(self.copy + ACKS),
            <int32_t> load_u32(self.copy + TIMEOUT),
            self.scratch.export(self.copy + HEADER_SIZE, size - HEADER_SIZE),
        )

    cdef uint32_t next_size(self) noexcept nogil:
        """Return the size of the next frame; 0 if there is none, or if `violation` is set."""
        cdef uint32_t word
        cdef uint64_t left
        if self.violation:
            return 0
        word = ring_load_u32(self.frames + self.place())
        if word == 0 or not self.has_response_space():
            return 0
        while word & PADDING:
            left = self.capacity - self.place()
            # Padding is shorter than the frame that did not fit, so it never fills the whole ring.
            if (word ^ PADDING) != left or left >= <uint64_t> self.frame_size_max:
                self.violation = WRONG_PADDING
                return 0
            self.position += left
            self.sequence += 1
            ring_publish_u64(self.counters + CONSUMED, self.position)
            word = ring_load_u32(self.frames)
        if word == 0:
            return 0
        left = self.capacity - self.place()
        if word < HEADER_SIZE or word > <uint64_t> self.frame_size_max or padded(word) > left:
            self.violation = WRONG_SIZE
            return 0
        return word

    cdef void copy_out(self, uint32_t size) noexcept nogil:
        """Copy the frame and free its space, which is not read again."""
        cdef const uint8_t* frame = self.frames + self.place()
        self.position += padded(size)
        ring_copy_out(self.copy, frame, size, self.counters + CONSUMED, self.position)

    cdef int check_header(self) noexcept nogil:
        """Return the error number of the copied header, 0 if it is valid."""
        if load_u32(self.copy + HEADER_CRC) != crc32c(
            self.copy + SEQUENCE, HEADER_SIZE - SEQUENCE
        ):
            return WRONG_CHECKSUM
        if <uint64_t> load_i64(self.copy + SEQUENCE) != self.sequence:
            return WRONG_SEQUENCE
        if load_i16(self.copy + RESERVED) != 0:
            return WRONG_RESERVED
        return 0

    cdef bint has_response_space(self) noexcept nogil:
        """Return whether there is space for one more response.

        The producer's counter is read only if the last known value leaves no space.
        """
        cdef uint64_t taken
        if self.in_flight + self.responses_written - self.responses_taken < RESPONSE_SLOTS:
            return True
        taken = ring_load_u64(self.ring + RESPONSES_TAKEN)
        if taken < self.responses_taken or taken > self.responses_written:
            self.violation = WRONG_RESPONSES_TAKEN
            return False
        self.responses_taken = taken
        return self.in_flight + self.responses_written - taken < RESPONSE_SLOTS

    def can_take(self):
        """Return whether there is space for one more response, or `take` has an error to return."""
        assert self.ring is not NULL
        return self.violation != 0 or self.has_response_space() or self.violation != 0

    def respond(
        self, uint32_t correlation, int16_t error_code, int64_t base_offset,
        int64_t append_time_ms, int64_t log_start_offset,
    ):
        """Write the response to a frame with acks other than 0; must be called once per frame.

        Returns True if the producer must be woken.
        """
        assert self.in_flight > 0, "no frame waits for a response"
        self.in_flight -= 1
        return self.write_response(
            correlation, error_code, base_offset, append_time_ms, log_start_offset
        )

    def reject(self, uint32_t correlation, int16_t error_code):
        """Write the error of a rejected frame with acks=0; return True to wake the producer.

        No space is reserved for these responses: without space, the error is dropped.
        """
        assert self.ring is not NULL
        return self.has_response_space() and self.write_response(
            correlation, error_code, -1, -1, -1
        )

    cdef bint write_response(
        self, uint32_t correlation, int16_t error_code, int64_t base_offset,
        int64_t append_time_ms, int64_t log_start_offset,
    ) except -1:
        cdef uint8_t* response
        assert self.ring is not NULL
        response = response_at(self.counters, self.responses_written)
        memcpy(response + RESPONSE_CORRELATION, &correlation, 4)
        memcpy(response + RESPONSE_ERROR, &error_code, 2)
        memcpy(response + RESPONSE_BASE_OFFSET, &base_offset, 8)
        memcpy(response + RESPONSE_APPEND_TIME, &append_time_ms, 8)
        memcpy(response + RESPONSE_LOG_START, &log_start_offset, 8)
        self.responses_written += 1
        ring_publish_u64(self.counters + RESPONSES_WRITTEN, self.responses_written)
        return ring_sleep_state(self.ring + PRODUCER_SLEEPS) & WAITS_FOR_DATA != 0

    def is_space_awaited(self):
        """Return whether the producer sleeps for space and must be woken.

        To be called after frames were taken.
        """
        assert self.ring is not NULL
        return ring_sleep_state(self.ring + PRODUCER_SLEEPS) & WAITS_FOR_SPACE != 0

    def begin_sleep(self):
        """Set the worker's sleep flag; clear it and return False if `take` can be called again.

        Without space for a response the worker waits for space, else for a frame.
        """
        cdef bint has_space, has_data
        assert self.ring is not NULL
        has_space = self.has_response_space()
        ring_begin_sleep(
            self.counters + WORKER_SLEEPS, WAITS_FOR_DATA if has_space else WAITS_FOR_SPACE
        )
        if has_space:
            has_data = ring_load_u32(self.frames + self.place()) != 0
        else:
            has_data = self.has_response_space()
        if has_data or self.violation:
            ring_end_sleep(self.counters + WORKER_SLEEPS)
            return False
        return True

    def end_sleep(self):
        """Clear the sleep flag."""
        assert self.ring is not NULL
        ring_end_sleep(self.counters + WORKER_SLEEPS)
