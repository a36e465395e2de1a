"""Processes are killed and stopped under load: no acknowledged record is lost, no client errs.

A short run of each kind.  `make faults` runs all of them for a quarter of an hour, and
`python -m tests.faults F1 --count 300` any number of one; both check recovery times and the rate of
acknowledged records as well.  Here their number must suffice, on a machine however busy.
"""

import shutil

import pytest

from tests.faults.run import Plan, keep, run

ACKED_MIN = 500


def check(plan, directory):
    came = run(plan)
    if not came.good:
        keep(came, directory)
    assert not came.complaints, (
        [each[:300] for each in came.complaints[:10]],
        plan,
        f"see {directory}",
    )
    assert came.history.acked >= ACKED_MIN, plan


def test_single_process_keeps_records_when_killed(tmp_path):
    check(Plan("F1", count=2, seed=1, workers=0, partitions=3, timed=False), tmp_path)


@pytest.mark.parametrize(
    ("fault", "count", "seed"),
    [("F1", 3, 1), ("F3", 2, 2), ("F4", 2, 1), ("F5", 2, 4), ("MOVES", 5, 5)],
)
def test_workers_keep_records_when_killed_paused_or_drained(fault, count, seed, tmp_path):
    check(Plan(fault, count, seed, workers=3, partitions=6, timed=False), tmp_path)


@pytest.mark.parametrize(
    ("fault", "count", "seed", "replicas", "min_isr"),
    [("F1", 4, 1, 3, 2), ("F1", 3, 5, 2, 1), ("F3", 2, 2, 3, 2), ("F4", 2, 3, 3, 2),
     ("F5", 2, 4, 3, 2)],
)  # fmt: skip
def test_replicas_keep_records_and_are_equal_in_the_end(
    fault, count, seed, replicas, min_isr, tmp_path
):
    plan = Plan(fault, count, seed, timed=False, replicas=replicas, min_isr=min_isr)
    check(plan, tmp_path)


def test_groups_have_one_owner_per_partition_under_churn(tmp_path):
    check(Plan("F22", count=5, seed=3, workers=2, partitions=12, timed=False), tmp_path)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler called cc")
def test_ring_producers_that_fail_harm_no_other_client(tmp_path):
    check(Plan("F24", count=10, seed=6, workers=2, partitions=4, timed=False), tmp_path)
