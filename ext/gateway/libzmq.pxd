"""The libzmq functions that a receive loop needs, looked up in the library that pyzmq has loaded.

pyzmq's wheel has its own libzmq, so nothing is linked here: the functions are looked up through
pyzmq's compiled backend, which resolves them whether libzmq is a separate library or linked in.  A
message is 64 opaque bytes since libzmq 4.1 (zmq.h).
"""

from libc.errno cimport EAGAIN, EINTR
from libc.stddef cimport size_t
from libc.stdint cimport int64_t


cdef extern from "<dlfcn.h>" nogil:
    int RTLD_NOW
    int RTLD_NOLOAD
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* name)


cdef enum:
    DONTWAIT = 1
    SNDMORE = 2


ctypedef union zmq_msg_t:
    char opaque[64]
    void* aligned


cdef struct Libzmq:
    int (*msg_init)(zmq_msg_t*) noexcept nogil
    int (*msg_recv)(zmq_msg_t*, void*, int) noexcept nogil
    int (*msg_close)(zmq_msg_t*) noexcept nogil
    void* (*msg_data)(zmq_msg_t*) noexcept nogil
    size_t (*msg_size)(const zmq_msg_t*) noexcept nogil
    int (*msg_more)(const zmq_msg_t*) noexcept nogil
    int (*send)(void*, const void*, size_t, int) noexcept nogil
    int (*error)() noexcept nogil


cdef inline bint find(Libzmq* zmq, const char* path) noexcept nogil:
    """Look up the functions; return False if the library is not loaded or lacks one."""
    cdef void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD)
    if library == NULL:
        return False
    zmq.msg_init = <int (*)(zmq_msg_t*) noexcept nogil> dlsym(library, "zmq_msg_init")
    zmq.msg_recv = <int (*)(zmq_msg_t*, void*, int) noexcept nogil> dlsym(library, "zmq_msg_recv")
    zmq.msg_close = <int (*)(zmq_msg_t*) noexcept nogil> dlsym(library, "zmq_msg_close")
    zmq.msg_data = <void* (*)(zmq_msg_t*) noexcept nogil> dlsym(library, "zmq_msg_data")
    zmq.msg_size = <size_t (*)(const zmq_msg_t*) noexcept nogil> dlsym(library, "zmq_msg_size")
    zmq.msg_more = <int (*)(const zmq_msg_t*) noexcept nogil> dlsym(library, "zmq_msg_more")
    zmq.send = <int (*)(void*, const void*, size_t, int) noexcept nogil> dlsym(library, "zmq_send")
    zmq.error = <int (*)() noexcept nogil> dlsym(library, "zmq_errno")
    return (
        zmq.msg_init != NULL and zmq.msg_recv != NULL and zmq.msg_close != NULL
        and zmq.msg_data != NULL and zmq.msg_size != NULL and zmq.msg_more != NULL
        and zmq.send != NULL and zmq.error != NULL
    )


cdef inline int receive(
    Libzmq* zmq, void* socket, zmq_msg_t* frames, int count_max, int64_t* size, bint* too_many
) noexcept nogil:
    """Receive the frames of one message, at most `count_max`; return their number, 0 if no message
    is waiting, or -1 on an error.

    The caller must close the received frames.  Their bytes are added to `size`; further frames are
    received and closed.
    """
    cdef zmq_msg_t rest
    cdef zmq_msg_t* frame = frames
    cdef int count = 0, code
    cdef bint more = True
    too_many[0] = False
    while more:
        zmq.msg_init(frame)
        while zmq.msg_recv(frame, socket, DONTWAIT) < 0:
            # libzmq delivers a message whole, so this happens before its first frame only.
            code = zmq.error()
            if code != EINTR:
                zmq.msg_close(frame)
                return 0 if code == EAGAIN else -1
        size[0] += <int64_t> zmq.msg_size(frame)
        more = zmq.msg_more(frame)
        if frame == &rest:
            zmq.msg_close(frame)
        else:
            count += 1
            frame = frames + count
        if more and count == count_max:
            frame = &rest
            too_many[0] = True
    return count
