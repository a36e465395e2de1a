# Part of cleaner.pyx: the map from a key's digest to the offset after its last record.


cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t next_offset     # the offset after the record's; 0 if the slot is free


# A record whose key is looked up.
cdef struct Keyed:
    const uint8_t* at
    const uint8_t* end
    int64_t offset
    int64_t timestamp
    xxh3_digest digest
    bint has_key
    bint is_tombstone


cdef struct RecordWalk:
    const uint8_t* at
    const uint8_t* end
    int32_t left
    int32_t last_delta


cdef int take_keyed(
    RecordWalk* walk, const Batch* batch, const OffsetMap_* offsets, Keyed* keyed
) noexcept nogil:
    """Take up to KEYS_AHEAD records and prefetch their slots; return their number, -1 if they are
    damaged."""
    cdef Record record
    cdef const uint8_t* after
    cdef int count = 0
    while walk.left and count < KEYS_AHEAD:
        after = take_record(walk.at, walk.end, &record)
        if after == NULL or record.offset_delta <= walk.last_delta:
            return -1
        if record.offset_delta > batch.last_offset - batch.base_offset:
            return -1
        walk.last_delta = record.offset_delta
        keyed.at, keyed.end = walk.at, after
        keyed.offset = batch.base_offset + record.offset_delta
        keyed.timestamp = timestamp_of(batch, &record)
        keyed.has_key = record.key.size >= 0
        keyed.is_tombstone = record.value.size < 0
        if keyed.has_key:
            keyed.digest = xxh3_128(record.key.at, record.key.size)
            prefetch(&offsets.slots[xxh3_scaled(keyed.digest.high, offsets.slot_count)])
        walk.at = after
        walk.left -= 1
        keyed += 1
        count += 1
    if walk.left == 0 and walk.at != walk.end:
        return -1
    return count


cdef struct OffsetMap_:
    Slot* slots
    int64_t slot_count
    int64_t capacity
    int64_t used


cdef inline Slot* slot_of(const OffsetMap_* offsets, const xxh3_digest* digest) noexcept nogil:
    """Return the slot of a key, or the free one where it belongs."""
    cdef Slot* slot = offsets.slots + xxh3_scaled(digest.high, offsets.slot_count)
    cdef Slot* end = offsets.slots + offsets.slot_count
    while slot.next_offset and (slot.low != digest.low or slot.high != digest.high):
        slot += 1
        if slot == end:
            slot = offsets.slots
    return slot


cdef class OffsetMap:
    """The last offset of each key, from `first_offset` to `upper_offset`.

    Slots are touched at random, and most of a pass is waiting for addresses to be translated: with
    huge pages it takes half the time, two thirds with zstd.  But a few keys take all the memory.
    """

    cdef OffsetMap_ offsets
    cdef size_t mapped_size
    cdef int64_t first_offset, upper_offset
    cdef readonly int64_t end_offset, records_read

    def __cinit__(
        self, int64_t size, double load_factor, int64_t first_offset, int64_t upper_offset,
        *, bint huge_pages=False,
    ):
        cdef void* mapped
        cdef int64_t slots = max(2, size // <int64_t> sizeof(Slot))
        self.offsets.slot_count = slots
        # A free slot ends a search.
        self.offsets.capacity = min(max(1, <int64_t> (slots * load_factor)), slots - 1)
        self.mapped_size = slots * sizeof(Slot)
        mapped = mmap(
            NULL, self.mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0
        )
        if mapped == MAP_FAILED:
            raise MemoryError
        self.offsets.slots = <Slot*> mapped
        if huge_pages:
            madvise(mapped, self.mapped_size, MADV_HUGEPAGE)    # has no effect where not supported
        self.first_offset = self.end_offset = first_offset
        self.upper_offset = upper_offset

    def __dealloc__(self):
        if self.offsets.slots != NULL:
            munmap(self.offsets.slots, self.mapped_size)

    @property
    def utilization(self) -> float:
        """The share of the capacity that is used."""
        return self.offsets.used / <double> self.offsets.capacity

    def get(self, key) -> int:
        """Return the last offset of a key; -1 if it has none."""
        cdef Py_buffer view
        cdef xxh3_digest digest
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        digest = xxh3_128(<const uint8_t*> view.buf, view.len)
        PyBuffer_Release(&view)
        return slot_of(&self.offsets, &digest).next_offset - 1

    def pass_gap(self, int64_t offset):
        """Note that there is no record before this offset: the next segment's base offset."""
        self.end_offset = max(self.end_offset, min(offset, self.upper_offset))

    def build(self, BatchReader reader not None) -> int:
        """Add the records of uncompressed batches outside transactions.

        Returns AT_END, WINDOW after about a window, DECIDE at another batch, FULL, or the reason
        why a batch cannot be read.
        """
        cdef int code = NONE
        cdef int64_t until = reader.position + reader.window_size
        with nogil:
            while code == NONE:
                if reader.position >= until:
                    code = WINDOW_
                    break
                code = reader.next()
                if code:
                    break
                if reader.fields.base_offset >= self.upper_offset:
                    code = AT_END_
                    break
                if reader.fields.attributes & CONTROL or (
                    reader.fields.last_offset < self.first_offset
                ):
                    self.note_passed(reader)
                elif reader.fields.attributes & (TRANSACTIONAL | CODEC_MASK):
                    code = DECIDE_
                else:
                    code = self.add(
                        reader, reader.batch + HEADER_SIZE, reader.fields.size - HEADER_SIZE
                    )
        if code == NO_MEMORY_:
            raise MemoryError
        return code

    cdef void note_passed(self, BatchReader reader) noexcept nogil:
        self.end_offset = max(
            self.end_offset, min(reader.fields.last_offset + 1, self.upper_offset)
        )
        reader.pass_batch()

    cdef int add(self, BatchReader reader, const uint8_t* at, Py_ssize_t size) noexcept nogil:
        """Add the records of the current batch; return NONE, FULL or CORRUPT_MESSAGE."""
        cdef Keyed[KEYS_AHEAD] keyed
        cdef RecordWalk walk
        cdef Slot* slot
        cdef int count, i
        walk.at, walk.end, walk.left, walk.last_delta = at, at + size, reader.fields.count, -1
        while walk.left:
            count = take_keyed(&walk, &reader.fields, &self.offsets, keyed)
            if count < 0:
                return CORRUPT_MESSAGE
            self.records_read += count
            for i in range(count):
                if not keyed[i].has_key or not (
                    self.first_offset <= keyed[i].offset < self.upper_offset
                ):
                    continue
                slot = slot_of(&self.offsets, &keyed[i].digest)
                if slot.next_offset == 0:
                    if self.offsets.used == self.offsets.capacity:
                        self.end_offset = keyed[i].offset
                        return FULL_
                    self.offsets.used += 1
                    slot.low, slot.high = keyed[i].digest.low, keyed[i].digest.high
                slot.next_offset = keyed[i].offset + 1
        self.note_passed(reader)
        return NONE

    def add_batch(self, BatchReader reader not None, payload) -> int:
        """Add the records of the current batch, decompressed; return WHOLE, FULL or DAMAGED."""
        cdef Py_buffer view
        cdef int code
        assert reader.has_batch
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        with nogil:
            code = self.add(reader, <const uint8_t*> view.buf, view.len)
        PyBuffer_Release(&view)
        return code

    def skip_batch(self, BatchReader reader not None):
        """Pass over the current batch, whose transaction was aborted."""
        assert reader.has_batch
        self.note_passed(reader)
