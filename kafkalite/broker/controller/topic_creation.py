"""Topic creation: topics that clients create, and the internal topics of the coordinators.

The functions run on the controller's node and use that node's settings as defaults and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite.broker.controller.decisions import DecisionSequence
from kafkalite.broker.node_settings import placement_limits
from kafkalite.config.broker import (
    DEFAULT_REPLICATION_FACTOR,
    NUM_PARTITIONS,
    OFFSETS_TOPIC_NUM_PARTITIONS,
    OFFSETS_TOPIC_SEGMENT_BYTES,
    TRANSACTION_STATE_LOG_MIN_ISR,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_SEGMENT_BYTES,
)
from kafkalite.config.topic import (
    CLEANUP_POLICY,
    COMPACT,
    COMPRESSION_TYPE,
    MIN_INSYNC_REPLICAS,
    SEGMENT_BYTES,
    UNCLEAN_LEADER_ELECTION_ENABLE,
)
from kafkalite.coordination.controller import Controller, NewTopic, TopicDefaults
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kafkalite.errors import KafkaError
from kafkalite.ids import new_id

if TYPE_CHECKING:
    from kafkalite.broker.controller.decisions import DecisionMaker
    from kafkalite.broker.future import Future
    from kafkalite.config.key import ConfigKey
    from kafkalite.config.settings import Settings


class InternalTopic(NamedTuple):
    """The settings of a coordinator's topic."""

    partition_count: ConfigKey[int]
    config: Mapping[ConfigKey[Any], str]
    from_broker: Mapping[ConfigKey[Any], ConfigKey[Any]]
    """Keys of the topic, with the keys of the broker that set them."""


INTERNAL_TOPICS = {
    CONSUMER_OFFSETS: InternalTopic(
        OFFSETS_TOPIC_NUM_PARTITIONS,
        {CLEANUP_POLICY: COMPACT, COMPRESSION_TYPE: "producer"},
        {SEGMENT_BYTES: OFFSETS_TOPIC_SEGMENT_BYTES},
    ),
    TRANSACTION_STATE: InternalTopic(
        TRANSACTION_STATE_LOG_NUM_PARTITIONS,
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
}


def create_topics(
    controller: DecisionMaker,
    settings: Settings,
    wanted: Sequence[NewTopic],
    *,
    validate_only: bool = False,
    on_created: Callable[[Mapping[str, TopicImage | KafkaError]], object] = lambda _: None,
) -> Future[dict[str, TopicImage | KafkaError]]:
    """Create topics with new ids; return a topic or an error by name.

    `on_created` is called with the results of each decision.

    Left out: with `validate_only`, two names of one request that collide as metric names are found
    only within one decision.
    """
    defaults = TopicDefaults(settings[NUM_PARTITIONS], settings[DEFAULT_REPLICATION_FACTOR])
    created_count = 0

    def decide(
        machine: Controller, some: Sequence[NewTopic]
    ) -> DecisionResult[dict[str, TopicImage | KafkaError]]:
        nonlocal created_count
        decided = machine.create_topics(
            some,
            [new_id() for _ in some],
            defaults,
            limits=placement_limits(settings),
            validate_only=validate_only,
            created_count=created_count,
        )
        topics = [topic for topic in decided.response.values() if isinstance(topic, TopicImage)]
        created_count += sum(len(topic.partitions) for topic in topics)
        return decided

    return DecisionSequence(
        controller,
        wanted,
        decide,
        name_of=lambda new: new.name,
        weigh=lambda new: 1 + len(new.config),
        on_decided=on_created,
    ).begin()


def create_internal_topic(controller: DecisionMaker, settings: Settings, name: str) -> Future[None]:
    """Create a coordinator's topic, unless it exists."""
    topic = INTERNAL_TOPICS[name]
    config = {key.name: value for key, value in topic.config.items()}
    config |= {key.name: str(settings[source]) for key, source in topic.from_broker.items()}
    topic_id = new_id()
    return controller.execute(
        lambda machine: machine.create_internal_topic(
            name, topic_id, settings[topic.partition_count], config
        )
    )
