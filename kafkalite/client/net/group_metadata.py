"""Group metadata: what a transaction sends with the offsets of a group (KIP-447).

The group coordinator refuses offsets from a member of an earlier generation, so that a member that
was replaced cannot commit what its successor has processed already.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class GroupMetadata(NamedTuple):
    """A consumer's group, and its membership in it.

    Args:
        group_id: Name of the group.
        generation_id: Generation of the member; -1 if it is no member.
        member_id: Id of the member; empty if it is none.
        group_instance_id: `group.instance.id` of the member, or None.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def checked_group(group: Any) -> GroupMetadata:
    """Return the metadata of a group given by name or metadata; TypeError for another type."""
    if isinstance(group, str):
        return GroupMetadata(group)
    if not isinstance(group, GroupMetadata):
        raise TypeError(f"a group must be its name or a GroupMetadata, not {group!r}")
    return group
