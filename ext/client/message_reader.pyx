# cython: embedsignature.format=clinic
"""Decoder of fetched batches into Message objects.

A RowBuilder has the interface of a ColumnBuilder: it takes the same record sets, skips and
validates the same things, and appends a batch completely or not at all.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t

from aborted_transactions cimport Aborted, open_aborted
from batch_layout cimport *
from batch_walk cimport (
    Batch, Walk, has_no_records, miscounted, next_batch, open_only_batch, pass_batch, timestamp_of,
)
from record_walk cimport Field, Record, take_field, take_record


cdef int64_t NO_TIMESTAMP = -1


@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class Message:
    """One record as it was read; immutable and hashable.

    Its fields refer to no other objects, so no reference cycle contains a message.

    Args:
        topic: Name of the topic.
        partition: Partition number.
        offset: Offset in the partition.
        timestamp: Milliseconds since 1970, or None if the record has none.
        timestamp_type: 0 CreateTime, 1 LogAppendTime.
        key: Key bytes, or None.
        value: Value bytes, or None for a tombstone.
        headers: (name, value) pairs; a value is bytes or None.
    """

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t offset
    cdef int64_t timestamp_ms
    cdef readonly int timestamp_type
    cdef readonly bytes key
    cdef readonly bytes value
    cdef tuple named

    def __init__(
        self, str topic, int32_t partition, int64_t offset, timestamp=None,
        int timestamp_type=0, bytes key=None, bytes value=None, headers=(),
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = NO_TIMESTAMP if timestamp is None else timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.named = tuple([plain_header(name, content) for name, content in headers])

    @property
    def timestamp(self):
        """Milliseconds since 1970, or None for a record without a timestamp."""
        return None if self.timestamp_ms == NO_TIMESTAMP else self.timestamp_ms

    def __getattr__(self, name):
        if name == "error":
            raise AttributeError(
                "Message has no error(): poll() raises errors, and what it returns is a record."
                "  Its parts are attributes: message.value, not message.value()"
            )
        raise AttributeError(f"'Message' object has no attribute {name!r}")

    @property
    def headers(self) -> list:
        """List of (name, value) pairs; a new list on each access."""
        return list(self.named)

    cdef tuple parts(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.key,
            self.value, self.named,
        )

    def __reduce__(self):
        return Message, self.parts()

    def __eq__(self, other):
        return isinstance(other, Message) and self.parts() == (<Message> other).parts()

    def __hash__(self):
        return hash(self.parts())

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, timestamp_type={self.timestamp_type}, "
            f"key={self.key!r}, value={self.value!r}, headers={list(self.named)!r})"
        )


cdef tuple plain_header(str name, bytes content):
    return name, content


cdef inline bytes bytes_of(const Field* field):
    if field.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*> field.at, field.size)


cdef tuple headers_of(const Record* record, const uint8_t* end):
    """Return the headers of a record that `take_record` has validated."""
    cdef const uint8_t* at = record.headers
    cdef Field name, value
    cdef list headers = []
    for _ in range(record.header_count):
        at = take_field(take_field(at, end, &name), end, &value)
        headers.append((
            PyUnicode_DecodeUTF8(<const char*> name.at, name.size, "surrogateescape"),
            bytes_of(&value),
        ))
    return tuple(headers)


@cython.final
cdef class RowBuilder:
    """Decodes one partition's records into Messages; header names as in `records.decode`."""

    cdef str topic
    cdef int32_t partition
    cdef bint check_crcs
    cdef list rows
    cdef Py_ssize_t data_size

    def __init__(self, str topic not None, int32_t partition, bint check_crcs=True) -> None:
        self.topic = topic
        self.partition = partition
        self.check_crcs = check_crcs
        self.rows = []

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Uncompressed bytes of the decoded records."""
        return self.data_size

    cdef int append_records(
        self, const Batch* batch, const uint8_t* at, Py_ssize_t size, int64_t first_offset
    ) except -100:
        cdef const uint8_t* end = at + size
        cdef int64_t previous = -1
        cdef int64_t last = batch.last_offset - batch.base_offset
        cdef int32_t _
        cdef Record record
        cdef Message row
        if miscounted(batch, size):
            return INVALID_RECORD
        for _ in range(batch.count):
            at = take_record(at, end, &record)
            if at == NULL or not previous < record.offset_delta <= last:
                return INVALID_RECORD
            previous = record.offset_delta
            if batch.base_offset + previous < first_offset:
                continue
            row = Message.__new__(Message)
            row.topic = self.topic
            row.partition = self.partition
            row.offset = batch.base_offset + previous
            row.timestamp_ms = timestamp_of(batch, &record)
            row.timestamp_type = batch.attributes & LOG_APPEND_TIME != 0
            row.key = bytes_of(&record.key)
            row.value = bytes_of(&record.value)
            row.named = headers_of(&record, at) if record.header_count else ()
            self.rows.append(row)
        return NONE if at == end else INVALID_RECORD

    cdef int append_batch(
        self, const Batch* batch, const uint8_t* at, Py_ssize_t size, int64_t first_offset
    ) except -100:
        """Append the batch's records, or none of them."""
        cdef Py_ssize_t count = len(self.rows)
        cdef int code = self.append_records(batch, at, size, first_offset)
        if code:
            del self.rows[count:]
        elif len(self.rows) > count:    # compaction may remove records at a batch's end
            self.data_size += size
        return code

    def add(self, batch, payload, int64_t first_offset) -> int:
        """Append one batch; see `ColumnBuilder.add`.  Never returns FULL."""
        cdef Py_buffer whole, decompressed
        cdef Batch fields
        cdef const uint8_t* at
        cdef int code
        PyObject_GetBuffer(batch, &whole, PyBUF_SIMPLE)
        try:
            at = <const uint8_t*> whole.buf
            code = open_only_batch(at, whole.len, self.check_crcs, &fields)
            if code or has_no_records(&fields, first_offset):
                return code
            assert (payload is None) == (fields.attributes & CODEC_MASK == CODEC_NONE)
            if payload is None:
                return self.append_batch(
                    &fields, at + HEADER_SIZE, whole.len - HEADER_SIZE, first_offset
                )
            PyObject_GetBuffer(payload, &decompressed, PyBUF_SIMPLE)
            try:
                at = <const uint8_t*> decompressed.buf
                return self.append_batch(&fields, at, decompressed.len, first_offset)
            finally:
                PyBuffer_Release(&decompressed)
        finally:
            PyBuffer_Release(&whole)

    def add_set(
        self, record_set, Py_ssize_t position, int64_t first_offset, int64_t size_max,
        aborted=None,
    ) -> tuple:
        """Append batches; see `ColumnBuilder.add_set`.  `size_max` limits the records' bytes."""
        cdef Py_buffer view, listed
        cdef Aborted transactions
        cdef Walk walk
        cdef Batch batch
        cdef int code = NONE
        PyObject_GetBuffer(record_set, &view, PyBUF_SIMPLE)
        walk = Walk(<const uint8_t*> view.buf, view.len, position, first_offset,
                    self.check_crcs, NULL)
        try:
            assert 0 <= position <= view.len
            if aborted is not None:
                open_aborted(aborted, &listed, &transactions)
                walk.aborted = &transactions
            while self.data_size < size_max and code == NONE:
                code = next_batch(&walk, &batch)
                if code == NONE:
                    code = self.append_batch(
                        &batch, walk.at + walk.position + HEADER_SIZE, batch.size - HEADER_SIZE,
                        walk.next_offset,
                    )
                if code == NONE:
                    pass_batch(&walk, &batch)
        finally:
            if walk.aborted != NULL:
                PyBuffer_Release(&listed)
            PyBuffer_Release(&view)
        return code, walk.position, walk.next_offset

    def take(self) -> list:
        """Return the messages and reset the builder."""
        rows = self.rows
        self.rows = []
        self.data_size = 0
        return rows
