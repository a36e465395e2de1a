"""Channel: one connection of a Loop, with its deferred responses in the order of the requests.

Included by loop.pyx, because a Loop and its Channels use each other's fields.
"""

from libc.stdint cimport int64_t
from outgoing cimport *
from sockets cimport close_descriptor

from collections import deque

cimport cython


@cython.final
@cython.freelist(256)
cdef class DeferredResponse:
    """A deferred response, which keeps its place in the connection's order of responses."""
    cdef Channel channel
    cdef list chunks
    cdef Py_ssize_t size            # bytes of the chunks in memory
    cdef Py_ssize_t request_size    # bytes of the request, as far as they count
    cdef bint is_queued             # in the connection's queue
    cdef public object abandoned    # called if the connection closes before send()

    def send(self, list chunks not None):
        """Set the response, without its size prefix; it is sent after those before it."""
        assert self.chunks is None, "a deferred response is sent once"
        self.chunks = chunks
        self.channel.loop.busy_poll = True
        if self.is_queued and self.channel.descriptor >= 0:
            self.channel.park(self)
            self.channel.queue_completed()


cdef class Channel(Source):
    """One connection: its descriptor, received bytes not handled yet, and queued responses."""
    cdef Loop loop
    cdef object serve
    cdef Buffer held                # None: no bytes are buffered
    cdef Py_ssize_t begin, end
    cdef bint readable              # bytes may be available
    cdef readonly bint ended        # the peer has ended its sending
    cdef bint halted                # `held` may contain complete frames
    cdef bint is_ready, waiting     # in loop.ready; in loop.waiting
    cdef public bint has_traffic    # bytes were received or sent; reset by the reader of this flag
    cdef readonly int64_t frames
    cdef object deferred            # deque of responses not queued yet, created on first use
    cdef Py_ssize_t deferred_size   # bytes of their requests
    cdef Outgoing out
    cdef Py_ssize_t parked          # bytes of responses behind one that is not set yet
    cdef readonly Py_ssize_t queued_size    # bytes of responses in memory, parked ones included
    cdef readonly int64_t sent_ns   # time of the last send, or when the queue stopped being empty
    cdef bint writable, dirty, finishing

    def __cinit__(self, *args, **kwargs):
        self.descriptor = -1

    def __dealloc__(self):
        outgoing_clear(&self.out)
        if self.descriptor >= 0:
            close_descriptor(self.descriptor)

    @property
    def open(self) -> bool:
        """True until the connection is closed."""
        return self.descriptor >= 0

    @property
    def has_deferred(self) -> bool:
        """True if a deferred response is outstanding."""
        return self.deferred_count() > 0

    @property
    def has_buffered_bytes(self) -> bool:
        """True if an incomplete frame, or frames not handled yet, are buffered."""
        return self.held is not None

    def defer(self):
        """Return a DeferredResponse, which `serve` returns; its send() is called once, later."""
        cdef DeferredResponse response = DeferredResponse.__new__(DeferredResponse)
        response.channel = self
        return response

    def finish(self):
        """Stop reading, and close the connection once the queued responses are sent."""
        if self.descriptor >= 0 and not self.finishing:
            self.finishing = True
            self.loop.mark_dirty(self)

    def close(self):
        """Close immediately; unsent responses are dropped."""
        if self.descriptor >= 0:
            self.loop.drop(self)

    def closed(self):
        """Hook for subclasses: called once, after the descriptor was closed."""

    cdef inline Py_ssize_t deferred_count(self):
        return 0 if self.deferred is None else len(self.deferred)

    cdef inline bint full(self):
        """Return whether reading stops until requests are answered, or responses are read."""
        return (self.out.responses + self.deferred_count() >= self.loop.in_flight_max
                or self.deferred_size >= DEFERRED_SIZE
                or self.queued_size >= self.loop.queued_size_max
                or (self.queued_size >= SCRATCH and self.loop.short_of_memory()))

    cdef inline int count_queued(self) except -1:
        """Update the number of queued bytes, of this channel and of the loop."""
        cdef Py_ssize_t size = self.out.size + self.parked
        if self.queued_size == 0:
            self.sent_ns = self.loop.times.last
        self.loop.queued_size += size - self.queued_size
        self.queued_size = size
        return 0

    cdef int park(self, DeferredResponse response) except -1:
        """Count a response that is set and may wait for those before it."""
        response.size = memory_size(response.chunks)
        self.parked += response.size
        return self.count_queued()

    cdef int handle(self, object frame, Py_ssize_t size) except -1:
        """Handle a request, of which `size` bytes count as unanswered while it is deferred.

        Decoded it takes ten times as much.  The batches of Produce are not decoded: size 0.
        """
        cdef DeferredResponse deferred
        response = self.serve(self, frame)
        if response is None or self.descriptor < 0:
            return 0
        if type(response) is list:
            if self.deferred_count() == 0:
                return self.queue(<list> response)
            deferred = self.defer()
            deferred.chunks = <list> response
        else:
            deferred = <DeferredResponse?> response
            assert deferred.channel is self and not deferred.is_queued, "of another request"
        deferred.is_queued = self.loop.busy_poll = True
        if self.deferred is None:
            self.deferred = deque()
        self.deferred.append(deferred)
        deferred.request_size = size
        self.deferred_size += size
        if deferred.chunks is not None:
            self.park(deferred)
        return self.queue_completed()

    cdef int queue_completed(self) except -1:
        """Queue the responses that wait for no earlier one."""
        cdef DeferredResponse first
        while self.deferred:
            first = <DeferredResponse> self.deferred[0]
            if first.chunks is None:
                break
            self.deferred.popleft()
            self.parked -= first.size
            self.deferred_size -= first.request_size
            self.queue(first.chunks)
            first.chunks = []       # sent: release the memory
        return 0

    cdef int queue(self, list chunks) except -1:
        outgoing_response(&self.out, chunks)
        self.count_queued()
        if self.writable:
            self.loop.mark_dirty(self)
        return 0
