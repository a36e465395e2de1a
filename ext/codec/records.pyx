"""Encoding and decoding of the records in a batch's uncompressed payload.

    length            varint   of what follows it
    attributes        i8       unused
    timestamp delta   varint   64 bits, from the batch's base timestamp
    offset delta      varint   from the batch's base offset
    key               bytes    a varint length, -1 for null, and that many bytes
    value             bytes    the same
    header count      varint   then for each: a name (never null) and a value, both as bytes

A payload is valid only if every length stays inside its record, every record inside the payload,
the count is exact, nothing is left over, and offset deltas increase from 0 or later to at most
`last_offset_delta`.  The default of that is `count - 1`, which allows no gaps: the rule for
clients.  With a compacted batch's own value, the gaps left by compaction are allowed.

For any other payload the result is a Kafka error code.  Header names that are not UTF-8 are decoded
and encoded with `surrogateescape`, so that no byte of them is lost.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from batch_layout cimport INVALID_RECORD, NONE, RECORD_SIZE_MIN
from record_walk cimport Field, Record, take_field, take_record
from varint cimport store_varint, varint_size


cdef enum:
    GIL_SIZE_MIN = 32 * 1024


cdef int validate_payload(
    const uint8_t* at, Py_ssize_t size, int64_t count, int64_t last_offset_delta, bint keyed
) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef int64_t previous = -1
    cdef int64_t _
    cdef Record record
    if count < 0 or count > size // RECORD_SIZE_MIN:
        return INVALID_RECORD
    for _ in range(count):
        at = take_record(at, end, &record)
        if at == NULL or record.offset_delta <= previous:
            return INVALID_RECORD
        if keyed and record.key.size < 0:
            return INVALID_RECORD
        previous = record.offset_delta
    return NONE if at == end and previous <= last_offset_delta else INVALID_RECORD


def validate(payload, int64_t count, last_offset_delta=None, *, bint keyed=False) -> int:
    """Return 0 if the payload holds exactly `count` valid records, each with a key if they must be
    `keyed`, or else an error code."""
    cdef Py_buffer view
    cdef int code
    cdef int64_t last = count - 1 if last_offset_delta is None else last_offset_delta
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    if view.len < GIL_SIZE_MIN:
        code = validate_payload(<const uint8_t*> view.buf, view.len, count, last, keyed)
    else:
        with nogil:
            code = validate_payload(<const uint8_t*> view.buf, view.len, count, last, keyed)
    PyBuffer_Release(&view)
    return code


cdef inline object bytes_of(Field field):
    if field.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*> field.at, field.size)


cdef tuple headers_of(Record* record, const uint8_t* end):
    """Return the headers of a record that `take_record` found valid."""
    cdef const uint8_t* at = record.headers
    cdef Field name, value
    cdef list headers = []
    for _ in range(record.header_count):
        at = take_field(take_field(at, end, &name), end, &value)
        assert at != NULL
        headers.append((
            PyUnicode_DecodeUTF8(<const char*> name.at, name.size, "surrogateescape"),
            bytes_of(value),
        ))
    return tuple(headers)


cdef object decode_payload(
    const uint8_t* at, Py_ssize_t size, int64_t count, int64_t last_offset_delta
):
    cdef const uint8_t* end = at + size
    cdef int64_t previous = -1
    cdef int64_t _
    cdef Record record
    cdef list records = []
    if count < 0 or count > size // RECORD_SIZE_MIN:
        return INVALID_RECORD
    for _ in range(count):
        at = take_record(at, end, &record)
        if at == NULL or record.offset_delta <= previous:
            return INVALID_RECORD
        previous = record.offset_delta
        records.append((
            record.offset_delta,
            record.timestamp_delta,
            bytes_of(record.key),
            bytes_of(record.value),
            headers_of(&record, at) if record.header_count else (),
        ))
    if at != end or previous > last_offset_delta:
        return INVALID_RECORD
    return records


def decode(payload, int64_t count, last_offset_delta=None):
    """Return the records as (offset delta, timestamp delta, key, value, headers), or an error
    code."""
    cdef Py_buffer view
    cdef int64_t last = count - 1 if last_offset_delta is None else last_offset_delta
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        return decode_payload(<const uint8_t*> view.buf, view.len, count, last)
    finally:
        PyBuffer_Release(&view)


cdef inline int64_t field_size(bytes field):
    cdef Py_ssize_t size
    if field is None:
        return 1
    size = PyBytes_GET_SIZE(field)
    return varint_size(size) + size


cdef inline uint8_t* store_field(uint8_t* at, bytes field):
    cdef Py_ssize_t size
    if field is None:
        return store_varint(at, -1)
    size = PyBytes_GET_SIZE(field)
    at = store_varint(at, size)
    memcpy(at, PyBytes_AS_STRING(field), size)
    return at + size


cdef tuple headers_encoded(headers):
    """Return the headers' names and values as one flat tuple of bytes."""
    cdef list fields = []
    cdef bytes value
    for name, value in headers:
        fields.append(name.encode("utf-8", "surrogateescape"))
        fields.append(value)
    return tuple(fields)


cdef int64_t body_size(
    int64_t offset_delta, int64_t timestamp_delta, bytes key, bytes value, tuple fields
):
    """Return a record's length field: the size of everything after the length itself."""
    cdef int64_t size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    size += field_size(key) + field_size(value) + varint_size(len(fields) // 2)
    for field in fields:
        size += field_size(field)
    return size


def encode(records) -> bytes:
    """Return the payload of these records, given in the form that `decode` returns."""
    cdef list bodies = []
    cdef int64_t size, total = 0
    cdef int64_t offset_delta, timestamp_delta
    cdef bytes key, value
    cdef tuple fields
    for offset_delta, timestamp_delta, key, value, headers in records:
        assert 0 <= offset_delta <= 0x7FFFFFFF
        fields = headers_encoded(headers) if headers else ()
        size = body_size(offset_delta, timestamp_delta, key, value, fields)
        assert size <= 0x7FFFFFFF, "a record's length is 32 bits"
        total += varint_size(size) + size
        bodies.append((size, offset_delta, timestamp_delta, key, value, fields))

    cdef bytes payload = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* at = <uint8_t*> PyBytes_AS_STRING(payload)
    cdef uint8_t* end = at + total
    for size, offset_delta, timestamp_delta, key, value, fields in bodies:
        at = store_varint(at, size)
        at[0] = 0
        at = store_varint(at + 1, timestamp_delta)
        at = store_varint(at, offset_delta)
        at = store_field(at, key)
        at = store_field(at, value)
        at = store_varint(at, len(fields) // 2)
        for field in fields:
            at = store_field(at, field)
    assert at == end
    return payload
