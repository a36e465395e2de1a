"""The tests of each crash point, fault and missing right of transactions, compaction and groups.

A fault with a number that is not here (F1, F3 to F5, F24) is a scenario of run.py.  The simulation
of tests/simulation/test_transactions.py kills processes at random points, too.
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
SWAP = "tests/storage/test_segment_swap.py"
COORDINATOR = "tests/coordination/test_transaction_coordinator.py"
REQUESTS = "tests/handlers/test_transaction_requests.py"
STATES = "tests/handlers/test_transaction_states.py"
MARKERS = "tests/handlers/test_transaction_markers.py"

Table = dict[str, dict[str, list[str]]]

CRASH_POINTS: Table = {
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
        SWEEP: [
            "test_transaction_lost_by_its_coordinator_is_aborted_after_a_power_cut",
            "test_x16_marker_lost_in_a_power_cut_is_written_again",
            "test_x16_transactional_id_gets_a_new_producer_id_after_a_power_cut",
        ],
    },
    "X17: a worker of older code, a supervisor of newer code": {
        EARLY: ["test_worker_of_older_code_gets_the_markers_when_it_is_replaced"],
        FEATURES: ["test_feature_is_finalized_once_all_workers_support_it"],
    },
}


FAULTS: Table = {
    "F7: the disk as it is after any write, some of them torn or missing": {
        "tests/storage/test_crash_images.py": [
            "test_recovery_succeeds_after_a_crash_at_sampled_writes"
        ],
        SWAP: ["test_crash_at_sampled_calls_of_a_swap_leaves_old_or_new_segments"],
    },
    "F8: each call to the disk fails in turn": {
        "tests/storage/test_faulty_disk.py": [
            "test_log_survives_the_failure_of_each_disk_call",
            "test_recovery_survives_the_failure_of_each_disk_call",
        ],
        SWAP: [
            "test_failing_call_cancels_the_pass",
            "test_failing_call_of_a_swap_cancels_it_or_is_repeated",
        ],
    },
    "F9: damaged files": {
        "tests/storage/test_corruption.py": [
            "test_damaged_files_never_return_records_that_were_not_written"
        ],
        LOG: ["test_damaged_index_is_made_again_from_the_log"],
        SWAP: ["test_damaged_checkpoint_is_ignored"],
    },
    "F15: requests are late, doubled or out of order": {"tests/faults/perturbing.py": ["main"]},
    "F16: the clock jumps": {
        COORDINATOR: [
            "test_wall_clock_change_aborts_nothing",
            "test_timeout_after_a_reload_is_within_its_bounds_whatever_the_clock",
        ],
    },
    "F22: groups under churn, one of them with members of both protocols and five clients": {
        "tests/faults/test_faults.py": ["test_groups_have_one_owner_per_partition_under_churn"],
        "tests/client/test_mixed_groups.py": ["test_members_of_two_clients_read_each_record_once"],
    },
    "F23: exactly-once copies under kills": {"tests/faults/copying.py": ["main"]},
    "F23: applications of Kafka under kills": {"tests/faults/streaming.py": ["main"]},
    "F26: compaction is interrupted": {
        "tests/process/test_compaction.py": [
            "test_kills_in_a_pass_lose_no_last_value_and_move_no_offset"
        ],
        SWAP: ["test_process_killed_in_a_swap_of_several_segments_leaves_all_old_or_all_new"],
    },
    "F30: seeded bugs": {"tests/faults/test_seeded_bugs.py": ["test_seeded_bug_is_caught"]},
    "F31: share groups under kills": {"tests/faults/sharing.py": ["main"]},
}

RIGHTS: Table = {
    "FindCoordinator": {
        "tests/handlers/test_transaction_coordinators.py": [
            "test_find_coordinator_requires_describe_on_each_id"
        ],
    },
    "InitProducerId": {
        REQUESTS: ["test_init_refuses_in_the_order_of_kafka"],
        "tests/handlers/test_transactions.py": [
            "test_init_producer_id_requires_write_permission_on_some_topic"
        ],
    },
    "AddPartitionsToTxn": {
        REQUESTS: [
            "test_add_without_write_on_a_topic_adds_nothing",
            "test_add_without_write_on_the_id_is_refused",
            "test_add_of_a_broker_requires_cluster_action_and_nothing_else",
        ],
    },
    "AddOffsetsToTxn": {
        REQUESTS: ["test_add_offsets_requires_write_on_the_id_and_read_on_the_group"],
    },
    "TxnOffsetCommit": {
        "tests/handlers/test_transactional_offsets.py": ["test_rights_are_checked_in_order"],
    },
    "EndTxn": {REQUESTS: ["test_end_requires_write_on_the_id"]},
    "WriteTxnMarkers": {MARKERS: ["test_marker_needs_alter_or_cluster_action_on_the_cluster"]},
    "Produce": {MARKERS: ["test_records_of_another_principals_transaction_are_refused"]},
    "DescribeProducers": {
        "tests/handlers/test_transactions.py": [
            "test_describe_producers_without_permission_is_refused"
        ],
    },
    "DescribeTransactions": {
        STATES: ["test_describe_needs_describe_on_the_id_and_omits_other_topics"],
    },
    "ListTransactions": {STATES: ["test_list_omits_ids_without_describe"]},
}


@pytest.mark.parametrize(
    ("table", "entry"),
    [
        pytest.param(table, entry, id=entry)
        for table in (CRASH_POINTS, FAULTS, RIGHTS)
        for entry in table
    ],
)
def test_entry_has_its_tests(table: Table, entry: str) -> None:
    for path, names in table[entry].items():
        defined = ast.parse((ROOT / path).read_text()).body
        assert {*names} <= {node.name for node in defined if isinstance(node, ast.FunctionDef)}
