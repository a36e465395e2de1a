"""Reconciler: brings the logs of a node to what the ClusterImage says of them.

    the image gives a partition to this node, and its log is not here
        leader epoch 0   it is new, and made empty (unless this node once had it: then it is lost)
        above            another node has it, and hands it over; it is looked for until it comes
    the image gives a partition that is here to another node
        it is led no more, its last flush is awaited, and its directory handed over
    the image has no such topic any more
        it is out of service at once, and its directories are renamed

Who leads what changes at once.  Making, deleting and reconfiguring logs costs milliseconds of
file calls each, so it is queued, and the steps of one tick end after STEP_MS together: a topic of
ordinary size is there within the tick of its creation; one of thousands of partitions, or thousands
of topics that one change brings, over many ticks.  The queue keeps its order, so a topic made again
finds its predecessor's directories gone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.config.settings import Settings
from kafkalite.coordination.image import TopicImage
from kafkalite.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower
from kafkalite.storage.layout import node_directory

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.log import Log

log = logging.getLogger("kafkalite.broker")

STEP_MS = 10
"""Duration of the steps of one tick, at least one log in each."""

STEP_PAUSE_MS = 1
"""Pause between two steps, in which the loop serves clients."""

ALIKE_MAX = 1_000
"""Maximum number of topic configurations that are cached with their settings."""

MAKE_AGAIN_MS = 1_000
"""Delay before a log that could not be made is tried again."""

HAND_OVER_AGAIN_MS = 5
"""First delay before a partition transfer is tried again; doubled each time."""

LOOK_FOR_MS = 5
LOOK_FOR_MS_MAX = 500
"""Least and greatest interval between looks for an awaited partition; it grows with the wait."""

LOOK_PAUSE_MS = 3 * STEP_MS
"""Pause within a look that takes longer than STEP_MS: thousands may be awaited, each a few file
calls, and the loop serves clients beside them."""

LATE_MS = 10_000
"""Time after which an awaited partition that has not arrived is reported in the log."""


class Awaited(NamedTuple):
    """A partition that this node shall lead and another has not handed over yet."""

    topic: str
    since_ms: int
    reported: bool = False
    """True if the log says that it is late."""


class Reconciler:
    """The reconciliation of one node; see the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queue: deque[tuple[bytes, int] | Log] = deque()
        """Partitions to be made or reconfigured, and logs to be deleted."""
        self._queued_count = self._done_count = 0
        self._marks: deque[tuple[int, int]] = deque()
        """Offsets of the metadata log, each behind so many of all that was ever queued."""
        self._made_offset = 0
        self._step_is_due = False
        self._step_end_ns: int | None = None
        """Deadline of this tick's steps; None before the first of them."""
        self._alike: dict[tuple[tuple[str, str], ...], Settings] = {}
        self._alike_of: Settings | None = None
        self._unmade: set[bytes] = set()
        self.awaited: dict[tuple[bytes, int], Awaited] = {}
        self._looking = False
        self._to_look_for: deque[tuple[bytes, int]] = deque()
        """The rest of the awaited partitions that a look has begun with."""

    @property
    def is_done(self) -> bool:
        """True if the logs match the image, except those that must wait."""
        return not self._queue

    def mark(self, end_offset: int) -> bool:
        """Note that all changes up to this offset of the metadata log are queued; return whether
        the logs match more of it now."""
        self._marks.append((self._queued_count, end_offset))
        return self._pass_marks()

    def made_offset(self, applied_offset: int) -> int:
        """Return the offset of the metadata log up to which the logs match it; the image is that of
        `applied_offset`.  What is decided later does not hold back answers to what came before."""
        if self.is_done:
            self._made_offset = max(self._made_offset, applied_offset)
        return self._made_offset

    def _pass_marks(self) -> bool:
        before = self._made_offset
        while self._marks and self._marks[0][0] <= self._done_count:
            self._made_offset = max(self._made_offset, self._marks.popleft()[1])
        return self._made_offset != before

    def unmade(self) -> Iterator[tuple[bytes, int]]:
        """The partitions, by topic id and number, that this node leads and cannot serve yet."""
        yield from self.awaited
        for _, renewal in self._node.renewals.waiting():
            yield renewal.topic_id, renewal.partition
        for topic_id in self._unmade:
            topic = self._node.image.topics_by_id.get(topic_id)
            present = self._node.replicas.of_topic(topic_id)
            for index, partition in topic.partitions.items() if topic is not None else ():
                if partition.leader == self._node.node_id and index not in present:
                    yield topic_id, index

    def close(self) -> None:
        """Delete what is still to be deleted; the next start makes what is missing."""
        for item in self._queue:
            if not isinstance(item, tuple):
                self._node.logs.delete(item)
        self._queue.clear()

    # -- the queue ---------------------------------------------------------------------------

    def reconcile(self, topic_id: bytes) -> None:
        """Bring this topic's logs to what the image says of it."""
        topic = self._node.image.topics_by_id.get(topic_id)
        if topic is None:
            self._delete_topic(topic_id)
            self._step()
            return
        present = self._node.replicas.of_topic(topic_id)
        for partition in list(present.values()):
            leader = topic.partitions[partition.index]
            if leader.leader != self._node.node_id:
                self._give_up(partition)
            elif leader.leader_epoch != partition.leader_epoch:
                partition.lead(leader.leader_epoch)
        for found, renewal in self._node.renewals.waiting(topic_id):
            if topic.partitions[renewal.partition].leader != self._node.node_id:
                self._node.renewals.forget(found, topic_id)
                self._hand_over(found, topic_id)
        settings = self.settings_of(topic.config)
        self._enqueue([
            (topic_id, index)
            for index, partition in topic.partitions.items()
            if partition.leader == self._node.node_id
            and (index not in present or present[index].log.config is not settings)
        ])  # fmt: skip
        self._step()

    def settings_of(self, overrides: Mapping[str, str]) -> Settings:
        """Return the settings of a topic.

        Topics with the same overrides share one object until the node's settings change.
        """
        if self._alike_of is not self._node.settings or len(self._alike) >= ALIKE_MAX:
            self._alike_of = self._node.settings
            self._alike = {}
        key = tuple(overrides.items())
        settings = self._alike.get(key)
        if settings is None:
            settings = self._alike[key] = self._alike_of.for_topic(dict(overrides))
        return settings

    def _enqueue(self, items: Sequence[tuple[bytes, int] | Log]) -> None:
        self._queue += items
        self._queued_count += len(items)

    def _step(self) -> None:
        """Do some of the queue now, unless a later tick is to go on with it, and the rest in later
        ticks."""
        if self._step_is_due or not self._queue:
            return
        now_ns = self._node.clock.monotonic_ns
        if self._step_end_ns is None:
            self._step_end_ns = now_ns() + STEP_MS * 1_000_000
            self._do_first()
        while self._queue and now_ns() < self._step_end_ns:
            self._do_first()
        if self._queue:
            self._step_is_due = True
            self._node.reactor.call_later(STEP_PAUSE_MS, self._go_on)

    def end_tick(self) -> None:
        """Let the next step begin with the whole of STEP_MS."""
        self._step_end_ns = None

    def _do_first(self) -> None:
        item = self._queue.popleft()
        self._done_count += 1
        if isinstance(item, tuple):
            self._make_or_reconfigure(*item)
        else:
            self._node.logs.delete(item)

    def _go_on(self) -> None:
        self._step_is_due = False
        self._step_end_ns = None
        self._step()
        if self._pass_marks() or not self._queue:
            self._node.made_so()

    def _make_or_reconfigure(self, topic_id: bytes, index: int) -> None:
        topic = self._node.image.topics_by_id.get(topic_id)
        if topic is None:
            return
        settings = self.settings_of(topic.config)
        partition = self._node.replicas.of_topic(topic_id).get(index)
        if partition is None:
            self._make(topic, index, settings)
        elif partition.log.config is not settings:
            partition.log.reconfigure(settings)
            self._node.replicas.reconfigure(partition, settings)

    def _make_again(self) -> None:
        """Retry the logs that could not be made, once all others are."""
        if self._queue:
            self._node.reactor.call_later(MAKE_AGAIN_MS, self._make_again)
            return
        unmade, self._unmade = self._unmade, set()
        for topic_id in unmade:
            if topic_id in self._node.image.topics_by_id:
                self.reconcile(topic_id)

    # -- making ------------------------------------------------------------------------------

    def open_topic(self, topic: TopicImage, loaded: dict[tuple[str, int], Log]) -> None:
        """Lead the topic's partitions that were loaded at the start, and make what is missing."""
        node = self._node
        settings = self.settings_of(topic.config)
        for index, partition in topic.partitions.items():
            if partition.leader != node.node_id:
                continue
            found = loaded.pop((topic.name, index), None)
            if found is not None and found.topic_id == topic.topic_id:
                self._lead(topic, index, found, settings)
                continue
            # One whose id was lost is this topic's, one with another id is not: create knows.
            self._make(topic, index, settings)

    def _make(self, topic: TopicImage, index: int, settings: Settings) -> None:
        """Open or create a partition's log and lead it; if that fails, retry later."""
        node = self._node
        partition = topic.partitions[index]
        if partition.leader != node.node_id:
            return
        try:
            found = self._found_or_made(topic, index, partition.leader_epoch, settings)
        except KafkaError as fault:
            if node.replicas.take_offline(topic.name, topic.topic_id, index, fault):
                reason = str(fault).rstrip(".")
                log.error(
                    "Partition %s-%d cannot be served yet: %s. topic=%s partition=%d retry_ms=%d",
                    topic.name, index, reason, topic.name, index, MAKE_AGAIN_MS,
                )  # fmt: skip
            if not self._unmade:
                node.reactor.call_later(MAKE_AGAIN_MS, self._make_again)
            self._unmade.add(topic.topic_id)
            return
        if found is not None:
            self._lead(topic, index, found, settings)
        else:
            self._await(topic, index)

    def _lead(self, topic: TopicImage, index: int, found: Log, settings: Settings) -> None:
        """Lead a partition whose log is open, unless it waits for its next epoch."""
        replicas = self._node.replicas
        leader_epoch = topic.partitions[index].leader_epoch
        if self._node.renewals.must_wait(found, topic.topic_id, leader_epoch):
            replicas.take_offline(topic.name, topic.topic_id, index, NotLeaderOrFollower())
        else:
            replicas.add(found, leader_epoch, settings)

    def _found_or_made(
        self, topic: TopicImage, index: int, leader_epoch: int, settings: Settings
    ) -> Log | None:
        node, logs = self._node, self._node.logs
        present = logs.logs.get((topic.name, index))
        if present is not None and node.is_deleted(present.topic_id):
            logs.delete(present)  # of an older topic of this name
        found = logs.find(topic.name, index, topic.topic_id, settings)
        if found is not None:
            return found
        if logs.had(topic.name, index, topic.topic_id):
            raise KafkaStorageError(
                f"its directory is gone from {logs.data}; restore it from a copy, or delete"
                " the topic"
            )
        if leader_epoch > 0 or logs.is_elsewhere(topic.name, index, topic.topic_id):
            return None
        return logs.create(topic.name, topic.topic_id, index, settings)

    def _delete_topic(self, topic_id: bytes) -> None:
        partitions = list(self._node.replicas.of_topic(topic_id).values())
        for partition in partitions:
            self._node.replicas.remove(partition)
        waiting = [found for found, _ in self._node.renewals.waiting(topic_id)]
        for found in waiting:
            self._node.renewals.forget(found, topic_id)
        self._enqueue([*(partition.log for partition in partitions), *waiting])
        self._node.replicas.forget_offline(topic_id)

    # -- taking over and handing over --------------------------------------------------------

    def _await(self, topic: TopicImage, index: int) -> None:
        now_ms = self._node.clock.monotonic_ms()
        self.awaited.setdefault((topic.topic_id, index), Awaited(topic.name, now_ms))
        self._node.replicas.take_offline(topic.name, topic.topic_id, index, NotLeaderOrFollower())
        if not self._looking:
            self._looking = True
            self._node.reactor.call_later(LOOK_FOR_MS, self._look_for_awaited)

    def _look_for_awaited(self) -> None:
        """Look whether partitions that this node shall lead have been handed over, for STEP_MS."""
        now_ns = self._node.clock.monotonic_ns
        end_ns = now_ns() + STEP_MS * 1_000_000
        before = len(self.awaited)
        if not self._to_look_for:
            self._to_look_for.extend(self.awaited)
        while self._to_look_for:
            self._look_for(*self._to_look_for.popleft())
            if now_ns() >= end_ns:
                break
        if len(self.awaited) < before:
            self._node.made_so()
        if not self.awaited:
            self._to_look_for.clear()
        self._looking = bool(self.awaited)
        if self._to_look_for:
            self._node.reactor.call_later(LOOK_PAUSE_MS, self._look_for_awaited)
        elif self.awaited:
            now_ms = self._node.clock.monotonic_ms()
            waited_ms = now_ms - max(awaited.since_ms for awaited in self.awaited.values())
            next_ms = min(LOOK_FOR_MS_MAX, max(LOOK_FOR_MS, waited_ms // 8))
            self._node.reactor.call_later(next_ms, self._look_for_awaited)

    def _look_for(self, topic_id: bytes, index: int) -> None:
        """Look whether one partition has been handed over, if it is awaited still."""
        awaited = self.awaited.get((topic_id, index))
        if awaited is None:
            return
        waited_ms = self._node.clock.monotonic_ms() - awaited.since_ms
        late = waited_ms >= LATE_MS
        if self._arrived(topic_id, index, awaited.topic, late):
            del self.awaited[topic_id, index]
        elif late and not awaited.reported:
            self.awaited[topic_id, index] = awaited._replace(reported=True)
            log.error(
                "Partition %s-%d is in no node's directory; put it back into %s, or delete the"
                " topic. topic=%s partition=%d waited_ms=%d", awaited.topic, index,
                self._node.logs.data, awaited.topic, index, waited_ms,
            )  # fmt: skip

    def _arrived(self, topic_id: bytes, index: int, name: str, late: bool) -> bool:
        """Return whether an awaited partition has arrived, or is not awaited any more."""
        topic = self._node.image.topics_by_id.get(topic_id)
        if topic is None:
            # Deleted on its way here: it is to be deleted when it comes.
            return self._discarded(name, index, topic_id) or late
        if topic.partitions[index].leader != self._node.node_id:
            return True
        self._make(topic, index, self.settings_of(topic.config))
        return index in self._node.replicas.of_topic(topic_id)

    def _discarded(self, topic: str, index: int, topic_id: bytes) -> bool:
        try:
            return self._node.logs.discard(topic, index, topic_id)
        except KafkaStorageError as fault:
            log.warning(
                "Partition of a deleted topic cannot be removed yet; retrying."
                " topic=%s partition=%d error=%r", topic, index, str(fault),
            )  # fmt: skip
            return False

    def _give_up(self, partition: Partition) -> None:
        """Stop leading a partition, and hand its directory to the node that leads it by then."""
        self._node.replicas.retire(
            partition, lambda: self._hand_over(partition.log, partition.topic_id)
        )

    def _hand_over(self, found: Log, topic_id: bytes, again_ms: int = HAND_OVER_AGAIN_MS) -> None:
        """Hand a log's directory to the node that leads its partition, now or when it can go."""
        if self._node.logs.logs.get((found.topic, found.partition)) is not found:
            return  # it went meanwhile: there and back, and away again
        topic = self._node.image.topics_by_id.get(topic_id)
        if topic is None:
            self._node.logs.delete(found)  # meanwhile
            return
        leader = topic.partitions[found.partition].leader
        if leader == self._node.node_id:
            return  # it came back meanwhile, and is led again with the same log
        try:
            self._node.logs.hand_over(found, node_directory(self._node.root, leader))
        except KafkaStorageError as fault:
            if again_ms >= MAKE_AGAIN_MS:
                log.error(
                    "Partition %s-%d cannot be handed over yet: %s. topic=%s partition=%d"
                    " node=%d retry_ms=%d", found.topic, found.partition, str(fault).rstrip("."),
                    found.topic, found.partition, leader, again_ms,
                )  # fmt: skip
            next_ms = min(MAKE_AGAIN_MS, 2 * again_ms)
            self._node.reactor.call_later(
                again_ms, lambda: self._hand_over(found, topic_id, next_ms)
            )
