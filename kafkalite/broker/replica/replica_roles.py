"""ReplicaRoles: whether this node leads or follows each replicated partition that it has.

    not registered                    neither: another node may lead by now, and the log may be old
    leader in the image               leads, from the high watermark that it knew as a follower
    another replica in the image      follows the leader; without a leader, waits for one

A partition with a single replica has no role here: its node leads it, also without a supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kafkalite.coordination.replication.registration import NO_LOG, RegisteredLog
from kafkalite.errors import NotLeaderOrFollower

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.followed_partitions import FollowedPartitions
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.image import TopicImage
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.manager.log_manager import LogManager


class ReplicaRoles:
    """The roles of one node; see the module."""

    def __init__(
        self,
        metadata: MetadataCache,
        logs: LogManager,
        replicas: ReplicaManager,
        followed: FollowedPartitions,
        node_epoch: Callable[[], int | None],
    ) -> None:
        """`node_epoch` returns the epoch of this process once it is registered, else None."""
        self._metadata = metadata
        self._logs = logs
        self._replicas = replicas
        self._followed = followed
        self._node_epoch = node_epoch

    @property
    def is_registered(self) -> bool:
        """True if the image has the registration of this process."""
        return self._node_epoch() is not None

    def log_ends(self) -> list[RegisteredLog]:
        """Return the ends of the logs of replicated partitions of this node, missing ones too."""
        ends = [RegisteredLog(*end) for end in self._logs.log_ends()]
        known = {(end.topic_id, end.partition) for end in ends}
        ends += [
            RegisteredLog(topic.topic_id, index, -1, NO_LOG)
            for topic, index, partition in self._metadata.image.replicas_on(self._metadata.node_id)
            if not partition.is_alone and (topic.topic_id, index) not in known
        ]
        return ends

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """Return the high watermarks of the replicated partitions that are led or followed."""
        known = {
            (led.topic, led.index): led.high_watermark
            for led in self._replicas
            if led.replication is not None
        }
        for followed in self._followed:
            known[followed.log.topic, followed.log.partition] = followed.high_watermark
        return known

    def has(self, topic_id: bytes, index: int) -> bool:
        """Return whether a partition is led with followers, or followed by a usable log."""
        followed = self._followed.of_topic(topic_id).get(index)
        if followed is not None and followed.error is None:
            return True
        led = self._replicas.of_topic(topic_id).get(index)
        return led is not None and led.replication is not None

    def log_of(self, topic_id: bytes, index: int) -> Log | None:
        """Return the log of a partition that is led or followed here."""
        led = self._replicas.of_topic(topic_id).get(index)
        if led is not None:
            return led.log
        followed = self._followed.of_topic(topic_id).get(index)
        return followed.log if followed is not None else None

    def is_current(self, topic: TopicImage, index: int) -> bool:
        """Return whether a partition has the role that the image gives it, with its settings."""
        image = topic.partitions[index]
        settings = self._metadata.log_settings_of(topic)
        led = self._replicas.of_topic(topic.topic_id).get(index)
        if led is not None:
            return image.leader == self._metadata.node_id and led.log.config.settings is settings
        followed = self._followed.of_topic(topic.topic_id).get(index)
        if followed is None or followed.error is not None:
            return False
        return (
            (followed.leader, followed.replication.leader_epoch)
            == (image.leader, image.leader_epoch)
            and followed.log.config.settings is settings
        )

    def update(self, topic: TopicImage, index: int) -> None:
        """Apply at once what the image says about a partition that this node leads or follows."""
        image = topic.partitions[index]
        led = self._replicas.of_topic(topic.topic_id).get(index)
        if led is None:
            followed = self._followed.of_topic(topic.topic_id).get(index)
            if followed is not None:
                self._followed.update(followed, image)
            return
        settings = self._metadata.log_settings_of(topic)
        if image.leader == self._metadata.node_id:
            self._replicas.update(led, image, settings)
            return
        node_epoch = self._node_epoch()
        self._replicas.resign(led)
        is_replica = self._metadata.node_id in image.replicas
        if is_replica and node_epoch is not None and led.log.failure is None:
            self._followed.follow(led.log, image, settings, node_epoch, led.high_watermark)

    def assign(self, topic: TopicImage, index: int, found: Log, settings: Settings) -> None:
        """Lead or follow a partition whose log is open, as the image says."""
        image = topic.partitions[index]
        node_epoch = self._node_epoch()
        if node_epoch is None:
            self._replicas.take_offline(
                topic.name, topic.topic_id, index, NotLeaderOrFollower()
            )
            return
        led = self._replicas.of_topic(topic.topic_id).get(index)
        if led is not None:
            self.update(topic, index)
            return
        if self.is_current(topic, index):
            return
        if found.may_have_lost_tail:
            self._logs.note_ends_reported([found])
        found.is_replicated = not image.is_alone
        known = self._followed.of_topic(topic.topic_id).get(index)
        high_watermark = (
            known.high_watermark if known is not None else found.high_watermark_at_start
        )
        self._replicas.set_online(topic.topic_id, index)
        if image.leader != self._metadata.node_id:
            self._followed.follow(found, image, settings, node_epoch, high_watermark)
            return
        self._followed.remove(topic.topic_id, index)
        found.finish_truncation()
        if not image.is_alone:
            self._replicas.add_replicated(found, image, settings, high_watermark)
        else:
            self._replicas.add(found, image.leader_epoch, settings)

    def reconfigure(self, topic_id: bytes, index: int, settings: Settings) -> None:
        """Apply new topic settings to a partition that is led or followed here."""
        led = self._replicas.of_topic(topic_id).get(index)
        if led is not None:
            self._replicas.reconfigure(led, settings)
        followed = self._followed.of_topic(topic_id).get(index)
        if followed is not None:
            self._followed.reconfigure(followed, settings)

    def release(self, topic_id: bytes, index: int) -> Log | None:
        """Stop leading or following a partition; return its log, if it had one."""
        found = self.log_of(topic_id, index)
        led = self._replicas.of_topic(topic_id).get(index)
        if led is not None:
            self._replicas.resign(led)
        self._followed.remove(topic_id, index)
        return found

    def delete_topic(self, topic_id: bytes) -> Iterator[Log]:
        """Stop following the partitions of a deleted topic; yield their logs."""
        for index in list(self._followed.of_topic(topic_id)):
            followed = self._followed.remove(topic_id, index)
            if followed is not None:
                yield followed.log
