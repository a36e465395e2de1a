"""Partitioner: selects the partition of a record that names none.

A Partitioner is a function of the topic, the key (bytes or None) and the number of partitions; it
returns a partition, counted from 0.  None stands for the default one, which is compiled
(ext/client/gathering.pyx for a record, ext/client/hashing.pyx for a column): a key's murmur2 as in
every Kafka client, so that records with the same key share a partition whichever client wrote them;
and for records without a key one partition for a batch, another for the next batch (sticky).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from kafkalite.client.net.settings import ClientSettings
from kafkalite.config.client import PARTITIONER

Partitioner: TypeAlias = Callable[[str, bytes | None, int], int]


class RoundRobinPartitioner:
    """Selects the partitions of a topic in turn, regardless of the key."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        index = self._counts[topic] % count
        self._counts[topic] = index + 1
        return index


def partitioner_of(settings: ClientSettings) -> Partitioner | None:
    """Return the configured partitioner; None for the compiled one."""
    configured: str | Partitioner = settings[PARTITIONER]
    if not isinstance(configured, str):
        return configured
    return RoundRobinPartitioner() if configured == "round_robin" else None
