"""Reassignments: begun, replaced, cancelled, and refused."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.coordination.replication.reassignment import reassign
from tests.coordination.replication.factories import apply, image_of, part, partitions_of, rules_of


def to(image, target, **options):
    result = reassign(image, image.topics["t"], 0, target, rules_of, **options)
    apply(image, result)
    assert partitions_of(image)[0] == result.response
    return result.response


def test_target_is_added_before_others_are_removed():
    moving = to(image_of(part(1, (1, 2, 3))), [2, 3, 4])
    assert (moving.replicas, moving.adding, moving.removing) == ((2, 3, 4, 1), (4,), (1,))
    assert (moving.leader, moving.leader_epoch) == (1, 5)


def test_order_alone_changes_the_preferred_leader():
    moved = to(image_of(part(1, (1, 2, 3))), [3, 1, 2])
    assert moved == part(1, (1, 2, 3), replicas=(3, 1, 2), partition_epoch=8)


def test_fewer_replicas_need_no_copy():
    moved = to(image_of(part(1, (1, 2, 3))), [2, 3])
    assert moved == part(2, (2, 3), replicas=(2, 3), leader_epoch=6, partition_epoch=8)


def test_same_replicas_change_nothing():
    image = image_of(part(1, (1, 2, 3)))
    assert reassign(image, image.topics["t"], 0, [1, 2, 3], rules_of).records == ()


def test_second_target_replaces_the_first():
    image = image_of(part(1, (1,), replicas=(1,)))
    to(image, [2])
    moving = to(image, [3])
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 2, 1), (3,), (2, 1))


def test_cancelled_reassignment_restores_the_replicas():
    image = image_of(part(1, (1, 2, 3)))
    to(image, [1, 2, 4])
    restored = to(image, None)
    assert {*restored.replicas} == {1, 2, 3} and not restored.adding and not restored.removing
    assert restored.leader_epoch == 6  # node 4 is a replica no more


def test_cancel_without_reassignment_is_refused():
    with pytest.raises(errors.NoReassignmentInProgress):
        to(image_of(part(1, (1, 2, 3))), None)


@pytest.mark.parametrize("fields", [{"isr": (3,)}, {"isr": (), "elr": (3,)}])
def test_cancel_that_would_lose_records_is_refused(fields):
    image = image_of(part(3, replicas=(3, 1), adding=(3,), removing=(1,), **fields))
    with pytest.raises(errors.InvalidReplicaAssignment):
        to(image, None)


@pytest.mark.parametrize("target", [[], [1, 1], [1, 9], [0, 1]])
def test_impossible_target_is_refused(target):
    with pytest.raises(errors.InvalidReplicaAssignment):
        to(image_of(part(1, (1, 2, 3))), target)


def test_factor_changes_only_if_allowed():
    image = image_of(part(1, (1, 2, 3)))
    with pytest.raises(errors.InvalidReplicationFactor):
        to(image, [1, 2], may_change_factor=False)
