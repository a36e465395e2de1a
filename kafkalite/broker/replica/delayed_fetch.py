"""DelayedFetch: one Fetch request, from its list of partitions to its response, in bounded steps.

    read every partition ──── enough bytes, an error, or no wait ────▶ respond
            │ too little
            ▼
    register with every partition ─▶ wait ─▶ due ─▶ read those that changed ─▶ respond

A request may name tens of thousands of partitions, so each step processes SLICE of them and the
next may run in a later tick.  A step ends, too, where a lookup of aborted transactions has used its
budget; the next one continues it.  While the request waits, it keeps the available bytes of each
partition: a partition that changes is checked once, and only changed partitions are read again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from kafkalite.broker.replica.delayed_operation import SteppedOperation, WatchedPartition
from kafkalite.broker.replica.divergence import LogRange, find_divergence
from kafkalite.broker.replica.purgatory import SLICE, SLICE_UNITS, UNITS_PER_TICK
from kafkalite.broker.replica.read_replicas import NO_REPLICA
from kafkalite.broker.replica.readable_partition import READ_COMMITTED
from kafkalite.errors import KafkaError, KafkaStorageError
from kafkalite.protocol.results import FetchResponse, PartitionFetchResult, new_tuple
from kafkalite.storage.segment.aborted_lookup import LookupBudget

if TYPE_CHECKING:
    from kafkalite.broker.replica.readable_partition import ReadablePartition
    from kafkalite.records.file_slice import FileSlice
    from kafkalite.storage.log.committed_read import CommittedRead
    from kafkalite.storage.state.leader_epochs import EpochEnd


ABORTED_MAX = 5_000
"""Maximum number of aborted transactions of the partitions that are read in one step.  Beyond it
less is read."""
ABORTED_SIZE = 16
"""Size of an aborted transaction in the response, which counts as that of records does."""


class FetchItem(NamedTuple):
    """One partition of a fetch: the partition or the lookup error, and the offset to read from."""

    topic: str | bytes
    partition_index: int
    partition: ReadablePartition | None
    error: KafkaError | None
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    size_max: int
    preferred_replica: int = NO_REPLICA
    """The follower that the consumer is to read from instead (KIP-392)."""


class FetchRequest(Protocol):
    """The protocol side of a fetch: looks up its partitions and builds its response."""

    def find(self, requested: Iterable[Any]) -> list[FetchItem]:
        """Look up these partitions of the request; return an item for each, found or not."""

    def add(self, items: Sequence[FetchItem], results: Sequence[PartitionFetchResult]) -> None:
        """Add the results of these partitions to the response."""

    def response(self) -> FetchResponse:
        """Return the response, with every result that was added."""


class FetchLimits(NamedTuple):
    """The limits that a request sets for its response."""

    min_bytes: int
    max_bytes: int
    isolation_level: int
    waits: bool
    """True if the request may wait for `min_bytes`."""


ReadOutcome: TypeAlias = "tuple[list[PartitionFetchResult], int, bool, CommittedRead | None]"
"""The outcome of a read: results, the size of all records read so far in bytes, whether a result
has an error, a diverging epoch or a preferred replica, and the read to continue with, of the
partition after those that have results; None if all have.  A plain tuple, since every Fetch creates
one."""


class DelayedFetch(SteppedOperation):
    """A fetch that is being read, is waiting, or is being completed.

    Due when
    A  at least `min_bytes` are readable in its partitions together, or
    B  one of them would return an error: no longer led or followed here, a new leader epoch, offset
       out of range, or
    C  its wait has timed out.
    """

    takes_steps = True

    def __init__(
        self, requested: Sequence[Any], context: FetchRequest, limits: FetchLimits
    ) -> None:
        self._requested = requested
        self._context = context
        self._limits = limits
        self._items: list[FetchItem] = []
        self._results: list[PartitionFetchResult] = []
        self._unfinished: CommittedRead | None = None
        self._size = 0
        self._failed = False
        self._changed: set[int] = set()
        self._available: dict[int, int] = {}
        """Number of bytes that a read would return, by position; positions with none are absent."""
        self._available_size = 0

    def add_read(self, items: list[FetchItem], outcome: ReadOutcome) -> None:
        """Begin with a few partitions that were looked up and read before."""
        self._items = items
        self._results, self._size, self._failed, self._unfinished = outcome

    # -- steps -------------------------------------------------------------------------------

    def begin(self) -> Iterator[int]:
        """Read all partitions; then respond, or register with all of them and wait."""
        if self._unfinished is not None:
            yield UNITS_PER_TICK
            self._results += yield from self._read(self._items[len(self._results) :])
        for begin in range(0, len(self._requested), SLICE):
            items = self._context.find(self._requested[begin : begin + SLICE])
            self._items += items
            self._results += yield from self._read(items)
            yield SLICE_UNITS
        self._requested = ()
        if self._has_enough():
            yield from self._respond()
            return
        yield from self._register()
        if self._is_due() or self.is_expired:
            yield from self.finish()

    def _has_enough(self) -> bool:
        limits = self._limits
        return (
            self._size >= limits.min_bytes
            or self._failed
            or not self._items
            or not limits.waits
            or self.is_expired
        )

    def finish(self) -> Iterator[int]:
        for begin in range(0, len(self._items), SLICE):
            if begin:
                yield SLICE_UNITS
            self._detach(begin)
        for count, position in enumerate(sorted(self._changed), start=1):
            self._release(position)
            (self._results[position],) = yield from self._read((self._items[position],))
            if count % SLICE == 0:
                yield SLICE_UNITS
        yield from self._respond()

    def _release(self, position: int) -> None:
        """Drop the records read at this position, so that a waiting request keeps no file open."""
        result = self._results[position]
        if result.records is not None:
            self._size -= result.records.size
            self._size -= ABORTED_SIZE * len(result.aborted_transactions or ())
            self._results[position] = result._replace(records=None)

    def _respond(self) -> Iterator[int]:
        context = self._context
        for begin in range(0, len(self._items), SLICE):
            if begin:
                yield SLICE_UNITS
            end = begin + SLICE
            context.add(self._items[begin:end], self._results[begin:end])
        self._items = []
        self.resolve(context.response())

    def _register(self) -> Iterator[int]:
        for position in range(len(self._items)):
            if position and position % SLICE == 0:
                if self._is_due():
                    return
                yield SLICE_UNITS
            self._register_at(position)

    def _register_at(self, position: int) -> None:
        partition = self._items[position].partition
        assert partition is not None, "a fetch with an error does not wait"
        partition.waiting[self] = position
        if self._measure(position):
            self._changed.add(position)  # it may have changed after it was read
            self._release(position)

    # -- waiting -----------------------------------------------------------------------------

    def check(self, partition: WatchedPartition) -> bool:
        position = partition.waiting[self]
        assert position is not None
        self._changed.add(position)
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
        """Update the available bytes of one partition; return whether it has any or an error."""
        _, _, partition, _, leader_epoch, offset, _, size_max, _ = self._items[position]
        min_bytes, _, isolation_level, _ = self._limits
        assert partition is not None, "a fetch with an error does not wait"
        try:
            partition.check_epoch(leader_epoch)
            # Most requests have min_bytes=1; whether any bytes are readable is cheaper to find.
            if min_bytes > 1:
                size = partition.available(offset, size_max, isolation_level)
            else:
                size = int(partition.readable(offset, isolation_level))
        except (KafkaError, OSError):  # B
            self._failed = True
            return True
        before = self._available.get(position, 0)
        if size != before:
            self._available[position] = size
            self._available_size += size - before
        return size > 0

    # -- reading -----------------------------------------------------------------------------

    def _read(
        self, items: Sequence[FetchItem]
    ) -> Generator[int, None, list[PartitionFetchResult]]:
        """Read these partitions; return their results."""
        found: list[PartitionFetchResult] = []
        while True:
            unfinished, self._unfinished = self._unfinished, None
            results, self._size, failed, self._unfinished = read(
                items, self._limits, self._size, unfinished
            )
            self._failed = self._failed or failed
            found += results
            if self._unfinished is None:
                return found
            items = items[len(results) :]
            yield UNITS_PER_TICK


def read(
    items: Sequence[FetchItem],
    limits: FetchLimits,
    size: int = 0,
    unfinished: CommittedRead | None = None,
) -> ReadOutcome:
    """Read these partitions of a request, for which `size` bytes were read before; continue the
    first one's read that was not finished.

    The first batch found is returned whole even if it exceeds the limits, so that a consumer with
    small limits makes progress (KIP-74).
    """
    _, max_bytes, isolation_level, _ = limits
    is_committed = isolation_level == READ_COMMITTED
    none_aborted: Sequence[tuple[int, int]] | None = () if is_committed else None
    aborted_left, budget = ABORTED_MAX, LookupBudget()
    results: list[PartitionFetchResult] = []
    failed = False
    for item in items:
        _, index, partition, error, leader_epoch, offset, fetched_epoch, size_max, preferred = item
        resumed, unfinished = unfinished, None
        if partition is None:
            failed = True
            results.append(_failed(item, error))
            continue
        try:
            partition.check_epoch(leader_epoch)
            if preferred != NO_REPLICA:
                failed = True  # there is nothing to wait for here
                results.append(_redirected(partition, index, preferred))
                continue
            diverging = _diverging(partition, item) if fetched_epoch >= 0 else None
            records, aborted = None, none_aborted
            if diverging is None:
                size_max = max(0, min(size_max, max_bytes - size))
                if is_committed:
                    found = resumed or partition.read_committed(
                        offset, size_max, aborted_left, whole_first=not size
                    )
                    if found is not None:
                        if not found.step(budget):
                            return results, size, failed, found
                        records, aborted = found.records, found.aborted
                        aborted_left = max(0, aborted_left - len(aborted))
                        size += ABORTED_SIZE * len(aborted)
                else:
                    records = partition.read(
                        offset, size_max, isolation_level, whole_first=not size
                    )
            else:
                failed = True
        except (KafkaError, OSError) as raised:
            failed = True
            results.append(_failed(item, raised))
            continue
        if records is not None:
            size += records.size
        results.append(_succeeded(partition, index, aborted, records, diverging))
    return results, size, failed, None


def _succeeded(
    partition: ReadablePartition,
    index: int,
    aborted: Sequence[tuple[int, int]] | None,
    records: FileSlice | None,
    diverging: tuple[int, int] | None,
) -> PartitionFetchResult:
    fields = (
        index, 0, partition.high_watermark, partition.last_stable_offset,
        partition.log.log_start_offset, aborted, -1, records, None, diverging, -1,
    )  # fmt: skip
    return new_tuple(PartitionFetchResult, fields)


def _redirected(partition: ReadablePartition, index: int, replica: int) -> PartitionFetchResult:
    """Return the result of a partition that the consumer is to read from another replica."""
    return _succeeded(partition, index, None, None, None)._replace(preferred_read_replica=replica)


def _diverging(partition: ReadablePartition, item: FetchItem) -> EpochEnd | None:
    log = partition.log
    span = LogRange(log.log_start_offset, log.end_offset)
    return find_divergence(log.leader_epochs, span, item.offset, item.last_fetched_epoch)


def _failed(item: FetchItem, error: KafkaError | OSError | None) -> PartitionFetchResult:
    assert error is not None, "an item without a partition has an error"
    if isinstance(error, OSError):
        error = KafkaStorageError(f"{item.partition} cannot be read: {error}")
    # As in Kafka: an empty list of aborted transactions if the partition is not led here, null if
    # it is.
    aborted = () if item.partition is None else None
    return PartitionFetchResult.failed(item.partition_index, error, aborted)
