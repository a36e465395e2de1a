"""Subscriptions and assignments of classic members, in the bytes of Kafka's ConsumerProtocol.

The user data of cooperative-sticky is the generation, as in Kafka: versions of the subscription
before 2 have no field for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from kafkalite.client.group.client_assignors import COOPERATIVE_STICKY, ClassicSubscription
from kafkalite.client.group.membership import checked_partitions
from kafkalite.client.net.topology import TopicPartition
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.consumer_protocol import (
    ASSIGNMENT_VERSION,
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    SUBSCRIPTION_VERSION,
    read_versioned,
    write_versioned,
)

GENERATION = struct.Struct(">i")


def write_subscription(
    protocol: str, topics: Iterable[str], owned: Iterable[TopicPartition], generation: int
) -> bytes:
    """Return the metadata of one protocol in JoinGroup."""
    is_sticky = protocol == COOPERATIVE_STICKY
    values: dict[str, object] = {
        "topics": sorted(topics),
        "user_data": GENERATION.pack(generation) if is_sticky else None,
        "owned_partitions": partitions_by_name(owned),
        "generation_id": generation,
    }
    return write_versioned(CONSUMER_SUBSCRIPTION, SUBSCRIPTION_VERSION, values)


def read_subscription(
    protocol: str, member_id: str, instance_id: str | None, metadata: bytes
) -> ClassicSubscription:
    """Decode the metadata of a member; raise InvalidRequest if it is not valid."""
    found = read_versioned(CONSUMER_SUBSCRIPTION, metadata)
    generation = found.generation_id
    user_data = found.user_data or b""
    if generation < 0 and protocol == COOPERATIVE_STICKY and len(user_data) >= GENERATION.size:
        (generation,) = GENERATION.unpack_from(user_data)
    owned = tuple(named_partitions(found.owned_partitions))
    return ClassicSubscription(member_id, instance_id, frozenset(found.topics), owned, generation)


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the assignment of one member in SyncGroup."""
    values: dict[str, object] = {"assigned_partitions": partitions_by_name(partitions)}
    return write_versioned(CONSUMER_ASSIGNMENT, ASSIGNMENT_VERSION, values)


def read_assignment(assignment: bytes | memoryview) -> frozenset[TopicPartition]:
    """Decode this member's assignment; raise InvalidRequest if it is not valid.

    No bytes are an empty assignment: Kafka sends them to members that the leader left out.
    """
    if not len(assignment):
        return frozenset()
    found = read_versioned(CONSUMER_ASSIGNMENT, assignment).assigned_partitions
    return checked_partitions(named_partitions(found))


def partitions_by_name(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    """Return partitions grouped under their topics, as in the protocol."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in found.items()]


def named_partitions(topics: Iterable[Fields]) -> list[TopicPartition]:
    """Return the partitions of a list of topics."""
    return [TopicPartition(each.topic, number) for each in topics for number in each.partitions]


def write_assignments(
    assigned: Mapping[str, Iterable[TopicPartition]],
) -> list[dict[str, object]]:
    """Return the assignments of all members, as fields of SyncGroup."""
    return [
        {"member_id": member_id, "assignment": write_assignment(partitions)}
        for member_id, partitions in assigned.items()
    ]
