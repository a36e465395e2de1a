"""Partitions of a group's members by topic id, as fields of records and responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kafkalite.coordination.groups.assignment.subscribed_topics import Topics

Partitions: TypeAlias = Mapping[bytes, Sequence[int]]
"""Partitions by topic id."""


def partitions_fields(partitions: Mapping[bytes, Iterable[int]]) -> list[dict[str, Any]]:
    """Return partitions as in records and responses."""
    return [
        {"topic_id": topic_id, "partitions": sorted(partitions[topic_id])}
        for topic_id in sorted(partitions)
    ]


def read_partitions(fields: Sequence[Mapping[str, Any]]) -> dict[bytes, list[int]]:
    """Return partitions from the fields of a record."""
    return {each["topic_id"]: each["partitions"] for each in fields}


def described_partitions(
    partitions: Mapping[bytes, Iterable[int]], topics: Topics
) -> dict[str, Any]:
    """Return partitions as in the description of a member, without topics that are gone."""
    described = []
    for fields in partitions_fields(partitions):
        topic = topics.topic_by_id(fields["topic_id"])
        if topic is not None:
            described.append({**fields, "topic_name": topic.name})
    return {"topic_partitions": described}
