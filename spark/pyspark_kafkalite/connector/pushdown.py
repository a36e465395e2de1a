"""Filter pushdown: filters on partition, topic, offset or timestamp that exclude offsets.

Spark still applies each filter to each record; pushdown only saves reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from kafkalite import TopicPartition
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.topic_offsets import TopicOffsets

RangeFilter = Callable[[list[OffsetRange], TopicOffsets], list[OffsetRange]]

COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda at, value: at == value,
    EqualNullSafe: lambda at, value: at == value,
    GreaterThan: lambda at, value: at > value,
    GreaterThanOrEqual: lambda at, value: at >= value,
    LessThan: lambda at, value: at < value,
    LessThanOrEqual: lambda at, value: at <= value,
    In: lambda at, value: at in value,
}


def bound_of(each: Any, decoded_names: Collection[str]) -> RangeFilter | None:
    """Return a function that excludes offsets by a Filter, or None if it excludes none.

    A decoded column may have the name of a record's column that is not read.
    """
    compared = COMPARED.get(type(each))
    if compared is None or len(each.attribute) != 1 or each.attribute[0] in decoded_names:
        return None
    name, value = each.attribute[0], each.value
    values = value if isinstance(each, In) else [value]
    if not values or any(type(one) is not KINDS.get(name) for one in values):
        return None
    if name == "offset":
        return lambda ranges, topics: within(ranges, *offsets_within(type(each), value))
    if name == "timestamp":
        if type(each) not in SINCE:
            return None
        return lambda ranges, topics: since(ranges, topics, value)
    return lambda ranges, topics: [each for each in ranges if compared(getattr(each, name), value)]


KINDS = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
"""Columns by which ranges can be excluded, and the types they are compared with."""

SINCE = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)


def offsets_within(kind: type[Filter], value: Any) -> tuple[int, int]:
    """Return the offsets first ≤ offset < end that satisfy a comparison."""
    end = 1 << 63
    if kind is In:
        return min(value), max(value) + 1
    return {
        EqualTo: (value, value + 1),
        EqualNullSafe: (value, value + 1),
        GreaterThan: (value + 1, end),
        GreaterThanOrEqual: (value, end),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }[kind]


def within(ranges: Iterable[OffsetRange], first: int, end: int) -> list[OffsetRange]:
    """Return the ranges, cut to these offsets."""
    cut = [each._replace(start=max(each.start, first), end=min(each.end, end)) for each in ranges]
    return [each for each in cut if each.start < each.end]


def since(ranges: list[OffsetRange], topics: TopicOffsets, when: datetime) -> list[OffsetRange]:
    """Return the ranges without the offsets before the first record at or after a time."""
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    at_ms = (when - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    if at_ms <= 0:
        return ranges  # records without a timestamp count as before 1970
    places = {TopicPartition(each.topic, each.partition) for each in ranges}
    found = topics.at(dict.fromkeys(places, at_ms))
    cut = []
    for each in ranges:
        first = found[TopicPartition(each.topic, each.partition)]
        if first >= 0:
            cut += within([each], first, each.end)
    return cut
