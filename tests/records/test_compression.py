"""Every codec: round trips, the frames of other writers, and refused input.

The frames are made as Java's and librdkafka's writers make them, by hand where no package does.
"""

import random
import struct
import subprocess
import sys
import zlib

import cramjam
import lz4.block
import lz4.frame
import pytest
import xxhash
import zstandard

from kafkalite.errors import CorruptMessage, KafkaError, MessageTooLarge
from kafkalite.records.compression import Codec, compress, decompress

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b'{"flight": %d, "delay": %d}\n' % (n, n * n % 97) for n in range(8_000))
NOISE = random.Random(5).randbytes(150_000)
PAYLOADS = {"none": b"", "byte": b"x", "text": TEXT, "noise": NOISE, "zeros": bytes(300_000)}


def java_lz4(payload):
    """A magic, no content size, independent blocks of 64 KiB, only the header's checksum."""
    descriptor = bytes([0x60, 0x40])
    frame = b"\x04\x22\x4d\x18" + descriptor
    frame += bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF])
    for start in range(0, len(payload), 64 << 10):
        block = payload[start : start + (64 << 10)]
        packed = lz4.block.compress(block, store_size=False)
        if len(packed) < len(block):
            frame += struct.pack("<I", len(packed)) + packed
        else:
            frame += struct.pack("<I", len(block) | 1 << 31) + block
    return frame + struct.pack("<I", 0)


def java_snappy(payload):
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for start in range(0, len(payload), 32 << 10):
        block = bytes(cramjam.snappy.compress_raw(payload[start : start + (32 << 10)]))
        framed += struct.pack(">i", len(block)) + block
    return framed


def java_zstd(payload):
    encoder = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return encoder.compress(payload) + encoder.flush()


def gzip_members(payload):
    half = len(payload) // 2
    return b"".join(compress(Codec.GZIP, part) for part in (payload[:half], payload[half:]))


def zstd_frames(payload):
    half = len(payload) // 2
    return java_zstd(payload[:half]) + compress(Codec.ZSTD, payload[half:])


def lz4_frames(payload):
    half = len(payload) // 2
    return java_lz4(payload[:half]) + lz4.frame.compress(payload[half:], content_checksum=True)


def lz4_large_blocks(payload):
    return lz4.frame.compress(payload, block_size=7, block_linked=True, block_checksum=True)


FRAMES = {
    "java lz4": (Codec.LZ4, java_lz4),
    "java snappy": (Codec.SNAPPY, java_snappy),
    "raw snappy": (Codec.SNAPPY, lambda payload: bytes(cramjam.snappy.compress_raw(payload))),
    "java zstd": (Codec.ZSTD, java_zstd),
    "two gzip members": (Codec.GZIP, gzip_members),
    "two zstd frames": (Codec.ZSTD, zstd_frames),
    "two lz4 frames": (Codec.LZ4, lz4_frames),
    "lz4 in linked blocks of 4 MiB": (Codec.LZ4, lz4_large_blocks),
    "zstd with a checksum": (
        Codec.ZSTD,
        lambda payload: zstandard.ZstdCompressor(write_checksum=True).compress(payload),
    ),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("codec", Codec)
def test_compression_round_trips(codec, payload):
    assert decompress(codec, compress(codec, payload)) == payload


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("frame", FRAMES)
def test_frames_of_other_writers_are_decompressed(frame, payload):
    codec, written = FRAMES[frame]
    assert decompress(codec, written(payload)) == payload


def test_lz4_frame_has_independent_64_kib_blocks():
    """Java refuses linked blocks; the descriptor's flags show the written form."""
    flags, block_code = compress(Codec.LZ4, TEXT)[4:6]
    assert flags == 0x60, "version 1, independent blocks, no sizes and no checksums"
    assert block_code == 0x40, "blocks of 64 KiB"


def test_snappy_frame_equals_java():
    assert compress(Codec.SNAPPY, TEXT) == java_snappy(TEXT)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_decompressed_size_limit_is_inclusive(codec):
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(MessageTooLarge):
        decompress(codec, packed, len(TEXT) - 1)
    with pytest.raises(MessageTooLarge):
        decompress(codec, packed, 0)


def test_uncompressed_size_is_limited():
    with pytest.raises(MessageTooLarge):
        decompress(Codec.NONE, TEXT, len(TEXT) - 1)


def ends(packed):
    """Return the ends to cut at: all near both ends of the stream, and some between."""
    near = min(len(packed), 40)
    return sorted(
        {*range(near), *range(0, len(packed), 997), *range(len(packed) - near, len(packed))}
    )


@pytest.mark.parametrize("frame", FRAMES)
def test_truncated_stream_is_rejected(frame):
    codec, written = FRAMES[frame]
    packed = written(TEXT)
    # A part of a stream that is a whole stream itself is valid.
    halves = {len(written(TEXT[:0])), len(java_snappy(b""))}
    for end in ends(packed):
        try:
            shorter = decompress(codec, packed[:end])
        except CorruptMessage:
            continue
        assert end in halves and TEXT.startswith(shorter), f"{end} of {len(packed)} bytes passed"


@pytest.mark.parametrize("junk", [b"\0", b"junk behind", bytes(200)], ids=repr)
@pytest.mark.parametrize("frame", FRAMES)
def test_bytes_after_the_stream_are_rejected(frame, junk):
    codec, written = FRAMES[frame]
    with pytest.raises(CorruptMessage):
        decompress(codec, written(TEXT) + junk)


@pytest.mark.parametrize("frame", FRAMES)
def test_changed_byte_raises_kafka_errors_only_within_the_limit(frame):
    codec, written = FRAMES[frame]
    packed = written(TEXT[:20_000])
    chance = random.Random(frame)
    places = [*range(min(len(packed), 64)), *(chance.randrange(len(packed)) for _ in range(400))]
    for at in places:
        damaged = bytearray(packed)
        damaged[at] ^= chance.randrange(1, 256)
        try:
            assert len(decompress(codec, bytes(damaged), 40_000)) <= 40_000
        except KafkaError as error:
            assert isinstance(error, CorruptMessage | MessageTooLarge)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_random_bytes_are_rejected(codec):
    chance = random.Random(int(codec))
    for size in (0, 1, 3, 8, 20, 300):
        with pytest.raises(KafkaError):
            decompress(codec, b"\xff" + chance.randbytes(size))


def test_snappy_block_with_oversized_length_is_rejected():
    huge = b"\xff\xff\xff\xff\x0f" + b"\0x"
    with pytest.raises(CorruptMessage, match="declares"):
        decompress(Codec.SNAPPY, huge)
    framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(huge)) + huge
    with pytest.raises(CorruptMessage, match="declares"):
        decompress(Codec.SNAPPY, framed)


def test_snappy_block_beyond_its_frame_is_rejected():
    for size in (-1, 1 << 30, 9):
        framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, size) + b"\x01\0x"
        with pytest.raises(CorruptMessage):
            decompress(Codec.SNAPPY, framed)


def test_compression_levels_have_the_meaning_of_kafka():
    fast = compress(Codec.LZ4, TEXT, 9)
    assert fast == compress(Codec.LZ4, TEXT), "9 is Kafka's default and means the fast one"
    assert len(compress(Codec.LZ4, TEXT, 1)) < len(fast), "every other means the thorough one"
    assert len(compress(Codec.LZ4, TEXT, 17)) < len(fast)
    assert zlib.decompress(compress(Codec.GZIP, TEXT, 9), 31) == TEXT
    for level in (-131072, -5, 1, 22):
        assert decompress(Codec.ZSTD, compress(Codec.ZSTD, TEXT, level)) == TEXT


def test_codecs_are_imported_on_first_use():
    program = (
        "import sys, kafkalite.records.batch;"
        "print(sorted({'lz4', 'zstandard', 'cramjam', 'zlib'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert shown.stdout.strip() == "[]"
