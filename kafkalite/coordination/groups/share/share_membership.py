"""ShareMembership: the requests and deadlines of members of share groups (KIP-932).

A heartbeat joins, stays, changes the subscription, or leaves.  A member takes its target at once:
partitions are shared, so none has to be revoked first.  Its records are one batch.

A response can have `initializations`: partitions whose states the host has to initialize at the
share coordinator, and report by `initialized`.  Until then, no member gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafkalite.coordination.groups.assignment.assignors import Subscribers
from kafkalite.coordination.groups.assignment.share_assignor import assign_simple
from kafkalite.coordination.groups.assignment.subscribed_topics import (
    KnownTopic,
    Topics,
    existing,
    metadata_hash,
)
from kafkalite.coordination.groups.assignment.topic_partitions import Partitions, partitions_fields
from kafkalite.coordination.groups.decision_draft import DecisionDraft, GroupClient
from kafkalite.coordination.groups.descriptions import DescriptionSteps
from kafkalite.coordination.groups.group import LEAVE_EPOCH, Group
from kafkalite.coordination.groups.group_table import GroupTable
from kafkalite.coordination.groups.offsets.committed_offsets import CommittedOffsets
from kafkalite.coordination.groups.share.share_group import (
    SharedPartitions,
    SharedTopic,
    ShareGroup,
    ShareGroupMember,
    without,
)
from kafkalite.coordination.share.share_settings import ShareGroupSettings
from kafkalite.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    NonEmptyGroup,
    UnknownMemberId,
)
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.group_records import GroupRecord
from kafkalite.protocol.schemas.share_records import SharePartitionKey

UNSETTLED_INTERVAL_MS = 200
"""Heartbeat interval of a member whose partitions are being initialized."""
INITIALIZATION_RETRY_MS = 30_000
"""Time after which an initialization without an outcome is repeated."""
LATEST_OR_CONFIGURED, FROM_THE_BEGINNING = -1, 0
"""The start of a topic that is new to the group, and of new partitions of a known one."""

TopicPartitions = Iterable[tuple[bytes, int]]


class Initialization(NamedTuple):
    """A partition whose state is to be initialized."""

    topic_id: bytes
    partition: int
    state_epoch: int
    start_offset: int


class ShareMembership:
    """The share protocol over the groups of one coordinator."""

    def __init__(
        self,
        groups: GroupTable,
        offsets: CommittedOffsets,
        topics: Topics,
        settings_of: Callable[[str], ShareGroupSettings],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._topics = topics
        self._settings_of = settings_of
        self._initializing_until_ms: dict[str, int] = {}
        """By group, the time until which its initializations are not repeated.  Not kept in the
        group: the first initialization is decided before the group exists."""

    # -- heartbeats --------------------------------------------------------------------------

    def heartbeat(
        self, request: Fields, client: GroupClient, draft: DecisionDraft, token: Any
    ) -> None:
        """Join a group, stay in it, or leave it; see request_checks.py for the checks before."""
        if request.member_epoch == LEAVE_EPOCH:
            self._leave(request, draft, token)
            return
        group = self._group(request)
        settings = self._settings_of(group.group_id)
        before = self._member(group, request, settings)
        after = _subscribed(before or ShareGroupMember(request.member_id), request, client)
        if before is None or _subscription(before) != _subscription(after):
            draft.records.append(group.member_record(after))
        members = {**group.members, after.member_id: after}
        is_new = before is None or before.topic_names != after.topic_names
        if is_new:
            self._groups.check_memory(after.size, before.size if before is not None else 0)
        topics, epoch = self._update_epoch(group, members, draft, is_new=is_new)
        target, assignment_epoch = self._update_target(group, members, epoch, draft)
        reached = _reconciled(after, target, assignment_epoch)
        if before is None or reached != after:
            draft.records.append(group.current_record(reached))
        initializations = self._initializations(group, topics, epoch, draft)
        is_full = request.member_epoch == 0 or request.subscribed_topic_names is not None
        has_assignment = is_full or reached.assigned != after.assigned
        draft.set_deadline(group.deadline(after.member_id), settings.session_timeout_ms)
        is_settled = not initializations and not group.partitions.initializing
        draft.complete(token, {
            "error_code": 0,
            "error_message": None,
            "member_id": after.member_id,
            "member_epoch": reached.epoch,
            "heartbeat_interval_ms": (
                settings.heartbeat_interval_ms
                if is_settled
                else min(UNSETTLED_INTERVAL_MS, settings.heartbeat_interval_ms)
            ),
            "assignment": (
                {"topic_partitions": partitions_fields(reached.assigned)}
                if has_assignment
                else None
            ),
            "initializations": initializations,
        })  # fmt: skip

    def _group(self, request: Fields) -> ShareGroup:
        group = self._groups.get(request.group_id)
        if isinstance(group, ShareGroup):
            return group
        if group is not None or request.member_epoch != 0:
            raise GroupIdNotFound(f"Share group {request.group_id} does not exist.")
        return self._new_group(request.group_id)

    def _new_group(self, group_id: str) -> ShareGroup:
        """Return a share group without members; a classic group may consist of offsets alone."""
        if group_id in self._offsets:
            raise GroupIdNotFound(f"Group {group_id} is not a share group: it has offsets.")
        return ShareGroup(group_id)

    def _member(
        self, group: ShareGroup, request: Fields, settings: ShareGroupSettings
    ) -> ShareGroupMember | None:
        """Return the member of a heartbeat, after its epoch was checked; None for a new one."""
        member, epoch = group.members.get(request.member_id), request.member_epoch
        if member is None:
            if epoch != 0:
                raise UnknownMemberId()
            if len(group.members) >= settings.max_size:
                raise GroupMaxSizeReached(
                    f"The share group has reached its maximum capacity of {settings.max_size}"
                    " members."
                )
            return None
        if epoch != 0 and epoch not in (member.epoch, member.previous_epoch):
            raise FencedMemberEpoch()
        if epoch > member.epoch:
            raise FencedMemberEpoch()
        return member

    def _update_epoch(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareGroupMember],
        draft: DecisionDraft,
        *,
        is_new: bool,
    ) -> tuple[Sequence[KnownTopic] | None, int]:
        """Return the subscribed topics, None if they are as before, and the group's epoch."""
        topics: Sequence[KnownTopic] | None = None
        hashed = group.metadata_hash
        if is_new or not group.is_metadata_current:
            names = {name for member in members.values() for name in member.topic_names}
            topics = existing(self._topics, names)
            hashed = metadata_hash(topics)
            group.is_metadata_current = True
        wants_epoch = is_new or hashed != group.metadata_hash or group.has_new_partitions
        if not wants_epoch:
            return topics, group.epoch
        draft.records.append(group.epoch_record(group.epoch + 1, hashed))
        return topics, group.epoch + 1

    # -- targets -----------------------------------------------------------------------------

    def _update_target(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareGroupMember],
        epoch: int,
        draft: DecisionDraft,
    ) -> tuple[Mapping[str, Partitions], int]:
        """Return the target, computed again for a new group epoch, and its epoch."""
        if epoch == group.assignment_epoch:
            return group.target, group.assignment_epoch
        target = self._target(group, members)
        draft.records += [
            group.target_record(member_id, assigned)
            for member_id, assigned in target.items()
            if assigned != group.target.get(member_id)
        ]
        draft.records.append(group.target_epoch_record(epoch, draft.wall_ms))
        return target, epoch

    def _target(
        self, group: ShareGroup, members: Mapping[str, ShareGroupMember]
    ) -> dict[str, Partitions]:
        """Return the members' shares of the initialized partitions of existing topics."""
        # The assignor numbers the initialized partitions of a topic from 0 on.
        indexes = {
            topic_id: sorted(topic.partitions)
            for topic_id, topic in group.partitions.initialized.items()
        }
        known: dict[frozenset[str], frozenset[bytes]] = {}
        for names in {member.topic_names for member in members.values()}:
            topics = existing(self._topics, names)
            known[names] = frozenset({topic.topic_id for topic in topics} & indexes.keys())
        numbers = {member_id: number for number, member_id in enumerate(members)}
        holders: dict[bytes, list[list[int]]] = {}
        for topic_id, of_topic in indexes.items():
            positions = {index: position for position, index in enumerate(of_topic)}
            held: list[list[int]] = [[] for _ in of_topic]
            for member_id, assigned in group.target.items():
                for index in assigned.get(topic_id, ()) if member_id in numbers else ():
                    if index in positions:
                        held[positions[index]].append(numbers[member_id])
            holders[topic_id] = held
        topic_ids = [known[member.topic_names] for member in members.values()]
        subscribers = Subscribers([*members], [None] * len(members), topic_ids)
        counts = {topic_id: len(of_topic) for topic_id, of_topic in indexes.items()}
        shared = assign_simple(subscribers, counts, holders)
        target: dict[str, dict[bytes, list[int]]] = {member_id: {} for member_id in members}
        ids = [*members]
        for topic_id, by_position in shared.items():
            for index, sharing in zip(indexes[topic_id], by_position, strict=True):
                for number in sharing:
                    target[ids[number]].setdefault(topic_id, []).append(index)
        return dict(target)

    # -- initialization ----------------------------------------------------------------------

    def _initializations(
        self,
        group: ShareGroup,
        topics: Sequence[KnownTopic] | None,
        epoch: int,
        draft: DecisionDraft,
    ) -> list[Initialization]:
        """Return the partitions to initialize now; record those that are new to the group."""
        partitions = group.partitions
        until_ms = self._initializing_until_ms.get(group.group_id, draft.now_ms)
        found: list[tuple[bytes, int]] = []
        if partitions.initializing and until_ms <= draft.now_ms:
            found += _pairs(partitions.initializing)
        new: dict[bytes, SharedTopic] = {}
        for topic in topics or ():
            missing = set(range(topic.partition_count)) - {*partitions.known(topic.topic_id)}
            if missing:
                new[topic.topic_id] = SharedTopic(topic.name, frozenset(missing))
        if new:
            found += _pairs(new)
            draft.records.append(
                partitions._replace(initializing=_joined(partitions.initializing, new)).to_record(
                    group.group_id
                )
            )
        if found:
            self._initializing_until_ms[group.group_id] = draft.now_ms + INITIALIZATION_RETRY_MS
        known = partitions.initialized
        return [
            Initialization(
                topic_id,
                index,
                epoch,
                FROM_THE_BEGINNING if topic_id in known else LATEST_OR_CONFIGURED,
            )
            for topic_id, index in found
        ]

    def initialized(
        self,
        group_id: str,
        succeeded: Collection[tuple[bytes, int]],
        failed: Collection[tuple[bytes, int]],
        draft: DecisionDraft,
    ) -> None:
        """Record the outcome of initializations; those that failed begin again."""
        self._initializing_until_ms.pop(group_id, None)
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return
        if failed:
            group.is_metadata_current = False
        partitions = group.partitions
        ended, lost = _by_topic(succeeded), _by_topic(failed)
        done: dict[bytes, SharedTopic] = {}
        left: dict[bytes, SharedTopic] = {}
        for topic_id, topic in partitions.initializing.items():
            initialized = topic.partitions & ended.get(topic_id, set())
            rest = topic.partitions - initialized - lost.get(topic_id, set())
            if initialized:
                done[topic_id] = topic._replace(partitions=initialized)
            if rest:
                left[topic_id] = topic._replace(partitions=rest)
        if left == partitions.initializing:
            return
        draft.records.append(
            partitions._replace(
                initializing=left, initialized=_joined(partitions.initialized, done)
            ).to_record(group_id)
        )

    # -- leaving -----------------------------------------------------------------------------

    def _leave(self, request: Fields, draft: DecisionDraft, token: Any) -> None:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ShareGroup):
            raise GroupIdNotFound(f"Share group {request.group_id} does not exist.")
        if request.member_id not in group.members:
            raise UnknownMemberId()
        self._remove(group, [request.member_id], draft)
        draft.complete(token, {
            "error_code": 0,
            "error_message": None,
            "member_id": request.member_id,
            "member_epoch": LEAVE_EPOCH,
            "heartbeat_interval_ms": 0,
            "assignment": None,
            "initializations": [],
        })  # fmt: skip

    def _remove(self, group: ShareGroup, member_ids: Sequence[str], draft: DecisionDraft) -> None:
        for member_id in member_ids:
            draft.deadlines.drop(group.deadline(member_id))
            draft.records += group.member_tombstones(member_id)
        epoch = group.epoch + 1
        draft.records.append(group.epoch_record(epoch, group.metadata_hash))
        if len(member_ids) == len(group.members):
            draft.records.append(group.target_epoch_record(epoch, 0))

    def expire(self, group: ShareGroup, member_ids: Sequence[str], draft: DecisionDraft) -> None:
        """Remove members whose sessions have expired."""
        expired = [member_id for member_id in member_ids if member_id in group.members]
        if expired:
            self._remove(group, expired, draft)

    def restore(self, group: ShareGroup, draft: DecisionDraft) -> None:
        """Begin after a load: each member has a full session timeout."""
        timeout_ms = self._settings_of(group.group_id).session_timeout_ms
        for member_id in group.members:
            draft.set_deadline(group.deadline(member_id), timeout_ms)

    # -- others ------------------------------------------------------------------------------

    def topics_changed(self) -> None:
        """Note that topics were created or deleted, or have more partitions."""
        for group in self._groups:
            if isinstance(group, ShareGroup):
                group.is_metadata_current = False

    def topic_deletions(self, is_deleted: Callable[[bytes], bool]) -> Iterator[GroupRecord | None]:
        """Yield the records that remove deleted topics from groups, and a None per topic examined.

        Groups may change between two steps.  The share coordinator deletes the states by itself.
        """
        for group in [group for group in self._groups if isinstance(group, ShareGroup)]:
            gone: set[bytes] = set()
            for topic_id in {topic_id for topics in group.partitions for topic_id in topics}:
                yield None
                if is_deleted(topic_id):
                    gone.add(topic_id)
            if gone and self._groups.get(group.group_id) is group:
                yield group.partitions.without(gone).to_record(group.group_id)

    # -- start offsets -----------------------------------------------------------------------

    def share_partitions(self, group_id: str) -> SharedPartitions:
        """Return the partitions of a share group; none if there is no share group of this name."""
        group = self._groups.get(group_id)
        return group.partitions if isinstance(group, ShareGroup) else SharedPartitions()

    def begin_reset(
        self, group_id: str, topics: Mapping[bytes, SharedTopic], draft: DecisionDraft
    ) -> int:
        """Begin a new state of these partitions; return its epoch.  A new group is created.

        Partitions that have no state are initializing until `initialized` reports the outcome.
        """
        known = self._groups.get(group_id)
        group = _unused(known if known is not None else self._new_group(group_id))
        # A leader that has loaded the old state is fenced by its state epoch.  (In Kafka the epoch
        # stays.)
        epoch = group.epoch + 1 if group.is_recorded else group.epoch
        draft.records.append(group.epoch_record(epoch, group.metadata_hash))
        partitions = group.partitions
        new = {
            topic_id: topic._replace(partitions=missing)
            for topic_id, topic in topics.items()
            if (missing := topic.partitions.difference(partitions.known(topic_id)))
        }
        initializing = _joined(partitions.initializing, new)
        draft.records.append(partitions._replace(initializing=initializing).to_record(group_id))
        self._initializing_until_ms[group_id] = draft.now_ms + INITIALIZATION_RETRY_MS
        return epoch

    def begin_deletion(
        self, group_id: str, names: Collection[str], draft: DecisionDraft
    ) -> list[SharePartitionKey]:
        """Begin to delete the states of topics; return their share partitions."""
        group = _unused(self._known(group_id))
        partitions = group.partitions
        known = _joined(partitions.initializing, partitions.initialized)
        deleting = {topic_id: topic for topic_id, topic in known.items() if topic.name in names}
        if deleting:
            rest = partitions.without(deleting.keys())
            named = {topic_id: topic.name for topic_id, topic in deleting.items()}
            draft.records.append(
                rest._replace(deleting={**rest.deleting, **named}).to_record(group_id)
            )
        begun = self._begun_deletions(partitions, names)
        return [SharePartitionKey(group_id, *pair) for pair in _pairs(_joined(begun, deleting))]

    def _begun_deletions(
        self, partitions: SharedPartitions, names: Collection[str]
    ) -> dict[bytes, SharedTopic]:
        """Return the partitions of those topics whose deletion began earlier, and did not end."""
        topics = (
            self._topics.topic_by_id(topic_id)
            for topic_id, name in partitions.deleting.items()
            if name in names
        )
        return {
            topic.topic_id: SharedTopic(topic.name, frozenset(range(topic.partition_count)))
            for topic in topics
            if topic is not None
        }

    def end_deletion(
        self, group_id: str, topic_ids: Collection[bytes], draft: DecisionDraft
    ) -> None:
        """Record that the states of topics are deleted."""
        group = self._groups.get(group_id)
        if isinstance(group, ShareGroup) and not group.partitions.deleting.keys().isdisjoint(
            topic_ids
        ):
            partitions = group.partitions
            deleting = without(partitions.deleting, topic_ids)
            draft.records.append(partitions._replace(deleting=deleting).to_record(group_id))

    def _known(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a share group.")
        return group

    def topics_with_states(self, group_id: str) -> set[str]:
        """Return the topics of which a share group without members may have states."""
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup) or group.members:
            return set()
        initializing, initialized, deleting = group.partitions
        topics = (*initializing.values(), *initialized.values())
        return {topic.name for topic in topics} | {*deleting.values()}

    def describe(self, group_id: str) -> DescriptionSteps:
        """Return a share group as in a ShareGroupDescribe response."""
        return self._known(group_id).describe(self._topics)


def _subscribed(member: ShareGroupMember, request: Fields, client: GroupClient) -> ShareGroupMember:
    """Return a member with the fields of its heartbeat; one that is null is as before."""
    names = request.subscribed_topic_names
    return member._replace(
        topic_names=member.topic_names if names is None else frozenset(names),
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        client_id=client.client_id,
        client_host=client.host,
    )


def _subscription(member: ShareGroupMember) -> tuple[object, ...]:
    return member.topic_names, member.rack_id, member.client_id, member.client_host


def _reconciled(
    member: ShareGroupMember, target: Mapping[str, Partitions], assignment_epoch: int
) -> ShareGroupMember:
    """Return a member with its target."""
    assigned = target.get(member.member_id, {})
    if member.epoch == assignment_epoch and member.assigned == assigned:
        return member
    previous = member.epoch if member.epoch != assignment_epoch else member.previous_epoch
    return member._replace(epoch=assignment_epoch, previous_epoch=previous, assigned=assigned)


def _unused(group: Group) -> ShareGroup:
    """Return a share group; raise an error for a group of another type or with members."""
    if not isinstance(group, ShareGroup):
        raise GroupIdNotFound(f"Group {group.group_id} is not a share group.")
    if group.members:
        raise NonEmptyGroup()
    return group


def _by_topic(partitions: TopicPartitions) -> dict[bytes, set[int]]:
    indexes: dict[bytes, set[int]] = {}
    for topic_id, index in partitions:
        indexes.setdefault(topic_id, set()).add(index)
    return indexes


def _pairs(topics: Mapping[bytes, SharedTopic]) -> list[tuple[bytes, int]]:
    return [
        (topic_id, index)
        for topic_id, topic in topics.items()
        for index in sorted(topic.partitions)
    ]


def _joined(
    topics: Mapping[bytes, SharedTopic], others: Mapping[bytes, SharedTopic]
) -> dict[bytes, SharedTopic]:
    """Return the partitions of both."""
    joined = dict(topics)
    for topic_id, other in others.items():
        topic = joined.get(topic_id, SharedTopic(other.name, frozenset()))
        joined[topic_id] = SharedTopic(other.name, topic.partitions | other.partitions)
    return joined
