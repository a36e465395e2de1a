"""Fuzz targets for each compiled decoder: one function each, of arbitrary bytes.

    plans      codec.read and codec.write with every plan
    groups     records of __consumer_offsets, and a consumer's subscription
    frames     hand-written codecs of the header, Produce and Fetch against their schemas
    batches    checks, header, assign_offset, stamp, and the records of valid batches
    records    decode, encode and validate of a payload, and a scan of it in two pieces
    zstd       zstd frames divided between blocks, and decompressed a part at a time
    scan       records scanned in arbitrary pieces
    segments   the walks over a segment's file, and its recovery
    indexes    the searches in an index's file and in its tail
    loop       frames decoded from a socket's bytes, in arbitrary pieces
    columns    record sets into columns, and through the codecs
    rows       the same into messages
    rings      both ends of a ring, each against anything the other may have written
    encoding   columns of inconsistent buffers into records

A target may reject its bytes and may not do anything else: not raise, not read or write outside of
them (a sanitizer checks that), not disagree with its twin.  It returns a number for the outcome, so
that a fuzzer keeps bytes with a new outcome: another plan, for example.

The bytes are a view of their exact size; `seeds` are valid ones to begin with.  libFuzzer runs the
targets in decoders.py, and test_corpus.py replays its corpus.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kafkalite._ext import (
    aborted_scan,
    codec,
    offset_index,
    record_batch,
    records,
    segment_walk,
    wire,
)
from kafkalite._ext.record_scan import RecordScan
from kafkalite.errors import CorruptMessage, KafkaError
from kafkalite.protocol.frame import FLEXIBLE_FROM, write_header
from kafkalite.protocol.schema import BY_KEY, MessageSchema
from kafkalite.protocol.schemas import bus, consumer_protocol, group_records, internal
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, batches, build
from kafkalite.records.compression import Codec
from tests.fuzz import client_codecs, opened_records
from tests.fuzz.sealing import AS_GIVEN, FITTED, SEALED, sealed
from tests.fuzz.torn_frames import loop, loop_seeds
from tests.protocol.annotated import bytes_of
from tests.protocol.values import filled, versions
from tests.records import golden_segments as golden
from tests.twins import aborted_scan as aborted_twin
from tests.twins import codec_reader as codec_twin
from tests.twins import offset_index as index_twin
from tests.twins import record_batch as batch_twin
from tests.twins import records as records_twin
from tests.twins import segment_walk as walk_twin
from tests.twins import wire as wire_twin

GOLDEN = Path(__file__).parents[1] / "golden"
I64 = struct.Struct(">q")
INT64_MAX = (1 << 63) - 1


class Target(NamedTuple):
    """A target; `share` is its weight among the runs of all: smaller for slow ones."""

    run: Callable[[memoryview], int]
    seeds: Callable[[], Iterable[bytes]]
    share: int


# Input: a plan (its space, its key and its version, a byte each); then the message.

REQUEST, RESPONSE, BUS, METADATA_LOG = range(4)


def every_message() -> Iterator[tuple[bytes, MessageSchema, int]]:
    for api in BY_KEY.values():
        for version in versions(api):
            yield bytes((REQUEST, api.key, version)), api.request, version
            yield bytes((RESPONSE, api.key, version)), api.response, version
    for space, kinds in ((BUS, bus.MESSAGES), (METADATA_LOG, internal.KINDS)):
        for kind in kinds.by_key.values():
            for version in range(kind.version + 1):
                yield bytes((space, kind.key, version)), kind.message, version


PLANS = {
    start: (number, message, version)
    for number, (start, message, version) in enumerate(every_message(), start=1)
}
START_SIZE = 3


def plans(given: memoryview) -> int:
    """Check that a message that is read can be written and reads the same, as with the twin."""
    number, message, version = PLANS.get(bytes(given[:START_SIZE]), (0, None, 0))
    if message is None:
        return 0
    plan = message.plan(version)
    fields = codec.read(plan, given, START_SIZE, message.units_max)
    twin = codec_twin.read(message, version, bytes(given[START_SIZE:]))
    if isinstance(fields, int):
        assert twin is None
        return 1
    assert twin == fields or codec.write(plan, twin) == codec.write(plan, fields)
    written = codec.write(plan, fields)
    # Compared as bytes and not as values, because a NaN does not equal itself.
    assert codec.write(plan, codec.read(plan, written)) == written
    return 1 + number


def plans_seeds() -> Iterator[bytes]:
    for start, message, version in every_message():
        values = filled(message, version, small=True, counts=(1, 2))
        yield start + message.write(version, values)


# Input: a record of __consumer_offsets (size of the key, key, value); or a subscription.

KEY_SIZE = struct.Struct(">H")


def groups(given: memoryview) -> int:
    """Check that a record that is read and written reads the same."""
    if len(given) < KEY_SIZE.size:
        return 0
    (size,) = KEY_SIZE.unpack_from(given)
    said = bytes(given[KEY_SIZE.size :])
    key, value = said[:size], said[size:]
    named = consumer_protocol.subscribed_topics(said)
    assert named is None or all(isinstance(name, str) for name in named)
    try:
        record = group_records.read(key, value or None)
    except CorruptMessage:
        return 1 + (named is not None)
    if record is None:
        return 3
    again = group_records.read(*group_records.write(record))
    assert again == record or said[:2] == b"\0\0", (again, record)
    return 4 + 10 * key[1] + (value[1] if len(value) > 1 else 9)


def groups_seeds() -> Iterator[bytes]:
    key = group_records.OffsetKey("a group", "a topic", 3)
    made = [
        group_records.offset_record(key, offset)
        for offset in (
            None,
            group_records.OffsetCommitValue(7, 1, "why", 5),
            group_records.OffsetCommitValue(7, -1, "", 5, expire_timestamp=9),
            group_records.OffsetCommitValue(7, 1, "why", 5, topic_id=bytes(range(16))),
        )
    ]
    for version in range(5):
        fields = filled(group_records.GROUP_METADATA_VALUE, version, small=True, counts=(1, 2))
        value = group_records.GROUP_METADATA_VALUE.write(version, fields)
        name = b"\0\2\0\1g"
        yield KEY_SIZE.pack(len(name)) + name + struct.pack(">h", version) + value
        fields = filled(group_records.OFFSET_COMMIT_VALUE, version, small=True)
        value = group_records.OFFSET_COMMIT_VALUE.write(version, fields)
        name, _ = group_records.write(made[0])
        yield KEY_SIZE.pack(len(name)) + name + struct.pack(">h", version) + value
    for record in made:
        name, value = group_records.write(record)
        yield KEY_SIZE.pack(len(name)) + name + (value or b"")
    yield KEY_SIZE.pack(0) + consumer_protocol.SUBSCRIBED_TOPICS.write(0, {"topics": ["a", "b"]})


# Input: a request, from its header on.


def frames(given: memoryview) -> int:
    header = wire.decode_header(given, FLEXIBLE_FROM)
    if isinstance(header, int):
        return 0
    key, version, _, _, position = header
    if key == PRODUCE.key and PRODUCE.versions[0] <= version <= PRODUCE.versions[1]:
        found = wire.decode_produce(version, given, position)
        assert found == wire_twin.decode_produce(version, given, position)
    elif key == FETCH.key and FETCH.versions[0] <= version <= FETCH.versions[1]:
        found = wire.decode_fetch(version, given, position)
        assert found == wire_twin.decode_fetch(version, given, position)
    else:
        return 1
    return 2 + 4 * version + 2 * (key == FETCH.key) + isinstance(found, int)


def frames_seeds() -> Iterator[bytes]:
    for path in sorted((GOLDEN / "frames").glob("*.txt")):
        yield bytes_of(path.read_text().split("\n\n")[1].splitlines())
    for api in (PRODUCE, FETCH):
        for version in versions(api):
            values = filled(api.request, version, small=True, counts=(1, 2))
            flexible = api.request_header_flexible(version)
            head = write_header(api.key, version, 7, "a", flexible)
            yield head + api.request.write(version, values)


# Input: batches.  The first byte says how they are sealed.


def whole_batches(given: memoryview) -> int:
    if not given:
        return 0
    copy = sealed(given[1:], given[0] % 3)
    code, verdict = record_batch.check(copy), record_batch.check_client_batch(copy)
    assert (code, verdict) == (
        batch_twin.check(bytes(copy)),
        batch_twin.check_client_batch(bytes(copy)),
    )
    if code == 0:
        record_batch.assign_offset(copy, 1 << 40, 7)
        assert record_batch.check(copy) == 0
        record_batch.stamp_append_time(copy, 5)
        assert record_batch.check(copy) == 0
    found = 0
    try:
        for batch in batches(copy):
            found += 1
            if batch.header.codec is Codec.NONE:
                found += len(batch.records())
    except KafkaError:
        return 1 + verdict % 128
    return 200 + min(found, 9)


def some_records(count: int = 3) -> list[Record]:
    return [
        Record(timestamp=5 + at, key=b"k" * at or None, value=b"v" * 9, headers=(("h", None),) * at)
        for at in range(count)
    ]


def golden_segments() -> Iterator[bytes]:
    for path in sorted((GOLDEN / "segments").glob("*.hex")):
        yield golden.read(path.stem)


def batches_seeds() -> Iterator[bytes]:
    for segment in golden_segments():
        yield bytes((AS_GIVEN,)) + segment
        yield bytes((SEALED,)) + segment
    yield bytes((FITTED,)) + build(some_records())
    yield bytes((SEALED,)) + build(some_records(), producer_id=3, producer_epoch=0, base_sequence=0)


# Input: a payload's number of records, its last offset, and a first timestamp; then the payload.

PAYLOAD = struct.Struct(">iqq")


def payload_records(given: memoryview) -> int:
    if len(given) < PAYLOAD.size:
        return 0
    count, last, base = PAYLOAD.unpack_from(given)
    last = None if last < -1 else last
    payload = given[PAYLOAD.size :]
    found = records.decode(payload, count, last)
    assert found == records_twin.decode(bytes(payload), count, last)
    code = found if isinstance(found, int) else 0
    assert records.validate(payload, count, last) == code
    scan = RecordScan(count, count - 1 if last is None else last, len(payload), base)
    scan.feed(payload[: len(payload) // 3])
    scan.feed(payload[len(payload) // 3 :])
    assert scan.end() == code
    if isinstance(found, list):
        assert records.decode(records.encode(found), count, last) == found
        return 10 + min(len(found), 9)
    return 1


def records_seeds() -> Iterator[bytes]:
    for count in (1, 3, 8):
        payload = build(some_records(count))[record_batch.HEADER_SIZE :]
        yield PAYLOAD.pack(count, -2, 0) + payload
        yield PAYLOAD.pack(count, INT64_MAX, -5) + payload


# Input: the sealing of a segment's batches, its base offset, the offset to find; then its file.

SEGMENT = struct.Struct(">Bqq")
SCRATCH = os.memfd_create("fuzz")


def filed(content: memoryview | bytes) -> int:
    os.ftruncate(SCRATCH, 0)
    os.pwrite(SCRATCH, content, 0)
    return SCRATCH


def size_at(content: bytes, position: int) -> int:
    return int.from_bytes(content[position + 8 : position + 12], "big") + 12


def segments(given: memoryview) -> int:
    if len(given) < SEGMENT.size:
        return 0
    how, base, sought = SEGMENT.unpack_from(given)
    base &= INT64_MAX
    gaps_to, interval = 0 if how & 4 else walk_twin.OFFSET_MAX, how & 120
    content = sealed(given[SEGMENT.size :], how & 3)
    file, size, whole = filed(content), len(content), bytes(content)
    code, position, *_ = segment_walk.find_offset(file, 0, size, sought)
    assert (code, position) == walk_twin.find_offset(whole, 0, sought)
    code, position, _ = segment_walk.find_timestamp(file, 0, size, sought, base)
    assert (code, position) == walk_twin.find_timestamp(whole, 0, sought, base)
    assert segment_walk.walk_to_end(file, 0, size) == walk_twin.walk_to_end(whole, 0)
    *walked, table = aborted_scan.walk_transactions(file, 0, size, base, how & 7)
    *expected, ids = aborted_twin.walk_transactions(whole, 0, base, how & 7)
    assert walked == expected and {*memoryview(table).cast("q")} - {-1} == ids
    found = segment_walk.scan(file, 0, size, base, base, interval, 0, -1, base, -1, -1, gaps_to)
    assert found == walk_twin.scan(whole, base, interval, gaps_to)
    if how & 128:
        position = segment_walk.next_whole(file, 0, size, base)
        assert position < 0 or not batch_twin.check(whole[position:][: size_at(whole, position)])
    return 1000 + 10 * found[0] + min(found[8], 9)


def segments_seeds() -> Iterator[bytes]:
    for segment in golden_segments():
        for how in (AS_GIVEN | 128, SEALED | 4, FITTED | 136):
            yield SEGMENT.pack(how, 0, 3) + segment
            yield SEGMENT.pack(how, 0, 3) + segment + bytes(70)
    several = b"".join(
        build(some_records(), base_offset=3 * at, producer_id=at // 8, producer_epoch=0,
              base_sequence=at, leader_epoch=at, transactional=at % 5 == 4)
        for at in range(12)
    )  # fmt: skip
    yield SEGMENT.pack(AS_GIVEN | 8, 0, 20) + several
    yield SEGMENT.pack(SEALED, INT64_MAX - 5, 20) + build(some_records(), base_offset=INT64_MAX - 3)


# Input: the number of index entries in the file, and the key to find; then entries.

INDEX = struct.Struct(">Bq")


def indexes(given: memoryview) -> int:
    if len(given) < INDEX.size:
        return 0
    stored, key = INDEX.unpack_from(given)
    entries = given[INDEX.size :]
    found = 0
    for size, sound, sound_twin, floor, floor_twin in (
        (offset_index.OFFSET_ENTRY_SIZE, offset_index.count_valid_offsets,
         index_twin.count_valid_offsets, offset_index.floor_offset, index_twin.floor_offset),
        (offset_index.TIME_ENTRY_SIZE, offset_index.count_valid_times, index_twin.count_valid_times,
         offset_index.floor_time, index_twin.floor_time),
    ):  # fmt: skip
        believed = bytes(entries[: len(entries) // size * size])
        count = sound(entries, key)
        assert count == sound_twin(believed, key)
        # Entries that do not ascend are searched as well, because an open page may be corrupted.
        in_file = min(stored, len(believed) // size)
        file = filed(entries[: in_file * size])
        floor(file, in_file, entries[in_file * size :], key)
        floor(file, in_file + 1, b"", key)
        in_file = min(stored, count)
        file, tail = filed(believed), believed[in_file * size : count * size]
        assert floor(file, in_file, tail, key) == floor_twin(file, in_file, tail, key)
        found = 10 * found + min(count, 9)
    whole = bytes(entries[: len(entries) // aborted_scan.ENTRY_SIZE * aborted_scan.ENTRY_SIZE])
    for ids, table in ((None, None), ({0}, struct.pack("=16q", 0, *[-1] * 15))):
        assert aborted_scan.find_aborted(whole, key, 1 + stored, table) == (
            aborted_twin.find_aborted(whole, key, 1 + stored, ids)
        )
    return 1 + found


def indexes_seeds() -> Iterator[bytes]:
    dice = random.Random(1)
    for count in (1, 5, 200):
        offsets = sorted(dice.sample(range(1000), count))
        yield INDEX.pack(count // 2, 500) + b"".join(
            struct.pack(">ii", offset, 10 * offset) for offset in offsets
        )
        yield INDEX.pack(count, 500) + b"".join(
            struct.pack(">qi", 3 * offset, offset) for offset in offsets
        )
        yield INDEX.pack(count, 500) + b"".join(
            aborted_twin.ENTRY.pack(0, offset % 3, offset, offset + 7, offset - 9)
            for offset in offsets
        )


TARGETS = {
    "plans": Target(plans, plans_seeds, 25),
    "groups": Target(groups, groups_seeds, 5),
    "frames": Target(frames, frames_seeds, 20),
    "batches": Target(whole_batches, batches_seeds, 20),
    "records": Target(payload_records, records_seeds, 20),
    "zstd": Target(opened_records.zstd, opened_records.zstd_seeds, 5),
    "scan": Target(opened_records.scan, opened_records.scan_seeds, 10),
    "segments": Target(segments, segments_seeds, 2),
    "indexes": Target(indexes, indexes_seeds, 6),
    "loop": Target(loop, loop_seeds, 2),
    "columns": Target(client_codecs.columns, client_codecs.set_seeds, 6),
    "rows": Target(client_codecs.rows, client_codecs.set_seeds, 10),
    "rings": Target(client_codecs.rings, client_codecs.ring_seeds, 4),
    "encoding": Target(client_codecs.encoding, client_codecs.encoding_seeds, 2),
}
