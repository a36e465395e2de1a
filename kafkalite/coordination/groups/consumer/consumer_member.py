"""ConsumerMember: a member of a consumer group, as its records describe it.

    MemberSubscription    the fields of its requests (record kind 5)
    CurrentAssignment     its epoch, state and partitions (record kind 8)

Both are values: a change makes a new one, which is stored when its record is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from kafkalite.coordination.groups.assignment.topic_partitions import Partitions
from kafkalite.coordination.groups.classic.classic_members import protocols_size
from kafkalite.protocol.schemas.consumer_group_records import (
    CONSUMER_MEMBER,
    CURRENT_ASSIGNMENT,
    TARGET_MEMBER,
    GroupMemberKey,
)
from kafkalite.protocol.schemas.group_records import GroupRecord

MEMBER_SIZE = 1_200
TOPIC_SIZE = 120
PARTITION_SIZE = 150
"""Approximate memory use of a member, and of each of its topics and partitions, besides texts."""

PartitionEpochs: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""The epoch at which a member got each of its partitions, by topic id and partition."""


class MemberState(IntEnum):
    """The progress of a member towards the target assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


KNOWN_STATES = frozenset(MemberState)


class ClassicProtocols(NamedTuple):
    """The JoinGroup fields of a member of the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberSubscription(NamedTuple):
    """The fields that a member has sent about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None

    @property
    def protocol_names(self) -> frozenset[str]:
        """The protocols that a classic member supports."""
        protocols = () if self.classic is None else self.classic.protocols
        return frozenset(name for name, _ in protocols)

    @classmethod
    def from_record(cls, value: Mapping[str, Any]) -> MemberSubscription:
        """Return the subscription in a record."""
        classic = value["classic_member_metadata"]
        protocols = classic and tuple(
            (each["name"], each["metadata"]) for each in classic["supported_protocols"]
        )
        is_classic = bool(protocols)
        return cls(
            value["instance_id"],
            value["rack_id"],
            value["client_id"],
            value["client_host"],
            frozenset(value["subscribed_topic_names"]),
            value["subscribed_topic_regex"] or "",
            value["rebalance_timeout_ms"],
            value["server_assignor"],
            ClassicProtocols(classic["session_timeout_ms"], protocols) if is_classic else None,
        )

    def to_record(self, group_id: str, member_id: str) -> GroupRecord:
        """Return the member's record."""
        classic = self.classic
        value = {
            "instance_id": self.instance_id,
            "rack_id": self.rack_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "subscribed_topic_names": sorted(self.topic_names),
            "subscribed_topic_regex": self.pattern,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "server_assignor": self.assignor,
            "classic_member_metadata": classic
            and {
                "session_timeout_ms": classic.session_timeout_ms,
                "supported_protocols": [
                    {"name": name, "metadata": metadata} for name, metadata in classic.protocols
                ],
            },
        }
        return GroupRecord(CONSUMER_MEMBER, GroupMemberKey(group_id, member_id), value)


class CurrentAssignment(NamedTuple):
    """The epoch, state and partitions of a member; see reconciliation.py."""

    epoch: int = 0
    previous_epoch: int = 0
    """The epoch of the last request that the member may repeat, if it got no response."""
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = {}
    pending: PartitionEpochs = {}
    """Partitions that the member has to revoke and still owns."""

    @classmethod
    def from_record(cls, value: Mapping[str, Any]) -> CurrentAssignment:
        """Return the assignment in a record; an unknown state is that of a newer version."""
        epoch = value["member_epoch"]
        number = value["state"]
        is_known = number in KNOWN_STATES
        return cls(
            epoch,
            value["previous_member_epoch"],
            MemberState(number) if is_known else MemberState.UNKNOWN,
            _epochs(value["assigned_partitions"], max(epoch, 0)),
            _epochs(value["partitions_pending_revocation"], max(epoch, 0)),
        )

    def to_record(self, group_id: str, member_id: str) -> GroupRecord:
        """Return the member's record."""
        value = {
            "member_epoch": self.epoch,
            "previous_member_epoch": self.previous_epoch,
            "state": int(self.state),
            "assigned_partitions": _epochs_fields(self.assigned),
            "partitions_pending_revocation": _epochs_fields(self.pending),
        }
        return GroupRecord(CURRENT_ASSIGNMENT, GroupMemberKey(group_id, member_id), value)

    @property
    def partition_count(self) -> int:
        """Number of partitions that the member owns."""
        count = 0
        # Most members have partitions of one topic or none: a loop is faster than `sum`.
        for epochs in self.assigned.values():
            count += len(epochs)
        for epochs in self.pending.values():
            count += len(epochs)
        return count


@dataclass(slots=True)
class ConsumerMember:
    """One member."""

    member_id: str
    subscription: MemberSubscription = MemberSubscription()
    current: CurrentAssignment = CurrentAssignment()

    @property
    def is_classic(self) -> bool:
        """True if the member uses the classic protocol."""
        return self.subscription.classic is not None

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        subscription = self.subscription
        texts = len(subscription.pattern) + len(self.member_id) + len(subscription.client_id)
        for name in subscription.topic_names:
            texts += len(name)
        topics_size = TOPIC_SIZE * len(subscription.topic_names)
        if subscription.classic is not None:
            topics_size += protocols_size(subscription.classic.protocols)
        return MEMBER_SIZE + texts + topics_size + PARTITION_SIZE * self.current.partition_count


def target_record(group_id: str, member_id: str, target: Partitions | None) -> GroupRecord:
    """Return the record of a member's target assignment; None deletes it."""
    value = None
    if target is not None:
        # The indexes are in their order, as the assignors return them.
        listed = [{"topic_id": key, "partitions": [*target[key]]} for key in sorted(target)]
        value = {"topic_partitions": listed}
    return GroupRecord(TARGET_MEMBER, GroupMemberKey(group_id, member_id), value)


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the records that remove a member, in the order that Kafka's replay requires."""
    key = GroupMemberKey(group_id, member_id)
    return [
        GroupRecord(kind, key, None)
        for kind in (CURRENT_ASSIGNMENT, TARGET_MEMBER, CONSUMER_MEMBER)
    ]


def _epochs(fields: Sequence[Mapping[str, Any]], epoch: int) -> PartitionEpochs:
    return {
        each["topic_id"]: dict(
            zip(
                each["partitions"],
                each["assignment_epochs"] or [epoch] * len(each["partitions"]),
                strict=False,
            )
        )
        for each in fields
    }


def _epochs_fields(partitions: PartitionEpochs) -> list[dict[str, Any]]:
    fields = []
    for topic_id in sorted(partitions):
        epochs = partitions[topic_id]
        indexes = sorted(epochs)
        fields.append({
            "topic_id": topic_id,
            "partitions": indexes,
            "assignment_epochs": [epochs[index] for index in indexes],
        })  # fmt: skip
    return fields
