"""DeadLetterTopics: the topics to which the share groups of a node write their dead letters.

A group names its topic (errors.deadletterqueue.topic.name), and the topic permits it
(errors.deadletterqueue.group.enable).  One that does not exist is created with that permission if
errors.deadletterqueue.auto.create.topics.enable is set.  All of it is looked up for each batch of
dead letters, since it may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite.config.share_group import (
    ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE,
    ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX,
    RESERVED_PREFIX,
)
from kafkalite.config.topic import (
    ERRORS_DEADLETTERQUEUE_GROUP_ENABLE,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_TYPE,
)
from kafkalite.errors import InvalidConfig, KafkaError, TopicAlreadyExists

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.node_settings import NodeSettings
    from kafkalite.coordination.image import TopicImage

TopicOutcomes: TypeAlias = "Mapping[str, TopicImage | KafkaError | None]"
CreateTopics: TypeAlias = (
    "Callable[[Sequence[str], str | None, Mapping[str, str]], Future[TopicOutcomes]]"
)
"""`create(names, client id, config)`: returns a topic, an error or None by name."""

CREATED_CONFIG = {
    ERRORS_DEADLETTERQUEUE_GROUP_ENABLE.name: "true",
    MESSAGE_TIMESTAMP_TYPE.name: "CreateTime",
}
"""The configuration of a topic that is created, as in Kafka."""


class DeadLetterTarget(NamedTuple):
    """The partition to which dead letters are written."""

    topic_id: bytes
    partition: int
    batch_size_max: int


class DeadLetterTopics:
    """The dead letter topics of share groups; see the module."""

    def __init__(
        self, metadata: MetadataCache, settings: NodeSettings, create_topics: CreateTopics
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._create_topics = create_topics

    def find(self, group_id: str, name: str, source_partition: int) -> DeadLetterTarget | None:
        """Return the target of the dead letters of a partition, or None if its topic is to be
        created.

        Raises InvalidConfig, with Kafka's reason, if the group cannot write to topic `name`.
        """
        settings = self._settings.current
        place = f"for share group {group_id}: topic={name!r}"
        if not name:
            raise InvalidConfig(f"No dead letter topic is configured for share group {group_id}.")
        prefix = settings[ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX]
        if name.startswith(RESERVED_PREFIX) or not name.startswith(prefix):
            raise InvalidConfig(
                f"The name of the dead letter topic must begin with {prefix!r} and not with"
                f" {RESERVED_PREFIX!r} {place}"
            )
        topic = self._metadata.topic(name)
        if topic is None:
            if not settings[ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE]:
                raise InvalidConfig(
                    "The dead letter topic does not exist, and"
                    f" {ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE.name} is false {place}"
                )
            return None
        topic_settings = self._metadata.log_settings_of(topic)
        if not topic_settings[ERRORS_DEADLETTERQUEUE_GROUP_ENABLE]:
            key = ERRORS_DEADLETTERQUEUE_GROUP_ENABLE
            raise InvalidConfig(f"{key.name} of the topic is false {place}")
        partition = source_partition % len(topic.partitions)
        return DeadLetterTarget(topic.topic_id, partition, topic_settings[MAX_MESSAGE_BYTES])

    def create(self, name: str) -> Future[None]:
        """Create a dead letter topic; another share partition may do so at the same time."""

        def check(created: TopicOutcomes) -> None:
            outcome = created.get(name)
            if isinstance(outcome, KafkaError) and not isinstance(outcome, TopicAlreadyExists):
                raise outcome

        return self._create_topics([name], None, CREATED_CONFIG).map(check)
