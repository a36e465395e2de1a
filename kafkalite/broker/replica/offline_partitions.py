"""OfflinePartitions: the partitions assigned to a node that have no log there, and why.

A log may be awaited from another node, or it could not be created.  Partitions are indexed by
their topic's name and by its id, since requests use both; every look-up costs the same however
many other partitions are offline.
"""

from __future__ import annotations

from collections.abc import Set

from kafkalite.errors import KafkaError


class OfflinePartitions:
    """The offline partitions of one node; see the module."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, tuple[str, dict[int, KafkaError]]] = {}
        self._ids: dict[str, bytes] = {}
        """The newest id of each name: a deleted topic may have had the same name."""

    def __len__(self) -> int:
        return sum(len(faults) for _, faults in self._by_id.values())

    def add(self, topic: str, topic_id: bytes, index: int, fault: KafkaError) -> bool:
        """Record why a partition is offline; return whether it was online before."""
        self._ids[topic] = topic_id
        _, faults = self._by_id.setdefault(topic_id, (topic, {}))
        news = index not in faults
        faults[index] = fault
        return news

    def discard(self, topic_id: bytes, index: int) -> None:
        """Remove a partition that is online now."""
        if topic_id in self._by_id:
            _, faults = self._by_id[topic_id]
            faults.pop(index, None)
            if not faults:
                self.forget_topic(topic_id)

    def forget_topic(self, topic_id: bytes) -> None:
        """Remove the partitions of a deleted topic."""
        topic, _ = self._by_id.pop(topic_id, ("", None))
        if self._ids.get(topic) == topic_id:
            del self._ids[topic]

    def of(self, topic: str | bytes) -> Set[int]:
        """Return the offline partitions of a topic."""
        return self._faults(topic).keys()

    def fault(self, topic: str | bytes, index: int) -> KafkaError | None:
        """Return why a partition is offline, or None if it is not."""
        return self._faults(topic).get(index)

    def _faults(self, topic: str | bytes) -> dict[int, KafkaError]:
        topic_id = self._ids.get(topic) if isinstance(topic, str) else topic
        found = self._by_id.get(topic_id) if topic_id is not None else None
        return found[1] if found is not None else {}
