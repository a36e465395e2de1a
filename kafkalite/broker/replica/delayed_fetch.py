"""DelayedFetch: one Fetch request, from its list of partitions to its response, in bounded steps.

    read every partition ──── enough bytes, an error, or no wait ────▶ respond
            │ too little
            ▼
    register with every partition ─▶ wait ─▶ due ─▶ read those that moved ─▶ respond

A request may name tens of thousands of partitions, so each step takes SLICE of them and the next
may run in a later tick.  While it waits, the bytes available are kept for each partition: one
that moves costs one look, and only those that moved are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalite.broker.replica.partition import READ_COMMITTED
from kafkalite.broker.replica.purgatory import SLICE, SLICE_UNITS, SteppedRequest
from kafkalite.errors import KafkaError, KafkaStorageError, OffsetOutOfRange

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition

RECORDS = 7
"""The position of the records in a partition's entry (ext/wire.pyx)."""


class FetchItem(NamedTuple):
    """One partition of a fetch: found or not, and from where to read it."""

    topic: str | bytes
    index: int  # type: ignore[assignment]  # a tuple's own `index` is nothing to a partition
    partition: Partition | None
    fault: KafkaError | None
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    size_max: int

    def checked(self) -> Partition:
        """The partition, if it may be read under the epoch the client knows."""
        if self.partition is None:
            assert self.fault is not None
            raise self.fault.again()
        self.partition.check_epoch(self.current_leader_epoch)
        return self.partition

    def readable(self, isolation_level: int) -> bool:
        """Return whether a read of this item would return any bytes."""
        return self.checked().readable(self.offset, isolation_level)

    def available(self, isolation_level: int) -> int:
        """Return the number of bytes that a read of this item would return."""
        return self.checked().available(self.offset, self.size_max, isolation_level)


class FetchRequest(Protocol):
    """The client's side of a fetch: the partitions it names, the response it gets."""

    def find(self, wanted: Iterable[Any]) -> list[FetchItem]:
        """Return these partitions of the request, found or not."""

    def add(self, items: Sequence[FetchItem], entries: Sequence[tuple[Any, ...]]) -> None:
        """Take the entries of these partitions into the response."""

    def response(self) -> dict[str, Any]:
        """Return the response, with every entry that was added."""


class FetchLimits(NamedTuple):
    """The bounds that a request sets for its response."""

    min_bytes: int
    max_bytes: int
    isolation_level: int
    waits: bool
    """True if the client allows a wait for `min_bytes`."""


Reading = tuple[list[tuple[Any, ...]], int, bool]
"""The result of a read: entries of the response, the bytes of records read by now, and whether an
entry tells of an error or of a diverging epoch.  A plain tuple: every Fetch makes one."""


class DelayedFetch(SteppedRequest):
    """A fetch that is being read, waits, or is being answered.

    Due when
    A  the partitions together hold `min_bytes` that it may read, or
    B  one of them would answer an error: not led here any more, a new leader epoch, its offset
       out of range, or
    C  the time is up.
    """

    def __init__(self, wanted: Sequence[Any], context: FetchRequest, limits: FetchLimits) -> None:
        self._wanted = wanted
        self._context = context
        self._limits = limits
        self._items: list[FetchItem] = []
        self._entries: list[tuple[Any, ...]] = []
        self._size = 0
        self._failed = False
        self._moved: set[int] = set()
        self._available: dict[int, int] = {}
        """The bytes that a read would give, of each position that has any."""
        self._available_size = 0
        self.stepped = len(wanted) > SLICE

    # -- steps -------------------------------------------------------------------------------

    def register_at_once(self, items: list[FetchItem], reading: Reading) -> dict[str, Any] | None:
        """Register with a few partitions that were read and held too little; return the response
        if they hold enough by now, else None."""
        self._items = items
        self._entries, self._size, self._failed = reading
        for _ in self._register():
            pass
        if not self._is_due():
            return None
        self.detach()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        for position in sorted(self._moved):
            self._read_again(position)
        self._context.add(self._items, self._entries)
        return self._context.response()

    def begin(self) -> Iterator[int]:
        """Read what is not read yet; then answer, or register with all partitions and wait."""
        for begin in range(0, len(self._wanted), SLICE):
            items = self._context.find(self._wanted[begin : begin + SLICE])
            self._items += items
            self._entries += self._read(items)
            yield SLICE_UNITS
        self._wanted = ()
        if self._has_enough():
            yield from self._respond()
            return
        yield from self._register()
        if self._is_due() or self.expired:
            yield from self.finish()

    def _has_enough(self) -> bool:
        limits = self._limits
        return (
            self._size >= limits.min_bytes
            or self._failed
            or not self._items
            or not limits.waits
            or self.expired
        )

    def finish(self) -> Iterator[int]:
        for begin in range(0, len(self._items), SLICE):
            if begin:
                yield SLICE_UNITS
            self._detach(begin)
        for count, position in enumerate(sorted(self._moved), start=1):
            self._read_again(position)
            if count % SLICE == 0:
                yield SLICE_UNITS
        yield from self._respond()

    def _release(self, position: int) -> None:
        """Hold no file while waiting: what was read here is read again."""
        entry = self._entries[position]
        if entry[RECORDS] is not None:
            self._size -= entry[RECORDS].size
            self._entries[position] = (*entry[:RECORDS], None, *entry[RECORDS + 1 :])

    def _read_again(self, position: int) -> None:
        self._release(position)
        (self._entries[position],) = self._read((self._items[position],))

    def _respond(self) -> Iterator[int]:
        context = self._context
        for begin in range(0, len(self._items), SLICE):
            if begin:
                yield SLICE_UNITS
            end = begin + SLICE
            context.add(self._items[begin:end], self._entries[begin:end])
        self._items = []
        self.resolve(context.response())

    def _register(self) -> Iterator[int]:
        for position, item in enumerate(self._items):
            if position and position % SLICE == 0:
                if self._is_due():
                    return
                yield SLICE_UNITS
            assert item.partition is not None, "a fetch with an error does not wait"
            item.partition.waiting[self] = position
            if self._measure(position):
                self._moved.add(position)  # perhaps since it was read
                self._release(position)

    # -- waiting -----------------------------------------------------------------------------

    def look(self, partition: Partition) -> bool:
        position = partition.waiting[self]
        assert position is not None
        self._moved.add(position)
        self._measure(position)
        return self._is_due()

    def detach(self) -> None:
        self._detach(0, len(self._items))

    def _detach(self, begin: int, count: int = SLICE) -> None:
        for item in self._items[begin : begin + count]:
            if item.partition is not None:
                item.partition.waiting.pop(self, None)

    def _is_due(self) -> bool:
        return self._failed or self._available_size >= self._limits.min_bytes

    def _measure(self, position: int) -> bool:
        """Take what this partition would give now into the sum; return whether it is anything."""
        item = self._items[position]
        limits = self._limits
        try:
            # Most ask for one byte, and then it need not be known how many there are.
            if limits.min_bytes > 1:
                size = item.available(limits.isolation_level)
            else:
                size = int(item.readable(limits.isolation_level))
        except (KafkaError, OSError):  # B
            self._failed = True
            return True
        before = self._available.get(position, 0)
        if size != before:
            self._available[position] = size
            self._available_size += size - before
        return size > 0

    # -- reading -----------------------------------------------------------------------------

    def _read(self, items: Sequence[FetchItem]) -> list[tuple[Any, ...]]:
        """Read these partitions; return their entries of the response."""
        entries, self._size, failed = read(items, self._limits, self._size)
        self._failed = self._failed or failed
        return entries


def read(items: Sequence[FetchItem], limits: FetchLimits, size: int = 0) -> Reading:
    """Read these partitions of a request, of which `size` bytes were read before.

    The first batch found is given whole however large it is, so that a consumer with small
    limits always gets on (KIP-74).
    """
    _, max_bytes, isolation_level, _ = limits
    aborted = () if isolation_level == READ_COMMITTED else None
    entries: list[tuple[Any, ...]] = []
    failed = False
    for item in items:
        _, index, partition, fault, leader_epoch, offset, fetched_epoch, size_max = item
        if partition is None:
            assert fault is not None
            failed = True
            entries.append(_refused(item, fault))
            continue
        try:
            partition.check_epoch(leader_epoch)
            diverging = _diverging(partition, item) if fetched_epoch >= 0 else None
            records = None
            if diverging is None:
                left = max_bytes - size
                if left < size_max:
                    size_max = left
                records = partition.read(
                    offset, max(0, size_max), isolation_level, whole_first=not size
                )
            else:
                failed = True
        except KafkaError as raised:
            failed = True
            entries.append(_refused(item, raised))
            continue
        except OSError as error:
            failed = True
            unreadable = KafkaStorageError(f"{partition} cannot be read: {error}")
            entries.append(_refused(item, unreadable))
            continue
        if records is not None:
            size += records.size
        entries.append(
            (
                index,
                0,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log.log_start_offset,
                aborted,
                -1,
                records,
                None,
                diverging,
            )
        )
    return entries, size, failed


def _diverging(partition: Partition, item: FetchItem) -> tuple[int, int] | None:
    # KIP-595: a reader whose last epoch ended earlier here must truncate to that end first.
    epoch, end_offset = partition.log.end_of_epoch(item.last_fetched_epoch)
    if end_offset < 0:
        raise OffsetOutOfRange("The partition has no records of the last fetched epoch.")
    if epoch == item.last_fetched_epoch and end_offset >= item.offset:
        return None
    return epoch, end_offset


def _refused(item: FetchItem, fault: KafkaError) -> tuple[Any, ...]:
    # As in Kafka, a partition that is not here has an empty list of aborted transactions, and
    # one that is here has null.
    aborted = () if item.partition is None else None
    return (item.index, fault.code, -1, -1, -1, aborted, -1, None, None, None)
