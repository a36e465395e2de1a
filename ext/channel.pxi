"""Channel: one connection of a Loop, and the Answers it owes in the order of the requests.

Included by loop.pyx, whose types they are: a Loop and its Channels know each other's fields.
"""

from libc.stdint cimport int64_t
from outgoing cimport *
from sockets cimport close_descriptor

from collections import deque

cimport cython


@cython.final
@cython.freelist(256)
cdef class Answer:
    """A place in a connection's order of answers, filled later."""
    cdef Channel channel
    cdef list chunks
    cdef Py_ssize_t size            # of the chunks that are in memory
    cdef bint expected              # stands in the connection's queue
    cdef public object abandoned    # called when the connection is gone before this was sent

    def send(self, list chunks not None):
        """The whole answer, without its size; it leaves when those before it have left."""
        assert self.chunks is None, "an answer is sent once"
        self.chunks = chunks
        self.channel.loop.owed = True
        if self.expected and self.channel.descriptor >= 0:
            self.channel.park(self)
            self.channel.answers_due()


cdef class Channel(Source):
    """One connection's descriptor, the bytes that came and wait, and the answers that go out."""
    cdef Loop loop
    cdef object serve
    cdef Buffer held                # None: nothing waits
    cdef Py_ssize_t begin, end
    cdef bint readable, ended       # there may be bytes; the peer has finished sending
    cdef bint halted                # whole frames may stand in `held`
    cdef bint woken, waiting        # in loop.ready; in loop.waiting
    cdef public bint moved          # bytes came or went; reset by whoever asks
    cdef readonly int64_t frames
    cdef object expected            # deque of Answers not yet queued, made when first needed
    cdef Outgoing out
    cdef Py_ssize_t parked          # bytes of Answers that wait behind one that is not there yet
    cdef readonly Py_ssize_t queued_size    # bytes of answers in memory, parked ones among them
    cdef readonly int64_t sent_ns   # when bytes went last, or the first of those queued came
    cdef bint writable, dirty, finishing

    def __cinit__(self, *args, **kwargs):
        self.descriptor = -1

    def __dealloc__(self):
        outgoing_clear(&self.out)
        if self.descriptor >= 0:
            close_descriptor(self.descriptor)

    @property
    def open(self) -> bool:
        """True if the descriptor is still ours."""
        return self.descriptor >= 0

    @property
    def awaited(self) -> bool:
        """True if the peer waits for an answer that is not there yet."""
        return self.expected_count() > 0

    @property
    def begun(self) -> bool:
        """True if a part of a frame has come, or frames wait to be served."""
        return self.held is not None

    def expect(self):
        """An Answer to return from `serve` now and to send once, later."""
        cdef Answer answer = Answer.__new__(Answer)
        answer.channel = self
        return answer

    def finish(self):
        """Read no more; close as soon as the answers queued by now are sent."""
        if self.descriptor >= 0 and not self.finishing:
            self.finishing = True
            self.loop.mark(self)

    def close(self):
        """Close at once; what was not sent is dropped."""
        if self.descriptor >= 0:
            self.loop.drop(self)

    def closed(self):
        """Called once, after the descriptor is gone (for a subclass)."""

    cdef inline Py_ssize_t expected_count(self):
        return 0 if self.expected is None else len(self.expected)

    cdef inline bint full(self):
        """Return whether this peer must read answers before it is read on."""
        return (self.out.answers + self.expected_count() >= self.loop.in_flight_max
                or self.queued_size >= self.loop.queued_size_max
                or (self.queued_size >= SCRATCH and self.loop.short_of_memory()))

    cdef inline int count_queued(self) except -1:
        """Tell the loop how many bytes are queued here now."""
        cdef Py_ssize_t size = self.out.size + self.parked
        if self.queued_size == 0:
            self.sent_ns = self.loop.times.last
        self.loop.queued_size += size - self.queued_size
        self.queued_size = size
        return 0

    cdef int park(self, Answer answer) except -1:
        """Count an answer that is there and may have to wait for those before it."""
        answer.size = memory_size(answer.chunks)
        self.parked += answer.size
        return self.count_queued()

    cdef int handle(self, object frame) except -1:
        cdef Answer later
        answer = self.serve(self, frame)
        if answer is None or self.descriptor < 0:
            return 0
        if type(answer) is list:
            if self.expected_count() == 0:
                return self.queue(<list> answer)
            later = self.expect()
            later.chunks = <list> answer
        else:
            later = <Answer?> answer
            assert later.channel is self and not later.expected, "not this request's Answer"
        later.expected = self.loop.owed = True
        if self.expected is None:
            self.expected = deque()
        self.expected.append(later)
        if later.chunks is not None:
            self.park(later)
        return self.answers_due()

    cdef int answers_due(self) except -1:
        """Queue the answers whose turn it is."""
        cdef Answer first
        while self.expected:
            first = <Answer> self.expected[0]
            if first.chunks is None:
                break
            self.expected.popleft()
            self.parked -= first.size
            self.queue(first.chunks)
            first.chunks = []       # it was sent, and holds nothing
        return 0

    cdef int queue(self, list chunks) except -1:
        outgoing_answer(&self.out, chunks)
        self.count_queued()
        if self.writable:
            self.loop.mark(self)
        return 0
