"""Groups of both protocols over a faulty network, and injected bugs that some seed must detect.

KAFKALITE_GROUP_SEEDS=3000 pytest tests/simulation/test_mixed_groups.py
"""

from __future__ import annotations

import os

import pytest

from kafkalite.coordination.groups.consumer import consumer_group as consumer_groups
from kafkalite.coordination.groups.consumer import group_change, reconciliation
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from tests.simulation.mixed_group_simulation import MixedGroupSimulation
from tests.simulation.test_groups import with_bug

SEEDS = int(os.environ.get("KAFKALITE_GROUP_SEEDS", "60"))
STEPS = 300
PARTS = 6
SEEDS_PER_BUG = 200


@pytest.mark.parametrize("part", range(PARTS))
def test_mixed_group_keeps_invariants_under_random_events(part):
    accepted = refused = 0
    for seed in range(part, SEEDS, PARTS):
        simulation = MixedGroupSimulation(seed)
        try:
            simulation.run(STEPS)
        except AssertionError as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault
        accepted += simulation.accepted
        refused += simulation.refused
    assert accepted and refused


BUGS = [
    # (class or module, function, source text, its replacement)
    (reconciliation, "_owns_any", "return True", "return False"),
    (reconciliation, "reconcile", "if is_free(topic_id, index):", "if True:"),
    (reconciliation, "reconcile", "if revoked and _owns_any(owned, revoked):", "if False:"),
    (
        reconciliation, "reconcile",
        "current.state is UNREVOKED and _owns_any(owned, current.pending)", "False",
    ),
    (consumer_groups, "_check_commit_epoch", "and epoch >= assigned_epoch", ""),
    (consumer_groups, "_check_commit_epoch", "epoch > current.epoch", "False"),
    (
        consumer_groups, "_check_commit_epoch",
        "(current.assigned, current.pending)", "(current.assigned,)",
    ),
    (ConsumerGroup, "check_commit", "and not self.members", ""),
]  # fmt: skip
USED_IN = {"reconcile": group_change}
"""The module that imports a function by its name."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug[1]}: {bug[3]} for {bug[2]}")
def test_simulation_of_mixed_groups_finds_injected_bug(bug, monkeypatch):
    monkeypatch.setattr(USED_IN.get(bug[1], bug[0]), bug[1], with_bug(*bug))
    for seed in range(SEEDS_PER_BUG):
        try:
            MixedGroupSimulation(seed).run(STEPS)
        except Exception:
            return
    pytest.fail(f"{SEEDS_PER_BUG} seeds, and no invariant failed")
