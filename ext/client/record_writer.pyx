"""Record writer: encodes rows and Arrow columns as a batch's uncompressed payload, and its header.

records.pyx describes the payload.  Records are written in one pass: the size of a record is
computed first, because its length precedes it, and then the record is stored.  Offset deltas count
from 0, and the base timestamp is the first record's, as in every producer.

Columns come from the user and may be invalid (arrow_columns.pxd): `measure_columns` checks them
before the first record is sent, and every cell is checked again when it is written.
"""

from cpython.buffer cimport (
    PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from arrow_columns cimport Columns, release_buffers, view_buffer, take_columns
from batch_check cimport crc32c
from batch_layout cimport *
from big_endian cimport store_i16, store_i32, store_i64, store_u32
from column_records cimport *
from column_sizes cimport LENGTH_SIZE_MAX, Sizes, measure_rows
from field_store cimport Field, field_size, store_field, store_number, number_size


cdef extern from "block_cache.h" nogil:
    void* block_cache_take(size_t size, size_t* room) noexcept
    void block_cache_free(void* piece, size_t room) noexcept
    void block_cache_use(long more) noexcept


cdef enum:
    # Below it the GIL is kept: a thread that releases it while another one runs gets it back after
    # 5 ms, in which it could have written a hundred times as much.
    GIL_SIZE_MIN = 128 * 1024
    # The same for rows that are only measured.
    GIL_ROWS_MIN = 16 * 1024
    PAYLOAD_SIZE_MAX = 0x7FFFFFFF - (HEADER_SIZE - PREFIX_SIZE)
    FIRST_ROOM_SIZE = 4096
    # Maximum size of a length, attributes, both deltas and a header count.
    AROUND_SIZE_MAX = 5 + 1 + 10 + 5 + 5
    # Maximum size of both deltas.
    DELTAS_SIZE_MAX = 10 + 5


ERROR_TEXTS = {
    INVALID_VALUE: "column value: an offset decreases or is beyond the bytes",
    INVALID_KEY: "column key: an offset decreases or is beyond the bytes",
    INVALID_HEADERS: "column headers: an offset decreases or is beyond the names and values",
    NULL_NAME: "column headers: the name of a header is null",
    NEGATIVE_TIMESTAMP: "column timestamp: a timestamp is negative",
    NO_SUCH_ROW: "the columns have fewer rows than requested",
}


# Columns into records.


cdef object column_error(int code, int64_t row):
    return ValueError(f"{ERROR_TEXTS[code]} (row {row})")


def encode_columns(
    out, int64_t first, int64_t end, rows, tuple value, tuple key, tuple headers,
    tuple timestamps, int64_t now_ms,
) -> tuple:
    """Encode as many rows as fit to out[61:]: (taken, payload size, base and max timestamp).

    The rows are first… up to end, or rows[first]… with an index buffer of int32.  Columns are the
    tuples of arrow_columns.pxd, and a null timestamp becomes `now_ms`.  0 taken: not even the first
    row fits.  ValueError: a column's buffers are invalid.
    """
    cdef Columns columns
    cdef Written written
    cdef Py_buffer room
    cdef const uint8_t* index
    cdef uint8_t* at
    cdef int64_t index_size, size_max
    cdef int code
    columns.buffer_count = 0
    PyObject_GetBuffer(out, &room, PyBUF_WRITABLE)
    try:
        take_columns(&columns, value, key, headers, timestamps)
        index = view_buffer(&columns, rows, &index_size)
        if first < 0 or end > (columns.count if rows is None else index_size // 4):
            raise ValueError(f"{ERROR_TEXTS[NO_SUCH_ROW]} ({first}…{end})")
        assert room.len >= HEADER_SIZE, "the buffer has no space for the header"
        at = <uint8_t*> room.buf + HEADER_SIZE
        size_max = min(room.len - HEADER_SIZE, PAYLOAD_SIZE_MAX)
        if size_max < GIL_SIZE_MIN:
            code = write_rows(at, size_max, index, first, end, &columns, now_ms, 0, &written)
        else:
            with nogil:
                code = write_rows(at, size_max, index, first, end, &columns, now_ms, 0, &written)
        if code:
            raise column_error(code, written.invalid_row)
        return written.taken, written.size, written.base_timestamp, written.max_timestamp
    finally:
        release_buffers(&columns)
        PyBuffer_Release(&room)


def measure_columns(
    int64_t count, tuple value, tuple key, tuple headers, tuple timestamps
) -> tuple:
    """Return the sizes of `count` rows as records: (largest, its row, sum, newest timestamp).

    `largest` is the size of the largest record at the beginning of a batch, and the sum an upper
    bound for all records.  The timestamp is -1 without a column.  ValueError unless these rows of
    the columns can be records.
    """
    cdef Columns columns
    cdef Sizes sizes
    cdef int code
    columns.buffer_count = 0
    try:
        take_columns(&columns, value, key, headers, timestamps)
        if count > columns.count:
            raise ValueError(f"{ERROR_TEXTS[NO_SUCH_ROW]} ({count})")
        if count < GIL_ROWS_MIN:
            code = measure_rows(count, &columns, &sizes)
        else:
            with nogil:
                code = measure_rows(count, &columns, &sizes)
        if code:
            raise column_error(code, sizes.invalid_row)
        return sizes.largest, sizes.largest_row, sizes.all, sizes.newest
    finally:
        release_buffers(&columns)


# The header.


cdef int64_t seal_batch(
    uint8_t* batch, int64_t payload_size, int32_t count, int64_t base_timestamp,
    int64_t max_timestamp, int16_t attributes, int64_t producer_id, int16_t producer_epoch,
    int32_t base_sequence,
) noexcept nogil:
    """Write header and CRC before an encoded payload; return the batch's size."""
    cdef int64_t size = HEADER_SIZE + payload_size
    store_i64(batch + BASE_OFFSET, 0)
    store_i32(batch + BATCH_LENGTH, <int32_t> (size - PREFIX_SIZE))
    store_i32(batch + LEADER_EPOCH, -1)
    batch[MAGIC] = CURRENT_MAGIC
    store_i16(batch + ATTRIBUTES, attributes)
    store_i32(batch + LAST_OFFSET_DELTA, count - 1)
    store_i64(batch + BASE_TIMESTAMP, base_timestamp)
    store_i64(batch + MAX_TIMESTAMP, max_timestamp)
    store_i64(batch + PRODUCER_ID, producer_id)
    store_i16(batch + PRODUCER_EPOCH, producer_epoch)
    store_i32(batch + BASE_SEQUENCE, base_sequence)
    store_i32(batch + RECORD_COUNT, count)
    store_u32(batch + CRC, crc32c(batch + ATTRIBUTES, size - ATTRIBUTES))
    return size


cdef int64_t seal_at(
    uint8_t* batch, int64_t payload_size, int32_t count, int64_t base_timestamp,
    int64_t max_timestamp, int16_t attributes, int64_t producer_id, int16_t producer_epoch,
    int32_t base_sequence,
):
    """Call seal_batch, without the GIL if the payload is large."""
    cdef int64_t size
    if payload_size < GIL_SIZE_MIN:
        return seal_batch(
            batch, payload_size, count, base_timestamp, max_timestamp, attributes,
            producer_id, producer_epoch, base_sequence,
        )
    with nogil:
        size = seal_batch(
            batch, payload_size, count, base_timestamp, max_timestamp, attributes,
            producer_id, producer_epoch, base_sequence,
        )
    return size


def seal(
    out, int64_t payload_size, int32_t count, int64_t base_timestamp, int64_t max_timestamp,
    int16_t attributes, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
) -> int:
    """Write header and CRC for an encoded payload at out[61:]; return the batch's size."""
    cdef Py_buffer view
    cdef uint8_t* at
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        assert 0 <= payload_size <= min(view.len - HEADER_SIZE, PAYLOAD_SIZE_MAX)
        assert count >= 1
        at = <uint8_t*> view.buf
        return seal_at(
            at, payload_size, count, base_timestamp, max_timestamp, attributes,
            producer_id, producer_epoch, base_sequence,
        )
    finally:
        PyBuffer_Release(&view)


# Rows into records.


cdef object field_content(object content, str what):
    """Return a field as bytes, None, or a str with cached UTF-8; TypeError for other types.

    Only here may user code run (the buffer protocol), which may even append another record.
    """
    cdef Py_ssize_t size
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        try:
            PyUnicode_AsUTF8AndSize(content, &size)
            return content
        except UnicodeEncodeError:
            # Lone surrogates: records.pyx decodes names that are not UTF-8 to these.
            return content.encode("utf-8", "surrogateescape")
    try:
        return bytes(memoryview(content))
    except TypeError:
        reason = f"{what} must be bytes, str or None, not {type(content).__name__}"
    raise TypeError(reason)


cdef tuple header_pair(object pair):
    """Return a header as a tuple of its name and value."""
    if not isinstance(pair, (str, bytes, bytearray)) and hasattr(pair, "__iter__"):
        found = tuple(pair)
        if len(found) == 2:
            return found
    raise TypeError(f"a header must be a (name, value) pair, not {pair!r}")


cdef list header_fields(object headers):
    """Return names and values alternating, each as `field_content` returns it."""
    cdef list fields = []
    for pair in headers:
        if type(pair) is not tuple or len(<tuple> pair) != 2:
            pair = header_pair(pair)
        name, content = <tuple> pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        fields.append(field_content(name, None))
        fields.append(field_content(content, "a header's value"))
    return fields


cdef inline int set_field(object content, Field* field) except -1:
    """Set a field to the bytes of a field_content value."""
    cdef Py_ssize_t size
    if content is None:
        field.at = NULL
        field.size = -1
    elif isinstance(content, bytes):
        field.at = <const uint8_t*> PyBytes_AS_STRING(content)
        field.size = PyBytes_GET_SIZE(content)
    else:
        field.at = <const uint8_t*> PyUnicode_AsUTF8AndSize(content, &size)
        field.size = size
    return 0


def use_block_cache(long more) -> None:
    """Count producers that are open, or closed: while one is, large builders reuse memory."""
    block_cache_use(more)


cdef class BatchBuilder:
    """The records of one batch, appended row by row; grows as needed, up to a capacity.

    The GIL is its lock; `append` is atomic, after user code has run (header iterables, buffers).
    It cannot grow while a view of `payload` exists.
    """

    cdef uint8_t* room
    cdef int64_t room_size
    cdef int64_t capacity
    cdef int export_count
    cdef Field* fields          # the headers of the record that is being appended
    cdef int64_t fields_max
    cdef readonly bint closed
    cdef readonly int32_t count
    cdef readonly int64_t size
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self, int64_t capacity):
        if not 0 < capacity <= PAYLOAD_SIZE_MAX:
            raise ValueError(f"a batch's payload has 1 to {PAYLOAD_SIZE_MAX} bytes")
        self.capacity = capacity
        self.base_timestamp = self.max_timestamp = -1

    def __dealloc__(self):
        block_cache_free(self.room, self.room_size)
        PyMem_RawFree(self.fields)

    cdef int make_room(self, int64_t size) except -1:
        """Allocate memory for a payload of this size, which the capacity allows."""
        cdef uint8_t* room
        # In one or two steps: each may copy what is there, and memory is used when it is written.
        cdef size_t room_size = self.capacity if size > FIRST_ROOM_SIZE else FIRST_ROOM_SIZE
        if size <= self.room_size:
            return 0
        if self.export_count:
            raise BufferError("a payload cannot grow while a view of it exists")
        room_size = min(room_size, <size_t> self.capacity)
        room = <uint8_t*> block_cache_take(room_size, &room_size)
        if room == NULL:
            room = <uint8_t*> realloc(self.room, room_size)
            if room == NULL:
                raise MemoryError
        else:
            memcpy(room, self.room, self.size)
            block_cache_free(self.room, self.room_size)
        self.room = room
        self.room_size = room_size
        return 0

    cdef int set_header_fields(self, list headers) except -1:
        cdef Py_ssize_t place, count = len(headers)
        cdef Field* fields
        if count > self.fields_max:
            fields = <Field*> PyMem_RawRealloc(self.fields, count * sizeof(Field))
            if fields == NULL:
                raise MemoryError
            self.fields = fields
            self.fields_max = count
        for place in range(count):
            set_field(headers[place], &self.fields[place])
        return 0

    def append(self, key, value, headers, int64_t timestamp_ms) -> int:
        """Append a record; return its place from 0 on, or -1 if it does not fit or it is closed."""
        cdef Field key_field, value_field
        cdef int64_t header_count = 0, size, delta = 0, place
        cdef list fields = None
        cdef uint8_t* at
        key = field_content(key, "a key")
        value = field_content(value, "a value")
        if headers:
            fields = header_fields(headers)
        # From here on no user code runs.
        if self.closed:
            return -1
        set_field(key, &key_field)
        set_field(value, &value_field)
        if fields is not None:
            self.set_header_fields(fields)
            header_count = len(fields) // 2
        if self.count:
            delta = <int64_t> (<uint64_t> timestamp_ms - <uint64_t> self.base_timestamp)
        size = 1 + number_size(delta) + number_size(self.count)
        size += field_size(key_field) + field_size(value_field) + number_size(header_count)
        for place in range(2 * header_count):
            size += field_size(self.fields[place])
        if number_size(size) + size > self.capacity - self.size or self.count == 0x7FFFFFFF:
            return -1
        self.make_room(self.size + number_size(size) + size)

        at = store_number(self.room + self.size, size)
        at[0] = 0
        at = store_number(at + 1, delta)
        at = store_number(at, self.count)
        at = store_field(store_field(at, key_field), value_field)
        at = store_number(at, header_count)
        for place in range(2 * header_count):
            at = store_field(at, self.fields[place])
        self.size = at - self.room
        assert self.size <= self.room_size
        if not self.count:
            self.base_timestamp = self.max_timestamp = timestamp_ms
        self.max_timestamp = max(self.max_timestamp, timestamp_ms)
        self.count += 1
        return self.count - 1

    def append_columns(
        self, int64_t first, int64_t end, rows, tuple value, tuple key, tuple headers,
        tuple timestamps, int64_t now_ms, int64_t size_max,
    ) -> tuple:
        """Append as many rows of columns as fit: (place of the first, number of rows).

        A closed builder takes no rows.  Arguments are those of `encode_columns`; `size_max` is an
        upper bound for all rows of the columns in a batch of their own.  ValueError: a column's
        buffers are invalid, and nothing is appended.  Keeps the GIL, which is the builder's lock.
        """
        cdef Columns columns
        cdef Written written
        cdef const uint8_t* index
        cdef int64_t index_size, room_size
        cdef int code
        columns.buffer_count = 0
        try:
            take_columns(&columns, value, key, headers, timestamps)
            index = view_buffer(&columns, rows, &index_size)
            if first < 0 or end > (columns.count if rows is None else index_size // 4):
                raise ValueError(f"{ERROR_TEXTS[NO_SUCH_ROW]} ({first}…{end})")
            # From here on no user code runs.
            if self.closed or self.export_count:
                return self.count, 0
            end = min(end, first + (0x7FFFFFFF - self.count))
            # Deltas are larger behind other records than in a batch of their own.
            room_size = size_max + (end - first) * DELTAS_SIZE_MAX
            self.make_room(min(self.capacity, self.size + room_size))
            written.base_timestamp = self.base_timestamp
            written.max_timestamp = self.max_timestamp
            code = write_rows(
                self.room + self.size, min(self.capacity, self.room_size) - self.size, index,
                first, end, &columns, now_ms, self.count, &written,
            )
            if code:
                raise column_error(code, written.invalid_row)
            self.size += written.size
            self.count += <int32_t> written.taken
            self.base_timestamp = written.base_timestamp
            self.max_timestamp = written.max_timestamp
            return self.count - written.taken, written.taken
        finally:
            release_buffers(&columns)

    def append_table(
        self, int64_t count, tuple value, tuple key, tuple timestamps, int64_t now_ms,
        int64_t largest_max, int64_t size_max,
    ) -> int:
        """Append `count` rows of columns, all or none; return the place of the first, or -1.

        Measures and appends the rows in one call, for small tables.  -1: they may not fit, the
        builder is closed, a batch of one row takes more than `largest_max` bytes, a batch of all
        more than `size_max`, or a row is invalid, which `measure_columns` reports.
        """
        cdef Columns columns
        cdef Written written
        cdef Sizes sizes
        cdef int64_t room_size
        columns.buffer_count = 0
        try:
            take_columns(&columns, value, key, None, timestamps)
            # From here on no user code runs.
            if self.closed or self.export_count or not 0 < count <= columns.count:
                return -1
            if count > 0x7FFFFFFF - self.count or measure_rows(count, &columns, &sizes):
                return -1
            if HEADER_SIZE + sizes.largest > largest_max or HEADER_SIZE + sizes.all > size_max:
                return -1
            room_size = self.size + sizes.all + count * DELTAS_SIZE_MAX
            if room_size > self.capacity:
                return -1
            self.make_room(room_size)
            written.base_timestamp = self.base_timestamp
            written.max_timestamp = self.max_timestamp
            if write_rows(
                self.room + self.size, self.room_size - self.size, NULL, 0, count, &columns,
                now_ms, self.count, &written,
            ) or written.taken < count:
                return -1       # the columns are being written to
            self.size += written.size
            self.count += <int32_t> count
            self.base_timestamp = written.base_timestamp
            self.max_timestamp = written.max_timestamp
            return self.count - count
        finally:
            release_buffers(&columns)

    def close(self) -> None:
        """Refuse further records: `append` returns -1, even in a call that is running."""
        self.closed = True

    def widen(self, int64_t capacity) -> None:
        """Raise the capacity."""
        if not self.capacity <= capacity <= PAYLOAD_SIZE_MAX:
            raise ValueError(f"a capacity of {self.capacity} bytes cannot be changed to {capacity}")
        self.capacity = capacity

    def payload(self) -> memoryview:
        return memoryview(self)

    def reset(self) -> None:
        """Remove all records and reopen, keeping the memory."""
        if self.export_count:
            raise BufferError("a payload cannot be reset while a view of it exists")
        self.closed = False
        self.count = 0
        self.size = 0
        self.base_timestamp = self.max_timestamp = -1

    def seal_into(
        self, out, int16_t attributes, int64_t producer_id, int16_t producer_epoch,
        int32_t base_sequence,
    ) -> int:
        """Write the whole batch, uncompressed, to `out`; return its size."""
        cdef Py_buffer view
        cdef uint8_t* at
        PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
        self.export_count += 1
        try:
            assert self.count, "a batch holds at least one record"
            assert HEADER_SIZE + self.size <= view.len, "the buffer is smaller than the batch"
            at = <uint8_t*> view.buf
            memcpy(at + HEADER_SIZE, self.room, self.size)
            return seal_at(
                at, self.size, self.count, self.base_timestamp, self.max_timestamp, attributes,
                producer_id, producer_epoch, base_sequence,
            )
        finally:
            self.export_count -= 1
            PyBuffer_Release(&view)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.room, self.size, 1, flags)
        self.export_count += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.export_count -= 1


def record_size_max(key, value, headers) -> int:
    """Return an upper bound for a record's size at any place: the capacity for it alone."""
    cdef int64_t size = AROUND_SIZE_MAX
    cdef list fields = [field_content(key, "a key"), field_content(value, "a value")]
    cdef Field field
    if headers:
        fields += header_fields(headers)
    for content in fields:
        set_field(content, &field)
        size += LENGTH_SIZE_MAX + max(field.size, 0)
    return size
