"""Durations of the event loop's ticks and of the longest step of each.

    tick_begin    events are ready; waiting for them is not part of a tick
    step_ended    a request, a callback or a timer was handled
    tick_ended    the responses are sent: the tick is counted by its duration

The clock is read once per step.  Reading the CPU time of the loop's thread is a system call, so it
is read at most once a millisecond: the CPU time of a slow tick is exact to CPU_AGE_NS.  It tells a
loop that computed from one that waited, for a disk or because other processes had the CPU.

Inline only; each Loop has its own.
"""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec
from waiting cimport now_ns

cdef extern from *:
    int __builtin_clzll(unsigned long long value) nogil

cdef enum:
    TICK_BUCKETS = 54               # limits double from 1.024 us on, as in metrics.Histogram
    SLOW_NS = 50_000_000            # a tick of this duration counts as slow
    CPU_AGE_NS = 1_000_000          # interval of CPU time readings while busy
    CPU_IDLE_NS = 20_000_000        # maximum age of a reading that the next tick may use


cdef struct TickTimes:
    int64_t began, last             # start of the tick, end of its last step
    int64_t step_ns                 # its longest step
    int64_t cpu_at, cpu_ns          # time of the last reading, and the CPU time read
    int64_t tick_ns, tick_cpu_ns    # of the last tick; its CPU time if it was slow
    int64_t total_ns
    int64_t counts[TICK_BUCKETS]


cdef inline int64_t thread_cpu_ns() noexcept nogil:
    cdef timespec used
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used)
    return <int64_t> used.tv_sec * 1_000_000_000 + used.tv_nsec


cdef inline void tick_begin(TickTimes* times) noexcept nogil:
    times.began = times.last = now_ns()
    times.step_ns = 0
    if times.began - times.cpu_at > CPU_IDLE_NS:
        times.cpu_ns = thread_cpu_ns()
        times.cpu_at = times.began


cdef inline bint step_ended(TickTimes* times) noexcept nogil:
    """Note that a step has ended; return whether it is the tick's longest so far."""
    cdef int64_t now = now_ns()
    cdef int64_t took = now - times.last
    times.last = now
    if took <= times.step_ns:
        return False
    times.step_ns = took
    return True


cdef inline bint tick_ended(TickTimes* times) noexcept nogil:
    """Count the tick, whose last step has ended; return whether it was slow."""
    cdef int64_t took = times.last - times.began
    cdef int64_t cpu_ns
    cdef unsigned long long units = <unsigned long long> took >> 10
    times.tick_ns = took
    times.total_ns += took
    times.counts[64 - __builtin_clzll(units) if units else 0] += 1
    if times.last - times.cpu_at > CPU_AGE_NS:
        cpu_ns = thread_cpu_ns()
        times.tick_cpu_ns = min(took, cpu_ns - times.cpu_ns)
        times.cpu_ns, times.cpu_at = cpu_ns, times.last
    return took >= SLOW_NS


cdef inline list times_list(TickTimes* times):
    """Return the total duration of all ticks in ns, then the number of ticks in each bucket."""
    cdef int at
    return [times.total_ns, *[times.counts[at] for at in range(TICK_BUCKETS)]]
