"""AlterPartition: a leader asks for another ISR of its partitions (KIP-497, KIP-841, KIP-903).

The partition epoch in the request is the one that the leader knows, so that it cannot undo a
decision of the controller that it does not know yet.  Each new member comes with the node epoch
that the leader has seen in its fetches: a node that was restarted since may have lost records.

Error of an entry, and what the leader can conclude:

    INELIGIBLE_REPLICA                       the change was not made
    FENCED_LEADER_EPOCH                      another leader was elected
    INVALID_UPDATE_VERSION                   the partition has changed since
    NEW_LEADER_ELECTED                       the change was made, and completed a reassignment
                                             that has moved the leader away
    UNKNOWN_TOPIC_ID, INVALID_REQUEST        the leader's view is wrong: it waits for its image
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.coordination.image import ClusterImage, TopicImage, change_records
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import PartitionImage, RecoveryState
from kafkalite.coordination.replication.partition_change import RulesOf, change
from kafkalite.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaError,
    NewLeaderElected,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.internal import TypedRecord

UNCHECKED_EPOCH = -1
"""The node epoch of a member that the leader does not know."""


class IsrMember(NamedTuple):
    """A member of a proposed ISR, with the node epoch of its last fetch."""

    node_id: int
    node_epoch: int = UNCHECKED_EPOCH


class IsrProposal(NamedTuple):
    """The ISR that the leader of a partition asks for."""

    leader_epoch: int
    partition_epoch: int
    isr: Sequence[IsrMember]
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    flushed_copies: int = 0
    """The number of these replicas on which the leader's log up to its epoch and its high watermark
    is flushed, if they are enough to commit a record, else 0."""


class PartitionProposal(NamedTuple):
    """A proposal for one partition."""

    topic_id: bytes
    partition: int
    isr: IsrProposal


class IsrDecision(NamedTuple):
    """The outcome of a proposal: the partition as it is now, or an error, or both."""

    proposal: PartitionProposal
    partition: PartitionImage | None
    error: KafkaError | None = None


class AlteredPartition(NamedTuple):
    """The outcome of a proposal as its leader gets it: an error, or the partition epoch now."""

    error: KafkaError | None
    partition_epoch: int


def alter_partitions(
    image: ClusterImage,
    node_id: int,
    node_epoch: int,
    proposals: Sequence[PartitionProposal],
    rules_of: RulesOf,
) -> DecisionResult[list[IsrDecision]]:
    """Decide about the proposals of one node; raise StaleBrokerEpoch for an older process of it."""
    node = image.nodes.get(node_id)
    if node is None or node.node_epoch != node_epoch:
        raise StaleBrokerEpoch()
    decisions = []
    records: list[TypedRecord] = []
    seen: set[tuple[bytes, int]] = set()
    for proposal in proposals:
        partition_id = proposal[:2]
        try:
            if partition_id in seen:
                raise InvalidRequest("The partition appears twice in the request.")
            seen.add(partition_id)
            topic, partition = _checked(image, node_id, proposal)
        except KafkaError as error:
            decisions.append(IsrDecision(proposal, None, error.copy()))
            continue
        changed = change(
            partition,
            rules_of(topic),
            image.is_active,
            isr=[member.node_id for member in proposal.isr.isr],
            by_leader=True,
            recovery_state=proposal.isr.recovery_state,
            flushed_copies=proposal.isr.flushed_copies,
        )
        if changed is not partition:
            records += change_records(topic, {proposal.partition: changed})
        was_moved = changed.leader != node_id
        decisions.append(IsrDecision(proposal, changed, NewLeaderElected() if was_moved else None))
    return DecisionResult(decisions, records)


def _checked(
    image: ClusterImage, node_id: int, wanted: PartitionProposal
) -> tuple[TopicImage, PartitionImage]:
    """Return the partition of a valid proposal; raise the error of an invalid one."""
    topic = image.topics_by_id.get(wanted.topic_id)
    if topic is None:
        raise UnknownTopicId()
    partition = topic.partitions.get(wanted.partition)
    if partition is None:
        raise UnknownTopicOrPartition()
    proposal = wanted.isr
    if (
        proposal.leader_epoch > partition.leader_epoch
        or proposal.partition_epoch > partition.partition_epoch
    ):
        raise NotController("The leader knows a later state of the partition.")
    if proposal.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch()
    if partition.leader != node_id:
        raise InvalidRequest(f"Node {node_id} does not lead the partition.")
    if proposal.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion()
    _check_members(image, partition, proposal)
    return topic, partition


def _check_members(
    image: ClusterImage, partition: PartitionImage, proposal: IsrProposal
) -> None:
    members = [member.node_id for member in proposal.isr]
    if len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        raise InvalidRequest("The ISR names a node twice, or one that is not a replica.")
    if partition.leader not in members:
        raise InvalidRequest("The ISR does not contain the leader.")
    if proposal.recovery_state is RecoveryState.RECOVERING:
        if len(members) > 1:
            raise InvalidRequest("While a leader recovers, it must be the only member of the ISR.")
        if partition.recovery_state is RecoveryState.RECOVERED:
            raise InvalidRequest("The partition is not recovering.")
    for member in proposal.isr:
        if not image.is_active(member.node_id):
            raise IneligibleReplica(f"Node {member.node_id} is not active.")
        if member.node_epoch not in (UNCHECKED_EPOCH, image.nodes[member.node_id].node_epoch):
            raise IneligibleReplica(f"Node {member.node_id} has been restarted.")
