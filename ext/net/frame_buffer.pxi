"""Buffer: memory for received frames, with a window that a memoryview exposes.

Included by loop.pyx: a .pxd file cannot share an extension type inline.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint8_t

cimport cython


@cython.final
cdef class Buffer:
    """Memory block; its buffer protocol exports the current window, and counts exported views."""
    cdef uint8_t* memory
    cdef Py_ssize_t capacity, start, size
    cdef Py_ssize_t views

    def __cinit__(self, Py_ssize_t capacity):
        self.memory = <uint8_t*> PyMem_RawMalloc(capacity)
        if self.memory is NULL:
            raise MemoryError
        self.capacity = capacity

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory + self.start, self.size, 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1
