"""Event loop, compiled part: polls sockets, splits requests into frames, sends responses.

    read_requests     epoll_wait, then one read of each ready connection; each complete frame in it
                      is handled by one Python call: chunks, a DeferredResponse, or None
    write_responses   send the responses of this tick: bytes by sendmsg, file slices by sendfile

A frame is a four-byte size and that many bytes, in both directions.  Responses are sent in the
order of their requests, regardless of the order in which they complete.  Only epoll_wait blocks,
and every step is bounded, so that a tick is short; connections with new events are served before
those left over from the last tick.

Connections are registered with epoll once, edge-triggered.  An idle connection owns no buffer:
bytes are received into one shared scratch buffer and frames are handled there.  Only an incomplete
frame is copied to a buffer of its own, which grows as bytes arrive and is released when the frame
was handled.  If a memoryview of a frame outlives the call, the buffer is left to that view and
replaced, so such an error costs memory and never corrupts data.

Unlike the other extension modules, this one keeps Python objects: it owns descriptors, buffers and
queued responses.  Admission of connections, timers and logging are in transport/reactor.py.

Not thread-safe: a loop is used by one thread only.
"""

cimport cython
from cpython.exc cimport PyErr_SetFromErrno
from cpython.memoryview cimport PyMemoryView_FromObject
from big_endian cimport load_i16, load_i32
from loop_bounds cimport *
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memmove
from outgoing cimport *
from sockets cimport *
from tick_times cimport *
from waiting cimport await_events, now_ns

cdef enum:
    PRODUCE = 0                     # an API key

include "frame_buffer.pxi"


cdef class Source:
    """A descriptor registered with epoll, for a connection or a callback."""
    cdef int descriptor             # -1: closed


@cython.final
cdef class Watch(Source):
    """A descriptor with a function that is called while it is readable (level-triggered)."""
    cdef object callback


include "channel.pxi"


cdef class Loop:
    """The event loop of one process: its descriptors, and the two compiled phases of a tick."""
    cdef int epoll
    cdef bint soon                  # the last event came soon after the poll began
    cdef public bint busy_poll      # poll before sleeping: a response was deferred or sent late
    cdef epoll_event events[EVENTS_PER_TICK]
    cdef dict sources               # descriptor -> Source; keeps the Source alive
    cdef list ready, dirty, closing, spares, waiting    # waiting: for room for a frame
    cdef Channel exempt             # may exceed held_size_max, so that some frame completes
    cdef int64_t tick_end, share_ns, share_end  # deadlines of a tick and of a channel's share
    cdef Buffer scratch
    cdef Py_ssize_t spare_size
    cdef object on_error            # on_error(channel, exception): handling a frame raised
    cdef object on_invalid_size     # on_invalid_size(channel, frame size)
    cdef Py_ssize_t frame_size_max, in_flight_max, queued_size_max, held_size_max, queued_sum_max
    cdef set stopped                # Channels whose reading resumes when queued_size has shrunk
    cdef readonly Py_ssize_t held_size, queued_size
    cdef readonly int64_t ticks, reads, frames, bytes_in, bytes_out, views_kept
    cdef TickTimes times
    cdef object step                # the tick's longest: an API key, a callback, None for sending
    cdef public object slow         # slow(tick ns, processor ns, step ns, step), or None

    def __cinit__(self, on_error, on_invalid_size, Py_ssize_t frame_size_max,
                  Py_ssize_t in_flight_max, Py_ssize_t queued_size_max, Py_ssize_t held_size_max,
                  Py_ssize_t queued_sum_max):
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            PyErr_SetFromErrno(OSError)
        self.on_error, self.on_invalid_size = on_error, on_invalid_size
        self.frame_size_max, self.in_flight_max = frame_size_max, in_flight_max
        self.queued_size_max, self.held_size_max = queued_size_max, held_size_max
        self.queued_sum_max = queued_sum_max
        self.sources, self.stopped = {}, set()
        self.ready, self.dirty, self.closing, self.waiting, self.spares = [], [], [], [], []
        self.scratch = Buffer(SCRATCH)

    def __dealloc__(self):
        self.close()

    # Registration.

    def watch(self, int descriptor, callback):
        """Call `callback()` in every tick in which the descriptor is readable."""
        cdef Watch watch = Watch.__new__(Watch)
        watch.callback = callback
        self.register(descriptor, watch, EPOLLIN)

    def unwatch(self, int descriptor):
        """Unregister a watched descriptor; its owner closes it."""
        cdef Source source = self.sources.pop(descriptor)
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, descriptor, NULL)
        source.descriptor = -1
        self.closing.append(source)

    def adopt(self, Channel channel not None, int descriptor, serve):
        """Register a connected non-blocking socket, which the channel owns and closes."""
        channel.loop, channel.serve = self, serve
        channel.writable = True
        self.register(descriptor, channel, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)

    def channels(self):
        """Return the open connections."""
        return [source for source in self.sources.values() if isinstance(source, Channel)]

    @property
    def short_of_room(self) -> bool:
        """True if a connection waits for room for a frame."""
        return bool(self.waiting)

    def close(self):
        """Close the epoll descriptor; nothing may be registered afterwards."""
        if self.epoll >= 0:
            close_descriptor(self.epoll)
            self.epoll = -1

    cdef int register(self, int descriptor, Source source, uint32_t wanted) except -1:
        assert descriptor >= 0 and descriptor not in self.sources
        if epoll_add(self.epoll, descriptor, wanted, <void*> source) < 0:
            PyErr_SetFromErrno(OSError)
        source.descriptor = descriptor
        self.sources[descriptor] = source
        return 0

    def read_requests(self, int timeout_ms):
        """Wait for events, at most `timeout_ms` (-1: no limit), then read and handle frames."""
        cdef list ready = self.ready
        cdef int count, at
        cdef Source source
        cdef Channel channel
        self.ready = []
        if ready or self.dirty:
            timeout_ms = 0
        self.soon, self.busy_poll = self.soon and self.busy_poll, False
        with nogil:
            count = await_events(self.epoll, self.events, EVENTS_PER_TICK, timeout_ms, &self.soon)
        if count < 0 and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        self.ticks += 1
        tick_begin(&self.times)
        self.tick_end = self.times.began + TICK_NS
        self.share_ns = SHARE_NS if count + len(ready) > 1 else TICK_NS
        for at in range(count):
            source = <Source> self.events[at].data.ptr
            if source.descriptor < 0:
                continue            # closed by an earlier event of this tick
            if isinstance(source, Watch):
                (<Watch> source).callback()
                self.step = (<Watch> source).callback if step_ended(&self.times) else self.step
            else:
                channel = <Channel> source
                if self.update_events(channel, self.events[at].events) and not channel.is_ready:
                    if now_ns() < self.tick_end:
                        self.handle_channel(channel)
                    else:
                        self.mark_ready(channel)
        for at, channel in enumerate(ready):
            if at and now_ns() >= self.tick_end:    # the first is always served
                self.ready[:0] = ready[at:]
                break
            channel.is_ready = False
            self.handle_channel(channel)
        self.closing.clear()        # no event of this tick refers to these Sources any more

    def end_step(self, step):
        """Note the end of a step of the tick: an API key, or the function that was called."""
        self.step = step if step_ended(&self.times) else self.step

    @property
    def tick_times(self) -> list:
        """The total duration of all ticks in ns, then their counts by duration as in Histogram."""
        return times_list(&self.times)

    cdef bint update_events(self, Channel channel, uint32_t events) except -1:
        """Update the channel from an event; return whether the channel may be read."""
        if events & (EPOLLERR | EPOLLHUP) and (
                channel.full() or channel.finishing or channel.waiting):
            self.drop(channel)      # its reading is stopped, and the peer cannot resume it
            return False
        if events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP):
            channel.ended = True
        if events & EPOLLOUT and not channel.writable:
            channel.writable = True
            if channel.out.count:
                self.mark_dirty(channel)
        if events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP):
            channel.readable = True
        return channel.readable

    cdef int handle_channel(self, Channel channel) except -1:
        """Handle the frames in a channel's buffer, then those of one read."""
        if channel.descriptor < 0 or channel.finishing or channel.waiting:
            return 0
        channel.halted = False
        self.times.last = now_ns()
        self.share_end = self.times.last + self.share_ns
        if channel.held is not None:
            self.handle_frames(channel, channel.held, &channel.begin, channel.end)
            self.release_held(channel)
        if (channel.readable and channel.descriptor >= 0
                and not (channel.halted or channel.finishing or channel.full())):
            self.receive(channel)
        return self.schedule_next(channel)

    cdef inline bint short_of_memory(self):
        """Return whether queued responses take at least half of their limit.

        Connections with a full response queue are then not read.
        """
        return 0 < self.queued_sum_max <= 2 * self.queued_size

    cdef int schedule_next(self, Channel channel) except -1:
        """Serve a channel in the next tick, if it has more to read and its peer reads responses."""
        if channel.descriptor < 0 or not (channel.halted or channel.readable):
            return 0
        if not channel.full():
            self.mark_ready(channel)
        elif self.short_of_memory():
            self.stopped.add(channel)
        return 0

    cdef int receive(self, Channel channel) except -1:
        """Read once: the rest of an incomplete frame into its buffer, other bytes into scratch."""
        cdef Buffer scratch = self.scratch
        cdef Py_ssize_t have = channel.end - channel.begin if channel.held is not None else 0
        cdef Py_ssize_t wanted, received, room, begin = 0, rest = 0
        if have < PREFIX:           # frame size not known yet: restart in the scratch buffer
            if have:
                memcpy(scratch.memory, channel.held.memory + channel.begin, have)
            wanted = SCRATCH - have
            received = recv(channel.descriptor, scratch.memory + have, wanted, MSG_DONTWAIT)
        else:
            if not self.grow_held(channel):
                return 0
            rest = PREFIX + load_i32(channel.held.memory + channel.begin) - have
            room = min(rest, channel.held.capacity - channel.end)
            # Scratch is used only if the rest of the frame fits, so that the bytes are contiguous.
            wanted = room + (SCRATCH if room == rest else 0)
            received = receive_both(channel.descriptor, channel.held.memory + channel.end, room,
                                    scratch.memory, wanted - room)
        if received <= 0:
            return self.receive_nothing(channel, received)
        self.reads += 1
        self.bytes_in += received
        channel.has_traffic = True
        if received < wanted and not channel.ended:
            channel.readable = False    # drained: the next byte triggers a new event
        if have < PREFIX:
            channel.begin = channel.end
            self.release_held(channel)
            received += have
        elif received < rest:
            channel.end += received
            return 0
        else:
            received -= rest
            channel.end += rest
            self.handle_frames(channel, channel.held, &channel.begin, channel.end)
            self.release_held(channel)
        self.handle_frames(channel, scratch, &begin, received)
        if begin < received and channel.descriptor >= 0 and not channel.finishing:
            self.hold(channel, scratch.memory + begin, received - begin)
        if scratch.views:
            self.views_kept += 1
            self.scratch = Buffer(SCRATCH)
        return 0

    cdef int receive_nothing(self, Channel channel, Py_ssize_t received) except -1:
        if received == 0:
            channel.finish()
        elif errno == EAGAIN:
            channel.readable = False
        elif errno != EINTR:
            self.drop(channel)
        return 0

    cdef int handle_frames(self, Channel channel, Buffer buffer, Py_ssize_t* begin,
                           Py_ssize_t end) except -1:
        """Handle the complete frames in buffer[begin:end], and move `begin` past them."""
        cdef Py_ssize_t size, api_key
        while (end - begin[0] >= PREFIX and channel.descriptor >= 0
                and not (channel.halted or channel.finishing)):
            size = load_i32(buffer.memory + begin[0])
            if size <= 0 or size > self.frame_size_max:
                channel.finish()
                self.on_invalid_size(channel, size)
                return 0
            if end - begin[0] - PREFIX < size:
                return 0
            if channel.full() or self.times.last >= self.share_end:
                channel.halted = True
                return 0
            buffer.start = begin[0] + PREFIX
            buffer.size = size
            api_key = load_i16(buffer.memory + buffer.start) if size > 1 else -1
            begin[0] += PREFIX + size
            channel.frames += 1
            self.frames += 1
            try:
                channel.handle(PyMemoryView_FromObject(buffer), size if api_key != PRODUCE else 0)
            except Exception as error:
                self.on_error(channel, error)
            self.step = api_key if step_ended(&self.times) else self.step
        return 0

    # Buffers of incomplete frames.

    cdef int hold(self, Channel channel, const uint8_t* bytes, Py_ssize_t size) except -1:
        """Copy bytes that could not be handled yet to the channel's buffer; at most one scratch."""
        cdef Py_ssize_t have = channel.end - channel.begin if channel.held is not None else 0
        if channel.held is None or channel.held.capacity - channel.end < size:
            self.move_held(channel, max(have + size, HELD_MIN))
        memcpy(channel.held.memory + channel.end, bytes, size)
        channel.end += size
        return 0

    cdef bint grow_held(self, Channel channel) except -1:
        """Make room for more of an incomplete frame; return False if it must wait for others."""
        cdef Buffer held = channel.held
        cdef Py_ssize_t have = channel.end - channel.begin
        cdef Py_ssize_t whole = PREFIX + load_i32(held.memory + channel.begin)
        cdef Py_ssize_t target = min(whole, max(GROWTH * have, SCRATCH))
        if held.capacity - channel.end >= min(whole - have, have):
            return True             # room to double, or for the rest of the frame
        if target > SCRATCH and 0 < self.held_size_max < self.held_size - held.capacity + target:
            if self.exempt is None:
                self.exempt = channel
            elif self.exempt is not channel:
                channel.waiting = True
                self.waiting.append(channel)
                return False
        self.move_held(channel, target)
        return True

    cdef int move_held(self, Channel channel, Py_ssize_t capacity) except -1:
        """Move a channel's bytes to the start of a buffer of at least this capacity."""
        cdef Buffer old = channel.held
        cdef Buffer new = None
        cdef Py_ssize_t at, have = channel.end - channel.begin if old is not None else 0
        if old is not None and old.capacity >= capacity and old.views == 0:
            memmove(old.memory, old.memory + channel.begin, have)
            channel.begin, channel.end = 0, have
            return 0
        for at in range(len(self.spares) if capacity > SCRATCH else 0):
            if (<Buffer> self.spares[at]).capacity >= capacity:
                new = <Buffer> self.spares.pop(at)
                self.spare_size -= new.capacity
                break
        if new is None:
            new = Buffer(capacity)
        if old is not None:
            memcpy(new.memory, old.memory + channel.begin, have)
            self.held_size -= old.capacity
            self.spare(old)
        channel.held, channel.begin, channel.end = new, 0, have
        self.held_size += new.capacity
        return 0

    cdef int release_held(self, Channel channel) except -1:
        """Release the channel's buffer if it is empty; resume the channels that wait for room."""
        cdef list waiting = self.waiting
        if channel.held is None or channel.begin < channel.end:
            return 0
        self.held_size -= channel.held.capacity
        self.spare(channel.held)
        channel.held, channel.begin, channel.end = None, 0, 0
        if self.exempt is channel:
            self.exempt = None
        if waiting:
            self.waiting = []
            for channel in waiting:
                channel.waiting = False
                self.mark_ready(channel)
        return 0

    cdef int spare(self, Buffer buffer) except -1:
        """Keep a large buffer for the next large frame, up to SPARES_SIZE_MAX in total."""
        if buffer.views:
            self.views_kept += 1
        elif buffer.capacity > SCRATCH and self.spare_size + buffer.capacity <= SPARES_SIZE_MAX:
            self.spares.append(buffer)
            self.spare_size += buffer.capacity
        return 0

    def trim(self):
        """Free the spare buffers."""
        self.spares.clear()
        self.spare_size = 0

    # Sending.

    def write_responses(self):
        """Send queued responses; the rest waits until the socket is writable."""
        cdef list dirty = self.dirty
        cdef Py_ssize_t budget = SENT_PER_TICK
        cdef Channel channel
        self.dirty = []
        for channel in dirty:
            channel.dirty = False
            if channel.descriptor < 0:
                continue
            if budget > 0:
                budget -= self.flush(channel)
            elif channel.out.count:
                self.mark_dirty(channel)
            if channel.finishing and channel.out.count == 0 and channel.descriptor >= 0:
                self.drop(channel)
            else:
                self.schedule_next(channel)
        while self.stopped and not self.short_of_memory():
            self.schedule_next(self.stopped.pop())
        self.closing.clear()
        self.step = None if dirty and step_ended(&self.times) else self.step
        if tick_ended(&self.times) and self.slow is not None:
            self.slow(self.times.tick_ns, self.times.tick_cpu_ns, self.times.step_ns, self.step)

    cdef Py_ssize_t flush(self, Channel channel) except -1:
        """Send a channel's queued bytes up to its share of a tick; return how much was used."""
        cdef Outcome outcome
        cdef Py_ssize_t sent, share = SENT_PER_CONNECTION
        if not channel.writable:
            return 0
        sent = outgoing_send(&channel.out, channel.descriptor, &share, &outcome)
        if sent:
            channel.has_traffic = True
            channel.count_queued()
            channel.sent_ns = self.times.last
            self.bytes_out += sent
        if outcome == SHARE_USED:
            self.mark_dirty(channel)
        elif outcome == SOCKET_FULL:
            channel.writable = False    # free space triggers a new event
        elif outcome == BROKEN:
            self.drop(channel)
        return SENT_PER_CONNECTION - share

    cdef int mark_dirty(self, Channel channel) except -1:
        if not channel.dirty:
            channel.dirty = True
            self.dirty.append(channel)
        return 0

    cdef int mark_ready(self, Channel channel) except -1:
        if not (channel.is_ready or channel.waiting):
            channel.is_ready = True
            self.ready.append(channel)
        return 0

    cdef int drop(self, Channel channel) except -1:
        """Close a connection: its descriptor, its buffers and its entry in every queue."""
        cdef DeferredResponse response
        del self.sources[channel.descriptor]
        close_descriptor(channel.descriptor)    # not shared, so epoll unregisters it
        channel.descriptor = -1
        self.closing.append(channel)
        outgoing_clear(&channel.out)
        channel.parked = 0
        channel.count_queued()
        self.stopped.discard(channel)
        deferred, channel.deferred = channel.deferred, None
        if channel.waiting:
            self.waiting.remove(channel)
        channel.begin = channel.end
        self.release_held(channel)
        for response in deferred or ():
            if response.chunks is None and response.abandoned is not None:
                response.abandoned()
                response.abandoned = None   # breaks a reference cycle with the sender
        channel.closed()
        return 0
