"""ReplicaManager: the partitions of this node; append, read and flush across them.

It finds partitions and loops over them, no more: what concerns one partition is Partition's.

After a tick's appends `settle` runs once: index entries go to disk, one group commit takes all that
must be flushed, high watermarks move, and what waited in purgatory is looked at again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite.broker.counts import Traffic
from kafkalite.broker.partition import READ_COMMITTED, Partition
from kafkalite.broker.purgatory import Purgatory, Timers
from kafkalite.config.settings import Settings, Source
from kafkalite.config.topic import (
    DURABILITY,
    FLUSH_BYTES,
    FLUSH_MESSAGES,
    FLUSH_MS,
    LONG_MAX,
)
from kafkalite.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.metrics import Histogram

if TYPE_CHECKING:
    from kafkalite.coordination.image import TopicImage
    from kafkalite.storage.flusher import Flush, Flusher
    from kafkalite.storage.log import Log


log = logging.getLogger("kafkalite.broker")

FLUSH_AGAIN_MS = 1_000
"""How long a flush for which there was no descriptor is put off."""

Topic = str | bytes
"""How a request names a topic: by its name, or by its id of 16 bytes."""


class FetchItem(NamedTuple):
    """One partition of a fetch: found or not, and from where to read it."""

    topic: Topic
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
        """Whether reading this item would give anything."""
        return self.checked().readable(self.offset, isolation_level)

    def available(self, isolation_level: int) -> int:
        """How many bytes reading this item would give."""
        return self.checked().available(self.offset, self.size_max, isolation_level)


class Fetched(NamedTuple):
    """The answers of a fetch, item by item as the wire wants them, and what they add up to."""

    topics: list[Any]
    size: int
    any_fault: bool
    sizes: list[tuple[Traffic, int]]
    """Whose bytes these are: counted when they go out, since a fetch that waits is read anew."""


class FlushRule(NamedTuple):
    """How much of a partition may wait for the disk, where a flush does not follow each append."""

    messages_max: int
    bytes_max: int
    ms_max: int


def flush_rule(settings: Settings) -> FlushRule | None:
    """The rule of a topic; None where only the kernel decides.

    With `os` Kafka's two flush keys count where somebody has set them, as they do in Kafka.
    """
    durability = settings[DURABILITY]
    if durability == "interval":
        return FlushRule(settings[FLUSH_MESSAGES], settings[FLUSH_BYTES], settings[FLUSH_MS])
    chosen = [key for key in (FLUSH_MESSAGES, FLUSH_MS) if settings.source(key) != Source.DEFAULT]
    if durability == "fsync" or not chosen:
        return None
    return FlushRule(
        settings[FLUSH_MESSAGES],
        LONG_MAX,
        settings[FLUSH_MS] if FLUSH_MS in chosen else LONG_MAX,
    )


class ReplicaManager:
    """The partitions of a node; see the module."""

    def __init__(
        self,
        timers: Timers,
        flusher: Flusher,
        topic_image: Callable[[Topic], TopicImage | None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.purgatory = Purgatory(timers)
        self._topic_image = topic_image
        self._timers = timers
        self._flusher = flusher
        self._topics: dict[Topic, dict[int, Partition]] = {}
        self._offline: dict[tuple[Topic, int], tuple[bytes, KafkaError]] = {}
        self._dirty: dict[Partition, None] = {}
        self._flush_rules: dict[Partition, FlushRule | None] = {}
        self._retiring: dict[Partition, Callable[[], object]] = {}
        self.flush_times = Histogram()
        """From a flush's beginning until it was collected."""
        self._now_ns = now_ns
        self.traffic: dict[str, Traffic] = {}
        """What was counted of each topic that is led here."""
        self.past_traffic = Traffic()
        """The same of topics that are led here no more, and of those that never were."""

    def __iter__(self) -> Iterator[Partition]:
        for topic, partitions in self._topics.items():
            if isinstance(topic, str):
                yield from partitions.values()

    # -- which partitions there are ----------------------------------------------------------

    def add(self, log: Log, leader_epoch: int, settings: Settings) -> Partition:
        """Lead the partition whose log this is."""
        traffic = self.traffic.setdefault(log.topic, Traffic())
        partition = Partition(log, leader_epoch, settings, traffic)
        for topic in (partition.topic, partition.topic_id):
            self._topics.setdefault(topic, {})[partition.index] = partition
            self._offline.pop((topic, partition.index), None)
        self.reconfigure(partition, settings)
        return partition

    def remove(self, partition: Partition) -> None:
        """It is deleted: what waits for it is answered, what comes for it is refused."""
        self._lead_no_more(partition)
        self._forget(partition, UnknownTopicOrPartition())

    def retire(self, partition: Partition, then: Callable[[], object]) -> None:
        """Another node leads it: what comes is refused, and `then()` called once all that was
        written to it is flushed as was promised, and answered."""
        self._lead_no_more(partition)
        self._retiring[partition] = then
        self.touched(partition)

    def _lead_no_more(self, partition: Partition) -> None:
        for topic in (partition.topic, partition.topic_id):
            del self._topics[topic][partition.index]
            if not self._topics[topic]:
                del self._topics[topic]
        if partition.topic not in self._topics:
            self.past_traffic.add(self.traffic.pop(partition.topic))

    def _forget(self, partition: Partition, fault: KafkaError) -> None:
        self._dirty.pop(partition, None)
        self._flush_rules.pop(partition, None)
        partition.fault = fault
        self.purgatory.wake(partition)

    def _retire(self) -> None:
        for partition, then in list(self._retiring.items()):
            log = partition.log
            unsafe = partition.flushes_always and log.durable_offset < log.end_offset
            if not partition.flushing and not unsafe:
                del self._retiring[partition]
                self._forget(partition, NotLeaderOrFollower())
                then()

    def traffic_of(self, topic: Topic) -> Traffic:
        """Where to count what befalls a topic, known here or not."""
        if isinstance(topic, bytes):
            image = self._topic_image(topic)
            topic = image.name if image is not None else ""
        return self.traffic.get(topic, self.past_traffic)

    def take_offline(self, topic: str, topic_id: bytes, index: int, fault: KafkaError) -> bool:
        """Answer `fault` to whoever asks for this partition, whose log cannot be made; whether
        this is news."""
        news = (topic, index) not in self._offline
        self._offline[topic, index] = self._offline[topic_id, index] = (topic_id, fault)
        return news

    @property
    def offline_count(self) -> int:
        """How many partitions of this node cannot be served."""
        absent = sum(isinstance(topic, str) for topic, _ in self._offline)
        return absent + sum(partition.log.fault is not None for partition in self)

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether a partition of this node cannot be served: its log is not there, or damaged."""
        partition = self._topics.get(topic, {}).get(index)
        if partition is None:
            return (topic, index) in self._offline
        return partition.log.fault is not None

    def offline(self, topic: str) -> set[int]:
        """The partitions of a topic for which `is_offline` holds."""
        led = self._topics.get(topic, {})
        found = {index for index, partition in led.items() if partition.log.fault is not None}
        return found | {index for name, index in self._offline if name == topic}

    def forget_offline(self, topic_id: bytes) -> None:
        """The topic is deleted."""
        for key in [key for key, (of, _) in self._offline.items() if of == topic_id]:
            del self._offline[key]

    def of_topic(self, topic_id: bytes) -> dict[int, Partition]:
        """The topic's partitions led here, by number."""
        return self._topics.get(topic_id, {})

    def reconfigure(self, partition: Partition, settings: Settings) -> None:
        """Take a topic's new settings for one of its partitions."""
        partition.reconfigure(settings)
        self._flush_rules[partition] = flush_rule(settings)
        if partition.waiting:
            self.touched(partition)  # a weaker promise may hold already

    def leader(self, topic: Topic, index: int) -> Partition:
        """The partition, led here, by its topic's name or id.

        Raises UnknownTopicOrPartition, UnknownTopicId for an id that nobody has,
        NotLeaderOrFollower for a partition of another node, or why the partition is offline.
        """
        partitions = self._topics.get(topic)
        partition = partitions.get(index) if partitions else None
        if partition is None:
            raise self._why_absent(topic, index)
        return partition

    def _why_absent(self, topic: Topic, index: int) -> KafkaError:
        if (topic, index) in self._offline:
            return self._offline[topic, index][1].again()
        image = self._topic_image(topic)
        if image is None:
            return UnknownTopicId() if isinstance(topic, bytes) else UnknownTopicOrPartition()
        return NotLeaderOrFollower() if index in image.partitions else UnknownTopicOrPartition()

    # -- reading -----------------------------------------------------------------------------

    def fetch(self, items: Sequence[FetchItem], size_max: int, isolation_level: int) -> Fetched:
        """Read each item in turn until `size_max` bytes are found.

        The first batch found is given whole however large it is, so that a consumer with small
        limits always gets on (KIP-74).
        """
        topics: list[Any] = []
        sizes: list[tuple[Traffic, int]] = []
        found = 0
        any_fault = False
        aborted = () if isolation_level == READ_COMMITTED else None
        topic: Topic | None = None
        entries: list[Any] = []
        for item in items:
            if item.topic != topic:
                topic, entries = item.topic, []
                topics.append((topic, entries))
            try:
                partition = item.checked()
                diverging = _diverging(partition, item)
                records = None
                if diverging is None:
                    records = partition.read(
                        item.offset,
                        max(0, min(item.size_max, size_max - found)),
                        isolation_level,
                        whole_first=not found,
                    )
            except KafkaError as fault:
                any_fault = True
                entries.append(_refused(item, fault))
                continue
            if records is not None:
                found += records.size
                sizes.append((partition.traffic, records.size))
            any_fault = any_fault or diverging is not None
            entries.append(
                (
                    item.index,
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
        return Fetched(topics, found, any_fault, sizes)

    # -- the end of the tick -----------------------------------------------------------------

    def touched(self, partition: Partition) -> None:
        """This partition was appended to, or its bounds moved, in this tick."""
        self._dirty[partition] = None

    def settle(self) -> None:
        """Finish the tick's appends; see the module."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        flushes: list[Flush] = []
        for partition in dirty:
            partition.log.settle()
            if partition.flushes_always:
                self._flush(partition, flushes)
            elif (rule := self._flush_rules[partition]) is not None:
                self._flush_by_rule(partition, rule, flushes)
            partition.advance()
            self.purgatory.wake(partition)
        if flushes:
            self._flusher.submit(flushes)
        if self._retiring:
            self._retire()

    def flushed(self, partition: Partition, flush: Flush, began_ns: int) -> None:
        """A flush came back whole."""
        self.flush_times.add(self._now_ns() - began_ns)
        partition.flushing = False
        partition.log.flush_end(flush)
        if partition.fault is not None:
            return
        if partition.advance():
            self.purgatory.wake(partition)
        if partition in self._retiring or (
            partition.log.durable_offset < partition.log.end_offset
        ):
            # What came meanwhile is flushed now, or gets its time.
            self.touched(partition)

    def _flush(self, partition: Partition, flushes: list[Flush]) -> None:
        if partition.flushing or partition.fault is not None:
            return
        try:
            flush = partition.log.flush_begin()
        except KafkaStorageError as fault:
            log.warning("%s", fault)
            partition.flushing = True
            self._timers.call_later(FLUSH_AGAIN_MS, lambda: self._flush_again(partition))
            return
        if flush is not None:
            partition.flushing = True
            began_ns = self._now_ns()
            flush.done = lambda flush: self.flushed(partition, flush, began_ns)
            flushes.append(flush)

    def _flush_again(self, partition: Partition) -> None:
        partition.flushing = False
        if partition.fault is None:
            self.touched(partition)

    def _flush_by_rule(
        self, partition: Partition, rule: FlushRule, flushes: list[Flush]
    ) -> None:
        log = partition.log
        unflushed = log.end_offset - log.durable_offset
        if unflushed >= rule.messages_max or log.unflushed_size >= rule.bytes_max:
            self._flush(partition, flushes)
        elif partition.flush_timer is None:
            partition.flush_timer = self._timers.call_later(
                rule.ms_max, lambda: self._flush_by_time(partition)
            )

    def _flush_by_time(self, partition: Partition) -> None:
        partition.flush_timer = None
        flushes: list[Flush] = []
        self._flush(partition, flushes)
        if flushes:
            self._flusher.submit(flushes)


def _diverging(partition: Partition, item: FetchItem) -> tuple[int, int] | None:
    # KIP-595: a reader whose last epoch ended earlier here must truncate to that end first.
    if item.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.log.end_of_epoch(item.last_fetched_epoch)
    if end_offset < 0:
        raise OffsetOutOfRange("The last fetched epoch never was here.")
    if epoch == item.last_fetched_epoch and end_offset >= item.offset:
        return None
    return epoch, end_offset


def _refused(item: FetchItem, fault: KafkaError) -> tuple[Any, ...]:
    # What is not here has an empty list of aborted transactions, what is here none: as in Kafka.
    aborted = () if item.partition is None else None
    return (item.index, fault.code, -1, -1, -1, aborted, -1, None, None, None)
