"""GroupChange: the changes of one decision in a consumer group, before its records are replayed.

A view of the group with these changes; the group itself stays as it is.  The order of the records
is Kafka's: members, then the group epoch, then the target, then current assignments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from kafkalite.coordination.groups.assignment import target_assignment
from kafkalite.coordination.groups.assignment.subscribed_topics import (
    KnownTopic,
    Topics,
    existing,
    metadata_hash,
)
from kafkalite.coordination.groups.assignment.target_assignment import (
    INLINE_SIZE_MAX,
    TOPICS_COMPARED,
    TargetInput,
    TargetMember,
    compute_target,
)
from kafkalite.coordination.groups.assignment.topic_partitions import Partitions
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup, ResolvedPattern
from kafkalite.coordination.groups.consumer.consumer_member import (
    ConsumerMember,
    CurrentAssignment,
    MemberSubscription,
    member_tombstones,
    target_record,
)
from kafkalite.coordination.groups.consumer.reconciliation import OwnedPartitions, reconcile
from kafkalite.coordination.groups.decision_draft import TARGET, DecisionDraft
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.steps import result_of
from kafkalite.protocol.schemas.consumer_group_records import (
    PARTITION_METADATA,
    TOPIC_PATTERN,
    GroupMemberKey,
)
from kafkalite.protocol.schemas.group_records import GroupRecord

RECORD_SIZE = 2
"""The number of partitions that are assigned in the time in which a record is written."""
TARGET_PAUSE_MS = 100
"""Time until the target of a large group is computed: after the tick of the event loop in which its
epoch changed, which may be an upgrade of the group."""


class GroupChange:
    """See the module; `settings` are those of the group."""

    def __init__(
        self,
        group: ConsumerGroup,
        topics: Topics,
        settings: ConsumerGroupSettings,
        draft: DecisionDraft,
    ) -> None:
        self.group = group
        self.settings = settings
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self.wants_epoch = False
        """True if the group gets a new epoch."""
        self._topics = topics
        self._draft = draft
        self._changed: dict[str, ConsumerMember | None] = {}
        self._targets: dict[str, Partitions] = {}
        # Each heartbeat makes a change: a Counter takes ten times as long to create.
        self._names: defaultdict[str, int] = defaultdict(int)
        self._patterns: defaultdict[str, int] = defaultdict(int)
        self._assignors: defaultdict[str, int] = defaultdict(int)
        self._classic_count = group.classic_count
        self._resolved: dict[str, ResolvedPattern] = {}

    # -- members -----------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerMember | None:
        """Return a member as it is after the changes."""
        if member_id in self._changed:
            return self._changed[member_id]
        return self.group.members.get(member_id)

    def members(self) -> Iterator[ConsumerMember]:
        """Yield the members as they are after the changes."""
        for member_id, member in self.group.members.items():
            if member_id not in self._changed:
                yield member
        for changed in self._changed.values():
            if changed is not None:
                yield changed

    @property
    def member_count(self) -> int:
        """Number of members after the changes."""
        known = self.group.members
        change = sum(
            (member is not None) - (member_id in known)
            for member_id, member in self._changed.items()
        )
        return len(known) + change

    @property
    def is_classic(self) -> bool:
        """True if there are members after the changes, all of the classic protocol."""
        return 0 < self._classic_count == self.member_count

    @property
    def has_patterns(self) -> bool:
        """True if a member has a regular expression after the changes."""
        known, changes = self.group.pattern_members, self._patterns
        return any(known[pattern] + changes[pattern] > 0 for pattern in {*known, *changes})

    @property
    def size_max(self) -> int:
        """Maximum number of members."""
        return self._draft.limits.consumer_max_size

    def subscribe(self, member_id: str, subscription: MemberSubscription) -> None:
        """Record a member's subscription, if it has changed; add the member if it is new."""
        before = self.member(member_id)
        if before is not None and before.subscription == subscription:
            return
        current = CurrentAssignment() if before is None else before.current
        self._draft.records.append(subscription.to_record(self.group.group_id, member_id))
        old = MemberSubscription() if before is None else before.subscription
        self._count(old, -1)
        self._count(subscription, 1)
        self._changed[member_id] = ConsumerMember(member_id, subscription, current)
        if before is None or old.topic_names != subscription.topic_names:
            self.wants_epoch = True
        if old.pattern != subscription.pattern:
            # Topics of a new expression are known once it is resolved.
            known = self.group.patterns
            self.wants_epoch |= not subscription.pattern or subscription.pattern in known
            self._drop_pattern(old.pattern)

    def remove(self, member_id: str) -> None:
        """Remove a member."""
        self._forget(member_id)
        self.wants_epoch = True

    def replace(self, old_id: str, new_id: str) -> None:
        """Give the place of a static member to another member id; nothing moves.

        If that is the id of a member, this one is removed first.
        """
        if self.member(new_id) is not None:
            self.remove(new_id)
        group_id = self.group.group_id
        old = self.member(old_id)
        assert old is not None
        target = self._targets.get(old_id, self.group.target.get(old_id, {}))
        # Counted before it is not: otherwise the topics of its expression would be deleted.
        self._count(old.subscription, 1)
        self._forget(old_id)
        member = ConsumerMember(
            new_id, old.subscription, CurrentAssignment(assigned=old.current.assigned)
        )
        self._changed[new_id] = member
        self._targets[new_id] = target
        self._draft.records += (
            old.subscription.to_record(group_id, new_id),
            target_record(group_id, new_id, target),
            member.current.to_record(group_id, new_id),
        )

    def assign(self, member_id: str, current: CurrentAssignment) -> None:
        """Record a member's current assignment."""
        member = self.member(member_id)
        assert member is not None
        self._changed[member_id] = ConsumerMember(member_id, member.subscription, current)
        self._draft.records.append(current.to_record(self.group.group_id, member_id))

    def _forget(self, member_id: str) -> None:
        member = self.member(member_id)
        assert member is not None
        self._changed[member_id] = None
        self._targets.pop(member_id, None)
        self._count(member.subscription, -1)
        self._draft.records += member_tombstones(self.group.group_id, member_id)
        self._drop_pattern(member.subscription.pattern)
        self.group.drop_member_deadlines(member_id, self._draft.deadlines)

    def _count(self, subscription: MemberSubscription, change: int) -> None:
        for name in subscription.topic_names:
            self._names[name] += change
        if subscription.pattern:
            self._patterns[subscription.pattern] += change
        if subscription.assignor:
            self._assignors[subscription.assignor] += change
        if subscription.classic is not None:
            self._classic_count += change

    def _drop_pattern(self, pattern: str) -> None:
        """Delete the topics of a regular expression that no member has any more."""
        group = self.group
        left = group.pattern_members[pattern] + self._patterns[pattern]
        if pattern in group.patterns and left == 0:
            key = GroupMemberKey(group.group_id, pattern)
            self._draft.records.append(GroupRecord(TOPIC_PATTERN, key, None))

    def resolve(self, pattern: str, resolved: ResolvedPattern) -> None:
        """Record the topics of a regular expression, if a member still has it."""
        group = self.group
        if not group.pattern_members[pattern]:
            return
        if pattern not in group.patterns or group.pattern_topics(pattern) != resolved.topics:
            self.wants_epoch = True
        self._resolved[pattern] = resolved
        self._draft.records.append(resolved.to_record(group.group_id, pattern))

    # -- epochs ------------------------------------------------------------------------------

    @property
    def assignor(self) -> str:
        """The assignor that most members want; the first configured one if none wants any."""
        return self._preferred(self._assignors)

    def _preferred(self, changes: Mapping[str, int]) -> str:
        configured = self._draft.limits.consumer_assignors
        wanted = self.group.assignors
        return max(configured, key=lambda name: wanted[name] + changes.get(name, 0))

    def update_epoch(self) -> None:
        """Record a new group epoch if members or topics have changed."""
        group = self.group
        if self._assignors and self._preferred({}) != self.assignor:
            self.wants_epoch = True
        if not self.wants_epoch and group.is_metadata_current:
            return
        if group.is_metadata_current and self._has_same_topics:
            digest = group.metadata_hash
        else:
            digest = metadata_hash(self._subscribed_topics())
            # With a record, it is current once that is replayed; the next heartbeat compares again.
            group.is_metadata_current = digest == group.metadata_hash and not self.wants_epoch
        if self.wants_epoch or digest != group.metadata_hash:
            self.epoch += 1
            if group.has_partition_metadata:
                self._draft.records.append(GroupRecord(PARTITION_METADATA, group.group_id, None))
            self._draft.records.append(group.epoch_record(self.epoch, digest))
        if not self.member_count:
            # The next member need not wait for the assignment interval.
            self.assignment_epoch = self.epoch
            self._draft.records.append(group.target_epoch_record(self.epoch, 0))

    @property
    def _has_same_topics(self) -> bool:
        """True if the members subscribe to the same topics as before the changes."""
        group = self.group
        return not self._resolved and all(
            (known[key] > 0) == (known[key] + count > 0)
            for known, changes in (
                (group.names, self._names),
                (group.pattern_members, self._patterns),
            )
            for key, count in changes.items()
        )

    def _subscribed_names(self) -> set[str]:
        group = self.group
        names = {name for name in {*group.names, *self._names} if self._is_named(name)}
        for pattern in {*group.pattern_members, *self._patterns}:
            if group.pattern_members[pattern] + self._patterns[pattern] > 0:
                resolved = self._resolved.get(pattern)
                names |= group.pattern_topics(pattern) if resolved is None else resolved.topics
        return names

    def _is_named(self, name: str) -> bool:
        return self.group.names[name] + self._names[name] > 0

    # -- target ------------------------------------------------------------------------------

    def update_target(self) -> None:
        """Compute the target of the group epoch now, or set the deadline for it.

        That of a large group is computed in steps (target_updates.py).
        """
        if self.epoch <= self.assignment_epoch or self.delay_target():
            return
        topics = self._subscribed_topics()
        size = self.member_count + sum(each.partition_count for each in topics)
        size += self.group.names.total() // TOPICS_COMPARED
        # Of an upgrade, it has several for each member, which take longer than a partition.
        size += RECORD_SIZE * len(self._draft.records)
        if size > INLINE_SIZE_MAX:
            # Each heartbeat comes here until that is done, so it does not look at all members.
            self._draft.set_deadline(self.group.deadline(TARGET), TARGET_PAUSE_MS)
            return
        for member_id, partitions in result_of(compute_target(self._input_of(topics))).items():
            self.set_target(member_id, partitions)
        self.end_target(self.epoch)

    def target_input(self) -> TargetInput:
        """Return what the target is computed from, after the changes."""
        return self._input_of(self._subscribed_topics())

    def _subscribed_topics(self) -> list[KnownTopic]:
        return existing(self._topics, self._subscribed_names())

    def _input_of(self, existing_topics: list[KnownTopic]) -> TargetInput:
        members = []
        for member in self.members():
            instance_id, names = member.subscription.instance_id, member.subscription.topic_names
            members.append(
                TargetMember(member.member_id, instance_id, names, member.subscription.pattern)
            )
        assignor = self._draft.limits.consumer_assignors[self.assignor]
        patterns = {pattern: each.topics for pattern, each in self.group.patterns.items()}
        before = {**self.group.target, **self._targets}
        return TargetInput(self.epoch, assignor, members, existing_topics, patterns, before)

    def set_target(self, member_id: str, partitions: Partitions) -> bool:
        """Record a member's target, if it has changed; return whether it has."""
        group = self.group
        if self._targets.get(member_id, group.target.get(member_id)) == partitions:
            return False
        self._targets[member_id] = partitions
        self._draft.records.append(target_record(group.group_id, member_id, partitions))
        return True

    def end_target(self, epoch: int) -> None:
        """Record that the target is that of a group epoch."""
        self.assignment_epoch = epoch
        self._draft.records.append(self.group.target_epoch_record(epoch, self._draft.wall_ms))

    def delay_target(self) -> bool:
        """Set the deadline for a target that cannot be computed in this decision; return whether
        it cannot."""
        if self.epoch <= self.assignment_epoch:
            return False
        wait_ms = self.target_wait_ms()
        if not wait_ms and self.member_count <= INLINE_SIZE_MAX:
            return False
        self._draft.set_deadline(self.group.deadline(TARGET), wait_ms)
        return True

    def target_wait_ms(self) -> int:
        """Return how long the next target has to wait."""
        last_ms = self.group.assignment_timestamp
        return target_assignment.wait_ms(
            last_ms, self._draft.wall_ms, self.settings, self.member_count
        )

    def target_of(self, member_id: str) -> Partitions:
        """Return the target of a member after the changes."""
        if member_id in self._targets:
            return self._targets[member_id]
        return self.group.target.get(member_id, {})

    # -- reconciliation ----------------------------------------------------------------------

    def reconcile(self, member: ConsumerMember, owned: OwnedPartitions | None) -> CurrentAssignment:
        """Take a member one step towards its target; return its assignment after it."""
        group, current = self.group, member.current
        if member is group.members.get(member.member_id) and self.epoch == group.epoch:
            if self.assignment_epoch == group.assignment_epoch and group.is_reconciled(member):
                return current
        target = self.target_of(member.member_id)
        # Only its own topics are looked up: the group may have thousands.
        subscribed = {
            topic_id
            for topic_id in {*target, *current.assigned}
            if group.is_subscribed(member.subscription, topic_id, self._topics)
        }
        after = reconcile(
            current,
            target,
            self.assignment_epoch,
            subscribed,
            owned,
            lambda topic_id, index: self.is_free(topic_id, index, member.member_id),
        )
        if after is not current:
            self.assign(member.member_id, after)
        return after

    def is_free(self, topic_id: bytes, index: int, member_id: str) -> bool:
        """Return whether no other member owns a partition."""
        owner = self.group.owner(topic_id, index)
        return owner is None or owner == member_id or self.member(owner) is None
