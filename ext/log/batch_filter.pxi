# Part of cleaner.pyx: the filter of batches, and the index entries of what it keeps.


cdef class BatchFilter:
    """Filters batches by an offset map, and collects the bytes and index entries of a segment."""

    cdef OffsetMap offsets
    cdef int64_t end_offset, now_ms, delete_horizon_ms, high_watermark
    # The output that was not taken yet, the batch that is being made, and the index entries.
    cdef Bytes output, scratch, offset_entries, time_entries
    cdef int64_t base_offset, interval, since_entry, max_timestamp, offset_of_max, time_entered
    cdef readonly int64_t size, next_offset
    cdef readonly int64_t records_read, records_written, keyless_dropped
    cdef int32_t kept_count
    cdef int64_t kept_max
    cdef int64_t keyless
    cdef bint has_tombstone

    def __cinit__(
        self, OffsetMap offsets not None, int64_t now_ms, int64_t delete_horizon_ms,
        int64_t high_watermark,
    ):
        self.offsets = offsets
        self.end_offset = offsets.end_offset
        self.now_ms, self.delete_horizon_ms = now_ms, delete_horizon_ms
        self.high_watermark = high_watermark
        if not reserve(&self.scratch, HEADER_SIZE):
            raise MemoryError

    def __dealloc__(self):
        free(self.output.at)
        free(self.scratch.at)
        free(self.offset_entries.at)
        free(self.time_entries.at)

    def begin(self, int64_t base_offset, int64_t interval):
        """Begin a segment; the output of the one before must be taken."""
        assert self.output.size == 0
        self.base_offset = self.next_offset = self.offset_of_max = base_offset
        self.interval = interval
        self.size = self.since_entry = 0
        self.max_timestamp = self.time_entered = -1
        self.offset_entries.size = self.time_entries.size = 0

    def take_output(self) -> bytes:
        """Return the bytes that follow those taken before."""
        taken = (<const char*> self.output.at)[:self.output.size]
        self.output.size = 0
        return taken

    def index_entries(self) -> tuple:
        """Return the entries of the offset index and of the time index of the whole segment."""
        if not self.enter_time():
            raise MemoryError
        return (
            (<const char*> self.offset_entries.at)[:self.offset_entries.size],
            (<const char*> self.time_entries.at)[:self.time_entries.size],
        )

    def run(self, BatchReader reader not None, bint is_last_file) -> int:
        """Filter uncompressed batches outside transactions.

        Returns AT_END, WINDOW if output can be taken, ROLL if the current batch does not fit the
        segment, DECIDE at another batch or one that is emptied, or the reason why a batch cannot be
        read.  DECIDE is returned at the last batch of the last file, too.
        """
        cdef int code = NONE
        cdef int64_t until = reader.position + reader.window_size
        with nogil:
            while code == NONE:
                if self.output.size >= reader.window_size or reader.position >= until:
                    code = WINDOW_
                else:
                    code = reader.next()
                if code == NONE:
                    code = self.step(reader, is_last_file)
        if code == NO_MEMORY_:
            raise MemoryError
        return code

    cdef int step(self, BatchReader reader, bint is_last_file) noexcept nogil:
        cdef Batch* fields = &reader.fields
        cdef int code
        if fields.attributes & CONTROL:
            return DECIDE_
        if fields.base_offset >= self.end_offset:
            return self.append(reader, reader.batch, fields.size)
        if fields.attributes & (TRANSACTIONAL | CODEC_MASK):
            return DECIDE_
        if is_last_file and reader.position + fields.size == reader.end:
            return DECIDE_
        code = self.filter(
            reader, reader.batch + HEADER_SIZE, fields.size - HEADER_SIZE, False, False
        )
        if code == UNCHANGED_:
            return self.append(reader, reader.batch, fields.size)
        if code == REWRITTEN_:
            return self.append(reader, self.scratch.at, self.scratch.size)
        if code != EMPTIED_:
            return code
        if load_i64(reader.batch + PRODUCER_ID) >= 0:
            return DECIDE_
        if fields.last_offset + 1 == self.high_watermark:
            return DECIDE_
        self.drop_batch(reader)
        return NONE

    # -- a batch -----------------------------------------------------------------------------

    cdef int filter(
        self, BatchReader reader, const uint8_t* at, Py_ssize_t size, bint keep_all, bint rebase
    ) noexcept nogil:
        """Collect the records to keep of the current batch; return UNCHANGED, EMPTIED, REWRITTEN
        or the reason why it is not valid.

        If it is rewritten, and not compressed, it is complete in `scratch`.
        """
        cdef Batch* fields = &reader.fields
        cdef bint had_horizon = fields.attributes & DELETE_HORIZON
        cdef int code = self.collect(reader, at, size, keep_all, False)
        if code:
            return code
        if self.kept_count == 0:
            return EMPTIED_
        # A batch that is partly mapped gets its horizon when all of it is: otherwise its last
        # tombstones would be kept for a shorter time.
        rebase = rebase or (self.has_tombstone and fields.last_offset < self.end_offset)
        if rebase and not had_horizon:
            code = self.collect(reader, at, size, keep_all, True)
            if code:
                return code
        elif self.kept_count == fields.count:
            return UNCHANGED_
        else:
            rebase = False
        memcpy(self.scratch.at, reader.batch, HEADER_SIZE)
        if rebase:
            store_i16(self.scratch.at + ATTRIBUTES, fields.attributes | DELETE_HORIZON)
            store_i64(self.scratch.at + BASE_TIMESTAMP, self.delete_horizon_ms)
        store_i64(self.scratch.at + MAX_TIMESTAMP, self.kept_max)
        store_i32(self.scratch.at + RECORD_COUNT, self.kept_count)
        seal(&self.scratch)
        return REWRITTEN_

    cdef int collect(
        self, BatchReader reader, const uint8_t* at, Py_ssize_t size, bint keep_all, bint rebase
    ) noexcept nogil:
        """Copy the records to keep behind the header in `scratch`; with `rebase` their timestamps
        are relative to the delete horizon."""
        cdef Keyed[KEYS_AHEAD] keyed
        cdef RecordWalk walk
        cdef Batch* fields = &reader.fields
        cdef const uint8_t* kept_from = at
        cdef int count, i
        cdef bint has_expired = (
            fields.attributes & DELETE_HORIZON and fields.base_timestamp <= self.now_ms
        )
        cdef Py_ssize_t room = HEADER_SIZE + size
        if rebase:
            room += <Py_ssize_t> fields.count * REBASED_GROWTH_MAX
        self.scratch.size = 0
        if not reserve(&self.scratch, room):
            return NO_MEMORY_
        self.scratch.size = HEADER_SIZE
        self.kept_count = 0
        self.keyless = 0
        self.kept_max = fields.max_timestamp if fields.attributes & LOG_APPEND_TIME else -1
        self.has_tombstone = False
        walk.at, walk.end, walk.left, walk.last_delta = at, at + size, fields.count, -1
        while walk.left:
            count = take_keyed(&walk, fields, &self.offsets.offsets, keyed)
            if count < 0:
                return CORRUPT_MESSAGE
            for i in range(count):
                if not keep_all and not self.is_kept(&keyed[i], has_expired):
                    # The records before it are copied together.
                    copy_run(&self.scratch, kept_from, keyed[i].at)
                    kept_from = keyed[i].end
                    continue
                self.kept_count += 1
                if keyed[i].timestamp > self.kept_max:
                    self.kept_max = keyed[i].timestamp
                if rebase:
                    copy_rebased(
                        &self.scratch, &keyed[i], keyed[i].timestamp - self.delete_horizon_ms
                    )
                    kept_from = keyed[i].end
        copy_run(&self.scratch, kept_from, walk.at)
        if fields.count == 0 and size:
            return CORRUPT_MESSAGE
        return NONE

    cdef inline bint is_kept(self, const Keyed* keyed, bint has_expired) noexcept nogil:
        cdef Slot* slot
        if keyed.offset >= self.end_offset:
            return True
        if not keyed.has_key:
            self.keyless += 1
            return False
        slot = slot_of(&self.offsets.offsets, &keyed.digest)
        if slot.next_offset - 1 > keyed.offset:
            return False
        if keyed.is_tombstone:
            if has_expired:
                return False
            self.has_tombstone = True
        return True

    cdef int append(
        self, BatchReader reader, const uint8_t* batch, Py_ssize_t size
    ) noexcept nogil:
        """Append a batch in place of the current one, which is passed; return ROLL if it does not
        fit the segment."""
        cdef int64_t last_offset = reader.fields.last_offset
        if self.size and (
            self.size + size > FILE_SIZE_MAX or last_offset - self.base_offset > FILE_SIZE_MAX
        ):
            return ROLL_
        if not reserve(&self.output, size):
            return NO_MEMORY_
        memcpy(self.output.at + self.output.size, batch, size)
        self.output.size += size
        if not self.enter(batch, size, last_offset):
            return NO_MEMORY_
        self.size += size
        self.next_offset = last_offset + 1
        self.records_written += load_i32(batch + RECORD_COUNT)
        self.drop_batch(reader)
        return NONE

    cdef void drop_batch(self, BatchReader reader) noexcept nogil:
        self.records_read += reader.fields.count
        self.keyless_dropped += self.keyless
        self.keyless = 0
        reader.pass_batch()

    # -- index entries, as segment_walk.scan makes them --------------------------------------

    cdef bint enter(self, const uint8_t* batch, Py_ssize_t size, int64_t last) noexcept nogil:
        cdef uint8_t* entry
        cdef int64_t timestamp = load_i64(batch + MAX_TIMESTAMP)
        cdef bint is_empty = size == HEADER_SIZE and load_i32(batch + RECORD_COUNT) == 0
        if timestamp > self.max_timestamp and not is_empty:
            self.max_timestamp, self.offset_of_max = timestamp, last
        if self.since_entry > self.interval:
            if not reserve(&self.offset_entries, OFFSET_ENTRY_SIZE):
                return False
            entry = self.offset_entries.at + self.offset_entries.size
            store_i32(entry, <int32_t> (last - self.base_offset))
            store_i32(entry + 4, <int32_t> self.size)
            self.offset_entries.size += OFFSET_ENTRY_SIZE
            if not self.enter_time():
                return False
            self.since_entry = 0
        self.since_entry += size
        return True

    cdef bint enter_time(self) noexcept nogil:
        cdef uint8_t* entry
        if self.max_timestamp <= self.time_entered:
            return True
        if not reserve(&self.time_entries, TIME_ENTRY_SIZE):
            return False
        entry = self.time_entries.at + self.time_entries.size
        store_i64(entry, self.max_timestamp)
        store_i32(entry + 8, <int32_t> (self.offset_of_max - self.base_offset))
        self.time_entries.size += TIME_ENTRY_SIZE
        self.time_entered = self.max_timestamp
        return True

    # -- calls after `run` has returned DECIDE -----------------------------------------------

    def filter_batch(self, BatchReader reader not None, payload, bint keep_all=False,
                     bint rebase=False) -> int:
        """Collect the records to keep of the current batch: UNCHANGED, REWRITTEN, EMPTIED or
        DAMAGED.  With `keep_all` all are, and with `rebase` the batch gets a delete horizon."""
        cdef Py_buffer view
        cdef int code
        assert reader.has_batch
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        with nogil:
            code = self.filter(reader, <const uint8_t*> view.buf, view.len, keep_all, rebase)
        PyBuffer_Release(&view)
        if code == NO_MEMORY_:
            raise MemoryError
        return code

    def kept_records(self) -> bytes:
        """Return the records that were collected, to be compressed."""
        return (<const char*> self.scratch.at)[HEADER_SIZE:self.scratch.size]

    def replace_records(self, bytes packed not None):
        """Replace the collected records by these, compressed."""
        cdef Py_ssize_t size = len(packed)
        self.scratch.size = HEADER_SIZE
        if not reserve(&self.scratch, size):
            raise MemoryError
        memcpy(self.scratch.at + HEADER_SIZE, <const char*> packed, size)
        self.scratch.size = HEADER_SIZE + size
        seal(&self.scratch)

    def empty_batch(self, BatchReader reader not None):
        """Collect no records of the current batch: only its header is kept."""
        cdef uint8_t* header = self.scratch.at
        assert reader.has_batch
        memcpy(header, reader.batch, HEADER_SIZE)
        store_i16(
            header + ATTRIBUTES,
            reader.fields.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
        )
        store_i64(header + BASE_TIMESTAMP, -1)
        store_i32(header + RECORD_COUNT, 0)
        self.scratch.size = HEADER_SIZE
        seal(&self.scratch)

    def keep(self, BatchReader reader not None) -> int:
        """Append the current batch as it is; return WHOLE, or ROLL if it does not fit."""
        assert reader.has_batch
        return self.appended(self.append(reader, reader.batch, reader.fields.size))

    def keep_rewritten(self, BatchReader reader not None) -> int:
        """Append what was collected of the current batch; return WHOLE, or ROLL."""
        assert reader.has_batch
        return self.appended(self.append(reader, self.scratch.at, self.scratch.size))

    cdef int appended(self, int code) except? -100:
        if code == NO_MEMORY_:
            raise MemoryError
        return code

    def drop(self, BatchReader reader not None):
        """Pass over the current batch."""
        assert reader.has_batch
        self.drop_batch(reader)


cdef void seal(Bytes* batch) noexcept nogil:
    """Write the length and the CRC of a batch."""
    store_i32(batch.at + BATCH_LENGTH, <int32_t> (batch.size - PREFIX_SIZE))
    store_u32(batch.at + CRC, crc32c(batch.at + ATTRIBUTES, batch.size - ATTRIBUTES))


cdef inline void copy_run(Bytes* into, const uint8_t* at, const uint8_t* end) noexcept nogil:
    if end > at:
        memcpy(into.at + into.size, at, end - at)
        into.size += end - at


cdef void copy_rebased(Bytes* into, const Keyed* keyed, int64_t delta) noexcept nogil:
    """Copy a record with another timestamp delta; there is room for it."""
    cdef int32_t length = 0
    cdef int64_t old_delta = 0
    cdef const uint8_t* at = keyed.at
    cdef const uint8_t* rest
    cdef uint8_t* out = into.at + into.size
    at += load_varint32(at, keyed.end, &length)
    rest = at + 1
    rest += load_varint64(rest, keyed.end, &old_delta)
    out = store_varint(out, 1 + varint_size(delta) + (keyed.end - rest))
    out[0] = at[0]
    out = store_varint(out + 1, delta)
    memcpy(out, rest, keyed.end - rest)
    into.size = (out - into.at) + (keyed.end - rest)
