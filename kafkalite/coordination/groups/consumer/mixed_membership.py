"""MixedMembership: the requests of classic members of a consumer group (KIP-848).

To a classic member the coordinator acts as the group's leader: a generation is a member epoch,
JoinGroup is a heartbeat with the partitions that the member owns, and SyncGroup returns its current
assignment.  A member that needs another step of reconciliation gets REBALANCE_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafkalite.coordination.groups.assignment.subscribed_topics import Topics
from kafkalite.coordination.groups.classic.classic_group import MEMBER_ID_REQUIRED_SINCE
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.consumer.consumer_member import (
    ConsumerMember,
    MemberState,
    MemberSubscription,
)
from kafkalite.coordination.groups.consumer.consumer_membership import ConsumerMembership
from kafkalite.coordination.groups.consumer.group_change import GroupChange
from kafkalite.coordination.groups.consumer.group_migration import (
    DISABLED,
    assignment_bytes,
    classic_subscription,
    has_common_protocol,
    owned_partitions,
)
from kafkalite.coordination.groups.decision_draft import (
    JOIN,
    SYNC,
    TARGET,
    DecisionDraft,
    GroupClient,
)
from kafkalite.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_protocol import PROTOCOL_TYPE


class MixedMembership:
    """The classic protocol over consumer groups; see the module."""

    def __init__(self, consumers: ConsumerMembership, topics: Topics) -> None:
        self._consumers = consumers
        self._topics = topics

    # -- JoinGroup ---------------------------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        request: Fields,
        client: GroupClient,
        new_id: Callable[[], str],
        version: int,
        draft: DecisionDraft,
        token: Any,
    ) -> None:
        """Add a member, or take it one step towards its target."""
        protocols = {each.name: each.metadata for each in request.protocols}
        if (
            draft.limits.migration_policy == DISABLED
            or request.protocol_type != PROTOCOL_TYPE
            or not has_common_protocol(group, request.member_id, protocols)
        ):
            raise InconsistentGroupProtocol()
        instance_id = request.group_instance_id
        if not request.member_id and instance_id is None and version >= MEMBER_ID_REQUIRED_SINCE:
            draft.fail(token, MemberIdRequired, member_id=new_id())
            return
        known = MemberSubscription(
            instance_id,
            client_id=client.client_id,
            client_host=client.host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )
        subscription, metadata = classic_subscription(
            known, protocols.items(), request.session_timeout_ms
        )
        change = self._consumers.change(group, draft)
        member_id = _member_id(change, request, new_id)
        change.subscribe(member_id, subscription)
        if self._consumers.downgrade(change, draft):
            # It joins the classic group, which exists once the records are written.
            draft.fail(token, RebalanceInProgress, member_id=member_id)
            return
        change.update_epoch()
        change.update_target()
        member = change.member(member_id)
        assert member is not None
        after = change.reconcile(member, owned_partitions(metadata, self._topics))
        self._consumers.set_deadlines(change, member, after, draft)
        draft.deadlines.drop(group.deadline(JOIN, member_id))
        draft.set_deadline(group.deadline(SYNC, member_id), request.rebalance_timeout_ms)
        response = {
            "error_code": 0,
            "generation_id": after.epoch,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": request.protocols[0].name,
            "leader": "",
            "skip_assignment": False,
            "member_id": member_id,
            "members": [],
        }
        draft.complete(token, response)

    # -- SyncGroup and Heartbeat -------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: Fields, draft: DecisionDraft, token: Any) -> None:
        """Return the current assignment of a member."""
        member = _current(group, request)
        classic = member.subscription.classic
        assert classic is not None
        protocol = classic.protocols[0][0]
        for requested, agreed in (
            (request.protocol_type, PROTOCOL_TYPE),
            (request.protocol_name, protocol),
        ):
            if requested is not None and requested != agreed:
                raise InconsistentGroupProtocol()
        is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
        if _has_newer_target(group, member, draft) and not is_revoking:
            self._await_join(group, member, draft)
            raise RebalanceInProgress()
        self._consumers.extend_session(group, member, draft)
        draft.deadlines.drop(group.deadline(SYNC, member.member_id))
        response = {
            "error_code": 0,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignment": assignment_bytes(member, self._topics),
        }
        draft.complete(token, response)

    def heartbeat(
        self, group: ConsumerGroup, request: Fields, draft: DecisionDraft
    ) -> KafkaError | None:
        """Extend a member's session; return RebalanceInProgress if it has to join again."""
        member = _current(group, request)
        self._consumers.extend_session(group, member, draft)
        if not group.is_metadata_current:
            # No member of the consumer protocol may be left to notice a change of the topics.
            self._consumers.change(group, draft).update_epoch()
        state = member.current.state
        if (
            _has_newer_target(group, member, draft)
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and _gets_more(group, member))
        ):
            self._await_join(group, member, draft)
            return RebalanceInProgress()
        return None

    @staticmethod
    def _await_join(group: ConsumerGroup, member: ConsumerMember, draft: DecisionDraft) -> None:
        """Fence a member that does not join again within its rebalance timeout."""
        due = group.deadline(JOIN, member.member_id)
        if due not in draft.deadlines:
            draft.set_deadline(due, member.subscription.rebalance_timeout_ms)

    # -- LeaveGroup --------------------------------------------------------------------------

    def leave(
        self,
        group: ConsumerGroup,
        members: Sequence[tuple[str, str | None, str | None]],
        draft: DecisionDraft,
    ) -> list[dict[str, Any]]:
        """Remove members, given as (member id, instance id, reason); return their responses."""
        responses = []
        leaving = []
        for member_id, instance_id, _ in members:
            code = 0
            try:
                found = _known(group, member_id, instance_id).member_id
                if found in leaving:
                    raise UnknownMemberId()
                leaving.append(found)
            except KafkaError as error:
                code = error.code
            responses.append({
                "member_id": member_id,
                "group_instance_id": instance_id,
                "error_code": code,
            })  # fmt: skip
        if leaving:
            self._consumers.remove(group, leaving, draft)
        return responses


def _member_id(change: GroupChange, request: Fields, new_id: Callable[[], str]) -> str:
    """Return the id of the member that joins; a static one replaces the one of its instance id."""
    group, member_id = change.group, str(request.member_id)
    instance_id = request.group_instance_id
    holder = None if instance_id is None else group.by_instance.get(instance_id)
    if holder is not None:
        if member_id:
            return _known(group, member_id, instance_id, is_joining=True).member_id
        member_id = new_id()
        change.replace(holder, member_id)
        return member_id
    if member_id not in group.members and change.member_count >= change.size_max:
        raise GroupMaxSizeReached()
    return member_id or new_id()


def _known(
    group: ConsumerGroup, member_id: str, instance_id: str | None, *, is_joining: bool = False
) -> ConsumerMember:
    """Return a classic member; an admin tool names a static one by its instance id alone."""
    if instance_id is not None:
        holder = group.by_instance.get(instance_id)
        if holder is None:
            raise UnknownMemberId()
        if member_id and holder != member_id:
            raise FencedInstanceId()
        member_id = holder
    member = group.members.get(member_id)
    if member is None or not (member.is_classic or is_joining):
        raise UnknownMemberId()
    return member


def _current(group: ConsumerGroup, request: Fields) -> ConsumerMember:
    """Return the member that sent a request; raise unless its generation is current."""
    member = _known(group, request.member_id, request.group_instance_id)
    if request.generation_id != member.current.epoch:
        raise IllegalGeneration()
    return member


def _has_newer_target(group: ConsumerGroup, member: ConsumerMember, draft: DecisionDraft) -> bool:
    """Return whether there is a newer target than the member's, or its JoinGroup would compute
    one."""
    if group.assignment_epoch > member.current.epoch:
        return True
    return group.epoch > group.assignment_epoch and group.deadline(TARGET) not in draft.deadlines


def _gets_more(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether all partitions that the member waits for are free now."""
    assigned = member.current.assigned
    return all(
        group.owner(topic_id, index) in (None, member.member_id)
        for topic_id, indexes in group.target.get(member.member_id, {}).items()
        for index in indexes
        if index not in assigned.get(topic_id, ())
    )
