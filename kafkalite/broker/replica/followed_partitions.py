"""FollowedPartitions: the partitions that this node follows, by leader, and their flushes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kafkalite.broker.replica.followed_partition import FollowedPartition
from kafkalite.broker.replica.partition_flushes import PartitionFlushes
from kafkalite.broker.replica.replica_fetcher import FollowerNode, FollowerThrottle, ReplicaFetcher
from kafkalite.coordination.partition_image import NO_LEADER
from kafkalite.errors import KafkaStorageError, NotLeaderOrFollower

if TYPE_CHECKING:
    from kafkalite.broker.node_settings import ReplicaFetchSettings
    from kafkalite.broker.replica.purgatory import Purgatory
    from kafkalite.broker.replica.replica_fetcher import Connect
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.partition_image import PartitionImage
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.log.log_truncation import TruncationJob
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")


class FollowedPartitions:
    """The followed partitions of one node; see the module."""

    def __init__(
        self,
        node_id: int,
        connect_to: Callable[[int], Connect],
        settings: Callable[[], ReplicaFetchSettings],
        reactor: Reactor,
        flusher: Flusher,
        purgatory: Purgatory,
        on_failed: Callable[[bytes, int], object],
        throttle: FollowerThrottle,
    ) -> None:
        """`connect_to(node_id)` returns what opens connections to a node; `on_failed` is called
        with each partition whose log cannot follow its leader any more."""
        self._purgatory = purgatory
        self._on_failed = on_failed
        self._throttle = throttle
        throttle.quota.add_listener(self._fetch_throttled)
        self._node_id = node_id
        self._connect_to = connect_to
        self._settings = settings
        self._reactor = reactor
        self.on_count: Callable[[int], object] = lambda count: None
        """Called with the number of followed partitions when it changes."""
        self._count = 0
        self._flusher = flusher
        self._partitions: dict[bytes, dict[int, FollowedPartition]] = {}
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._dirty: dict[FollowedPartition, None] = {}
        self._former_bytes_in = self._former_failures = 0
        """Counts of fetchers that have ended."""
        self._flushes: PartitionFlushes[FollowedPartition] = PartitionFlushes(
            flusher, reactor, on_flushed=self._flushed, on_log_failed=self._log_failed,
            mark_dirty=self._mark_dirty, now_ns=reactor.clock.monotonic_ns,
        )  # fmt: skip

    def __iter__(self) -> Iterator[FollowedPartition]:
        for partitions in self._partitions.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return self._count

    def _add_to_count(self, more: int) -> None:
        self._count += more
        self.on_count(self._count)

    @property
    def bytes_in(self) -> int:
        """Bytes of records received from leaders."""
        return self._former_bytes_in + sum(each.bytes_in for each in self._fetchers.values())

    @property
    def failures(self) -> int:
        """Number of fetches of partitions that failed."""
        return self._former_failures + sum(each.failures for each in self._fetchers.values())

    def lag_of(self, topic_id: bytes, index: int) -> int:
        """Return the committed records that a partition does not have yet; 0 if it is led here."""
        partition = self.of_topic(topic_id).get(index)
        return 0 if partition is None else partition.lag

    def of_topic(self, topic_id: bytes) -> dict[int, FollowedPartition]:
        """Return the followed partitions of a topic, by index."""
        return self._partitions.get(topic_id, {})

    def follow(
        self,
        found: Log,
        image: PartitionImage,
        settings: Settings,
        node_epoch: int,
        high_watermark: int,
    ) -> None:
        """Follow the leader of a partition in its epoch, in place of an earlier one."""
        earlier = self.of_topic(found.topic_id).get(found.partition)
        if earlier is not None:
            self._release(earlier)
            if earlier.leader != image.leader:
                self._stop_fetching(earlier)
        else:
            self._add_to_count(1)
        node = FollowerNode(self._node_id, node_epoch)
        partition = FollowedPartition(found, image, settings, node, high_watermark)
        partition.replication.truncate_to = lambda offset: self._truncate(found, offset)
        partition.replication.restart_at = lambda offset: self._truncate(
            found, offset, is_whole_log=True
        )
        self._partitions.setdefault(found.topic_id, {})[found.partition] = partition
        self._flushes.reconfigure(partition, settings)
        self._dirty[partition] = None
        if image.leader == NO_LEADER:
            return
        fetcher = self._fetchers.get(image.leader)
        if fetcher is None:
            fetcher = self._fetchers[image.leader] = ReplicaFetcher(
                node, self._connect_to(image.leader), self._settings, self._reactor,
                self._reactor.clock, self._applied, self._throttle,
            )  # fmt: skip
        fetcher.renew(node)
        fetcher.add(partition)

    def update(self, partition: FollowedPartition, image: PartitionImage) -> None:
        """Note whether a partition is in sync; if not, consumers that wait for it are sent away."""
        is_same_epoch = image.leader_epoch == partition.leader_epoch
        partition.is_in_sync = is_same_epoch and self._node_id in image.isr
        if not partition.is_in_sync:
            for delayed in list(partition.waiting):
                self._purgatory.complete_early(delayed)

    def remove(self, topic_id: bytes, index: int) -> FollowedPartition | None:
        """Stop following a partition; return it, or None if it was not followed."""
        partition = self._partitions.get(topic_id, {}).pop(index, None)
        if partition is None:
            return None
        if not self._partitions[topic_id]:
            del self._partitions[topic_id]
        self._add_to_count(-1)
        self._release(partition)
        self._stop_fetching(partition)
        return partition

    def _release(self, partition: FollowedPartition) -> None:
        self._dirty.pop(partition, None)
        self._flushes.remove(partition)
        partition.error = NotLeaderOrFollower()
        self._purgatory.wake(partition)

    def _stop_fetching(self, partition: FollowedPartition) -> None:
        fetcher = self._fetchers.get(partition.leader)
        if fetcher is not None:
            fetcher.remove(partition.key)
            if not len(fetcher):
                del self._fetchers[partition.leader]
                self._former_bytes_in += fetcher.bytes_in
                self._former_failures += fetcher.failures

    def reconfigure(self, partition: FollowedPartition, settings: Settings) -> None:
        """Apply new topic settings to a partition."""
        partition.reconfigure(settings)
        self._flushes.reconfigure(partition, settings)
        self._mark_dirty(partition)
        fetcher = self._fetchers.get(partition.leader)
        if fetcher is not None:
            fetcher.reconfigured(partition)

    def _fetch_throttled(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.fetch_throttled()

    def close(self) -> None:
        """Close the connections to all leaders."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()

    # -- truncations -------------------------------------------------------------------------

    def _truncate(self, found: Log, offset: int, *, is_whole_log: bool = False) -> None:
        """Truncate a log on a thread; its partition is not fetched until the end.

        An election, a deletion or a shutdown meanwhile does not wait for the end to be collected:
        the log then finishes the truncation itself.
        """
        job = found.truncation_begin(offset, is_whole_log=is_whole_log)
        if job is not None:
            job.done = lambda job: self._truncated(found, job)
            self._flusher.submit([job])

    def _truncated(self, found: Log, job: TruncationJob) -> None:
        found.truncation_end(job)
        partition = self.of_topic(found.topic_id).get(found.partition)
        if partition is None or partition.log is not found:
            return
        self._mark_dirty(partition)
        fetcher = self._fetchers.get(partition.leader)
        if fetcher is not None:
            fetcher.resume(partition)

    # -- the end of the tick -----------------------------------------------------------------

    def _applied(self, partition: FollowedPartition) -> None:
        """Settle a partition after a response; report one that cannot follow any more."""
        if partition.error is not None:
            self._purgatory.wake(partition)
            self._on_failed(*partition.key)
        self._mark_dirty(partition)

    def _mark_dirty(self, partition: FollowedPartition) -> None:
        if partition.error is None:
            self._dirty[partition] = None

    def settle(self) -> None:
        """Write index entries, begin the flushes of this tick's appends, and check the requests
        that wait for a high watermark."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            partition.log.write_index_page()
            partition.log.producers.transactions.forget_committed(partition.high_watermark)
            self._flushes.collect(partition)
            if partition.waiting:
                self._purgatory.wake(partition)
        self._flushes.submit()

    def _flushed(self, partition: FollowedPartition) -> None:
        fetcher = self._fetchers.get(partition.leader)
        if fetcher is not None:
            fetcher.flushed(partition)
        if partition.log.durable_offset < partition.log.end_offset:
            self._mark_dirty(partition)

    def _log_failed(self, partition: FollowedPartition) -> None:
        assert partition.log.failure is not None
        log.error(
            "Partition is not followed: its log failed. partition=%s error=%r",
            partition, partition.log.failure,
        )  # fmt: skip
        partition.error = KafkaStorageError(partition.log.failure)
        self._purgatory.wake(partition)
        self._stop_fetching(partition)
        self._on_failed(*partition.key)
