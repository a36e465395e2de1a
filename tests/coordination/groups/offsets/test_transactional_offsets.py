"""Offsets committed in transactions: pending until the marker, then committed or dropped."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.coordination.groups.offsets import pending_offsets
from tests.coordination.groups.harness import CHECK_MS, RETENTION_MS, GroupHarness

FIRST, SECOND = ("t", 0), ("t", 1)
OLD_ID, NEW_ID = bytes([1]) * 16, bytes([2]) * 16


@pytest.fixture
def harness():
    return GroupHarness()


@pytest.fixture(params=["live", "reloaded"])
def settled(request, harness):
    """Return a function that restarts the coordinator, or does nothing."""
    return harness.restart if request.param == "reloaded" else lambda: None


def test_pending_offset_is_shown_after_the_commit_marker(harness, settled):
    harness.commit("g", {FIRST: 1})
    assert harness.commit_in_transaction("g", {FIRST: 5, SECOND: 6}).code == 0
    settled()
    assert harness.offsets("g") == {FIRST: 1}
    assert harness.unstable("g", FIRST, SECOND) == [FIRST, SECOND]
    harness.end_transaction()
    settled()
    assert harness.offsets("g") == {FIRST: 5, SECOND: 6}
    assert harness.unstable("g", FIRST, SECOND) == []


def test_commit_of_no_producer_is_refused(harness):
    refused = harness.commit_in_transaction("g", {FIRST: 5}, producer_id=-1)
    assert refused.code == errors.InvalidProducerIdMapping.code
    assert harness.unstable("g", FIRST) == []


def test_abort_marker_drops_pending_offsets(harness, settled):
    harness.commit("g", {FIRST: 1})
    harness.commit_in_transaction("g", {FIRST: 5, SECOND: 6})
    harness.end_transaction(is_commit=False)
    settled()
    assert harness.offsets("g") == {FIRST: 1}
    assert harness.unstable("g", FIRST, SECOND) == []


def test_later_commit_outside_of_transactions_stays(harness, settled):
    harness.commit_in_transaction("g", {FIRST: 5})
    harness.commit("g", {FIRST: 9})
    settled()
    assert harness.offsets("g") == {FIRST: 9}
    assert harness.unstable("g", FIRST) == [FIRST]
    harness.end_transaction()
    assert harness.offsets("g") == {FIRST: 9}
    assert harness.unstable("g", FIRST) == []


def test_repeated_offset_of_a_transaction_is_later_than_a_commit_before_it(harness, settled):
    harness.commit_in_transaction("g", {FIRST: 5})
    harness.commit("g", {FIRST: 9})
    harness.commit_in_transaction("g", {FIRST: 7})
    settled()
    harness.end_transaction()
    assert harness.offsets("g") == {FIRST: 7}


def test_order_of_records_decides_between_transactions_not_that_of_markers(harness, settled):
    harness.commit_in_transaction("g", {FIRST: 5}, producer_id=1)
    harness.commit_in_transaction("g", {FIRST: 6}, producer_id=2)
    harness.end_transaction(2)
    settled()
    assert harness.offsets("g") == {FIRST: 6}
    assert harness.unstable("g", FIRST) == [FIRST]
    harness.end_transaction(1)
    assert harness.offsets("g") == {FIRST: 6}
    assert not harness.machine.offsets.pending
    assert harness.machine.offsets.pending.size == 0


def test_transaction_that_ends_last_wins_with_a_later_record(harness):
    harness.commit_in_transaction("g", {FIRST: 5}, producer_id=1)
    harness.commit_in_transaction("g", {FIRST: 6}, producer_id=2)
    harness.end_transaction(1)
    assert harness.offsets("g") == {FIRST: 5}
    harness.end_transaction(2)
    assert harness.offsets("g") == {FIRST: 6}


@pytest.mark.parametrize("ended", [1, 2, 3])
def test_partition_is_unstable_until_the_last_transaction_ends(harness, ended):
    for producer_id in (1, 2, 3):
        harness.commit_in_transaction("g", {FIRST: producer_id}, producer_id=producer_id)
    for producer_id in {1, 2, 3} - {ended}:
        harness.end_transaction(producer_id, is_commit=False)
        assert harness.unstable("g", FIRST) == [FIRST]
    harness.end_transaction(ended, is_commit=False)
    assert harness.unstable("g", FIRST) == []


def test_marker_without_pending_offsets_changes_nothing(harness):
    harness.commit("g", {FIRST: 1})
    harness.end_transaction(7)
    assert harness.offsets("g") == {FIRST: 1}


def test_other_partitions_and_groups_are_stable(harness):
    harness.commit_in_transaction("g", {FIRST: 5})
    assert harness.unstable("g", SECOND) == []
    assert harness.unstable("h", FIRST) == []


# -- deletion and expiration ----------------------------------------------------------------------


def test_offset_delete_drops_the_pending_offset(harness, settled):
    harness.commit_in_transaction("g", {FIRST: 5, SECOND: 6})
    assert harness.delete_offsets("g", FIRST).code == 0
    settled()
    harness.end_transaction()
    assert harness.offsets("g") == {SECOND: 6}


def test_group_with_pending_offsets_alone_is_listed_and_deleted(harness, settled):
    harness.commit_in_transaction("g", {FIRST: 5})
    settled()
    assert [(each["group_id"], each["group_state"]) for each in harness.machine.list()] == [
        ("g", "Empty")
    ]
    assert harness.delete_groups("g") == {"g": 0}
    settled()
    assert harness.machine.list() == []
    harness.end_transaction()
    assert harness.offsets("g") == {}


def test_pending_offset_keeps_the_committed_one_from_expiring(harness):
    harness.commit("g", {FIRST: 1, SECOND: 2})
    harness.commit_in_transaction("g", {FIRST: 5})
    harness.after(RETENTION_MS + CHECK_MS)
    assert harness.offsets("g") == {FIRST: 1}
    harness.end_transaction(is_commit=False)
    harness.after(CHECK_MS)
    assert harness.offsets("g") == {}


def test_group_with_a_pending_offset_is_not_deleted_by_expiry(harness):
    client = harness.client()
    harness.stable(client)
    harness.leave("g", (client.member_id, None))
    harness.commit_in_transaction("g", {FIRST: 5})
    harness.after(RETENTION_MS + CHECK_MS)
    assert "g" in harness.machine.groups
    harness.end_transaction(is_commit=False)
    harness.after(CHECK_MS)
    assert "g" not in harness.machine.groups


def test_deleted_topic_drops_pending_offsets_of_its_id(harness):
    harness.commit_in_transaction("g", {FIRST: 5}, topic_id=OLD_ID)
    harness.commit_in_transaction("h", {FIRST: 6}, topic_id=NEW_ID, producer_id=2)
    tombstones = [
        record for record in harness.machine.topic_deletions({"t": {OLD_ID}}) if record is not None
    ]
    harness.take(harness.machine.write_deletions(tombstones, harness.now_ms))
    assert harness.unstable("g", FIRST) == []
    assert harness.unstable("h", FIRST) == [FIRST]


# -- members (KIP-447) ----------------------------------------------------------------------------


def test_member_commits_with_its_generation(harness):
    client = harness.client()
    harness.stable(client)
    member = {"member_id": client.member_id, "generation": client.generation}
    assert harness.commit_in_transaction("g", {FIRST: 1}, **member).code == 0
    stale = {**member, "generation": client.generation - 1}
    illegal = errors.IllegalGeneration.code
    assert harness.commit_in_transaction("g", {FIRST: 1}, **stale).code == illegal
    other = {**member, "member_id": "other"}
    unknown = errors.UnknownMemberId.code
    assert harness.commit_in_transaction("g", {FIRST: 1}, **other).code == unknown


def test_fenced_instance_is_refused(harness):
    client = harness.client(instance_id="i")
    harness.stable(client)
    request = {"member_id": "old", "generation": client.generation, "instance_id": "i"}
    fenced = errors.FencedInstanceId.code
    assert harness.commit_in_transaction("g", {FIRST: 1}, **request).code == fenced
    request = {"member_id": client.member_id, "generation": client.generation, "instance_id": "i"}
    assert harness.commit_in_transaction("g", {FIRST: 1}, **request).code == 0


def test_request_without_a_member_is_accepted_by_an_active_group(harness):
    harness.stable(harness.client())
    assert harness.commit_in_transaction("g", {FIRST: 1}).code == 0


def test_commit_during_a_rebalance_is_accepted(harness):
    client = harness.client()
    harness.joined(client)
    assert harness.state() == "CompletingRebalance"
    assert (
        harness.commit_in_transaction(
            "g", {FIRST: 1}, member_id=client.member_id, generation=client.joined.generation_id
        ).code
        == 0
    )


@pytest.mark.parametrize(
    ("version", "error"), [(3, errors.IllegalGeneration), (5, errors.IllegalGeneration),
                           (6, errors.GroupIdNotFound)],
)  # fmt: skip
def test_generation_for_an_unknown_group_is_refused(harness, version, error):
    request = {"member_id": "m", "generation": 0, "version": version}
    assert harness.commit_in_transaction("g", {FIRST: 1}, **request).code == error.code


def test_group_that_exists_by_its_offsets_alone_has_no_members(harness):
    harness.commit_in_transaction("g", {FIRST: 5})
    refused = harness.commit_in_transaction("g", {FIRST: 6}, generation=3, member_id="m")
    assert refused.code == errors.UnknownMemberId.code


def test_empty_group_id_is_refused(harness):
    assert harness.commit_in_transaction("", {FIRST: 1}).code == errors.InvalidGroupId.code


def test_metadata_too_large_is_an_error_of_the_partition(harness):
    response = harness.commit_in_transaction("g", {FIRST: 1}, metadata="x" * 4097)
    assert response.codes == {FIRST: errors.OffsetMetadataTooLarge.code}
    assert harness.log == []


@pytest.mark.parametrize("name", ["PRODUCER_COUNT_MAX", "COUNT_MAX"])
def test_number_of_pending_offsets_is_bounded(harness, monkeypatch, name):
    monkeypatch.setattr(pending_offsets, name, 1)
    assert harness.commit_in_transaction("g", {FIRST: 5}, producer_id=1).code == 0
    refused = harness.commit_in_transaction("g", {FIRST: 6, SECOND: 6}, producer_id=1)
    assert refused.codes == {FIRST: 0, SECOND: errors.InvalidCommitOffsetSize.code}
    another = harness.commit_in_transaction("g", {FIRST: 7}, producer_id=2)
    assert (another.code == 0) is (name == "PRODUCER_COUNT_MAX")
    harness.end_transaction(1)
    harness.end_transaction(2, is_commit=False)
    assert harness.offsets("g") == {FIRST: 6}
    assert harness.commit_in_transaction("g", {SECOND: 8}, producer_id=1).code == 0
