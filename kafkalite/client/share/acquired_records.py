"""Acquired records: whole batches of one partition as fetched, and which offsets were acquired.

A share fetch returns whole record batches; only the acquired offsets are delivered.  Decoding goes
on step by step, into messages or columns.  Acquired offsets without a record (compacted away, or of
a control batch) are acknowledged as gaps.  Acquired offsets after the records that were sent, and
those from a damaged batch on, are released: another delivery may bring them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkalite._ext.message_reader import Message, RowBuilder
from kafkalite.client.decoding.arrow_batches import ColumnReader, offsets_of
from kafkalite.client.decoding.record_sets import UNPACKED_SIZE_MAX, Builder, decode_set
from kafkalite.client.net.topology import partition_name
from kafkalite.client.share.acquired_partition import Acknowledgement, AcquiredPartition, Runs
from kafkalite.client.share.share_messages import ShareBatch, ShareMessage
from kafkalite.errors import InvalidRequest, KafkaError
from kafkalite.protocol.schema import Fields

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SIZE = 64 << 10
"""Approximate size in bytes of the records that are decoded into messages at once."""


class OffsetRun(NamedTuple):
    """Acquired offsets with the same delivery count, both bounds included."""

    first: int
    last: int
    delivery_count: int


class AcquiredPart(NamedTuple):
    """Decoded records from `begin` up to `end` that are one run of acquired offsets."""

    begin: int
    end: int
    delivery_count: int
    runs: Runs


class AcquiredRecords:
    """Records of one partition from one response, as far as they were not given."""

    def __init__(
        self, acquired: AcquiredPartition, view: memoryview, runs: Iterable[OffsetRun]
    ) -> None:
        self.acquired = acquired
        self._view = view
        self._runs = deque(runs)
        self._position = 0
        self._next_offset = 0

    @property
    def is_at_end(self) -> bool:
        """True if nothing is left to decode."""
        return not self._runs

    def messages(self, check_crcs: bool) -> list[ShareMessage]:
        """Return the next messages; none at the end.  Raises the error of a damaged batch."""
        partition = self.acquired.partition
        builder = RowBuilder(partition.topic, partition.partition, check_crcs)
        found: list[ShareMessage] = []
        while self._runs and not found:
            upto = self._decode(builder, ROWS_SIZE)
            found = self._messages(builder.take(), upto)
        return found

    def _messages(self, rows: list[Message], upto: int) -> list[ShareMessage]:
        return [
            ShareMessage(self.acquired, part.delivery_count, row)
            for part in self._parts(len(rows), lambda index: rows[index].offset, upto)
            for row in rows[part.begin : part.end]
        ]

    def columns(self, reader: ColumnReader, names: list[str], size_max: int) -> list[ShareBatch]:
        """Return the next batches of these columns; `reader` decodes the offsets too."""
        partition = self.acquired.partition
        found: list[ShareBatch] = []
        while self._runs and not found:
            upto = self._decode(reader.builder, size_max)
            for table in reader.take(*partition):
                found += self._batches(table, names, upto)
            list(self._parts(0, int, upto))  # offsets without a record, after the last one
        return found

    def _batches(self, table: pa.RecordBatch, names: list[str], upto: int) -> Iterator[ShareBatch]:
        offsets = offsets_of(table)
        end = min(upto, offsets[-1] + 1)
        shown = table if names == table.schema.names else table.select(names)
        for part in self._parts(table.num_rows, offsets.__getitem__, end):
            count = part.end - part.begin
            rows = shown if count == table.num_rows else shown.slice(part.begin, count)
            yield ShareBatch(self.acquired, part.delivery_count, rows, part.runs)

    def unread(self, messages: Iterable[ShareMessage]) -> None:
        """Take back messages that were not given, so that they are decoded again."""
        runs: list[OffsetRun] = []
        for message in messages:
            offset, count = message.offset, message.delivery_count
            if runs and runs[-1].last + 1 == offset and runs[-1].delivery_count == count:
                runs[-1] = runs[-1]._replace(last=offset)
            else:
                runs.append(OffsetRun(offset, offset, count))
        self._runs.extendleft(reversed(runs))
        self._position = 0

    def release(self) -> None:
        """Release what was not decoded."""
        runs = [(run.first, run.last) for run in self._runs]
        self._runs.clear()
        self.acquired.acknowledge(runs, Acknowledgement.RELEASE, is_reported=False)

    # Decoding.

    def _decode(self, builder: Builder, size_max: int) -> int:
        """Decode some records; return the offset up to which they are decoded."""
        if self._position >= len(self._view):
            self.release()
            return 0
        first = self._runs[0].first
        before = self._position, max(first, self._next_offset if self._position else 0)
        try:
            after = decode_set(builder, self._view, *before, size_max, UNPACKED_SIZE_MAX)
        except KafkaError as error:
            self.release()
            raise type(error)(f"{partition_name(self.acquired.partition)}: {error}") from None
        if after == before and not builder.count:
            self.release()
        self._position, self._next_offset = after
        return self._next_offset

    def _parts(
        self, count: int, offset_at: Callable[[int], int], upto: int
    ) -> Iterator[AcquiredPart]:
        """Yield the parts of decoded records that were acquired; acknowledge gaps before `upto`."""
        at = 0
        while self._runs and self._runs[0].first < upto:
            first, last, delivery_count = self._runs[0]
            last = min(last, upto - 1)
            begin = bisect_left(range(count), first, at, key=offset_at)
            at = end = bisect_right(range(count), last, begin, key=offset_at)
            runs: Runs = ((first, last),)
            if end - begin <= last - first:
                runs = consecutive(map(offset_at, range(begin, end)))
                gaps = complement(runs, first, last)
                self.acquired.acknowledge(gaps, Acknowledgement.GAP, is_reported=False)
            if last == self._runs[0].last:
                self._runs.popleft()
            else:
                self._runs[0] = self._runs[0]._replace(first=last + 1)
            if begin < end:
                yield AcquiredPart(begin, end, delivery_count, runs)


def consecutive(offsets: Iterable[int]) -> Runs:
    """Return ascending offsets as runs of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] + 1 == offset:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs


def complement(runs: Runs, first: int, last: int) -> Runs:
    """Return the offsets from `first` to `last` that are not in these runs."""
    ends = [first - 1, *(run[1] for run in runs)]
    starts = [*(run[0] for run in runs), last + 1]
    return [
        (end + 1, start - 1) for end, start in zip(ends, starts, strict=True) if end + 1 < start
    ]


def acquired_runs(ranges: Iterable[Fields]) -> list[OffsetRun]:
    """Return the acquired ranges of a response; raise InvalidRequest if they are not valid."""
    runs = [OffsetRun(each.first_offset, each.last_offset, each.delivery_count) for each in ranges]
    end = -1
    for run in runs:
        if not end < run.first <= run.last or run.delivery_count < 1:
            raise InvalidRequest(f"The response has an invalid range of acquired records: {run}.")
        end = run.last
    return runs
