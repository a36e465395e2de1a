"""Compression codecs of record batches, by the number in the batch's attributes.

Compression produces what Kafka's Java clients read: lz4 frames of independent 64 KiB blocks, snappy
in the xerial framing, plain gzip and zstd.  Decompression accepts what any client may have written:
xerial and raw snappy, several gzip members, several lz4 or zstd frames, zstd frames without their
content size.  Kafka's Java clients read less: only the first of several lz4 frames, and no linked
blocks.  `strict` refuses what they do not read, so that a broker acknowledges nothing that its
consumers cannot decompress.

Compressed bytes may be hostile.  The output is limited while it is produced, not afterwards, and so
is the number of frames; a stream that ends early or has trailing bytes is refused.  Only this
project's errors are raised: CorruptMessage, or MessageTooLarge for more than the limit.  `pieces`
produces the output in steps, so that neither all its memory nor all its time is needed at once.

In addition to the output a decoder may hold what its format requires: lz4 a few blocks of up to
4 MiB, zstd a window, of which it touches no more than it has output.

A codec's package is imported when it is first used: a broker that does not decompress needs none.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from kafkalite.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType

# Writers produce one frame per batch; a few more are harmless, a million empty ones are not.
_FRAME_COUNT_MAX = 1024
_BLOCK_COUNT_MAX = 16384
# Maximum output of one call into a codec, except for a snappy block, which is decoded whole.
_STEP_SIZE = 256 << 10
# Input of one call into a decoder, which copies the part that it could not use.
_INPUT_SIZE = 64 << 10
# A snappy block larger than this is preceded by an empty piece.
_BLOCK_SIZE_ANNOUNCED = 1 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_HEADER = _XERIAL_MAGIC + _XERIAL_VERSIONS
_XERIAL_BLOCK_SIZE = 32 << 10
# Snappy's densest element is three bytes for 64; a higher ratio is invalid.
_SNAPPY_RATIO_MAX = 22

# Position of a lz4 frame's FLG byte, its bit of independent blocks, and the bits that Java requires
# to be unset: one for dictionaries, one reserved.
_LZ4_FLAGS = 4
_LZ4_INDEPENDENT = 0x20
_LZ4_RESERVED = 0x03

# Kafka's default lz4 level means the fast compressor, every other the high-compression one.
_LZ4_LEVEL_FAST = 9


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, attributes: int) -> Codec:
        """Return the codec in a batch's attributes."""
        number = attributes & 0x07
        if number > cls.ZSTD:
            raise UnsupportedCompressionType(f"Unknown compression codec {number}.")
        return cls(number)


def compress(codec: Codec, payload: bytes, level: int | None = None) -> bytes:
    """Return the compressed payload; `level` as in `compression.*.level`."""
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
    """Return the default limit of the decompressed size.

    Text compresses about ten to one.  At zlib's speed 16 MiB take a few hundredths of a second, so
    a decompression bomb of the default maximum batch size (1 MiB) costs no more than that.
    """
    return max(16 << 20, 16 * packed_size)


def decompress(codec: Codec, payload: bytes | memoryview, size_max: int | None = None) -> bytes:
    """Return the decompressed bytes; raise MessageTooLarge if there are more than `size_max`."""
    return b"".join(pieces(codec, payload, size_max))


def pieces(
    codec: Codec, payload: bytes | memoryview, size_max: int | None = None, *, strict: bool = False
) -> Iterator[bytes]:
    """Yield the decompressed bytes in steps; `strict` refuses what Java clients cannot read.

    Before a step of more than 1 MiB an empty piece is yielded: that step may then be taken on
    another thread.
    """
    view = memoryview(payload)
    bound = _Bound(output_size_max(len(view)) if size_max is None else size_max)
    if codec is Codec.NONE:
        bound.take(len(view))
        yield bytes(view)
    elif codec is Codec.SNAPPY:
        yield from _snappy_pieces(view, bound)
    elif codec is Codec.GZIP:
        yield from _gzip_pieces(view, bound)
    elif codec is Codec.LZ4:
        yield from _lz4_pieces(view, bound, strict)
    else:
        yield from _zstd_pieces(view, bound)


class _Bound:
    """The number of bytes that a codec may still output."""

    __slots__ = ("left", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.left = size_max

    def take(self, size: int) -> None:
        """Count output; raise MessageTooLarge beyond the limit, if possible before producing it."""
        if size > self.left:
            raise MessageTooLarge(f"The batch holds more than {self.size_max} bytes of records.")
        self.left -= size


def _frames(
    payload: memoryview,
    bound: _Bound,
    begin: Callable[[], Any],
    rest: Callable[[Any], bytes | None],
    error_type: type[Exception],
    count_max: int = _FRAME_COUNT_MAX,
) -> Iterator[bytes]:
    """Yield the output of frame after frame, from decoders with zlib's interface.

    `rest` returns the next input for a decoder whose output was full, or None if it needs new
    input.
    """
    position = 0
    try:
        for _ in range(count_max):
            decoder = begin()
            given: bytes | memoryview | None = None
            ended = False
            while not decoder.eof:
                if given is None:
                    given = payload[position : position + _INPUT_SIZE]
                    position += len(given)
                    ended = not given
                piece = decoder.decompress(given, _STEP_SIZE)
                given = rest(decoder)
                if piece:
                    bound.take(len(piece))
                    yield piece
                elif ended and not decoder.eof:
                    raise CorruptMessage("The compressed records are truncated.")
            position -= len(decoder.unused_data or b"")
            if position == len(payload):
                return
    except error_type as error:
        raise CorruptMessage(f"The compressed records are damaged: {error}.") from None
    if count_max == 1:
        raise CorruptMessage(
            "The lz4 frame has bytes after its end, which Kafka's Java clients do not read."
        )
    raise CorruptMessage("The compressed records are in too many frames.")


def _compress_gzip(payload: bytes, level: int | None) -> bytes:
    import zlib

    encoder = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, wbits=31)
    return encoder.compress(payload) + encoder.flush()


def _gzip_pieces(payload: memoryview, bound: _Bound) -> Iterator[bytes]:
    import zlib

    def begin() -> Any:
        return zlib.decompressobj(wbits=31)

    def rest(decoder: Any) -> bytes | None:
        return decoder.unconsumed_tail or None

    return _frames(payload, bound, begin, rest, zlib.error)


def _compress_lz4(payload: bytes, level: int | None) -> bytes:
    import lz4.frame

    fast = level is None or level == _LZ4_LEVEL_FAST
    # Java does not read linked blocks and does not need the size; levels under 3 are fast ones in
    # the library, but high-compression ones in Kafka.
    packed: bytes = lz4.frame.compress(
        payload,
        compression_level=0 if fast else max(level or 0, 3),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


def _lz4_pieces(payload: memoryview, bound: _Bound, strict: bool) -> Iterator[bytes]:
    import lz4.frame

    if strict and len(payload) > _LZ4_FLAGS and (
        not payload[_LZ4_FLAGS] & _LZ4_INDEPENDENT or payload[_LZ4_FLAGS] & _LZ4_RESERVED
    ):
        raise CorruptMessage(
            "The lz4 frame has linked blocks or a dictionary, which Kafka's Java clients cannot"
            " read: compress in independent blocks."
        )

    def rest(decoder: Any) -> bytes | None:
        # The decoder keeps the input that it could not use.
        return None if decoder.needs_input else b""

    count_max = 1 if strict else _FRAME_COUNT_MAX
    return _frames(payload, bound, lz4.frame.LZ4FrameDecompressor, rest, RuntimeError, count_max)


class _Zstd(threading.local):
    """zstd contexts for each thread, kept because creating one costs more than a small batch."""

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


def _zstd_pieces(payload: memoryview, bound: _Bound) -> Iterator[bytes]:
    import zstandard

    from kafkalite._ext import zstd_blocks

    parts = zstd_blocks.divide(payload, _STEP_SIZE, _FRAME_COUNT_MAX)
    if not parts:
        raise CorruptMessage(
            f"The compressed records are not zstd frames, or more than {_FRAME_COUNT_MAX} of them."
        )
    # With several steps a decoder of its own: between two steps other code may use this thread's
    # decoder, or another thread may take the next step.
    decoders = _zstd.decompressor() if len(parts) == 1 else zstandard.ZstdDecompressor()
    position = 0
    decoder = decoders.decompressobj()
    try:
        for end, frame_ends in parts:
            piece = decoder.decompress(payload[position:end])
            position = end
            bound.take(len(piece))
            if frame_ends:
                if not decoder.eof or decoder.unused_data:
                    raise CorruptMessage("The compressed records are truncated.")
                decoder = decoders.decompressobj()
            if piece:
                yield piece
    except zstandard.ZstdError as error:
        raise CorruptMessage(f"The compressed records are damaged: {error}.") from None


def _compress_snappy(payload: bytes) -> bytes:
    import cramjam

    chunks = [_XERIAL_HEADER]
    view = memoryview(payload)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        chunks.append(len(block).to_bytes(4, "big"))
        chunks.append(block)
    return b"".join(chunks)


def _snappy_pieces(payload: memoryview, bound: _Bound) -> Iterator[bytes]:
    if payload[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield from _snappy_block(payload, bound)
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
            raise CorruptMessage("A snappy block is longer than the rest of the batch.")
        yield from _snappy_block(payload[position : position + size], bound)
        position += size
    raise CorruptMessage("The compressed records are in too many snappy blocks.")


def _snappy_block(block: memoryview, bound: _Bound) -> Iterator[bytes]:
    import cramjam

    size = _snappy_size(block)
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptMessage(
            f"A snappy block of {len(block)} bytes cannot hold the {size} bytes that it declares."
        )
    bound.take(size)
    if size > _BLOCK_SIZE_ANNOUNCED:
        yield b""
    try:
        piece = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"The compressed records are damaged: {error}.") from None
    if piece:
        yield piece


def _snappy_size(block: memoryview) -> int:
    """Return the uncompressed size in the varint at the start of a raw block."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise CorruptMessage("The size of a snappy block is not a valid varint.")
