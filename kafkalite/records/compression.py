"""The codecs a batch's records may be compressed with, by the number in its attributes.

Compressing writes what Kafka's Java clients read: lz4 frames of independent 64 KiB blocks, snappy
in the xerial framing, gzip and zstd as they are.  Decompressing reads whatever a client may have
written: xerial and raw snappy, several gzip members, lz4 or zstd frames one after the other,
zstd frames that do not tell their size.

Compressed bytes are hostile.  Output is bounded while it is made, not afterwards, and so is the
number of frames; a stream that ends early or has bytes behind its end is refused.  Only the
errors of this project come out: CorruptMessage, or MessageTooLarge for more than was allowed.
Beside the output a decoder may hold what its format demands: lz4 a few blocks of up to 4 MiB,
zstd a window, of which it touches no more than it has put out.

A codec's package is imported when it is first used: a broker that only passes batches through
needs none of them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from kafkalite.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType

# Writers make one frame a batch; a few more are harmless, a million empty ones are not.
_FRAME_COUNT_MAX = 1024
_BLOCK_COUNT_MAX = 16384
# What one call into a codec may always give out before it is counted.
_STEP_SIZE = 1 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_HEADER = _XERIAL_MAGIC + _XERIAL_VERSIONS
_XERIAL_BLOCK_SIZE = 32 << 10
# Snappy's densest element is three bytes for 64; a stream that claims more than that lies.
_SNAPPY_RATIO_MAX = 22

# Kafka's default lz4 level stands for the fast compressor, every other for the thorough one.
_LZ4_LEVEL_FAST = 9


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, attributes: int) -> Codec:
        """The codec a batch's attributes name."""
        number = attributes & 0x07
        if number > cls.ZSTD:
            raise UnsupportedCompressionType(f"No compression codec has the number {number}.")
        return cls(number)


def compress(codec: Codec, payload: bytes, level: int | None = None) -> bytes:
    """The payload as this codec's consumers expect it; `level` as in `compression.*.level`."""
    if codec is Codec.NONE:
        return payload
    if codec is Codec.SNAPPY:
        return _compress_snappy(payload)
    if codec is Codec.GZIP:
        return _compress_gzip(payload, level)
    if codec is Codec.LZ4:
        return _compress_lz4(payload, level)
    return _compress_zstd(payload, level)


def output_size_max(packed_size: int) -> int:
    """What compressed bytes may become when their reader names no other bound.

    Text packs some ten to one.  At zlib's speed 16 MiB take a few hundredths of a second, so a
    bomb of the largest batch a topic takes by default (1 MiB) costs no more than that.
    """
    return max(16 << 20, 16 * packed_size)


def decompress(codec: Codec, payload: bytes | memoryview, size_max: int | None = None) -> bytes:
    """What was compressed; never more than `size_max` bytes of it."""
    view = memoryview(payload)
    output = _Output(output_size_max(len(view)) if size_max is None else size_max)
    if codec is Codec.NONE:
        output.take(bytes(view))
    elif codec is Codec.SNAPPY:
        _decompress_snappy(view, output)
    elif codec is Codec.GZIP:
        _decompress_gzip(view, output)
    elif codec is Codec.LZ4:
        _decompress_lz4(view, output)
    else:
        _decompress_zstd(view, output)
    return output.joined()


class _Output:
    """Collects what comes out of a codec, up to a bound."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.left = size_max
        # Joined at the end: one growing buffer would be copied as it grows, and a bomb cost double.
        self._chunks: list[bytes] = []

    def room_for(self, size: int) -> None:
        """Refuse what would be too much before it is made."""
        if size > self.left:
            raise MessageTooLarge(f"The batch holds more than {self.size_max} bytes of records.")

    def take(self, chunk: bytes) -> None:
        self.room_for(len(chunk))
        self.left -= len(chunk)
        self._chunks.append(chunk)

    def joined(self) -> bytes:
        return b"".join(self._chunks)


def _decompress_frames(
    payload: memoryview,
    output: _Output,
    begin: Callable[[], Any],
    ratio_max: int,
    fault: type[Exception],
) -> None:
    """Frame after frame, through decoders that have zlib's shape.

    Not every decoder bounds what one call gives out, so the bound is on what it is given: of so
    many bytes even the densest stream makes only one step's worth.  A step is a part of what is
    left, because a decoder may hold its output twice while it puts pieces together.
    """
    position = 0
    try:
        for _ in range(_FRAME_COUNT_MAX):
            decoder = begin()
            while not decoder.eof:
                if position == len(payload):
                    raise CorruptMessage("The compressed records end early.")
                step = max(output.left // 4, _STEP_SIZE)
                piece = payload[position : position + max(step // ratio_max, 16)]
                output.take(decoder.decompress(piece))
                position += len(piece)
            position -= len(decoder.unused_data or b"")
            if position == len(payload):
                return
    except fault as error:
        raise CorruptMessage(f"The compressed records are damaged: {error}.") from None
    raise CorruptMessage("The compressed records are in too many frames.")


def _compress_gzip(payload: bytes, level: int | None) -> bytes:
    import zlib

    encoder = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, wbits=31)
    return encoder.compress(payload) + encoder.flush()


def _decompress_gzip(payload: memoryview, output: _Output) -> None:
    import zlib

    _decompress_frames(payload, output, lambda: zlib.decompressobj(wbits=31), 1032, zlib.error)


def _compress_lz4(payload: bytes, level: int | None) -> bytes:
    import lz4.frame

    fast = level is None or level == _LZ4_LEVEL_FAST
    # Java reads neither linked blocks nor needs the size; levels under 3 are fast ones to the
    # library, but thorough ones to Kafka.
    packed: bytes = lz4.frame.compress(
        payload,
        compression_level=0 if fast else max(level or 0, 3),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


def _decompress_lz4(payload: memoryview, output: _Output) -> None:
    import lz4.frame

    _decompress_frames(payload, output, lz4.frame.LZ4FrameDecompressor, 255, RuntimeError)


class _Zstd(threading.local):
    """zstd's contexts, kept because making one costs more than a small batch; one set a thread."""

    def __init__(self) -> None:
        self._compressors: dict[int, Any] = {}
        self._decompressor: Any = None

    def compressor(self, level: int | None) -> Any:
        import zstandard

        key = 3 if level is None else level
        if key not in self._compressors:
            self._compressors[key] = zstandard.ZstdCompressor(level=key)
        return self._compressors[key]

    def decompressor(self) -> Any:
        import zstandard

        if self._decompressor is None:
            self._decompressor = zstandard.ZstdDecompressor()
        return self._decompressor


_zstd = _Zstd()


def _compress_zstd(payload: bytes, level: int | None) -> bytes:
    packed: bytes = _zstd.compressor(level).compress(payload)
    return packed


def _decompress_zstd(payload: memoryview, output: _Output) -> None:
    import zstandard

    # Four bytes can stand for a block of 128 KiB.
    begin = _zstd.decompressor().decompressobj
    _decompress_frames(payload, output, begin, 32768, zstandard.ZstdError)


def _compress_snappy(payload: bytes) -> bytes:
    import cramjam

    chunks = [_XERIAL_HEADER]
    view = memoryview(payload)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        chunks.append(len(block).to_bytes(4, "big"))
        chunks.append(block)
    return b"".join(chunks)


def _decompress_snappy(payload: memoryview, output: _Output) -> None:
    if payload[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _decompress_snappy_block(payload, output)
        return
    if len(payload) < len(_XERIAL_HEADER):
        raise CorruptMessage("The snappy framing ends inside its header.")
    position = len(_XERIAL_HEADER)
    for _ in range(_BLOCK_COUNT_MAX):
        if position == len(payload):
            return
        if len(payload) - position < 4:
            raise CorruptMessage("The snappy framing ends inside a block's size.")
        size = int.from_bytes(payload[position : position + 4], "big")
        position += 4
        if size > len(payload) - position:
            raise CorruptMessage("A snappy block is longer than what is left.")
        _decompress_snappy_block(payload[position : position + size], output)
        position += size
    raise CorruptMessage("The compressed records are in too many snappy blocks.")


def _decompress_snappy_block(block: memoryview, output: _Output) -> None:
    import cramjam

    size = _snappy_size(block)
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptMessage("A snappy block claims more than it can hold.")
    output.room_for(size)
    try:
        output.take(bytes(cramjam.snappy.decompress_raw(block)))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"The compressed records are damaged: {error}.") from None


def _snappy_size(block: memoryview) -> int:
    """The size a raw block claims, in the varint it begins with."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise CorruptMessage("A snappy block begins with no size.")
