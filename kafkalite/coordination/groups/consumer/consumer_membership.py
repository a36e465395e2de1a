"""ConsumerMembership: the requests and deadlines of members of consumer groups (KIP-848).

A heartbeat joins, stays, changes its subscription, or leaves.  Its records are one batch; the state
changes when they are replayed, deadlines change at once.

A member that is not settled gets a short heartbeat interval, so that a rebalance does not take one
of the long intervals for each of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.assignment.subscribed_topics import Topics
from kafkalite.coordination.groups.assignment.topic_partitions import partitions_fields
from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup, ResolvedPattern
from kafkalite.coordination.groups.consumer.consumer_member import (
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    MemberSubscription,
    member_tombstones,
)
from kafkalite.coordination.groups.consumer.group_change import GroupChange
from kafkalite.coordination.groups.consumer.group_migration import (
    DOWNGRADES,
    UPGRADES,
    can_downgrade,
    downgraded,
    upgraded,
)
from kafkalite.coordination.groups.consumer.pattern_refresh import PatternRefresh, check_new_pattern
from kafkalite.coordination.groups.consumer.reconciliation import OwnedPartitions
from kafkalite.coordination.groups.consumer.target_updates import TargetUpdates
from kafkalite.coordination.groups.decision_draft import (
    JOIN,
    REBALANCE,
    SESSION,
    SYNC,
    TARGET,
    DeadlineKey,
    DecisionDraft,
    GroupClient,
)
from kafkalite.coordination.groups.descriptions import DescriptionSteps
from kafkalite.coordination.groups.group import LEAVE_EPOCH, LEAVE_STATIC_EPOCH, GroupKind
from kafkalite.coordination.groups.group_limits import GroupLimits
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.groups.group_table import ConvertedGroup, GroupTable
from kafkalite.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from kafkalite.protocol.schema import Fields

FENCING_RETRY_MS = 1_000
"""Time after which an expired member is removed again, if its tombstones could not be written."""
UNSETTLED_INTERVAL_MS = 200
"""Minimum heartbeat interval of a member that is not settled; in a group of n members it is at
least n milliseconds."""


class ConsumerMembership:
    """The consumer protocol over the groups of one coordinator."""

    def __init__(
        self,
        groups: GroupTable,
        topics: Topics,
        settings_of: Callable[[str], ConsumerGroupSettings],
        new_member_id: Callable[[str], str],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._settings_of = settings_of
        self._new_member_id = new_member_id
        self._refresh = PatternRefresh()
        self._targets = TargetUpdates(groups, self.change)

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(
        self, request: Fields, client: GroupClient, draft: DecisionDraft, token: Any
    ) -> None:
        """Join a group, stay in it, or leave it; see request_checks.py for the checks before."""
        if request.member_epoch < 0:
            self._leave(request, draft, token)
            return
        group = self._group_to_join(request, draft)
        check_new_pattern(group, request.subscribed_topic_regex)
        change = self.change(group, draft)
        member = self._member(change, request, client)
        subscription = _subscription(member, request, client)
        self._check_memory(change, member, subscription)
        change.subscribe(member.member_id, subscription)
        change.update_epoch()
        change.update_target()
        changed = change.member(member.member_id)
        assert changed is not None
        owned = _owned(request)
        after = change.reconcile(changed, owned)
        self.set_deadlines(change, changed, after, draft)
        is_joining = request.member_epoch == 0
        has_assignment = is_joining or _is_full(request) or _differs(after, changed.current)
        response = {
            "error_code": 0,
            "error_message": None,
            "member_id": member.member_id,
            "member_epoch": after.epoch,
            "heartbeat_interval_ms": _interval_ms(change, changed, after),
            "assignment": (
                {"topic_partitions": partitions_fields(after.assigned)} if has_assignment else None
            ),
        }
        before = self._groups.get(request.group_id)
        if isinstance(before, ClassicGroup):
            before.interrupt(draft)
        draft.complete(token, response)

    def _group_to_join(self, request: Fields, draft: DecisionDraft) -> ConsumerGroup:
        """Return the group of a heartbeat; a joining member can create it."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        is_classic = isinstance(group, ClassicGroup)
        is_share = group is not None and group.kind is GroupKind.SHARE
        is_joinable = group is None or is_classic or (group.idle and not is_share)
        if request.member_epoch != 0 or not is_joinable:
            raise GroupIdNotFound(f"Consumer group {request.group_id} does not exist.")
        if isinstance(group, ClassicGroup) and group.members:
            return self._upgrade(group, draft)
        if group is not None:
            draft.records += group.tombstones()
        return ConsumerGroup(request.group_id)

    def _upgrade(self, group: ClassicGroup, draft: DecisionDraft) -> ConsumerGroup:
        """Convert a classic group with members to a consumer group."""
        limits = draft.limits
        if limits.migration_policy not in UPGRADES:
            raise GroupIdNotFound(
                f"Group {group.group_id} is a classic group, and group.consumer.migration.policy"
                f" is {limits.migration_policy}."
            )
        if len(group.members) > limits.consumer_max_size:
            raise GroupIdNotFound(
                f"Group {group.group_id} has {len(group.members)} members, more than"
                f" group.consumer.max.size={limits.consumer_max_size}."
            )
        after, records = upgraded(group, self._topics)
        draft.records += group.tombstones()
        draft.records += records
        self._groups.converted = ConvertedGroup(after, records[-1])
        for member in after.members.values():
            self.extend_session(after, member, draft)
        return after

    def _member(self, change: GroupChange, request: Fields, client: GroupClient) -> ConsumerMember:
        """Return the member that sent a heartbeat; a new one is not in the group yet."""
        group, epoch = change.group, request.member_epoch
        if request.instance_id is not None:
            member = self._static_member(change, request)
        else:
            member = group.members.get(request.member_id)
        if member is None:
            if epoch != 0:
                raise UnknownMemberId()
            self._check_room(change, request)
            return ConsumerMember(request.member_id or self._new_member_id(client.client_id))
        if epoch != 0:
            _check_epoch(member.current, epoch, _owned(request))
        return member

    def _static_member(self, change: GroupChange, request: Fields) -> ConsumerMember | None:
        """Return the member with the instance id; a new process replaces one that has left."""
        group = change.group
        holder_id = group.by_instance.get(request.instance_id)
        if request.member_epoch != 0:
            return _holder(group, request)
        if holder_id is None or holder_id == request.member_id:
            return group.members.get(request.member_id)
        holder = group.members[holder_id]
        if not holder.is_classic and holder.current.epoch != LEAVE_STATIC_EPOCH:
            raise UnreleasedInstanceId(
                f"Instance id {request.instance_id} is in use by member {holder_id}, which has"
                " not left the group."
            )
        member_id = request.member_id or self._new_member_id(request.instance_id)
        change.replace(holder_id, member_id)
        return change.member(member_id)

    def _check_room(self, change: GroupChange, request: Fields) -> None:
        """Raise GroupMaxSizeReached if the group has no room for a new member."""
        if change.member_count >= change.size_max:
            raise GroupMaxSizeReached(
                f"Group {request.group_id} has reached its maximum size of {change.size_max}."
            )

    def _check_memory(
        self, change: GroupChange, member: ConsumerMember, subscription: MemberSubscription
    ) -> None:
        """Raise GroupMaxSizeReached if a new or larger subscription has no room."""
        member_id, known = member.member_id, member.subscription
        if subscription != known:
            is_new = change.member(member_id) is None
            before = 0 if is_new else ConsumerMember(member_id, known).size
            self._groups.check_memory(ConsumerMember(member_id, subscription).size, before)

    def set_deadlines(
        self,
        change: GroupChange,
        member: ConsumerMember,
        after: CurrentAssignment,
        draft: DecisionDraft,
    ) -> None:
        """Set the deadlines of a member after a step of its reconciliation."""
        group = change.group
        self.extend_session(group, member, draft)
        if after is member.current:
            return
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            due = group.deadline(REBALANCE, member.member_id)
            draft.set_deadline(due, member.subscription.rebalance_timeout_ms)
        else:
            draft.deadlines.drop(group.deadline(REBALANCE, member.member_id))

    def extend_session(
        self, group: ConsumerGroup, member: ConsumerMember, draft: DecisionDraft
    ) -> None:
        """Extend a member's session."""
        classic = member.subscription.classic
        timeout_ms = (
            self._settings_of(group.group_id).session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        draft.set_deadline(group.deadline(SESSION, member.member_id), timeout_ms)

    # -- regular expressions -----------------------------------------------------------------

    def topics_changed(self, names: Collection[str]) -> None:
        """Note that topics were created or deleted, or have more partitions."""
        self._refresh.topics_changed()
        for group in self._groups:
            if isinstance(group, ConsumerGroup) and group.has_any_of(names):
                group.is_metadata_current = False

    def patterns_due(self, group_id: str, refresh_ms: int, now_ms: int) -> Sequence[str]:
        """Return the regular expressions of a group if their topics have to be looked up."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            self._refresh.forget(group_id)
            return ()
        return self._refresh.due(group, refresh_ms, now_ms)

    def resolve_patterns(
        self, group_id: str, resolved: Mapping[str, ResolvedPattern], draft: DecisionDraft
    ) -> None:
        """Record the topics of regular expressions if they have changed; that begins an epoch."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        self._refresh.end(group_id)
        change = self.change(group, draft)
        for pattern, each in resolved.items():
            known = group.patterns.get(pattern)
            if known is None or known.topics != each.topics:
                change.resolve(pattern, each)
        change.update_epoch()
        if change.epoch > group.epoch and not change.delay_target():
            draft.set_deadline(group.deadline(TARGET), 0)

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, request: Fields, draft: DecisionDraft, token: Any) -> None:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Consumer group {request.group_id} does not exist.")
        if request.instance_id is not None:
            member = _holder(group, request)
        else:
            known = group.members.get(request.member_id)
            if known is None:
                raise UnknownMemberId()
            member = known
        if request.member_epoch == LEAVE_EPOCH:
            self.remove(group, [member.member_id], draft)
        else:
            self._leave_temporarily(group, member, draft)
        response = {
            "error_code": 0,
            "error_message": None,
            "member_id": request.member_id,
            "member_epoch": request.member_epoch,
            "heartbeat_interval_ms": 0,
            "assignment": None,
        }
        draft.complete(token, response)

    def _leave_temporarily(
        self, group: ConsumerGroup, member: ConsumerMember, draft: DecisionDraft
    ) -> None:
        """Keep the partitions of a static member that has left, until its session expires."""
        assigned = {
            topic_id: dict.fromkeys(epochs, 0)
            for topic_id, epochs in member.current.assigned.items()
        }
        current = CurrentAssignment(LEAVE_STATIC_EPOCH, member.current.epoch, assigned=assigned)
        self.change(group, draft).assign(member.member_id, current)
        draft.deadlines.drop(group.deadline(REBALANCE, member.member_id))

    def remove(self, group: ConsumerGroup, member_ids: Sequence[str], draft: DecisionDraft) -> None:
        """Remove members; the others get their partitions."""
        change = self.change(group, draft)
        for member_id in member_ids:
            change.remove(member_id)
        if not change.has_patterns:
            self._refresh.forget(group.group_id)
        if not self.downgrade(change, draft):
            change.update_epoch()
            change.delay_target()

    def downgrade(self, change: GroupChange, draft: DecisionDraft) -> bool:
        """Convert a group that has only classic members left to a classic group; return whether it
        was."""
        limits, group = draft.limits, change.group
        if (
            not change.is_classic
            or limits.migration_policy not in DOWNGRADES
            or change.member_count > limits.max_size
        ):
            return False
        members = [*change.members()]
        if not can_downgrade(group.group_id, members):
            return False
        for member in members:
            if member.member_id not in group.members:
                draft.records += member_tombstones(group.group_id, member.member_id)
        after, record = downgraded(group, members, self._topics, draft.wall_ms)
        draft.records += group.tombstones()
        draft.records.append(record)
        self._groups.converted = ConvertedGroup(after, record)
        return True

    # -- deadlines ---------------------------------------------------------------------------

    def expire(
        self, group: ConsumerGroup, expired: Sequence[DeadlineKey], draft: DecisionDraft
    ) -> None:
        """Handle the expired deadlines of a group: fence members, begin a target."""
        fenced = [
            due.member_id
            for due in expired
            if due.member_id in group.members and _is_late(group, due)
        ]
        has_target = any(due.kind == TARGET for due in expired)
        if fenced:
            self.remove(group, [*dict.fromkeys(fenced)], draft)
            for member_id in fenced:
                draft.set_deadline(group.deadline(SESSION, member_id), FENCING_RETRY_MS)
            if has_target:
                draft.set_deadline(group.deadline(TARGET), 0)
        elif has_target:
            self._targets.add(group.group_id)

    def advance_targets(self, draft: DecisionDraft) -> None:
        """Compute and write parts of the targets that are due."""
        self._targets.advance(draft)

    def write_failed(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop targets in progress: the records of a decision were not written."""
        self._targets.clear(deadlines)

    def restore(self, group: ConsumerGroup, draft: DecisionDraft) -> None:
        """Begin the deadlines of a group after a load."""
        settings = self._settings_of(group.group_id)
        for member in group.members.values():
            self.extend_session(group, member, draft)
            if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                due = group.deadline(REBALANCE, member.member_id)
                draft.set_deadline(due, member.subscription.rebalance_timeout_ms)
        if group.epoch > group.assignment_epoch:
            draft.set_deadline(group.deadline(TARGET), settings.assignment_interval_ms)

    def describe(self, group_id: str, limits: GroupLimits) -> DescriptionSteps:
        """Return a group as in a ConsumerGroupDescribe response."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        wanted = group.assignors
        assignor = max(limits.consumer_assignors, key=lambda name: wanted[name])
        return group.describe(self._topics, assignor)

    def change(self, group: ConsumerGroup, draft: DecisionDraft) -> GroupChange:
        """Begin a change of a group."""
        return GroupChange(group, self._topics, self._settings_of(group.group_id), draft)


def _holder(group: ConsumerGroup, request: Fields) -> ConsumerMember:
    """Return the member with the instance id of a request; it must have its member id."""
    holder_id = group.by_instance.get(request.instance_id)
    if holder_id is None:
        raise UnknownMemberId()
    if holder_id != request.member_id:
        raise FencedInstanceId()
    return group.members[holder_id]


def _check_epoch(current: CurrentAssignment, epoch: int, owned: OwnedPartitions | None) -> None:
    """Raise FencedMemberEpoch unless the member's epoch is current, or its response was lost."""
    if current.state is MemberState.UNKNOWN and owned:
        raise FencedMemberEpoch("The member's state was written by a newer version; rejoin.")
    if epoch == current.epoch:
        return
    is_repeated = epoch < current.epoch and epoch == current.previous_epoch
    if not (is_repeated and owned is not None and _is_within(owned, current)):
        raise FencedMemberEpoch(
            f"Member epoch {epoch} is not the current one, {current.epoch}; rejoin with epoch 0."
        )


def _is_within(owned: OwnedPartitions, current: CurrentAssignment) -> bool:
    return all(
        index in current.assigned.get(topic_id, ())
        for topic_id, indexes in owned.items()
        for index in indexes
    )


def _is_late(group: ConsumerGroup, due: DeadlineKey) -> bool:
    """Return whether an expired deadline removes its member, as it is now."""
    member = group.members[due.member_id]
    if due.kind == REBALANCE:
        return member.current.state is MemberState.UNREVOKED_PARTITIONS
    return due.kind == SESSION or (due.kind in (JOIN, SYNC) and member.is_classic)


def _subscription(
    member: ConsumerMember, request: Fields, client: GroupClient
) -> MemberSubscription:
    """Return a member's subscription with the fields of a request; null is as before."""
    before = member.subscription
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberSubscription(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        client.client_id,
        client.host,
        before.topic_names if names is None else frozenset(names),
        before.pattern if pattern is None else pattern,
        before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        before.assignor if request.server_assignor is None else request.server_assignor,
    )


def _owned(request: Fields) -> OwnedPartitions | None:
    """Return the partitions that a request reports as owned; None if it has no such field."""
    if request.topic_partitions is None:
        return None
    return {each.topic_id: each.partitions for each in request.topic_partitions}


def _is_full(request: Fields) -> bool:
    """Return whether a heartbeat has all fields, so that the response must have them as well."""
    return (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def _differs(after: CurrentAssignment, before: CurrentAssignment) -> bool:
    """Return whether the partitions themselves differ, not only their epochs."""
    if after is before:
        return False
    return {key: {*each} for key, each in after.assigned.items()} != {
        key: {*each} for key, each in before.assigned.items()
    }


def _interval_ms(change: GroupChange, member: ConsumerMember, after: CurrentAssignment) -> int:
    interval_ms = change.settings.heartbeat_interval_ms
    is_settled = after.state is MemberState.STABLE and after.epoch == change.epoch
    pattern = member.subscription.pattern
    if is_settled and (not pattern or pattern in change.group.patterns):
        return interval_ms
    return min(interval_ms, max(UNSETTLED_INTERVAL_MS, change.member_count))
