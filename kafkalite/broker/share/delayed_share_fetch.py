"""DelayedShareFetch: the fetch of a ShareFetch request, which may wait for records.

    open and measure every share partition ──── due ────▶ acquire ─▶ respond
            │ too little                                   ▲  │ nothing
            ╰───────────▶ wait ─────────── due ────────────╯  ╰─▶ wait

Due when
A  at least `min_bytes` can be read in its share partitions together, or
B  one of them would return an error, or
C  its wait has timed out.

It waits for appends to the logs, and for records that other members release.  Records are acquired
when the response is built, so that a waiting request locks none.  If other members have acquired
them by then, it continues to wait.

A session may have thousands of partitions; each step processes SLICE of them, or fewer that have
many records.  If one partition changes, only its size is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from kafkalite.broker.replica.delayed_operation import SteppedOperation, WatchedPartition
from kafkalite.broker.replica.purgatory import SLICE, SLICE_UNITS, UNITS_PER_TICK
from kafkalite.broker.share.led_share_partition import LedSharePartition
from kafkalite.broker.share.share_sessions import ShareSession, TopicIdPartition
from kafkalite.coordination.share.acquisition import AcquiredRange, AcquireLimits
from kafkalite.errors import KafkaError, KafkaStorageError
from kafkalite.records.file_slice import FileSlice
from kafkalite.storage.segment.aborted_lookup import LookupBudget

RECORDS_PER_UNIT = 16
"""Number of acquired records that count as one unit of the purgatory: each may be a batch."""


class ShareFetchLimits(NamedTuple):
    """The limits of a ShareFetch request."""

    min_bytes: int
    max_bytes: int
    acquire: AcquireLimits
    waits: bool
    """True if the request may wait for `min_bytes`."""


class FetchedSharePartition(NamedTuple):
    """The outcome for one partition: records with the acquired ranges, or an error."""

    partition: TopicIdPartition
    records: FileSlice | None = None
    acquired: Sequence[AcquiredRange] = ()
    error: KafkaError | None = None


OpenShare: TypeAlias = Callable[[TopicIdPartition], LedSharePartition]


class DelayedShareFetch(SteppedOperation):
    """The fetch of one request of a session; see the module.

    `open_share` returns the share partition of a topic id and index, or raises KafkaError.
    """

    takes_steps = True

    def __init__(
        self,
        session: ShareSession,
        partitions: Sequence[TopicIdPartition],
        open_share: OpenShare,
        limits: ShareFetchLimits,
    ) -> None:
        self._session = session
        self._wanted = partitions
        self._open_share = open_share
        self._limits = limits
        self._shares: list[LedSharePartition] = []
        self._failed: list[FetchedSharePartition] = []
        """The partitions that have no share partition here."""
        self._sizes: list[int] = []
        """Number of bytes that a read of each share partition would return."""
        self._size = 0
        self._has_error = False
        self._takes_any = limits.min_bytes <= 1 and len(partitions) == 1
        """True if any record is enough: they are acquired at once, without a measurement."""

    def begin(self) -> Iterator[int]:
        for count, partition in enumerate(self._wanted, start=1):
            if self._session.is_ended:
                break
            try:
                share = self._open_share(partition)
            except KafkaError as error:
                reason = error.with_traceback(None)
                self._failed.append(FetchedSharePartition(partition, error=reason))
            else:
                position = len(self._shares)
                self._shares.append(share)
                self._sizes.append(0)
                share.waiting[self] = share.partition.waiting[self] = position
                if not self._takes_any:
                    self._measure(position)
            if count % SLICE == 0:
                yield SLICE_UNITS
        self._wanted = ()
        if self._failed or self._takes_any or self._is_due():
            yield from self.finish()

    def detach(self) -> None:
        for share in self._shares:
            share.waiting.pop(self, None)
            share.partition.waiting.pop(self, None)

    def check(self, partition: WatchedPartition) -> bool:
        position = partition.waiting[self]
        assert position is not None
        self._measure(position)
        return self._is_due()

    def _is_due(self) -> bool:
        limits = self._limits
        return (
            self._has_error
            or self._size >= max(1, limits.min_bytes)
            or not limits.waits
            or self.is_expired
            or self._session.is_ended
        )

    def _measure(self, position: int) -> None:
        """Update the number of bytes that can be read of one share partition."""
        try:
            size = self._shares[position].available(self._limits.max_bytes)
        except (KafkaError, OSError):  # B
            self._has_error = True
            return
        self._size += size - self._sizes[position]
        self._sizes[position] = size

    def finish(self) -> Iterator[int]:
        """Acquire records of the share partitions, in their order; wait again if there are none."""
        fetched = [*self._failed]
        has_news = bool(fetched)
        bytes_left, wanted = self._limits.max_bytes, self._limits.acquire
        has_records = False
        units = 0
        budget = LookupBudget()
        for position, share in enumerate(self._shares):
            if self._session.is_ended:
                break
            partition = share.key.topic_id, share.key.partition
            if wanted.max_records <= 0 or bytes_left <= 0:
                fetched.append(FetchedSharePartition(partition))
                continue
            # What one partition does not use is left for the others.
            size_max = bytes_left // (len(self._shares) - position)
            result = self._fetch(share, wanted, size_max, budget, whole_first=not has_records)
            while share.is_looking_up and result.error is None:
                yield UNITS_PER_TICK
                budget = LookupBudget()
                result = self._fetch(share, wanted, size_max, budget, whole_first=not has_records)
            fetched.append(result)
            has_news = has_news or result.records is not None or result.error is not None
            if result.records is None:
                self._measure(position)
            else:
                has_records = True
                self._session.acquired[share] = None
                bytes_left -= result.records.size
                count = sum(last - first + 1 for first, last, _ in result.acquired)
                wanted = wanted._replace(max_records=wanted.max_records - count)
                units += 1 + count // RECORDS_PER_UNIT
            is_last = position + 1 == len(self._shares)
            if not is_last and (units or (position + 1) % SLICE == 0):
                yield units or SLICE_UNITS
                units, budget = 0, LookupBudget()
        if has_news or self._is_due():
            self.detach()
            self.resolve(fetched)

    def _fetch(
        self,
        share: LedSharePartition,
        wanted: AcquireLimits,
        size_max: int,
        budget: LookupBudget,
        *,
        whole_first: bool,
    ) -> FetchedSharePartition:
        partition = share.key.topic_id, share.key.partition
        try:
            records, ranges = share.fetch(
                self._session.key[1], wanted, size_max, budget, whole_first=whole_first
            )
        except KafkaError as error:
            # Its frames refer to the response that it becomes a part of.
            return FetchedSharePartition(partition, error=error.with_traceback(None))
        except OSError as error:
            reason = KafkaStorageError(f"{share.partition} cannot be read: {error}")
            return FetchedSharePartition(partition, error=reason)
        return FetchedSharePartition(partition, records, ranges)
