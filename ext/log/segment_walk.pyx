"""Walks over a segment file: batch by batch from header to header, or over every byte with CRCs.

Files are read by pread and without the GIL, so walks of several logs run in parallel.  The content
is not trusted: a length is checked against the file's end before it is used, and memory is
allocated only for bytes that exist.

`find_offset`, `find_timestamp` and `walk_to_end` read headers only.  `scan` validates each batch
and returns the state that recovery restores: index entries, the maximum timestamp, the start
offsets of leader epochs, and the batches of producers, of which only the last five each are needed.
"""

from libc.errno cimport errno
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset

from batch_check cimport check_batch
from batch_headers cimport (
    AT_END_, GAP_, STORAGE_ERROR_, TORN_, ZEROS_, Header, Window, is_empty, new_window, read_header,
)
from batch_layout cimport *
from big_endian cimport load_i16, load_i32, load_i64, store_i32, store_i64
from byte_array cimport Bytes, extended
from control_record cimport NO_CONTROL_TYPE, read_control
from file_bytes cimport data_end_of, pread_whole

cdef extern from "<unistd.h>" nogil:
    int c_syncfs "syncfs" (int fd)

cdef extern from "<sys/vfs.h>" nogil:
    struct statfs_t "statfs":
        long f_type
    int fstatfs(int fd, statfs_t* into)


cdef enum:
    CHUNK_SIZE = 1 << 20
    # Bytes read at a time of preallocated space.
    PAGE_SIZE = 4096
    # A scan returns after this many bytes, which bounds the size of its lists.
    SCAN_SIZE = 32 << 20
    # Bytes of invalid batches checked in a search for a valid one: a tenth of a second of CRC.
    CHECKED_MAX = 1 << 30
    BATCHES_PER_PRODUCER = 5
    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12
    RELATIVE_OFFSET_MAX = 0x7FFFFFFF

WHOLE = NONE
DAMAGED = CORRUPT_MESSAGE
STORAGE_ERROR = STORAGE_ERROR_
AT_END = AT_END_
TORN = TORN_
ZEROS = ZEROS_
GAP = GAP_


# ---------------------------------------------------------------------------------------------
# Walks over headers


def find_offset(
    int fd, int64_t position, int64_t end, int64_t offset, int64_t expected=-1
) -> tuple:
    """Return (code, position, size, base offset, last offset, max timestamp) of the batch that
    holds `offset`, or else of the first one after it.

    The last offset of the first batch read must be `expected`, unless that is -1: otherwise the
    index entry that led to it is wrong.
    """
    cdef Window* window = new_window(fd, end)
    cdef Header header = Header(position, 0, -1, -1, -1, False)
    cdef int code
    with nogil:
        code = read_header(window, position, &header)
        if code == NONE and expected >= 0 and header.last_offset != expected:
            code = CORRUPT_MESSAGE
        while code == NONE and header.last_offset < offset:
            code = read_header(window, header.position + header.size, &header)
    free(window)
    return (
        code, header.position, header.size, header.base_offset, header.last_offset,
        header.max_timestamp,
    )


def find_timestamp(
    int fd, int64_t position, int64_t end, int64_t timestamp, int64_t offset
) -> tuple:
    """Return (code, position, size) of the first batch that ends at `offset` or later and whose
    maximum timestamp is at least `timestamp`."""
    cdef Window* window = new_window(fd, end)
    cdef Header header = Header(position, 0, -1, -1, -1, False)
    cdef int code
    with nogil:
        code = read_header(window, position, &header)
        while code == NONE and (
            header.is_empty or header.max_timestamp < timestamp or header.last_offset < offset
        ):
            code = read_header(window, header.position + header.size, &header)
    free(window)
    return code, header.position, header.size


def walk_to_end(int fd, int64_t position, int64_t end) -> tuple:
    """Return (code, position, next offset, max timestamp, last offset of its batch) at the end of
    the walk.

    The code is AT_END if the last batch ends where the file does.
    """
    cdef Window* window = new_window(fd, end)
    cdef Header header = Header(position, 0, -1, -1, -1, False)
    cdef int code
    cdef int64_t next_offset = -1, max_timestamp = -1, offset_of_max = -1
    cdef int64_t at = position
    with nogil:
        code = read_header(window, at, &header)
        while code == NONE:
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
                offset_of_max = header.last_offset
            next_offset = header.last_offset + 1
            at = header.position + header.size
            code = read_header(window, at, &header)
    free(window)
    return code, at, next_offset, max_timestamp, offset_of_max


def walk_seams(
    int fd, int64_t position, int64_t end, int64_t segment_base, int64_t next_offset, int64_t size
) -> tuple:
    """Return (code, position, next offset) after about `size` bytes of batches whose offsets
    increase, or at the first batch that is not sound.

    The code is WHOLE if more batches follow, and AT_END at the end.
    """
    cdef Window* window = new_window(fd, end)
    cdef Header header = Header(position, 0, -1, -1, -1, False)
    cdef int code
    cdef int64_t at = position, until = position + size
    with nogil:
        code = read_header(window, at, &header)
        while code == NONE:
            if (
                header.base_offset < next_offset
                or header.last_offset - segment_base > RELATIVE_OFFSET_MAX
            ):
                code = CORRUPT_MESSAGE
                break
            next_offset = header.last_offset + 1
            at = header.position + header.size
            if at >= until and at < end:
                break
            code = read_header(window, at, &header)
    free(window)
    return code, at, next_offset


# ---------------------------------------------------------------------------------------------
# Scans of whole batches


cdef struct Produced:
    int64_t base_offset
    int64_t producer_id
    int64_t max_timestamp
    int32_t base_sequence
    int32_t last_offset_delta
    int16_t producer_epoch
    int16_t attributes
    int16_t control_type
    int32_t coordinator_epoch
    bint dropped


cdef struct EpochStart:
    int32_t leader_epoch
    int64_t base_offset


cdef struct Scan:
    int fd
    int64_t end
    int64_t data_end            # from here on the file is a hole, or space that was set aside
    int64_t position
    int64_t wanted              # minimum size of the next read, if the file has as much
    int64_t segment_base
    int64_t next_offset
    int64_t interval
    int64_t since_entry
    int64_t max_timestamp
    int64_t offset_of_max
    int64_t timestamp_entered
    int32_t leader_epoch
    int64_t count
    Bytes chunk
    Bytes offset_entries
    Bytes time_entries
    Bytes produced
    Bytes epoch_starts
    int64_t gaps_to
    bint no_memory


cdef bint scan_add(Scan* scan, const uint8_t* batch, int64_t size) noexcept nogil:
    """Add a valid batch to the scan's state; return False if memory ran out."""
    cdef int64_t base_offset = load_i64(batch + BASE_OFFSET)
    cdef int64_t last_offset = base_offset + load_i32(batch + LAST_OFFSET_DELTA)
    cdef int64_t timestamp = load_i64(batch + MAX_TIMESTAMP)
    cdef int64_t producer_id = load_i64(batch + PRODUCER_ID)
    cdef int32_t leader_epoch = load_i32(batch + LEADER_EPOCH)
    cdef uint8_t* entry
    cdef Produced* produced
    cdef EpochStart* epoch_starts
    if timestamp > scan.max_timestamp and not is_empty(batch):
        scan.max_timestamp = timestamp
        scan.offset_of_max = last_offset
    if scan.since_entry > scan.interval:
        entry = extended(&scan.offset_entries, OFFSET_ENTRY_SIZE)
        if entry == NULL:
            return False
        store_i32(entry, <int32_t> (last_offset - scan.segment_base))
        store_i32(entry + 4, <int32_t> scan.position)
        if scan.max_timestamp > scan.timestamp_entered:
            entry = extended(&scan.time_entries, TIME_ENTRY_SIZE)
            if entry == NULL:
                return False
            store_i64(entry, scan.max_timestamp)
            store_i32(entry + 8, <int32_t> (scan.offset_of_max - scan.segment_base))
            scan.timestamp_entered = scan.max_timestamp
        scan.since_entry = 0
    scan.since_entry += size
    if leader_epoch > scan.leader_epoch:
        epoch_starts = <EpochStart*> extended(&scan.epoch_starts, sizeof(EpochStart))
        if epoch_starts == NULL:
            return False
        epoch_starts.leader_epoch, epoch_starts.base_offset = leader_epoch, base_offset
        scan.leader_epoch = leader_epoch
    if producer_id >= 0:
        produced = <Produced*> extended(&scan.produced, sizeof(Produced))
        if produced == NULL:
            return False
        produced.base_offset = base_offset
        produced.producer_id = producer_id
        produced.max_timestamp = timestamp
        produced.base_sequence = load_i32(batch + BASE_SEQUENCE)
        produced.last_offset_delta = load_i32(batch + LAST_OFFSET_DELTA)
        produced.producer_epoch = load_i16(batch + PRODUCER_EPOCH)
        produced.attributes = load_i16(batch + ATTRIBUTES)
        produced.control_type = NO_CONTROL_TYPE
        produced.coordinator_epoch = -1
        if produced.attributes & CONTROL:
            read_control(batch, size, &produced.control_type, &produced.coordinator_epoch)
        produced.dropped = False
    scan.next_offset = last_offset + 1
    scan.position += size
    scan.count += 1
    return True


cdef int scan_check(Scan* scan, const uint8_t* batch, int64_t size) noexcept nogil:
    """Return the code of a batch at its place: valid, and after the previous one."""
    cdef int64_t base_offset = load_i64(batch + BASE_OFFSET)
    cdef int32_t delta = load_i32(batch + LAST_OFFSET_DELTA)
    cdef int code
    if base_offset < scan.next_offset or delta < 0 or base_offset >= INT64_MAX - delta:
        return CORRUPT_MESSAGE
    if base_offset - scan.segment_base > RELATIVE_OFFSET_MAX - <int64_t> delta:
        return CORRUPT_MESSAGE
    code = check_batch(batch, size)
    if code == NONE and base_offset != scan.next_offset and base_offset > scan.gaps_to:
        return GAP_
    return code


cdef Py_ssize_t pread_data(Scan* scan, Py_ssize_t size) noexcept nogil:
    """Read at the scan's position like pread_whole, but without reading a hole at the end."""
    cdef int64_t data = max(<int64_t> 0, scan.data_end - scan.position)
    cdef Py_ssize_t got
    if data >= size:
        return pread_whole(scan.fd, scan.chunk.at, size, scan.position)
    got = pread_whole(scan.fd, scan.chunk.at, <Py_ssize_t> data, scan.position)
    if got < data:
        return got
    memset(scan.chunk.at + data, 0, <size_t> (size - data))
    return size


cdef int scan_rest_is_zeros(Scan* scan) noexcept nogil:
    """Return ZEROS if there are only zeros from the position to the end, else TORN."""
    cdef int64_t position = scan.position
    cdef Py_ssize_t got
    while position < scan.data_end:
        got = pread_whole(
            scan.fd, scan.chunk.at, min(<int64_t> scan.chunk.room, scan.data_end - position),
            position,
        )
        if got <= 0:
            return TORN_
        if scan.chunk.at[0] or memcmp(scan.chunk.at, scan.chunk.at + 1, <size_t> (got - 1)):
            return TORN_
        position += got
    return ZEROS_


cdef int scan_chunk(Scan* scan) noexcept nogil:
    """Check the batches of one read; return NONE, or the reason it ended before the file."""
    cdef Py_ssize_t filled, used = 0
    cdef int64_t size
    cdef const uint8_t* batch
    cdef int code
    cdef int64_t left = scan.end - scan.position
    cdef int64_t requested = min(<int64_t> scan.chunk.room, left)
    if scan.position + requested > scan.data_end:
        requested = min(requested, max(scan.wanted, scan.data_end - scan.position + PAGE_SIZE))
    filled = pread_data(scan, <Py_ssize_t> requested)
    if filled < 0:
        return STORAGE_ERROR_
    while used < filled:
        batch = scan.chunk.at + used
        left = scan.end - scan.position
        if filled - used < PREFIX_SIZE:
            return scan_rest_is_zeros(scan) if used == 0 or filled - used == left else NONE
        size = <int64_t> load_i32(batch + BATCH_LENGTH) + PREFIX_SIZE
        if size < HEADER_SIZE:
            return CORRUPT_MESSAGE if load_i32(batch + BATCH_LENGTH) else scan_rest_is_zeros(scan)
        if size > left:
            return TORN_
        if size > filled - used:
            if used:
                return NONE             # the next read starts with this batch
            if filled < requested:
                return TORN_            # the file became shorter
            scan.wanted = size
            scan.chunk.size = 0
            if extended(&scan.chunk, size) == NULL:
                scan.no_memory = True
            return NONE                 # the next read has room for this batch
        code = scan_check(scan, batch, size)
        if code:
            return code
        if not scan_add(scan, batch, size):
            scan.no_memory = True
            return NONE
        used += size
    return NONE if filled else TORN_


cdef void drop_old_batches(Scan* scan) noexcept nogil:
    """Drop a producer's batches before its last five; those of transactions are all kept."""
    cdef Produced* produced = <Produced*> scan.produced.at
    cdef Py_ssize_t count = scan.produced.size // <Py_ssize_t> sizeof(Produced)
    cdef Py_ssize_t slots = 16, slot, distinct = 0, i
    cdef int64_t* ids
    cdef int32_t* seen
    if count <= BATCHES_PER_PRODUCER:
        return
    while slots < 2 * count and slots < 1 << 16:
        slots *= 2
    ids = <int64_t*> malloc(slots * sizeof(int64_t))
    seen = <int32_t*> calloc(slots, sizeof(int32_t))
    i = count - 1
    while ids != NULL and seen != NULL and i >= 0 and 2 * distinct < slots:
        slot = <Py_ssize_t> ((<size_t> produced[i].producer_id * <size_t> 0x9E3779B97F4A7C15) >> 40)
        slot &= slots - 1
        while seen[slot] and ids[slot] != produced[i].producer_id:
            slot = (slot + 1) & (slots - 1)
        if not seen[slot]:
            ids[slot] = produced[i].producer_id
            distinct += 1
        if seen[slot] >= BATCHES_PER_PRODUCER:
            produced[i].dropped = not produced[i].attributes & (TRANSACTIONAL | CONTROL)
        else:
            seen[slot] += 1
        i -= 1
    free(ids)
    free(seen)


cdef object scan_result(Scan* scan, int code):
    cdef Produced* produced = <Produced*> scan.produced.at
    cdef EpochStart* epoch_starts = <EpochStart*> scan.epoch_starts.at
    cdef Py_ssize_t i
    cdef list batches = []
    for i in range(scan.produced.size // <Py_ssize_t> sizeof(Produced)):
        if not produced[i].dropped:
            batches.append((
                produced[i].base_offset, produced[i].last_offset_delta, produced[i].attributes,
                produced[i].max_timestamp, produced[i].producer_id, produced[i].producer_epoch,
                produced[i].base_sequence, produced[i].control_type,
                produced[i].coordinator_epoch,
            ))
    return (
        code, scan.position, scan.next_offset, scan.since_entry, scan.max_timestamp,
        scan.offset_of_max, scan.timestamp_entered, scan.leader_epoch, scan.count,
        (<const char*> scan.offset_entries.at)[:scan.offset_entries.size],
        (<const char*> scan.time_entries.at)[:scan.time_entries.size],
        batches,
        [(epoch_starts[i].leader_epoch, epoch_starts[i].base_offset)
         for i in range(scan.epoch_starts.size // <Py_ssize_t> sizeof(EpochStart))],
    )


def scan(
    int fd, int64_t position, int64_t end, int64_t segment_base, int64_t next_offset,
    int64_t interval, int64_t since_entry, int64_t max_timestamp, int64_t offset_of_max,
    int64_t timestamp_entered, int32_t leader_epoch, int64_t gaps_to=INT64_MAX,
) -> tuple:
    """Check batches from `position` on; storage/segment/segment_scan.py names the results.

    Above `gaps_to` each batch must begin with the offset after the previous one; below it the log
    may have been compacted.  The code is WHOLE if more batches may follow, AT_END at the end, or
    else the reason the scan stopped.
    """
    cdef Scan scan
    cdef int code = NONE
    cdef int64_t until = min(end, position + SCAN_SIZE)
    scan = Scan(
        fd=fd, end=end, data_end=end, position=position, wanted=PAGE_SIZE,
        segment_base=segment_base, next_offset=next_offset,
        interval=interval, since_entry=since_entry, max_timestamp=max_timestamp,
        offset_of_max=offset_of_max, timestamp_entered=timestamp_entered,
        leader_epoch=leader_epoch, count=0, gaps_to=gaps_to, no_memory=False,
        chunk=Bytes(NULL, 0, 0), offset_entries=Bytes(NULL, 0, 0),
        time_entries=Bytes(NULL, 0, 0), produced=Bytes(NULL, 0, 0), epoch_starts=Bytes(NULL, 0, 0),
    )
    try:
        if extended(&scan.chunk, CHUNK_SIZE) == NULL:
            raise MemoryError
        for bytes_ in (0, 1, 2, 3):
            # Never NULL, so that a result without entries is empty.
            if extended(array_of(&scan, bytes_), 64) == NULL:
                raise MemoryError
            array_of(&scan, bytes_).size = 0
        with nogil:
            scan.data_end = data_end_of(fd, position, end)
            while code == NONE and scan.position < until and not scan.no_memory:
                code = scan_chunk(&scan)
            drop_old_batches(&scan)
        if scan.no_memory:
            raise MemoryError
        if code == NONE and scan.position == end:
            code = AT_END_
        return scan_result(&scan, code)
    finally:
        free(scan.chunk.at)
        free(scan.offset_entries.at)
        free(scan.time_entries.at)
        free(scan.produced.at)
        free(scan.epoch_starts.at)


cdef Bytes* array_of(Scan* scan, int which) noexcept nogil:
    if which == 0:
        return &scan.offset_entries
    if which == 1:
        return &scan.time_entries
    if which == 2:
        return &scan.produced
    return &scan.epoch_starts


def next_whole(int fd, int64_t position, int64_t end, int64_t offset_min) -> int:
    """Return the position of the next valid batch with a base offset of `offset_min` or later; -1
    if there is none.

    Distinguishes damage inside a segment from a torn end: only the former is followed by batches.

    After CHECKED_MAX bytes of invalid batches, the next candidate is taken as valid unchecked: only
    crafted values look like so many nested batches, and checking each of them would take time
    quadratic in their size.
    """
    cdef Bytes chunk = Bytes(NULL, 0, 0)
    cdef int64_t found = -1, checked = 0, data_end
    cdef Py_ssize_t filled, i
    cdef int64_t size, base_offset
    if extended(&chunk, CHUNK_SIZE) == NULL:
        raise MemoryError
    with nogil:
        data_end = data_end_of(fd, position, end)
        while found < 0 and end - position >= HEADER_SIZE and position < data_end:
            filled = pread_whole(fd, chunk.at, min(<int64_t> chunk.room, end - position), position)
            if filled < HEADER_SIZE:
                break
            i = 0
            while i + HEADER_SIZE <= filled and found < 0:
                size = <int64_t> load_i32(chunk.at + i + BATCH_LENGTH) + PREFIX_SIZE
                base_offset = load_i64(chunk.at + i + BASE_OFFSET)
                if (
                    chunk.at[i + MAGIC] == CURRENT_MAGIC and size >= HEADER_SIZE
                    and size <= end - position - i and base_offset >= offset_min
                    and base_offset - offset_min <= RELATIVE_OFFSET_MAX
                ):
                    if size > filled - i:
                        if i:
                            break           # read again from here, then with more room
                        chunk.size = 0
                        if size > chunk.room and extended(&chunk, size) != NULL:
                            break
                    elif checked > CHECKED_MAX or check_batch(chunk.at + i, size) == NONE:
                        found = position + i
                    else:
                        checked += size
                i += 1
            if found < 0:
                position += i
    free(chunk.at)
    return found


def syncfs(int fd) -> int:
    """Flush the file system that holds `fd` (syncfs(2)); return 0 or the errno."""
    cdef int failed
    with nogil:
        failed = c_syncfs(fd)
    return errno if failed else 0


def file_system_type(int fd) -> int:
    """Return the type of the file system that holds `fd` (statfs(2), f_type); -1 if unknown."""
    cdef statfs_t found
    return <long> found.f_type & 0xFFFFFFFF if fstatfs(fd, &found) == 0 else -1
