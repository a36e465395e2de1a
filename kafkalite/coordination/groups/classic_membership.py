"""ClassicMembership: the requests of members of classic groups (JoinGroup to LeaveGroup)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.classic.classic_members import protocols_size
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.consumer.mixed_membership import MixedMembership
from kafkalite.coordination.groups.decision_draft import DecisionDraft, GroupClient
from kafkalite.coordination.groups.group import Group, GroupKind
from kafkalite.coordination.groups.group_limits import GroupLimits
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.groups.request_checks import check_group_id, check_texts
from kafkalite.errors import (
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    UnknownMemberId,
)
from kafkalite.protocol.schema import Fields

PROTOCOLS_MAX = 1_000
"""Maximum number of protocols of a member; clients have a few."""


class ClassicMembership:
    """The classic protocol over the groups of one coordinator; each method returns the group."""

    def __init__(
        self, groups: GroupTable, mixed: MixedMembership, new_member_id: Callable[[str], str]
    ) -> None:
        self._groups = groups
        self._mixed = mixed
        self._new_member_id = new_member_id

    def join(
        self,
        group_id: str,
        request: Fields,
        client: GroupClient,
        version: int,
        draft: DecisionDraft,
        token: Any,
    ) -> Group:
        """Add a member, or let it join the group's next generation."""
        check_group_id(group_id)
        if version == 0:  # it has one timeout, used as both
            request = Fields(request, rebalance_timeout_ms=request.session_timeout_ms)
        _check_join(request, draft.limits)
        names = [protocol.name for protocol in request.protocols]
        check_texts(request.member_id, request.group_instance_id, request.protocol_type, *names)
        size = protocols_size((each.name, each.metadata) for each in request.protocols)
        new_id = partial(self._new_member_id, request.group_instance_id or client.client_id)
        known = self._groups.get(group_id)
        if isinstance(known, ConsumerGroup) and not known.idle:
            member = known.members.get(request.member_id)
            self._groups.check_memory(size, 0 if member is None else member.size)
            self._mixed.join(known, request, client, new_id, version, draft, token)
            return known
        group = _group_to_join(known, group_id, request)
        before = group.members.size_of(request.member_id, request.group_instance_id)
        self._groups.check_memory(size, before)
        group.join(request, client, new_id, version, draft, token)
        if known is not None and known is not group:
            self._groups.replace(known, group, draft)
        self._groups.add(group)
        return group

    def sync(self, request: Fields, draft: DecisionDraft, token: Any) -> Group:
        """Record the leader's assignment, or wait for it."""
        check_group_id(request.group_id)
        mixed = self._groups.get(request.group_id)
        if isinstance(mixed, ConsumerGroup):
            self._mixed.sync(mixed, request, draft, token)
            return mixed
        group = self._groups.classic(request.group_id)
        if request.assignments:  # only the leader's, so that not every member's takes their sum
            size = sum(len(each.assignment) for each in request.assignments)
            before = sum(len(member.assignment) for member in group.members)
            self._groups.check_memory(size, before)
        group.sync(request, draft, token)
        return group

    def heartbeat(self, request: Fields, draft: DecisionDraft, token: Any) -> None:
        """Extend the member's session and report a rebalance."""
        check_group_id(request.group_id)
        mixed = self._groups.get(request.group_id)
        if isinstance(mixed, ConsumerGroup):
            error = self._mixed.heartbeat(mixed, request, draft)
        else:
            error = self._groups.classic(request.group_id).heartbeat(request, draft)
        draft.complete(token, {"error_code": 0 if error is None else error.code})

    def leave(
        self,
        group_id: str,
        members: Sequence[tuple[str, str | None, str | None]],
        draft: DecisionDraft,
        token: Any,
    ) -> Group:
        """Remove members, given as (member id, instance id, reason), independently."""
        check_group_id(group_id)
        mixed = self._groups.get(group_id)
        if isinstance(mixed, ConsumerGroup):
            responses = self._mixed.leave(mixed, members, draft)
            draft.complete(token, {"error_code": 0, "members": responses})
            return mixed
        is_known = group_id in self._groups
        group = self._groups.classic(group_id) if is_known else ClassicGroup(group_id)
        size_before = len(group.members)
        responses = []
        for member_id, instance_id, _ in members:
            code = 0
            try:
                group.leave(member_id, instance_id, draft)
            except KafkaError as error:
                code = error.code
            responses.append({
                "member_id": member_id,
                "group_instance_id": instance_id,
                "error_code": code,
            })  # fmt: skip
        group.rebalance_after_leave(size_before, draft)
        draft.complete(token, {"error_code": 0, "members": responses})
        return group


def _group_to_join(known: Group | None, group_id: str, request: Fields) -> ClassicGroup:
    """Return the classic group of a JoinGroup; a new one may replace an empty group."""
    if isinstance(known, ClassicGroup):
        return known
    if known is not None and known.kind is GroupKind.SHARE:
        raise InconsistentGroupProtocol(f"Group {group_id} is a share group.")
    if request.member_id:
        raise UnknownMemberId()
    return ClassicGroup(group_id)


def _check_join(request: Fields, limits: GroupLimits) -> None:
    shortest, longest = limits.min_session_ms, limits.max_session_ms
    if not shortest <= request.session_timeout_ms <= longest:
        raise InvalidSessionTimeout(
            f"Session timeout {request.session_timeout_ms} ms is not between"
            f" group.min.session.timeout.ms={shortest} and"
            f" group.max.session.timeout.ms={longest}."
        )
    if len(request.protocols) > PROTOCOLS_MAX:
        raise InvalidRequest(f"A member supports at most {PROTOCOLS_MAX} protocols.")
