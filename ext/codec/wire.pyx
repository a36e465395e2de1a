"""Hand-written codec of Produce and Fetch: the schema codec without the fields a broker ignores.

The schemas (protocol/schemas/produce.py, fetch.py) are the twins; tests compare every version with
them.  The decoders validate untrusted bytes by the same rules as codec.pyx and return an error code
for invalid ones; the encoders take tuples from the broker and assert.  Encoded responses include
the response header but not the frame size, which the connection prepends.

Topic names are interned in a table of bounded size, in which new names replace old ones: a name is
the same string object in all requests, so Python hashes it once, not once per request.  The table
is the only state kept here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from batch_layout cimport ATTRIBUTES, TRANSACTIONAL
from wire_bytes cimport (
    INVALID_REQUEST, NULL_LENGTH, REQUEST_UNITS_MAX, Cursor, Sink, put_i16, put_i32, put_i64,
    put_length, put_no_tags, put_sized, put_text, put_uvarint, sink_bytes, sink_close, sink_open,
    skip_tags, take, take_count, take_i16, take_i32, take_length,
)


cdef enum:
    PRODUCE_LOW = 3
    PRODUCE_HIGH = 13
    PRODUCE_LOG_START = 5
    PRODUCE_RECORD_ERRORS = 8
    PRODUCE_FLEXIBLE = 9
    PRODUCE_LEADER = 10
    PRODUCE_TOPIC_IDS = 13

    # Number of fields of the schema's structs plus STRUCT_UNITS, as codec.pyx counts them.
    TOPIC_UNITS = 3 + 3
    PRODUCE_PARTITION_UNITS = 25  # not 5: all are handled in one tick; 10,485 rejections take 40 ms

    NO_VERSION = 255


include "topic_names.pxi"


cdef inline void open_cursor(
    Cursor* cursor, const Py_buffer* view, Py_ssize_t position, bint flexible
) noexcept:
    cursor.at = <const uint8_t*> view.buf + min(position, view.len)
    cursor.end = <const uint8_t*> view.buf + view.len
    cursor.units_left = REQUEST_UNITS_MAX
    cursor.flexible = flexible
    cursor.invalid = False


# ---- the header of a request

def decode_header(frame, bytes flexible_from not None):
    """Return `(api_key, version, correlation_id, client_id, body_position)`, or an error code.

    `flexible_from` holds, for each API key, the first version whose header has tagged fields, or
    255 if none has; keys beyond its end have none.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef int16_t api_key, version
    cdef int32_t correlation_id
    cdef int first_flexible = NO_VERSION
    cdef const uint8_t* table = flexible_from
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        open_cursor(&cursor, &view, 0, False)
        api_key = take_i16(&cursor)
        version = take_i16(&cursor)
        correlation_id = take_i32(&cursor)
        # The client id has the non-flexible encoding in every header version.
        client_id = take_nullable_name(&cursor)
        if 0 <= api_key < len(flexible_from):
            first_flexible = table[api_key]
        cursor.flexible = first_flexible != NO_VERSION and version >= first_flexible
        skip_tags(&cursor)
        if cursor.invalid:
            return INVALID_REQUEST
        return (
            api_key, version, correlation_id, client_id,
            cursor.at - <const uint8_t*> view.buf,
        )
    finally:
        PyBuffer_Release(&view)


# ---- Produce

def decode_produce(int version, frame, Py_ssize_t position):
    """Return `(transactional_id, acks, timeout_ms, topics, is_transactional)`, or an error code.

    Topics are `(name or id, partitions)`, partitions `(partition_index, records)`; records are a
    memoryview of the frame, or None.  It is transactional if a batch is, by its header.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef int16_t acks
    cdef int32_t timeout_ms
    cdef bint transactional = False
    assert PRODUCE_LOW <= version <= PRODUCE_HIGH
    assert position >= 0
    if type(frame) is not memoryview:
        frame = memoryview(frame)
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        open_cursor(&cursor, &view, position, version >= PRODUCE_FLEXIBLE)
        transactional_id = take_nullable_name(&cursor)
        acks = take_i16(&cursor)
        timeout_ms = take_i32(&cursor)
        topics = produce_topics(
            &cursor, version >= PRODUCE_TOPIC_IDS, frame, <const uint8_t*> view.buf, &transactional
        )
        skip_tags(&cursor)
        if cursor.invalid:
            return INVALID_REQUEST
        return (transactional_id, acks, timeout_ms, topics, transactional)
    finally:
        PyBuffer_Release(&view)


cdef list produce_topics(
    Cursor* cursor, bint by_id, object frame, const uint8_t* start, bint* transactional
):
    cdef list topics = []
    cdef Py_ssize_t size_min = 3 if cursor.flexible else 6
    cdef Py_ssize_t count
    count = take_count(cursor, size_min + (UUID_SIZE - 1 if by_id else 0), TOPIC_UNITS, False)
    while count > 0 and not cursor.invalid:
        topic = take_topic(cursor, by_id)
        partitions = produce_partitions(cursor, frame, start, transactional)
        skip_tags(cursor)
        topics.append((topic, partitions))
        count -= 1
    return topics


cdef list produce_partitions(
    Cursor* cursor, object frame, const uint8_t* start, bint* transactional
):
    cdef list partitions = []
    cdef Py_ssize_t count = take_count(
        cursor, 6 if cursor.flexible else 8, PRODUCE_PARTITION_UNITS, False
    )
    cdef Py_ssize_t length, at
    cdef int32_t index
    while count > 0 and not cursor.invalid:
        index = take_i32(cursor)
        length = take_length(cursor, 4, True)
        if cursor.invalid:
            break
        if length == NULL_LENGTH:
            partitions.append((index, None))
        else:
            at = take(cursor, length) - start
            if length > ATTRIBUTES + 1 and start[at + ATTRIBUTES + 1] & TRANSACTIONAL:
                transactional[0] = True
            partitions.append((index, frame[at:at + length]))
        skip_tags(cursor)
        count -= 1
    return partitions


def encode_produce(
    int version, int32_t correlation_id, responses, int32_t throttle_ms, node_endpoints=()
):
    """Return the encoded response.

    Topics are `(name or id, partitions)`, partitions PartitionAppendResult (protocol/results.py), a
    leader `(id, epoch)` or None, record errors `(batch index, message)`, and node endpoints `(id,
    host, port, rack)`.
    """
    cdef Sink sink
    assert PRODUCE_LOW <= version <= PRODUCE_HIGH
    sink_open(&sink, version >= PRODUCE_FLEXIBLE)
    try:
        put_i32(&sink, correlation_id)
        put_no_tags(&sink)
        put_length(&sink, len(responses), 4)
        for topic, partitions in responses:
            put_topic(&sink, topic, version >= PRODUCE_TOPIC_IDS)
            put_length(&sink, len(partitions), 4)
            for partition in partitions:
                put_produced(&sink, version, partition)
            put_no_tags(&sink)
        put_i32(&sink, throttle_ms)
        put_nodes(&sink, node_endpoints, version >= PRODUCE_LEADER)
        return sink_bytes(&sink)
    finally:
        sink_close(&sink)


cdef int check_result(object result, Py_ssize_t field_count) except -1:
    """Raise TypeError unless this is a result of so many fields (protocol/results.py).

    A named tuple is a subclass: Cython's own unpacking of exact tuples would iterate over it.
    """
    if not PyTuple_Check(result) or PyTuple_GET_SIZE(result) != field_count:
        raise TypeError(f"expected a result of {field_count} fields, got {result!r}")
    return 0


cdef inline object field(object result, Py_ssize_t index):
    return <object>PyTuple_GET_ITEM(result, index)


cdef int put_produced(Sink* sink, int version, object result) except -1:
    """Write a PartitionAppendResult."""
    check_result(result, 8)
    put_i32(sink, field(result, 0))
    put_i16(sink, field(result, 1))
    put_i64(sink, field(result, 2))
    put_i64(sink, field(result, 3))
    if version >= PRODUCE_LOG_START:
        put_i64(sink, field(result, 4))
    if version >= PRODUCE_RECORD_ERRORS:
        record_errors = field(result, 5)
        put_length(sink, len(record_errors), 4)
        for batch_index, message in record_errors:
            put_i32(sink, batch_index)
            put_nullable_text(sink, message)
            put_no_tags(sink)
        put_nullable_text(sink, field(result, 6))
    current_leader = field(result, 7)
    if version >= PRODUCE_LEADER and has_value(current_leader):
        put_uvarint(sink, 1)
        put_leader(sink, 0, current_leader)
        return 0
    return put_no_tags(sink)


cdef int put_nullable_text(Sink* sink, object text) except -1:
    if text is None:
        return put_length(sink, NULL_LENGTH, 2)
    return put_text(sink, text)


cdef bint has_value(object pair) except -1:
    """Return whether a tagged pair differs from its default, (-1, -1)."""
    return pair is not None and pair != (-1, -1)


cdef int put_leader(Sink* sink, uint32_t tag, object current_leader) except -1:
    leader_id, leader_epoch = current_leader
    put_uvarint(sink, tag)
    put_uvarint(sink, 4 + 4 + 1)
    put_i32(sink, leader_id)
    put_i32(sink, leader_epoch)
    return put_no_tags(sink)


cdef int put_nodes(Sink* sink, object nodes, bint is_sent) except -1:
    """Write the last tagged fields of a response: the endpoints of the leaders in it."""
    cdef Py_ssize_t start
    if not is_sent or not nodes:
        return put_no_tags(sink)
    put_uvarint(sink, 1)
    put_uvarint(sink, 0)
    start = sink.size
    put_length(sink, len(nodes), 4)
    for node_id, host, port, rack in nodes:
        put_i32(sink, node_id)
        put_text(sink, host)
        put_i32(sink, port)
        put_nullable_text(sink, rack)
        put_no_tags(sink)
    return put_sized(sink, start)


include "fetch_wire.pxi"
