"""Waits for events, polling briefly before sleeping if events follow each other closely.

Sleeping and waking up costs tens of microseconds, more on a virtual CPU, and a process that waits
for each response pays it for every record.  So while a process waits so, and the last event came
within AWAKE_NS, it polls for that long before it sleeps; otherwise it sleeps at once.  An idle
process never polls, and a saturated one never waits.

Inline only.
"""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from sockets cimport epoll_event, epoll_wait

cdef enum:
    AWAKE_NS = 60_000
    LOOKS = 64                      # polls between two readings of the clock


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t> now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef inline int await_events(
    int epoll, epoll_event* events, int count_max, int timeout_ms, bint* soon
) noexcept nogil:
    """Call epoll_wait; `soon` says whether to poll first, then whether the event came soon."""
    cdef int64_t began
    cdef int look
    cdef int count = 0
    if timeout_ms == 0:
        return epoll_wait(epoll, events, count_max, 0)
    began = now_ns()
    if soon[0]:
        while count == 0 and now_ns() - began < AWAKE_NS:
            look = 0
            while count == 0 and look < LOOKS:
                count = epoll_wait(epoll, events, count_max, 0)
                look += 1
    if count == 0:
        count = epoll_wait(epoll, events, count_max, timeout_ms)
    soon[0] = count > 0 and now_ns() - began < AWAKE_NS
    return count
