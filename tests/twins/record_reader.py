"""The twin of record_reader.pyx and message_reader.pyx in ext/client, with their common part."""

from array import array
from struct import pack

from . import record_batch, records, segment_walk

AT_END, COMPRESSED, FULL = -1, -2, -3
KEY, VALUE, OFFSET, TIMESTAMP, HEADERS, TIMESTAMP_TYPE = (1 << bit for bit in range(6))
ROOM_MAX = 0x7FFFFFFF
INT64_MAX = (1 << 63) - 1
NO_TIMESTAMP = -1


class Batch:
    """The header fields of a batch that readers use; `code` is 0 or the error."""

    def __init__(self, data: bytes, check_crcs: bool) -> None:
        self.code = self.framing(data, check_crcs)
        if self.code:
            return
        fields = record_batch.header(data[:61])
        self.base_offset, length, _, _, _, self.attributes, last_offset_delta = fields[:7]
        self.base_timestamp, self.max_timestamp, *_, self.count = fields[7:]
        self.size = length + 12
        self.last_offset = self.base_offset + last_offset_delta
        if self.base_offset < 0 or last_offset_delta < 0 or self.last_offset >= INT64_MAX:
            self.code = 2
        elif self.attributes % 8 > 4:
            self.code = 76

    def framing(self, data: bytes, check_crcs: bool) -> int:
        if len(data) < 61:
            return AT_END
        size = int.from_bytes(data[8:12], "big", signed=True) + 12
        if data[16] != 2:
            return 43
        if size < 61:
            return 2
        if size > len(data):
            return AT_END
        return record_batch.check(data[:size]) if check_crcs else 0

    def holds_nothing(self, first_offset: int) -> bool:
        empty = self.count == 0 and self.size == 61
        return bool(self.attributes & 0x20) or self.last_offset < first_offset or empty

    def rows(self, payload: bytes, first_offset: int) -> list[tuple] | int:
        """Return (offset, timestamp, type, key, value, headers) of each record, or the error."""
        if self.count * 7 > len(payload):
            return 87
        found = records.decode(payload, self.count, self.last_offset - self.base_offset)
        if isinstance(found, int):
            return found
        appended = self.attributes >> 3 & 1
        return [
            (
                self.base_offset + delta,
                self.max_timestamp if appended else wrapped(self.base_timestamp + late),
                appended,
                key,
                value,
                headers,
            )
            for delta, late, key, value, headers in found
            if self.base_offset + delta >= first_offset
        ]


def skip_aborted(aborted: array, fields: Batch, batch: bytes) -> tuple[int, bool]:
    """Return the error of a marker, and whether the batch is skipped."""
    entries = [tuple(aborted[place : place + 2]) for place in range(1, len(aborted), 2)]
    open_entries = entries[aborted[0] :]
    producer_id = int.from_bytes(batch[43:51], "big", signed=True)
    begun = [entry for entry in open_entries if entry[1] <= fields.last_offset]
    found = next((entry for entry in begun if entry[0] == producer_id), None)
    if not fields.attributes & 0x10 or found is None:
        return 0, False
    if fields.attributes & 0x20:
        if record_batch.check(batch):
            return 2, False
        kind, _ = segment_walk.control_record(batch)
        if kind < 0 and fields.count:
            return 2, False
        if kind == 0:
            open_entries.remove(found)
            ended = entries[: aborted[0]] + [found]
            aborted[0] += 1
            aborted[1:] = array("q", [word for entry in ended + open_entries for word in entry])
    return 0, True


def wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def whole_batches(record_set: bytes) -> tuple[int, int]:
    position, last = 0, None
    while len(record_set) - position >= 61:
        fields = record_batch.header(record_set[position : position + 61])
        size = fields[1] + 12
        if not 61 <= size <= len(record_set) - position:
            break
        last = fields
        position += size
    return position, wrapped(last[0] + last[6] + 1) if last else -1


class Builder:
    """Reads record sets; subclasses convert the rows."""

    room = INT64_MAX

    def __init__(self, check_crcs: bool) -> None:
        self.check_crcs = check_crcs
        self.rows: list[tuple] = []
        self.taken = 0

    @property
    def count(self) -> int:
        return len(self.rows)

    def add(self, batch: bytes, payload: bytes | None, first_offset: int) -> int:
        fields = Batch(batch, self.check_crcs)
        if fields.code == AT_END or (fields.code == 0 and fields.size != len(batch)):
            return 2
        if fields.code or fields.holds_nothing(first_offset):
            return fields.code
        return self.append(fields, batch[61:] if payload is None else payload, first_offset)

    def append(self, fields: Batch, payload: bytes, first_offset: int) -> int:
        if self.taken + len(payload) > self.room:
            return FULL if self.taken else 10
        found = fields.rows(payload, first_offset)
        if isinstance(found, int):
            return found
        self.rows += found
        if found:
            self.taken += len(payload)
        return 0

    def add_set(
        self,
        record_set: bytes,
        position: int,
        first_offset: int,
        size_max: int,
        aborted: array | None = None,
    ) -> tuple[int, int, int]:
        while self.size < size_max:
            fields = Batch(record_set[position:], self.check_crcs)
            code = fields.code
            is_skipped = False
            if code == 0 and aborted is not None:
                batch = record_set[position : position + fields.size]
                code, is_skipped = skip_aborted(aborted, fields, batch)
            if code == 0 and not is_skipped and not fields.holds_nothing(first_offset):
                code = COMPRESSED
                if fields.attributes % 8 == 0:
                    payload = record_set[position + 61 : position + fields.size]
                    code = self.append(fields, payload, first_offset)
            if code:
                return code if code != FULL else 0, position, first_offset
            position += fields.size
            first_offset = max(first_offset, fields.last_offset + 1)
        return 0, position, first_offset


class RowBuilder(Builder):
    def __init__(self, topic: str, partition: int, check_crcs: bool = True) -> None:
        super().__init__(check_crcs)
        self.place = topic, partition

    @property
    def size(self) -> int:
        return self.taken

    def take(self) -> list[tuple]:
        """Return the fields of each Message, and forget the rows."""
        rows, self.rows, self.taken = self.rows, [], 0
        return [
            (*self.place, offset, None if timestamp == NO_TIMESTAMP else timestamp, *rest)
            for offset, timestamp, *rest in rows
        ]


class ColumnBuilder(Builder):
    def __init__(
        self, wanted: int, check_crcs: bool = True, ticks: int = 1, room: int = ROOM_MAX
    ) -> None:
        super().__init__(check_crcs)
        self.wanted = wanted
        self.ticks = ticks
        self.room = min(room, ROOM_MAX // 3) if wanted & HEADERS else room

    @property
    def size(self) -> int:
        """Size of all values and offsets, without the last offset of each column."""
        columns = self.columns()
        ends = 4 * sum(1 for name in columns if name.endswith("_offsets"))
        measured = [
            value for name, value in columns.items() if not name.endswith(("_validity", "_nulls"))
        ]
        return sum(map(len, measured)) - ends

    def columns(self) -> dict:
        found = {}
        turned = zip(*self.rows, strict=True) if self.rows else [()] * 6
        numbers, times, types, keys, values, headers = turned
        if self.wanted & KEY:
            found |= fields("key", keys)
        if self.wanted & VALUE:
            found |= fields("value", values)
        if self.wanted & OFFSET:
            found["offset"] = pack(f"<{len(numbers)}q", *numbers)
        if self.wanted & TIMESTAMP:
            times = [max(-1 - INT64_MAX, min(time * self.ticks, INT64_MAX)) for time in times]
            found["timestamp_nulls"] = times.count(-self.ticks)
            found["timestamp"] = pack(f"<{len(times)}q", *times)
        if self.wanted & TIMESTAMP_TYPE:
            found["timestamp_type"] = bytes(types)
        if self.wanted & HEADERS:
            flat = [header for each in headers for header in each]
            raw = [name.encode("utf-8", "surrogateescape") for name, _ in flat]
            names = [name.decode("utf-8", "replace").encode() for name in raw]
            found["header_offsets"] = offsets(map(len, headers))
            found |= fields("header_key", names)
            found |= fields("header_value", [value for _, value in flat])
        return found

    def take(self) -> dict:
        columns = self.columns()
        self.rows, self.taken = [], 0
        return columns


def offsets(sizes) -> bytes:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return pack(f"<{len(ends)}i", *ends)


def fields(name: str, values) -> dict:
    nulls = sum(value is None for value in values)
    bits = sum((value is not None) << row for row, value in enumerate(values))
    return {
        f"{name}_offsets": offsets(len(value or b"") for value in values),
        f"{name}_data": b"".join(value or b"" for value in values),
        f"{name}_validity": bits.to_bytes((len(values) + 7) // 8, "little") if nulls else None,
        f"{name}_nulls": nulls,
    }
