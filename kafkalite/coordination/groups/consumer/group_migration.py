"""Migration of a group between the classic and the consumer protocol, with its members (KIP-848).

    upgrade      a member of the consumer protocol joins a classic group: its records become those
                 of a consumer group whose epochs are the generation
    downgrade    the last such member leaves: a classic group remains, which rebalances

Both need the members' subscriptions and assignments, which are opaque to classic groups.

Its records are one batch, so that a crash leaves one of the two groups, and no other decision can
come between.  So a migration is one tick of the event loop, and a group is migrated only if that
takes about 30 ms at most, or 40 on a busy machine: an upgrade takes about 30 us a member, a
downgrade about 18.  These are groups of up to about 1,000 and 1,500 members with a topic and a
partition each.  (Kafka requires that the batch fits in `max.message.bytes`: by default that is up
to about 2,700 such members.)

Left out: migration of larger groups while they have members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic, Topics
from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.classic.classic_members import ClassicMember
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.consumer.consumer_member import (
    ClassicProtocols,
    ConsumerMember,
    CurrentAssignment,
    MemberSubscription,
    PartitionEpochs,
    target_record,
)
from kafkalite.coordination.groups.consumer.reconciliation import OwnedPartitions
from kafkalite.coordination.groups.request_checks import check_topic_count
from kafkalite.errors import GroupIdNotFound, InconsistentGroupProtocol, InvalidRequest
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_protocol import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    PROTOCOL_TYPE,
    read_versioned,
    write_versioned,
)
from kafkalite.protocol.schemas.group_records import GroupRecord

UPGRADES = ("bidirectional", "upgrade")
DOWNGRADES = ("bidirectional", "downgrade")
"""The migration policies that allow each direction."""
DISABLED = "disabled"

UPGRADE_COST_MAX, DOWNGRADE_COST_MAX = 53_000, 80_000
"""Maximum cost of a migration; a unit is about 0.6 us of an upgrade, 0.36 us of a downgrade."""
MEMBER_COST, ASSIGNED_TOPIC_COST = 47, 3
"""Cost of a member, besides its topics and partitions, and of each topic in its assignment."""
PROTOCOL_BYTES = 48
"""Number of bytes of a member's protocols that are copied at the cost of a unit."""


def classic_subscription(
    member: MemberSubscription, protocols: Iterable[tuple[str, bytes]], session_timeout_ms: int
) -> tuple[MemberSubscription, Fields]:
    """Return a classic member's subscription, and the decoded metadata of its first protocol.

    `member` has the other fields of the JoinGroup request.
    """
    listed = tuple(protocols)
    try:
        metadata = decoded_subscription(listed[0][1])
    except IndexError:
        raise InconsistentGroupProtocol("The member has no protocol.") from None
    subscription = member._replace(
        rack_id=metadata.rack_id,
        topic_names=frozenset(metadata.topics),
        pattern="",
        assignor=None,
        classic=ClassicProtocols(session_timeout_ms, listed),
    )
    return subscription, metadata


def decoded_subscription(metadata: bytes) -> Fields:
    """Decode a classic member's metadata."""
    try:
        decoded = read_versioned(CONSUMER_SUBSCRIPTION, metadata)
        check_topic_count(decoded.topics)
    except InvalidRequest:
        raise InconsistentGroupProtocol(
            "The member's subscription cannot be decoded, or names too many topics."
        ) from None
    return decoded


def owned_partitions(metadata: Fields, topics: Topics) -> OwnedPartitions:
    """Return the partitions of existing topics that a classic member reports as owned."""
    owned = {}
    for each in metadata.owned_partitions:
        topic = topics.topic(each.topic)
        if topic is not None:
            owned[topic.topic_id] = each.partitions
    return owned


def assignment_bytes(member: ConsumerMember, topics: Topics) -> bytes:
    """Return a member's assignment for its SyncGroup, in the version of its own metadata."""
    classic = member.subscription.classic
    assert classic is not None
    newest = CONSUMER_ASSIGNMENT.versions.high or 0
    version = min(int.from_bytes(classic.protocols[0][1][:2], "big"), newest)
    partitions = []
    for topic_id, epochs in sorted(member.current.assigned.items()):
        topic = topics.topic_by_id(topic_id)
        if topic is not None:
            partitions.append({"topic": topic.name, "partitions": sorted(epochs)})
    fields: dict[str, object] = {"assigned_partitions": partitions, "user_data": None}
    return write_versioned(CONSUMER_ASSIGNMENT, version, fields)


# -- cost ----------------------------------------------------------------------------------------


class MigrationCost:
    """The cost of a migration, as far as its members were added; GroupIdNotFound beyond the
    maximum."""

    def __init__(self, group_id: str, member_count: int, cost_max: int) -> None:
        self._group_id = group_id
        self._member_count = member_count
        self._left = cost_max
        if member_count * MEMBER_COST > cost_max:
            raise self._too_large

    def add(self, member: ConsumerMember) -> None:
        """Add the cost of a member."""
        subscription, current = member.subscription, member.current
        cost = MEMBER_COST + len(subscription.topic_names) // 2 + current.partition_count
        cost += ASSIGNED_TOPIC_COST * len(current.assigned)
        if subscription.classic is not None:
            size = 0
            for _, metadata in subscription.classic.protocols:
                size += len(metadata)
            cost += size // PROTOCOL_BYTES
        self._left -= cost
        if self._left < 0:
            raise self._too_large

    @property
    def _too_large(self) -> GroupIdNotFound:
        return GroupIdNotFound(
            f"Group {self._group_id} has {self._member_count} members, which together have too many"
            " topics and partitions to change the group's protocol at once; stop these members"
            " before others with the new protocol join."
        )


def can_downgrade(group_id: str, members: Sequence[ConsumerMember]) -> bool:
    """Return whether a downgrade with these members does not cost too much."""
    try:
        cost = MigrationCost(group_id, len(members), DOWNGRADE_COST_MAX)
        for member in members:
            cost.add(member)
    except GroupIdNotFound:
        return False
    return True


# -- upgrade -------------------------------------------------------------------------------------


def upgraded(group: ClassicGroup, topics: Topics) -> tuple[ConsumerGroup, list[GroupRecord]]:
    """Return a consumer group with the members of a classic group, and its records.

    The group is as replaying the records makes it, in a fraction of the time.  Raise
    GroupIdNotFound if a subscription or assignment cannot be converted, or if they are too many.
    """
    if group.generation.protocol_type != PROTOCOL_TYPE:
        raise GroupIdNotFound(
            f"Group {group.group_id} has the protocol type {group.generation.protocol_type!r}; only"
            " groups of consumers are upgraded."
        )
    group_id, epoch = group.group_id, group.generation.generation_id
    after = ConsumerGroup(group_id)
    first, last = after.epoch_record(epoch, 0), after.target_epoch_record(epoch, 0)
    after.replay(first)
    after.replay(last)
    records = [first]
    subscriptions = UpgradedSubscriptions(group)
    topic_named = cache(topics.topic)
    cost = MigrationCost(group_id, len(group.members), UPGRADE_COST_MAX)
    for classic in group.members:
        member_id, subscription = classic.member_id, subscriptions.of(classic)
        assigned = _upgraded_assignment(classic, topic_named, epoch)
        target: dict[bytes, list[int]] = {}
        for topic_id, epochs in assigned.items():
            if not after.unowned(topic_id, epochs):
                raise GroupIdNotFound(
                    f"Two members of group {group_id} are assigned the same partition."
                )
            target[topic_id] = sorted(epochs)
        current = CurrentAssignment(epoch, epoch, assigned=assigned)
        member = ConsumerMember(member_id, subscription, current)
        cost.add(member)
        after.add_member(member, target)
        records += (
            subscription.to_record(group_id, member_id),
            target_record(group_id, member_id, target),
            current.to_record(group_id, member_id),
        )
    records.append(last)
    return after, records


class UpgradedSubscriptions:
    """The subscriptions of a classic group's members; most members have the same metadata."""

    def __init__(self, group: ClassicGroup) -> None:
        self._group = group
        self._known: dict[bytes, tuple[str | None, frozenset[str]]] = {}
        """Rack id and topics of metadata."""

    def of(self, member: ClassicMember) -> MemberSubscription:
        """Return a member's subscription."""
        agreed = self._group.generation.protocol
        protocols = tuple(member.protocols.items())
        if protocols and protocols[0][0] != agreed:
            # The member's topics and its assignment are of the agreed protocol.
            protocols = tuple(sorted(protocols, key=lambda each: each[0] != agreed))
        rack_id, topic_names = self._decoded(protocols[0][1] if protocols else b"")
        return MemberSubscription(
            member.instance_id,
            rack_id,
            member.client_id,
            member.client_host,
            topic_names,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicProtocols(member.session_timeout_ms, protocols),
        )

    def _decoded(self, metadata: bytes) -> tuple[str | None, frozenset[str]]:
        known = self._known.get(metadata)
        if known is None:
            try:
                decoded = decoded_subscription(metadata)
            except InconsistentGroupProtocol:
                raise GroupIdNotFound(
                    f"A subscription of group {self._group.group_id} cannot be decoded, or has too"
                    " many topics."
                ) from None
            known = self._known[metadata] = decoded.rack_id, frozenset(decoded.topics)
        return known


def _upgraded_assignment(
    member: ClassicMember, topic_named: Callable[[str], KnownTopic | None], epoch: int
) -> PartitionEpochs:
    if not member.assignment:
        return {}
    try:
        decoded = read_versioned(CONSUMER_ASSIGNMENT, member.assignment)
    except InvalidRequest:
        raise GroupIdNotFound("An assignment of the group cannot be decoded.") from None
    if decoded.user_data:
        raise GroupIdNotFound("An assignment of the group has user data of a custom assignor.")
    assigned = {}
    for each in decoded.assigned_partitions:
        topic = topic_named(each.topic)
        if topic is not None:
            # The leader may know a deleted topic of that name, which had more partitions.
            known = range(topic.partition_count)
            indexes = [index for index in each.partitions if index in known]
            if indexes:
                assigned[topic.topic_id] = dict.fromkeys(indexes, epoch)
    return assigned


# -- downgrade -----------------------------------------------------------------------------------


def downgraded(
    group: ConsumerGroup, members: Iterable[ConsumerMember], topics: Topics, wall_ms: int
) -> tuple[ClassicGroup, GroupRecord]:
    """Return a classic group with members of a consumer group, and its record.

    The group is as a restart makes it of the record, and knows all protocols of its members.
    """
    after = ClassicGroup(group.group_id)
    for member in members:
        after.generation.add(_downgraded_member(member, topics), PROTOCOL_TYPE)
    record = after.convert(group.epoch, wall_ms)
    return after, record


def _downgraded_member(member: ConsumerMember, topics: Topics) -> ClassicMember:
    subscription = member.subscription
    assert subscription.classic is not None
    return ClassicMember(
        member.member_id,
        subscription.instance_id,
        subscription.client_id,
        subscription.client_host,
        subscription.rebalance_timeout_ms,
        subscription.classic.session_timeout_ms,
        dict(subscription.classic.protocols),
        assignment_bytes(member, topics),
    )


def has_common_protocol(group: ConsumerGroup, member_id: str, protocols: Iterable[str]) -> bool:
    """Return whether all classic members, with a new one, have a protocol in common."""
    member = group.members.get(member_id)
    own = frozenset() if member is None else member.subscription.protocol_names
    other_count = group.classic_count - (member is not None and member.is_classic)
    return any(group.protocols[name] - (name in own) == other_count for name in protocols)
