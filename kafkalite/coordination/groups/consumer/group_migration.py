"""Migration of a group between the classic and the consumer protocol, with its members (KIP-848).

    upgrade      a member of the consumer protocol joins a classic group: its records become those
                 of a consumer group whose epochs are the generation
    downgrade    the last such member leaves: a classic group remains, which rebalances

Both need the members' subscriptions and assignments, which are opaque to classic groups.

Its records are one batch, so that a crash leaves one of the two groups, and no other decision can
come between.  With 1,000 members an upgrade takes about 40 ms of the event loop, a downgrade about
30 ms; both grow with the number of members.

Left out: migration in steps, for groups of more than about 1,200 members, whose migration takes a
tick of over 50 ms.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkalite.coordination.groups.assignment.subscribed_topics import Topics
from kafkalite.coordination.groups.assignment.topic_partitions import Partitions
from kafkalite.coordination.groups.classic.classic_generation import ClassicGeneration
from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.classic.classic_members import ClassicMember, ClassicMembers
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
from kafkalite.protocol.schemas.group_records import GroupRecord, group_record

UPGRADES = ("bidirectional", "upgrade")
DOWNGRADES = ("bidirectional", "downgrade")
"""The migration policies that allow each direction."""
DISABLED = "disabled"


def classic_subscription(
    member: MemberSubscription, protocols: Iterable[tuple[str, bytes]], session_timeout_ms: int
) -> tuple[MemberSubscription, Fields]:
    """Return a classic member's subscription, and the decoded metadata of its first protocol.

    `member` has the other fields of the JoinGroup request.
    """
    listed = tuple(protocols)
    try:
        metadata = read_versioned(CONSUMER_SUBSCRIPTION, listed[0][1])
        check_topic_count(metadata.topics)
    except (InvalidRequest, IndexError):
        raise InconsistentGroupProtocol(
            "The member's subscription cannot be decoded, or names too many topics."
        ) from None
    subscription = member._replace(
        rack_id=metadata.rack_id,
        topic_names=frozenset(metadata.topics),
        pattern="",
        assignor=None,
        classic=ClassicProtocols(session_timeout_ms, listed),
    )
    return subscription, metadata


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


# -- upgrade -------------------------------------------------------------------------------------


def upgraded(group: ClassicGroup, topics: Topics) -> tuple[ConsumerGroup, list[GroupRecord]]:
    """Return a consumer group with the members of a classic group, and its records.

    The group is as replaying the records makes it, in a fraction of the time.  Raise
    GroupIdNotFound if a subscription or assignment cannot be converted.
    """
    if group.generation.protocol_type != PROTOCOL_TYPE:
        raise GroupIdNotFound(
            f"Group {group.group_id} has the protocol type {group.generation.protocol_type!r}; only"
            " groups of consumers are upgraded."
        )
    group_id, epoch = group.group_id, group.generation.generation_id
    after = ConsumerGroup(group_id)
    records = [after.epoch_record(epoch, 0)]
    owners: dict[tuple[bytes, int], str] = {}
    for member in group.members:
        subscription = _upgraded_subscription(member, group)
        assigned = _upgraded_assignment(member, topics, epoch)
        for topic_id, epochs in assigned.items():
            for index in epochs:
                if owners.setdefault((topic_id, index), member.member_id) != member.member_id:
                    raise GroupIdNotFound(
                        f"Two members of group {group_id} are assigned the same partition."
                    )
        current = CurrentAssignment(epoch, epoch, assigned=assigned)
        target: Partitions = {topic_id: sorted(epochs) for topic_id, epochs in assigned.items()}
        records += (
            subscription.to_record(group_id, member.member_id),
            target_record(group_id, member.member_id, target),
            current.to_record(group_id, member.member_id),
        )
        after.add_member(ConsumerMember(member.member_id, subscription), current, target)
    records.append(after.target_epoch_record(epoch, 0))
    for record in (records[0], records[-1]):
        after.replay(record)
    return after, records


def _upgraded_subscription(member: ClassicMember, group: ClassicGroup) -> MemberSubscription:
    known = MemberSubscription(
        member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
    )
    agreed = group.generation.protocol
    # The agreed protocol first: the member's topics and its assignment are of that one.
    protocols = sorted(member.protocols.items(), key=lambda each: each[0] != agreed)
    try:
        return classic_subscription(known, protocols, member.session_timeout_ms)[0]
    except InconsistentGroupProtocol:
        raise GroupIdNotFound(
            f"A subscription of group {group.group_id} cannot be decoded, or has too many topics."
        ) from None


def _upgraded_assignment(member: ClassicMember, topics: Topics, epoch: int) -> PartitionEpochs:
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
        topic = topics.topic(each.topic)
        if topic is not None:
            # The leader may know a deleted topic of that name, which had more partitions.
            known = range(topic.partition_count)
            indexes = [index for index in each.partitions if index in known]
            if indexes:
                assigned[topic.topic_id] = dict.fromkeys(indexes, epoch)
    return assigned


# -- downgrade -----------------------------------------------------------------------------------


def downgraded(
    group_id: str, epoch: int, members: Iterable[ConsumerMember], topics: Topics, wall_ms: int
) -> GroupRecord:
    """Return the record of a classic group with the members of a consumer group."""
    generation = ClassicGeneration(ClassicMembers())
    for member in members:
        generation.add(_downgraded_member(member, topics), PROTOCOL_TYPE)
    generation.begin(None)
    generation.leader = next(iter(generation.members))
    generation.generation_id = epoch
    return group_record(group_id, generation.to_record(wall_ms, None))


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
