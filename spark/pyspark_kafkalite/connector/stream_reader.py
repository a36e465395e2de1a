"""Stream reader: ends of micro-batches, and detection of lost or changed partitions.

Spark keeps one reader per query, in a process beside the driver, and calls

    initialOffset                 for a new query; otherwise the checkpoint has the offsets
    latestOffset(start, limit)    every 10 ms while idle; without new records it waits POLL_S
    partitions(start, end)        again after a crash, with the offsets of the checkpoint
    commit(end)                   after a micro-batch, once the next one has been planned

A new query that starts at the latest offsets runs an empty micro-batch first, so that its
checkpoint has these offsets and a crash does not make it start at later ones.

Left out: detection by a restarted query that a topic was recreated while it did not run.  A
checkpoint has the offset format of Spark's Kafka source, which has no topic id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from pyspark_kafkalite.connector import range_planning
from pyspark_kafkalite.connector.columns import work_of
from pyspark_kafkalite.connector.offset_ranges import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    offsets_from_json,
    offsets_to_json,
)
from pyspark_kafkalite.connector.range_batches import DataLoss
from pyspark_kafkalite.connector.range_partition import RangePartition, read_range
from pyspark_kafkalite.connector.source_options import OffsetBound, boolean, source_options
from pyspark_kafkalite.connector.topic_offsets import RECORD_SIZE_ASSUMED, TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite import TopicPartition

POLL_S = 0.1
"""Seconds that latestOffset waits for new records before it reports none."""

POLL_INTERVAL_S = 0.01
SIZES_MAX_AGE_S = 60.0
"""Seconds for which the measured record sizes are used while micro-batches are small."""

LAG_S = 2.0
"""Seconds a partition must be missing before it counts as deleted."""

PARTITIONS_S = 0.5
"""Interval in seconds at which partitions are listed, and so new and lost ones detected."""

ADVICE = "To continue without these records, set the option failOnDataLoss to false."
ADVICE_RECREATED = (
    "Its offsets start at 0 again: start the query with a new checkpoint.  With"
    " failOnDataLoss=false a running query continues."
)

log = logging.getLogger("pyspark_kafkalite")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream; executors use only `read`."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = source_options(options, stream=True)
        ranges_only = boolean(options, "rangesOnly", False)
        self._pipeline = None if ranges_only else work_of(options)
        self._open_topics: TopicOffsets | None = None
        self._initial: dict[str, Any] | None = None
        """First offsets of a new query."""
        self._frozen: Offsets | None = None
        """Ends of a query with Trigger.AvailableNow."""
        self._ends: Offsets = {}
        """Last known ends of the partitions, without limits."""
        self._sizes: dict[TopicPartition, float] = {}
        self._sized_s = float("-inf")
        """Time of the last measurement of record sizes."""
        self._ids: dict[str, bytes] = {}
        """Topic ids known to this query."""
        self._recreated: set[str] = set()
        """Topics that were recreated since the last micro-batch."""
        self._partitions: set[TopicPartition] = set()
        self._listed_at_s = float("-inf")
        """Time when partitions were last listed."""
        self._batch_s = float("-inf")
        """Time when the last micro-batch was started."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_topics": None}

    @property
    def _topics(self) -> TopicOffsets:
        if self._open_topics is None:
            self._open_topics = TopicOffsets(self._options)
        return self._open_topics

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:
        partitions = self._topics.partitions(missing_ok=bool(self._options.pattern))
        found = range_planning.resolved(
            self._topics, self._options.starting, partitions, self._options
        )
        self._initial = offsets_to_json(found)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = offsets_from_json(start)
        unlimited = isinstance(limit, ReadAllAvailable)
        if start == self._initial and is_resolved_later(self._options.starting) and not unlimited:
            self._initial = None
            return start
        until_s = time.monotonic() + POLL_S
        while True:
            ends = self._current_ends(begin)
            found = self._bounded(begin, ends, unlimited=unlimited)
            if found != begin or self._frozen is not None or time.monotonic() > until_s:
                return offsets_to_json(found)
            time.sleep(POLL_INTERVAL_S)

    def _current_ends(self, begin: Offsets) -> Offsets:
        """Return the current ends of all partitions; raise DataLoss for what is gone."""
        self._ends = ends = self._latest(begin)
        missing = sorted(begin.keys() - ends.keys())
        if missing:
            self._report_loss(f"{named(missing)} were deleted")
        for place in sorted(begin.keys() & ends.keys()):
            if ends[place] < begin[place] and place.topic not in self._recreated:
                self._report_loss(
                    f"the end of partition {place.partition} of topic {place.topic!r} went back"
                    f" from {begin[place]} to {ends[place]}"
                )
        if self._frozen is None:
            return ends
        self._check_frozen(ends)
        # A micro-batch repeated from a checkpoint may end after these.
        frozen = {place: max(end, begin.get(place, end)) for place, end in self._frozen.items()}
        return {**{place: begin[place] for place in begin.keys() & ends.keys()}, **frozen}

    def _latest(self, begin: Offsets) -> Offsets:
        """Return the ends of all partitions.

        The partitions are listed at intervals, and when an expected one is missing.
        """
        topics, now_s = self._topics, time.monotonic()
        if now_s - self._listed_at_s > PARTITIONS_S or begin.keys() - self._partitions:
            until_s = now_s + LAG_S
            while True:
                self._partitions = set(topics.partitions(missing_ok=True))
                # A node with old metadata may not know all of them yet.
                if not begin.keys() - self._partitions or time.monotonic() > until_s:
                    break
                time.sleep(POLL_S)
            self._listed_at_s = time.monotonic()
            self._check_recreated(topics.ids)
        found = topics.at_once(dict.fromkeys(self._partitions, LATEST), PARTITIONS_S)
        if found is None:
            self._listed_at_s = float("-inf")
            self._partitions = set(topics.partitions(missing_ok=True))
            found = topics.latest(self._partitions)
        return found

    def _check_frozen(self, ends: Offsets) -> None:
        """Raise DataLoss if records of an AvailableNow query that existed at its start are gone."""
        assert self._frozen is not None
        gone = sorted(self._frozen.keys() - ends.keys())
        short = sorted(place for place, end in self._frozen.items() if end > ends.get(place, end))
        for places, words in ((gone, "were deleted"), (short, "were truncated")):
            if places:
                raise DataLoss(f"{named(places)} {words} since this run of Trigger.AvailableNow"
                               " started; restart the query to read what remains.")  # fmt: skip

    def _check_recreated(self, ids: Mapping[str, bytes]) -> None:
        """Detect topics that were deleted and recreated."""
        for topic, topic_id in ids.items():
            if self._ids.setdefault(topic, topic_id) != topic_id:
                self._report_loss(f"topic {topic!r} was deleted and recreated", ADVICE_RECREATED)
                self._recreated.add(topic)
                self._ids[topic] = topic_id

    def _bounded(self, begin: Offsets, ends: Offsets, *, unlimited: bool) -> Offsets:
        """Return the ends within the limits; `begin` while there are fewer than the minimum."""
        new = set(ends) - set(begin) | {place for place in ends if place.topic in self._recreated}
        starts = {place: begin[place] for place in ends.keys() - new} | self._firsts(new)
        ends = {place: end for place, end in ends.items() if place in starts}
        count = sum(max(0, end - starts[place]) for place, end in ends.items())
        now_s = time.monotonic()
        options = self._options
        if unlimited:
            return ends
        if (
            0 < count < (options.offsets_min or 0)
            and self._frozen is None
            and now_s - self._batch_s < options.delay_s
        ):
            return begin
        if count:
            self._batch_s = now_s
        return range_planning.limited(starts, ends, options, self._record_sizes(ends, count))

    def _record_sizes(self, ends: Offsets, count: int) -> dict[TopicPartition, float] | None:
        """Return record sizes if maxBytesPerTrigger may apply to this many records, else None."""
        if not count:
            return None
        most = max(self._sizes.values(), default=0.0)
        now_s = time.monotonic()
        if (
            ends.keys() <= self._sizes.keys()
            and count * most < self._options.bytes_max // 2
            and now_s - self._sized_s < SIZES_MAX_AGE_S
        ):
            return None
        found = self._topics.record_sizes(ends)
        if found is None:
            return {place: self._sizes.get(place, RECORD_SIZE_ASSUMED) for place in ends}
        self._sizes, self._sized_s = found, now_s
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offsets_to_json(self._ends) if self._ends else None

    def prepareForTriggerAvailableNow(self) -> None:
        missing_ok = bool(self._options.pattern) or not self._options.fail_on_data_loss
        self._frozen = self._topics.latest(self._topics.partitions(missing_ok=missing_ok))

    # Micro-batches.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, ends = offsets_from_json(start), offsets_from_json(end)
        if not self._topics.ids:
            self._topics.partitions(missing_ok=True)  # a micro-batch is repeated after a crash
            self._ids = dict(self._topics.ids)
        new = [place for place in ends if place not in begin or place.topic in self._recreated]
        first = self._firsts(new)
        late = sorted(
            place for place, at in first.items() if at > 0 and place.topic not in self._recreated
        )
        if late and start != self._initial:
            self._report_loss(f"{named(late)} are new and do not begin at offset 0")
        begin = {**begin, **first}
        self._recreated.clear()
        ranges: list[OffsetRange] = []
        for place in sorted(ends.keys() & begin.keys()):
            until = ends[place]
            if begin[place] > until and place in first:
                self._report_loss(
                    f"the log of partition {place.partition} of topic {place.topic!r} begins at"
                    f" {begin[place]}, after its former end {until}"
                )
            if begin[place] < until:
                ranges.append(range_planning.ranged(place, begin[place], until, self._topics))
        return [
            RangePartition(each)
            for each in range_planning.divided(ranges, self._options, self._topics)
        ]

    def _firsts(self, new: Collection[TopicPartition]) -> Offsets:
        """Return the first offsets of new partitions, without those that were deleted."""
        if not new:
            return {}
        found = self._topics.at_once(dict.fromkeys(new, EARLIEST), LAG_S)
        if found is None:
            there = self._topics.partitions(missing_ok=True)
            if gone := sorted(set(new) - set(there)):
                self._report_loss(f"{named(gone)} were deleted")
            found = self._topics.earliest(set(new) & set(there))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._pipeline)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.commit_group:
            self._topics.commit(self._options.commit_group, offsets_from_json(end))

    def stop(self) -> None:
        if self._open_topics is not None:
            self._open_topics.close()
            self._open_topics = None

    def _report_loss(self, what: str, advice: str = ADVICE) -> None:
        """Raise DataLoss or log a warning, as failOnDataLoss says."""
        if self._options.fail_on_data_loss:
            raise DataLoss(f"Records may have been missed: {what}.  {advice}")
        log.warning("Records may have been missed: %s.", what)


def is_resolved_later(place: OffsetBound) -> bool:
    """Return whether a bound may resolve to other offsets later."""
    values = (place.everywhere, *(place.offsets or {}).values(), *(place.topics or {}).values())
    return place.timed or place.group or LATEST in values


def named(places: list[TopicPartition]) -> str:
    """Return partitions for a message, the first five by name."""
    words = ", ".join(f"{topic} {partition}" for topic, partition in places[:5])
    return f"partitions {words}{', …' if len(places) > 5 else ''}"
