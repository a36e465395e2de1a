"""Groups under random events, one seed each, with injected bugs that some seed must detect.

KAFKALITE_GROUP_SEEDS=2000 pytest tests/simulation/test_groups.py
"""

from __future__ import annotations

import inspect
import os
import sys
import textwrap

import pytest

from kafkalite.coordination.groups.classic.classic_generation import ClassicGeneration
from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.classic.classic_members import ClassicMembers
from kafkalite.coordination.groups.classic.join_phase import JoinPhase
from kafkalite.coordination.groups.decision_draft import DecisionDraft
from kafkalite.coordination.groups.group_coordinator import GroupCoordinator
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.groups.offsets.committed_offsets import CommittedOffsets
from tests.simulation.group_simulation import GroupSimulation

SEEDS = int(os.environ.get("KAFKALITE_GROUP_SEEDS", "60"))
STEPS = 300
PARTS = 6
SEEDS_PER_BUG = 60


@pytest.mark.parametrize("part", range(PARTS))
def test_group_keeps_invariants_under_random_events(part):
    for seed in range(part, SEEDS, PARTS):
        try:
            GroupSimulation(seed).run(STEPS)
        except AssertionError as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault


BUGS = [
    # (class, method, source text, its replacement)
    (ClassicGroup, "check_commit", "and self.state is GroupState.EMPTY", ""),
    (ClassicGeneration, "member", "generation_id != self.generation_id", "False"),
    (ClassicGeneration, "begin", "self.generation_id + 1", "self.generation_id"),
    (ClassicGroup, "_complete_join", "self._extend_session(member, draft)", "pass"),
    (ClassicGroup, "_complete_join", "draft.set_deadline(self._sync_deadline,", "print("),
    (
        ClassicGeneration, "join_response",
        "self.members if member is self.leader else ()", "self.members",
    ),
    (ClassicGeneration, "join_response", "self.leader.member_id", "member.member_id"),
    (JoinPhase, "begin", "draft.set_deadline(self.deadline, wait_ms)", "pass"),
    (ClassicGroup, "_prepare", "self._complete_sync(", "print("),
    (
        ClassicGroup, "_assign",
        "assigned.get(member.member_id, b\"\")", "request.assignments[0].assignment",
    ),
    (ClassicGroup, "_complete_sync", "self._extend_session(member, draft)", "pass"),
    (ClassicGroup, "_update", "self.members.wait_to_join(member, token),", "None,"),
    (ClassicGroup, "_replace", "self._record(", "print("),
    (ClassicGeneration, "remove", "if member is self.leader:", "if False:"),
    (ClassicGroup, "_remove", "self.unsynced.discard(member.member_id)", "pass"),
    (ClassicGroup, "expire_session", "self._rebalance(draft)", "pass"),
    (ClassicGroup, "replay", "self.recorded = value", "pass"),
    (ClassicGroup, "replay", "self.members.assign(", "print("),
    (ClassicGeneration, "restore", "max(recorded[\"generation\"], 0)", "0"),
    (ClassicGroup, "restore", "self._extend_session(member, draft)", "pass"),
    (ClassicMembers, "rename", "del self.by_id[member.member_id]", "pass"),
    (ClassicMembers, "wait_to_sync", "member.sync_token, token", "member.sync_token, NO_TOKEN"),
    (CommittedOffsets, "_commit", "partitions[index] = offset", "partitions[0] = offset"),
    (CommittedOffsets, "_remove", ".pop(index, None)", ".get(index)"),
    (CommittedOffsets, "expired", "wall_ms >= end_ms", "wall_ms >= begin_ms"),
    (GroupCoordinator, "_fail_unwritten", "if reply.token is not token", "if False"),
    (
        GroupCoordinator, "_decided",
        "self.groups.update_size(group, is_recording=bool(draft.records))", "pass",
    ),
    (
        GroupCoordinator, "_replay_group",
        "self.groups.drop(group)\n        return", "pass\n        return",
    ),
    (GroupTable, "drop", "self.size -= self._sizes.pop(group.group_id, 0)", "pass"),
    (DecisionDraft, "complete", "self.waiting.pop(token, None)", "pass"),
]  # fmt: skip


def with_bug(cls, name, there, bug):
    """Return the method, or the function of a module, with one part of its source replaced."""
    module = cls if inspect.ismodule(cls) else sys.modules[cls.__module__]
    source = textwrap.dedent(inspect.getsource(getattr(cls, name)))
    assert source.count(there) == 1, f"{name} has no {there}"
    scope = {}
    code = "from __future__ import annotations\n" + source.replace(there, bug)
    exec(compile(code, module.__name__, "exec"), vars(module), scope)
    return scope[name]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug[1]}: {bug[3]} for {bug[2]}")
def test_simulation_finds_injected_bug(bug, monkeypatch):
    monkeypatch.setattr(bug[0], bug[1], with_bug(*bug))
    for seed in range(SEEDS_PER_BUG):
        try:
            GroupSimulation(seed).run(STEPS)
        except Exception:
            return
    pytest.fail(f"{SEEDS_PER_BUG} seeds, and no invariant failed")
