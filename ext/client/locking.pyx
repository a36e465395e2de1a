"""LockGuard: holds a lock so that KeyboardInterrupt at any moment releases it.

    with LockGuard(lock):                  waits for the lock
    with LockGuard(lock, 0) as is_locked:  does not wait
    with LockGuard(lock, 0, entered) as held:  `held` is `entered(is_locked)`, called inside

A signal handler may raise as soon as a call returns.  After `lock.acquire()` that is before the
`try` that would release the lock; in CPython 3.14 also after the `__enter__` of a `with`
(python/cpython#148874: `__exit__` is then never called).  A guard releases its lock in `__exit__`,
or else when the exception drops the last reference to the guard, which only the `with` has: do not
keep a guard in a variable.

A guard is used once, by one thread.
"""

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class LockGuard:
    """Context manager that holds a lock of `threading`."""

    cdef object _lock
    cdef object _timeout_s
    cdef object _entered
    cdef bint _is_locked

    def __init__(self, lock, timeout_s=None, entered=None):
        """Guard a lock; `timeout_s` is the time to wait for it, 0 tries once, None has no limit."""
        self._lock = lock
        self._timeout_s = timeout_s
        self._entered = entered

    def __enter__(self):
        """Acquire the lock; return whether that succeeded in time, or what `entered` returns."""
        assert not self._is_locked
        if self._timeout_s is None:
            self._is_locked = self._lock.acquire()
        else:
            self._is_locked = self._lock.acquire(True, self._timeout_s)
        if self._entered is None:
            return self._is_locked
        try:
            return self._entered(self._is_locked)
        except BaseException:
            self._release()  # `__exit__` is not called
            raise

    def __exit__(self, *exception):
        self._release()

    def __dealloc__(self):
        self._release()

    cdef int _release(self) except -1:
        if self._is_locked:
            self._is_locked = False
            self._lock.release()
        return 0
