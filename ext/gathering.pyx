"""What every record of `Producer.send` goes through: which partition, and into its open batch.

A Gatherer knows for each topic the lines of its partitions, and for each line the batch that is
open.  When the record fits it is appended, and the answer is a Delivery: which batch, and which
place in it.  Whatever is not that plain (an unknown topic, no open batch, a full one, a closed
producer) is one call of `_send_slowly`, which happens about once a batch.

Nothing is locked.  A step runs under the interpreter's lock, and where Python code may run in
between (a user's buffer, the collector), the line may have lost its batch meanwhile; a builder
that was closed takes nothing, and the slow way sees to the record.

Left out: interpreters without a lock of their own, where each step would need one.

This module is an exception to the rules of `_ext/__init__.py`: it keeps Python objects, for
the lines are a table of them, and `Producer` is made by inheriting from it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from murmur2 cimport partition_of


cdef inline int64_t now_ms() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef bytes bytes_of(object key):
    """A key as bytes, as its hash is of bytes."""
    if isinstance(key, str):
        return (<str> key).encode("utf-8", "surrogateescape")
    try:
        return bytes(memoryview(key))
    except TypeError:
        raise TypeError(f"a key must be bytes, str or None, not {type(key).__name__}") from None


@cython.final
@cython.no_gc           # a program may hold a million: the batch is what may be in a circle
@cython.freelist(512)
cdef class Delivery:
    """What becomes of one record: like a future, but it cannot be cancelled."""
    cdef readonly object batch
    cdef readonly int32_t place
    cdef readonly int64_t timestamp

    def __init__(self, batch, int32_t place, int64_t timestamp):
        self.batch = batch
        self.place = place
        self.timestamp = timestamp

    def done(self) -> bool:
        """Whether it is decided."""
        return self.batch.done

    def result(self, timeout=None):
        """Where the record came to lie, as RecordMetadata; waits, and raises why it failed."""
        return self.batch.result_of(self, timeout)

    def exception(self, timeout=None):
        """Why it failed, or None; waits."""
        return self.batch.fault_of(self, timeout)

    def add_done_callback(self, callback):
        """Call callback(delivery) when it is decided; at once if it is."""
        self.batch.tell_when_done(self, callback)

    def __repr__(self):
        state = "decided" if self.batch.done else "under way"
        return f"<Delivery {state}: {self.batch!r}, place {self.place}>"


cdef class OpenLine:
    """A partition, as far as a record sees it: the batch that is open, and how to append to it."""
    cdef readonly int32_t index
    cdef readonly object open_batch
    cdef object append

    def __init__(self, int32_t index):
        self.index = index

    def begin_batch(self, batch, append):
        """From now on records go here."""
        assert self.open_batch is None, "a line has one open batch"
        self.append = append
        self.open_batch = batch

    def end_batch(self):
        """The batch that was open, or None; nobody appends to it any more."""
        batch = self.open_batch
        self.open_batch = self.append = None
        return batch


cdef class OpenTopic:
    """A topic: its partitions' lines, and the one that takes what has no key for now."""
    cdef readonly str name
    cdef readonly list lines
    cdef public OpenLine sticky

    def __init__(self, str name):
        self.name = name
        self.lines = []


cdef class Gatherer:
    """Takes records; what inherits from it says how it goes on when there is no room."""
    cdef readonly dict topics               # by name
    cdef public object partitioner          # (topic, key, count) → index; None: murmur2, sticky
    cdef public bint is_open
    cdef object last_name
    cdef OpenTopic last_topic

    def __init__(self, partitioner=None):
        self.topics = {}
        self.partitioner = partitioner

    cdef OpenTopic topic_of(self, object name):
        """The topic when it is known, or None."""
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

    cdef OpenLine line_of(self, OpenTopic topic, object key, object partition):
        """Where the record goes; None when that wants more thought."""
        cdef Py_ssize_t index, count = PyList_GET_SIZE(topic.lines)
        if partition is not None:
            index = partition
        elif self.partitioner is not None:
            index = self.partitioner(topic.name, key, count)
        elif key is None:
            return topic.sticky
        else:
            index = partition_of(
                <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), <int32_t> count
            )
        if not 0 <= index < count:
            raise ValueError(f"topic {topic.name!r} has no partition {index} among its {count}")
        return <OpenLine> PyList_GET_ITEM(topic.lines, index)

    def send(
        self, topic, value=None, key=None, headers=None, timestamp=None, partition=None,
        on_delivery=None,
    ):
        """Take a record for a topic; the answer is a Delivery, whose result() waits."""
        cdef int64_t timestamp_ms
        cdef int32_t place
        cdef OpenLine line
        cdef object batch
        cdef Delivery delivery
        cdef OpenTopic known = self.topic_of(topic)
        if key is not None and type(key) is not bytes:
            key = bytes_of(key)
        if headers is not None and type(headers) is not list:
            headers = list(headers)     # they may be asked for twice
        if known is not None and self.is_open:
            line = self.line_of(known, key, partition)
            if line is not None and line.open_batch is not None:
                timestamp_ms = now_ms() if timestamp is None else timestamp
                if timestamp_ms < 0:
                    raise ValueError("a timestamp counts milliseconds from 1970 on")
                batch = line.open_batch
                place = line.append(key, value, headers, timestamp_ms)
                if place >= 0:
                    delivery = Delivery.__new__(Delivery)
                    delivery.batch = batch
                    delivery.place = place
                    delivery.timestamp = timestamp_ms
                    if on_delivery is not None:
                        batch.deliver_to(delivery, on_delivery)
                    return delivery
            if line is not None and (key is not None or self.partitioner is not None):
                partition = line.index      # who was asked once need not be asked again
        return self._send_slowly(topic, value, key, headers, timestamp, partition, on_delivery)
