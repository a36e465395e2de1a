"""What a batch holds, in the form it was gathered in, and how it becomes a batch's bytes.

    Rows      records of send(), in a BatchBuilder
    Packed    a payload that stands ready behind room for a header: compressed, or a user's
    Rows of columns are in arrow_sending.py.

`write` puts the whole batch where it is to go, a ring's memory or a request, with header, numbers
and checksum.  It may be called again, with the same numbers or others: what was sent once may have
to be sent again, and then the bytes are made again.
"""

from __future__ import annotations

from typing import Protocol

from kafkalite._ext import records as record_bytes
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import BatchBuilder, seal
from kafkalite.records.compression import Codec, compress, decompress


class Content(Protocol):
    """The records of one batch."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int:
        """Of the whole batch, header included."""
        ...

    def close(self) -> None:
        """Take no record any more."""
        ...

    def write(self, out: memoryview, producer_id: int, epoch: int, sequence: int) -> int:
        """The whole batch to the beginning of `out`; its size."""
        ...

    def packed(self, codec: Codec, level: int | None) -> Content:
        """The same, compressed."""
        ...

    def halves(self) -> tuple[Content, Content]:
        """The first and the second half of two or more records."""
        ...


class Rows:
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
        """Let the batch become as large as this."""
        self.builder.widen(size - HEADER_SIZE)

    def write(self, out: memoryview, producer_id: int, epoch: int, sequence: int) -> int:
        return self.builder.seal_into(out, Codec.NONE, producer_id, epoch, sequence)

    def packed(self, codec: Codec, level: int | None) -> Packed:
        builder = self.builder
        with builder.payload() as payload:
            return Packed.of(
                bytes(payload),
                builder.count,
                builder.base_timestamp,
                builder.max_timestamp,
                codec,
                level,
            )

    def halves(self) -> tuple[Content, Content]:
        return self.packed(Codec.NONE, None).halves()


class Packed:
    """A payload behind room for its header."""

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
    ) -> Packed:
        """This payload, compressed unless the codec is none."""
        squeezed = compress(codec, payload, level)
        buffer = bytearray(HEADER_SIZE)
        buffer += squeezed
        return cls(buffer, len(squeezed), count, base_timestamp, max_timestamp, codec, level)

    def close(self) -> None:
        """It never took any."""

    def write(self, out: memoryview, producer_id: int, epoch: int, sequence: int) -> int:
        out[HEADER_SIZE : self.size] = memoryview(self.buffer)[HEADER_SIZE : self.size]
        return seal(
            out,
            self.size - HEADER_SIZE,
            self.count,
            self.base_timestamp,
            self.max_timestamp,
            self.codec,
            producer_id,
            epoch,
            sequence,
        )

    def packed(self, codec: Codec, level: int | None) -> Packed:
        if codec is self.codec:
            return self
        payload = bytes(memoryview(self.buffer)[HEADER_SIZE : self.size])
        return Packed.of(payload, self.count, self.base_timestamp, self.max_timestamp, codec, level)

    def halves(self) -> tuple[Content, Content]:
        payload = decompress(self.codec, memoryview(self.buffer)[HEADER_SIZE : self.size])
        found = record_bytes.decode(payload, self.count)
        assert not isinstance(found, int), "a payload of our own reads"
        middle = self.count // 2
        return self._part(found[:middle]), self._part(found[middle:])

    def _part(self, found: list[record_bytes._Decoded]) -> Packed:
        first_place, first_late = found[0][:2]
        payload = record_bytes.encode(
            (place - first_place, late - first_late, key, value, headers)
            for place, late, key, value, headers in found
        )
        base_timestamp = self.base_timestamp + first_late
        max_timestamp = self.base_timestamp + max(late for _, late, *_ in found)
        return Packed.of(payload, len(found), base_timestamp, max_timestamp, self.codec, self.level)
