"""Fuzz targets for the codecs of the native client: record sets, rings, Arrow columns.

A reader gets sets that are valid except for the fuzzer's changes, with their CRCs corrected or not.
The worker's end of a ring gets what a producer may have written there, at any moment and anywhere;
the producer's end what a worker may have.  A writer of columns gets inconsistent buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from kafkalite._ext import record_writer, ring
from kafkalite._ext.message_reader import RowBuilder
from kafkalite._ext.record_reader import COMPRESSED, ColumnBuilder, Memory
from kafkalite.client.decoding.record_sets import decode_set
from kafkalite.errors import KafkaError
from kafkalite.records.batch import Record, TimestampType, build
from kafkalite.records.compression import Codec
from tests.fuzz.sealing import AS_GIVEN, FITTED, SEALED, sealed
from tests.transport.rings import SMALL, TOPIC, Pair, resealed, twins
from tests.twins import record_reader as reader_twin
from tests.twins import records as records_twin
from tests.twins import ring as ring_twin

# Input: a record set's sealing and reader, its columns, their maximum bytes per step, and the first
# offset; then the set.

SET = struct.Struct(">BBHq")
UNCHECKED, UNPACKED, IN_MICROSECONDS = 4, 8, 16
STEPS_MAX = 20
UNPACKED_SIZE_MAX = 1 << 16


def columns(given: memoryview) -> int:
    if len(given) < SET.size:
        return 0
    how, wanted, _, _ = SET.unpack_from(given)
    words = wanted % 64, not how & UNCHECKED, 1000 if how & IN_MICROSECONDS else 1
    return read_both(ColumnBuilder(*words), reader_twin.ColumnBuilder(*words), given)


def rows(given: memoryview) -> int:
    if len(given) < SET.size:
        return 0
    words = "a topic", 7, not SET.unpack_from(given)[0] & UNCHECKED
    return read_both(RowBuilder(*words), reader_twin.RowBuilder(*words), given)


def read_both(ours: Any, twin: Any, given: memoryview) -> int:
    """Read step by step; compressed content is taken as if it were decompressed."""
    how, _, size_max, offset = SET.unpack_from(given)
    data = sealed(given[SET.size :], how & 3)
    whole, position, count = bytes(data), 0, 0
    if how & UNPACKED:
        return unpack(ours, data, offset)
    for _ in range(STEPS_MAX):
        found = ours.add_set(data, position, offset, size_max)
        assert found == twin.add_set(whole, position, offset, size_max)
        code, position, offset = found
        count += ours.count
        if code == COMPRESSED:
            end = position + int.from_bytes(whole[position + 8 : position + 12], "big") + 12
            batch, payload = data[position:end], data[position + 61 : end]
            code = ours.add(batch, payload, offset)
            assert code == twin.add(bytes(batch), bytes(payload), offset)
            position = end
        assert (ours.count, ours.size) == (twin.count, twin.size)
        assert plain(ours.take()) == twin.take()
        if code:
            break
    return 1 + code % 128 + 200 * min(count, 9)


def plain(taken: Any) -> Any:
    if isinstance(taken, dict):
        return {
            name: bytes(value) if isinstance(value, Memory) else value
            for name, value in taken.items()
        }
    return [
        (m.topic, m.partition, m.offset, m.timestamp, m.timestamp_type, m.key, m.value,
         tuple(m.headers))
        for m in taken
    ]  # fmt: skip


def unpack(builder: Any, data: memoryview, offset: int) -> int:
    """Read through the real codecs; return records, or an error code of Kafka's."""
    position = found = 0
    while position < len(data):
        try:
            position, offset = decode_set(
                builder, data, position, offset, 1 << 20, UNPACKED_SIZE_MAX
            )
        except KafkaError as fault:
            return 5000 + 10 * fault.code + min(found, 9)
        found += builder.count
        builder.take()
    return 9000 + min(found, 9)


def some_sets() -> Iterator[bytes]:
    records = [
        Record(
            timestamp=5 + at,
            key=b"k" * at or None,
            value=b"v" * 30 * at if at != 2 else None,
            headers=(("h", None), ("n\udcff", b"x" * at))[: at % 3],
        )
        for at in range(5)
    ]
    for codec in Codec:
        yield build(records, base_offset=3, codec=codec)
    gaps = [record._replace(offset=4 * at) for at, record in enumerate(records)]
    yield build(gaps) + build(records[:2], base_offset=30, control=True) + build(gaps[:1])
    appended = TimestampType.LOG_APPEND_TIME
    yield build(records, timestamp_type=appended) + build(records, base_offset=5)[:-9]


def set_seeds() -> Iterator[bytes]:
    for data in some_sets():
        for how in (AS_GIVEN, SEALED, FITTED, SEALED | UNCHECKED | IN_MICROSECONDS, UNPACKED):
            yield SET.pack(how, 63, 0xFFFF, 4) + data
    yield SET.pack(SEALED, 2, 1, 0) + build([Record(value=b"v")]) * 3
    yield SET.pack(SEALED, 16, 100, 0) + build([Record(headers=(("h" * 90, None),) * 5)])


# Input: the operations on a ring, one byte each, followed by their operands.


class Deeds:
    """The input bytes, read on demand; they end with zeros."""

    def __init__(self, given: memoryview) -> None:
        self.left = bytes(given)

    def take(self, size: int) -> bytes:
        taken, self.left = self.left[:size], self.left[size:]
        return taken.ljust(size, b"\0")

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.take(size), "little")


TAKE, SEND, SCRIBBLE, SEAL, ANSWER, REFUSE, ASK, LOOK, WORKER = range(9)
DEEDS_MAX = 60


def rings(given: memoryview) -> int:
    """Drive both ends and their twins over separate memory, which must stay equal."""
    deeds, fared, forged = Deeds(given), 0, False
    ours, twin = Pair(), twins()
    for _ in range(DEEDS_MAX):
        if not deeds.left:
            break
        deed = deeds.number() % 9
        if deed == WORKER:
            return fared + 100 * distrust(ours, deeds)
        do = doing(deed, deeds)
        before = twin.reader.in_flight, twin.reader.responses_taken
        if deed == ANSWER and not before[0]:
            continue  # there is nothing to respond to
        forged |= deed in (SCRIBBLE, SEAL)
        try:
            found = do(ours)
        except ring.RingError:
            assert forged, "a producer that wrote nothing strange was told something strange"
            return fared + 50
        assert found == do(twin), (deed, found)
        assert (ours.ring, ours.counters) == (twin.ring, twin.counters)
        if deed == TAKE:
            fared = found if isinstance(found, int) else 10 + (found is None)
    return fared


def doing(deed: int, deeds: Deeds) -> Callable[[Pair], Any]:
    """Return an operation on a pair of ends."""
    if deed == SEND:
        size, acks = deeds.number(2) % (SMALL // 4 - 47), deeds.number() % 3 - 1
        return lambda pair: pair.send(b"s" * size, 5, acks)
    if deed == SCRIBBLE:
        # Near the reader's position, or on its own page of counters.
        place, what = deeds.number(2), deeds.take(deeds.number() % 9)
        return lambda pair: scribble(pair, place, what)
    if deed == SEAL:
        fields = [("sequence", 8), ("acks", 2), ("reserved", 2)]
        said = {name: deeds.number(size) for name, size in fields if deeds.number() & 1}
        said["acks"] = said.get("acks", 0) % (1 << 15)
        return lambda pair: reseal(pair, said)
    if deed == ANSWER:
        answer = (deeds.number(4), deeds.number(), deeds.number(4), -1, 7)
        return lambda pair: pair.reader.respond(*answer)
    if deed == REFUSE:
        return lambda pair: pair.reader.reject(1, 2)
    if deed == ASK:
        return lambda pair: (
            pair.reader.can_take(),
            pair.reader.is_space_awaited(),
            pair.reader.begin_sleep(),
        )
    if deed == LOOK:
        return lambda pair: (
            pair.writer.take_acks(),
            pair.writer.is_space_awaited(),
            pair.writer.begin_sleep(),
        )
    return Pair.taken


def scribble(pair: Pair, place: int, what: bytes) -> None:
    at = place % 256 if place & 0x8000 else pair.header(place)
    what = what[: len(pair.ring) - at]
    pair.ring[at : at + len(what)] = what


def reseal(pair: Pair, fields: dict[str, int]) -> None:
    """Correct a frame's checksum, at the beginning of the lap."""
    resealed(pair.ring, pair.header(), **fields)


def distrust(pair: Pair, deeds: Deeds) -> int:
    """Run the producer's end over arbitrary counters: only a RingError may be raised."""
    faults = 0
    for _ in range(DEEDS_MAX):
        if not deeds.left:
            break
        place, what = deeds.number(2) % len(pair.counters), deeds.take(deeds.number() % 9)
        pair.counters[place : place + len(what)] = what[: len(pair.counters) - place]
        size = deeds.number(2) % (SMALL // 4 - 47)
        for do in (
            lambda batch=b"w" * size: pair.send(batch),
            pair.writer.take_acks,
            pair.writer.begin_sleep,
            pair.writer.is_space_awaited,
            lambda: pair.writer.spin(0),
        ):
            try:
                do()
            except ring.RingError:
                faults += 1
    return 1 + min(faults, 9)


def ring_seeds() -> Iterator[bytes]:
    send = bytes((SEND, 40, 0, 2))
    yield send + bytes((TAKE, ANSWER, 5, 0, 0, 0, 0, 9, 0, 0, 0, LOOK, TAKE, ASK))
    yield bytes((SEND, 200, 3, 2, TAKE)) * 9
    yield send + bytes((SCRIBBLE, 0, 0, 4, 1, 0, 0, 0, TAKE, TAKE))
    yield send + bytes((SCRIBBLE, 0, 0x80, 8)) + b"\xff" * 8 + bytes((REFUSE, ASK, TAKE))
    yield send + bytes((SEAL, 1)) + bytes(8) + bytes((0, 1, 1, 0, TAKE))
    yield send + bytes((SCRIBBLE, 0, 0, 4, 0, 4, 0, 0x80, TAKE))
    frame = struct.pack("<II", 60, 0) + struct.pack("<Q16siIhHi", 0, TOPIC, 1, 2, 1, 0, 5)
    crc = struct.pack("<I", ring_twin.crc(frame[8:]))
    whole = frame[:4] + crc + frame[8:]
    yield b"".join(
        bytes((SCRIBBLE, at, 0, 8)) + whole[at : at + 8] for at in range(0, 48, 8)
    ) + bytes((TAKE, TAKE))
    yield send * 3 + bytes((WORKER, 0, 0, 8)) + b"\x58" + bytes(7) + bytes((1, 0, 1, 8)) * 3


# Input: the columns to write, their first rows, the size of each buffer; then the buffers, one
# after the other.

COLUMNS = struct.Struct(">B6bBBH15B")
HAS_VALUE, HAS_KEY, HAS_HEADERS, HAS_TIMES, WIDE_VALUE, WIDE_KEY, HAS_INDEX = (
    1 << bit for bit in range(7)
)
NOT_THERE = 0xFF
NOW = 1_700_000_000_000


class Lie(Exception):
    """An offset outside its buffer, or a row that does not exist."""


def encoding(given: memoryview) -> int:
    if len(given) < COLUMNS.size:
        return 0
    flags, *starts = COLUMNS.unpack_from(given)
    (count, first, room), sizes = starts[6:9], starts[9:]
    buffers, at = [], COLUMNS.size
    for size in sizes:
        buffers.append(None if size == NOT_THERE else sealed(given[at : at + size], AS_GIVEN))
        at += 0 if size == NOT_THERE else size
    drawn = drawn_columns(flags, starts[:6], buffers)
    index = buffers[14] if flags & HAS_INDEX else None
    honest = told(drawn, range(count))
    try:
        record_writer.measure_columns(count, *drawn)
        assert honest is not None and all(time >= 0 for *_, time in honest)
    except ValueError:
        assert honest is None or any(time < 0 for *_, time in honest)
    return write(drawn, index, (first, count), room % 4096)


def drawn_columns(flags: int, starts: list[int], buffers: list[Any]) -> tuple[Any, ...]:
    value = (*buffers[0:3], starts[0], bool(flags & WIDE_VALUE))
    key = (*buffers[3:6], starts[1], bool(flags & WIDE_KEY))
    names = (None, *buffers[8:10], starts[3], False)
    contents = (buffers[12], *buffers[10:12], starts[4], False)
    headers = (*buffers[6:8], starts[2], names, contents)
    times = (buffers[12], buffers[13], starts[5])
    return (
        value if flags & HAS_VALUE else None,
        key if flags & HAS_KEY else None,
        headers if flags & HAS_HEADERS else None,
        times if flags & HAS_TIMES else None,
    )


def write(drawn: tuple[Any, ...], index: Any, span: tuple[int, int], room: int) -> int:
    """Write as many rows as there is room for, and compare them with the columns."""
    first, end = span
    out = sealed(memoryview(b"\xaa" * (61 + room)), AS_GIVEN)
    chosen: Any = range(end)
    if index is not None:
        chosen = struct.unpack_from(f"<{len(index) // 4}i", index)[:end]
    honest = told(drawn, chosen) if end <= len(chosen) else None
    try:
        taken, size, base, _ = record_writer.encode_columns(out, first, end, index, *drawn, NOW)
    except ValueError:
        assert honest is None
        return 1
    if taken:
        written = told(drawn, chosen[first : first + taken])
        assert written is not None
        payload = records_twin.encode(
            [
                (place, reader_twin.wrapped(time - base), key, value, headers)
                for place, (value, key, headers, time) in enumerate(written)
            ]
        )
        assert bytes(out[61 : 61 + size]) == payload
    assert bytes(out[61 + size :]) == b"\xaa" * (room - size)
    return 10 + min(taken, 9) + 10 * (honest is None)


def told(drawn: tuple[Any, ...], chosen: Any) -> list[tuple[Any, ...]] | None:
    """Return the rows; None if one of them is invalid or does not exist."""
    value, key, headers, times = drawn
    try:
        count = min(count_of(value), count_of(key), list_count(headers), time_count(times))
        if any(not 0 <= row < count for row in chosen):
            return None
        return [
            (cell(value, row), cell(key, row), header_cells(headers, row), time_of(times, row))
            for row in chosen
        ]
    except Lie:
        return None


def places(validity: Any, start: int, slots: int) -> int:
    """Return the number of rows from `start` on, in buffers of `slots` slots."""
    if validity is not None:
        slots = min(slots, 8 * len(validity))
    if not 0 <= start <= max(slots, 0):
        raise Lie
    return max(slots, 0) - start


def count_of(column: Any) -> int:
    if column is None:
        return 1 << 62
    validity, offsets, _, start, wide = column
    return places(validity, start, len(offsets or b"") // (8 if wide else 4) - 1)


def list_count(headers: Any) -> int:
    if headers is None:
        return 1 << 62
    validity, offsets, start, names, contents = headers
    count_of(names), count_of(contents)
    return places(validity, start, len(offsets or b"") // 4 - 1)


def time_count(times: Any) -> int:
    return 1 << 62 if times is None else places(times[0], times[2], len(times[1] or b"") // 8)


def is_null(validity: Any, place: int) -> bool:
    return bool(validity) and not validity[place // 8] >> place % 8 & 1


def cell(column: Any, row: int) -> bytes | None:
    if column is None:
        return None
    validity, offsets, content, start, wide = column
    if is_null(validity, start + row):
        return None
    form, size = ("<2q", 8) if wide else ("<2i", 4)
    begin, end = struct.unpack_from(form, offsets, size * (start + row))
    if not 0 <= begin <= end <= len(content or b""):
        raise Lie
    return bytes((content or b"")[begin:end])


def header_cells(headers: Any, row: int) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None or is_null(headers[0], headers[2] + row):
        return ()
    begin, end = struct.unpack_from("<2i", headers[1], 4 * (headers[2] + row))
    if not 0 <= begin <= end <= min(count_of(headers[3]), count_of(headers[4])):
        raise Lie
    found = []
    for place in range(begin, end):
        name = cell(headers[3], place)
        if name is None:
            raise Lie
        found.append((name.decode("utf-8", "surrogateescape"), cell(headers[4], place)))
    return tuple(found)


def time_of(times: Any, row: int) -> int:
    if times is None or is_null(times[0], times[2] + row):
        return NOW
    return int(struct.unpack_from("<q", times[1], 8 * (times[2] + row))[0])


def pack_columns(
    flags: int, starts: tuple[int, ...], span: tuple[int, int, int], buffers: list[bytes | None]
) -> bytes:
    sizes = [NOT_THERE if buffer is None else len(buffer) for buffer in buffers]
    return COLUMNS.pack(flags, *starts, *span, *sizes) + b"".join(filter(None, buffers))


def encoding_seeds() -> Iterator[bytes]:
    narrow = struct.pack("<5i", 0, 3, 3, 5, 9)
    wide = struct.pack("<5q", 0, 3, 3, 5, 9)
    lists = struct.pack("<5i", 0, 1, 1, 3, 4)
    times = struct.pack("<4q", 5, 1 << 40, 7, 9)
    index = struct.pack("<4i", 2, 0, 3, 2)
    text = b"012345678"
    buffers = [
        b"\x0b", narrow, text, None, wide, text, b"\x0e", lists, narrow, text, narrow, text,
        None, times, index,
    ]  # fmt: skip
    everything = HAS_VALUE | HAS_KEY | HAS_HEADERS | HAS_TIMES | WIDE_KEY
    for flags in (everything, everything | HAS_INDEX, HAS_VALUE, HAS_VALUE | HAS_INDEX, 0):
        for room in (0, 30, 4000):
            yield pack_columns(flags, (0,) * 6, (4, 0, room), buffers)
            yield pack_columns(flags, (1, 1, 1, 0, 0, 1), (3, 1, room), buffers)
    yield pack_columns(everything, (0,) * 6, (5, 0, 4000), buffers)
    yield pack_columns(HAS_VALUE, (0,) * 6, (4, 0, 4000), [None, wide, *buffers[2:]])
