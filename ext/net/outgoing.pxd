"""The send queue of one socket: chunks of memory and file slices, in order.

A response is queued as its size and its chunks.  Runs of chunks are sent by sendmsg and file slices
by sendfile, which reads them in the kernel.  A chunk is held until its last byte was sent.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from big_endian cimport store_i32
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset
from sockets cimport (
    MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, iovec, msghdr, sendfile, sendmsg, set_cork,
)


cdef enum:
    PREFIX = 4                      # size field before every frame
    RUN_MAX = 64                    # maximum number of chunks in one sendmsg
    PIECES_KEPT = 64                # capacity kept when the queue is empty
    CALL_SIZE = 8192                # minimum cost of a call in bytes: it takes as long

cdef enum Outcome:                  # reason for which sending ended
    NOTHING_LEFT, SHARE_USED, SOCKET_FULL, BROKEN


cdef struct Piece:
    PyObject* owner                 # the bytes or the file slice, a reference that is owned
    const char* bytes               # NULL: a file slice
    int file
    int64_t position
    Py_ssize_t size                 # bytes not yet sent
    bint ends_response


cdef struct Outgoing:
    Piece* pieces                   # a ring buffer
    Py_ssize_t head, count, room
    Py_ssize_t size                 # bytes in memory, without those in files
    Py_ssize_t responses


cdef inline Piece* outgoing_next(Outgoing* out) except NULL:
    """Return a new zeroed piece at the end of the queue."""
    cdef Py_ssize_t room, front
    cdef Piece* pieces
    cdef Piece* piece
    if out.count == out.room:
        room = max(8, 2 * out.room)
        pieces = <Piece*> PyMem_RawMalloc(room * sizeof(Piece))
        if pieces is NULL:
            raise MemoryError
        front = min(out.count, out.room - out.head)
        if out.count:
            memcpy(pieces, out.pieces + out.head, front * sizeof(Piece))
            memcpy(pieces + front, out.pieces, (out.count - front) * sizeof(Piece))
        PyMem_RawFree(out.pieces)
        out.pieces, out.head, out.room = pieces, 0, room
    piece = &out.pieces[(out.head + out.count) % out.room]
    memset(piece, 0, sizeof(Piece))
    out.count += 1
    return piece


cdef inline int outgoing_bytes(Outgoing* out, bytes chunk) except -1:
    cdef Piece* piece = outgoing_next(out)
    Py_INCREF(chunk)
    piece.owner = <PyObject*> chunk
    piece.bytes = PyBytes_AS_STRING(chunk)
    piece.size = PyBytes_GET_SIZE(chunk)
    out.size += piece.size
    return 0


cdef inline int outgoing_slice(Outgoing* out, object file_slice) except -1:
    cdef int file = file_slice.file.fileno()
    cdef int64_t position = file_slice.position
    cdef Py_ssize_t size = file_slice.size
    cdef Piece* piece
    if size:
        piece = outgoing_next(out)
        Py_INCREF(file_slice)
        piece.owner = <PyObject*> file_slice
        piece.file = file
        piece.position = position
        piece.size = size
    return 0


cdef inline Py_ssize_t memory_size(list chunks) except -1:
    """Return the number of bytes that chunks take in memory."""
    cdef Py_ssize_t size = 0
    for chunk in chunks:
        size += PyBytes_GET_SIZE(chunk) if type(chunk) is bytes else 0
    return size


cdef inline int outgoing_response(Outgoing* out, list chunks) except -1:
    """Queue one response: its size, then its chunks."""
    cdef Py_ssize_t total = 0
    cdef uint8_t prefix[PREFIX]
    for chunk in chunks:
        total += PyBytes_GET_SIZE(chunk) if type(chunk) is bytes else <Py_ssize_t> chunk.size
    assert 0 <= total <= 0x7FFFFFFF, "a response larger than a frame"
    store_i32(prefix, <int32_t> total)
    outgoing_bytes(out, PyBytes_FromStringAndSize(<char*> prefix, PREFIX))
    for chunk in chunks:
        if type(chunk) is not bytes:
            outgoing_slice(out, chunk)
        elif PyBytes_GET_SIZE(chunk):
            outgoing_bytes(out, <bytes> chunk)
    out.pieces[(out.head + out.count - 1) % out.room].ends_response = True
    out.responses += 1
    return 0


cdef inline int outgoing_sent(Outgoing* out, Py_ssize_t size) except -1:
    """Remove sent bytes from the first piece, and the piece from the queue once it is sent."""
    cdef Piece* piece = &out.pieces[out.head]
    piece.size -= size
    if piece.bytes is not NULL:
        piece.bytes += size
        out.size -= size
    else:
        piece.position += size
    if piece.size == 0:
        out.responses -= piece.ends_response
        out.head = (out.head + 1) % out.room
        out.count -= 1
        Py_DECREF(<object> piece.owner)
    return 0


cdef inline Py_ssize_t outgoing_send_run(Outgoing* out, int descriptor) except -2:
    """Send the chunks up to the next file slice in one call; return its result."""
    cdef iovec run[RUN_MAX]
    cdef msghdr message
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t went, left, first
    cdef Piece* piece
    while count < out.count and count < RUN_MAX:
        piece = &out.pieces[(out.head + count) % out.room]
        if piece.bytes is NULL:
            break
        run[count].iov_base = <void*> piece.bytes
        run[count].iov_len = piece.size
        count += 1
    memset(&message, 0, sizeof(msghdr))
    message.msg_iov = run
    message.msg_iovlen = count
    # If more follows it is sent next: MSG_MORE lets it share the TCP segment.
    went = sendmsg(descriptor, &message,
                   MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if count < out.count else 0))
    left = went
    while left > 0:
        first = min(left, out.pieces[out.head].size)
        outgoing_sent(out, first)
        left -= first
    return went


cdef inline Py_ssize_t outgoing_send_slice(Outgoing* out, int descriptor,
                                           Py_ssize_t share) except -2:
    """Send from the file slice that is first in the queue; return the call's result."""
    cdef int64_t position = out.pieces[out.head].position
    cdef Py_ssize_t size = min(out.pieces[out.head].size, share)
    cdef int file = out.pieces[out.head].file
    cdef Py_ssize_t went
    with nogil:                     # a page that is not cached is read from the disk
        went = sendfile(descriptor, file, &position, size)
    if went > 0:
        outgoing_sent(out, went)
    return went


cdef inline Py_ssize_t outgoing_send(Outgoing* out, int descriptor, Py_ssize_t* share,
                                     Outcome* outcome) except -1:
    """Send about `share` bytes, if the socket takes them; return how many were sent, and in
    `outcome` the reason it ended.

    `share` is reduced by what was sent, or by CALL_SIZE for a call that sent less: a fetch of
    thousands of partitions is as many small slices.
    """
    cdef Py_ssize_t sent = 0
    cdef Py_ssize_t went
    cdef bint is_corked = False
    outcome[0] = NOTHING_LEFT
    while out.count:
        if share[0] <= 0:
            outcome[0] = SHARE_USED
            break
        if out.pieces[out.head].bytes is not NULL:
            went = outgoing_send_run(out, descriptor)
        else:
            # The end of a fetch response has no segment of its own, which would wake its client.
            if out.count > 1 and not is_corked:
                set_cork(descriptor, 1)
                is_corked = True
            went = outgoing_send_slice(out, descriptor, share[0])
        share[0] -= max(went, CALL_SIZE)
        if went > 0:
            sent += went
        elif went < 0 and errno == EAGAIN:
            outcome[0] = SOCKET_FULL
            break
        elif went == 0 or errno != EINTR:   # 0: the file is shorter than its slice
            outcome[0] = BROKEN
            break
    if is_corked:
        set_cork(descriptor, 0)
    if out.count:
        return sent
    if out.room > PIECES_KEPT:
        outgoing_clear(out)
    return sent


cdef inline int outgoing_clear(Outgoing* out) except -1:
    """Drop everything queued, and free the memory."""
    while out.count:
        out.count -= 1
        Py_DECREF(<object> out.pieces[(out.head + out.count) % out.room].owner)
    PyMem_RawFree(out.pieces)
    memset(out, 0, sizeof(Outgoing))
    return 0
