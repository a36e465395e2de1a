"""OpenBatch: records of one partition, and the DEALER requests that they belong to.

Included by gateway_receiver.pyx, because a compiled class can be shared within one module only.
"""

import cython
from cpython.bytearray cimport PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

from batch_layout cimport HEADER_SIZE


cdef enum:
    # A DealerRequest with its two bytes objects and its entry in a queue.
    REQUEST_SIZE = 256


@cython.final
@cython.freelist(1024)
cdef class DealerRequest:
    """A message of a DEALER that gets a response."""

    cdef readonly bytes identity
    cdef bytes correlation
    cdef int waiting            # batches with records of it that are not settled
    cdef int code
    cdef int32_t partition      # -1: none, or several
    cdef int64_t offset         # of its first record
    cdef bint settled           # at least one of its batches was settled
    cdef str sentence

    cdef void settle(self, int code, int32_t partition, int64_t offset, str sentence):
        """Add the outcome of its records in one batch."""
        if code:
            if not self.code:
                self.code = code
                self.sentence = sentence
        elif not self.settled:
            self.partition = partition
            self.offset = offset
        elif self.partition != partition:
            self.partition = -1
            self.offset = -1
        elif offset < self.offset:
            self.offset = offset
        self.settled = True

    @property
    def size(self) -> int:
        """The least memory that it takes until its response is sent."""
        return REQUEST_SIZE + PyBytes_GET_SIZE(self.correlation)

    def fail(self, int code, str sentence) -> None:
        """Record the error of a message that was refused as a whole."""
        self.settle(code, -1, -1, sentence)


cdef DealerRequest new_request(bytes identity, bytes correlation):
    cdef DealerRequest request = DealerRequest.__new__(DealerRequest)
    request.identity = identity
    request.correlation = correlation
    request.partition = -1
    request.offset = -1
    request.sentence = ""
    return request


@cython.final
@cython.freelist(1024)
cdef class RequestShare:
    """The records of a batch that belong to one request."""

    cdef DealerRequest request
    cdef int32_t first
    cdef int32_t count


cdef RequestShare new_share(DealerRequest request, int32_t first, int32_t count):
    cdef RequestShare share = RequestShare.__new__(RequestShare)
    share.request = request
    share.first = first
    share.count = count
    request.waiting += 1
    return share


@cython.final
cdef class OpenBatch:
    """Records of one partition."""

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly bytearray content     # 61 bytes for the header, the records, and free space
    cdef readonly int64_t size          # of the records
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t began_ms
    cdef bint is_closed
    cdef list shares                    # None: no record belongs to a request

    cdef int make_room(self, int64_t size) except -1:
        """Grow `content` to hold `size` more bytes of records."""
        cdef int64_t wanted = HEADER_SIZE + self.size + size
        cdef int64_t room = PyByteArray_GET_SIZE(self.content)
        if wanted > room:
            PyByteArray_Resize(self.content, max(wanted, 2 * room))
        return 0

    def settle(self, int code, int64_t base_offset, str sentence) -> list:
        """Settle a written or refused batch; return the requests that now can get a response."""
        cdef RequestShare share
        cdef list done = []
        if self.shares is None:
            return done
        for share in self.shares:
            share.request.settle(code, self.partition, base_offset + share.first, sentence)
            share.request.waiting -= 1
            if not share.request.waiting:
                done.append(share.request)
        self.shares = None
        return done

    def split(self, list payloads, list counts, list max_timestamps) -> list:
        """Return its records as several batches with these encoded payloads; it is empty then."""
        cdef OpenBatch part
        cdef RequestShare share
        cdef list parts = []
        cdef int32_t first = 0, begin, end, count
        assert sum(counts) == self.count
        for payload, count, max_timestamp in zip(payloads, counts, max_timestamps, strict=True):
            part = OpenBatch.__new__(OpenBatch)
            part.topic = self.topic
            part.partition = self.partition
            part.content = bytearray(HEADER_SIZE) + <bytes> payload
            part.size = len(payload)
            part.count = count
            part.base_timestamp = self.base_timestamp
            part.max_timestamp = max_timestamp
            part.began_ms = self.began_ms
            part.is_closed = True
            for share in self.shares or ():
                begin = max(share.first, first)
                end = min(share.first + share.count, first + count)
                if begin < end:
                    if part.shares is None:
                        part.shares = []
                    part.shares.append(new_share(share.request, begin - first, end - begin))
            parts.append(part)
            first += count
        for share in self.shares or ():
            share.request.waiting -= 1
        self.shares = None
        self.count = 0
        return parts

    cdef int share(self, DealerRequest request) except -1:
        """Add the next record to the share of a request."""
        cdef RequestShare last = None
        if self.shares is None:
            self.shares = []
        elif self.shares:
            last = self.shares[len(self.shares) - 1]
        if last is not None and last.request is request:
            last.count += 1
        else:
            self.shares.append(new_share(request, self.count, 1))
        return 0
