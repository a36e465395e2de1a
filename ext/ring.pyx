"""A ring between one producer and one worker: frames one way, answers the other.

    RingWriter   the producer's end: reserve, write the batch in place, commit; take_acks
    RingReader   the worker's end: take, answer

Neither end believes the other.  The worker reads a frame's size once, into a variable of its own,
holds it against its own position, copies the frame out, frees the place, and judges the copy
alone: what the producer writes later changes nothing.  It never reads back what it wrote to
shared memory.  A frame that breaks the layout (ring_layout.pxd) gets the number of its reason,
and the ring is good for nothing any more; that is the whole answer to every bad producer.  The
producer's end computes every address from its own position, so a worker's counters that make no
sense are a RingFault and never a write outside the ring.

A frame is there when its word is, so a producer that dies while it writes has written nothing.

No call waits.  `rest` is for whoever is about to sleep on its descriptor: True says that nothing
came since it began to say so, and from then on the other side's calls answer True when it must be
woken.  What a side can wait for is something new or, where the other side owes it, room; it is
woken for the one that it waits for.

Neither end is thread-safe.  A producer's end is of no use in a process forked from its owner's.
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
    void ring_rest(uint8_t* sleeping, uint32_t how) noexcept nogil
    void ring_woke(uint8_t* sleeping) noexcept nogil
    uint32_t ring_sleeper(const uint8_t* sleeping) noexcept nogil
    void ring_commit(uint8_t* frame, uint32_t word, uint8_t* behind) noexcept nogil
    void ring_copy_out(
        uint8_t* copy, const uint8_t* frame, size_t size, uint8_t* consumed, uint64_t position
    ) noexcept nogil
    void ring_pause() noexcept nogil


cdef extern from "pthread.h" nogil:
    int pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)())


cdef enum:
    GIL_SIZE_MIN = 64 * 1024        # below, letting go of it costs more than the copying
    PAUSES_PER_LOOK = 32            # at the clock, while spinning


# What the layout says, said again to Python.
globals().update(
    HEADER_SIZE=HEADER_SIZE,
    FRAMES_POSITION=FRAMES_POSITION,
    COUNTERS_SIZE=COUNTERS_SIZE,
    ANSWERS=ANSWERS,
    SHARE=SHARE,
    CAPACITY_MIN=CAPACITY_MIN,
    CAPACITY_MAX=CAPACITY_MAX,
    WRONG_SIZE=WRONG_SIZE,
    WRONG_PADDING=WRONG_PADDING,
    WRONG_CHECKSUM=WRONG_CHECKSUM,
    WRONG_SEQUENCE=WRONG_SEQUENCE,
    WRONG_RESERVED=WRONG_RESERVED,
    WRONG_ANSWERS_TAKEN=WRONG_ANSWERS_TAKEN,
)


class RingFault(ValueError):
    """The ring is of no use: the other side's numbers make no sense, it is gone, or we are."""


cdef int forks = 0                  # that lie between this process and the first


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
    """A buffer held, and a window of it shown; who looks through the window holds it as well."""
    cdef Py_buffer held
    cdef uint8_t* shown
    cdef Py_ssize_t shown_size
    cdef bint read_only

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.shown, self.shown_size, self.read_only, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass

    def __dealloc__(self):
        PyBuffer_Release(&self.held)

    cdef object show(self, uint8_t* at, Py_ssize_t size):
        self.shown = at
        self.shown_size = size
        return PyMemoryView_FromObject(self)


cdef Memory hold(buffer, int flags, bint read_only):
    cdef Memory memory = Memory.__new__(Memory)
    PyObject_GetBuffer(buffer, &memory.held, flags)
    memory.read_only = read_only
    if <size_t> memory.held.buf & 7:
        raise ValueError("a ring's memory begins at a multiple of 8")
    return memory


cdef class End:
    """What both ends have: the memory of both sides, and numbers nobody else can write."""
    cdef Memory ring_memory, counters_memory
    cdef uint8_t* ring              # NULL: closed
    cdef uint8_t* frames
    cdef uint8_t* counters
    cdef uint64_t capacity, position, sequence, answers_given, answers_taken
    cdef readonly Py_ssize_t frame_size_max     # with its header

    cdef int open(self, Memory ring, Memory counters) except -1:
        cdef Py_ssize_t capacity = ring.held.len - FRAMES_POSITION
        if capacity < CAPACITY_MIN or capacity > CAPACITY_MAX or capacity & (capacity - 1):
            raise ValueError(f"{ring.held.len} bytes are no ring")
        if counters.held.len != COUNTERS_SIZE:
            raise ValueError(f"{counters.held.len} bytes are no counters")
        self.ring_memory, self.counters_memory = ring, counters
        self.ring = <uint8_t*> ring.held.buf
        self.frames = self.ring + FRAMES_POSITION
        self.counters = <uint8_t*> counters.held.buf
        self.capacity = capacity
        self.frame_size_max = capacity // SHARE
        return 0

    cdef inline uint64_t place(self) noexcept nogil:
        """Where in the frames the position is."""
        return self.position & (self.capacity - 1)

    def close(self):
        """Let go of the memory; it is unmapped when nothing shows it any more."""
        self.ring = self.frames = self.counters = NULL
        self.ring_memory = self.counters_memory = None


@cython.final
cdef class RingWriter(End):
    """The producer's end; see the module."""
    cdef int born
    cdef uint64_t consumed          # as far as the worker was seen to be
    cdef bint wants_room            # the last reserve found none
    cdef Py_ssize_t reserved        # bytes of a batch; -1: none
    cdef uint64_t padding           # that goes before the reserved frame

    def __init__(self, ring, counters):
        self.open(hold(ring, PyBUF_WRITABLE, False), hold(counters, PyBUF_SIMPLE, True))
        self.born = forks
        self.reserved = -1

    cdef int usable(self) except -1:
        if self.ring is NULL:
            raise RingFault("the ring is closed")
        if self.born != forks:
            raise RingFault("a ring cannot be used after a fork: open another")
        return 0

    cdef int look(self) except -1:
        """See how far the worker is."""
        cdef uint64_t consumed = ring_load_u64(self.counters + CONSUMED)
        if consumed < self.consumed or consumed > self.position:
            raise RingFault("the worker says it has consumed what was never written")
        self.consumed = consumed
        return 0

    def reserve(self, Py_ssize_t batch_size):
        """So many bytes of the ring to write a batch in; None: there is no room by now."""
        cdef uint64_t stride, needed, left
        self.usable()
        if batch_size < 0 or batch_size > self.frame_size_max - HEADER_SIZE:
            raise ValueError(f"a batch of {batch_size} bytes does not go into this ring")
        stride = padded(HEADER_SIZE + batch_size)
        left = self.capacity - self.place()
        self.padding = left if stride > left else 0
        # And the word that will stand behind it.
        needed = self.padding + stride + 8
        if self.capacity - (self.position - self.consumed) < needed:
            self.look()
        self.wants_room = self.capacity - (self.position - self.consumed) < needed
        if self.wants_room:
            self.reserved = -1
            return None
        self.reserved = batch_size
        return self.ring_memory.show(self.next_frame() + HEADER_SIZE, batch_size)

    cdef inline uint8_t* next_frame(self) noexcept nogil:
        return self.frames + ((self.position + self.padding) & (self.capacity - 1))

    def commit(
        self, bytes topic_id not None, int32_t partition, uint32_t correlation, int16_t acks,
        int32_t timeout_ms, Py_ssize_t batch_size,
    ):
        """Hand over what was written where `reserve` said; True: wake the worker."""
        cdef uint8_t* frame
        cdef uint8_t* word
        cdef uint32_t crc
        self.usable()
        if batch_size < 0 or batch_size > self.reserved:
            raise ValueError(f"{batch_size} bytes are committed, {self.reserved} were reserved")
        if PyBytes_GET_SIZE(topic_id) != TOPIC_ID_SIZE:
            raise ValueError(f"{topic_id!r} is no topic id")
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
            # Last, since nobody looks behind it before it is there.
            ring_publish_u32(word, PADDING | <uint32_t> self.padding)
        self.reserved = -1
        return ring_sleeper(self.counters + WORKER_SLEEPS) & AWAITS != 0

    def take_acks(self):
        """The answers that came: correlation, error, base offset, append time, log start."""
        cdef uint64_t given
        cdef uint8_t* answer
        cdef list taken = []
        self.usable()
        given = ring_load_u64(self.counters + ANSWERS_GIVEN)
        if given < self.answers_taken or given - self.answers_taken > ANSWERS:
            raise RingFault("the worker says it has given answers that the lane cannot hold")
        if given == self.answers_taken:
            return taken
        while self.answers_taken < given:
            answer = answer_place(self.counters, self.answers_taken)
            taken.append((
                load_u32(answer + ANSWER_CORRELATION),
                load_i16(answer + ANSWER_ERROR),
                load_i64(answer + ANSWER_BASE_OFFSET),
                load_i64(answer + ANSWER_APPEND_TIME),
                load_i64(answer + ANSWER_LOG_START),
            ))
            self.answers_taken += 1
        ring_publish_u64(self.ring + ANSWERS_TAKEN, self.answers_taken)
        return taken

    def has_acks(self):
        """Whether `take_acks` would find any."""
        self.usable()
        return ring_load_u64(self.counters + ANSWERS_GIVEN) != self.answers_taken

    def spin(self, int64_t limit_ns):
        """Wait so long at most, awake and without the GIL, for an answer; whether one came."""
        cdef bint came
        self.usable()
        # Another thread may close this end meanwhile: what is looked at stays mapped.
        _held = self.counters_memory
        cdef uint8_t* given = self.counters + ANSWERS_GIVEN
        cdef uint64_t taken = self.answers_taken
        with nogil:
            came = spin(given, taken, limit_ns)
        return came

    def freed(self):
        """After `take_acks`: whether the worker sleeps for want of room there; wake it then."""
        self.usable()
        return ring_sleeper(self.counters + WORKER_SLEEPS) & WANTS_ROOM != 0

    def rest(self):
        """Say that the producer sleeps; False: something came, it should not."""
        cdef uint64_t consumed
        self.usable()
        ring_rest(self.ring + PRODUCER_SLEEPS, AWAITS | (WANTS_ROOM if self.wants_room else 0))
        consumed = self.consumed
        if self.wants_room:
            self.look()
        if self.has_acks() or self.consumed != consumed:
            ring_woke(self.ring + PRODUCER_SLEEPS)
            return False
        return True

    def woke(self):
        """Say that it sleeps no more."""
        self.usable()
        ring_woke(self.ring + PRODUCER_SLEEPS)


cdef inline uint8_t* answer_place(uint8_t* counters, uint64_t number) noexcept nogil:
    return counters + ANSWERS_POSITION + (number % ANSWERS) * ANSWER_SIZE


cdef bint spin(const uint8_t* at, uint64_t seen, int64_t limit_ns) noexcept nogil:
    cdef timespec now
    cdef int64_t end = 0
    cdef int _pause
    while True:
        for _pause in range(PAUSES_PER_LOOK):
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
    """The worker's end; see the module.  Frames are shown in a scratch that rings may share."""
    cdef Memory scratch
    cdef uint8_t* copy
    cdef readonly int in_flight     # frames taken that will be answered
    cdef int fault                  # why the ring is good for nothing any more

    def __init__(self, ring, counters, scratch):
        self.open(hold(ring, PyBUF_WRITABLE, False), hold(counters, PyBUF_WRITABLE, False))
        self.scratch = hold(scratch, PyBUF_WRITABLE, True)
        if self.scratch.held.len < self.frame_size_max:
            raise ValueError(f"{self.scratch.held.len} bytes of scratch do not hold every frame")
        self.copy = <uint8_t*> self.scratch.held.buf

    def take(self):
        """Topic id, partition, correlation, acks, time-out and batch of the next frame.

        None: there is none, or no room for its answer; a number: why the ring is to be left.
        The batch is good until the next frame is taken into the same scratch.
        """
        cdef uint32_t size
        assert self.ring is not NULL
        size = self.next_size()
        if size == 0:
            return self.fault or None
        if size < GIL_SIZE_MIN:
            self.copy_out(size)
        else:
            with nogil:
                self.copy_out(size)
        self.fault = self.judge()
        if self.fault:
            return self.fault
        self.sequence += 1
        if load_i16(self.copy + ACKS) != 0:
            self.in_flight += 1
        return (
            PyBytes_FromStringAndSize(<char*> self.copy + TOPIC_ID, TOPIC_ID_SIZE),
            <int32_t> load_u32(self.copy + PARTITION),
            load_u32(self.copy + CORRELATION),
            load_i16(self.copy + ACKS),
            <int32_t> load_u32(self.copy + TIMEOUT),
            self.scratch.show(self.copy + HEADER_SIZE, size - HEADER_SIZE),
        )

    cdef uint32_t next_size(self) noexcept nogil:
        """The size of the frame that may be taken now; 0: none, and `fault` may say why."""
        cdef uint32_t word
        cdef uint64_t left
        if self.fault:
            return 0
        word = ring_load_u32(self.frames + self.place())
        if word == 0 or not self.has_lane():
            return 0
        while word & PADDING:
            left = self.capacity - self.place()
            # A frame that does not fit is longer than this, so a whole lap is never padding.
            if (word ^ PADDING) != left or left >= <uint64_t> self.frame_size_max:
                self.fault = WRONG_PADDING
                return 0
            self.position += left
            self.sequence += 1
            ring_publish_u64(self.counters + CONSUMED, self.position)
            word = ring_load_u32(self.frames)
        if word == 0:
            return 0
        left = self.capacity - self.place()
        if word < HEADER_SIZE or word > <uint64_t> self.frame_size_max or padded(word) > left:
            self.fault = WRONG_SIZE
            return 0
        return word

    cdef void copy_out(self, uint32_t size) noexcept nogil:
        """Copy the frame, and free its place: nobody looks there again."""
        cdef const uint8_t* frame = self.frames + self.place()
        self.position += padded(size)
        ring_copy_out(self.copy, frame, size, self.counters + CONSUMED, self.position)

    cdef int judge(self) noexcept nogil:
        """Why the header copied is none of ours; 0: it is."""
        if load_u32(self.copy + HEADER_CRC) != crc32c(
            self.copy + SEQUENCE, HEADER_SIZE - SEQUENCE
        ):
            return WRONG_CHECKSUM
        if <uint64_t> load_i64(self.copy + SEQUENCE) != self.sequence:
            return WRONG_SEQUENCE
        if load_i16(self.copy + RESERVED) != 0:
            return WRONG_RESERVED
        return 0

    cdef bint has_lane(self) noexcept nogil:
        """Whether there is room for one more answer; the producer is asked only if it matters."""
        cdef uint64_t taken
        if self.in_flight + self.answers_given - self.answers_taken < ANSWERS:
            return True
        taken = ring_load_u64(self.ring + ANSWERS_TAKEN)
        if taken < self.answers_taken or taken > self.answers_given:
            self.fault = WRONG_ANSWERS_TAKEN
            return False
        self.answers_taken = taken
        return self.in_flight + self.answers_given - taken < ANSWERS

    def may_take(self):
        """Whether there is room for one more answer, or `take` has a fault to tell."""
        assert self.ring is not NULL
        return self.fault != 0 or self.has_lane() or self.fault != 0

    def answer(
        self, uint32_t correlation, int16_t error_code, int64_t base_offset,
        int64_t append_time_ms, int64_t log_start_offset,
    ):
        """Answer a frame that wants it (acks other than 0), once; True: wake the producer."""
        assert self.in_flight > 0, "nobody waits for this answer"
        self.in_flight -= 1
        return self.give(correlation, error_code, base_offset, append_time_ms, log_start_offset)

    def refuse(self, uint32_t correlation, int16_t error_code):
        """Tell that a frame with acks=0 was not taken in; True: wake the producer.

        It kept no room for an answer, so it is told while there is room, and promised nothing.
        """
        assert self.ring is not NULL
        return self.has_lane() and self.give(correlation, error_code, -1, -1, -1)

    cdef bint give(
        self, uint32_t correlation, int16_t error_code, int64_t base_offset,
        int64_t append_time_ms, int64_t log_start_offset,
    ) except -1:
        cdef uint8_t* answer
        assert self.ring is not NULL
        answer = answer_place(self.counters, self.answers_given)
        memcpy(answer + ANSWER_CORRELATION, &correlation, 4)
        memcpy(answer + ANSWER_ERROR, &error_code, 2)
        memcpy(answer + ANSWER_BASE_OFFSET, &base_offset, 8)
        memcpy(answer + ANSWER_APPEND_TIME, &append_time_ms, 8)
        memcpy(answer + ANSWER_LOG_START, &log_start_offset, 8)
        self.answers_given += 1
        ring_publish_u64(self.counters + ANSWERS_GIVEN, self.answers_given)
        return ring_sleeper(self.ring + PRODUCER_SLEEPS) & AWAITS != 0

    def freed(self):
        """After a drain: whether the producer sleeps for want of room; wake it then."""
        assert self.ring is not NULL
        return ring_sleeper(self.ring + PRODUCER_SLEEPS) & WANTS_ROOM != 0

    def rest(self):
        """Say that the worker sleeps as to this ring; False: there is something to take."""
        cdef bint lane, came
        assert self.ring is not NULL
        lane = self.has_lane()
        ring_rest(self.counters + WORKER_SLEEPS, AWAITS if lane else WANTS_ROOM)
        if lane:
            came = ring_load_u32(self.frames + self.place()) != 0
        else:
            came = self.has_lane()
        if came or self.fault:
            ring_woke(self.counters + WORKER_SLEEPS)
            return False
        return True

    def woke(self):
        """Say that it sleeps no more."""
        assert self.ring is not NULL
        ring_woke(self.counters + WORKER_SLEEPS)
