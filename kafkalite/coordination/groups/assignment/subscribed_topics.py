"""Topics: the topics of the cluster as groups see them, and a hash of what assignments depend on.

Left out: racks, which the assignors ignore (assignors.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct as Packing
from typing import NamedTuple, Protocol

import xxhash

TOPIC = Packing("<B16sII")
HASH = Packing("<q")


class KnownTopic(NamedTuple):
    """One topic, as far as a group needs it."""

    name: str
    topic_id: bytes
    partition_count: int


class Topics(Protocol):
    """The topics of the cluster as they are now."""

    def topic(self, name: str) -> KnownTopic | None:
        """Return a topic by name."""

    def topic_by_id(self, topic_id: bytes) -> KnownTopic | None:
        """Return a topic by id."""


def existing(topics: Topics, names: Iterable[str]) -> list[KnownTopic]:
    """Return those of the named topics that exist, in the order of their names."""
    found = (topics.topic(name) for name in sorted(names))
    return [topic for topic in found if topic is not None]


def metadata_hash(topics: Iterable[KnownTopic]) -> int:
    """Return a hash of topics in the order of their names; 0 for none.

    It changes when a topic is created, deleted or gets partitions.  It is compared with itself
    only, so it need not be Kafka's: a group from Kafka's log has one more epoch.
    """
    digest = xxhash.xxh3_64()
    is_empty = True
    for topic in topics:
        name = topic.name.encode()
        digest.update(TOPIC.pack(0, topic.topic_id, topic.partition_count, len(name)) + name)
        is_empty = False
    return 0 if is_empty else int(HASH.unpack(digest.digest())[0])
