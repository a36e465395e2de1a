"""ShareCoordinator: epochs, merging, snapshots, and what a log with its records restores."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.coordination.share import delivery_states
from kafkalite.coordination.share.delivery_states import merge_batches, merge_into
from kafkalite.coordination.share.share_coordinator import (
    RENEW_BATCHES,
    RENEW_COUNT,
    ShareCoordinator,
)
from kafkalite.coordination.share.state_requests import (
    StateChange,
    StateDeletion,
    StateInitialization,
    StateRead,
    StateSummary,
)
from kafkalite.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest
from kafkalite.protocol.schemas import share_records
from kafkalite.protocol.schemas.share_records import (
    SharePartitionKey,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
)

KEY = SharePartitionKey("g", bytes(range(16)), 0)
OTHER = SharePartitionKey("g", bytes(range(16)), 1)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


class Hosted:
    """A machine, and the log with its records."""

    def __init__(self, snapshot_update_count: int = 500) -> None:
        self.machine = ShareCoordinator(snapshot_update_count)
        self.log: list[tuple[bytes, bytes | None]] = []

    def request(self, *requests):
        (reply,) = self.write(self.machine.decide(requests, None, wall_ms=7))
        return reply.response["outcomes"]

    def write(self, decision):
        for record in decision.records:
            self.log.append(share_records.write(record))
            self.machine.replay(record)
        return decision.response

    def restarted(self, begin=0):
        machine = ShareCoordinator(500)
        for key, value in self.log[begin:]:
            machine.replay(share_records.read(key, value))
        return machine

    def state(self, machine=None, key=KEY):
        decision = (machine or self.machine).decide([StateSummary(key)], None, 0)
        return decision.response[0].response["outcomes"][0]


def change(*batches, key=KEY, start=-1, state_epoch=1, leader_epoch=0, done=0):
    return StateChange(key, state_epoch, leader_epoch, start, done, batches)


@pytest.fixture
def hosted():
    hosted = Hosted()
    hosted.request(StateInitialization(KEY, 1, -1))
    return hosted


def test_changes_are_merged_into_the_state(hosted):
    hosted.request(change(StateBatch(0, 9, AVAILABLE, 1), start=0))
    hosted.request(change(StateBatch(5, 12, ACKNOWLEDGED, 1), start=2, done=8))
    state = hosted.state()
    assert [*state.state_batches] == [(2, 4, AVAILABLE, 1), (5, 12, ACKNOWLEDGED, 1)]
    assert (state.start_offset, state.delivery_complete_count) == (2, 8)


def test_repeated_change_leaves_the_state_as_it_is(hosted):
    wanted = change(StateBatch(0, 9, ARCHIVED, 2), start=0)
    assert hosted.request(wanted) == hosted.request(wanted)


def test_change_that_is_late_does_not_undo_a_newer_delivery(hosted):
    hosted.request(change(StateBatch(0, 0, ACKNOWLEDGED, 3), start=0))
    hosted.request(change(StateBatch(0, 0, AVAILABLE, 2), start=0))
    assert [*hosted.state().state_batches] == [(0, 0, ACKNOWLEDGED, 3)]


def test_read_of_a_new_leader_fences_the_earlier_one(hosted):
    hosted.request(change(StateBatch(0, 0, AVAILABLE, 1), leader_epoch=3))
    (state,) = hosted.request(StateRead(KEY, 5))
    assert state.leader_epoch == 5
    refused, read = hosted.request(change(leader_epoch=4), StateRead(KEY, 4))
    assert isinstance(refused, FencedLeaderEpoch) and isinstance(read, FencedLeaderEpoch)
    assert hosted.state(hosted.restarted()) == state


def test_change_of_an_earlier_state_epoch_is_fenced(hosted):
    hosted.request(StateInitialization(KEY, 3, 100))
    (refused,) = hosted.request(change(state_epoch=2))
    assert isinstance(refused, FencedStateEpoch)
    (refused,) = hosted.request(StateInitialization(KEY, 2, 0))
    assert isinstance(refused, FencedStateEpoch)
    assert hosted.state().start_offset == 100


def test_initialization_again_begins_without_batches_unless_it_is_the_same(hosted):
    count = len(hosted.log)
    hosted.request(StateInitialization(KEY, 1, -1))
    assert len(hosted.log) == count
    hosted.request(change(StateBatch(0, 0, ACKNOWLEDGED, 1), start=0))
    (state,) = hosted.request(StateInitialization(KEY, 2, 50))
    assert (state.start_offset, state.snapshot_epoch, state.state_batches) == (50, 1, ())


def test_state_that_is_not_initialized_is_refused():
    hosted = Hosted()
    read, written, summary, deleted = hosted.request(
        StateRead(KEY, 0), change(), StateSummary(KEY), StateDeletion(KEY)
    )
    assert isinstance(read, InvalidRequest) and isinstance(written, InvalidRequest)
    assert summary is None and deleted is None
    assert not hosted.log


def test_entries_of_one_request_build_on_each_other():
    hosted = Hosted()
    *_, state, deleted = hosted.request(
        StateInitialization(KEY, 1, 0),
        StateInitialization(OTHER, 1, 0),
        change(StateBatch(0, 0, ACKNOWLEDGED, 1), start=0),
        change(StateBatch(1, 1, ACKNOWLEDGED, 1), start=0),
        StateDeletion(OTHER),
    )
    assert [*state.state_batches] == [(0, 1, ACKNOWLEDGED, 1)]
    assert hosted.state() == state and hosted.state(key=OTHER) is None
    assert hosted.state(hosted.restarted(), OTHER) is None


def test_snapshot_follows_after_the_configured_number_of_updates():
    hosted = Hosted(snapshot_update_count=3)
    hosted.request(StateInitialization(KEY, 1, 0))
    for offset in range(8):
        hosted.request(change(StateBatch(offset * 2, offset * 2, ACKNOWLEDGED, 1), start=0))
    kinds = [key[1] for key, _ in hosted.log]
    assert kinds == [0, 1, 1, 1, 0, 1, 1, 1, 0]
    assert [hosted.state(hosted.restarted(begin)) for begin in (4, 8)] == [hosted.state()] * 2


def test_states_of_an_earlier_generation_are_written_again():
    hosted = Hosted()
    keys = [SharePartitionKey("g", bytes(16), index) for index in range(RENEW_COUNT + 1)]
    hosted.request(*(StateInitialization(key, 1, 5) for key in keys))
    hosted.machine.begin_generation()
    hosted.request(change(StateBatch(7, 7, ARCHIVED, 1), key=keys[0]))
    begin = len(hosted.log)
    assert hosted.write(hosted.machine.renew_snapshots(8)) is False
    assert hosted.write(hosted.machine.renew_snapshots(8)) is True
    assert hosted.write(hosted.machine.renew_snapshots(8)) is True
    restored = hosted.restarted(begin)
    assert len(restored) == len(keys) == len(hosted.log) - begin
    assert [*hosted.state(restored, keys[0]).state_batches] == [(7, 7, ARCHIVED, 1)]


def test_renewed_snapshots_of_a_decision_have_a_bounded_number_of_batches():
    hosted = Hosted()
    many = [StateBatch(2 * at, 2 * at, ACKNOWLEDGED, 1) for at in range(RENEW_BATCHES)]
    for key in (KEY, OTHER):
        hosted.request(StateInitialization(key, 1, 0), change(*many, key=key))
    hosted.machine.begin_generation()
    for expected in (False, False, True):
        begin = len(hosted.log)
        assert hosted.write(hosted.machine.renew_snapshots(8)) is expected
        assert len(hosted.log) - begin == (not expected)


def test_update_of_an_earlier_snapshot_is_ignored(hosted):
    late = share_records.write(share_records.ShareStateRecord(KEY, ShareUpdate(-1, 9, 9, 0, ())))
    hosted.machine.replay(share_records.read(*late))
    assert hosted.state().start_offset == -1


# -- merging -------------------------------------------------------------------------------------

batches = st.builds(
    lambda first, size, state, count: StateBatch(first, first + size, state, count),
    st.integers(0, 20), st.integers(0, 8), st.sampled_from([0, 2, 3, 4]), st.integers(0, 3),
)  # fmt: skip


@given(st.lists(batches, max_size=8), st.integers(-1, 25))
@settings(max_examples=200)
def test_merge_takes_the_highest_count_and_state_of_each_offset(given_batches, start):
    expected = {}
    for first, last, state, count in given_batches:
        for offset in range(max(first, start), last + 1):
            expected[offset] = max(expected.get(offset, (-1, -1)), (count, state))
    merged = merge_batches(given_batches, start)
    found = {
        offset: (count, state)
        for first, last, state, count in merged
        for offset in range(first, last + 1)
    }
    assert found == expected
    assert sum(last - first + 1 for first, last, _, _ in merged) == len(expected)
    assert all(a.last_offset < b.first_offset for a, b in zip(merged, merged[1:], strict=False))
    neighbours = zip(merged, merged[1:], strict=False)
    assert not any(a.last_offset + 1 == b.first_offset and a[2:] == b[2:] for a, b in neighbours)


@given(st.lists(batches, max_size=8), st.lists(batches, max_size=3), st.integers(-1, 25))
@settings(max_examples=200)
def test_change_merged_into_a_state_is_as_all_batches_merged(stored, changed, start):
    before = merge_batches(stored, -1)
    assert merge_into(before, changed, start) == merge_batches((*before, *changed), start)


def test_change_of_one_record_is_merged_with_its_neighbours_only(hosted, monkeypatch):
    apart = [StateBatch(offset, offset, AVAILABLE, 1) for offset in range(0, 200, 2)]
    hosted.request(change(*apart, start=0))
    merged = []

    def counted(given_batches, start_offset):
        merged.append(given_batches)
        return merge_batches(given_batches, start_offset)

    monkeypatch.setattr(delivery_states, "merge_batches", counted)
    hosted.request(change(StateBatch(101, 101, AVAILABLE, 1)))
    assert [len(each) for each in merged] == [3, 3]
    assert (100, 102, AVAILABLE, 1) in hosted.state().state_batches


keys = st.sampled_from([KEY, OTHER])
requests = st.one_of(
    st.builds(StateInitialization, keys, st.integers(0, 3), st.integers(-1, 9)),
    st.builds(StateRead, keys, st.integers(0, 3)),
    st.builds(
        StateChange, keys, st.integers(0, 3), st.integers(0, 3),
        st.integers(-1, 9), st.integers(0, 9), st.lists(batches, max_size=3),
    ),
    st.builds(StateDeletion, keys),
)  # fmt: skip


@given(st.lists(st.lists(requests, min_size=1, max_size=3), max_size=12), st.integers(0, 3))
@settings(max_examples=100)
def test_log_restores_the_state(history, snapshot_update_count):
    hosted = Hosted(snapshot_update_count)
    for some in history:
        hosted.request(*some)
    restored = hosted.restarted()
    assert [hosted.state(restored, key) for key in (KEY, OTHER)] == [
        hosted.state(key=key) for key in (KEY, OTHER)
    ]


def test_records_have_the_bytes_of_kafka():
    snapshot = ShareSnapshot(1, 2, 3, 4, 5, 6, 7, (StateBatch(8, 9, 2, 1),))
    key, value = share_records.write(share_records.ShareStateRecord(KEY, snapshot))
    assert key.hex() == "0000000167" + KEY.topic_id.hex() + "00000000"
    assert value.hex() == (
        "0000"
        "00000001"
        "00000002"
        "00000003"
        "0000000000000004"
        "0000000000000006"
        "0000000000000007"
        "02"
        "0000000000000008"
        "0000000000000009"
        "02"
        "0001"
        "00"
        "01"
        "00"
        "04"
        "00000005"
    )
    update = ShareUpdate(1, 2, -1, -1, ())
    key, value = share_records.write(share_records.ShareStateRecord(KEY, update))
    assert key[:2].hex() == "0001"
    assert value.hex() == "00000000000100000002ffffffffffffffff0100"


def test_key_of_a_share_partition_is_read_from_the_right():
    key = SharePartitionKey("a:b:c", bytes(range(16)), 12)
    assert SharePartitionKey.of_text(key.coordinator_key) == key
    for text in ("", "g", "g:t:0", f":{key.coordinator_key.split(':', 3)[3]}", "g:::"):
        assert SharePartitionKey.of_text(text) is None
