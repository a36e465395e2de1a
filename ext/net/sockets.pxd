"""System calls for readiness (epoll), receiving and sending."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int count_max, int timeout_ms)
    enum:
        EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL
        EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR
    uint32_t EPOLLET

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t recv(int descriptor, void* into, size_t size, int flags)
    ssize_t recvmsg(int descriptor, msghdr* message, int flags)
    ssize_t sendmsg(int descriptor, const msghdr* message, int flags)
    enum:
        MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE

    int setsockopt(int descriptor, int level, int option, const void* value, unsigned int size)

cdef extern from "<netinet/in.h>" nogil:
    enum:
        IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_CORK

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int socket, int file, int64_t* position, size_t size)

cdef extern from "<unistd.h>" nogil:
    int close_descriptor "close"(int descriptor)


cdef inline int epoll_add(int epoll, int descriptor, uint32_t wanted, void* source) noexcept nogil:
    cdef epoll_event event
    event.events = wanted
    event.data.ptr = source
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event)


cdef inline void set_cork(int descriptor, int is_on) noexcept nogil:
    """Hold back, or send, the incomplete last segment of a TCP connection; others have none."""
    setsockopt(descriptor, IPPROTO_TCP, TCP_CORK, &is_on, sizeof(int))


cdef inline ssize_t receive_both(
    int descriptor, uint8_t* first, size_t first_size, uint8_t* second, size_t second_size
) noexcept nogil:
    """Receive into two buffers in one call; the second may be empty."""
    cdef iovec into[2]
    cdef msghdr message
    into[0].iov_base, into[0].iov_len = first, first_size
    into[1].iov_base, into[1].iov_len = second, second_size
    memset(&message, 0, sizeof(msghdr))
    message.msg_iov = into
    message.msg_iovlen = 2 if second_size else 1
    return recvmsg(descriptor, &message, MSG_DONTWAIT)
