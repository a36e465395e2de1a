"""Gathers ZeroMQ messages into record batches, one open batch for each partition.

    MessageReceiver   receives the messages of a PULL or a ROUTER socket, and parses their frames
    MessageGatherer   the topics, and the open batch of each partition
    OpenBatch         records after 61 bytes of space for the header; closed when full or old enough

kafkalite/gateway/README.md shows the frames.  Invalid messages are refused one by one, through the
`refused` function of the MessageGatherer; no content of a message raises an exception.  A
DealerRequest is a message of a DEALER that gets a response.  Each batch with records of it refers
to it, and its response can be sent when the last of these batches is settled.

The first message of a topic calls `ask`; messages are parked until the topic is known.

Not thread-safe: all of this belongs to one thread, which holds the interpreter's lock.
"""

import cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from batch_layout cimport HEADER_SIZE
from field_store cimport Field, field_size, number_size, store_field, store_number
from gateway_frames cimport *
from libzmq cimport DONTWAIT, SNDMORE, Libzmq, find, receive, zmq_msg_t
from murmur2 cimport partition_of


cdef enum:
    # With the routing identity and the correlation id before the body.
    FRAMES_MAX = BODY_FRAMES_MAX + 2

    # Length, attributes, both deltas, two lengths and a header count, each of maximum size.
    AROUND_SIZE_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
    FIRST_ROOM_SIZE = 4096

    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    INVALID_REQUEST = 42


WRONG_COUNT = (
    "a message has 3 to 6 frames (topic, key, value, headers, timestamp, partition) or 2 (topic and"
    " a pack of many messages), a DEALER's a correlation id before them"
)
WRONG_PACK = (
    "two frames must be a topic and a pack of many messages, but the second is not a valid pack (a"
    " single message has a key frame between topic and value, empty without a key)"
)
WRONG_HEADERS = "the headers frame must hold names and values, each after its length"
WRONG_TIMESTAMP = "the timestamp frame must hold decimal digits: milliseconds since 1970"
WRONG_PARTITION = "the partition frame must hold decimal digits"
NO_SUCH_PARTITION = "the topic has no such partition"
TOO_LARGE = "the message is larger than a record may be"
FRAME_TOO_LARGE = "a frame of the message is larger than gateway.message.max.bytes ({:,})"


include "open_batch.pxi"


@cython.final
cdef class Topic:
    """A topic of which messages have arrived."""

    cdef readonly str name
    cdef bytes raw
    cdef readonly int32_t partition_count   # 0: not known yet
    cdef list batches                       # by partition; None without an open batch
    cdef int32_t keyless                    # current partition of records without a key
    cdef int64_t room                       # initial size of its next batch
    cdef readonly list parked
    cdef readonly int refusal               # error code for all its messages; 0: none
    cdef readonly str sentence

    def __init__(self, str name):
        self.name = name
        self.raw = name.encode()
        self.parked = []
        self.batches = []
        self.room = FIRST_ROOM_SIZE
        self.sentence = ""


@cython.final
cdef class MessageGatherer:
    """The open batches of the messages of several receivers; see the module.

    `ask(name)` is called with the name, as bytes, of an unknown topic, and returns a Topic, which
    may be refused already.  `refused(request, name, code, sentence)` is called for each message
    that is refused, with None as request for a PUSH.
    """

    cdef object request_topic
    cdef object refused
    cdef int64_t batch_size
    cdef int64_t record_size_max
    cdef readonly dict topics
    cdef Topic last
    cdef list open_batches
    cdef readonly list closed           # closed batches, for the owner to take
    cdef readonly int64_t open_size  # bytes of records in open batches
    cdef readonly int64_t parked_size
    cdef readonly int64_t record_count

    def __init__(self, int64_t batch_size, int64_t record_size_max, ask, refused):
        assert batch_size > 0 and record_size_max > AROUND_SIZE_MAX
        self.batch_size = batch_size
        self.record_size_max = record_size_max
        self.request_topic = ask
        self.refused = refused
        self.topics = {}
        self.open_batches = []
        self.closed = []

    # Topics.

    def set_partitions(
        self, Topic topic, int32_t partition_count, int32_t keyless, int64_t now_ms
    ) -> None:
        """Set the number of partitions of a topic, which only grows, and take parked messages."""
        cdef DealerRequest request
        cdef Body body
        cdef tuple frames
        assert partition_count >= len(topic.batches) and 0 <= keyless < partition_count
        topic.batches += [None] * (partition_count - len(topic.batches))
        topic.partition_count = partition_count
        topic.keyless = keyless
        parked, topic.parked = topic.parked, []
        for request, frames in parked:
            self.parked_size -= load_parked(frames, &body)
            self.add_message(&body, request, now_ms)

    def refuse(self, Topic topic, int code, str sentence) -> None:
        """Refuse the parked messages of the topic, and those that come while it is in `topics`."""
        cdef DealerRequest request
        cdef Body body
        cdef tuple frames
        assert code
        topic.refusal = code
        topic.sentence = sentence
        parked, topic.parked = topic.parked, []
        for request, frames in parked:
            self.parked_size -= load_parked(frames, &body)
            self.refuse_message(&body, request, code, sentence)

    def remove(self, Topic topic) -> None:
        """Close its batches and remove the topic; its next message requests it again."""
        cdef OpenBatch batch
        assert not topic.parked
        for batch in topic.batches:
            if batch is not None:
                self.close_batch(topic, batch)
        self.topics.pop(topic.raw, None)
        if self.last is topic:
            self.last = None

    cdef Topic topic_of(self, Field name):
        cdef Topic topic = self.last
        cdef bytes raw
        if (
            topic is not None and PyBytes_GET_SIZE(topic.raw) == name.size
            and not memcmp(PyBytes_AS_STRING(topic.raw), name.at, name.size)
        ):
            return topic
        raw = PyBytes_FromStringAndSize(<const char*> name.at, name.size)
        topic = self.topics.get(raw)
        if topic is None:
            topic = self.request_topic(raw)
        self.last = topic if topic.raw == raw else None
        return topic

    # Messages.

    cdef int refuse_message(
        self, Body* body, DealerRequest request, int code, str sentence
    ) except -1:
        cdef bytes name = b""
        if body.count:
            name = bytes_of(body.frames[TOPIC])
        self.refused(request, name, code, sentence)
        return 0

    cdef int park(self, Topic topic, Body* body, DealerRequest request) except -1:
        cdef int place
        cdef list frames = []
        for place in range(body.count):
            frames.append(bytes_of(body.frames[place]))
            self.parked_size += body.frames[place].size + PARKED_FRAME_SIZE
        topic.parked.append((request, tuple(frames)))
        return 0

    cdef int add_message(self, Body* body, DealerRequest request, int64_t now_ms) except -1:
        """Take one message, from its topic frame on."""
        cdef Topic topic
        if body.count < PACK_FRAMES or body.count > BODY_FRAMES_MAX:
            return self.refuse_message(body, request, INVALID_REQUEST, WRONG_COUNT)
        topic = self.topic_of(body.frames[TOPIC])
        if topic.refusal:
            return self.refuse_message(body, request, topic.refusal, topic.sentence)
        if not topic.partition_count:
            return self.park(topic, body, request)
        if body.count == PACK_FRAMES:
            return self.add_pack(topic, body, request, now_ms)
        return self.add_single(topic, body, request, now_ms)

    cdef int add_single(
        self, Topic topic, Body* body, DealerRequest request, int64_t now_ms
    ) except -1:
        cdef Field key = body.frames[KEY]
        cdef Field headers
        cdef int64_t timestamp = -1, wanted = -1, header_count = 0, header_size = 1
        headers.at = NULL
        headers.size = 0
        if body.count > HEADERS:
            headers = body.frames[HEADERS]
            if not measure_headers(headers, &header_count, &header_size):
                return self.refuse_message(body, request, INVALID_REQUEST, WRONG_HEADERS)
        if body.count > TIMESTAMP and not read_digits(body.frames[TIMESTAMP], &timestamp):
            return self.refuse_message(body, request, INVALID_REQUEST, WRONG_TIMESTAMP)
        if body.count > PARTITION and not read_digits(body.frames[PARTITION], &wanted):
            return self.refuse_message(body, request, INVALID_REQUEST, WRONG_PARTITION)
        if wanted >= topic.partition_count:
            return self.refuse_message(
                body, request, UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_PARTITION
            )
        if (
            key.size + body.frames[VALUE].size + header_size + AROUND_SIZE_MAX
            > self.record_size_max
        ):
            return self.refuse_message(body, request, MESSAGE_TOO_LARGE, TOO_LARGE)
        if not key.size:
            key.size = -1
        if wanted < 0:
            wanted = partition_for(topic, key)
        return self.append(
            topic, <int32_t> wanted, key, body.frames[VALUE], headers, header_count, header_size,
            now_ms if timestamp < 0 else timestamp, now_ms, request,
        )

    cdef int add_pack(
        self, Topic topic, Body* body, DealerRequest request, int64_t now_ms
    ) except -1:
        cdef Field key, value, none
        cdef const uint8_t* at = body.frames[PACK].at + MARK_SIZE
        cdef const uint8_t* end = body.frames[PACK].at + body.frames[PACK].size
        cdef bint keyed
        cdef int64_t largest
        cdef int32_t partition
        if not measure_pack(body.frames[PACK], &keyed, &largest):
            return self.refuse_message(body, request, INVALID_REQUEST, WRONG_PACK)
        if largest + AROUND_SIZE_MAX > self.record_size_max:
            return self.refuse_message(body, request, MESSAGE_TOO_LARGE, TOO_LARGE)
        none.at = NULL
        none.size = 0
        key.at = NULL
        key.size = -1
        partition = topic.keyless   # a pack without keys stays together, also across batches
        while at < end:
            if keyed:
                at = take_length(at, &key)
                if key.size:
                    partition = partition_of(key.at, key.size, topic.partition_count)
                else:
                    key.size = -1
                    partition = topic.keyless
            at = take_length(at, &value)
            self.append(topic, partition, key, value, none, 0, 1, now_ms, now_ms, request)
        return 0

    cdef int append(
        self, Topic topic, int32_t partition, Field key, Field value, Field headers,
        int64_t header_count, int64_t header_size, int64_t timestamp, int64_t now_ms,
        DealerRequest request,
    ) except -1:
        """Append a record to the partition's open batch, or to a new one if it does not fit."""
        cdef OpenBatch batch = topic.batches[partition]
        cdef int64_t delta, size, whole
        cdef uint8_t* at
        while True:
            if batch is None:
                batch = self.open_batch(topic, partition, timestamp, now_ms)
            # Distant timestamps wrap here as they do in Java.
            delta = <int64_t> (<unsigned long long> timestamp
                               - <unsigned long long> batch.base_timestamp)
            size = 1 + number_size(delta) + number_size(batch.count)
            size += field_size(key) + field_size(value) + header_size
            whole = number_size(size) + size
            if not batch.count or batch.size + whole <= self.batch_size:
                break
            self.close_batch(topic, batch)
            batch = None
        batch.make_room(whole)
        at = <uint8_t*> PyByteArray_AS_STRING(batch.content) + HEADER_SIZE + batch.size
        at = store_number(at, size)
        at[0] = 0
        at = store_number(at + 1, delta)
        at = store_number(at, batch.count)
        at = store_field(store_field(at, key), value)
        store_headers(at, headers, header_count)
        if request is not None:
            batch.share(request)
        batch.max_timestamp = max(batch.max_timestamp, timestamp)
        batch.size += whole
        batch.count += 1
        self.open_size += whole
        self.record_count += 1
        return 0

    # Batches.

    cdef OpenBatch open_batch(
        self, Topic topic, int32_t partition, int64_t timestamp, int64_t now_ms
    ):
        cdef OpenBatch batch = OpenBatch.__new__(OpenBatch)
        batch.topic = topic.name
        batch.partition = partition
        batch.content = bytearray()
        PyByteArray_Resize(batch.content, HEADER_SIZE + topic.room)
        batch.base_timestamp = batch.max_timestamp = timestamp
        batch.began_ms = now_ms
        topic.batches[partition] = batch
        self.open_batches.append(batch)
        return batch

    cdef int close_batch(self, Topic topic, OpenBatch batch) except -1:
        topic.batches[batch.partition] = None
        # The next batch starts with half the size of this one, so that few grow and little memory
        # is unused.
        topic.room = max(FIRST_ROOM_SIZE, min(batch.size, self.batch_size) // 2)
        if batch.partition == topic.keyless:
            topic.keyless = (topic.keyless + 1) % topic.partition_count
        batch.is_closed = True
        self.open_size -= batch.size
        self.closed.append(batch)
        return 0

    def close_older(self, int64_t until_ms) -> int:
        """Close the batches that began up to `until_ms`; return the start of the oldest open one,
        or -1."""
        cdef OpenBatch batch
        cdef list left = []
        for batch in self.open_batches:
            if batch.is_closed:
                continue
            if batch.began_ms <= until_ms:
                self.close_batch(self.topics[batch.topic.encode()], batch)
            else:
                left.append(batch)
        self.open_batches = left
        return (<OpenBatch> left[0]).began_ms if left else -1


@cython.final
cdef class MessageReceiver:
    """Reads one socket for a gathering; `socket` is its address in libzmq, `routed` a ROUTER.

    A message with a frame above `frame_size_max` is refused.
    """

    cdef Libzmq zmq
    cdef void* socket
    cdef bint routed
    cdef size_t frame_size_max
    cdef MessageGatherer gathering
    cdef zmq_msg_t frames[FRAMES_MAX]
    cdef readonly int64_t message_count
    cdef readonly int64_t size          # bytes of frames

    def __init__(
        self, MessageGatherer gathering, size_t socket, str library, bint routed,
        size_t frame_size_max
    ):
        if not find(&self.zmq, library.encode()):
            raise ImportError(f"{library} does not know libzmq's functions")
        self.gathering = gathering
        self.socket = <void*> socket
        self.routed = routed
        self.frame_size_max = frame_size_max

    def receive(self, int count_max, int64_t size_max, int64_t now_ms) -> bool:
        """Receive up to a number of messages or bytes; return True if no message is left."""
        cdef int place, count
        cdef bint too_many
        cdef int64_t size_before = self.size
        for _ in range(count_max):
            count = receive(
                &self.zmq, self.socket, self.frames, FRAMES_MAX, &self.size, &too_many
            )
            if count < 0:
                raise OSError(self.zmq.error(), "the socket cannot be read")
            if not count:
                return True
            self.message_count += 1
            try:
                self.receive_message(0 if too_many else count, now_ms, count)
            finally:
                for place in range(count):
                    self.zmq.msg_close(&self.frames[place])
            if self.size - size_before >= size_max:
                break
        return False

    cdef int receive_message(self, int count, int64_t now_ms, int received) except -1:
        """Take one message; `count` is 0 if it had more frames than FRAMES_MAX."""
        cdef DealerRequest request = None
        cdef Body body
        cdef int first = 0, place
        cdef size_t largest = 0
        for place in range(received):
            largest = max(largest, self.zmq.msg_size(&self.frames[place]))
        if self.routed:
            request = new_request(
                bytes_of(self.field(0)), bytes_of(self.field(1)) if received > 1 else b""
            )
            first = 2
        body.count = max(count - first, 0)
        for place in range(body.count):
            if place < BODY_FRAMES_MAX:
                body.frames[place] = self.field(first + place)
        if largest > self.frame_size_max:
            return self.gathering.refuse_message(
                &body, request, MESSAGE_TOO_LARGE, FRAME_TOO_LARGE.format(self.frame_size_max)
            )
        return self.gathering.add_message(&body, request, now_ms)

    cdef inline Field field(self, int place):
        cdef Field field
        field.at = <const uint8_t*> self.zmq.msg_data(&self.frames[place])
        field.size = self.zmq.msg_size(&self.frames[place])
        return field

    def respond(self, DealerRequest request) -> int:
        """Send the response to a request; return 0, or the errno of libzmq."""
        cdef bytes frame
        cdef tuple frames = (
            request.identity, request.correlation, b"%d" % request.code,
            b"%d" % (request.partition if not request.code else -1),
            b"%d" % (request.offset if not request.code else -1), request.sentence.encode(),
        )
        cdef int left = len(frames), flags
        for frame in frames:
            left -= 1
            flags = DONTWAIT | SNDMORE if left else DONTWAIT
            while self.zmq.send(
                self.socket, PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), flags
            ) < 0:
                if self.zmq.error() != EINTR:
                    return self.zmq.error()
        return 0


cdef inline int32_t partition_for(Topic topic, Field key) noexcept:
    if key.size < 0:
        return topic.keyless
    return partition_of(key.at, key.size, topic.partition_count)
