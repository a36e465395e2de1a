"""Content of a batch: the forms in which records are gathered, and their encoding.

    Rows      records of send(), in a BatchBuilder
    Packed    an encoded payload behind space for a header: compressed, or from send_batch()
    Rows of columns are in column_batches.py.

`write` writes the whole batch with header, sequence and CRC to a ring's memory or a request.  It
may be called several times, with the same or another sequence: a retry encodes the batch again.
"""

from __future__ import annotations

from typing import Protocol

from kafkalite._ext import records as record_bytes
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import BatchBuilder, seal
from kafkalite.records.compression import Codec, compress, decompress


class BatchContent(Protocol):
    """The records of one batch."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes, header included."""
        ...

    def close(self) -> None:
        """Refuse further records."""
        ...

    def write(
        self, out: memoryview, producer_id: int, epoch: int, sequence: int, attributes: int = 0
    ) -> int:
        """Write the whole batch to the beginning of `out`; return its size.

        `attributes` are those besides the codec.
        """
        ...

    def compressed(self, codec: Codec, level: int | None) -> BatchContent:
        """Return the same records, compressed."""
        ...

    def halves(self) -> tuple[BatchContent, BatchContent]:
        """Split two or more records into a first and a second half."""
        ...


class BuilderContent:
    """Records in a builder."""

    __slots__ = ("builder",)

    def __init__(self, builder: BatchBuilder) -> None:
        self.builder = builder

    @property
    def count(self) -> int:
        return self.builder.count

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.builder.size

    def close(self) -> None:
        self.builder.close()

    def widen(self, size: int) -> None:
        """Let the batch grow to this size."""
        self.builder.widen(size - HEADER_SIZE)

    def write(
        self, out: memoryview, producer_id: int, epoch: int, sequence: int, attributes: int = 0
    ) -> int:
        return self.builder.seal_into(out, attributes, producer_id, epoch, sequence)

    def compressed(self, codec: Codec, level: int | None) -> EncodedContent:
        builder = self.builder
        with builder.payload() as payload:
            return EncodedContent.of(
                bytes(payload),
                builder.count,
                builder.base_timestamp,
                builder.max_timestamp,
                codec,
                level,
            )

    def halves(self) -> tuple[BatchContent, BatchContent]:
        return self.compressed(Codec.NONE, None).halves()


class EncodedContent:
    """A payload behind space for its header."""

    __slots__ = ("base_timestamp", "buffer", "codec", "count", "level", "max_timestamp", "size")

    def __init__(
        self,
        buffer: bytearray,
        payload_size: int,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        codec: Codec = Codec.NONE,
        level: int | None = None,
    ) -> None:
        assert 0 < count <= payload_size <= len(buffer) - HEADER_SIZE
        self.buffer = buffer
        self.size = HEADER_SIZE + payload_size
        self.count = count
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.codec = codec
        self.level = level

    @classmethod
    def of(
        cls,
        payload: bytes,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        codec: Codec,
        level: int | None,
    ) -> EncodedContent:
        """Return a batch of this payload, compressed unless the codec is none."""
        squeezed = compress(codec, payload, level)
        buffer = bytearray(HEADER_SIZE)
        buffer += squeezed
        return cls(buffer, len(squeezed), count, base_timestamp, max_timestamp, codec, level)

    def close(self) -> None:
        """Do nothing: no records are appended to it."""

    def write(
        self, out: memoryview, producer_id: int, epoch: int, sequence: int, attributes: int = 0
    ) -> int:
        out[HEADER_SIZE : self.size] = memoryview(self.buffer)[HEADER_SIZE : self.size]
        return seal(
            out,
            self.size - HEADER_SIZE,
            self.count,
            self.base_timestamp,
            self.max_timestamp,
            attributes | self.codec,
            producer_id,
            epoch,
            sequence,
        )

    def compressed(self, codec: Codec, level: int | None) -> EncodedContent:
        if codec is self.codec:
            return self
        payload = bytes(memoryview(self.buffer)[HEADER_SIZE : self.size])
        return EncodedContent.of(
            payload, self.count, self.base_timestamp, self.max_timestamp, codec, level
        )

    def halves(self) -> tuple[BatchContent, BatchContent]:
        payload = decompress(self.codec, memoryview(self.buffer)[HEADER_SIZE : self.size])
        found = record_bytes.decode(payload, self.count)
        assert not isinstance(found, int), "a payload of our own reads"
        middle = self.count // 2
        return self._part(found[:middle]), self._part(found[middle:])

    def _part(self, found: list[record_bytes._Decoded]) -> EncodedContent:
        first_place, first_late = found[0][:2]
        payload = record_bytes.encode(
            (place - first_place, late - first_late, key, value, headers)
            for place, late, key, value, headers in found
        )
        base_timestamp = self.base_timestamp + first_late
        max_timestamp = self.base_timestamp + max(late for _, late, *_ in found)
        return EncodedContent.of(
            payload, len(found), base_timestamp, max_timestamp, self.codec, self.level
        )
