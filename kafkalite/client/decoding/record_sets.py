"""Record sets, decoded into columns or messages.

The builders (`_ext/record_reader`, `_ext/message_reader`) decode uncompressed batches; this module
decompresses the others for them, and turns error codes into errors.  Records before a damaged
batch are returned before its error is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kafkalite._ext import record_batch, record_reader
from kafkalite.errors import CorruptMessage, KafkaError, raise_for
from kafkalite.records.batch import BatchHeader
from kafkalite.records.compression import decompress

if TYPE_CHECKING:
    from typing_extensions import Buffer

UNPACKED_SIZE_MAX = 1 << 30
"""Maximum decompressed size of a batch in bytes.  Producers limit a batch before compression,
mostly to far less; this only prevents a decompression bomb from using all memory.
"""

_INVALID = "the batch is invalid, or its records do not match its header."


class Builder(Protocol):
    """A ColumnBuilder or a RowBuilder."""

    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def add(self, batch: Buffer, payload: Buffer | None, first_offset: int) -> int: ...
    def add_set(
        self,
        record_set: Buffer,
        position: int,
        first_offset: int,
        size_max: int,
        aborted: Buffer | None = None,
    ) -> tuple[int, int, int]: ...
    def take(self) -> object: ...


def decode_set(
    builder: Builder,
    record_set: Buffer,
    position: int,
    first_offset: int,
    size_max: int,
    unpacked_size_max: int | None = None,
    aborted: Buffer | None = None,
) -> tuple[int, int]:
    """Decode from `position` on; return the (position, next offset) to continue at.

    Ends when the builder has `size_max` bytes, before a batch with an error if there are records
    before it, or when no whole batch is left: then the position is the end of the set, and an
    incomplete last batch is to be fetched again by its offset.  An incomplete first batch is an
    error.  A batch may decompress to `unpacked_size_max` bytes; `records.compression` has the
    default.  Batches of transactions in `aborted` (`aborted_list`) are skipped.
    """
    view = memoryview(record_set)
    while True:
        code, position, first_offset = builder.add_set(
            view, position, first_offset, size_max, aborted
        )
        if code == 0:
            return position, first_offset
        if code == record_reader.AT_END:
            if position == 0 and view:
                raise CorruptMessage(f"At offset {first_offset}: the batch is incomplete.")
            return len(view), first_offset
        try:
            if code != record_reader.COMPRESSED:
                raise_for(code, _INVALID)
            header = BatchHeader(*record_batch.header(view[position:]))
            batch = view[position : position + header.size]
            payload = decompress(header.codec, batch[record_batch.HEADER_SIZE :], unpacked_size_max)
            code = builder.add(batch, payload, first_offset)
            if code == record_reader.FULL:
                return position, first_offset
            raise_for(code, _INVALID)
        except KafkaError as error:
            if builder.count:
                return position, first_offset
            raise type(error)(f"At offset {first_offset}: {error}") from None
        position += header.size
        first_offset = max(first_offset, header.last_offset + 1)
