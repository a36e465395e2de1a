"""Changes of partitions: elections, ELR, reassignments and witnesses, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.coordination.partition_image import (
    NO_LEADER,
    PartitionImage,
    RecoveryState,
    change_record,
    partition_of,
    partition_record,
    with_change,
)
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.coordination.replication.election import ElectionResult, ElectionType, elect
from kafkalite.coordination.replication.partition_change import (
    PartitionRules,
    ReplicaSet,
    change,
)
from kafkalite.protocol.schemas import internal
from tests.coordination.replication.factories import MIN_TWO, TOPIC_ID, part

ALL = {1, 2, 3, 4}.__contains__


def only(*nodes: int):
    return set(nodes).__contains__


def nobody(_: int) -> bool:
    return False


# -- elections -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "active", "kind", "expected"),
    [
        (part(2, (1, 2)), ALL, ElectionType.ANY, 2),
        (part(2, (1, 2)), ALL, ElectionType.PREFERRED, 1),
        (part(2, (2, 3)), ALL, ElectionType.PREFERRED, 2),
        (part(1, (1, 2, 3)), only(2, 3), ElectionType.ANY, 2),
        (part(1, (1, 3)), only(2, 3), ElectionType.ANY, 3),
        (part(1, (1,)), only(2, 3), ElectionType.ANY, NO_LEADER),
        (part(1, (1,), elr=(2,)), only(2, 3), ElectionType.ANY, NO_LEADER),
        (part(NO_LEADER, (), elr=(3,)), only(2, 3), ElectionType.ANY, 3),
    ],
)
def test_election_chooses_a_replica_with_all_records(partition, active, kind, expected):
    assert elect(partition, active, kind) == ElectionResult(expected)


def test_election_of_the_last_leader_is_unclean():
    partition = part(NO_LEADER, (), last_known_elr=(3,))
    assert elect(partition, ALL, ElectionType.ANY) == ElectionResult(3, is_unclean=True)
    assert elect(partition, only(1), ElectionType.ANY) == ElectionResult(NO_LEADER)


def test_unclean_election_is_the_last_resort():
    assert elect(part(1, (1,)), only(2), ElectionType.UNCLEAN) == ElectionResult(2, is_unclean=True)
    assert elect(part(1, (1, 3)), only(2, 3), ElectionType.UNCLEAN) == ElectionResult(3)


# -- ISR and ELR ---------------------------------------------------------------------------------


def test_change_without_effect_returns_the_same_partition():
    partition = part(1, (1, 2))
    assert change(partition, MIN_TWO, ALL, isr=(1, 2)) is partition


def test_isr_change_keeps_the_leader_epoch():
    changed = change(part(1, (1, 2)), MIN_TWO, ALL, isr=(1, 2, 3))
    assert changed == part(1, (1, 2, 3), partition_epoch=8)


def test_replica_that_leaves_a_small_isr_stays_eligible():
    changed = change(part(1, (1, 2)), MIN_TWO, ALL, isr=(1,))
    assert changed == part(1, (1,), partition_epoch=8, elr=(2,))
    grown = change(changed, MIN_TWO, ALL, isr=(1, 3))
    assert grown.elr == ()


def test_replica_that_leaves_a_large_isr_is_not_eligible():
    assert change(part(1, (1, 2, 3)), MIN_TWO, ALL, isr=(1, 2)).elr == ()


def test_leader_that_fails_is_replaced_in_the_next_epoch():
    changed = change(part(1, (1, 2)), MIN_TWO, only(2, 3), isr=(2,))
    assert changed == part(2, (2,), leader_epoch=6, partition_epoch=8, elr=(1,))


def test_last_member_that_fails_leaves_a_partition_without_leader():
    changed = change(part(2, (2,), elr=(1,)), MIN_TWO, only(3), isr=())
    assert changed == part(
        NO_LEADER, (), leader_epoch=6, partition_epoch=8, elr=(1, 2), last_known_elr=(2,)
    )


def test_eligible_replica_that_returns_is_elected_and_the_only_member():
    partition = part(NO_LEADER, (), elr=(1, 2), last_known_elr=(2,))
    changed = change(partition, MIN_TWO, only(1, 3))
    assert changed == part(1, (1,), leader_epoch=6, partition_epoch=8, elr=(2,))


def test_replica_that_lost_records_is_neither_in_sync_nor_eligible():
    changed = change(part(1, (1,), elr=(2,)), MIN_TWO, ALL, lost=(2,))
    assert (changed.isr, changed.elr) == ((1,), ())
    changed = change(part(1, (1, 2)), MIN_TWO, only(2, 3), lost=(1,))
    assert (changed.leader, changed.isr, changed.elr) == (2, (2,), ())


def test_unclean_election_begins_recovery_and_clears_the_elr():
    rules = PartitionRules(min_isr=2, elects_unclean=True)
    changed = change(part(1, (1,), elr=(2,)), rules, only(3), isr=())
    assert changed == part(3, (3,), leader_epoch=6, partition_epoch=8)._replace(
        recovery_state=RecoveryState.RECOVERING
    )


# -- reassignments -------------------------------------------------------------------------------


def test_reassignment_completes_when_its_replicas_are_in_sync():
    moving = part(1, (1, 2), replicas=(2, 3, 1), adding=(3,), removing=(1,))
    waiting = change(moving, MIN_TWO, ALL)
    assert waiting is moving
    done = change(moving, MIN_TWO, ALL, isr=(1, 2, 3), by_leader=True)
    assert done == part(2, (2, 3), replicas=(2, 3), leader_epoch=6, partition_epoch=8)


def test_removed_replica_raises_the_leader_epoch_of_the_same_leader():
    changed = change(part(1, (1, 2, 3)), MIN_TWO, ALL, replica_set=ReplicaSet((1, 2)))
    assert changed == part(1, (1, 2), replicas=(1, 2), leader_epoch=6, partition_epoch=8)


def test_minimum_counts_the_replicas_without_the_adding_ones():
    growing = part(1, (1,), replicas=(1, 2, 3), adding=(2, 3))
    assert growing.effective_min_isr(2) == 1
    assert change(growing, MIN_TWO, ALL, isr=(1, 2)).elr == ()


# -- witnesses -----------------------------------------------------------------------------------


def test_replica_that_the_controller_removes_becomes_a_witness():
    rules = PartitionRules(durable_copies=DurableCopies.LEADER)
    changed = change(part(1, (1, 2, 3)), rules, only(2, 3), isr=(2, 3))
    assert (changed.leader, changed.witnesses) == (2, (1,))
    again = change(changed, rules, only(3), isr=(3,))
    assert (again.leader, again.witnesses) == (3, (1, 2))
    flushed = change(again, rules, only(3), isr=(3,), by_leader=True, flushed_copies=1)
    assert flushed.witnesses == ()


def test_reassignment_waits_until_what_it_removes_is_flushed_on_others():
    rules = PartitionRules(durable_copies=DurableCopies.LEADER)
    moving = change(
        part(1, (1, 2, 3)), rules, only(1, 2, 3), replica_set=ReplicaSet((2, 3, 1), (), (1,))
    )
    assert (moving.replicas, moving.removing, moving.leader) == ((2, 3, 1), (1,), 1)
    shrunk = change(moving, rules, only(1, 2, 3), isr=(1, 2, 3), by_leader=True)
    assert shrunk is moving
    moved = change(moving, rules, only(1, 2, 3), isr=(1, 2, 3), by_leader=True, flushed_copies=1)
    assert (moved.replicas, moved.isr, moved.leader, moved.removing) == ((2, 3), (2, 3), 2, ())


def test_replica_that_the_leader_removes_is_no_witness():
    rules = PartitionRules(durable_copies=DurableCopies.LEADER)
    changed = change(part(1, (1, 2, 3)), rules, ALL, isr=(1, 2), by_leader=True)
    assert changed.witnesses == ()


FLUSHED_ON_TWO = PartitionRules(2, durable_copies=DurableCopies.MIN_ISR)


@pytest.mark.parametrize(
    ("rules", "reported", "expected"),
    [(FLUSHED_ON_TWO, 2, 2), (FLUSHED_ON_TWO, 1, 1), (FLUSHED_ON_TWO, 0, 1),
     (PartitionRules(2, durable_copies=DurableCopies.LEADER), 2, 1), (PartitionRules(2), 0, 1)],
    ids=["as wanted", "fewer", "none", "one is wanted", "none is flushed"],
)  # fmt: skip
def test_leader_raises_the_number_of_flushed_copies(rules, reported, expected):
    before = part(1, (1, 2, 3))
    changed = change(
        before, rules, ALL, isr=(1, 2, 3), by_leader=True, flushed_copies=reported
    )  # fmt: skip
    assert changed.flushed_copies == expected
    assert (changed is before) is (expected == 1)


def test_lost_or_removed_replica_leaves_one_flushed_copy_less():
    before = part(1, (1, 2, 3), flushed_copies=2)
    assert change(before, FLUSHED_ON_TWO, ALL, isr=(1, 2)).flushed_copies == 2  # it has its log
    assert change(before, FLUSHED_ON_TWO, ALL, lost=(3,)).flushed_copies == 1
    outside = part(1, (1, 2), flushed_copies=2)
    assert change(outside, FLUSHED_ON_TWO, ALL, lost=(3,)).flushed_copies == 2
    without = change(
        before, FLUSHED_ON_TWO, ALL, replica_set=ReplicaSet((1, 2, 4), (4,)), isr=(1, 2)
    )
    assert without.flushed_copies == 1


# -- records -------------------------------------------------------------------------------------

NODES = st.lists(st.integers(1, 4), unique=True, max_size=4).map(tuple)
PARTITIONS = st.builds(
    PartitionImage, st.integers(-1, 4), st.integers(0, 9), NODES, NODES, st.integers(0, 9), NODES,
    NODES, NODES, NODES, NODES, st.sampled_from(RecoveryState), st.integers(1, 9),
)  # fmt: skip


@given(PARTITIONS)
def test_partition_record_restores_the_partition(partition):
    record = internal.read(internal.write(partition_record(TOPIC_ID, 3, partition)))
    assert partition_of(record.fields) == partition


@given(PARTITIONS, PARTITIONS, st.booleans())
def test_change_record_restores_the_partition(before, after, has_new_epoch):
    after = after._replace(
        partition_epoch=before.partition_epoch + 1,
        leader_epoch=before.leader_epoch + has_new_epoch,
        leader=after.leader if has_new_epoch else before.leader,
    )
    record = internal.read(internal.write(change_record(TOPIC_ID, 3, before, after)))
    assert with_change(before, record.fields) == after


def valid(partition: PartitionImage) -> PartitionImage:
    """Return a partition that could exist, made of any one."""
    replicas = partition.replicas or (1,)
    isr = tuple(n for n in partition.isr if n in replicas)
    elr = tuple(n for n in partition.elr if n in replicas and n not in isr)
    leader = partition.leader if partition.leader in isr else NO_LEADER
    return PartitionImage(
        leader, partition.leader_epoch, replicas, isr, partition.partition_epoch, elr=elr
    )


@given(
    PARTITIONS, st.none() | NODES, st.sets(st.integers(1, 4)), st.sampled_from(ElectionType),
    st.builds(
        PartitionRules, st.integers(1, 3), st.booleans(), st.none() | st.sampled_from(DurableCopies)
    ),
)  # fmt: skip
def test_every_change_leaves_a_valid_partition(partition, isr, active, kind, rules):
    partition = valid(partition)
    changed = change(partition, rules, active.__contains__, isr=isr, election=kind)
    assert set(changed.isr + changed.elr + changed.witnesses) <= set(changed.replicas)
    assert not set(changed.isr) & set(changed.elr)
    assert changed.leader == NO_LEADER or changed.leader in changed.isr
    assert changed.leader == NO_LEADER or changed.leader in active
    assert not changed.elr or len(changed.isr) < changed.effective_min_isr(rules.min_isr)
    if changed is not partition:
        assert with_change(
            partition, change_record(TOPIC_ID, 0, partition, changed).fields
        ) == changed  # fmt: skip
