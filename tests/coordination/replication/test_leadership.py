"""Elections after a node fails, returns or shuts down, and at a client's request."""

from __future__ import annotations

from kafkalite import errors
from kafkalite.coordination.image import node_record
from kafkalite.coordination.partition_image import NO_LEADER, RecoveryState
from kafkalite.coordination.replication import leadership
from kafkalite.coordination.replication.election import ElectionType
from kafkalite.coordination.replication.recovery_election import ReplicaLogEnd
from tests.coordination.replication.factories import (
    apply,
    fence,
    image_of,
    part,
    partitions_of,
    rules_of,
)


def leave(image, node_id, count_max=1_000):
    result = leadership.remove_from_isrs(image, node_id, rules_of, count_max)
    apply(image, result)
    return result.response


def test_node_that_leaves_is_removed_from_each_isr():
    image = image_of(part(1, (1, 2, 3)), part(2, (1, 2, 3)), part(2, (2, 3)))
    assert leave(image, 1) == 2
    assert [(p.leader, p.isr) for p in partitions_of(image)] == [
        (2, (2, 3)), (2, (2, 3)), (2, (2, 3)),
    ]  # fmt: skip
    assert leave(image, 1) == 0


def test_partitions_without_a_leader_come_first():
    image = image_of(part(2, (1, 2)), part(2, (1, 2)), part(1, (1, 2)))
    assert leave(image, 1, count_max=1) == 1
    assert [p.leader for p in partitions_of(image)] == [2, 2, 2]
    assert [len(p.isr) for p in partitions_of(image)] == [2, 2, 1]
    assert leave(image, 1, count_max=5) == 2


def test_partition_with_one_replica_keeps_its_leader():
    image = image_of(part(1, (1,), replicas=(1,)))
    assert leave(image, 1) == 0
    assert partitions_of(image)[0].leader == 1


def test_node_that_returns_leads_what_has_no_leader():
    image = image_of(part(1, (1,), elr=(2,)), part(3, (3,)))
    fence(image, 1, 2)
    leave(image, 1)
    assert partitions_of(image)[0].leader == NO_LEADER
    image.replay(node_record(image.nodes[2]._replace(fenced=False)))
    result = leadership.elect_missing(image, 2, rules_of)
    apply(image, result)
    assert result.response == 1
    assert [p.leader for p in partitions_of(image)] == [2, 3]


def test_node_that_lost_records_is_not_elected():
    image = image_of(part(1, (1, 2)), part(3, (3,), elr=(1,)), part(1, (1,), replicas=(1,)))
    result = leadership.remove_after_loss(image, 1, rules_of)
    apply(image, result)
    assert result.response == 2
    assert [(p.leader, p.isr, p.elr) for p in partitions_of(image)] == [
        (2, (2,), ()), (3, (3,), ()), (1, (1,), ()),
    ]  # fmt: skip


def elected(image, kind, *indexes):
    result = leadership.elect_leaders(image, kind, {"t": indexes}, rules_of)
    apply(image, result)
    return [type(outcome.error) for outcome in result.response]


def test_preferred_election_reports_an_error_for_each_partition():
    image = image_of(part(2, (1, 2)), part(1, (1, 2)), part(2, (2, 3)))
    assert elected(image, ElectionType.PREFERRED, 0, 1, 2, 3) == [
        type(None), errors.ElectionNotNeeded, errors.PreferredLeaderNotAvailable,
        errors.UnknownTopicOrPartition,
    ]  # fmt: skip
    assert [p.leader for p in partitions_of(image)] == [1, 1, 2]


def test_unclean_election_needs_an_active_replica():
    image = image_of(part(1, (1,)), part(NO_LEADER, ()), part(NO_LEADER, (), replicas=(4,)))
    fence(image, 4)
    assert elected(image, ElectionType.UNCLEAN, 0, 1, 2) == [
        errors.ElectionNotNeeded, type(None), errors.EligibleLeadersNotAvailable,
    ]  # fmt: skip
    assert [p.leader for p in partitions_of(image)] == [1, 1, NO_LEADER]


def test_leaderships_return_to_the_preferred_replicas():
    image = image_of(part(2, (1, 2)), part(2, (1, 2)), part(2, (2, 3)))
    located = [*image.replicas_on(1)]
    result = leadership.elect_preferred(image, located, rules_of, count_max=1)
    apply(image, result)
    assert result.response == 1
    assert [p.leader for p in partitions_of(image)] == [1, 2, 2]


# -- after a power failure -----------------------------------------------------------------------


def awaiting(*partitions):
    image = image_of(*partitions)
    result = leadership.begin_recovery(image)
    apply(image, result)
    return image, result.response


def recovered(image, *ends, missing_max=0):
    ends = [ReplicaLogEnd(*end) for end in ends]
    result = leadership.complete_recovery(image.topics["t"], 0, ends, missing_max)
    apply(image, result)
    return result.response


def test_partitions_with_several_replicas_wait_for_their_log_ends():
    image, count = awaiting(part(1, (1, 2)), part(1, (1,), replicas=(1,)))
    assert count == 1
    assert [(p.leader, p.leader_epoch) for p in partitions_of(image)] == [(NO_LEADER, 6), (1, 5)]
    assert leadership.begin_recovery(image).response == 0


def test_recovery_takes_some_partitions_at_a_time():
    image = image_of(*[part(1, (1, 2))] * 5)
    counts = []
    for _ in range(4):
        result = leadership.begin_recovery(image, count_max=2)
        apply(image, result)
        counts.append(result.response)
    assert counts == [2, 2, 1, 0]


def test_partition_that_waits_is_changed_by_its_recovery_only():
    image, _ = awaiting(part(1, (1, 2)))
    (before,) = partitions_of(image)
    assert leave(image, 1) == 0
    assert leadership.remove_after_loss(image, 2, rules_of).response == 0
    assert leadership.elect_missing(image, 1, rules_of).response == 0
    assert elected(image, ElectionType.PREFERRED, 0) == [errors.PreferredLeaderNotAvailable]
    assert partitions_of(image) == [before]


def test_unclean_election_does_not_wait_for_the_ends_of_logs():
    image, _ = awaiting(part(1, (1, 2)))
    assert elected(image, ElectionType.UNCLEAN, 0) == [type(None)]
    (partition,) = partitions_of(image)
    assert (partition.leader, partition.isr) == (1, (1,))
    assert partition.recovery_state is RecoveryState.RECOVERING


def test_replica_with_the_greatest_log_leads_after_a_power_failure():
    image, _ = awaiting(part(1, (1, 2), witnesses=(3,)))
    assert recovered(image, (1, 4, 90), (2, 5, 10)) is None
    partition = recovered(image, (1, 4, 90), (2, 5, 10), (3, 5, 9))
    assert (partition.leader, partition.isr, partition.witnesses) == (2, (2,), ())
    assert (partition.leader_epoch, partition.partition_epoch) == (7, 9)


def test_candidates_may_be_missing_if_others_have_flushed():
    image, _ = awaiting(part(1, (1, 2)))
    assert recovered(image, (3, 9, 9), missing_max=2) is None  # no candidate
    assert recovered(image, (2, 5, 10), (4, 9, 9), missing_max=1).leader == 2  # 4 is no replica


def wrong(image, percentage=10):
    return [index for _, index, _ in leadership.imbalanced(image, percentage)]


def test_node_that_leads_too_few_partitions_is_imbalanced():
    led = [part(1, (1, 2)) for _ in range(9)]
    image = image_of(*led, part(2, (1, 2)))
    assert wrong(image) == []
    assert wrong(image, percentage=9) == [9]
    assert wrong(image_of(*led[1:], part(2, (1, 2)))) == [8]


def test_fenced_and_draining_nodes_are_not_given_partitions_back():
    image = image_of(part(2, (1, 2)))
    assert wrong(image) == [0]
    image.replay(node_record(image.nodes[1]._replace(draining=True)))
    assert wrong(image) == []
    fence(image, 1)
    assert wrong(image) == []


def test_partition_with_one_replica_is_never_imbalanced():
    assert wrong(image_of(part(1, (1,), replicas=(1,))), percentage=0) == []
