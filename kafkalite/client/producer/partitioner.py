"""Where a record goes that names no partition.

A Partitioner is a function of the topic, the key (bytes or None) and how many partitions there
are; it answers one of them, counted from 0.  None in its place is the usual one, which is compiled
(ext/gathering.pyx for a record, ext/hashing.pyx for a column): a key's murmur2 as every Kafka
client computes it, so that a key's records meet whoever wrote them; and records without a key
together, in another partition for each batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from kafkalite.client.net.settings import ClientSettings
from kafkalite.config.client import PARTITIONER

Partitioner: TypeAlias = Callable[[str, bytes | None, int], int]


class RoundRobin:
    """Each partition of a topic in turn, whatever the key."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        turn = self._turns[topic] % count
        self._turns[topic] = turn + 1
        return turn


def partitioner_of(settings: ClientSettings) -> Partitioner | None:
    """The one a producer was asked to use; None for the compiled one."""
    asked: str | Partitioner = settings[PARTITIONER]
    if not isinstance(asked, str):
        return asked
    return RoundRobin() if asked == "round_robin" else None
