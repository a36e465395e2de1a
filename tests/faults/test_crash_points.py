"""Every crash point of a transaction has a test.

The simulation of tests/simulation/test_transactions.py also kills processes at random points, and
copying.py, perturbing.py and streaming.py do so with real clients.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EARLY = "tests/broker/test_transaction_crash_points.py"
LATE = "tests/broker/test_markers_in_cluster.py"
SWEEP = "tests/broker/test_late_transactions.py"
VERIFICATION = "tests/broker/test_verification_in_cluster.py"
FEATURES = "tests/broker/test_features_in_cluster.py"
PROCESSES = "tests/process/test_transactions.py"
LOG = "tests/storage/test_log_transactions.py"

CRASH_POINTS = {
    "X1: a partition is added, not committed": {
        EARLY: ["test_partition_lost_by_the_supervisor_before_its_commit_is_added_again"],
        VERIFICATION: ["test_death_of_the_supervisor_is_retriable_and_nothing_is_appended_twice"],
    },
    "X2: the coordinator has responded, the records are not appended": {
        EARLY: ["test_partition_added_by_a_worker_that_died_is_verified_again"],
    },
    "X3: the first records are appended, the client has no response": {
        EARLY: ["test_first_records_of_a_worker_that_died_are_appended_once"],
    },
    "X4: EndTxn is read, Prepare is not appended": {
        EARLY: ["test_end_lost_by_the_supervisor_is_repeated_or_times_out"],
    },
    "X5: Prepare is appended, not committed": {
        LATE: ["test_commit_completes_after_a_supervisor_died_with_prepare_unflushed"],
    },
    "X6: Prepare is committed, the client has no response": {
        LATE: ["test_commit_completes_after_a_supervisor_died_between_markers"],
        PROCESSES: ["test_transaction_completes_when_its_coordinator_is_killed_after_the_decision"],
    },
    "X7: some markers are written": {
        LATE: ["test_commit_completes_after_a_supervisor_died_between_markers"],
    },
    "X8: a marker is received, not appended": {
        LATE: ["test_marker_is_sent_again_to_a_worker_that_died_with_it"],
    },
    "X9: a marker is appended, the coordinator has no response": {
        LATE: ["test_marker_is_sent_again_to_a_worker_that_died_with_it"],
    },
    "X10: a marker is appended, its index entry is not written": {
        EARLY: ["test_index_entry_lost_by_a_worker_is_rebuilt_from_the_marker"],
        LOG: ["test_unflushed_index_is_rebuilt_after_a_crash"],
    },
    "X11: supervisor and worker die at once": {
        LATE: ["test_commit_completes_after_supervisor_and_worker_died_at_once"],
    },
    "X12: all markers are written, Complete is not": {
        LATE: ["test_commit_completes_after_a_supervisor_died_before_complete"],
    },
    "X13: the partition moves before its marker": {
        LATE: ["test_marker_follows_a_partition_that_moves_after_prepare"],
    },
    "X14: the topic is deleted before its marker": {
        LATE: ["test_marker_of_a_deleted_topic_counts_as_written"],
    },
    "X15: the partition of an offset is added, the offset is not appended": {
        EARLY: ["test_offset_lost_by_the_supervisor_leaves_nothing_pending"],
    },
    "X16: a power cut takes the records of the coordinator, or of a partition": {
        LATE: ["test_coordinator_that_lost_its_last_records_completes_the_transaction"],
        SWEEP: ["test_transaction_lost_by_its_coordinator_is_aborted_after_a_power_cut"],
    },
    "X17: a worker of older code, a supervisor of newer code": {
        EARLY: ["test_worker_of_older_code_gets_the_markers_when_it_is_replaced"],
        FEATURES: ["test_feature_is_finalized_once_all_workers_support_it"],
    },
}


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_crash_point_has_its_tests(point):
    for path, names in CRASH_POINTS[point].items():
        defined = ast.parse((ROOT / path).read_text()).body
        assert {*names} <= {node.name for node in defined if isinstance(node, ast.FunctionDef)}
