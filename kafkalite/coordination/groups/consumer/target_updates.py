"""TargetUpdates: the targets of large groups, computed and written over several ticks.

    epoch ─▶ deadline ─▶ compute_target, in steps ─▶ records of members, in steps ─▶ target epoch

Meanwhile the group continues with its old assignment epoch.  Members may come and go; then the
group has a newer epoch, and gets the next target after the assignment interval.

All of it is soft state: after a load, or a decision that cannot be written, it begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.assignment.target_assignment import (
    TargetInput,
    TargetMember,
    compute_target,
    wait_ms,
)
from kafkalite.coordination.groups.assignment.topic_partitions import Partitions
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.consumer.group_change import GroupChange
from kafkalite.coordination.groups.decision_draft import TARGET, DeadlineKey, DecisionDraft
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.steps import Steps

STEP_COST = 50_000
"""Cost of the targets in a tick, as in steps.py: about ten milliseconds."""
RECORD_COST = 150
"""Cost of a record: it is encoded and replayed."""
STEP_PAUSE_MS = 1
"""Time between two ticks, in which the event loop serves requests."""


class TargetUpdate:
    """The next target of one group."""

    def __init__(self, group: ConsumerGroup, change: GroupChange) -> None:
        self.group = group
        self.input: TargetInput = change.target_input()
        self._steps: Steps[dict[str, Partitions]] | None = compute_target(self.input)
        self._members: Iterator[TargetMember] = iter(self.input.members)
        self._target: dict[str, Partitions] = {}
        self.is_written = False

    def advance(self, change: GroupChange, cost_max: int) -> int:
        """Compute or write a part that has about this cost; return the cost."""
        cost = 0
        if self._steps is not None:
            try:
                while cost < cost_max:
                    cost += next(self._steps)
                return cost
            except StopIteration as ended:
                self._steps, self._target = None, ended.value
        for member in self._members:
            member_id = self._present(member)
            if member_id is not None:
                is_changed = change.set_target(member_id, self._target[member.member_id])
                cost += RECORD_COST * is_changed
            cost += 1
            if cost >= cost_max:
                return cost
        change.end_target(self.input.epoch)
        self.is_written = True
        return cost

    def _present(self, member: TargetMember) -> str | None:
        """Return the id of a member that is still there, or of the process that replaced it."""
        if member.member_id in self.group.members:
            return member.member_id
        instance_id = member.instance_id
        return None if instance_id is None else self.group.by_instance.get(instance_id)


class TargetUpdates:
    """The targets in progress of all groups of one coordinator; each tick advances some."""

    def __init__(
        self, groups: GroupTable, change: Callable[[ConsumerGroup, DecisionDraft], GroupChange]
    ) -> None:
        self._groups = groups
        self._change = change
        self._updates: dict[str, TargetUpdate | None] = {}
        """None until an update begins."""

    def add(self, group_id: str) -> None:
        """Begin the next target of a group, unless one is in progress."""
        self._updates.setdefault(group_id, None)

    def clear(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop all updates, because the records of one may not have been written; the next
        heartbeat of a group begins again."""
        for group_id in self._updates:
            deadlines.drop(DeadlineKey(TARGET, group_id))
        self._updates.clear()

    def advance(self, draft: DecisionDraft) -> None:
        """Advance the updates in turn; set the deadlines of those that are left, by which classic
        members know that a target is in progress (mixed_membership.py).

        A decision that has records of other changes advances none: an update is of the group as it
        was before the decision.
        """
        left = 0 if draft.records else STEP_COST
        while self._updates and left > 0:
            group_id = next(iter(self._updates))
            update = self._updates.pop(group_id)
            left -= self._advance(group_id, update, left, draft)
        for group_id in self._updates:
            group = self._groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                draft.set_deadline(group.deadline(TARGET), STEP_PAUSE_MS)

    def _advance(
        self, group_id: str, update: TargetUpdate | None, cost_max: int, draft: DecisionDraft
    ) -> int:
        """Advance one update; return the cost."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return 1
        change = self._change(group, draft)
        if update is None or update.group is not group:
            if group.epoch <= group.assignment_epoch:
                return 1
            pause_ms = change.target_wait_ms()
            if pause_ms:
                draft.set_deadline(group.deadline(TARGET), pause_ms)
                return 1
            self._updates[group_id] = update = TargetUpdate(group, change)
            return len(update.input.members)
        if update.input.epoch <= group.assignment_epoch:
            self._updates[group_id] = None  # its members have all left meanwhile
            return 1
        cost = update.advance(change, cost_max)
        if not update.is_written:
            self._updates[group_id] = update
        elif group.epoch > update.input.epoch:
            pause_ms = wait_ms(draft.wall_ms, draft.wall_ms, change.settings, change.member_count)
            draft.set_deadline(group.deadline(TARGET), pause_ms)
        return cost + 1
