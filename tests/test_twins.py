"""Every compiled function returns the result of its twin in plain Python.

On valid bytes, on one byte changed, on bytes cut short, and on fields at the edges of their types,
chosen by hypothesis.
"""

import tracemalloc

import crc32c as packaged
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kafkalite._ext import record_batch, records, zstd_blocks
from kafkalite._ext.record_scan import RecordScan
from tests.twins import crc32c as crc_twin
from tests.twins import record_batch as batch_twin
from tests.twins import records as records_twin
from tests.twins import zstd_blocks as zstd_twin

I16, I32, I64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
FIELD = st.none() | st.binary(max_size=40)
NAME = st.binary(max_size=12).map(lambda name: name.decode("utf-8", "surrogateescape"))
HEADERS = st.lists(st.tuples(NAME, FIELD), max_size=3).map(tuple)
RECORD = st.tuples(I64, FIELD, FIELD, HEADERS)
RECORDS = st.lists(RECORD, max_size=6).map(
    lambda drawn: [(delta, *record) for delta, record in enumerate(drawn)]
)
# Sizes at which the CRC's streams and wide registers begin, fold and end.
FOLDS = (0, 8, 192, 384, 512, 768, 1280, 3072, 3264, 6144)
BORDERS = sorted({n + d for n in FOLDS for d in (-1, 0, 1, 7) if n + d >= 0})


@pytest.mark.parametrize("size", BORDERS)
def test_crc_is_equal_for_each_number_of_streams(size):
    data = bytes((i * i * 7 + i) & 0xFF for i in range(size))
    twin = crc_twin.crc32c(data)
    assert record_batch.crc32c(data) == twin
    for way in range(record_batch.CRC32C_WAYS):
        assert record_batch.crc32c_by(way, data) == twin


@given(st.binary(max_size=600), st.integers(0, 9))
def test_crc_equals_the_twin_at_any_alignment(data, start):
    part = memoryview(data)[start:]
    twin = crc_twin.crc32c(bytes(part))
    assert record_batch.crc32c(part) == twin
    for way in range(record_batch.CRC32C_WAYS):
        assert record_batch.crc32c_by(way, part) == twin


@pytest.mark.parametrize("size", [32 << 10, 1 << 20, (1 << 20) + 13])
def test_crc_of_large_input_equals_crc32c(size):
    data = bytes(range(251)) * (size // 251 + 1)
    for way in range(record_batch.CRC32C_WAYS):
        assert record_batch.crc32c_by(way, data[:size]) == packaged.crc32c(data[:size])


def both_judge(batch):
    assert record_batch.check(batch) == batch_twin.check(bytes(batch))
    assert record_batch.check_client_batch(batch) == batch_twin.check_client_batch(bytes(batch))


@given(payload=st.binary(min_size=7, max_size=60), at=st.integers(0, 130), flip=st.integers(1, 255))
def test_batch_with_a_changed_byte_is_validated_as_by_the_twin(payload, at, flip):
    batch = batch_twin.build(payload)
    assert record_batch.check(batch) == record_batch.check_client_batch(batch) == 0
    batch[at % len(batch)] ^= flip
    both_judge(batch)


@given(payload=st.binary(max_size=30), end=st.integers(0, 91), more=st.binary(max_size=80))
def test_batch_of_wrong_length_is_validated_as_by_the_twin(payload, end, more):
    batch = batch_twin.build(payload)
    both_judge(batch[:end])
    both_judge(batch + more)
    both_judge(batch + batch)


@given(
    payload=st.binary(max_size=30),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "base_offset": I64,
            "batch_length": I32,
            "leader_epoch": I32,
            "magic": st.integers(-128, 127),
            "attributes": st.integers(0, 127) | I16,
            "base_timestamp": I64,
            "max_timestamp": I64,
            "producer_id": st.sampled_from([-2, -1, 0, 7]) | I64,
            "producer_epoch": st.sampled_from([-1, 0]) | I16,
            "base_sequence": st.sampled_from([-1, 0]) | I32,
        },
    ),
    count=st.integers(-1, 5) | I32,
    last_offset_delta=st.none() | I32,
)
def test_batch_with_changed_fields_is_validated_as_by_the_twin(
    payload, fields, count, last_offset_delta
):
    if last_offset_delta is None:
        last_offset_delta = max(count, 0) - 1
    batch = batch_twin.build(payload, count=count, last_offset_delta=last_offset_delta, **fields)
    both_judge(batch)
    assert record_batch.header(batch) == batch_twin.header(batch)


@given(payload=st.binary(max_size=30), offset=st.integers(0, (1 << 63) - 1), epoch=I32, when=I64)
def test_placed_header_equals_the_twin(payload, offset, epoch, when):
    ours, twins = batch_twin.build(payload), batch_twin.build(payload)
    record_batch.assign_offset(ours, offset, epoch)
    batch_twin.assign_offset(twins, offset, epoch)
    assert ours == twins
    assert record_batch.check(ours) == 0
    record_batch.stamp_append_time(ours, when)
    batch_twin.stamp_append_time(twins, when)
    assert ours == twins
    assert record_batch.check(ours) == 0


@given(payload=st.binary(max_size=30), when=I64)
def test_corrected_max_timestamp_equals_the_twin(payload, when):
    ours, twins = batch_twin.build(payload), batch_twin.build(payload)
    record_batch.correct_max_timestamp(ours, when)
    batch_twin.correct_max_timestamp(twins, when)
    assert ours == twins
    assert record_batch.check(ours) == 0
    assert record_batch.header(ours) == batch_twin.header(twins)


BLOCK = st.tuples(st.integers(0, 3), st.integers(0, 40) | st.sampled_from([131072, 131073]))


@st.composite
def zstd_frames(draw):
    """Draw frames with any header and blocks of every kind; the contents need not be decodable."""
    frames = b""
    for _ in range(draw(st.integers(1, 3))):
        descriptor = draw(st.integers(0, 255))
        frames += (0xFD2FB528).to_bytes(4, "little") + bytes([descriptor])
        frames += bytes(draw(st.integers(0, 14)))
        blocks = draw(st.lists(BLOCK, min_size=1, max_size=5))
        for number, (kind, size) in enumerate(blocks):
            last = number == len(blocks) - 1
            frames += (size << 3 | kind << 1 | last).to_bytes(3, "little")
            frames += bytes(1 if kind == 1 else min(size, 50))
        if descriptor & 4:
            frames += bytes(4)
    return frames


@given(
    payload=zstd_frames() | st.binary(max_size=40).map(b"\x28\xb5\x2f\xfd".__add__),
    cut=st.integers(0, 60), output_max=st.sampled_from([131072, 131080, 1 << 20]),
    frames_max=st.sampled_from([0, 1, 2, 100]),
)  # fmt: skip
def test_zstd_divide_agrees_with_its_twin(payload, cut, output_max, frames_max):
    for given_bytes in (payload, payload[: len(payload) - cut]):
        found = zstd_twin.divide(given_bytes, output_max, frames_max)
        assert zstd_blocks.divide(given_bytes, output_max, frames_max) == found


def test_zstd_divide_stops_at_the_frame_limit():
    payload = (0x184D2A50).to_bytes(4, "little") + bytes(4)
    payload *= 200_000
    tracemalloc.start()
    try:
        assert zstd_blocks.divide(payload, 131072, 1024) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@given(st.binary(max_size=50), st.integers(0, 5), st.integers(0, 3000), st.booleans())
def test_compressed_frames_are_divided_as_by_the_twin(text, frames, times, checked):
    encoder = zstandard.ZstdCompressor(write_checksum=checked)
    payload = b"".join(encoder.compress(text * (times * n)) for n in range(frames))
    parts = zstd_blocks.divide(payload, 131072, 100)
    assert parts == zstd_twin.divide(payload, 131072, 100)
    assert parts is not None and sum(ends for _, ends in parts) == frames


def both_decode(payload, count, last_offset_delta=None):
    found = records_twin.decode(payload, count, last_offset_delta)
    assert records.decode(payload, count, last_offset_delta) == found
    assert records.validate(payload, count, last_offset_delta) == (
        found if isinstance(found, int) else 0
    )


@given(RECORDS)
def test_records_are_encoded_and_decoded_as_by_the_twin(given_records):
    payload = records.encode(given_records)
    assert payload == records_twin.encode(given_records)
    assert records.decode(payload, len(given_records)) == given_records


@given(RECORDS, st.integers(0, 400), st.integers(1, 255))
def test_records_with_a_changed_byte_are_read_as_by_the_twin(drawn, at, flip):
    payload = bytearray(records.encode(drawn))
    if payload:
        payload[at % len(payload)] ^= flip
    both_decode(bytes(payload), len(drawn))


@given(RECORDS, st.integers(0, 400), st.binary(max_size=9), I32 | st.integers(0, 8))
def test_records_of_wrong_length_or_count_are_read_as_by_the_twin(drawn, end, more, count):
    payload = records.encode(drawn)
    both_decode(payload[:end], len(drawn))
    both_decode(payload + more, len(drawn))
    # The twin reads as many records as requested, so the count must be one it can reach.
    both_decode(payload, count if count < 10_000 else len(drawn) + 1)


@given(
    RECORDS, st.sampled_from([-1, 0, 1 << 40, (1 << 63) - 1]), I64, I64, st.integers(1, 4),
    st.booleans(), st.integers(1, 40), st.integers(0, 400), st.integers(0, 3),
)  # fmt: skip
def test_scan_in_pieces_equals_the_twin(
    drawn, base, oldest, newest, hits_max, inside, piece_size, at, flip
):
    payload = bytearray(records.encode(drawn))
    if payload:
        payload[at % len(payload)] ^= flip
    for count in (len(drawn), len(drawn) + 1):
        twins = records_twin.timestamps(
            bytes(payload), count, base, oldest, newest, hits_max, inside
        )
        scan = RecordScan(count, count - 1, len(payload), base)
        scan.collect(oldest, newest, inside=inside, hits_max=hits_max)
        for start in range(0, len(payload), piece_size):
            scan.feed(payload[start : start + piece_size])
        code = scan.end()
        assert (code or scan.hits) == twins


@given(st.lists(st.integers(-2, 9), max_size=5), st.integers(-1, 9) | st.none())
def test_offset_gaps_are_accepted_up_to_the_last_delta(deltas, last):
    payload = records_twin.encode([(delta, 0, b"k", b"v", ()) for delta in deltas])
    both_decode(payload, len(deltas), last)


@given(st.lists(st.sampled_from([0, 1, 2, 3, 6, 12, 14, 16, 0x7F, 0x80, 0xFF]), max_size=40))
def test_bytes_like_lengths_are_read_as_by_the_twin(digits):
    for count in range(4):
        both_decode(bytes(digits), count)


@pytest.mark.parametrize("digits", [5, 6, 10, 11])
def test_overlong_varint_is_rejected_and_padded_one_accepted(digits):
    def record_with(timestamp=b"\0", offset=b"\0"):
        body = b"\0" + timestamp + offset + b"\x01\x01\0"
        return records_twin.varint(len(body)) + body

    padded = b"\x80" * (digits - 1) + b"\0"
    assert records.validate(record_with(timestamp=padded), 1) == (0 if digits <= 10 else 87)
    assert records.validate(record_with(offset=padded), 1) == (0 if digits <= 5 else 87)
    both_decode(record_with(timestamp=padded), 1)
    both_decode(record_with(offset=padded), 1)
