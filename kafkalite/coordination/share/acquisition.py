"""Acquisition: how many records of a share partition a request acquires.

A record that was delivered several times may be one that consumers cannot process.  Such records
are delivered apart from others and in ever smaller parts, so that only the bad ones of a batch
reach the delivery limit: from half of the limit on, each delivery halves the part, and the last one
has a single record.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.coordination.share.in_flight_ranges import InFlightRange, InFlightRanges
from kafkalite.protocol.schemas.share_records import DeliveryState

THROTTLED_COUNT_MIN = 2
"""Number of deliveries that are never throttled."""


class ShareLimits(NamedTuple):
    """The settings of a share group that apply to a share partition."""

    lock_ms: int = 30_000
    delivery_count_max: int = 5
    in_flight_max: int = 2_000
    allows_renewal: bool = True
    has_dead_letters: bool = False

    @property
    def throttled_count(self) -> int:
        """The delivery count from which records are delivered in smaller parts."""
        return max(THROTTLED_COUNT_MIN, -(-self.delivery_count_max // 2))

    @property
    def archived_state(self) -> DeliveryState:
        """The state of records that are not delivered again."""
        return DeliveryState.ARCHIVING if self.has_dead_letters else DeliveryState.ARCHIVED


class AcquireLimits(NamedTuple):
    """The number of records that a request may acquire.

    `is_exact` is the mode record_limit.  Without it, the number is rounded up to whole record
    batches, and ranges of the response end at about `batch_size` records.
    """

    max_records: int
    batch_size: int
    is_exact: bool = False


class AcquiredRange(NamedTuple):
    """Offsets, both bounds included, that a member has acquired."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acquisition:
    """The acquisition of one request from one share partition."""

    def __init__(
        self,
        ranges: InFlightRanges,
        limits: ShareLimits,
        member_id: str,
        deadline_ms: int,
        wanted: AcquireLimits,
    ) -> None:
        self.ranges: list[AcquiredRange] = []
        """The acquired records, as in the response."""
        self._in_flight = ranges
        self._limits = limits
        self._member_id = member_id
        self._deadline_ms = deadline_ms
        self._wanted = wanted
        self._left = wanted.max_records
        self._is_throttled = False

    @property
    def is_complete(self) -> bool:
        """True if no more records may be acquired."""
        return self._left <= 0 or self._is_throttled

    def acquire(self, first_offset: int, last_offset: int) -> bool:
        """Acquire the available records of a batch; return False if the request ends here."""
        end_offset = self._in_flight.end_offset
        room = self._limits.in_flight_max - self._in_flight.count
        if room > 0 and first_offset == end_offset and not self._wanted.is_exact:
            # Never delivered, so not throttled either.
            self._in_flight.acquire_next(last_offset, self._member_id, self._deadline_ms)
            self._add(AcquiredRange(first_offset, last_offset, 1))
            self._left -= last_offset - first_offset + 1
            return True
        if room > 0:
            extended = last_offset
            if self._wanted.is_exact:
                extended = min(last_offset, end_offset + room - 1)
            self._in_flight.extend(extended, DeliveryState.AVAILABLE)
        for each in self._in_flight.overlapping(first_offset, last_offset):
            if each.is_available and not self._acquire_from(each, first_offset, last_offset):
                return False
        return last_offset < self._in_flight.end_offset

    def _acquire_from(self, available: InFlightRange, first_offset: int, last_offset: int) -> bool:
        """Acquire the part of a range within these offsets; return False if the request ends
        here."""
        if available.delivery_count >= self._limits.delivery_count_max:
            self._in_flight.move(available, self._limits.archived_state)  # the limit was lowered
            return True
        first_offset = max(first_offset, available.first_offset)
        last_offset = min(last_offset, available.last_offset)
        size_max = self._throttled_size(available)
        if size_max is not None:
            if self.ranges:
                return False
            self._is_throttled = True
            last_offset = min(last_offset, first_offset + size_max - 1)
        if self._wanted.is_exact:
            last_offset = min(last_offset, first_offset + self._left - 1)
        for each in self._in_flight.between(first_offset, last_offset):
            each.state = DeliveryState.ACQUIRED
            each.delivery_count += 1
            each.member_id = self._member_id
            each.deadline_ms = self._deadline_ms
            self._add(AcquiredRange(each.first_offset, each.last_offset, each.delivery_count))
            self._left -= len(each)
        return not self._is_throttled and not (self._wanted.is_exact and self._left <= 0)

    def _throttled_size(self, available: InFlightRange) -> int | None:
        """Return the number of records to deliver of a range, or None if it has no limit."""
        count, count_max = available.delivery_count, self._limits.delivery_count_max
        if count < self._limits.throttled_count:
            return None
        if count_max > THROTTLED_COUNT_MIN and count >= count_max - 1:
            return 1
        return max(1, len(available) >> (count - self._limits.throttled_count + 1))

    def _add(self, added: AcquiredRange) -> None:
        """Add records to the response; continue its last range if they follow it."""
        last = self.ranges[-1] if self.ranges else None
        if (
            last is not None
            and last.last_offset + 1 == added.first_offset
            and last.delivery_count == added.delivery_count
            and (
                self._wanted.is_exact
                or last.last_offset - last.first_offset + 1 < self._wanted.batch_size
            )
        ):
            self.ranges[-1] = last._replace(last_offset=added.last_offset)
        else:
            self.ranges.append(added)
