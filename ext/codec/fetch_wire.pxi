"""Fetch: decoding of its requests, encoding of its responses.

Included by wire.pyx, because Produce and Fetch share the table of topic names.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from wire_bytes cimport (
    INVALID_REQUEST, NULL_LENGTH, Cursor, Sink, fail, put_i16, put_i32, put_i64, put_length,
    put_no_tags, put_uvarint, remaining, sink_bytes, sink_close, sink_open, skip_tags, take,
    take_count, take_i8, take_i32, take_i64, take_tag_count, take_uvarint,
)


cdef enum:
    FETCH_LOW = 4
    FETCH_HIGH = 18
    FETCH_LOG_START = 5
    FETCH_SESSIONS = 7
    FETCH_LEADER_EPOCH = 9
    FETCH_RACK = 11
    FETCH_FLEXIBLE = 12
    FETCH_TOPIC_IDS = 13
    FETCH_REPLICA_STATE = 15
    FETCH_NODE_ENDPOINTS = 16
    FETCH_DIRECTORY_ID = 17
    FETCH_HIGH_WATERMARK = 18

    # Maximum number of topics and partitions in one Fetch, including forgotten ones: a tick that
    # decodes them and updates the session takes about 20 ms; everything else runs in steps.
    FETCH_NAMED_MAX = 20_000

    # Ours: the durable offset of a follower, and the start of the leader's epoch.
    FETCH_DURABLE_TAG = 1000
    FETCH_EPOCH_START_TAG = 1000


cdef int64_t UNKNOWN_HIGH_WATERMARK = 0x7FFFFFFFFFFFFFFF


cdef struct FollowerFields:
    int64_t high_watermark
    int64_t durable_offset


FETCH_NAMES_MAX = FETCH_NAMED_MAX


def decode_fetch(int version, frame, Py_ssize_t position):
    """Return `(replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
    session_epoch, topics, forgotten, rack_id, replica_epoch)`, or an error code.

    Topics are `(name or id, partitions)`, partitions `(index, current_leader_epoch, fetch_offset,
    last_fetched_epoch, log_start_offset, partition_max_bytes)`, and of a follower also
    `high_watermark` and `durable_offset`; forgotten topics are `(name or id, indexes)`.  For a
    request with more than FETCH_NAMES_MAX topics and partitions, topics are None and the rest of
    the request is not decoded.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef int32_t replica_id = -1
    cdef int64_t replica_epoch = -1
    cdef int32_t max_wait_ms, min_bytes, max_bytes
    cdef int32_t session_id = 0
    cdef int32_t session_epoch = -1
    cdef int8_t isolation_level
    cdef bint by_id = version >= FETCH_TOPIC_IDS
    cdef int64_t names_left = FETCH_NAMED_MAX
    assert FETCH_LOW <= version <= FETCH_HIGH
    assert position >= 0
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        open_cursor(&cursor, &view, position, version >= FETCH_FLEXIBLE)
        if version < FETCH_REPLICA_STATE:
            replica_id = take_i32(&cursor)
        max_wait_ms = take_i32(&cursor)
        min_bytes = take_i32(&cursor)
        max_bytes = take_i32(&cursor)
        isolation_level = take_i8(&cursor)
        if version >= FETCH_SESSIONS:
            session_id = take_i32(&cursor)
            session_epoch = take_i32(&cursor)
        topics = fetch_topics(&cursor, version, by_id, &names_left)
        forgotten = []
        if version >= FETCH_SESSIONS:
            forgotten = forgotten_topics(&cursor, by_id, &names_left)
        if names_left < 0:
            return (
                replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
                session_epoch, None, [], "", replica_epoch,
            )
        rack_id = take_name(&cursor) if version >= FETCH_RACK else ""
        take_fetch_tags(&cursor, version, &replica_id, &replica_epoch)
        if cursor.invalid:
            return INVALID_REQUEST
        return (
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
            session_epoch, topics, forgotten, rack_id, replica_epoch,
        )
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t take_named_count(
    Cursor* cursor, Py_ssize_t element_size_min, int64_t* names_left
) noexcept:
    """Return the number of topics or partitions that follow; fail if the total is too large.

    This limit is below the one on units; a request that exceeds it gets a response.
    """
    cdef Py_ssize_t count = take_count(cursor, element_size_min, 0, False)
    names_left[0] -= count
    if names_left[0] < 0:
        fail(cursor)
        return 0
    return count


cdef list fetch_topics(Cursor* cursor, int version, bint by_id, int64_t* names_left):
    cdef list topics = []
    cdef Py_ssize_t size_min = 3 if cursor.flexible else 6
    cdef Py_ssize_t count
    if by_id:
        size_min += UUID_SIZE - 1
    count = take_named_count(cursor, size_min, names_left)
    while count > 0 and not cursor.invalid:
        topic = take_topic(cursor, by_id)
        partitions = fetch_partitions(cursor, version, names_left)
        skip_tags(cursor)
        topics.append((topic, partitions))
        count -= 1
    return topics


cdef list fetch_partitions(Cursor* cursor, int version, int64_t* names_left):
    cdef list partitions = []
    cdef Py_ssize_t size_min = 4 + 8 + 4
    cdef Py_ssize_t count
    cdef int32_t index, current_leader_epoch, last_fetched_epoch, partition_max_bytes
    cdef int64_t fetch_offset, log_start_offset
    cdef FollowerFields follower
    if version >= FETCH_LOG_START:
        size_min += 8
    if version >= FETCH_LEADER_EPOCH:
        size_min += 4
    if version >= FETCH_FLEXIBLE:
        size_min += 4 + 1
    count = take_named_count(cursor, size_min, names_left)
    while count > 0 and not cursor.invalid:
        index = take_i32(cursor)
        current_leader_epoch = take_i32(cursor) if version >= FETCH_LEADER_EPOCH else -1
        fetch_offset = take_i64(cursor)
        last_fetched_epoch = take_i32(cursor) if version >= FETCH_FLEXIBLE else -1
        log_start_offset = take_i64(cursor) if version >= FETCH_LOG_START else -1
        partition_max_bytes = take_i32(cursor)
        count -= 1
        if cursor.flexible and take_partition_tags(cursor, version, &follower):
            partitions.append((
                index, current_leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset,
                partition_max_bytes, follower.high_watermark, follower.durable_offset,
            ))
            continue
        partitions.append((
            index, current_leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset,
            partition_max_bytes,
        ))
    return partitions


cdef bint take_partition_tags(
    Cursor* cursor, int version, FollowerFields* follower
) noexcept:
    """Read the tagged fields of a partition; return whether a follower has sent them."""
    cdef uint32_t count = take_tag_count(cursor)
    cdef uint32_t tag, size
    if not count:
        return False
    follower.high_watermark = UNKNOWN_HIGH_WATERMARK
    follower.durable_offset = -1
    while count and not cursor.invalid:
        count -= 1
        tag = take_uvarint(cursor)
        size = take_uvarint(cursor)
        if (tag == 1 or tag == FETCH_DURABLE_TAG) and version >= FETCH_HIGH_WATERMARK:
            if size != 8:
                fail(cursor)
            elif tag == 1:
                follower.high_watermark = take_i64(cursor)
            else:
                follower.durable_offset = take_i64(cursor)
            continue
        take(cursor, size)
        if tag == 0 and version >= FETCH_DIRECTORY_ID and size != UUID_SIZE:
            fail(cursor)
    return (
        follower.high_watermark != UNKNOWN_HIGH_WATERMARK or follower.durable_offset != -1
    )


cdef list forgotten_topics(Cursor* cursor, bint by_id, int64_t* names_left):
    cdef list forgotten = []
    cdef list indexes
    cdef Py_ssize_t size_min = 3 if cursor.flexible else 6
    cdef Py_ssize_t count, index_count
    if by_id:
        size_min += UUID_SIZE - 1
    count = take_named_count(cursor, size_min, names_left)
    while count > 0 and not cursor.invalid:
        topic = take_topic(cursor, by_id)
        indexes = []
        index_count = take_named_count(cursor, 4, names_left)
        while index_count > 0 and not cursor.invalid:
            indexes.append(take_i32(cursor))
            index_count -= 1
        skip_tags(cursor)
        forgotten.append((topic, indexes))
        count -= 1
    return forgotten


cdef int take_fetch_tags(
    Cursor* cursor, int version, int32_t* replica_id, int64_t* replica_epoch
) except -1:
    cdef uint32_t count, tag, size
    cdef const uint8_t* end
    if not cursor.flexible:
        return 0
    count = take_tag_count(cursor)
    while count and not cursor.invalid:
        count -= 1
        tag = take_uvarint(cursor)
        size = take_uvarint(cursor)
        if size > remaining(cursor):
            fail(cursor)
            break
        if tag > 1 or (tag == 1 and version < FETCH_REPLICA_STATE):
            take(cursor, size)
            continue
        end, cursor.end = cursor.end, cursor.at + size
        if tag == 0:
            # The cluster id: ignored by a broker, but it must be valid.
            take_nullable_name(cursor)
        else:
            replica_id[0] = take_i32(cursor)
            replica_epoch[0] = take_i64(cursor)
            skip_tags(cursor)
        if remaining(cursor):
            fail(cursor)
        cursor.end = end
        if cursor.invalid:
            fail(cursor)
    return 0


def encode_fetch(
    int version, int32_t correlation_id, int32_t throttle_ms, int16_t error_code,
    int32_t session_id, topics, node_endpoints=(),
):
    """Return the response as a list of chunks: encoded bytes, and between them the records objects.

    Topics are `(name or id, partitions)`, partitions PartitionFetchResult (protocol/results.py).
    Records are None, bytes, a memoryview, or any object with a `size`; aborted transactions are
    `(producer_id, first_offset)`; the current leader is `(id, epoch)` and the diverging epoch
    `(epoch, end_offset)`, or None.
    """
    cdef Sink sink
    cdef list chunks = []
    assert FETCH_LOW <= version <= FETCH_HIGH
    sink_open(&sink, version >= FETCH_FLEXIBLE)
    try:
        put_i32(&sink, correlation_id)
        put_no_tags(&sink)
        put_i32(&sink, throttle_ms)
        if version >= FETCH_SESSIONS:
            put_i16(&sink, error_code)
            put_i32(&sink, session_id)
        put_length(&sink, len(topics), 4)
        for topic, partitions in topics:
            put_topic(&sink, topic, version >= FETCH_TOPIC_IDS)
            put_length(&sink, len(partitions), 4)
            for partition in partitions:
                put_fetched(&sink, version, partition, chunks)
            put_no_tags(&sink)
        put_nodes(&sink, node_endpoints, version >= FETCH_NODE_ENDPOINTS)
        if sink.size:
            chunks.append(sink_bytes(&sink))
        return chunks
    finally:
        sink_close(&sink)


cdef int put_fetched(Sink* sink, int version, object result, list chunks) except -1:
    """Write a PartitionFetchResult, and append its records as a chunk of their own."""
    check_result(result, 11)
    put_i32(sink, field(result, 0))
    put_i16(sink, field(result, 1))
    put_i64(sink, field(result, 2))
    put_i64(sink, field(result, 3))
    if version >= FETCH_LOG_START:
        put_i64(sink, field(result, 4))
    aborted = field(result, 5)
    put_length(sink, NULL_LENGTH if aborted is None else len(aborted), 4)
    for producer_id, first_offset in aborted or ():
        put_i64(sink, producer_id)
        put_i64(sink, first_offset)
        put_no_tags(sink)
    if version >= FETCH_RACK:
        put_i32(sink, field(result, 6))
    put_records(sink, field(result, 7), chunks)
    if version >= FETCH_FLEXIBLE:
        put_fetched_tags(
            sink, field(result, 8), field(result, 9),
            field(result, 10) if version >= FETCH_HIGH_WATERMARK else -1,
        )
    return 0


cdef int put_records(Sink* sink, object records, list chunks) except -1:
    """Write the size of the records, and append the records as a chunk of their own.

    No records are encoded as size zero, never as null: librdkafka rejects null.
    """
    cdef Py_ssize_t size
    if records is None:
        return put_length(sink, 0, 4)
    size = len(records) if isinstance(records, (bytes, memoryview)) else records.size
    put_length(sink, size, 4)
    if size:
        chunks.append(sink_bytes(sink))
        chunks.append(records)
        sink.size = 0
    return 0


cdef int put_fetched_tags(
    Sink* sink, object current_leader, object diverging_epoch, int64_t epoch_start
) except -1:
    cdef bint diverging = has_value(diverging_epoch)
    cdef bint leader = has_value(current_leader)
    put_uvarint(sink, diverging + leader + (epoch_start != -1))
    if diverging:
        epoch, end_offset = diverging_epoch
        put_uvarint(sink, 0)
        put_uvarint(sink, 4 + 8 + 1)
        put_i32(sink, epoch)
        put_i64(sink, end_offset)
        put_no_tags(sink)
    if leader:
        put_leader(sink, 1, current_leader)
    if epoch_start != -1:
        put_uvarint(sink, FETCH_EPOCH_START_TAG)
        put_uvarint(sink, 8)
        put_i64(sink, epoch_start)
    return 0
