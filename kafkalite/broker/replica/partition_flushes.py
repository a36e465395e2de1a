"""PartitionFlushes: the flushes of partitions' logs, one group commit a tick.

    collect(partition)  for each partition that changed in this tick: begins the flush that is due
    submit()            at the end of the tick: all begun flushes together

With durability `fsync` a flush follows each append, one at a time for each log; with `interval` and
Kafka's flush keys it follows a number of records or bytes, or a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from kafkalite.config.settings import Settings, Source
from kafkalite.config.topic import FLUSH_BYTES, FLUSH_MESSAGES, FLUSH_MS, LONG_MAX
from kafkalite.errors import KafkaError, KafkaStorageError
from kafkalite.metrics import Histogram
from kafkalite.storage.state.durability import Durability

if TYPE_CHECKING:
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.log.log_flushes import LogFlush

log = logging.getLogger("kafkalite.broker")

FLUSH_RETRY_MS = 1_000
"""Delay before a flush that failed for lack of a descriptor is retried."""


class FlushRule(NamedTuple):
    """Limits on a partition's unflushed records, if it is not flushed after each append."""

    messages_max: int
    bytes_max: int
    ms_max: int


def flush_rule(settings: Settings) -> FlushRule | None:
    """Return the flush rule of a topic, or None if it has none.

    With durability `fsync` every append is flushed; with `os` flushing is left to the kernel,
    unless one of Kafka's two flush keys is set explicitly, which then applies as in Kafka.
    """
    durability = Durability.of(settings)
    if durability is Durability.INTERVAL:
        return FlushRule(settings[FLUSH_MESSAGES], settings[FLUSH_BYTES], settings[FLUSH_MS])
    chosen = [key for key in (FLUSH_MESSAGES, FLUSH_MS) if settings.source(key) != Source.DEFAULT]
    if durability.flushes_each_append or not chosen:
        return None
    return FlushRule(
        settings[FLUSH_MESSAGES],
        LONG_MAX,
        settings[FLUSH_MS] if FLUSH_MS in chosen else LONG_MAX,
    )


class FlushedPartition(Protocol):
    """A partition whose log is flushed."""

    log: Log
    error: KafkaError | None
    """Set once the partition is not served any more."""
    flushes_always: bool
    flushing: bool
    """True while a flush, or its retry, is pending."""
    flush_timer: object | None


P = TypeVar("P", bound=FlushedPartition)


class PartitionFlushes(Generic[P]):
    """The flushes of one kind of partitions; see the module."""

    def __init__(
        self,
        flusher: Flusher,
        scheduler: Scheduler,
        *,
        on_flushed: Callable[[P], object],
        on_log_failed: Callable[[P], object],
        mark_dirty: Callable[[P], object],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`mark_dirty` has a partition collected at the end of the tick."""
        self._flusher = flusher
        self._scheduler = scheduler
        self._on_flushed = on_flushed
        self._on_log_failed = on_log_failed
        self._mark_dirty = mark_dirty
        self._now_ns = now_ns
        self._rules: dict[P, FlushRule | None] = {}
        self._begun: list[LogFlush] = []
        self.times = Histogram()
        """Time from the start of a flush until it was collected."""

    def reconfigure(self, partition: P, settings: Settings) -> None:
        """Apply topic settings to a partition, which is added by that."""
        self._rules[partition] = flush_rule(settings)

    def remove(self, partition: P) -> None:
        """Remove a partition; a flush that runs ends without effect on others."""
        self._rules.pop(partition, None)

    def collect(self, partition: P) -> None:
        """Begin the flush of a partition that is due, if any."""
        if partition.flushes_always:
            self._begin(partition)
        elif (rule := self._rules[partition]) is not None:
            self._begin_by_rule(partition, rule)

    def submit(self) -> None:
        """Run the flushes that were begun."""
        if self._begun:
            begun, self._begun = self._begun, []
            self._flusher.submit(begun)

    def ended(self, partition: P, flush: LogFlush, start_ns: int) -> None:
        """Complete a flush."""
        self.times.add(self._now_ns() - start_ns)
        partition.flushing = False
        try:
            partition.log.flush_end(flush)
        except KafkaStorageError as error:
            self._schedule_retry(partition, error)
            return
        if partition.error is not None:
            return
        if partition.log.failure is not None:
            self._on_log_failed(partition)
            return
        self._on_flushed(partition)

    def _begin(self, partition: P) -> None:
        if partition.flushing or partition.error is not None:
            return
        try:
            flush = partition.log.flush_begin()
        except KafkaStorageError as error:
            self._schedule_retry(partition, error)
            return
        if flush is not None:
            partition.flushing = True
            start_ns = self._now_ns()
            flush.done = lambda flush: self.ended(partition, flush, start_ns)
            self._begun.append(flush)

    def _schedule_retry(self, partition: P, error: KafkaStorageError) -> None:
        log.warning(
            "Log could not be flushed; retrying. partition=%s retry_ms=%d error=%r",
            partition, FLUSH_RETRY_MS, str(error),
        )  # fmt: skip
        partition.flushing = True
        self._scheduler.call_later(FLUSH_RETRY_MS, lambda: self._retry(partition))

    def _retry(self, partition: P) -> None:
        partition.flushing = False
        if partition.error is None:
            self._mark_dirty(partition)

    def _begin_by_rule(self, partition: P, rule: FlushRule) -> None:
        found = partition.log
        unflushed = found.end_offset - found.durable_offset
        if unflushed >= rule.messages_max or found.unflushed_size >= rule.bytes_max:
            self._begin(partition)
        elif partition.flush_timer is None:
            partition.flush_timer = self._scheduler.call_later(
                rule.ms_max, lambda: self._flush_when_due(partition)
            )

    def _flush_when_due(self, partition: P) -> None:
        partition.flush_timer = None
        self._begin(partition)
        self.submit()
