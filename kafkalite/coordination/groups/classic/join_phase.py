"""JoinPhase: the wait of a classic group for the members of its next generation.

It lasts until all members have joined and each pending member id was used, at most for the longest
rebalance timeout of the members.  A group that was empty waits for more members instead
(initial_rebalance.py).
"""

from __future__ import annotations

from kafkalite.coordination.groups.classic.classic_members import ClassicMembers
from kafkalite.coordination.groups.classic.initial_rebalance import GATHER_MS, InitialRebalanceDelay
from kafkalite.coordination.groups.classic.pending_members import PendingMembers
from kafkalite.coordination.groups.decision_draft import JOIN, DeadlineKey, DecisionDraft

SESSIONS_WAIT_MS_MIN = 1_000
"""Minimum interval between checks whether any static member has joined."""


class JoinPhase:
    """The join phases of one group, one after another."""

    def __init__(self, group_id: str, members: ClassicMembers, pending: PendingMembers) -> None:
        self.deadline = DeadlineKey(JOIN, group_id)
        self._members = members
        self._pending = pending
        self._initial_delay = InitialRebalanceDelay()

    @property
    def is_complete(self) -> bool:
        """True if the next generation can begin."""
        return self._all_joined and not self._initial_delay.is_paused

    @property
    def _all_joined(self) -> bool:
        return self._members.joined_count == len(self._members) and not self._pending

    def begin(self, was_empty: bool, draft: DecisionDraft) -> bool:
        """Begin a phase; return whether it waits for members."""
        if was_empty:
            wait_ms = self._initial_delay.begin(
                self._members.rebalance_timeout_ms,
                draft.limits.initial_rebalance_delay_ms,
                has_static=bool(self._members.by_instance),
            ) or (GATHER_MS if self._pending else 0)
            waits = wait_ms > 0
        else:
            wait_ms = self._members.rebalance_timeout_ms
            waits = not self._all_joined
        if waits:
            draft.set_deadline(self.deadline, wait_ms)
        return waits

    def note_new_member(self) -> None:
        """Note that a member has joined for the first time."""
        self._initial_delay.add_member()

    def extend(self, draft: DecisionDraft) -> bool:
        """Extend the phase at its timeout if new members have joined; return whether it does."""
        pause_ms = self._initial_delay.extend()
        if pause_ms:
            draft.set_deadline(self.deadline, pause_ms)
        return pause_ms > 0

    def await_static_members(self, draft: DecisionDraft) -> None:
        """Wait for one of the static members to join, or for their sessions to expire."""
        wait_ms = max(self._members.rebalance_timeout_ms, SESSIONS_WAIT_MS_MIN)
        draft.set_deadline(self.deadline, wait_ms)

    def end(self) -> None:
        """End the phase: a generation begins."""
        self._initial_delay.end()
