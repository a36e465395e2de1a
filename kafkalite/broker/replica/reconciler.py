"""Reconciler: creates, transfers, deletes and reconfigures logs to match the ClusterImage.

    the image assigns a partition to this node, and its log is not here
        leader epoch 0   new: create an empty log (an error if this node once had it: it is lost)
        above            another node has it and transfers it; look for it until it arrives
    the image assigns a partition that is here to another node
        stop leading it, wait for its last flush, transfer its directory
    the partition has several replicas
        lead or follow it (replica_roles.py); a replica's log that is not here is created, empty
    the image no longer has the topic
        take its partitions out of service immediately, then rename their directories

Leadership changes immediately.  Creating, deleting or reconfiguring a log takes milliseconds of
file operations, so these are queued, and the steps of one tick end after STEP_MS together: a topic
of ordinary size exists within the tick of its creation; thousands of partitions, or thousands of
topics in one change, take many ticks.  The queue is FIFO, so a topic that is created again finds
the directories of its predecessor removed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.partition_image import RecoveryState
from kafkalite.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower
from kafkalite.storage.files.layout import node_directory

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.epoch_renewals import EpochRenewals
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.broker.replica.replica_roles import ReplicaRoles
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.manager.log_manager import LogManager
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

STEP_MS = 10
"""Maximum duration of the steps of one tick; each step processes at least one log."""

STEP_PAUSE_MS = 1
"""Pause between two steps, in which the loop serves clients."""

CREATE_RETRY_MS = 1_000
"""Delay before creation of a log is retried."""

TRANSFER_RETRY_MS = 5
"""First delay before a partition transfer is retried; doubled each time."""

ARRIVAL_CHECK_MS_MIN = 5
ARRIVAL_CHECK_MS_MAX = 500
"""Minimum and maximum interval between checks for awaited partitions; grows with the wait."""

ARRIVAL_CHECK_PAUSE_MS = 3 * STEP_MS
"""Pause within a check that takes longer than STEP_MS: thousands of partitions may be awaited, each
costs a few file operations, and the loop must serve clients meanwhile."""

ARRIVAL_WARNING_MS = 10_000
"""Time after which an awaited partition that has not arrived is reported in the log."""


class AwaitedPartition(NamedTuple):
    """A partition assigned to this node that another node has not transferred yet."""

    topic: str
    since_ms: int
    reported: bool = False
    """True if the delay was logged."""


class Reconciler:
    """The reconciliation of one node; see the module."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: LogManager,
        replicas: ReplicaManager,
        roles: ReplicaRoles,
        renewals: EpochRenewals,
        reactor: Reactor,
        on_progress: Callable[[], object],
    ) -> None:
        self._metadata = metadata
        self._logs = logs
        self._replicas = replicas
        self._roles = roles
        self._renewals = renewals
        self._reactor = reactor
        self._on_progress = on_progress
        """Called when the logs match the image up to a later offset than before."""
        self._queue: deque[tuple[bytes, int] | Log] = deque()
        """Partitions to create or reconfigure, and logs to delete."""
        self._queued_count = self._done_count = 0
        self._marks: deque[tuple[int, int]] = deque()
        """(total number of items queued, offset of the metadata log): the offset is reached once
        that number of items is done."""
        self._reconciled_offset = 0
        self._step_is_due = False
        self._step_tick = -1
        self._step_end_ns = 0
        """Deadline of the steps of the tick `_step_tick`, which share STEP_MS."""
        self._unassigned: dict[bytes, dict[int, Log]] = {}
        """Open logs of replicated partitions that are neither led nor followed yet."""
        self._not_created: set[bytes] = set()
        self.awaited: dict[tuple[bytes, int], AwaitedPartition] = {}
        self._is_checking = False
        self._to_check: deque[tuple[bytes, int]] = deque()
        """The awaited partitions that the current check has not reached yet."""

    @property
    def is_done(self) -> bool:
        """True if the queue is empty: the logs match the image, except awaited and failed ones."""
        return not self._queue

    def mark(self, end_offset: int) -> bool:
        """Note that all changes up to this offset of the metadata log are queued.

        Returns whether the offset that the logs match has advanced.
        """
        self._marks.append((self._queued_count, end_offset))
        return self._pass_marks()

    def reconciled_offset(self, applied_offset: int) -> int:
        """Return the offset of the metadata log up to which the logs match it.

        The image is that of `applied_offset`.  Later changes do not delay responses to earlier
        requests.
        """
        if self.is_done:
            self._reconciled_offset = max(self._reconciled_offset, applied_offset)
        return self._reconciled_offset

    def _pass_marks(self) -> bool:
        before = self._reconciled_offset
        while self._marks and self._marks[0][0] <= self._done_count:
            self._reconciled_offset = max(self._reconciled_offset, self._marks.popleft()[1])
        return self._reconciled_offset != before

    def unserved(self) -> Iterator[tuple[bytes, int]]:
        """Yield (topic id, index) of the partitions assigned to this node that it cannot serve."""
        yield from self.awaited
        for _, renewal in self._renewals.waiting():
            yield renewal.topic_id, renewal.partition
        for topic_id in self._not_created:
            topic = self._metadata.image.topics_by_id.get(topic_id)
            present = self._replicas.of_topic(topic_id)
            for index, partition in topic.partitions.items() if topic is not None else ():
                if partition.leader == self._metadata.node_id and index not in present:
                    yield topic_id, index

    def close(self) -> None:
        """Delete the logs still queued for deletion; the next start creates missing logs."""
        for item in self._queue:
            if not isinstance(item, tuple):
                self._logs.delete(item)
        self._queue.clear()

    # -- the queue ---------------------------------------------------------------------------

    def reconcile(self, topic_id: bytes, indexes: Iterable[int] | None = None) -> None:
        """Bring the logs of a topic, or of some partitions of it, to the state in the image."""
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            self._delete_topic(topic_id)
            self._step()
            return
        present = self._replicas.of_topic(topic_id)
        settings = self._metadata.log_settings_of(topic)
        queued: list[tuple[bytes, int]] = []
        for index in topic.partitions if indexes is None else indexes:
            if self._is_replicated(topic, index):
                queued += self._reconcile_replica(topic, index)
                continue
            partition = present.get(index)
            leader = topic.partitions[index]
            if partition is not None:
                if leader.leader != self._metadata.node_id:
                    self._stop_leading(partition)
                elif leader.leader_epoch != partition.leader_epoch:
                    partition.lead(leader.leader_epoch)
            if leader.leader == self._metadata.node_id and (
                partition is None or partition.log.config.settings is not settings
            ):
                queued.append((topic_id, index))
        for found, renewal in self._renewals.waiting(topic_id):
            if topic.partitions[renewal.partition].leader != self._metadata.node_id:
                self._renewals.remove(found, topic_id)
                self._transfer(found, topic_id)
        self._enqueue(queued)
        self._step()

    def _is_replicated(self, topic: TopicImage, index: int) -> bool:
        """Return whether a partition has, or had until now, several replicas."""
        return not topic.partitions[index].is_alone or self._roles.has(topic.topic_id, index)

    def _reconcile_replica(self, topic: TopicImage, index: int) -> Sequence[tuple[bytes, int]]:
        """Change the role of a replicated partition; return it if its log must be opened first."""
        if self._metadata.node_id not in topic.partitions[index].replicas:
            removed = self._roles.release(topic.topic_id, index)
            removed = removed or self._unassigned.get(topic.topic_id, {}).pop(index, None)
            if removed is not None:
                self._enqueue([removed])
            return ()
        self._roles.update(topic, index)
        is_waiting = self._roles.is_registered and not self._roles.is_current(topic, index)
        return [(topic.topic_id, index)] if is_waiting else ()

    def registered(self) -> None:
        """Lead and follow the replicated partitions of this node: its process is registered."""
        self._enqueue([
            (topic.topic_id, index)
            for topic, index, partition in self._metadata.image.replicas_on(self._metadata.node_id)
            if not partition.is_alone
        ])  # fmt: skip
        self._step()

    def _enqueue(self, items: Sequence[tuple[bytes, int] | Log]) -> None:
        self._queue += items
        self._queued_count += len(items)

    def _step(self) -> None:
        """Process the queue for the rest of STEP_MS and continue in later ticks.

        Does nothing if a later step is scheduled.
        """
        if self._step_is_due or not self._queue:
            return
        now_ns = self._reactor.clock.monotonic_ns
        if self._step_tick != self._reactor.tick_number:
            self._step_tick = self._reactor.tick_number
            self._step_end_ns = now_ns() + STEP_MS * 1_000_000
            self._process_first()
        while self._queue and now_ns() < self._step_end_ns:
            self._process_first()
        if self._queue:
            self._step_is_due = True
            self._reactor.call_later(STEP_PAUSE_MS, self._continue_steps)

    def _process_first(self) -> None:
        item = self._queue.popleft()
        self._done_count += 1
        if isinstance(item, tuple):
            self._create_or_reconfigure(*item)
        else:
            self._logs.delete(item)

    def _continue_steps(self) -> None:
        self._step_is_due = False
        self._step()
        if self._pass_marks() or not self._queue:
            self._on_progress()

    def _create_or_reconfigure(self, topic_id: bytes, index: int) -> None:
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            return
        settings = self._metadata.log_settings_of(topic)
        if self._is_replicated(topic, index):
            self._assign(topic, index, settings)
            return
        partition = self._replicas.of_topic(topic_id).get(index)
        if partition is None:
            self._open_or_create(topic, index, settings)
        elif partition.log.config.settings is not settings:
            partition.log.reconfigure(settings)
            self._replicas.reconfigure(partition, settings)

    def _retry_creation(self) -> None:
        """Retry the logs that could not be created, once the queue is empty."""
        if self._queue:
            self._reactor.call_later(CREATE_RETRY_MS, self._retry_creation)
            return
        unserved, self._not_created = self._not_created, set()
        for topic_id in unserved:
            if topic_id in self._metadata.image.topics_by_id:
                self.reconcile(topic_id)

    # -- making ------------------------------------------------------------------------------

    def open_topic(self, topic: TopicImage, loaded: dict[tuple[str, int], Log]) -> None:
        """Lead the topic's partitions that were loaded at startup; create missing logs."""
        settings = self._metadata.log_settings_of(topic)
        for index, partition in topic.partitions.items():
            if not partition.is_alone:
                if self._metadata.node_id in partition.replicas:
                    self._assign_at_start(topic, index, loaded.pop((topic.name, index), None))
                continue
            if partition.leader != self._metadata.node_id:
                continue
            found = loaded.pop((topic.name, index), None)
            if found is not None and found.topic_id == topic.topic_id:
                self._lead(topic, index, found, settings)
                continue
            # A loaded log without a topic id belongs to this topic, one with another id does not:
            # LogManager.create distinguishes them.
            self._open_or_create(topic, index, settings)

    def _assign_at_start(self, topic: TopicImage, index: int, found: Log | None) -> None:
        """Keep the log of a replicated partition open, and refuse requests for it, until this
        process is registered."""
        if found is not None:
            found.committed_limit = lambda: found.high_watermark_at_start
            self._unassigned.setdefault(topic.topic_id, {})[index] = found
        self._replicas.take_offline(topic.name, topic.topic_id, index, NotLeaderOrFollower())

    def _assign(self, topic: TopicImage, index: int, settings: Settings) -> None:
        """Lead or follow a replicated partition; create its log if it is not here."""
        if self._metadata.node_id not in topic.partitions[index].replicas:
            return
        try:
            found = self._replica_log(topic, index, settings)
        except KafkaError as error:
            self._not_opened(topic, index, error)
            return
        if found.config.settings is not settings:
            found.reconfigure(settings)
            self._roles.reconfigure(topic.topic_id, index, settings)
        if self._roles.is_registered:
            self._unassigned.get(topic.topic_id, {}).pop(index, None)
        self._roles.assign(topic, index, found, settings)

    def _replica_log(self, topic: TopicImage, index: int, settings: Settings) -> Log:
        logs = self._logs
        present = logs.logs.get((topic.name, index))
        if present is not None and present.topic_id == topic.topic_id:
            if present.failure is None or self._roles.has(topic.topic_id, index):
                return present
            image = topic.partitions[index]
            if self._metadata.node_id in (*image.isr, *image.elr):
                # The controller does not know it yet, and counts with its records.
                raise KafkaStorageError(present.failure)
            log.warning(
                "Log failed; setting it aside and fetching it again. partition=%s-%d error=%r",
                topic.name, index, present.failure,
            )  # fmt: skip
            logs.set_stray(present)
        elif present is not None and self._metadata.is_deleted(present.topic_id):
            logs.delete(present)  # of an older topic of this name
        found = logs.open_transferred(topic.name, index, topic.topic_id, settings)
        recovery_state = topic.partitions[index].recovery_state
        if found is None and recovery_state is RecoveryState.AWAITING_LOG_ENDS:
            # An empty log would be taken for the one that is missing.
            raise KafkaStorageError("its log is missing, and may have had the last records")
        # A log that this node has lost is created again: the controller knows that it is empty.
        return found or logs.create(topic.name, topic.topic_id, index, settings)

    def _open_or_create(self, topic: TopicImage, index: int, settings: Settings) -> None:
        """Open or create a partition's log and lead it; if that fails, retry later."""
        partition = topic.partitions[index]
        if partition.leader != self._metadata.node_id:
            return
        try:
            found = self._opened_or_created(topic, index, partition.leader_epoch, settings)
        except KafkaError as error:
            self._not_opened(topic, index, error)
            return
        if found is None:
            self._await(topic, index)
            return
        # A change of the topic may open it before the next check does: the check must not add it
        # a second time, which would replace the Partition object and end what waits on the first.
        self.awaited.pop((topic.topic_id, index), None)
        self._lead(topic, index, found, settings)

    def _not_opened(self, topic: TopicImage, index: int, error: KafkaError) -> None:
        """Refuse requests for a partition without a log, and retry later."""
        if self._replicas.take_offline(topic.name, topic.topic_id, index, error):
            reason = str(error).rstrip(".")
            log.error(
                "Partition %s-%d cannot be served yet: %s. topic=%s partition=%d retry_ms=%d",
                topic.name, index, reason, topic.name, index, CREATE_RETRY_MS,
            )  # fmt: skip
        if not self._not_created:
            self._reactor.call_later(CREATE_RETRY_MS, self._retry_creation)
        self._not_created.add(topic.topic_id)

    def _lead(self, topic: TopicImage, index: int, found: Log, settings: Settings) -> None:
        """Lead a partition whose log is open, unless it must wait for its next leader epoch."""
        replicas = self._replicas
        leader_epoch = topic.partitions[index].leader_epoch
        if self._renewals.must_wait(found, topic.topic_id, leader_epoch):
            replicas.take_offline(topic.name, topic.topic_id, index, NotLeaderOrFollower())
        else:
            replicas.add(found, leader_epoch, settings)

    def _opened_or_created(
        self, topic: TopicImage, index: int, leader_epoch: int, settings: Settings
    ) -> Log | None:
        logs = self._logs
        present = logs.logs.get((topic.name, index))
        if present is not None and self._metadata.is_deleted(present.topic_id):
            logs.delete(present)  # of an older topic of this name
        found = logs.open_transferred(topic.name, index, topic.topic_id, settings)
        if found is not None:
            return found
        if logs.has_lost(topic.name, index, topic.topic_id):
            raise KafkaStorageError(
                f"its directory is missing in {logs.data}; restore it from a copy, or delete"
                " the topic"
            )
        if leader_epoch > 0 or logs.is_elsewhere(topic.name, index, topic.topic_id):
            return None
        return logs.create(topic.name, topic.topic_id, index, settings)

    def _delete_topic(self, topic_id: bytes) -> None:
        partitions = list(self._replicas.of_topic(topic_id).values())
        for partition in partitions:
            self._replicas.remove(partition)
        waiting = [found for found, _ in self._renewals.waiting(topic_id)]
        for found in waiting:
            self._renewals.remove(found, topic_id)
        followed = self._roles.delete_topic(topic_id)
        unassigned = self._unassigned.pop(topic_id, {}).values()
        led = (partition.log for partition in partitions)
        self._enqueue([*led, *waiting, *followed, *unassigned])
        self._replicas.remove_offline(topic_id)

    # -- partition transfers -----------------------------------------------------------------

    def _await(self, topic: TopicImage, index: int) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        self.awaited.setdefault((topic.topic_id, index), AwaitedPartition(topic.name, now_ms))
        self._replicas.take_offline(topic.name, topic.topic_id, index, NotLeaderOrFollower())
        if not self._is_checking:
            self._is_checking = True
            self._reactor.call_later(ARRIVAL_CHECK_MS_MIN, self._check_arrivals)

    def _check_arrivals(self) -> None:
        """Check for STEP_MS whether awaited partitions have arrived; schedule the next check."""
        now_ns = self._reactor.clock.monotonic_ns
        end_ns = now_ns() + STEP_MS * 1_000_000
        before = len(self.awaited)
        if not self._to_check:
            self._to_check.extend(self.awaited)
        while self._to_check:
            self._check_arrival(*self._to_check.popleft())
            if now_ns() >= end_ns:
                break
        if len(self.awaited) < before:
            self._on_progress()
        if not self.awaited:
            self._to_check.clear()
        self._is_checking = bool(self.awaited)
        if self._to_check:
            self._reactor.call_later(ARRIVAL_CHECK_PAUSE_MS, self._check_arrivals)
        elif self.awaited:
            now_ms = self._reactor.clock.monotonic_ms()
            waited_ms = now_ms - max(awaited.since_ms for awaited in self.awaited.values())
            next_ms = min(ARRIVAL_CHECK_MS_MAX, max(ARRIVAL_CHECK_MS_MIN, waited_ms // 8))
            self._reactor.call_later(next_ms, self._check_arrivals)

    def _check_arrival(self, topic_id: bytes, index: int) -> None:
        """Check whether one partition has arrived, if it is still awaited."""
        awaited = self.awaited.get((topic_id, index))
        if awaited is None:
            return
        waited_ms = self._reactor.clock.monotonic_ms() - awaited.since_ms
        late = waited_ms >= ARRIVAL_WARNING_MS
        if self._has_arrived(topic_id, index, awaited.topic, late):
            self.awaited.pop((topic_id, index), None)
        elif late and not awaited.reported:
            self.awaited[topic_id, index] = awaited._replace(reported=True)
            log.error(
                "Partition %s-%d is in no node's directory; put it back into %s, or delete the"
                " topic. topic=%s partition=%d waited_ms=%d", awaited.topic, index,
                self._logs.data, awaited.topic, index, waited_ms,
            )  # fmt: skip

    def _has_arrived(self, topic_id: bytes, index: int, name: str, late: bool) -> bool:
        """Return whether an awaited partition has arrived or is no longer awaited."""
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            # Deleted during the transfer: delete the directory when it arrives.
            return self._discard(name, index, topic_id) or late
        if topic.partitions[index].leader != self._metadata.node_id:
            return True
        self._open_or_create(topic, index, self._metadata.log_settings_of(topic))
        return (topic_id, index) not in self.awaited

    def _discard(self, topic: str, index: int, topic_id: bytes) -> bool:
        try:
            return self._logs.discard(topic, index, topic_id)
        except KafkaStorageError as error:
            log.warning(
                "Partition of a deleted topic cannot be removed yet; retrying."
                " topic=%s partition=%d error=%r", topic, index, str(error),
            )  # fmt: skip
            return False

    def _stop_leading(self, partition: Partition) -> None:
        """Stop leading a partition, then transfer its directory to the leader of that time."""
        self._replicas.retire(partition, lambda: self._transfer(partition.log, partition.topic_id))

    def _transfer(self, found: Log, topic_id: bytes, retry_ms: int = TRANSFER_RETRY_MS) -> None:
        """Transfer a log's directory to the node that leads its partition; retry on failure."""
        if self._logs.logs.get((found.topic, found.partition)) is not found:
            return  # transferred since: it was led here and moved away again
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            self._logs.delete(found)
            return
        leader = topic.partitions[found.partition].leader
        if leader == self._metadata.node_id:
            return  # reassigned to this node since, and led here with the same log
        try:
            self._logs.transfer(found, node_directory(self._logs.root, leader))
        except KafkaStorageError as error:
            if retry_ms >= CREATE_RETRY_MS:
                log.error(
                    "Partition %s-%d cannot be transferred yet: %s. topic=%s partition=%d"
                    " node=%d retry_ms=%d", found.topic, found.partition, str(error).rstrip("."),
                    found.topic, found.partition, leader, retry_ms,
                )  # fmt: skip
            next_ms = min(CREATE_RETRY_MS, 2 * retry_ms)
            self._reactor.call_later(retry_ms, lambda: self._transfer(found, topic_id, next_ms))
