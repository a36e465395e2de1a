"""Descriptions of consumer groups and share groups, in steps: a group may have 10,000 members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from kafkalite.coordination.steps import Steps

DescriptionSteps: TypeAlias = Steps[dict[str, Any]]
"""The description of a group as it was when they began, in a step for each member."""


def describe_members(
    group: Mapping[str, Any], members: Iterable[dict[str, Any]]
) -> DescriptionSteps:
    """Return the fields of a group with those of its members; `members` makes them one by one."""
    described = []
    for member in members:
        described.append(member)
        yield 1
    return {**group, "members": described}
