"""Internal topics: the settings with which the coordinators' topics are created, as in Kafka.

A topic of another version that lacks one of these keys has it from here, too: else its segments
would grow to 1 GiB before the log cleaner may clean them.

With several replicas the minimum in sync is 2, so a record that a coordinator has acknowledged is
on two of them.  A topic with one replica has no such config of its own: it gets the minimum when it
gets more replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite.config.broker import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    OFFSETS_TOPIC_REPLICATION_FACTOR,
    OFFSETS_TOPIC_SEGMENT_BYTES,
    TRANSACTION_STATE_LOG_MIN_ISR,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_REPLICATION_FACTOR,
    TRANSACTION_STATE_LOG_SEGMENT_BYTES,
)
from kafkalite.config.share_group import (
    SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR,
    SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
    SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR,
    SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES,
)
from kafkalite.config.topic import (
    CLEANUP_POLICY,
    COMPACT,
    COMPRESSION_TYPE,
    DELETE,
    MIN_INSYNC_REPLICAS,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    UNCLEAN_LEADER_ELECTION_ENABLE,
)
from kafkalite.coordination.topic_names import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)

if TYPE_CHECKING:
    from kafkalite.config.key import ConfigKey
    from kafkalite.config.settings import Settings


class InternalTopic(NamedTuple):
    """The settings of a coordinator's topic."""

    partition_count: ConfigKey[int]
    replication_factor: ConfigKey[int]
    config: Mapping[ConfigKey[Any], str]
    from_broker: Mapping[ConfigKey[Any], ConfigKey[Any]]
    """Keys of the topic, with the keys of the broker that set them."""


INTERNAL_TOPICS = {
    CONSUMER_OFFSETS: InternalTopic(
        OFFSETS_TOPIC_NUM_PARTITIONS,
        OFFSETS_TOPIC_REPLICATION_FACTOR,
        # Kafka has no broker key for this minimum.
        {CLEANUP_POLICY: COMPACT, COMPRESSION_TYPE: "producer", MIN_INSYNC_REPLICAS: "2"},
        {SEGMENT_BYTES: OFFSETS_TOPIC_SEGMENT_BYTES},
    ),
    TRANSACTION_STATE: InternalTopic(
        TRANSACTION_STATE_LOG_NUM_PARTITIONS,
        TRANSACTION_STATE_LOG_REPLICATION_FACTOR,
        {
            CLEANUP_POLICY: COMPACT,
            COMPRESSION_TYPE: "uncompressed",
            UNCLEAN_LEADER_ELECTION_ENABLE: "false",
        },
        {
            SEGMENT_BYTES: TRANSACTION_STATE_LOG_SEGMENT_BYTES,
            MIN_INSYNC_REPLICAS: TRANSACTION_STATE_LOG_MIN_ISR,
        },
    ),
    SHARE_GROUP_STATE: InternalTopic(
        SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
        SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR,
        # The coordinator deletes what is older than the snapshots.
        {
            CLEANUP_POLICY: DELETE,
            COMPRESSION_TYPE: "producer",
            RETENTION_MS: "-1",
            RETENTION_BYTES: "-1",
        },
        {
            SEGMENT_BYTES: SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES,
            MIN_INSYNC_REPLICAS: SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR,
        },
    ),
}


def internal_config(name: str, settings: Settings) -> dict[str, str]:
    """Return the config of an internal topic, with the broker's settings for it."""
    topic = INTERNAL_TOPICS[name]
    config = {key.name: value for key, value in topic.config.items()}
    return config | {key.name: str(settings[source]) for key, source in topic.from_broker.items()}


def with_minimum_in_sync(config: dict[str, str], factor: int) -> dict[str, str]:
    """Return a config whose minimum of in-sync replicas is not above the number of replicas."""
    minimum = min(int(config[MIN_INSYNC_REPLICAS.name]), factor)
    return config | {MIN_INSYNC_REPLICAS.name: str(minimum)}
