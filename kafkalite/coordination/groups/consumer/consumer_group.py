"""ConsumerGroup: a group of the consumer protocol (KIP-848), as its records describe it.

    group epoch         a member comes, goes or changes its topics, or the topics change
    assignment epoch    the group epoch of the target assignment
    member epoch        the target that the member has been brought to

All of it changes in `replay` only, and any one record can be replayed alone, in any order that a
compacted log can have.  Decisions are in consumer_membership.py.  Indexes of the state (owners of
partitions, subscribed topics, members that are not reconciled) follow the records.

Left out: partition metadata (record kind 4), which Kafka does not write any more; the hash of the
topics' metadata replaces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.assignment.subscribed_topics import Topics
from kafkalite.coordination.groups.assignment.topic_partitions import (
    Partitions,
    described_partitions,
    read_partitions,
)
from kafkalite.coordination.groups.consumer.consumer_member import (
    PARTITION_SIZE,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    MemberSubscription,
    PartitionEpochs,
)
from kafkalite.coordination.groups.decision_draft import (
    JOIN,
    REBALANCE,
    SESSION,
    SYNC,
    TARGET,
    DeadlineKey,
    DecisionDraft,
)
from kafkalite.coordination.groups.descriptions import DescriptionSteps, describe_members
from kafkalite.coordination.groups.group import FIRST_EPOCH, GroupKind, GroupState
from kafkalite.coordination.groups.offsets.commit_records import OffsetToCommit
from kafkalite.errors import (
    IllegalGeneration,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_group_records import (
    CONSUMER_GROUP,
    CONSUMER_MEMBER,
    CURRENT_ASSIGNMENT,
    PARTITION_METADATA,
    TARGET_MEMBER,
    TARGET_METADATA,
    TOPIC_PATTERN,
    GroupMemberKey,
)
from kafkalite.protocol.schemas.consumer_protocol import PROTOCOL_TYPE
from kafkalite.protocol.schemas.group_records import NO_TIME, GroupRecord

MEMBER_EPOCHS_SINCE = 9
"""The OffsetCommit version from which commits have member epochs."""

GROUP_SIZE = 2_000
"""Approximate memory use of a group besides its members."""


class ResolvedPattern(NamedTuple):
    """The topics that a regular expression matched, and when."""

    topics: frozenset[str]
    version: int
    """Version of the metadata that was searched."""
    timestamp: int

    def to_record(self, group_id: str, pattern: str) -> GroupRecord:
        value = {
            "topics": sorted(self.topics),
            "version": self.version,
            "timestamp": self.timestamp,
        }
        return GroupRecord(TOPIC_PATTERN, GroupMemberKey(group_id, pattern), value)


class ConsumerGroup:
    """One consumer group."""

    kind = GroupKind.CONSUMER
    offsets_expire_since_ms = NO_TIME

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp = 0
        self.members: dict[str, ConsumerMember] = {}
        self.by_instance: dict[str, str] = {}
        self.target: dict[str, Partitions] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        self.is_recorded = False
        """True if the log has a record of the group."""
        self.has_partition_metadata = False
        """True if the log has a record of kind 4, which is deleted with the next change."""
        self.is_metadata_current = False
        """False if `metadata_hash` may be outdated; soft state."""
        self.names: Counter[str] = Counter()
        """The number of members that name each topic."""
        self.pattern_members: Counter[str] = Counter()
        """The number of members with each regular expression."""
        self.assignors: Counter[str] = Counter()
        """The number of members that want each assignor."""
        self.classic_count = 0
        """Number of members of the classic protocol."""
        self.protocols: Counter[str] = Counter()
        """The number of classic members that support each of their protocols."""
        self._owners: dict[bytes, dict[int, str]] = {}
        self._unreconciled: set[str] = set()
        self._members_size = 0

    # -- state -------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """The state that listings and descriptions show."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.RECONCILING if self._unreconciled else GroupState.STABLE

    @property
    def idle(self) -> bool:
        """True if the group has no members."""
        return not self.members

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return GROUP_SIZE + len(self.group_id) + self._members_size

    @property
    def subscribed(self) -> Container[str]:
        """The topics that the members subscribe to."""
        return self.subscribed_names()

    def subscribed_names(self) -> set[str]:
        """Return the names of the topics that the members subscribe to; some may not exist."""
        names = set(self.names)
        for pattern in self.pattern_members:
            names |= self.pattern_topics(pattern)
        return names

    def has_any_of(self, names: Collection[str]) -> bool:
        """Return whether the members subscribe to any of these topics."""
        return any(name in self.names for name in names) or any(
            not self.pattern_topics(pattern).isdisjoint(names) for pattern in self.pattern_members
        )

    def pattern_topics(self, pattern: str) -> frozenset[str]:
        """Return the topics of a regular expression; none until it is resolved."""
        resolved = self.patterns.get(pattern)
        return frozenset() if resolved is None else resolved.topics

    def is_subscribed(
        self, subscription: MemberSubscription, topic_id: bytes, topics: Topics
    ) -> bool:
        """Return whether a topic exists and is one of a subscription."""
        topic = topics.topic_by_id(topic_id)
        return topic is not None and (
            topic.name in subscription.topic_names
            or topic.name in self.pattern_topics(subscription.pattern)
        )

    def owner(self, topic_id: bytes, index: int) -> str | None:
        """Return the member that has a partition, or still has to revoke it."""
        return self._owners.get(topic_id, {}).get(index)

    def unowned(self, topic_id: bytes, indexes: Iterable[int]) -> bool:
        """Return whether no member has any of these partitions of a topic."""
        owners = self._owners.get(topic_id)
        return not owners or owners.keys().isdisjoint(indexes)

    def is_reconciled(self, member: ConsumerMember) -> bool:
        """Return whether a member has its part of the target."""
        current = member.current
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    # -- records -----------------------------------------------------------------------------

    def epoch_record(self, epoch: int, metadata_hash: int) -> GroupRecord:
        """Return the record of a group epoch."""
        value = {"epoch": epoch, "metadata_hash": metadata_hash}
        return GroupRecord(CONSUMER_GROUP, self.group_id, value)

    def target_epoch_record(self, epoch: int, timestamp: int) -> GroupRecord:
        """Return the record of the target's epoch."""
        value = {"assignment_epoch": epoch, "assignment_timestamp": timestamp}
        return GroupRecord(TARGET_METADATA, self.group_id, value)

    def tombstones(self) -> Iterator[GroupRecord]:
        """Yield the records that delete the group, without its offsets."""
        group_id = self.group_id
        keys = [GroupMemberKey(group_id, member_id) for member_id in self.members]
        for key in keys:
            yield GroupRecord(CURRENT_ASSIGNMENT, key, None)
            yield GroupRecord(TARGET_MEMBER, key, None)
        yield GroupRecord(TARGET_METADATA, group_id, None)
        for key in keys:
            yield GroupRecord(CONSUMER_MEMBER, key, None)
        for pattern in self.patterns:
            yield GroupRecord(TOPIC_PATTERN, GroupMemberKey(group_id, pattern), None)
        if self.has_partition_metadata:
            yield GroupRecord(PARTITION_METADATA, group_id, None)
        yield GroupRecord(CONSUMER_GROUP, group_id, None)

    def replay(self, record: GroupRecord) -> bool:
        """Apply a record of the group; return whether it completed a rebalance."""
        before = self.state
        self._REPLAY[record.kind](self, record)
        self.is_recorded = True
        return before is not GroupState.STABLE and self.state is GroupState.STABLE

    def _replay_group(self, record: GroupRecord) -> None:
        self.epoch = record.value["epoch"]
        self.metadata_hash = record.value["metadata_hash"]

    def _replay_partition_metadata(self, record: GroupRecord) -> None:
        self.has_partition_metadata = record.value is not None

    def _replay_target_epoch(self, record: GroupRecord) -> None:
        if record.value is None:
            self.assignment_epoch, self.assignment_timestamp = FIRST_EPOCH, 0
        else:
            self.assignment_epoch = record.value["assignment_epoch"]
            self.assignment_timestamp = record.value["assignment_timestamp"]
        self._unreconciled = {
            member.member_id for member in self.members.values() if not self.is_reconciled(member)
        }

    def _replay_target(self, record: GroupRecord) -> None:
        if record.value is None:
            self.target.pop(record.key.name, None)
        else:
            self.target[record.key.name] = read_partitions(record.value["topic_partitions"])

    def _replay_pattern(self, record: GroupRecord) -> None:
        if record.value is None:
            self.patterns.pop(record.key.name, None)
            return
        value = record.value
        self.patterns[record.key.name] = ResolvedPattern(
            frozenset(value["topics"]), value["version"], value["timestamp"]
        )

    def _replay_member(self, record: GroupRecord) -> None:
        member_id = record.key.name
        if record.value is None:
            self._remove(member_id)
            return
        subscription = MemberSubscription.from_record(record.value)
        member = self.members.get(member_id)
        if member is None:
            self._add(ConsumerMember(member_id, subscription))
            return
        self._count(member, -1)
        self._forget_instance(member)
        member.subscription = subscription
        self._count(member, 1)
        if subscription.instance_id is not None:
            self.by_instance[subscription.instance_id] = member_id

    def _replay_current(self, record: GroupRecord) -> None:
        member_id = record.key.name
        value = record.value
        member = self.members.get(member_id)
        if member is None:
            if value is None:
                return
            member = ConsumerMember(member_id)
            self._add(member)
        is_deleted = value is None
        after = CurrentAssignment() if is_deleted else CurrentAssignment.from_record(value)
        self._assign(member, after)

    _REPLAY = {
        CONSUMER_GROUP: _replay_group,
        PARTITION_METADATA: _replay_partition_metadata,
        CONSUMER_MEMBER: _replay_member,
        TARGET_METADATA: _replay_target_epoch,
        TARGET_MEMBER: _replay_target,
        CURRENT_ASSIGNMENT: _replay_current,
        TOPIC_PATTERN: _replay_pattern,
    }

    # -- indexes -----------------------------------------------------------------------------

    def add_member(self, member: ConsumerMember, target: Partitions) -> None:
        """Add a new member with its assignment, as replaying its records does."""
        member_id, current = member.member_id, member.current
        self._add(member)
        self.target[member_id] = target
        for partitions in (current.assigned, current.pending):
            self._own(member_id, partitions)
        if self.is_reconciled(member):
            self._unreconciled.discard(member_id)

    def _add(self, member: ConsumerMember) -> None:
        """Add a member without partitions."""
        member_id, instance_id = member.member_id, member.subscription.instance_id
        self.members[member_id] = member
        self._unreconciled.add(member_id)
        self._count(member, 1)
        if instance_id is not None:
            self.by_instance[instance_id] = member_id

    def _assign(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Replace a member's current assignment."""
        member_id, before = member.member_id, member.current
        self._disown(member_id, before)
        member.current = current
        added_count = current.partition_count - before.partition_count
        self._members_size += PARTITION_SIZE * added_count
        for partitions in (current.assigned, current.pending):
            self._own(member_id, partitions)
        if self.is_reconciled(member):
            self._unreconciled.discard(member_id)
        else:
            self._unreconciled.add(member_id)

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._disown(member_id, member.current)
        self._count(member, -1)
        self._unreconciled.discard(member_id)
        self._forget_instance(member)

    def _forget_instance(self, member: ConsumerMember) -> None:
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.by_instance.get(instance_id) == member.member_id:
            del self.by_instance[instance_id]

    def _count(self, member: ConsumerMember, change: int) -> None:
        """Add a member's subscription to the indexes, or remove it."""
        subscription = member.subscription
        for name in subscription.topic_names:
            self._bump(self.names, name, change)
        if subscription.pattern:
            self._bump(self.pattern_members, subscription.pattern, change)
        if subscription.assignor:
            self._bump(self.assignors, subscription.assignor, change)
        if subscription.classic is not None:
            self.classic_count += change
            for name, _ in subscription.classic.protocols:
                self._bump(self.protocols, name, change)
        self._members_size += change * member.size

    @staticmethod
    def _bump(counter: Counter[str], key: str, change: int) -> None:
        counter[key] += change
        if not counter[key]:
            del counter[key]

    def _own(self, member_id: str, partitions: PartitionEpochs) -> None:
        for topic_id, epochs in partitions.items():
            owners = self._owners.setdefault(topic_id, {})
            for index in epochs:
                owners[index] = member_id

    def _disown(self, member_id: str, current: CurrentAssignment) -> None:
        for partitions in (current.assigned, current.pending):
            for topic_id, epochs in partitions.items():
                owners = self._owners.get(topic_id, {})
                for index in epochs:
                    if owners.get(index) == member_id:
                        del owners[index]
                if not owners:
                    self._owners.pop(topic_id, None)

    # -- deadlines ---------------------------------------------------------------------------

    def deadline(self, kind: str, member_id: str = "") -> DeadlineKey:
        """Return the key of a deadline of the group, or of a member."""
        return DeadlineKey(kind, self.group_id, member_id)

    def drop_deadlines(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the deadlines of a group that is removed."""
        deadlines.drop(self.deadline(TARGET))
        for member_id in self.members:
            deadlines.drop(self.deadline(SESSION, member_id))
            self.drop_member_deadlines(member_id, deadlines)

    def drop_member_deadlines(self, member_id: str, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the deadlines of a member that is removed, except its session: that expires if the
        removal cannot be written."""
        for kind in (REBALANCE, JOIN, SYNC):
            deadlines.drop(self.deadline(kind, member_id))

    # -- offsets -----------------------------------------------------------------------------

    def check_commit(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        version: int,
        draft: DecisionDraft,
    ) -> None:
        """Raise an error unless the member of an OffsetCommit may commit these offsets now.

        A commit does not extend the member's session.
        """
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return
        member = self._known(request.member_id)
        if version < MEMBER_EPOCHS_SINCE and not member.is_classic:
            raise UnsupportedVersion(
                f"Members of the consumer protocol use version {MEMBER_EPOCHS_SINCE} or higher."
            )
        _check_commit_epoch(member, epoch, commits)

    def check_transactional_commit(
        self, request: Fields, commits: Sequence[OffsetToCommit]
    ) -> None:
        """Raise an error unless these offsets may be committed in a transaction now.

        Older versions of TxnOffsetCommit name no member, so members need not be named.
        """
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return
        if epoch < 0 and not request.member_id and request.group_instance_id is None:
            return
        _check_commit_epoch(self._known(request.member_id), epoch, commits)

    def check_offset_delete(self) -> None:
        """Do nothing: the topics that the members consume are known."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise an error unless a member may fetch offsets now; None and -1 are no member."""
        if member_id is None and member_epoch < 0:
            return
        member = self._known(member_id)
        if member_epoch != member.current.epoch:
            raise _stale(member)

    def _known(self, member_id: str | None) -> ConsumerMember:
        member = self.members.get(member_id or "")
        if member is None:
            raise UnknownMemberId()
        return member

    # -- descriptions ------------------------------------------------------------------------

    def list_entry(self) -> dict[str, Any]:
        """Return the group as in a ListGroups response."""
        return {
            "group_id": self.group_id,
            "protocol_type": PROTOCOL_TYPE,
            "group_state": str(self.state),
            "group_type": str(self.kind),
        }

    def describe(self, topics: Topics, assignor: str) -> DescriptionSteps:
        """Return the group as in a ConsumerGroupDescribe response, without topics that are gone."""
        group = {
            "error_code": 0,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": str(self.state),
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor_name": assignor,
        }
        members = [
            (
                ConsumerMember(member_id, member.subscription, member.current),
                self.target.get(member_id, {}),
            )
            for member_id, member in self.members.items()
        ]
        return describe_members(group, (_described(*each, topics) for each in members))


def _described(member: ConsumerMember, target: Partitions, topics: Topics) -> dict[str, Any]:
    """Return a member as in a ConsumerGroupDescribe response."""
    subscription = member.subscription
    return {
        "member_id": member.member_id,
        "instance_id": subscription.instance_id,
        "rack_id": subscription.rack_id,
        "member_epoch": member.current.epoch,
        "client_id": subscription.client_id,
        "client_host": subscription.client_host,
        "subscribed_topic_names": sorted(subscription.topic_names),
        "subscribed_topic_regex": subscription.pattern,
        "assignment": described_partitions(_owned(member.current), topics),
        "target_assignment": described_partitions(target, topics),
        "member_type": 0 if member.is_classic else 1,
    }


def _owned(current: CurrentAssignment) -> dict[bytes, set[int]]:
    """Return the partitions that a member has, with those that it still has to revoke."""
    owned: dict[bytes, set[int]] = {}
    for partitions in (current.assigned, current.pending):
        for topic_id, epochs in partitions.items():
            owned.setdefault(topic_id, set()).update(epochs)
    return owned


def _check_commit_epoch(
    member: ConsumerMember, epoch: int, commits: Sequence[OffsetToCommit]
) -> None:
    """Raise an error unless a member may commit these offsets with an epoch.

    With an older epoch it may commit what it has had since then (KIP-1251): its commit and the
    response that changed its epoch have crossed.
    """
    current = member.current
    if epoch == current.epoch:
        return
    if epoch > current.epoch:
        raise _stale(member)
    for commit in commits:
        for partitions in (current.assigned, current.pending):
            assigned_epoch = partitions.get(commit.topic_id, {}).get(commit.partition)
            if assigned_epoch is not None and epoch >= assigned_epoch:
                break
        else:
            raise _stale(member)


def _stale(member: ConsumerMember) -> KafkaError:
    """Return the error of an epoch that is not the member's, in the terms of its protocol."""
    return IllegalGeneration() if member.is_classic else StaleMemberEpoch()
