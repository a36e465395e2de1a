"""PendingMembers: the member ids that a classic group has handed out, until they are used.

A new dynamic member gets its member id with an error, and joins with it (KIP-394).  An id that is
not used within the session timeout is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.decision_draft import SESSION, DeadlineKey, DecisionDraft

PENDING_SIZE = 500
"""Approximate memory use of a member id in bytes."""


class PendingMembers:
    """The pending member ids of one group."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return PENDING_SIZE * len(self._ids)

    def add(self, member_id: str, session_timeout_ms: int, draft: DecisionDraft) -> None:
        """Add an id that was handed out."""
        self._ids.add(member_id)
        draft.set_deadline(self._deadline(member_id), session_timeout_ms)

    def remove(self, member_id: str, draft: DecisionDraft) -> None:
        """Remove an id if it is pending, with its deadline."""
        if member_id in self._ids:
            self._ids.remove(member_id)
            draft.deadlines.drop(self._deadline(member_id))

    def drop_deadlines(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the deadlines of all pending ids."""
        for member_id in self._ids:
            deadlines.drop(self._deadline(member_id))

    def _deadline(self, member_id: str) -> DeadlineKey:
        return DeadlineKey(SESSION, self._group_id, member_id)
