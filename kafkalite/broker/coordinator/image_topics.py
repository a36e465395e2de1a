"""ImageTopics: the topics of the cluster image, as the group coordinators see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache, Topic


class ImageTopics:
    """The topics that a GroupCoordinator looks up."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def topic(self, name: str) -> KnownTopic | None:
        """Return a topic by name."""
        return self._known(name)

    def topic_by_id(self, topic_id: bytes) -> KnownTopic | None:
        """Return a topic by id."""
        return self._known(topic_id)

    def _known(self, name_or_id: Topic) -> KnownTopic | None:
        topic = self._metadata.topic(name_or_id)
        if topic is None:
            return None
        return KnownTopic(topic.name, topic.topic_id, len(topic.partitions))
