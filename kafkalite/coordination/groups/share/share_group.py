"""ShareGroup: a share group (KIP-932), as its records describe it.

All of it changes in `replay` only; decisions are in share_membership.py.  Partitions have to be
initialized at the share coordinator before they are assigned:

    new ── Initializing ── state exists ──▶ Initialized ── state is to be deleted ──▶ Deleting
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.assignment.subscribed_topics import Topics
from kafkalite.coordination.groups.assignment.topic_partitions import (
    Partitions,
    described_partitions,
    partitions_fields,
    read_partitions,
)
from kafkalite.coordination.groups.decision_draft import SESSION, DeadlineKey, DecisionDraft
from kafkalite.coordination.groups.descriptions import DescriptionSteps, describe_members
from kafkalite.coordination.groups.group import FIRST_EPOCH, GroupKind, GroupState
from kafkalite.coordination.groups.offsets.commit_records import OffsetToCommit
from kafkalite.errors import GroupIdNotFound
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_group_records import GroupMemberKey
from kafkalite.protocol.schemas.group_records import NO_TIME, GroupRecord
from kafkalite.protocol.schemas.share_group_records import (
    SHARE_CURRENT,
    SHARE_GROUP,
    SHARE_MEMBER,
    SHARE_PARTITIONS,
    SHARE_TARGET_MEMBER,
    SHARE_TARGET_METADATA,
)

STABLE_STATE = 0
ASSIGNOR = "simple"
GROUP_SIZE, MEMBER_SIZE, PARTITION_SIZE = 2_000, 1_000, 50
"""Approximate memory use in bytes."""

T = TypeVar("T")


class ShareGroupMember(NamedTuple):
    """One member of a share group."""

    member_id: str
    topic_names: frozenset[str] = frozenset()
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = {}

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return (
            MEMBER_SIZE
            + sum(map(len, self.topic_names))
            + PARTITION_SIZE * sum(map(len, self.assigned.values()))
        )


class SharedTopic(NamedTuple):
    """The partitions of a topic with the same progress."""

    name: str
    partitions: frozenset[int]


def without(topics: Mapping[bytes, T], topic_ids: Container[bytes]) -> dict[bytes, T]:
    """Return what belongs to other topics."""
    return {topic_id: each for topic_id, each in topics.items() if topic_id not in topic_ids}


class SharedPartitions(NamedTuple):
    """The partitions of a share group, by the progress of their states."""

    initializing: Mapping[bytes, SharedTopic] = {}
    initialized: Mapping[bytes, SharedTopic] = {}
    deleting: Mapping[bytes, str] = {}
    """Names of topics whose states are being deleted."""

    def known(self, topic_id: bytes) -> Collection[int]:
        """Return the partitions of a topic that are initialized, or are going to be."""
        topics = (self.initializing.get(topic_id), self.initialized.get(topic_id))
        return [index for topic in topics if topic is not None for index in topic.partitions]

    def without(self, topic_ids: Container[bytes]) -> SharedPartitions:
        """Return the partitions of all other topics."""
        return SharedPartitions(
            without(self.initializing, topic_ids),
            without(self.initialized, topic_ids),
            without(self.deleting, topic_ids),
        )

    def to_record(self, group_id: str) -> GroupRecord:
        """Return the record of these partitions; a tombstone if there are none."""
        if not any(self):
            return GroupRecord(SHARE_PARTITIONS, group_id, None)
        value = {
            "initializing_topics": _named(self.initializing),
            "initialized_topics": _named(self.initialized),
            "deleting_topics": [
                {"topic_id": topic_id, "topic_name": name}
                for topic_id, name in self.deleting.items()
            ],
        }
        return GroupRecord(SHARE_PARTITIONS, group_id, value)


def _named(topics: Mapping[bytes, SharedTopic]) -> list[dict[str, Any]]:
    return [
        {"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(topic.partitions)}
        for topic_id, topic in topics.items()
        if topic.partitions
    ]


def _topics(entries: Sequence[Mapping[str, Any]]) -> dict[bytes, SharedTopic]:
    return {
        each["topic_id"]: SharedTopic(each["topic_name"], frozenset(each["partitions"]))
        for each in entries
    }


class ShareGroup:
    """One share group."""

    kind = GroupKind.SHARE
    offsets_expire_since_ms = NO_TIME

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.members: dict[str, ShareGroupMember] = {}
        self.target: dict[str, Partitions] = {}
        self.partitions = SharedPartitions()
        self.is_recorded = False
        """True if the log has a record of the group."""
        self.is_metadata_current = False
        """False if topics may have changed since `metadata_hash`; soft state."""
        self.has_new_partitions = False
        """True if partitions were initialized since the target was computed; soft state."""
        self._members_size = self._partitions_size = 0

    @property
    def state(self) -> GroupState:
        """The state that listings and descriptions show."""
        return GroupState.STABLE if self.members else GroupState.EMPTY

    @property
    def idle(self) -> bool:
        """True if the group has no members."""
        return not self.members

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return GROUP_SIZE + self._members_size + self._partitions_size

    @property
    def subscribed(self) -> Container[str]:
        """The topics that the members subscribe to."""
        return self.subscribed_names()

    def subscribed_names(self) -> set[str]:
        """Return the names of the topics that the members subscribe to; some may not exist."""
        return {name for member in self.members.values() for name in member.topic_names}

    # -- records -----------------------------------------------------------------------------

    def epoch_record(self, epoch: int, metadata_hash: int) -> GroupRecord:
        """Return the record of a group epoch."""
        value = {"epoch": epoch, "metadata_hash": metadata_hash}
        return GroupRecord(SHARE_GROUP, self.group_id, value)

    def target_epoch_record(self, epoch: int, timestamp: int) -> GroupRecord:
        """Return the record of the target's epoch."""
        value = {"assignment_epoch": epoch, "assignment_timestamp": timestamp}
        return GroupRecord(SHARE_TARGET_METADATA, self.group_id, value)

    def target_record(self, member_id: str, assigned: Partitions) -> GroupRecord:
        """Return the record of a member's target."""
        value = {"topic_partitions": partitions_fields(assigned)}
        return GroupRecord(SHARE_TARGET_MEMBER, GroupMemberKey(self.group_id, member_id), value)

    def member_record(self, member: ShareGroupMember) -> GroupRecord:
        """Return the record of a member's subscription."""
        value = {
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.topic_names),
        }
        return GroupRecord(SHARE_MEMBER, GroupMemberKey(self.group_id, member.member_id), value)

    def current_record(self, member: ShareGroupMember) -> GroupRecord:
        """Return the record of a member's epoch and partitions."""
        value = {
            "member_epoch": member.epoch,
            "previous_member_epoch": member.previous_epoch,
            "state": STABLE_STATE,
            "assigned_partitions": partitions_fields(member.assigned),
        }
        return GroupRecord(SHARE_CURRENT, GroupMemberKey(self.group_id, member.member_id), value)

    def member_tombstones(self, member_id: str) -> list[GroupRecord]:
        """Return the records that delete a member, in the order that replay requires."""
        key = GroupMemberKey(self.group_id, member_id)
        kinds = (SHARE_CURRENT, SHARE_TARGET_MEMBER, SHARE_MEMBER)
        return [GroupRecord(kind, key, None) for kind in kinds]

    def tombstones(self) -> Iterator[GroupRecord]:
        """Yield the records that delete the group; the states are deleted before."""
        for member_id in self.members:
            yield from self.member_tombstones(member_id)
        for kind in (SHARE_TARGET_METADATA, SHARE_PARTITIONS, SHARE_GROUP):
            yield GroupRecord(kind, self.group_id, None)

    def replay(self, record: GroupRecord) -> bool:
        """Apply a record of the group; return False: there are no rebalances."""
        self._REPLAY[record.kind](self, record)
        self.is_recorded = True
        return False

    def _replay_group(self, record: GroupRecord) -> None:
        self.epoch = record.value["epoch"]
        self.metadata_hash = record.value["metadata_hash"]

    def _replay_member(self, record: GroupRecord) -> None:
        member_id, value = record.key.name, record.value
        if value is None:
            self._put(member_id, None)
            return
        member = self.members.get(member_id, ShareGroupMember(member_id))
        self._put(
            member_id,
            member._replace(
                topic_names=frozenset(value["subscribed_topic_names"]),
                rack_id=value["rack_id"],
                client_id=value["client_id"],
                client_host=value["client_host"],
            ),
        )

    def _put(self, member_id: str, member: ShareGroupMember | None) -> None:
        """Replace a member; None removes it."""
        before = self.members.get(member_id)
        self._members_size -= before.size if before is not None else 0
        if member is None:
            self.members.pop(member_id, None)
        else:
            self.members[member_id] = member
            self._members_size += member.size

    def _replay_target_epoch(self, record: GroupRecord) -> None:
        value = record.value
        self.assignment_epoch = FIRST_EPOCH if value is None else value["assignment_epoch"]
        self.has_new_partitions = False

    def _replay_target(self, record: GroupRecord) -> None:
        if record.value is None:
            self.target.pop(record.key.name, None)
        else:
            self.target[record.key.name] = read_partitions(record.value["topic_partitions"])

    def _replay_current(self, record: GroupRecord) -> None:
        member_id, value = record.key.name, record.value
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._put(member_id, member._replace(epoch=0, previous_epoch=0, assigned={}))
            return
        self._put(
            member_id,
            (member or ShareGroupMember(member_id))._replace(
                epoch=value["member_epoch"],
                previous_epoch=value["previous_member_epoch"],
                assigned=read_partitions(value["assigned_partitions"]),
            ),
        )

    def _replay_partitions(self, record: GroupRecord) -> None:
        value = record.value
        if value is None:
            self.partitions = SharedPartitions()
        else:
            self.partitions = SharedPartitions(
                _topics(value["initializing_topics"]),
                _topics(value["initialized_topics"]),
                {each["topic_id"]: each["topic_name"] for each in value["deleting_topics"]},
            )
        self.has_new_partitions = True
        self._partitions_size = PARTITION_SIZE * sum(
            len(topic.partitions) for topics in self.partitions[:2] for topic in topics.values()
        )

    _REPLAY = {
        SHARE_GROUP: _replay_group,
        SHARE_MEMBER: _replay_member,
        SHARE_TARGET_METADATA: _replay_target_epoch,
        SHARE_TARGET_MEMBER: _replay_target,
        SHARE_CURRENT: _replay_current,
        SHARE_PARTITIONS: _replay_partitions,
    }

    # -- offsets, which a share group does not commit ----------------------------------------

    def check_commit(
        self,
        request: Fields,
        commits: Sequence[OffsetToCommit],
        version: int,
        draft: DecisionDraft,
    ) -> None:
        """Refuse: a share group has no committed offsets."""
        raise GroupIdNotFound(f"Group {self.group_id} is not a consumer group.")

    def check_transactional_commit(
        self, request: Fields, commits: Sequence[OffsetToCommit]
    ) -> None:
        """Refuse: a share group has no committed offsets."""
        raise GroupIdNotFound(f"Group {self.group_id} is not a consumer group.")

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Do nothing: as for an unknown group, no offset is found."""

    def check_offset_delete(self) -> None:
        """Refuse: a share group has no committed offsets."""
        raise GroupIdNotFound(f"Group {self.group_id} is not a consumer group.")

    def deadline(self, member_id: str) -> DeadlineKey:
        """Return the key of a member's session deadline."""
        return DeadlineKey(SESSION, self.group_id, member_id)

    def drop_deadlines(self, deadlines: Deadlines[DeadlineKey]) -> None:
        """Drop the deadlines of a group that is removed."""
        for member_id in self.members:
            deadlines.drop(self.deadline(member_id))

    # -- descriptions ------------------------------------------------------------------------

    def list_entry(self) -> dict[str, Any]:
        """Return the group as in a ListGroups response."""
        return {
            "group_id": self.group_id,
            "protocol_type": "share",
            "group_state": str(self.state),
            "group_type": str(self.kind),
        }

    def describe(self, topics: Topics) -> DescriptionSteps:
        """Return the group as in a ShareGroupDescribe response, without topics that are gone."""
        group = {
            "error_code": 0,
            "error_message": None,
            "group_id": self.group_id,
            "group_state": str(self.state),
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor_name": ASSIGNOR,
        }
        members = [*self.members.values()]
        return describe_members(group, (_described(member, topics) for member in members))


def _described(member: ShareGroupMember, topics: Topics) -> dict[str, Any]:
    """Return a member as in a ShareGroupDescribe response."""
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "assignment": described_partitions(member.assigned, topics),
    }
