"""ReplicaManager: the partitions of this node, their lookup, flushes and retirement.

It finds partitions and iterates over them; logic about a single partition belongs to Partition.

After a tick's appends `settle` runs once: index entries are written, one group commit flushes all
partitions that need it, high watermarks advance, and delayed requests are checked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kafkalite._ext.record_batch import TRANSACTIONAL
from kafkalite.broker.future import Future
from kafkalite.broker.metadata_cache import Topic
from kafkalite.broker.replica.append_queue import AppendQueue
from kafkalite.broker.replica.isr import IsrRules
from kafkalite.broker.replica.offline_partitions import OfflinePartitions
from kafkalite.broker.replica.partition import Partition, ReplicationEnvironment
from kafkalite.broker.replica.partition_flushes import PartitionFlushes
from kafkalite.broker.replica.purgatory import Purgatory
from kafkalite.broker.replica.refused_batches import RefusedBatches
from kafkalite.broker.replica.transaction_verifier import RequestTransaction, TransactionVerifier
from kafkalite.broker.replica.verification_queue import VerificationQueue
from kafkalite.broker.request_metrics import TopicTraffic
from kafkalite.broker.security import DELETE, TOPIC, WRITE
from kafkalite.config.replication import REPLICA_LAG_TIME_MAX_MS
from kafkalite.config.settings import Settings
from kafkalite.config.topic import MIN_INSYNC_REPLICAS
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.results import PartitionAppendResult, new_tuple
from kafkalite.storage.files.disk import LogFilesLost
from kafkalite.storage.log.batch_validator import ATTRIBUTES_LOW
from kafkalite.storage.state.verification import NOT_REQUIRED, VerificationGuard

if TYPE_CHECKING:
    from kafkalite.broker.client_context import ClientContext
    from kafkalite.broker.replica.batch_opener import BatchOpener
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.coordination.image import TopicImage
    from kafkalite.coordination.partition_image import PartitionImage
    from kafkalite.records.control import TransactionMarker
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.log.log import Log, LogAppendResult


log = logging.getLogger("kafkalite.broker")

ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0

HIGH_WATERMARK = -1
"""In DeleteRecords: delete up to the high watermark."""

ADMIN_CLIENT_ID = "__admin_client"
"""As in Kafka, a client with this client id may write to internal topics."""


class ReplicaManager:
    """The partitions of a node; see the module."""

    def __init__(
        self,
        scheduler: Scheduler,
        flusher: Flusher,
        opener: BatchOpener,
        topic_image: Callable[[Topic], TopicImage | None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.purgatory = Purgatory(scheduler)
        self.append_queue = AppendQueue(
            opener, self._append_now, self.leader, lambda *refused: self.refused.add(*refused)
        )
        self.verifier = TransactionVerifier(scheduler, now_ns)
        self.verification_queue = VerificationQueue(self.verifier, self.append_queue)
        self.refused = RefusedBatches(now_ns)
        self._topic_image = topic_image
        self._topics: dict[Topic, dict[int, Partition]] = {}
        self._offline = OfflinePartitions()
        self._dirty: dict[Partition, None] = {}
        self._retiring: dict[Partition, Callable[[], object]] = {}
        self._sizes: dict[Partition, int] = {}
        self._resized: dict[Partition, None] = {}
        self._total_size = 0
        self.flushes: PartitionFlushes[Partition] = PartitionFlushes(
            flusher, scheduler, on_flushed=self._flushed, on_log_failed=self._log_failed,
            mark_dirty=self.mark_dirty, now_ns=now_ns,
        )  # fmt: skip
        self.on_led_count: Callable[[int], object] | None = None
        """Called with the number of partitions led here when it changes."""
        self.on_added: Callable[[Partition], object] = lambda partition: None
        """Called with each partition that is led here from now on."""
        self.on_removed: Callable[[Partition], object] = lambda partition: None
        """Called with each partition that is no longer led here, once it has its error."""
        self.traffic: dict[str, TopicTraffic] = {}
        """Counters of each topic that has partitions led here."""
        self.replication: ReplicationEnvironment | None = None
        """Set by a node that may have partitions with followers."""
        self.on_replicated_change: Callable[[Partition], object] = lambda partition: None
        """Called at the end of a tick with each partition with followers that has changed."""
        self.on_replica_failed: Callable[[bytes, int], object] = lambda topic_id, index: None
        """Called with each partition with followers whose log has failed."""
        self.verifies_transactions = True
        """True if records may begin a transaction only if its coordinator knows the partition."""
        self.other_traffic = TopicTraffic()
        """Counters of all other topics: no longer led here, or never."""

    def __iter__(self) -> Iterator[Partition]:
        for topic, partitions in self._topics.items():
            if isinstance(topic, str):
                yield from partitions.values()

    # -- partitions --------------------------------------------------------------------------

    def add(self, log: Log, leader_epoch: int, settings: Settings) -> Partition:
        """Add a partition with this log, and lead it."""
        partition = Partition(log, leader_epoch, settings, self._traffic_for(log.topic))
        return self._add(partition, settings)

    def add_replicated(
        self, log: Log, image: PartitionImage, settings: Settings, high_watermark: int
    ) -> Partition:
        """Add a partition that this node leads and others follow.

        `high_watermark` is what this node knew as a follower.
        """
        traffic = self._traffic_for(log.topic)
        partition = Partition(log, image.leader_epoch, settings, traffic, high_watermark)
        self._lead_with_followers(partition, image, settings)
        return self._add(partition, settings)

    def _traffic_for(self, topic: str) -> TopicTraffic:
        return self.traffic.setdefault(topic, TopicTraffic())

    def _add(self, partition: Partition, settings: Settings) -> Partition:
        for topic in (partition.topic, partition.topic_id):
            self._topics.setdefault(topic, {})[partition.index] = partition
        self._offline.discard(partition.topic_id, partition.index)
        self._sizes[partition] = 0
        self._resized[partition] = None
        self._led_count_changed()
        self.reconfigure(partition, settings)
        if partition.log.durable_offset < partition.log.end_offset:
            self.mark_dirty(partition)  # there may be no further append to trigger the flush
        self.on_added(partition)
        return partition

    def _lead_with_followers(
        self, partition: Partition, image: PartitionImage, settings: Settings
    ) -> None:
        assert self.replication is not None, "a node that leads replicated partitions has it"
        partition.lead_with_followers(image, isr_rules(settings), self.replication)
        self.mark_dirty(partition)

    def update(self, partition: Partition, image: PartitionImage, settings: Settings) -> None:
        """Apply the image of a partition that this node leads, in the same or a later epoch."""
        replication = partition.replication
        if image.is_alone:
            if replication is not None or image.leader_epoch != partition.leader_epoch:
                partition.lead_alone(image.leader_epoch)
                self.mark_dirty(partition)
        elif replication is None or image.leader_epoch != partition.leader_epoch:
            self._lead_with_followers(partition, image, settings)
        else:
            # The minimum first: the controller has decided with it.
            replication.isr.rules = isr_rules(settings)
            replication.isr.update(image)
            self.mark_dirty(partition)

    @property
    def led_count(self) -> int:
        """Number of partitions led here."""
        return len(self._sizes)

    def _led_count_changed(self) -> None:
        if self.on_led_count is not None:
            self.on_led_count(len(self._sizes))

    def total_size(self) -> int:
        """Return the size of all partitions led here, in bytes.

        Only partitions touched since the last call are measured.
        """
        for partition in self._resized:
            if partition in self._sizes:
                size = partition.log.size
                self._total_size += size - self._sizes[partition]
                self._sizes[partition] = size
        self._resized.clear()
        return self._total_size

    def remove(self, partition: Partition) -> None:
        """Remove a deleted partition; requests that wait for it get UnknownTopicOrPartition."""
        self._stop_leading(partition)
        self._remove(partition, UnknownTopicOrPartition())

    def retire(self, partition: Partition, then: Callable[[], object]) -> None:
        """Stop leading a partition that another node leads now.

        New requests get an error immediately.  `then()` is called once all records are flushed as
        the topic's durability requires and waiting requests are completed.
        """
        self._stop_leading(partition)
        self._retiring[partition] = then
        self.mark_dirty(partition)

    def resign(self, partition: Partition) -> None:
        """Stop leading a partition at once; waiting requests get NotLeaderOrFollower."""
        self._stop_leading(partition)
        self._remove(partition, NotLeaderOrFollower())

    def _stop_leading(self, partition: Partition) -> None:
        self._total_size -= self._sizes.pop(partition)
        self._led_count_changed()
        for topic in (partition.topic, partition.topic_id):
            del self._topics[topic][partition.index]
            if not self._topics[topic]:
                del self._topics[topic]
        if partition.topic not in self._topics:
            self.other_traffic.add(self.traffic.pop(partition.topic))

    def _remove(self, partition: Partition, error: KafkaError) -> None:
        self._dirty.pop(partition, None)
        self.flushes.remove(partition)
        partition.error = error
        self.purgatory.wake(partition)
        self.on_removed(partition)

    def _complete_retirements(self) -> None:
        for partition, then in list(self._retiring.items()):
            log = partition.log
            unsafe = partition.flushes_always and log.durable_offset < log.end_offset
            if not partition.flushing and not unsafe:
                del self._retiring[partition]
                self._remove(partition, NotLeaderOrFollower())
                then()

    def traffic_of(self, topic: Topic) -> TopicTraffic:
        """Return the counters for a topic; shared ones if it is not led here or is unknown."""
        if isinstance(topic, bytes):
            image = self._topic_image(topic)
            topic = image.name if image is not None else ""
        return self.traffic.get(topic, self.other_traffic)

    def take_offline(self, topic: str, topic_id: bytes, index: int, error: KafkaError) -> bool:
        """Fail requests for a partition without a log with this error.

        Returns whether the partition was not offline before.
        """
        return self._offline.add(topic, topic_id, index, error)

    def set_online(self, topic_id: bytes, index: int) -> None:
        """Note that a partition has a log again."""
        self._offline.discard(topic_id, index)

    @property
    def offline_count(self) -> int:
        """Number of partitions of this node that cannot be served."""
        return len(self._offline) + sum(partition.log.failure is not None for partition in self)

    def is_offline(self, topic: str, index: int) -> bool:
        """Return whether a partition of this node is offline: its log is missing or failed."""
        partition = self._topics.get(topic, {}).get(index)
        if partition is None:
            return index in self._offline.of(topic)
        return partition.log.failure is not None

    def offline(self, topic: str) -> set[int]:
        """Return the partitions of a topic for which `is_offline` is true."""
        led = self._topics.get(topic, {})
        found = {index for index, partition in led.items() if partition.log.failure is not None}
        return found | self._offline.of(topic)

    def remove_offline(self, topic_id: bytes) -> None:
        """Remove the offline partitions of a deleted topic."""
        self._offline.remove_topic(topic_id)

    def of_topic(self, topic: Topic) -> dict[int, Partition]:
        """Return the topic's partitions led here, by index."""
        return self._topics.get(topic, {})

    def reconfigure(self, partition: Partition, settings: Settings) -> None:
        """Apply new topic settings to a partition."""
        partition.reconfigure(settings)
        self.flushes.reconfigure(partition, settings)
        if partition.waiting:
            self.mark_dirty(partition)  # a weaker durability may be reached already

    def led_count_of(self, topic: Topic) -> int:
        """Return the number of partitions of a topic that are led here."""
        return len(self._topics.get(topic, ()))

    def leader(self, topic: Topic, index: int) -> Partition:
        """Return a partition led here, by its topic's name or id.

        Raises UnknownTopicOrPartition, UnknownTopicId for an unknown id, NotLeaderOrFollower for a
        partition of another node, or the error of an offline partition.
        """
        partitions = self._topics.get(topic)
        partition = partitions.get(index) if partitions else None
        if partition is None:
            raise self._lookup_error(topic, index)
        return partition

    def _lookup_error(self, topic: Topic, index: int) -> KafkaError:
        error = self._offline.error(topic, index)
        if error is not None:
            return error.copy()
        image = self._topic_image(topic)
        if image is None:
            return UnknownTopicId() if isinstance(topic, bytes) else UnknownTopicOrPartition()
        return NotLeaderOrFollower() if index in image.partitions else UnknownTopicOrPartition()

    # -- appends and deletes -----------------------------------------------------------------

    def append(
        self,
        client: ClientContext,
        required_acks: int,
        topic: Topic,
        index: int,
        batch: memoryview | bytes | None,
        transaction: RequestTransaction | None = None,
    ) -> tuple[Partition, LogAppendResult | Future[LogAppendResult]]:
        """Append a client's batch, now or after decompression or verification; it is flushed as
        configured.

        Raises a KafkaError if the request is invalid or not authorized.
        """
        if required_acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
            raise InvalidRequiredAcks()
        try:
            partition = self.leader(topic, index)
            _check_may_write(client, partition.topic)
            if required_acks == ACKS_ALL and partition.replication is not None:
                partition.replication.check_min_isr()
            if not batch:
                raise InvalidRecord("A produce request must have exactly one batch per partition.")
            if len(batch) > ATTRIBUTES_LOW and batch[ATTRIBUTES_LOW] & TRANSACTIONAL:
                if transaction is None:
                    raise TransactionalIdAuthorizationFailed(
                        "The request has records of a transaction, but no transactional id."
                    )
                if self.verifies_transactions or transaction.adds:
                    return partition, self.verification_queue.append(partition, batch, transaction)
            return partition, self.append_queue.append(partition, batch)
        except KafkaError as error:
            if batch and self._may_write(client, topic):
                self.refused.add(topic, index, batch, error)
            raise

    def _may_write(self, client: ClientContext, topic: Topic) -> bool:
        """Return whether a client may write to a topic; True for an id that is not known yet."""
        image = self._topic_image(topic)
        name = image.name if image is not None else topic
        return isinstance(name, bytes) or client.may(WRITE, TOPIC, name)

    def _append_now(
        self,
        partition: Partition,
        batch: memoryview | bytes,
        guard: VerificationGuard | None,
        *,
        validated: bool = False,
    ) -> LogAppendResult:
        if not self.verifies_transactions:
            guard = NOT_REQUIRED
        self.refused.check(partition, batch)
        try:
            appended = partition.append(batch, validated=validated, guard=guard)
        except KafkaStorageError as error:
            self._check_log(partition, error)
            raise
        if partition.write_error:
            partition.write_error = ""
        partition.traffic.produces += 1
        self._dirty[partition] = None
        return appended

    def append_own(
        self, partition: Partition, batch: bytes, guard: VerificationGuard | None = None
    ) -> LogAppendResult:
        """Append a batch that this node built, such as a coordinator's records.

        One that begins a producer's transaction needs the guard of its verification.
        """
        try:
            appended = partition.append(batch, from_client=False, guard=guard)
        except KafkaStorageError as error:
            self._check_log(partition, error)
            raise
        self._dirty[partition] = None
        return appended

    def append_marker(self, partition: Partition, marker: TransactionMarker) -> LogAppendResult:
        """Append the marker that ends a producer's transaction."""
        appended = partition.append_marker(marker)
        self._dirty[partition] = None
        return appended

    def delete_records(
        self, client: ClientContext, topic: str, index: int, offset: int
    ) -> Partition:
        """Advance the log start offset to `offset` (-1: the high watermark); return the partition,
        whose followers do the same."""
        client.must(DELETE, TOPIC, topic)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicException()
        partition = self.leader(topic, index)
        if not partition.log.config.deletes:
            raise PolicyViolation(
                f"Records of {topic} cannot be deleted: its cleanup.policy is not `delete`."
            )
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange()
        partition.log.delete_records(offset)
        self._dirty[partition] = None
        return partition

    def log_was_trimmed(self, log: Log) -> None:
        """Check the requests that wait for a partition whose oldest segments were deleted."""
        partition = self.of_topic(log.topic_id).get(log.partition)
        if partition is not None and partition.waiting:
            self._dirty[partition] = None

    def log_was_cleaned(self, log: Log) -> None:
        """Measure a log again whose segments were replaced by cleaned ones."""
        partition = self.of_topic(log.topic_id).get(log.partition)
        if partition is not None:
            self._resized[partition] = None

    # -- the end of the tick -----------------------------------------------------------------

    def mark_dirty(self, partition: Partition) -> None:
        """Settle this partition at the end of the tick: its log or its offsets changed."""
        self._dirty[partition] = None

    def settle(self) -> None:
        """Finish the tick's appends; see the module."""
        if self._dirty:
            self._settle_dirty()
        if self.purgatory.steps:
            self.purgatory.run()

    def _settle_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        self._resized.update(dirty)
        for partition in dirty:
            partition.log.write_index_page()
            self.flushes.collect(partition)
            partition.advance()
            self.purgatory.wake(partition)
            if partition.replication is not None:
                self.on_replicated_change(partition)
        self.flushes.submit()
        if self._retiring:
            self._complete_retirements()

    def _flushed(self, partition: Partition) -> None:
        """Note that a flush of a partition has ended."""
        if partition.advance():
            self.purgatory.wake(partition)
        if partition.replication is not None:
            self.on_replicated_change(partition)
        if partition in self._retiring or (partition.log.durable_offset < partition.log.end_offset):
            # Records appended during the flush: flush them now, or start their flush timer.
            self.mark_dirty(partition)

    def _check_log(self, partition: Partition, error: KafkaStorageError) -> None:
        """Take a partition offline if its log failed in an append; otherwise report lost files, but
        not a lack of room."""
        if partition.log.failure is not None and partition.error is None:
            self._log_failed(partition)
        elif isinstance(error, LogFilesLost) and partition.write_error != str(error):
            partition.write_error = str(error)
            log.error(
                "Partition %s cannot be written. partition=%s error=%r",
                partition, partition, str(error),
            )  # fmt: skip

    def _log_failed(self, partition: Partition) -> None:
        log.error(
            "Partition %s is offline: its log failed. partition=%s error=%r",
            partition, partition, partition.log.failure,
        )  # fmt: skip
        assert partition.log.failure is not None
        partition.error = KafkaStorageError(partition.log.failure)
        self.purgatory.wake(partition)
        if partition.replication is not None:
            self.on_replica_failed(partition.topic_id, partition.index)


def isr_rules(settings: Settings) -> IsrRules:
    """Return the rules of a topic about its in-sync replicas."""
    return IsrRules(
        settings[REPLICA_LAG_TIME_MAX_MS], settings[MIN_INSYNC_REPLICAS], DurableCopies.of(settings)
    )


def append_result(partition: Partition, appended: LogAppendResult) -> PartitionAppendResult:
    """Return the result of a batch that was appended, for the response to its client."""
    offset, time_ms = appended.base_offset, appended.append_time_ms
    start_offset = appended.log_start_offset
    return new_tuple(
        PartitionAppendResult,
        (partition.index, 0, offset, time_ms, start_offset, (), None, None),
    )


def _check_may_write(client: ClientContext, topic: str) -> None:
    if not client.may(WRITE, TOPIC, topic):
        raise TopicAuthorizationFailed()
    if topic in INTERNAL_TOPICS and client.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicException("Clients cannot write to an internal topic.")
