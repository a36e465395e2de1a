"""Planning: from options to offset ranges, their size and number.

batch_ranges(options)      of a batch: fixed now, read at any time
resolved(…)                the offset of a bound, by partition
limited(…)                 end of a micro-batch
divided(…)                 ranges split into the requested number of tasks
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from kafkalite import TopicPartition
from pyspark_kafkalite.connector.offset_ranges import EARLIEST, LATEST, OffsetRange, Offsets
from pyspark_kafkalite.connector.source_options import OffsetBound, SourceOptions, source_options
from pyspark_kafkalite.connector.topic_offsets import RECORD_SIZE_ASSUMED, TopicOffsets

Sizes = Mapping[TopicPartition, float]
"""Approximate bytes per record."""


def batch_ranges(options: Mapping[str, str]) -> list[OffsetRange]:
    """Return the ranges a batch with these options reads now, one or more per partition."""
    read = source_options(options, stream=False)
    topics = TopicOffsets(read)
    try:
        return bounded(topics, read)
    finally:
        topics.close()


def bounded(topics: TopicOffsets, options: SourceOptions) -> list[OffsetRange]:
    """Return the ranges between the bounds of the options, divided into tasks."""
    partitions = topics.partitions()
    starts = resolved(topics, options.starting, partitions, options)
    ends = resolved(topics, options.ending, partitions, options)
    ranges = []
    for place in partitions:
        if starts[place] > ends[place]:
            raise ValueError(
                f"{options.starting.option} is after {options.ending.option}: partition"
                f" {place.partition} of topic {place.topic!r} would be read from {starts[place]} to"
                f" {ends[place]}."
            )
        if starts[place] < ends[place]:
            ranges.append(ranged(place, starts[place], ends[place], topics))
    return divided(ranges, options, topics)


def ranged(place: TopicPartition, start: int, end: int, topics: TopicOffsets) -> OffsetRange:
    """Return a range with its topic id."""
    return OffsetRange(*place, start, end, topics.ids.get(place.topic))


# Bounds.


def resolved(
    topics: TopicOffsets,
    place: OffsetBound,
    partitions: Collection[TopicPartition],
    options: SourceOptions,
) -> Offsets:
    """Return the offset of a bound, by partition."""
    if place.group:
        group = options.commit_group or options.settings["group.id"]
        found = topics.committed(group, partitions)
        return {**topics.earliest(set(partitions) - found.keys()), **found}
    values = spread(place, partitions)
    if place.timed:
        return timed(topics, place, values, options)
    first = topics.earliest(each for each, at in values.items() if at == EARLIEST)
    last = topics.latest(each for each, at in values.items() if at == LATEST)
    return {**values, **first, **last}


def spread(place: OffsetBound, partitions: Collection[TopicPartition]) -> Offsets:
    """Return a bound's values by partition; raise ValueError unless it names exactly these."""
    if place.everywhere is not None:
        return dict.fromkeys(partitions, place.everywhere)
    topics = place.topics or {}
    specified = {each: topics[each.topic] for each in partitions if each.topic in topics}
    specified |= place.offsets or {}
    unknown = sorted(specified.keys() - set(partitions)) + sorted(
        TopicPartition(topic, 0) for topic in topics.keys() - {each.topic for each in partitions}
    )
    missing = sorted(set(partitions) - specified.keys())
    for wrong, words in ((missing, "lacks"), (unknown, "has unknown partitions:")):
        if wrong:
            named = ", ".join(f"{topic} {partition}" for topic, partition in wrong[:5])
            raise ValueError(
                f"{place.option} {words} {named}{', …' if len(wrong) > 5 else ''}; specify"
                " exactly the partitions to read (-2 is the earliest offset, -1 the latest)."
            )
    return specified


def timed(
    topics: TopicOffsets, place: OffsetBound, times: Offsets, options: SourceOptions
) -> Offsets:
    """Return the first offsets at or after these times."""
    found = topics.at(times)
    late = [each for each, offset in found.items() if offset < 0]
    if late and place is options.starting and options.timestamp_strategy == "error":
        topic, partition = min(late)
        raise ValueError(
            f"{place.option}: partition {partition} of topic {topic!r} has no record at or after"
            f" timestamp {times[TopicPartition(topic, partition)]}.  To start at its end, set"
            " startingOffsetsByTimestampStrategy to latest."
        )
    return {**found, **topics.latest(late)}


# Size of a micro-batch.


def limited(starts: Offsets, ends: Offsets, options: SourceOptions, sizes: Sizes | None) -> Offsets:
    """Return the ends, reduced to the limits on offsets and bytes.

    Each partition gets a share in proportion to its backlog, and at least one offset.
    """
    counts = {place: max(0, end - starts[place]) for place, end in ends.items()}
    shares = dict(counts)
    total = sum(counts.values())
    if options.offsets_max is not None and total > options.offsets_max:
        shares = {place: part(count, options.offsets_max, total) for place, count in counts.items()}
    if sizes is not None:
        weight = sum(shares[place] * sizes[place] for place in counts)
        if weight > options.bytes_max:
            total = math.ceil(weight)
            shares = {
                place: part(count, options.bytes_max, total) for place, count in shares.items()
            }
    return {place: starts[place] + share if counts[place] else ends[place]
            for place, share in shares.items()}  # fmt: skip


def part(count: int, limit: int, total: int) -> int:
    """Return the share of `count` when `total` is reduced to `limit`."""
    return min(count, max(1, count * limit // total)) if count else 0


# Number of tasks.


def divided(
    ranges: Sequence[OffsetRange], options: SourceOptions, topics: TopicOffsets
) -> list[OffsetRange]:
    """Return the non-empty ranges, split by maxRecordsPerPartition and minPartitions.

    Ranges with the most bytes are split first.
    """
    cut = [each for each in ranges if each.span > 0]
    if options.records_max is not None:
        cut = [one for each in cut for one in parts(each, -(-each.span // options.records_max))]
    wanted = options.partitions_min
    if wanted is None or len(cut) >= wanted or not cut:
        return cut
    places = {TopicPartition(each.topic, each.partition) for each in cut}
    sizes = topics.record_sizes(places) or dict.fromkeys(places, RECORD_SIZE_ASSUMED)
    weights = [each.span * sizes[TopicPartition(each.topic, each.partition)] for each in cut]
    share = sum(weights) / wanted
    # Small ranges are not split; the large ones share the remaining tasks.
    small = [weight for weight in weights if weight < share]
    large = sum(weights) - sum(small)
    left = max(1, wanted - len(small))
    counts = [1 if weight < share else max(1, round(weight / large * left)) for weight in weights]
    return [one for each, count in zip(cut, counts, strict=True) for one in parts(each, count)]


def parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Return a range in `count` parts of about equal size, at most one per offset."""
    count = min(count, whole.span)
    bounds = [whole.start + whole.span * part // count for part in range(count + 1)]
    return [
        whole._replace(start=start, end=end) for start, end in zip(bounds, bounds[1:], strict=False)
    ]
