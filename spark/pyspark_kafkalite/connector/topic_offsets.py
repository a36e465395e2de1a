"""Partitions, offsets and log sizes of the topics that are read, from the cluster.

Runs where Spark plans: in a Python process on the driver, for a stream as long as the query.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from kafkalite import Admin, TopicPartition
from kafkalite.client import TopicMetadata
from kafkalite.errors import KafkaError, UnknownTopicOrPartition
from pyspark_kafkalite.connector.offset_ranges import EARLIEST, LATEST, Offsets
from pyspark_kafkalite.connector.source_options import SourceOptions

T = TypeVar("T")

RECORD_SIZE_ASSUMED = 1_000.0
"""Bytes per record if the broker does not report the sizes of its logs."""

SIZES_TIMEOUT_S = 2.0
"""Timeout in seconds for the requests that measure record sizes."""

COMMIT_TIMEOUT_S = 5.0
"""Timeout in seconds of a micro-batch's offset commit."""

log = logging.getLogger("pyspark_kafkalite")


class TopicOffsets:
    """Metadata and offsets of the partitions that the options select."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin = Admin(options.settings)
        self.ids: dict[str, bytes] = {}
        """Topic ids of the last metadata response."""

    def close(self) -> None:
        self._admin.close()

    def partitions(self, *, missing_ok: bool = False) -> list[TopicPartition]:
        """Return the partitions to read, sorted.

        Raises UnknownTopicOrPartition for a missing one, unless `missing_ok`.
        """
        found = self._retried(lambda: self._metadata_of_topics(missing_ok))
        metas = {name: topic for name, topic in found.items() if isinstance(topic, TopicMetadata)}
        self.ids = {name: topic.topic_id for name, topic in metas.items()}
        existing = [
            TopicPartition(name, number)
            for name, topic in metas.items()
            for number in topic.partitions
        ]
        if self._options.assign:
            unknown = set(self._options.assign) - set(existing)
            if unknown and not missing_ok:
                topic, partition = min(unknown)
                raise UnknownTopicOrPartition(f"assign: topic {topic!r} has no partition"
                                              f" {partition}.")  # fmt: skip
            existing = [each for each in self._options.assign if each in set(existing)]
        return sorted(existing)

    def _metadata_of_topics(self, missing_ok: bool) -> dict[str, TopicMetadata | KafkaError]:
        """Return the metadata of the topics; raise the error of one of them."""
        found = self._described()
        for error in found.values():
            if isinstance(error, KafkaError) and not (
                missing_ok and isinstance(error, UnknownTopicOrPartition)
            ):
                raise error
        return found

    def _described(self) -> dict[str, TopicMetadata | KafkaError]:
        options = self._options
        if options.pattern:
            matches = re.compile(options.pattern).fullmatch
            found = self._admin.list_topics()
            return {name: topic for name, topic in found.items() if matches(name)}
        names = options.subscribe or dict.fromkeys(topic for topic, _ in options.assign)
        return self._admin.describe_topics(names)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the log start offset of each partition."""
        return self.at(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the end of each partition, as visible at this isolation level."""
        return self.at(dict.fromkeys(partitions, LATEST))

    def at_once(self, times: Mapping[TopicPartition, int], timeout_s: float) -> Offsets | None:
        """Return the same as `at`; None after a retriable error that lasts for `timeout_s`."""
        wanted: dict[tuple[str, int], int] = dict(times.items())
        try:
            found = self._admin.list_offsets(wanted, timeout_s)
        except KafkaError as error:
            if not error.retriable:
                raise
            return None
        return {partition: each.offset for partition, each in found.items()}

    def at(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """Return the first offset at or after each time (ms since 1970), -1 if there is none."""
        wanted: dict[tuple[str, int], int] = dict(times.items())
        found = self._retried(lambda: self._admin.list_offsets(wanted))
        return {partition: each.offset for partition, each in found.items()}

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the committed offsets of a group, without partitions that have none."""
        found = self._retried(lambda: self._admin.committed_offsets(group, partitions))
        return {place: offset for place, offset in found.items() if offset is not None}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for monitoring; log errors instead of raising them."""
        try:
            self._admin.commit_offsets(group, dict(offsets.items()), COMMIT_TIMEOUT_S)
        except KafkaError as error:
            log.warning("Offset commit failed.  group=%r error=%s", group, error)

    def record_sizes(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, float] | None:
        """Return each log's approximate bytes per record; None if offsets are not available."""
        first, last = (
            self.at_once(dict.fromkeys(partitions, which), SIZES_TIMEOUT_S)
            for which in (EARLIEST, LATEST)
        )
        if first is None or last is None:
            return None
        try:
            sizes = self._admin.log_sizes({topic for topic, _ in partitions}, SIZES_TIMEOUT_S)
        except KafkaError as error:
            log.info(
                "Log sizes are not available; assuming %d bytes a record.  error=%s",
                RECORD_SIZE_ASSUMED,
                error,
            )
            sizes = {}
        found = dict.fromkeys(partitions, RECORD_SIZE_ASSUMED)
        for place in partitions:
            count = last[place] - first[place]
            if count and sizes.get(place):
                found[place] = sizes[place] / count
        return found

    def _retried(self, ask: Callable[[], T]) -> T:
        """Return the result of a request.

        Retries it fetchOffset.numRetries times at most, until the timeout of a call.
        """
        until_s = time.monotonic() + self._admin.default_timeout_s
        attempts_left = self._options.retries
        while True:
            try:
                return ask()
            except KafkaError as error:
                if not error.retriable or not attempts_left or time.monotonic() > until_s:
                    raise
                attempts_left -= 1
                time.sleep(self._options.retry_s)
