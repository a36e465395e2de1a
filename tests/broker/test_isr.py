"""The leader's view of its followers: who is in sync, and what is committed."""

from __future__ import annotations

import pytest

from kafkalite.broker.replica.divergence import LogRange, find_divergence, truncation_offset
from kafkalite.broker.replica.isr import (
    FollowerFetch,
    InSyncReplicas,
    IsrRules,
    LogEnds,
)
from kafkalite.coordination.partition_image import PartitionImage, RecoveryState
from kafkalite.coordination.replication.alter_partition import IsrMember
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.errors import OffsetOutOfRange
from kafkalite.storage.state.leader_epochs import EpochEnd, LeaderEpochCache

LAG_MS = 100


def leading(*isr, min_isr=1, copies=None, epoch_start=0, node_epochs=None, **fields):
    partition = PartitionImage(1, 3, (1, 2, 3), isr or (1, 2, 3), 7, **fields)
    epochs = {1: 1, 2: 1, 3: 1} if node_epochs is None else node_epochs
    return InSyncReplicas(
        partition, IsrRules(LAG_MS, min_isr, copies), epochs.get,
        epoch_start=epoch_start, high_watermark=0, now_ms=0,
    )  # fmt: skip


def fetch(isr, node_id, offset, *, end=10, now_ms=0, durable=-1, node_epoch=1):
    return isr.fetched(FollowerFetch(node_id, node_epoch, offset, durable), end, now_ms)


def advanced(isr, end=10, durable=0, now_ms=0):
    isr.advance(LogEnds(end, durable), now_ms)
    return isr.high_watermark


def proposed(isr, end=10, durable=10, now_ms=0):
    proposal = isr.propose(LogEnds(end, durable), now_ms)
    return None if proposal is None else [member.node_id for member in proposal.isr]


def test_high_watermark_is_what_all_in_sync_replicas_have():
    isr = leading()
    assert advanced(isr) == 0
    fetch(isr, 2, 8)
    assert advanced(isr) == 0
    fetch(isr, 3, 5)
    assert advanced(isr) == 5
    fetch(isr, 3, 4)
    assert advanced(isr) == 5  # it never decreases


def test_low_watermark_is_the_lowest_log_start_of_the_members():
    isr = leading(1, 2)
    assert isr.low_watermark(7) == -1
    isr.fetched(FollowerFetch(2, 1, 10, log_start_offset=5), 10, 0)
    assert isr.low_watermark(7) == 5
    isr.fetched(FollowerFetch(2, 1, 10, log_start_offset=7), 10, 0)
    assert isr.low_watermark(7) == 7  # node 3 is no member


def test_high_watermark_stays_while_too_few_are_in_sync():
    isr = leading(1, min_isr=2)
    assert advanced(isr) == 0
    assert not isr.has_min_isr


def test_minimum_above_the_factor_counts_as_the_factor():
    isr = leading(min_isr=5)
    assert isr.has_min_isr


def test_follower_joins_with_all_committed_records():
    isr = leading(1)
    advanced(isr, end=6)
    fetch(isr, 2, 5, end=6, now_ms=200)
    assert proposed(isr, end=6) is None
    fetch(isr, 2, 6, end=6, now_ms=200)
    assert proposed(isr, end=6) == [1, 2]
    assert proposed(isr, end=6) is None  # it is pending


def test_follower_does_not_join_before_the_epoch_start():
    isr = leading(1, epoch_start=8)
    fetch(isr, 2, 7)
    assert proposed(isr) is None


@pytest.mark.parametrize("node_epochs", [{1: 1}, {1: 1, 2: 2}])
def test_fenced_or_restarted_node_does_not_join(node_epochs):
    isr = leading(1, node_epochs=node_epochs)
    fetch(isr, 2, 10)
    assert proposed(isr) is None


def test_node_that_restarted_since_its_fetch_does_not_join():
    epochs = {1: 1, 2: 1}
    isr = leading(1, node_epochs=epochs)
    fetch(isr, 2, 10)
    epochs[2] = 2
    assert proposed(isr) is None
    fetch(isr, 2, 10, node_epoch=2)
    assert proposed(isr) == [1, 2]


def test_fetch_of_an_older_process_is_not_counted():
    isr = leading(1, 2, node_epochs={1: 1, 2: 2})
    assert not fetch(isr, 2, 10)
    assert fetch(isr, 2, 10, node_epoch=2)
    assert advanced(isr) == 10


def test_fetch_that_a_newer_process_has_overtaken_is_not_counted():
    isr = leading(1, 2)
    assert fetch(isr, 2, 5, node_epoch=2)  # which the image does not have yet
    assert not fetch(isr, 2, 10)
    assert advanced(isr) == 5


def test_high_watermark_counts_a_member_that_is_proposed():
    isr = leading(1)
    advanced(isr, end=6)
    fetch(isr, 2, 6, end=6)
    assert proposed(isr, end=6) == [1, 2]
    assert advanced(isr, end=9, now_ms=10_000) == 6
    isr.not_applied()
    assert advanced(isr, end=9, now_ms=10_000) == 9


def test_high_watermark_waits_for_a_follower_that_is_about_to_join():
    isr = leading(1)
    fetch(isr, 2, 10, end=10, now_ms=50)
    assert advanced(isr, end=12, now_ms=60) == 10
    assert advanced(isr, end=12, now_ms=200) == 12


def test_follower_that_lags_leaves_and_is_counted_until_that_is_decided():
    isr = leading(1, 2)
    fetch(isr, 2, 4)
    assert proposed(isr, now_ms=LAG_MS) is None
    assert proposed(isr, now_ms=LAG_MS + 1) == [1]
    assert advanced(isr, now_ms=LAG_MS + 1) == 4
    isr.update(isr.partition._replace(isr=(1,), partition_epoch=8))
    assert advanced(isr, now_ms=LAG_MS + 1) == 10


def test_follower_that_left_joins_only_with_another_fetch():
    isr = leading(1, 2, min_isr=2)
    fetch(isr, 2, 10)
    assert advanced(isr) == 10
    assert proposed(isr, end=11, now_ms=LAG_MS + 1) == [1]
    isr.update(isr.partition._replace(isr=(1,), partition_epoch=8))
    assert advanced(isr, end=11, now_ms=LAG_MS + 1) == 10  # and it has all records below that
    assert proposed(isr, end=11, now_ms=LAG_MS + 2) is None
    fetch(isr, 2, 10, end=11, now_ms=LAG_MS + 3)
    assert proposed(isr, end=11, now_ms=LAG_MS + 3) == [1, 2]


def test_follower_with_all_records_never_lags():
    isr = leading(1, 2)
    fetch(isr, 2, 10)
    assert proposed(isr, now_ms=1_000_000) is None


def test_follower_that_had_all_records_at_its_previous_fetch_was_caught_up_then():
    isr = leading(1, 2)
    fetch(isr, 2, 8, end=10, now_ms=1_000)
    fetch(isr, 2, 10, end=20, now_ms=1_500)
    assert proposed(isr, end=20, now_ms=1_000 + LAG_MS) is None
    assert proposed(isr, end=20, now_ms=1_001 + LAG_MS) == [1]


def test_older_image_of_the_partition_is_ignored():
    isr = leading(1, 2)
    assert not isr.update(isr.partition._replace(isr=(1,), partition_epoch=7))
    assert isr.partition.isr == (1, 2)


def test_proposal_of_a_recovering_leader_ends_the_recovery():
    isr = leading(1, recovery_state=RecoveryState.RECOVERING)
    proposal = isr.propose(LogEnds(10, 10), 0)
    assert proposal is not None and proposal.recovery_state is RecoveryState.RECOVERED
    assert proposal.isr == [IsrMember(1)]


def test_member_is_proposed_with_the_node_epoch_of_its_fetch():
    isr = leading(1)
    fetch(isr, 2, 10)
    proposal = isr.propose(LogEnds(10, 10), 0)
    assert proposal.isr == [IsrMember(1), IsrMember(2, 1)]


# -- flushed copies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "committed"),
    [
        (None, 10), (DurableCopies.LEADER, 9), (DurableCopies.MIN_ISR, 7), (DurableCopies.ALL, 5),
    ],
)  # fmt: skip
def test_committed_records_are_flushed_on_enough_replicas(copies, committed):
    isr = leading(min_isr=2, copies=copies)
    fetch(isr, 2, 10, durable=7)
    fetch(isr, 3, 10, durable=5)
    assert advanced(isr, durable=9) == committed


def test_nothing_is_committed_before_the_epoch_start_is_flushed():
    isr = leading(1, 2, copies=DurableCopies.LEADER, epoch_start=8)
    fetch(isr, 2, 10)
    assert advanced(isr, durable=7) == 0
    assert advanced(isr, durable=8) == 8


@pytest.mark.parametrize("copies", [DurableCopies.MIN_ISR, DurableCopies.ALL])
def test_leader_alone_reports_no_flushed_copies_below_the_minimum(copies):
    isr = leading(1, min_isr=2, copies=copies, witnesses=(2,))
    assert isr.propose(LogEnds(10, 10), 0) is None


def test_fewer_flushed_copies_than_the_minimum_commit_nothing():
    isr = leading(1, 2, min_isr=2, copies=DurableCopies.MIN_ISR)
    fetch(isr, 2, 9, durable=9)
    assert proposed(isr, now_ms=LAG_MS + 1) == [1]
    assert advanced(isr, durable=10, now_ms=LAG_MS + 1) == 0


def test_flushed_copies_are_counted_on_members_that_stay():
    isr = leading(min_isr=2, copies=DurableCopies.MIN_ISR)
    fetch(isr, 2, 10, end=10, durable=3, now_ms=1_000)
    fetch(isr, 3, 9, end=10, durable=9)
    assert proposed(isr, now_ms=1_000) == [1, 2]
    assert advanced(isr, durable=9, now_ms=1_000) == 3


def test_lagging_member_stays_until_the_others_have_flushed():
    isr = leading(min_isr=2, copies=DurableCopies.MIN_ISR, flushed_copies=2)
    fetch(isr, 2, 10, durable=3)
    fetch(isr, 3, 9, durable=9)
    assert advanced(isr, durable=9) == 9
    fetch(isr, 2, 10, durable=3, now_ms=1_000)
    assert proposed(isr, now_ms=1_000) is None
    fetch(isr, 2, 10, durable=9, now_ms=1_000)
    assert proposed(isr, now_ms=1_000) == [1, 2]


def test_lagging_member_stays_until_records_of_earlier_leaders_are_flushed():
    isr = leading(1, 2, copies=DurableCopies.LEADER, epoch_start=10)
    fetch(isr, 2, 3)
    assert proposed(isr, now_ms=1_000, durable=9) is None
    assert proposed(isr, now_ms=1_000, durable=10) == [1]


def test_leader_reports_that_enough_replicas_have_flushed():
    isr = leading(1, 2, copies=DurableCopies.LEADER, epoch_start=10, witnesses=(3,))
    fetch(isr, 2, 10)
    assert proposed(isr, durable=9) is None
    assert isr.propose(LogEnds(10, 10), 0).flushed_copies


@pytest.mark.parametrize(
    ("copies", "known", "reported"),
    [(DurableCopies.MIN_ISR, 1, 2), (DurableCopies.MIN_ISR, 2, None), (DurableCopies.ALL, 1, 2),
     (DurableCopies.LEADER, 1, None), (None, 1, None)],
)  # fmt: skip
def test_leader_reports_on_how_many_replicas_records_are_flushed(copies, known, reported):
    isr = leading(min_isr=2, copies=copies, flushed_copies=known)
    for node_id in (2, 3):
        fetch(isr, node_id, 10, durable=9)
    advanced(isr, durable=10)
    proposal = isr.propose(LogEnds(10, 10), 0)
    assert (proposal and proposal.flushed_copies) == reported


@pytest.mark.parametrize("copies", [DurableCopies.LEADER, DurableCopies.MIN_ISR])
def test_reassignment_removes_the_leader_once_others_have_flushed(copies):
    isr = leading(copies=copies, removing=(1,))
    fetch(isr, 2, 10, durable=4)
    fetch(isr, 3, 10, durable=3)
    assert advanced(isr, durable=8) == 8
    assert proposed(isr) is None
    fetch(isr, 2, 10, durable=8)
    assert isr.propose(LogEnds(10, 10), 0).flushed_copies
    assert advanced(isr, durable=10) == 8  # from now on the leader's copy does not count
    fetch(isr, 2, 10, durable=9)
    assert advanced(isr, durable=10) == 9


# -- divergence ----------------------------------------------------------------------------------


def cache(*epochs):
    made = LeaderEpochCache()
    for epoch, start in epochs:
        made.assign(epoch, start)
    return made


LEADER = cache((3, 0), (5, 40))


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (60, 5, None), (40, 3, None), (50, 3, EpochEnd(3, 40)), (50, 4, EpochEnd(3, 40)),
        (70, 5, EpochEnd(5, 60)), (20, -1, None),
    ],
)  # fmt: skip
def test_leader_reports_where_a_follower_diverges(offset, epoch, expected):
    assert find_divergence(LEADER, LogRange(10, 60), offset, epoch) == expected


@pytest.mark.parametrize(("offset", "epoch"), [(9, 3), (60, 6), (61, -1)])
def test_fetch_beyond_the_known_epochs_is_out_of_range(offset, epoch):
    with pytest.raises(OffsetOutOfRange):
        find_divergence(LEADER, LogRange(10, 60), offset, epoch)


@pytest.mark.parametrize(
    ("own", "end", "leader", "expected"),
    [
        (cache((3, 0)), 50, EpochEnd(3, 40), 40),
        (cache((3, 0), (4, 45)), 50, EpochEnd(3, 40), 40),
        (cache((3, 0), (4, 30)), 50, EpochEnd(3, 40), 30),
        (cache((2, 0), (4, 30)), 50, EpochEnd(3, 40), 30),
    ],
)
def test_follower_truncates_to_what_both_logs_have(own, end, leader, expected):
    assert truncation_offset(leader, own, end) == expected


def test_partition_is_settled_once_all_replicas_are_in_sync_and_have_all_records():
    isr = leading()
    for node_id in (2, 3):
        fetch(isr, node_id, 10)
    assert not isr.is_settled(10)  # the high watermark has not followed
    assert advanced(isr) == 10 and isr.is_settled(10)
    assert not isr.is_settled(11)
    fetch(isr, 2, 9)
    assert not isr.is_settled(10)
    smaller = leading(1, 2)
    fetch(smaller, 2, 10)
    fetch(smaller, 3, 10)
    advanced(smaller)
    assert not smaller.is_settled(10)


def test_followers_in_sync_with_an_offset_have_it_or_end_there():
    isr = leading(1, 2)
    assert [*isr.in_sync_with(0)] == []
    fetch(isr, 2, 5, end=10, now_ms=1)
    fetch(isr, 3, 10, end=10, now_ms=1)  # not in the ISR
    isr._followers[2].log_start_offset = 3
    assert [node_id for _, _, node_id in isr.in_sync_with(4)] == [2]
    assert [[*isr.in_sync_with(offset)] for offset in (2, 6)] == [[], []]
    ((end_offset, _, _),) = isr.in_sync_with(5)
    assert end_offset == 5
