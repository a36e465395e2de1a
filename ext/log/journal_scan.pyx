"""JournalScan: the last record of each key in a coordinator's log, while its batches are read.

    scan = JournalScan(is_transactional)
    code, position = scan.run(content)

`latest` has the records that are valid: outside of transactions, and in committed ones.  A commit
marker makes a record of its transaction the last one of its key, unless a later one is; an abort
marker drops it, and so does a tombstone outside of transactions.  `pending` has the records of
transactions without a marker, by producer.  Both are in the order in which their records became
valid, or pending.  `next_offset` follows the last batch.

A compressed batch is given to `add_payload` after it was decompressed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from batch_layout cimport *
from batch_walk cimport AT_END as AT_END_
from batch_walk cimport COMPRESSED as COMPRESSED_
from batch_walk cimport Batch, miscounted, open_batch
from big_endian cimport load_i16, load_i64
from control_record cimport read_control
from record_walk cimport Field, Record, take_record


cdef enum:
    ABORT = 0
    COMMIT = 1

AT_END = AT_END_
COMPRESSED = COMPRESSED_


cdef class JournalScan:
    """The last records of a log; see the module.  Codes are Kafka's, or one of those above."""

    cdef readonly dict latest
    cdef readonly dict pending
    cdef readonly int64_t next_offset
    cdef bint is_transactional

    def __cinit__(self, bint is_transactional):
        self.latest = {}
        self.pending = {}
        self.is_transactional = is_transactional

    def run(self, content, Py_ssize_t position=0) -> tuple:
        """Read batches from a position on; return (code, position after the last one).

        The code is AT_END, COMPRESSED at such a batch, or the reason why the batch is not valid.
        """
        cdef Py_buffer view
        cdef Batch batch
        cdef int code
        cdef const uint8_t* at
        assert position >= 0
        PyObject_GetBuffer(content, &view, PyBUF_SIMPLE)
        try:
            while True:
                at = <const uint8_t*> view.buf + position
                code = open_batch(at, view.len - position, True, &batch)
                if code == NONE:
                    if batch.attributes & CONTROL:
                        self.end_transaction(at, &batch)
                    elif batch.attributes & CODEC_MASK:
                        code = COMPRESSED_
                    else:
                        code = self.add(at, &batch, at + HEADER_SIZE, batch.size - HEADER_SIZE)
                if code:
                    return code, position
                position += batch.size
        finally:
            PyBuffer_Release(&view)

    def add_payload(self, batch, payload) -> int:
        """Add the records of a compressed batch, decompressed; return the code."""
        cdef Py_buffer head, view
        cdef Batch fields
        cdef int code
        PyObject_GetBuffer(batch, &head, PyBUF_SIMPLE)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            code = open_batch(<const uint8_t*> head.buf, head.len, True, &fields)
            if code:
                return code
            return self.add(
                <const uint8_t*> head.buf, &fields, <const uint8_t*> view.buf, view.len
            )
        finally:
            PyBuffer_Release(&view)
            PyBuffer_Release(&head)

    cdef int add(
        self, const uint8_t* batch, const Batch* fields, const uint8_t* at, Py_ssize_t size
    ) except -100:
        """Add the records of a batch; return NONE, or INVALID_RECORD."""
        cdef const uint8_t* end = at + size
        cdef int64_t previous = -1
        cdef int32_t _
        cdef Record record
        cdef dict records = self.latest
        cdef bint is_pending = self.is_transactional and fields.attributes & TRANSACTIONAL
        cdef object value, key
        cdef int16_t epoch = -1
        if miscounted(fields, size):
            return INVALID_RECORD
        if is_pending and fields.count:
            records = self.pending.setdefault(load_i64(batch + PRODUCER_ID), {})
            epoch = load_i16(batch + PRODUCER_EPOCH)
        self.next_offset = fields.last_offset + 1
        for _ in range(fields.count):
            at = take_record(at, end, &record)
            if at == NULL or record.offset_delta <= previous:
                return INVALID_RECORD
            previous = record.offset_delta
            if record.key.size < 0:
                continue
            key = bytes_of(record.key)
            value = bytes_of(record.value)
            records.pop(key, None)
            if is_pending:
                records[key] = (fields.base_offset + previous, value, epoch)
            else:
                records[key] = (fields.base_offset + previous, value)
                if value is None and self.pending:
                    for undecided in self.pending.values():
                        undecided.pop(key, None)
        if at != end or previous > fields.last_offset - fields.base_offset:
            return INVALID_RECORD
        return NONE

    cdef int end_transaction(self, const uint8_t* batch, const Batch* fields) except -100:
        """Commit or drop the pending records of a producer."""
        cdef int16_t control_type
        cdef int32_t coordinator_epoch
        cdef dict ended
        cdef tuple before
        self.next_offset = fields.last_offset + 1
        read_control(batch, fields.size, &control_type, &coordinator_epoch)
        if control_type != ABORT and control_type != COMMIT:
            return NONE                     # emptied by compaction, or of a type readers ignore
        ended = self.pending.pop(load_i64(batch + PRODUCER_ID), None)
        if ended is None or control_type == ABORT:
            return NONE
        for key, (offset, value, _) in ended.items():
            before = self.latest.get(key)
            if before is None or before[0] < offset:
                self.latest.pop(key, None)
                self.latest[key] = (offset, value)
        return NONE


cdef inline object bytes_of(Field field):
    if field.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*> field.at, field.size)
