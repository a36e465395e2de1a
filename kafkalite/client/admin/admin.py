"""Admin: metadata, offsets and log sizes of a cluster, as clients plan reads with them.

    with Admin("127.0.0.1:9092") as admin:
        partitions = admin.describe_topics(["flights"])["flights"].partitions
        ends = admin.list_offsets({("flights", number): admin.LATEST for number in partitions})

Each call sends its requests and waits for the responses.  No call creates a topic, whatever
`allow.auto.create.topics` is.

Left out: creating, altering and deleting topics, configurations, groups and ACLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from kafkalite.client.net import offset_requests
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import limit_s
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.settings import Bootstrap, consumer_settings
from kafkalite.client.net.topology import NO_LEADER, TopicMetadata, TopicPartition
from kafkalite.config.client import ALLOW_AUTO_CREATE_TOPICS, ISOLATION_LEVEL
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas import offsets
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS


class Admin:
    """Reads the metadata of a cluster.  Thread-safe; not usable after a fork.

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
        self, group: str, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of a group.

        Args:
            group: Name of the group.
            partitions: (topic, partition) pairs.
            timeout: Seconds to wait.

        Returns:
            Offsets by partition; None where nothing is committed.

        Raises:
            KafkaError: An error that is not retriable, or that lasts until the timeout.
        """
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

    def _limit_s(self, timeout: float | None) -> float | None:
        return None if timeout is None else limit_s(timeout)
