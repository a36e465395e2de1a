"""Decoder of fetched batches into columns in Arrow's memory layout.

A ColumnBuilder takes record sets, or one batch with its decompressed records; it skips records
below a first offset, and control batches.  A batch is appended completely or not at all: one with
an error leaves the builder unchanged.

    key, value      offsets i32[count + 1], data, validity bits (only if there is a null)
    offset          i64[count]
    timestamp       i64[count] in the requested unit; saturated if the time is out of its range
    timestamp_type  i8[count]: 0 CreateTime, 1 LogAppendTime
    header          i32[count + 1]: index of each record's first header, then
    header_key      offsets and data; invalid UTF-8 in a name is replaced (`utf8.pxd`)
    header_value    as value

The bytes may come from a damaged file or a faulty server: `batch_walk.pxd` documents which fields
of a batch are validated, `records.pyx` which of its records.  The bytes must not change during a
call, so memory that another process can write must not be passed.

Offsets have 32 bits, so a builder accepts only as many bytes of records as always fit, and returns
FULL for more.

Batches of the aborted transactions that `add_set` is given are skipped
(`aborted_transactions.pxd`).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from aborted_transactions cimport Aborted, open_aborted
from batch_layout cimport *
from batch_walk cimport (
    AT_END, COMPRESSED, Batch, Walk, end_of_whole, has_no_records, miscounted, next_batch,
    open_only_batch, pass_batch, timestamp_of,
)
from field_columns cimport Fields, append_field, free_fields, make_rows, truncate_fields
from growing_bytes cimport Bytes, free_bytes, make_room
from record_walk cimport Field, Record, take_field, take_record
from utf8 cimport GROWTH_MAX, store_text

cdef extern from * nogil:
    bint __builtin_mul_overflow(int64_t one, int64_t other, int64_t* product) noexcept


cdef extern from "block_cache.h" nogil:
    void block_cache_use(long more) noexcept


cdef enum:
    GIL_SIZE_MIN = 32 * 1024
    # Maximum of 32-bit offsets.
    ROOM_MAX = 0x7FFFFFFF

cdef enum:
    KEY = 1
    VALUE = 2
    OFFSET = 4
    TIMESTAMP = 8
    HEADERS = 16
    TIMESTAMP_TYPE = 32

cdef enum:
    MESSAGE_TOO_LARGE = 10
    FULL = -3
    NO_MEMORY = -4

globals().update(
    KEY=KEY,
    VALUE=VALUE,
    OFFSET=OFFSET,
    TIMESTAMP=TIMESTAMP,
    HEADERS=HEADERS,
    TIMESTAMP_TYPE=TIMESTAMP_TYPE,
    AT_END=AT_END,
    COMPRESSED=COMPRESSED,
    FULL=FULL,
)


# ---------------------------------------------------------------------------------------------
# Memory


@cython.final
cdef class Memory:
    """Bytes allocated in C and freed with this object; a read-only buffer."""

    cdef Bytes bytes

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.bytes.at, self.bytes.size, True, flags)

    def __len__(self) -> int:
        return self.bytes.size

    def __dealloc__(self):
        free_bytes(&self.bytes)


cdef Memory move_bytes(Bytes* bytes):
    """Return the bytes with ownership, and reset the struct."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef Py_ssize_t room = max(bytes.size, 1)
    cdef uint8_t* at
    if bytes.room > 2 * room:
        at = <uint8_t*> realloc(bytes.at, room)
        if at != NULL:
            bytes.at, bytes.room = at, room
    memory.bytes = bytes[0]
    bytes[0] = Bytes(NULL, 0, 0)
    return memory


cdef object move_fields(Fields* column, Py_ssize_t count, str name, dict columns):
    """Add a column's buffers to the dict under its name."""
    column.offsets.size = 4 * (count + 1)
    column.validity.size = (count + 7) // 8
    if count & 7:
        column.validity.at[count >> 3] &= <uint8_t> ((1 << (count & 7)) - 1)
    validity = move_bytes(&column.validity)
    columns[name + "_offsets"] = move_bytes(&column.offsets)
    columns[name + "_data"] = move_bytes(&column.data)
    columns[name + "_validity"] = validity if column.null_count else None
    columns[name + "_nulls"] = column.null_count
    column.null_count = 0


# ---------------------------------------------------------------------------------------------
# Columns


cdef struct Columns:
    int wanted
    int64_t ticks           # per millisecond, in the timestamp unit
    Py_ssize_t count
    Py_ssize_t header_count
    Py_ssize_t taken        # bytes of all records since the last take
    Fields key
    Fields value
    Bytes offset
    Bytes timestamp
    Bytes timestamp_type
    Bytes header
    Fields header_key
    Fields header_value


cdef bint make_rows_in_all(
    Columns* columns, Py_ssize_t count, Py_ssize_t likely
) noexcept nogil:
    """Reserve space for `count` rows in all columns, without their fields' bytes.

    Returns False if out of memory.
    """
    cdef int wanted = columns.wanted
    cdef Py_ssize_t row = columns.count
    columns.offset.size = columns.timestamp.size = 8 * row
    columns.timestamp_type.size = row
    columns.header.size = 4 * row
    return (
        (not wanted & KEY or make_rows(&columns.key, row, count, likely))
        and (not wanted & VALUE or make_rows(&columns.value, row, count, likely))
        and (not wanted & OFFSET or make_room(&columns.offset, 8 * count, 8 * likely))
        and (not wanted & TIMESTAMP or make_room(&columns.timestamp, 8 * count, 8 * likely))
        and (not wanted & TIMESTAMP_TYPE or make_room(&columns.timestamp_type, count, likely))
        and (not wanted & HEADERS or make_room(&columns.header, 4 * (count + 1), 4 * likely))
    )


cdef bint append_headers(Columns* columns, const Record* record, const uint8_t* end) noexcept nogil:
    """Append the headers of a record that `take_record` has validated; False if out of memory."""
    cdef const uint8_t* at = record.headers
    cdef Field name, value
    cdef int32_t _
    cdef Fields* names = &columns.header_key
    cdef uint8_t* to
    cdef Py_ssize_t row = columns.header_count
    cdef Py_ssize_t count = record.header_count
    if not (
        make_rows(names, row, count, 0) and make_rows(&columns.header_value, row, count, 0)
        and make_room(&names.data, GROWTH_MAX * (end - at), 0)
    ):
        return False
    for _ in range(record.header_count):
        at = take_field(take_field(at, end, &name), end, &value)
        to = store_text(names.data.at + names.data.size, name.at, name.size)
        names.data.size = to - names.data.at
        (<int32_t*> names.offsets.at)[row + 1] = <int32_t> names.data.size
        if not append_field(&columns.header_value, row, &value, end):
            return False
        row += 1
    columns.header_count = row
    return True


cdef Py_ssize_t times_missing(const Columns* columns) noexcept nogil:
    """Return the number of records without a timestamp: those with -1 ms."""
    cdef const int64_t* times = <const int64_t*> columns.timestamp.at
    cdef Py_ssize_t row, missing = 0
    for row in range(columns.count):
        missing += times[row] == -columns.ticks
    return missing


cdef inline int64_t in_unit(int64_t timestamp_ms, int64_t ticks) noexcept nogil:
    cdef int64_t product
    if ticks == 1 or timestamp_ms == 0:
        return timestamp_ms
    if __builtin_mul_overflow(timestamp_ms, ticks, &product):
        return INT64_MAX if timestamp_ms > 0 else INT64_MIN
    return product


cdef int append_records(
    Columns* columns, const Batch* batch, const uint8_t* at, Py_ssize_t size, int64_t first_offset
) noexcept nogil:
    """Append the records from `first_offset` on, whose rows must be reserved.

    After an error the columns may hold values after their last row.
    """
    cdef const uint8_t* end = at + size
    cdef int wanted = columns.wanted
    cdef int64_t ticks = columns.ticks
    cdef Py_ssize_t row = columns.count
    cdef int64_t* offsets = <int64_t*> columns.offset.at
    cdef int64_t* timestamps = <int64_t*> columns.timestamp.at
    cdef int32_t* headers = <int32_t*> columns.header.at
    # Copies on the stack, which no byte that is written can change.
    cdef Fields key = columns.key, value = columns.value
    cdef int64_t previous = -1
    cdef int64_t last = batch.last_offset - batch.base_offset
    cdef int32_t _
    cdef int code = NONE
    cdef Record record
    for _ in range(batch.count):
        at = take_record(at, end, &record)
        if at == NULL or not previous < record.offset_delta <= last:
            code = INVALID_RECORD
            break
        previous = record.offset_delta
        if batch.base_offset + previous < first_offset:
            continue
        if wanted & OFFSET:
            offsets[row] = batch.base_offset + previous
        if wanted & TIMESTAMP:
            timestamps[row] = in_unit(timestamp_of(batch, &record), ticks)
        if wanted & HEADERS:
            headers[row] = <int32_t> columns.header_count
        if not (
            (not wanted & KEY or append_field(&key, row, &record.key, end))
            and (not wanted & VALUE or append_field(&value, row, &record.value, end))
            and (
                not wanted & HEADERS or record.header_count == 0
                or append_headers(columns, &record, at)
            )
        ):
            code = NO_MEMORY
            break
        row += 1
    columns.key, columns.value = key, value
    if code == NONE and at != end:
        code = INVALID_RECORD
    if code == NONE:
        end_rows(columns, batch, row)
    return code


cdef inline void end_rows(Columns* columns, const Batch* batch, Py_ssize_t row) noexcept nogil:
    """Set what is the same for all rows of a batch, and the end of the last row."""
    if columns.wanted & TIMESTAMP_TYPE:
        memset(
            columns.timestamp_type.at + columns.count, batch.attributes & LOG_APPEND_TIME != 0,
            row - columns.count,
        )
    if columns.wanted & HEADERS:
        (<int32_t*> columns.header.at)[row] = <int32_t> columns.header_count
    columns.count = row


cdef int append_batch(
    Columns* columns, const Batch* batch, const uint8_t* at, Py_ssize_t size,
    int64_t first_offset, Py_ssize_t likely,
) noexcept nogil:
    """Append the uncompressed records of a batch, or leave the columns unchanged.

    `likely` is the expected number of bytes of all records, including these.
    """
    cdef Columns before = columns[0]
    cdef int code
    if miscounted(batch, size):
        return INVALID_RECORD
    if not (
        make_rows_in_all(columns, batch.count, batch.count * (likely // max(size, 1)))
        and (not columns.wanted & VALUE or make_room(&columns.value.data, size, likely))
    ):
        return NO_MEMORY
    code = append_records(columns, batch, at, size, first_offset)
    if code == NONE:
        if columns.count > before.count:    # compaction may remove records at a batch's end
            columns.taken += size
        return NONE
    truncate_fields(&columns.key, columns.count, &before.key)
    truncate_fields(&columns.value, columns.count, &before.value)
    truncate_fields(&columns.header_key, before.header_count, &before.header_key)
    truncate_fields(&columns.header_value, before.header_count, &before.header_value)
    columns.header_count = before.header_count
    return code


cdef int64_t size_of(const Columns* columns) noexcept nogil:
    """Return the bytes of all values and of their offsets."""
    cdef int wanted = columns.wanted
    cdef int64_t row_size = (
        4 * (wanted & KEY != 0) + 4 * (wanted & VALUE != 0) + 8 * (wanted & OFFSET != 0)
        + 8 * (wanted & TIMESTAMP != 0) + 4 * (wanted & HEADERS != 0)
        + (wanted & TIMESTAMP_TYPE != 0)
    )
    return (
        row_size * columns.count + columns.key.data.size + columns.value.data.size
        + 8 * columns.header_count + columns.header_key.data.size + columns.header_value.data.size
    )


cdef int append_set(
    Columns* columns, Walk* walk, int64_t size_max, int64_t room
) noexcept nogil:
    """Append batches; return 0 if the columns must be taken before more is appended."""
    cdef Batch batch
    cdef const uint8_t* at
    cdef Py_ssize_t size, likely
    cdef int code
    while size_of(columns) < size_max:
        code = next_batch(walk, &batch)
        if code:
            return code
        at, size = walk.at + walk.position + HEADER_SIZE, batch.size - HEADER_SIZE
        if size > room - columns.taken:
            return NONE if columns.taken else MESSAGE_TOO_LARGE
        likely = min(<int64_t> (walk.size - walk.position), size_max - size_of(columns))
        code = append_batch(columns, &batch, at, size, walk.next_offset, max(size, likely))
        if code:
            return code
        pass_batch(walk, &batch)
    return NONE


@cython.final
cdef class ColumnBuilder:
    """Decodes records into the columns of the bit set `wanted`.

    `ticks` is the number of timestamp units in a millisecond.  `room` limits the bytes of records
    until the columns are taken, since their offsets have 32 bits.  One thread at a time; large sets
    are decoded without the GIL.
    """

    cdef Columns columns
    cdef bint check_crcs
    cdef bint busy
    cdef bint begun
    cdef int64_t room

    def __init__(
        self, int wanted, bint check_crcs=True, int64_t ticks=1, int64_t room=ROOM_MAX
    ) -> None:
        assert 0 <= wanted < 2 * TIMESTAMP_TYPE and ticks > 0 and 0 < room <= ROOM_MAX
        assert not self.begun, "a builder is made once"
        block_cache_use(1)
        self.begun = True
        self.columns.wanted = wanted
        self.columns.ticks = ticks
        self.check_crcs = check_crcs
        self.room = min(room, ROOM_MAX // GROWTH_MAX) if wanted & HEADERS else room

    def __dealloc__(self):
        free_fields(&self.columns.key)
        free_fields(&self.columns.value)
        free_fields(&self.columns.header_key)
        free_fields(&self.columns.header_value)
        free_bytes(&self.columns.offset)
        free_bytes(&self.columns.timestamp)
        free_bytes(&self.columns.timestamp_type)
        free_bytes(&self.columns.header)
        if self.begun:
            block_cache_use(-1)

    @property
    def count(self) -> int:
        return self.columns.count

    @property
    def size(self) -> int:
        """Bytes of all values and of their offsets."""
        return size_of(&self.columns)

    def add(self, batch, payload, int64_t first_offset) -> int:
        """Append one whole batch; `payload` has its decompressed records if it is compressed.

        Returns 0, FULL if the columns must be taken first, or a Kafka error code.
        """
        cdef Py_buffer whole, decompressed
        assert not self.busy, "a builder belongs to one thread at a time"
        PyObject_GetBuffer(batch, &whole, PyBUF_SIMPLE)
        try:
            if payload is None:
                return self.add_whole(&whole, NULL, first_offset)
            PyObject_GetBuffer(payload, &decompressed, PyBUF_SIMPLE)
            try:
                return self.add_whole(&whole, &decompressed, first_offset)
            finally:
                PyBuffer_Release(&decompressed)
        finally:
            PyBuffer_Release(&whole)

    cdef int add_whole(
        self, const Py_buffer* whole, const Py_buffer* decompressed, int64_t first_offset
    ) except -100:
        cdef Batch batch
        cdef const uint8_t* at = <const uint8_t*> whole.buf
        cdef Py_ssize_t size
        cdef int code = open_only_batch(at, whole.len, self.check_crcs, &batch)
        if code or has_no_records(&batch, first_offset):
            return code
        assert (decompressed == NULL) == (batch.attributes & CODEC_MASK == CODEC_NONE)
        at, size = at + HEADER_SIZE, batch.size - HEADER_SIZE
        if decompressed != NULL:
            at, size = <const uint8_t*> decompressed.buf, decompressed.len
        if size > self.room - self.columns.taken:
            return FULL if self.columns.taken else MESSAGE_TOO_LARGE
        self.busy = True
        with nogil:
            code = append_batch(&self.columns, &batch, at, size, first_offset, size)
        self.busy = False
        if code == NO_MEMORY:
            raise MemoryError
        return code

    def add_set(
        self, record_set, Py_ssize_t position, int64_t first_offset, int64_t size_max,
        aborted=None,
    ) -> tuple:
        """Append batches from `position` on until the columns have `size_max` bytes.

        Returns (code, position, next offset).  Code 0: take the columns before more is read.
        AT_END, COMPRESSED or an error code: refers to the batch at the position.  `aborted` is a
        list as in `aborted_transactions.pxd`; entries that end are marked in it.
        """
        cdef Py_buffer view, listed
        cdef Aborted transactions
        cdef Walk walk
        cdef int code
        assert not self.busy, "a builder belongs to one thread at a time"
        PyObject_GetBuffer(record_set, &view, PyBUF_SIMPLE)
        walk = Walk(<const uint8_t*> view.buf, view.len, position, first_offset,
                    self.check_crcs, NULL)
        try:
            assert 0 <= position <= view.len
            if aborted is not None:
                open_aborted(aborted, &listed, &transactions)
                walk.aborted = &transactions
            if view.len - position < GIL_SIZE_MIN:
                code = append_set(&self.columns, &walk, size_max, self.room)
            else:
                self.busy = True
                with nogil:
                    code = append_set(&self.columns, &walk, size_max, self.room)
                self.busy = False
        finally:
            if walk.aborted != NULL:
                PyBuffer_Release(&listed)
            PyBuffer_Release(&view)
        if code == NO_MEMORY:
            raise MemoryError
        return code, walk.position, walk.next_offset

    def take(self) -> dict:
        """Return the columns' buffers and null counts, and reset the builder."""
        cdef Columns* columns = &self.columns
        cdef dict taken = {}
        cdef int wanted = columns.wanted
        assert not self.busy, "a builder belongs to one thread at a time"
        # An empty column needs its one offset.
        if not make_rows_in_all(columns, 0, 0):
            raise MemoryError
        if wanted & KEY:
            move_fields(&columns.key, columns.count, "key", taken)
        if wanted & VALUE:
            move_fields(&columns.value, columns.count, "value", taken)
        if wanted & OFFSET:
            columns.offset.size = 8 * columns.count
            taken["offset"] = move_bytes(&columns.offset)
        if wanted & TIMESTAMP:
            columns.timestamp.size = 8 * columns.count
            taken["timestamp_nulls"] = times_missing(columns)
            taken["timestamp"] = move_bytes(&columns.timestamp)
        if wanted & TIMESTAMP_TYPE:
            columns.timestamp_type.size = columns.count
            taken["timestamp_type"] = move_bytes(&columns.timestamp_type)
        if wanted & HEADERS:
            self.take_headers(taken)
        columns.count = columns.header_count = columns.taken = 0
        return taken

    cdef object take_headers(self, dict taken):
        cdef Columns* columns = &self.columns
        cdef Py_ssize_t count = columns.header_count
        if not (
            make_rows(&columns.header_key, count, 0, 0)
            and make_rows(&columns.header_value, count, 0, 0)
        ):
            raise MemoryError
        if columns.count == 0:
            (<int32_t*> columns.header.at)[0] = 0
        columns.header.size = 4 * (columns.count + 1)
        taken["header_offsets"] = move_bytes(&columns.header)
        move_fields(&columns.header_key, count, "header_key", taken)
        move_fields(&columns.header_value, count, "header_value", taken)


def whole_batches(record_set) -> tuple:
    """Return the end of the last whole batch and the offset after it; 0 and -1 if there is none.

    Uses only the sizes and stops at an invalid one, for which the decoder raises an error.
    """
    cdef Py_buffer view
    cdef Py_ssize_t end
    cdef int64_t next_offset
    PyObject_GetBuffer(record_set, &view, PyBUF_SIMPLE)
    end = end_of_whole(<const uint8_t*> view.buf, view.len, &next_offset)
    PyBuffer_Release(&view)
    return end, next_offset
