# cython: embedsignature.format=clinic
"""Gatherer: the part of `Producer.send` that runs for every record.

A Gatherer selects the partition and appends the record to the open batch of its partition queue.
It returns a Delivery: the batch, and the record's place in it.  All other cases (an unknown topic,
no open batch, a full one, a closed producer) are one call of `_send_slowly`, about once per batch.

No lock but the GIL.  Where Python code may run in between (a user's buffer, the garbage collector),
the queue may have closed its batch meanwhile; a closed builder takes no record, and `_send_slowly`
handles it.

Left out: free-threaded interpreters, where each step would need a lock.

This module is an exception to the rules of `_ext/__init__.py`: it keeps Python objects, because
partition queues are Python objects, and `Producer` inherits from Gatherer.
"""

from datetime import UTC, datetime, timedelta
from operator import index as integer_of

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from murmur2 cimport partition_of


cdef inline int64_t now_ms() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef bytes bytes_of(object key):
    """Return a key as bytes, which its hash is computed from."""
    if isinstance(key, str):
        return (<str> key).encode("utf-8", "surrogateescape")
    try:
        return bytes(memoryview(key))
    except TypeError:
        raise TypeError(f"a key must be bytes, str or None, not {type(key).__name__}") from None


EPOCH = datetime.fromtimestamp(0, UTC)
MILLISECOND = timedelta(milliseconds=1)


cdef object milliseconds_of(object timestamp):
    """Return a record's timestamp in milliseconds since 1970, from an aware datetime or an int."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise ValueError(
                f"timestamp {timestamp!r} has no time zone; use datetime.now(UTC), or"
                " timestamp.astimezone() if it is local time"
            )
        return (timestamp - EPOCH) // MILLISECOND
    if isinstance(timestamp, bool) or not hasattr(timestamp, "__index__"):
        raise TypeError(
            "timestamp must be an int of milliseconds since 1970 or a datetime with a time zone,"
            f" not {type(timestamp).__name__}; for seconds as time.time() gives them, pass"
            " int(seconds * 1000)"
        )
    return integer_of(timestamp)


cdef int64_t checked_milliseconds(object timestamp) except -1:
    """Return a record's timestamp; ValueError if it is negative, or has more than 63 bits."""
    cdef int overflow = 0
    cdef int64_t timestamp_ms = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
    if overflow or timestamp_ms < 0:
        raise ValueError(
            f"timestamp must be milliseconds since 1970, from 0 to {INT64_MAX}, not {timestamp}"
        )
    return timestamp_ms


cdef object partition_number(object partition):
    """Return a partition as an int; TypeError for text, floats and booleans."""
    if isinstance(partition, bool) or not hasattr(partition, "__index__"):
        raise TypeError(f"partition must be an int, not {type(partition).__name__}")
    return integer_of(partition)


cdef list header_pairs(object headers):
    """Return headers as a list of (name, value), from pairs or from a mapping."""
    if isinstance(headers, (str, bytes)) or not hasattr(headers, "__iter__"):
        raise TypeError(
            f"headers must be (name, value) pairs or a mapping, not {type(headers).__name__}"
        )
    return list(headers.items() if hasattr(headers, "items") else headers)


@cython.final
@cython.no_gc           # a program may hold a million; a reference cycle runs through the batch
@cython.freelist(512)
cdef class Delivery:
    """The outcome of one record: like a future, but it cannot be cancelled."""
    cdef readonly object batch
    cdef readonly int32_t place
    cdef readonly int64_t timestamp

    def __init__(self, batch, int32_t place, int64_t timestamp):
        self.batch = batch
        self.place = place
        self.timestamp = timestamp

    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self.batch.done

    def result(self, timeout=None):
        """Wait for the outcome and return the record's metadata.

        Args:
            timeout: Seconds to wait.  None: the outcome is known within delivery.timeout.ms, and
                callbacks of other deliveries may run in this thread.

        Returns:
            RecordMetadata: topic, partition, offset (-1 with acks=0) and timestamp (ms).

        Raises:
            KafkaError: The record failed.
            TimeoutError: The timeout has passed.
            RuntimeError: Called inside a delivery callback while the outcome is not known.
        """
        return self.batch.result_of(self, timeout)

    def exception(self, timeout=None):
        """Wait for the outcome and return the error.

        Args:
            timeout: Seconds to wait; None: as in result().

        Returns:
            The KafkaError of the record, or None if it was written.

        Raises:
            TimeoutError: The timeout has passed.
            RuntimeError: Called inside a delivery callback while the outcome is not known.
        """
        return self.batch.error_of(self, timeout)

    def add_done_callback(self, callback):
        """Call callback(delivery) once the outcome is known; immediately if it is.

        Args:
            callback: Function of this delivery.  It must not block; its exceptions are logged.
        """
        self.batch.call_when_done(self, callback)

    # Names of kafka-python's futures; `foreign_names.py` has those of the clients.

    @property
    def get(self):
        raise AttributeError("Delivery has no get(): use result(timeout)")

    @property
    def add_callback(self):
        raise AttributeError(
            "Delivery has no add_callback(): use add_done_callback(function(delivery)), or"
            " send(..., on_delivery=function(error, metadata))"
        )

    @property
    def add_errback(self):
        raise AttributeError(
            "Delivery has no add_errback(): use send(..., on_delivery=function(error, metadata))"
        )

    def __repr__(self):
        state = "completed" if self.batch.done else "in flight"
        return f"<Delivery {state}: {self.batch!r}, place {self.place}>"


@cython.final
@cython.no_gc           # as Delivery
@cython.freelist(64)
cdef class Piece:
    """Consecutive rows of a table that were sent in one batch, perhaps beside others."""
    cdef readonly object batch
    cdef readonly int32_t place             # of the first row in the batch
    cdef readonly int32_t row_count

    def __init__(self, batch, int32_t place, int32_t row_count):
        self.batch = batch
        self.place = place
        self.row_count = row_count


@cython.final
cdef class TableLayout:
    """The columns of a schema that can be encoded without a conversion; -1: there is none."""
    cdef object schema
    cdef int value, key, timestamp          # indexes
    cdef bint value_wide, key_wide          # offsets of 64 bits

    def __init__(
        self, schema, int value, bint value_wide, int key, bint key_wide, int timestamp
    ):
        self.schema = schema
        self.value, self.value_wide = value, value_wide
        self.key, self.key_wide = key, key_wide
        self.timestamp = timestamp

    cdef tuple bytes_of(self, table, int index, bint wide):
        """Return a column of one chunk as `BatchBuilder.append_table` takes it, or None."""
        cdef list buffers
        cdef object array = column_array(table, index)
        if array is None:
            return None
        buffers = array.buffers()
        if PyList_GET_SIZE(buffers) != 3:
            return None     # an array of another type than the schema says
        return buffers[0], buffers[1], buffers[2], array.offset, wide


cdef object column_array(table, int index):
    """Return the array of a column that has one chunk, or None."""
    column = table.column(index)
    return column.chunk(0) if column.num_chunks == 1 else None


cdef class OpenQueue:
    """The open batch of a partition queue, and the function that appends to it."""
    cdef readonly int32_t index
    cdef readonly object open_batch
    cdef object append
    cdef object append_table

    def __init__(self, int32_t index):
        self.index = index

    def begin_batch(self, batch, append, append_table=None):
        """Set the open batch, and the functions that append a record or a small table."""
        assert self.open_batch is None, "a partition queue has one open batch"
        self.append = append
        self.append_table = append_table
        self.open_batch = batch

    def end_batch(self):
        """Unset the open batch and return it, or None."""
        batch = self.open_batch
        self.open_batch = self.append = self.append_table = None
        return batch


cdef class OpenTopic:
    """A topic: its partition queues, and the current one for records without a key."""
    cdef readonly str name
    cdef readonly list queues
    cdef public OpenQueue sticky

    def __init__(self, str name):
        self.name = name
        self.queues = []


cdef class Gatherer:
    """Appends records to open batches; a subclass defines `_send_slowly` for all other cases."""
    cdef readonly dict topics               # by name
    cdef public object partitioner          # (topic, key, count) → index; None: murmur2, sticky
    cdef public object key_serializer       # key → bytes or str; None: keys are sent as they are
    cdef public object value_serializer
    cdef public bint is_open
    cdef object last_name
    cdef OpenTopic last_topic
    cdef object table_type                  # pyarrow.Table; None: gather_table refuses all
    cdef object layout_of                   # schema → TableLayout
    cdef TableLayout layout                 # of the last table
    cdef int64_t largest_max, table_size_max

    def __init__(self, partitioner=None):
        self.topics = {}
        self.partitioner = partitioner

    def gather_tables(self, table_type, layout_of, int64_t largest_max, int64_t table_size_max):
        """Have `gather_table` append tables of this type.

        `layout_of` returns the TableLayout of a schema.  The limits are those of
        `BatchBuilder.append_table`.
        """
        self.layout_of = layout_of
        self.largest_max = largest_max
        self.table_size_max = table_size_max
        self.table_type = table_type

    cdef OpenTopic topic_of(self, object name):
        """Return the topic, or None if it is unknown."""
        cdef PyObject* found
        if name is self.last_name:
            return self.last_topic
        if type(name) is not str:
            return None
        found = PyDict_GetItem(self.topics, name)
        if found == NULL:
            return None
        self.last_topic = <OpenTopic> found
        self.last_name = name
        return self.last_topic

    cdef OpenQueue queue_of(self, OpenTopic topic, object key, object partition):
        """Return the partition queue of a record; None if a sticky one must be chosen."""
        cdef Py_ssize_t index, count = PyList_GET_SIZE(topic.queues)
        cdef int overflow = 0
        if partition is not None:
            index = PyLong_AsLongLongAndOverflow(partition, &overflow)      # -1 on overflow
        elif self.partitioner is not None:
            index = self.partitioner(topic.name, key, count)
        elif key is None:
            return topic.sticky
        else:
            index = partition_of(
                <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), <int32_t> count
            )
        count = PyList_GET_SIZE(topic.queues)    # may have shrunk while Python code ran above
        if not 0 <= index < count:
            number = partition if overflow else index
            raise ValueError(f"topic {topic.name!r} has no partition {number} among its {count}")
        return <OpenQueue> PyList_GET_ITEM(topic.queues, index)

    def send(
        self, topic, value=None, key=None, headers=None, timestamp=None, partition=None,
        on_delivery=None, *, serializer=None,
    ):
        """Append a record to a batch of its partition.

        Waits up to max.block.ms if the topic must be looked up or buffer.memory is used up.

        Args:
            topic: Name of the topic.
            value: bytes, str (sent as UTF-8), None (a tombstone), or an argument of the serializer.
            key: bytes, str or None, or an argument of `key_serializer`; equal keys share a
                partition.
            headers: (name, value) pairs, or a mapping of names to values.
            timestamp: Milliseconds since 1970 as an int, or a datetime with a time zone; None: now.
            partition: Partition to write to, instead of the one that the key selects.
            on_delivery: Called as on_delivery(error, metadata) once the outcome is known: by the
                producer's background thread, or by a thread that is inside result(), flush() or
                close() without a timeout; never inside send().
            serializer: Function of the value that returns bytes or str, instead of the producer's
                `value_serializer`.  It is not called for None.

        Returns:
            A Delivery, whose result() waits for the outcome.

        Raises:
            TypeError: An argument is of a type that cannot be sent.
            ValueError: The partition does not exist, or the timestamp is negative, has more than
                63 bits, or has no time zone.
            MessageTooLarge: The record is larger than max.request.size or buffer.memory.
            KafkaError: The topic does not exist, or was not looked up within max.block.ms.
            BufferExhausted: buffer.memory was used up for max.block.ms.
            InvalidTxnState: No transaction is open, or it ended while the call waited.
            RuntimeError: The producer is closed, or was created before a fork.
        """
        if value is not None:
            if serializer is None:
                serializer = self.value_serializer
            if serializer is not None:
                value = serializer(value)
        if key is not None and self.key_serializer is not None:
            key = self.key_serializer(key)
        if timestamp is not None and type(timestamp) is not int:
            timestamp = milliseconds_of(timestamp)
        if partition is not None and type(partition) is not int:
            partition = partition_number(partition)
        if headers is not None and type(headers) is not list:
            headers = header_pairs(headers)     # a list, because they may be read twice
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(
                "on_delivery is a function of an error and the metadata, not"
                f" {type(on_delivery).__name__}"
            )
        return self.append_record(topic, value, key, headers, timestamp, partition, on_delivery)

    def gather(self, topic, value, key, headers, timestamp, partition, on_delivery):
        """Append a record that `send` has serialized and checked."""
        return self.append_record(topic, value, key, headers, timestamp, partition, on_delivery)

    cdef object append_record(
        self, object topic, object value, object key, object headers, object timestamp,
        object partition, object on_delivery,
    ):
        cdef int64_t timestamp_ms
        cdef int32_t place
        cdef OpenQueue queue
        cdef object batch
        cdef Delivery delivery
        cdef OpenTopic known = self.topic_of(topic)
        if key is not None and type(key) is not bytes:
            key = bytes_of(key)
        if known is not None and self.is_open:
            queue = self.queue_of(known, key, partition)
            if queue is not None and queue.open_batch is not None:
                timestamp_ms = now_ms() if timestamp is None else checked_milliseconds(timestamp)
                batch = queue.open_batch
                place = queue.append(key, value, headers, timestamp_ms)
                if place >= 0:
                    delivery = Delivery.__new__(Delivery)
                    delivery.batch = batch
                    delivery.place = place
                    delivery.timestamp = timestamp_ms
                    if on_delivery is not None:
                        batch.call_on_delivery(delivery, on_delivery)
                    return delivery
            if queue is not None and self.partitioner is not None:
                partition = queue.index      # the partitioner is called once per record
        return self._send_slowly(topic, value, key, headers, timestamp, partition, on_delivery)

    def gather_table(self, topic, table):
        """Append a small table to an open batch and return its Piece; None in all other cases.

        The table has a topic that is known, one partition or no keys, columns of one chunk that
        need no conversion, and rows that fit the open batch.  The general path treats it alike.
        """
        cdef OpenTopic known
        cdef OpenQueue queue
        cdef TableLayout layout = self.layout
        cdef tuple value, key = None, timestamps = None
        cdef list buffers
        cdef Piece piece
        cdef int64_t count
        cdef int32_t place
        if self.table_type is None or type(table) is not self.table_type:
            return None
        if self.partitioner is not None or not self.is_open:
            return None
        schema = table.schema
        if layout is None or schema != layout.schema:
            layout = self.layout = self.layout_of(schema)
        if layout.value < 0:
            return None
        value = layout.bytes_of(table, layout.value, layout.value_wide)
        if value is None:
            return None
        if layout.key >= 0:
            key = layout.bytes_of(table, layout.key, layout.key_wide)
            if key is None:
                return None
        if layout.timestamp >= 0:
            array = column_array(table, layout.timestamp)
            if array is None:
                return None
            buffers = array.buffers()
            if PyList_GET_SIZE(buffers) != 2:
                return None
            timestamps = buffers[0], buffers[1], array.offset
        count = table.num_rows
        known = self.topic_of(topic)
        # From here on no other Python code runs.
        if known is None or not self.is_open:
            return None
        if layout.key >= 0 and PyList_GET_SIZE(known.queues) != 1:
            return None
        queue = known.sticky
        if queue is None or queue.append_table is None:
            return None
        batch = queue.open_batch
        place = queue.append_table(
            count, value, key, timestamps, now_ms(), self.largest_max, self.table_size_max
        )
        if place < 0:
            return None
        piece = Piece.__new__(Piece)
        piece.batch = batch
        piece.place = place
        piece.row_count = <int32_t> count
        return piece
