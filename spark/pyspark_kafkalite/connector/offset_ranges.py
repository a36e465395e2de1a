"""Offsets in the JSON format of Spark's Kafka source: {"flights": {"0": 23, "1": 345}}.

Checkpoints and `startingOffsets` use the same text, so that either can be taken over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from kafkalite import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]

EARLIEST, LATEST = -2, -1
"""Stand for the log start offset and the end where offsets are given."""

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
        """Number of offsets; there are fewer records if there are gaps."""
        return self.end - self.start


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as a JSON object, sorted by topic and partition."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def offsets_from_json(json_object: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of a checkpoint's JSON object."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json_object.items()
        for partition, offset in partitions.items()
    }


def parsed(text: str, option: str, example: str) -> dict[str, Any]:
    """Return an option's JSON object; raise ValueError with the option and an example."""
    try:
        json_object = json.loads(text)
    except (ValueError, RecursionError):
        json_object = None
    if not isinstance(json_object, dict) or not all(
        isinstance(name, str) and name for name in json_object
    ):
        raise ValueError(f"{option} must be JSON like {example}, not {text!r}.")
    return json_object


def by_partition(text: str, option: str, least: int) -> Offsets:
    """Return the offsets of {"topic": {"0": 23}}, each at least `least`."""
    example = '{"flights": {"0": 23, "1": 345}}'
    found: Offsets = {}
    for topic, partitions in parsed(text, option, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{option} must be like {example}; topic {topic!r} has"
                             f" {partitions!r}.")  # fmt: skip
        for name, offset in partitions.items():
            partition = int(name) if name.isascii() and name.isdigit() else -1
            if partition < 0:
                raise ValueError(f"{option}: {name!r} is not a partition of topic {topic!r}.")
            if type(offset) is not int or not least <= offset <= INT64_MAX:
                raise ValueError(f"{option}: invalid offset {offset!r} of partition {partition}"
                                 f" of topic {topic!r}.")  # fmt: skip
            found[TopicPartition(topic, partition)] = offset
    return found
