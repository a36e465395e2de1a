"""Admin: topics, configurations, groups and offsets of a cluster.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("flights", partitions=3, configs={"retention.ms": 86_400_000})
        partitions = admin.describe_topics(["flights"])["flights"].partitions
        ends = admin.list_offsets({("flights", number): admin.LATEST for number in partitions})
        print(admin.describe_group("readers").members)

Each call sends its requests, waits for the responses, and raises an error of the cluster.
Retriable errors are retried until the timeout.  No call but create_topic() creates a topic,
whatever `allow.auto.create.topics` is.

Left out: ACLs, quotas, reassignment of replicas, election of leaders, transactions; replica
assignments of a new topic; removal of single members of a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from kafkalite.client.admin import (
    config_requests,
    group_requests,
    share_requests,
    topic_requests,
)
from kafkalite.client.admin.config_requests import ConfigValue
from kafkalite.client.admin.group_requests import GroupDescription, GroupListing
from kafkalite.client.admin.share_requests import ShareOffset
from kafkalite.client.net import offset_requests
from kafkalite.client.net.arguments import checked_offset, checked_partition, checked_size
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import limit_s
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.settings import Bootstrap, consumer_settings
from kafkalite.client.net.topology import NO_LEADER, TopicMetadata, TopicPartition
from kafkalite.config.client import ALLOW_AUTO_CREATE_TOPICS, ISOLATION_LEVEL
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas import offsets
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS

DEFAULT = -1
"""The broker's default, in place of a number of partitions or replicas."""


class Admin:
    """Reads and changes a cluster.  Thread-safe; not usable after a fork.

    A timeout is in seconds; None means default.api.timeout.ms.
    """

    EARLIEST = offsets.EARLIEST
    """Stands for the log start offset where list_offsets() takes a timestamp."""
    LATEST = offsets.LATEST
    """Stands for the end of the log where list_offsets() takes a timestamp."""

    def __init__(self, bootstrap: Bootstrap = None, **settings: Any) -> None:
        """Create an admin client; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys
                ("request.timeout.ms": 5000).
            settings: A consumer's keys with underscores (`isolation_level="read_committed"`).

        Raises:
            InvalidConfig: A setting is unknown, invalid or given twice.
        """
        given = consumer_settings(bootstrap, settings)
        self._settings = given.with_value(ALLOW_AUTO_CREATE_TOPICS, False)
        self._cluster = Cluster(self._settings)
        self._isolation_level = int(self._settings[ISOLATION_LEVEL] == "read_committed")

    def close(self) -> None:
        """Close the connections, from any thread; a second call does nothing."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def default_timeout_s(self) -> float:
        """Timeout of a call without a timeout of its own, in seconds."""
        return self._settings.call_timeout_s

    # Topics.

    def describe_topics(
        self, topics: Iterable[str], timeout: float | None = None
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Return the metadata of topics, by one request.

        Args:
            topics: Names of topics.
            timeout: Seconds to wait.

        Returns:
            By topic its TopicMetadata (name, topic_id, partitions with leader and epoch), or the
            error of the topic, such as UnknownTopicOrPartition.

        Raises:
            KafkaError: No broker responded.
        """
        return self._cluster.describe(topics, self._limit_s(timeout), create=False)

    def list_topics(self, timeout: float | None = None) -> dict[str, TopicMetadata | KafkaError]:
        """Return the metadata of all visible topics without internal ones, by one request.

        Args:
            timeout: Seconds to wait.

        Returns:
            The same as describe_topics().

        Raises:
            KafkaError: No broker responded.
        """
        return self._cluster.all_topics(self._limit_s(timeout))

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a topic.

        Args:
            name: Name of the topic.
            partitions: Number of partitions; None: the broker's `num.partitions`.
            replication_factor: Replicas of each partition; None: the broker's
                `default.replication.factor`.
            configs: The topic's configuration, by Kafka's keys; a list is joined by commas.
            timeout: Seconds to wait.

        Raises:
            TopicAlreadyExists: There is a topic of this name.
            InvalidTopicException: The name is not valid.
            InvalidConfig, InvalidPartitions, InvalidReplicationFactor: A value is not valid.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        topic = {
            "name": name,
            "num_partitions": _count(partitions, "partitions"),
            "replication_factor": _count(replication_factor, "replication_factor"),
            "configs": [
                {"name": key, "value": config_requests.config_text(value)}
                for key, value in (configs or {}).items()
            ],
        }
        topic_requests.create_topic(self._cluster, topic, self._limit_s(timeout))

    def delete_topic(self, name: str, timeout: float | None = None) -> None:
        """Delete a topic and its records.

        Args:
            name: Name of the topic.
            timeout: Seconds to wait.

        Raises:
            UnknownTopicOrPartition: The topic does not exist.
            TopicDeletionDisabled: The brokers have `delete.topic.enable=false`.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        topic_requests.delete_topic(self._cluster, name, self._limit_s(timeout))

    def create_partitions(self, name: str, count: int, timeout: float | None = None) -> None:
        """Add partitions to a topic.

        Records with a key may go to another partition than before.

        Args:
            name: Name of the topic.
            count: Number of partitions that the topic has afterwards.
            timeout: Seconds to wait.

        Raises:
            InvalidPartitions: The topic has as many partitions, or more.
            UnknownTopicOrPartition: The topic does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        wanted = checked_size(count, "count")
        topic_requests.create_partitions(self._cluster, name, wanted, self._limit_s(timeout))

    def delete_records(
        self, before: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, for each partition.

        Args:
            before: For each (topic, partition) the offset of the first record to keep.
            timeout: Seconds to wait.

        Returns:
            The log start offset of each partition.

        Raises:
            OffsetOutOfRange: An offset is beyond the high watermark.
            UnknownTopicOrPartition: A topic or partition does not exist.
            PolicyViolation: The topic is compacted only.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        offsets_before: dict[tuple[str, int], int] = {
            checked_partition(place): checked_offset(offset, "an offset")
            for place, offset in before.items()
        }
        return topic_requests.delete_records(self._cluster, offsets_before, self._limit_s(timeout))

    def log_sizes(
        self, topics: Iterable[str], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the size of the leader's log of each partition in bytes.

        Args:
            topics: Names of topics.
            timeout: Seconds to find the leaders of each topic; each leader has request.timeout.ms
                to respond.

        Returns:
            Sizes by partition, without partitions that have no leader or whose log's directory
            cannot be read.

        Raises:
            KafkaError: A topic does not exist, or a leader did not respond.
        """
        leaders: dict[int, dict[str, list[int]]] = {}
        for topic in topics:
            partitions = self._cluster.topic(topic, self._limit_s(timeout)).partitions
            for number, metadata in partitions.items():
                leaders.setdefault(metadata.leader, {}).setdefault(topic, []).append(number)
        sizes: dict[TopicPartition, int] = {}
        for node_id, led in leaders.items():
            if node_id == NO_LEADER:
                continue
            body = {
                "topics": [{"topic": name, "partitions": numbers} for name, numbers in led.items()]
            }
            response = self._cluster.request(node_id, DESCRIBE_LOG_DIRS, body)
            for directory in response.results:
                for found in directory.topics:
                    for entry in found.partitions:
                        partition = TopicPartition(found.name, entry.partition_index)
                        sizes[partition] = max(sizes.get(partition, 0), entry.partition_size)
        return sizes

    # Configurations.

    def describe_config(
        self, kind: str, name: str, timeout: float | None = None
    ) -> dict[str, ConfigValue]:
        """Return the configuration of a topic, broker, group or of clients' metrics.

        Args:
            kind: "topic", "broker", "broker-logger", "group" or "client-metrics".
            name: Name of the topic or group, or node id of the broker as text; '' for the values
                of all brokers.
            timeout: Seconds to wait.

        Returns:
            ConfigValue(value, source, is_read_only, is_sensitive) by key.

        Raises:
            UnknownTopicOrPartition: The topic does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        resource = config_requests.resource_of(kind)
        return config_requests.describe_config(
            self._cluster, resource, name, self._limit_s(timeout)
        )

    def alter_config(
        self, kind: str, name: str, values: Mapping[str, Any], timeout: float | None = None
    ) -> None:
        """Change some keys of a configuration; all of these changes are made, or none.

        Args:
            kind: The same as in describe_config().
            name: The same as in describe_config().
            values: The new value of each key; None returns the key to its default.
            timeout: Seconds to wait.

        Raises:
            InvalidConfig: A key is unknown, or a value is not valid.
            UnknownTopicOrPartition: The topic does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        resource = config_requests.resource_of(kind)
        texts = {
            key: None if value is None else config_requests.config_text(value)
            for key, value in values.items()
        }
        config_requests.alter_config(self._cluster, resource, name, texts, self._limit_s(timeout))

    # Groups.

    def list_groups(
        self,
        types: Collection[str] = (),
        states: Collection[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """Return the groups of the cluster.

        Args:
            types: Only groups of these types: "classic", "consumer", "share" (Kafka 3.8 or newer).
            states: Only groups in these states, such as "Empty" (Kafka 2.6 or newer).
            timeout: Seconds to wait.

        Returns:
            GroupListing(group_id, type, state, protocol_type), sorted by name.

        Raises:
            KafkaError: A broker did not respond, or with an error that is not retriable.
        """
        limit_s = self._limit_s(timeout)
        return group_requests.list_groups(
            self._cluster, _texts(types, "types"), _texts(states, "states"), limit_s
        )

    def describe_group(self, group: str, timeout: float | None = None) -> GroupDescription:
        """Return a group and its members.

        Args:
            group: Name of a group of any type.
            timeout: Seconds to wait.

        Returns:
            GroupDescription with the members and the partitions each is assigned.

        Raises:
            GroupIdNotFound: The group does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        return group_requests.describe_group(self._cluster, group, self._limit_s(timeout))

    def delete_group(self, group: str, timeout: float | None = None) -> None:
        """Delete a group and its committed offsets.

        Args:
            group: Name of the group.
            timeout: Seconds to wait.

        Raises:
            NonEmptyGroup: The group has members.
            GroupIdNotFound: The group does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        group_requests.delete_group(self._cluster, group, self._limit_s(timeout))

    # Offsets.

    def list_offsets(
        self, times: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAt]:
        """Return the first record at or after a time, for each partition.

        Args:
            times: For each (topic, partition) milliseconds since 1970, EARLIEST or LATEST.
            timeout: Seconds to wait.

        Returns:
            OffsetAt(offset, timestamp) by partition; both are -1 if there is no such record.  With
            isolation.level=read_committed, LATEST is the last stable offset.

        Raises:
            UnknownTopicOrPartition: A topic or partition does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        return offset_requests.list_offsets(
            self._cluster, times, self._isolation_level, self._limit_s(timeout)
        )

    def committed_offsets(
        self,
        group: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of a group.

        Args:
            group: Name of the group.
            partitions: (topic, partition) pairs; None: all that have an offset.
            timeout: Seconds to wait.

        Returns:
            Offsets by partition; None where nothing is committed.

        Raises:
            KafkaError: An error that is not retriable, or that lasts until the timeout.
        """
        if partitions is None:
            return group_requests.all_committed_offsets(
                self._cluster, group, self._limit_s(timeout)
            )
        return offset_requests.committed_offsets(
            self._cluster, group, partitions, self._limit_s(timeout)
        )

    def commit_offsets(
        self, group: str, positions: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> None:
        """Commit offsets for a group without members.

        Args:
            group: Name of the group.
            positions: For each (topic, partition) the offset of the next record.
            timeout: Seconds to wait.

        Raises:
            UnknownMemberId, IllegalGeneration, RebalanceInProgress: The group has members; only
                they may commit.
            UnknownTopicOrPartition: A topic or partition does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        offset_requests.commit_offsets(
            self._cluster, group, dict(positions), self._limit_s(timeout)
        )

    def share_offsets(
        self, group: str, timeout: float | None = None
    ) -> dict[TopicPartition, ShareOffset]:
        """Return how far a share group has processed its partitions.

        Args:
            group: Name of the share group.
            timeout: Seconds to wait.

        Returns:
            ShareOffset(start_offset, lag, leader_epoch, in_flight, deliveries) by partition; empty
            if the share group does not exist.

        Raises:
            KafkaError: An error that is not retriable, or that lasts until the timeout.
        """
        return share_requests.share_offsets(self._cluster, group, self._limit_s(timeout))

    def alter_share_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> None:
        """Let a share group begin at other offsets; it has no members.

        Args:
            group: Name of the share group; it is created if it does not exist.
            offsets: For each (topic, partition) the offset of the next record.
            timeout: Seconds to wait.

        Raises:
            NonEmptyGroup: The group has members.
            UnknownTopicOrPartition: A topic or partition does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        wanted = {
            checked_partition(place): checked_offset(offset, "an offset")
            for place, offset in offsets.items()
        }
        share_requests.alter_share_offsets(self._cluster, group, wanted, self._limit_s(timeout))

    def delete_share_offsets(
        self, group: str, topics: Collection[str], timeout: float | None = None
    ) -> None:
        """Delete the state of topics in a share group, which has no members.

        Args:
            group: Name of the share group.
            topics: Names of topics.
            timeout: Seconds to wait.

        Raises:
            NonEmptyGroup: The group has members.
            UnknownTopicOrPartition: The group has no state of a topic.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        names = _texts(topics, "topics")
        share_requests.delete_share_offsets(self._cluster, group, names, self._limit_s(timeout))

    def delete_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> None:
        """Delete committed offsets of a group.

        Args:
            group: Name of the group.
            partitions: (topic, partition) pairs.
            timeout: Seconds to wait.

        Raises:
            GroupSubscribedToTopic: A member of the group consumes one of the topics.
            GroupIdNotFound: The group does not exist.
            UnknownTopicOrPartition: A topic or partition does not exist.
            KafkaError: Another error that is not retriable, or that lasts until the timeout.
        """
        places = [checked_partition(each) for each in partitions]
        group_requests.delete_offsets(self._cluster, group, places, self._limit_s(timeout))

    def _limit_s(self, timeout: float | None) -> float | None:
        return None if timeout is None else limit_s(timeout)


def _count(value: int | None, name: str) -> int:
    """Return a number of partitions or replicas; None is the broker's default."""
    return DEFAULT if value is None else checked_size(value, name)


def _texts(values: Collection[str], name: str) -> list[str]:
    """Return a list of texts; raise TypeError for a single text."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of texts, not {values!r}")
    return [*values]
