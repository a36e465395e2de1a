"""OfflinePartitions: the partitions assigned to a node that have no log there, with the error.

The log may be awaited from another node, or could not be created.  Partitions are indexed by topic
name and by topic id, since requests use both; the cost of a lookup does not depend on the number of
offline partitions.
"""

from __future__ import annotations

from collections.abc import Set

from kafkalite.errors import KafkaError


class OfflinePartitions:
    """The offline partitions of one node; see the module."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, tuple[str, dict[int, KafkaError]]] = {}
        self._ids: dict[str, bytes] = {}
        """The newest topic id of each name: a deleted topic may have had the same name."""

    def __len__(self) -> int:
        return sum(len(errors) for _, errors in self._by_id.values())

    def add(self, topic: str, topic_id: bytes, index: int, error: KafkaError) -> bool:
        """Store the error of an offline partition; return whether it was online before."""
        self._ids[topic] = topic_id
        _, errors = self._by_id.setdefault(topic_id, (topic, {}))
        news = index not in errors
        errors[index] = error
        return news

    def discard(self, topic_id: bytes, index: int) -> None:
        """Remove a partition that is online."""
        if topic_id in self._by_id:
            _, errors = self._by_id[topic_id]
            errors.pop(index, None)
            if not errors:
                self.remove_topic(topic_id)

    def remove_topic(self, topic_id: bytes) -> None:
        """Remove the partitions of a deleted topic."""
        topic, _ = self._by_id.pop(topic_id, ("", None))
        if self._ids.get(topic) == topic_id:
            del self._ids[topic]

    def of(self, topic: str | bytes) -> Set[int]:
        """Return the offline partitions of a topic."""
        return self._errors(topic).keys()

    def error(self, topic: str | bytes, index: int) -> KafkaError | None:
        """Return the error of an offline partition, or None if it is online."""
        return self._errors(topic).get(index)

    def _errors(self, topic: str | bytes) -> dict[int, KafkaError]:
        topic_id = self._ids.get(topic) if isinstance(topic, str) else topic
        found = self._by_id.get(topic_id) if topic_id is not None else None
        return found[1] if found is not None else {}
