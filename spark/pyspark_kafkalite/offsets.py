"""Offsets as Spark's Kafka source writes them: {"flights": {"0": 23, "1": 345}}.

The text is the same, in a checkpoint and in `startingOffsets`, so that either moves over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from kafkalite.client.net.topology import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]

EARLIEST, LATEST = -2, -1
"""What stands for the first offset there is, and for the end, where offsets are given."""

INT64_MAX = (1 << 63) - 1


class OffsetRange(NamedTuple):
    """The records start ≤ offset < end of a partition; `topic_id` (16 bytes) if it is known."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None

    @property
    def span(self) -> int:
        """How many offsets; records are fewer where there are gaps."""
        return self.end - self.start


def told(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets as JSON has them, in the order of topics and partitions."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def heard(said: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Offsets from what a checkpoint holds."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in said.items()
        for partition, offset in partitions.items()
    }


def parsed(text: str, option: str, example: str) -> dict[str, Any]:
    """A JSON object out of an option; ValueError says which option, and what it looks like."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not all(isinstance(name, str) and name for name in said):
        raise ValueError(f"{option} is JSON like {example}, not {text!r}.")
    return said


def by_partition(text: str, option: str, least: int) -> Offsets:
    """{"topic": {"0": 23}} out of an option, every number at least `least`."""
    example = '{"flights": {"0": 23, "1": 345}}'
    found: Offsets = {}
    for topic, partitions in parsed(text, option, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{option}: of topic {topic!r} it tells {partitions!r}, not"
                             f" {example}.")  # fmt: skip
        for name, offset in partitions.items():
            partition = int(name) if name.isascii() and name.isdigit() else -1
            if partition < 0:
                raise ValueError(f"{option}: topic {topic!r} has no partition {name!r}.")
            if type(offset) is not int or not least <= offset <= INT64_MAX:
                raise ValueError(f"{option}: partition {partition} of {topic!r} cannot begin or"
                                 f" end at {offset!r}.")  # fmt: skip
            found[TopicPartition(topic, partition)] = offset
    return found
