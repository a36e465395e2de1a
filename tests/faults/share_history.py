"""History of a share group: deliveries and acknowledgements of its members, and their check.

A member that has acknowledged records without an error held them from the time it received them
until it sent the acknowledgement: otherwise the leader would have refused it.  Such a delivery is
called confirmed.  The outcome of all others is unknown: they may or may not have been acknowledged.

A leader counts each acquisition, but `acquire` is not written.  A killed process may therefore lose
the count of deliveries whose end was not written, and nothing else: a record may be delivered once
more with the same count for each killed process of the broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

ACCEPT, RELEASE, REJECT = "accept", "release", "reject"

RecordPlace: TypeAlias = tuple[int, int]
"""Partition and offset."""


@dataclass(eq=False)
class ShareDelivery:
    """A delivery of a record to a member; times are of the monotonic clock."""

    place: RecordPlace
    member: str
    count: int
    """The delivery count that the broker gave."""
    received_s: float
    kind: str = ""
    """The type of its acknowledgement, if one was sent."""
    sent_s: float = 0.0
    confirmed_s: float | None = None
    """The time of the response without an error."""

    def __str__(self) -> str:
        partition, offset = self.place
        outcome = "confirmed" if self.confirmed_s is not None else "not confirmed"
        return (
            f"offset {offset} of partition {partition}, delivery {self.count}, to {self.member} at"
            f" {self.received_s:.3f}, {self.kind or 'nothing'} {outcome}"
        )


def share_violations(
    deliveries: Iterable[ShareDelivery],
    acked: Iterable[RecordPlace],
    limit: int,
    broker_kills: int,
) -> Iterator[str]:
    """Yield what must not be: `acked` are the records whose producer was acknowledged."""
    by_place: dict[RecordPlace, list[ShareDelivery]] = defaultdict(list)
    for each in deliveries:
        by_place[each.place].append(each)
    lost = sorted({*acked} - by_place.keys())
    if lost:
        yield f"{len(lost)} records were never delivered: {lost[:5]}"
    for of_record in by_place.values():
        yield from beyond_the_limit(of_record, limit)
        yield from counted_twice(of_record, broker_kills)
        yield from contradictions([each for each in of_record if each.confirmed_s], limit)


def beyond_the_limit(of_record: Iterable[ShareDelivery], limit: int) -> Iterator[str]:
    for each in of_record:
        if not 1 <= each.count <= limit:
            yield f"the limit is {limit}: {each}"


def counted_twice(of_record: list[ShareDelivery], broker_kills: int) -> Iterator[str]:
    counts = Counter(each.count for each in of_record)
    for count, times in counts.items():
        if times > 1 + broker_kills:
            yield f"delivery {count} came {times} times, after {broker_kills} kills: {of_record[0]}"


def contradictions(confirmed: list[ShareDelivery], limit: int) -> Iterator[str]:
    """Yield pairs of confirmed deliveries of one record that cannot both be."""
    for before, after in pairwise(sorted(confirmed, key=lambda each: each.received_s)):
        if after.received_s < before.sent_s and before.received_s < after.sent_s:
            yield f"two members held a record at the same time: {before}; {after}"
        elif before.kind != RELEASE:
            yield f"a record came again after {before.kind}: {before}; {after}"
        elif after.count <= before.count:
            yield f"a delivery count went back: {before}; {after}"
        elif before.count >= limit:
            yield f"a record came again after the limit of {limit}: {before}; {after}"
