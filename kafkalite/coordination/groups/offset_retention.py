"""OffsetRetention: the search for expired offsets, and for empty groups without offsets."""

from __future__ import annotations

from collections.abc import Iterator

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.decision_draft import RETENTION, DeadlineKey, DecisionDraft
from kafkalite.coordination.groups.group import Group
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.groups.offsets.committed_offsets import CommittedOffsets
from kafkalite.protocol.schemas.group_records import GroupRecord

SWEEP_COUNT = 1_000
"""Number of groups and offsets after which a tick ends its search; it searches whole groups."""


class OffsetRetention:
    """One search after another, each over the groups that it found at its beginning."""

    def __init__(self, groups: GroupTable, offsets: CommittedOffsets) -> None:
        self._groups = groups
        self._offsets = offsets
        self._sweep: Iterator[str] | None = None

    def restart(self, draft: DecisionDraft) -> None:
        """Begin the next search after a whole interval, unless one is in progress."""
        if self._sweep is None:
            draft.set_deadline(DeadlineKey(RETENTION), draft.limits.retention_check_ms)

    def expire(self, draft: DecisionDraft) -> None:
        """Search some groups for expired offsets; delete empty groups without offsets."""
        if self._sweep is None:
            self._sweep = iter([*dict.fromkeys([*self._groups.ids(), *self._offsets])])
        searched = 0
        for group_id in self._sweep:
            searched += 1 + self._expire_offsets(group_id, draft)
            if searched >= SWEEP_COUNT:
                draft.set_deadline(DeadlineKey(RETENTION), 0)
                return
        self._sweep = None
        self.restart(draft)

    def _expire_offsets(self, group_id: str, draft: DecisionDraft) -> int:
        """Delete the expired offsets of a group; return how many were searched."""
        group = self._groups.get(group_id) or ClassicGroup(group_id)
        count = self._offsets.count_of(group_id)
        expired = [*self._expired(group, draft)] if count else []
        draft.records += expired
        is_left = len(expired) < count
        if group.idle and not is_left and not self._offsets.pending.has_group(group_id):
            self._groups.delete(group, draft)
        return count

    def _expired(self, group: Group, draft: DecisionDraft) -> Iterator[GroupRecord]:
        since_ms = group.offsets_expire_since_ms
        if since_ms is not None:
            retention_ms = draft.limits.retention_ms
            yield from self._offsets.expired(
                group.group_id, group.subscribed, since_ms, retention_ms, draft.wall_ms
            )
