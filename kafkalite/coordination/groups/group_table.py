"""GroupTable: the groups of one coordinator, by id, within a memory limit.

The sizes are approximate: SIZE_MAX for the metadata and assignments of all members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.decision_draft import DeadlineKey, DecisionDraft
from kafkalite.coordination.groups.group import Group
from kafkalite.errors import GroupMaxSizeReached, UnknownMemberId
from kafkalite.protocol.schemas.group_records import GroupRecord

SIZE_MAX = 256 << 20
"""Approximate memory limit of all groups together: beyond it no new member is accepted."""
SMALL_SIZE = 64 << 10
"""A larger member is accepted only while half of SIZE_MAX is free, so that a few large members
cannot keep out small ones."""


class ConvertedGroup(NamedTuple):
    """A group that a decision makes of one of another type, in the state after its records.

    It takes the place of the group that replaying the decision's records would make, up to the last
    one of the conversion.  So the records of a large group are applied once.
    """

    group: Group
    last: GroupRecord

    def replaces(self, record: GroupRecord) -> bool:
        """Return whether the group has the effect of a record that is replayed."""
        return record.group_id == self.group.group_id

    def ends_with(self, record: GroupRecord) -> bool:
        """Return whether a record is the last one that the group has the effect of."""
        return record.kind == self.last.kind and record.value is not None


class GroupTable:
    """The groups of one coordinator; see the module."""

    def __init__(self, deadlines: Deadlines[DeadlineKey]) -> None:
        self.size = 0
        """Approximate memory use in bytes."""
        self._deadlines = deadlines
        self._groups: dict[str, Group] = {}
        self._sizes: dict[str, int] = {}
        self._replaced: Group | None = None
        """The group that the last decision replaced by one of another type."""
        self.converted: ConvertedGroup | None = None
        """The group that the last decision makes, until its records are replayed."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def ids(self) -> list[str]:
        """Return the ids of the groups as they are now."""
        return [*self._groups]

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def add(self, group: Group) -> None:
        """Add a group, unless it is there; `update_size` counts it."""
        self._groups[group.group_id] = group

    def classic(self, group_id: str) -> ClassicGroup:
        """Return the group of a classic member's request."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise UnknownMemberId()
        return group

    def drop(self, group: Group) -> None:
        """Remove a group."""
        group.drop_deadlines(self._deadlines)
        self._groups.pop(group.group_id, None)
        self.size -= self._sizes.pop(group.group_id, 0)

    def replace(self, known: Group, group: Group, draft: DecisionDraft) -> None:
        """Replace a group by one of another type, before the decision is written."""
        draft.records += known.tombstones()
        self.drop(known)
        self.add(group)
        self._replaced = known

    def end_replacement(self, *, is_written: bool) -> None:
        """Bring back the group that a decision replaced, if the decision was not written."""
        self.converted = None
        known, self._replaced = self._replaced, None
        if known is not None and not is_written:
            other = self.get(known.group_id)
            if isinstance(other, ClassicGroup):
                other.drop_sessions(self._deadlines)
                self.drop(other)
            self.add(known)
            self.update_size(known)

    def delete(self, group: Group, draft: DecisionDraft) -> None:
        """Add the tombstones of a group; one that was never recorded is removed at once."""
        if group.is_recorded:
            draft.records += group.tombstones()
        else:
            self.drop(group)

    def check_memory(self, size: int, before: int) -> None:
        """Raise GroupMaxSizeReached unless `size` bytes fit in place of `before` bytes."""
        bound = SIZE_MAX if size <= SMALL_SIZE else SIZE_MAX // 2
        if size > before and self.size + size - before > bound:
            raise GroupMaxSizeReached(
                "The metadata and assignments of all groups have reached their memory limit; use"
                " fewer members, or smaller subscriptions."
            )

    def update_size(self, group: Group, *, is_recording: bool = False) -> None:
        """Update a group's memory use; drop a group that has no state left.

        With `is_recording`, a decision that is not written yet may record the group.
        """
        if self._groups.get(group.group_id) is not group:
            return
        if group.idle and not group.is_recorded and not is_recording:
            self.drop(group)
            return
        size = group.size
        self.size += size - self._sizes.get(group.group_id, 0)
        self._sizes[group.group_id] = size
