"""Replication under random faults, one seed each: see replication_simulation.py.

A failure is reproduced by its seed, as is every run of
`python -m tests.simulation.test_replication FIRST_SEED [COUNT]`.  Each seeded bug breaks one rule
of the product, and must be found within SEEDS_MAX seeds.

Left out: stale partition and node epochs, which the simulation does not find in 2,000 seeds; the
tests of alter_partition.py have them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from kafkalite.broker.replica import replica_fetch
from kafkalite.broker.replica.isr import InSyncReplicas
from kafkalite.broker.replica.leader_replication import LeaderReplication
from kafkalite.broker.replica.replica_fetch import FollowerReplication
from kafkalite.coordination.replication import partition_change, recovery_election
from kafkalite.errors import KafkaStorageError
from tests.simulation.replication_simulation import ReplicationSimulation

STEPS = 400
SEEDS = 40
SEEDS_MAX = 2_000


@pytest.mark.parametrize("first", range(0, 200, SEEDS))
def test_replicas_keep_visible_records_under_random_faults(first):
    for seed in range(first, first + SEEDS):
        ReplicationSimulation(seed).run(STEPS)


def test_simulated_faults_lead_to_elections_and_acknowledged_records():
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        run = ReplicationSimulation(seed)
        run.run(STEPS)
        counts += run.counts
    assert counts["elections"] > SEEDS and counts["acknowledged"] > SEEDS


def _ignores_followers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSyncReplicas, "_replicated", lambda self, end, now: end)


def _truncates_to_the_leaders_end(patch: pytest.MonkeyPatch) -> None:
    def truncation_offset(leader, epochs, end_offset):
        return min(leader.end_offset, end_offset)

    patch.setattr(replica_fetch, "truncation_offset", truncation_offset)


def _joins_before_the_epoch_start(patch: pytest.MonkeyPatch) -> None:
    init = InSyncReplicas.__init__

    def begin(self, *args, **options):
        init(self, *args, **{**options, "epoch_start": 0})

    patch.setattr(InSyncReplicas, "__init__", begin)


def _counts_a_shrink_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSyncReplicas, "maximal_isr", property(lambda self: {*self._proposed()}))


def _keeps_a_lost_replica_eligible(patch: pytest.MonkeyPatch) -> None:
    with_elr = partition_change._with_elr
    patch.setattr(
        partition_change, "_with_elr", lambda before, target, rules, lost: with_elr(
            before, target, rules, ()
        )
    )  # fmt: skip


def _advances_below_the_minimum(patch: pytest.MonkeyPatch) -> None:
    advance = InSyncReplicas.advance

    def advance_anyway(self, leader, now_ms):
        rules, self.rules = self.rules, self.rules._replace(min_isr=1)
        try:
            return advance(self, leader, now_ms)
        finally:
            self.rules = rules

    patch.setattr(InSyncReplicas, "advance", advance_anyway)


def _completes_a_reassignment_early(patch: pytest.MonkeyPatch) -> None:
    def complete(target):
        if not target.removing and not target.adding:
            return target
        replicas = tuple(n for n in target.replicas if n not in target.removing)
        return target._replace(replicas=replicas, isr=replicas, adding=(), removing=())

    patch.setattr(partition_change, "_complete_reassignment", complete)


def _elects_any_replica(patch: pytest.MonkeyPatch) -> None:
    elect = partition_change.elect
    patch.setattr(
        partition_change, "elect", lambda partition, is_active, kind: elect(
            partition._replace(isr=partition.replicas), is_active, kind
        )
    )  # fmt: skip


def _notes_progress_of_a_diverging_log(patch: pytest.MonkeyPatch) -> None:
    read = LeaderReplication.read

    def noting_read(self, fetch, size_max, *, whole_first):
        response = read(self, fetch, size_max, whole_first=whole_first)
        if response.diverging is not None:
            self.isr.fetched(fetch.follower, response.log.end_offset, self._now_ms())
        return response

    patch.setattr(LeaderReplication, "read", noting_read)


def _applies_responses_to_another_log_state(patch: pytest.MonkeyPatch) -> None:
    def apply(self, fetch, response):
        if fetch.leader_epoch == self.leader_epoch and response.records:
            self._append(response)

    patch.setattr(FollowerReplication, "apply", apply)


def _forgets_witnesses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_change, "_witnesses", lambda before, after, by_leader: ())


def _recovers_by_the_first_report(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery_election, "max", lambda ends, key: next(iter(ends)), raising=False)


def _recovers_without_one_candidate(patch: pytest.MonkeyPatch) -> None:
    missing_max = ReplicationSimulation._missing_max
    patch.setattr(
        ReplicationSimulation, "_missing_max", lambda self, p: missing_max(self, p) + 1
    )


def _commits_before_the_epoch_is_flushed(patch: pytest.MonkeyPatch) -> None:
    durable = InSyncReplicas._durable

    def counted(self, leader, minimal, maximal):
        flushed = durable(self, leader, minimal, maximal)
        self.epoch_start = min(self.epoch_start, flushed)
        return flushed

    patch.setattr(InSyncReplicas, "_durable", counted)


def _counts_flushed_copies_before_the_report(patch: pytest.MonkeyPatch) -> None:
    def wanted(self, partition):
        rules = self.rules_of(self.image.topics["t"])
        return rules.flushed_copies(partition) - 1

    patch.setattr(ReplicationSimulation, "_missing_max", wanted)


SEEDED_BUGS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _ignores_followers: 0,
    _truncates_to_the_leaders_end: 490,
    _joins_before_the_epoch_start: 410,
    _counts_a_shrink_before_it_is_committed: 0,
    _keeps_a_lost_replica_eligible: 150,
    _advances_below_the_minimum: 40,
    _completes_a_reassignment_early: 0,
    _elects_any_replica: 0,
    _notes_progress_of_a_diverging_log: 0,
    _applies_responses_to_another_log_state: 0,
    _forgets_witnesses: 2_110,
    _recovers_by_the_first_report: 0,
    _recovers_without_one_candidate: 130,
    _counts_flushed_copies_before_the_report: 190,
    _commits_before_the_epoch_is_flushed: 26_400,
}
"""Each bug with the first seed to try, which is near one that finds it."""


@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_simulation_finds_a_seeded_bug(monkeypatch, bug):
    bug(monkeypatch)
    for seed in range(SEEDED_BUGS[bug], SEEDED_BUGS[bug] + SEEDS_MAX):
        try:
            ReplicationSimulation(seed).run(STEPS)
        except (AssertionError, KafkaStorageError):
            return
    pytest.fail(f"no seed of {SEEDS_MAX} finds it")


if __name__ == "__main__":
    begin = int(sys.argv[1])
    seeds = range(begin, begin + int(sys.argv[2])) if len(sys.argv) > 2 else count(begin)
    for seed in seeds:
        if seed % 100 == 0:
            print(seed, end=" ", flush=True)
        ReplicationSimulation(seed).run(STEPS)
