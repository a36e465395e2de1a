"""AlterPartition: every check, each with a proposal that fails it alone."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.coordination.partition_image import RecoveryState
from kafkalite.coordination.replication.alter_partition import (
    IsrMember,
    IsrProposal,
    PartitionProposal,
    alter_partitions,
)
from tests.coordination.replication.factories import (
    TOPIC_ID,
    apply,
    fence,
    image_of,
    part,
    partitions_of,
    rules_of,
)

VALID = IsrProposal(5, 7, [IsrMember(1), IsrMember(2, 12), IsrMember(3, 13)])


def alter(image, proposal, *, node_id=1, node_epoch=11, at=(TOPIC_ID, 0)):
    wanted = [PartitionProposal(*at, proposal)]
    return alter_partitions(image, node_id, node_epoch, wanted, rules_of)


def test_valid_proposal_changes_the_isr():
    image = image_of(part(1, (1, 2)))
    result = alter(image, VALID)
    apply(image, result)
    (decision,) = result.response
    assert decision.error is None
    assert partitions_of(image) == [decision.partition] == [part(1, (1, 2, 3), partition_epoch=8)]


def test_repeated_proposal_is_outdated():
    image = image_of(part(1, (1, 2)))
    apply(image, alter(image, VALID))
    (decision,) = alter(image, VALID).response
    assert isinstance(decision.error, errors.InvalidUpdateVersion)


def test_present_isr_needs_no_record():
    result = alter(image_of(part(1, (1, 2))), VALID._replace(isr=[IsrMember(1), IsrMember(2)]))
    assert result.records == [] and result.response[0].error is None


@pytest.mark.parametrize(
    ("proposal", "error"),
    [
        (VALID._replace(leader_epoch=6), errors.NotController),
        (VALID._replace(partition_epoch=8), errors.NotController),
        (VALID._replace(leader_epoch=4), errors.FencedLeaderEpoch),
        (VALID._replace(partition_epoch=6), errors.InvalidUpdateVersion),
        (VALID._replace(isr=[IsrMember(2, 12)]), errors.InvalidRequest),
        (VALID._replace(isr=[IsrMember(1), IsrMember(1)]), errors.InvalidRequest),
        (VALID._replace(isr=[IsrMember(1), IsrMember(4)]), errors.InvalidRequest),
        (VALID._replace(isr=[IsrMember(1), IsrMember(2, 9)]), errors.IneligibleReplica),
        (VALID._replace(recovery_state=RecoveryState.RECOVERING), errors.InvalidRequest),
        (
            VALID._replace(isr=[IsrMember(1)], recovery_state=RecoveryState.RECOVERING),
            errors.InvalidRequest,
        ),
    ],
)
def test_invalid_proposal_changes_nothing(proposal, error):
    result = alter(image_of(part(1, (1, 2))), proposal)
    assert result.records == []
    assert type(result.response[0].error) is error


def test_proposal_of_another_node_is_refused():
    result = alter(image_of(part(1, (1, 2))), VALID, node_id=2, node_epoch=12)
    assert isinstance(result.response[0].error, errors.InvalidRequest)


@pytest.mark.parametrize(
    ("at", "error"),
    [((bytes(16), 0), errors.UnknownTopicId), ((TOPIC_ID, 9), errors.UnknownTopicOrPartition)],
)
def test_unknown_partition_is_refused(at, error):
    result = alter(image_of(part(1, (1, 2))), VALID, at=at)
    assert type(result.response[0].error) is error


@pytest.mark.parametrize("node_epoch", [10, 12])
def test_proposal_of_another_process_of_the_node_is_refused(node_epoch):
    with pytest.raises(errors.StaleBrokerEpoch):
        alter(image_of(part(1, (1, 2))), VALID, node_epoch=node_epoch)


def test_fenced_node_cannot_join():
    image = image_of(part(1, (1, 2)))
    fence(image, 3)
    assert isinstance(alter(image, VALID).response[0].error, errors.IneligibleReplica)


def test_partition_twice_in_a_request_is_decided_once():
    image = image_of(part(1, (1, 2)))
    wanted = [PartitionProposal(TOPIC_ID, 0, VALID)] * 2
    result = alter_partitions(image, 1, 11, wanted, rules_of)
    assert [type(decision.error) for decision in result.response] == [
        type(None), errors.InvalidRequest,
    ]  # fmt: skip
    assert len(result.records) == 1


def test_proposal_that_completes_a_reassignment_reports_the_new_leader():
    image = image_of(part(1, (1, 2), replicas=(2, 3, 1), adding=(3,), removing=(1,)))
    result = alter(image, VALID)
    apply(image, result)
    assert isinstance(result.response[0].error, errors.NewLeaderElected)
    assert partitions_of(image)[0].leader == 2


def test_recovered_leader_ends_the_recovery():
    recovering = part(1, (1,))._replace(recovery_state=RecoveryState.RECOVERING)
    image = image_of(recovering)
    apply(image, alter(image, VALID._replace(isr=[IsrMember(1)])))
    assert partitions_of(image)[0].recovery_state is RecoveryState.RECOVERED
