"""Requests that list, describe and delete groups of any type, and delete their offsets.

A group is described by the request of its type: the coordinator responds GROUP_ID_NOT_FOUND to the
others.  A broker that does not support a type has no groups of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.offset_requests import (
    by_topic,
    check_group,
    checked_entries,
    request_coordinator,
)
from kafkalite.client.net.topology import TopicPartition, error_of
from kafkalite.errors import GroupIdNotFound, InvalidRequest, KafkaError, UnsupportedVersion
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.consumer_protocol import (
    CONSUMER_ASSIGNMENT,
    PROTOCOL_TYPE,
    read_versioned,
)
from kafkalite.protocol.schemas.groups import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from kafkalite.protocol.schemas.share import SHARE_GROUP_DESCRIBE

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
MANY_GROUPS_SINCE = 8
"""The version of OffsetFetch since which a request has a list of groups."""
CLASSIC_MEMBER = 0
"""The member type of a classic member in a ConsumerGroupDescribe response (KIP-1099)."""
DEAD = "Dead"
"""The state of a group that does not exist, for brokers before Kafka 4.0."""


class GroupListing(NamedTuple):
    """One group of a list.

    Args:
        group_id: Name of the group.
        type: "classic", "consumer" or "share"; empty if the broker is older than Kafka 3.8.
        state: "Stable", "Empty" and the like; empty if the broker is older than Kafka 2.6.
        protocol_type: "consumer" for groups of consumers, "connect" for those of Kafka Connect.
    """

    group_id: str
    type: str
    state: str
    protocol_type: str


class MemberDescription(NamedTuple):
    """A member of a group.

    Args:
        member_id: Id of the member.
        instance_id: Its `group.instance.id`, or None.
        client_id: Its `client.id`.
        host: Address of the client.
        partitions: The partitions it is assigned.
        target: The partitions it is to have; None in a classic or share group.
        epoch: Its member epoch; None in a classic group.
        type: The protocol it uses: "classic", "consumer" or "share".  A consumer group can have
            classic members.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None
    epoch: int | None
    type: str


class GroupDescription(NamedTuple):
    """A group and its members.

    Args:
        group_id: Name of the group.
        type: "classic", "consumer" or "share".
        state: "Stable", "Empty", "Reconciling" and the like.
        assignor: Name of the assignor in use; empty without members.
        epoch: The group epoch; None for a classic group.
        assignment_epoch: The group epoch that the assignment was computed for; None for a classic
            group.
        coordinator: Node id of the coordinator.
        members: The members.
    """

    group_id: str
    type: str
    state: str
    assignor: str
    epoch: int | None
    assignment_epoch: int | None
    coordinator: int
    members: tuple[MemberDescription, ...]


def list_groups(
    cluster: Cluster,
    types: Collection[str],
    states: Collection[str],
    timeout_s: float | None = None,
) -> list[GroupListing]:
    """Return the groups of all coordinators, of these types and in these states (empty: all)."""

    def attempt(deadline: Deadline) -> list[GroupListing]:
        body: dict[str, Any] = {}
        if states:
            body["states_filter"] = [*states]
        if types:
            body["types_filter"] = [*types]
        cluster.describe((), deadline.left_s)  # requests the nodes
        found: dict[str, GroupListing] = {}
        for node_id in cluster.nodes:
            response = cluster.request(node_id, LIST_GROUPS, body, timeout_s=deadline.left_s)
            if response.error_code:
                raise error_of(response.error_code, f"groups of node {node_id}")
            for each in response.groups:
                found[each.group_id] = GroupListing(
                    each.group_id,
                    each.get("group_type", ""),
                    each.get("group_state", ""),
                    each.protocol_type,
                )
        return sorted(found.values())

    return cluster.retry(timeout_s, attempt)


def describe_group(
    cluster: Cluster, group: str, timeout_s: float | None = None
) -> GroupDescription:
    """Return a group of any type and its members; raise GroupIdNotFound."""

    def attempt(deadline: Deadline) -> GroupDescription:
        missing: KafkaError = GroupIdNotFound(f"Group {group!r} does not exist.")
        for describe in (_consumer_group, _classic_group, _share_group):
            try:
                return describe(cluster, group, deadline)
            except GroupIdNotFound as error:
                missing = error
            except UnsupportedVersion:
                continue
        raise missing

    return cluster.retry(timeout_s, attempt)


def _consumer_group(cluster: Cluster, group: str, deadline: Deadline) -> GroupDescription:
    body = {"group_ids": [group], "include_authorized_operations": False}
    found = _described(cluster, group, CONSUMER_GROUP_DESCRIBE, body, deadline)
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment.topic_partitions),
            _partitions(member.target_assignment.topic_partitions),
            member.member_epoch,
            CLASSIC if member.get("member_type", -1) == CLASSIC_MEMBER else CONSUMER,
        )
        for member in found.members
    )
    return _with_epochs(cluster, CONSUMER, found, members, deadline)


def _share_group(cluster: Cluster, group: str, deadline: Deadline) -> GroupDescription:
    body = {"group_ids": [group], "include_authorized_operations": False}
    found = _described(cluster, group, SHARE_GROUP_DESCRIBE, body, deadline)
    members = tuple(
        MemberDescription(
            member.member_id,
            None,
            member.client_id,
            member.client_host,
            _partitions(member.assignment.topic_partitions),
            None,
            member.member_epoch,
            SHARE,
        )
        for member in found.members
    )
    return _with_epochs(cluster, SHARE, found, members, deadline)


def _with_epochs(
    cluster: Cluster,
    kind: str,
    found: Fields,
    members: tuple[MemberDescription, ...],
    deadline: Deadline,
) -> GroupDescription:
    return GroupDescription(
        found.group_id,
        kind,
        found.group_state,
        found.assignor_name,
        found.group_epoch,
        found.assignment_epoch,
        cluster.coordinator(found.group_id, deadline.left_s),
        members,
    )


def _classic_group(cluster: Cluster, group: str, deadline: Deadline) -> GroupDescription:
    found = _described(cluster, group, DESCRIBE_GROUPS, {"groups": [group]}, deadline)
    if found.group_state == DEAD:
        raise GroupIdNotFound(f"Group {group!r} does not exist.")
    members = tuple(
        MemberDescription(
            member.member_id,
            member.get("group_instance_id"),
            member.client_id,
            member.client_host,
            _assigned(member.member_assignment) if found.protocol_type == PROTOCOL_TYPE else (),
            None,
            None,
            CLASSIC,
        )
        for member in found.members
    )
    return GroupDescription(
        found.group_id,
        CLASSIC,
        found.group_state,
        found.protocol_data,
        None,
        None,
        cluster.coordinator(group, deadline.left_s),
        members,
    )


def _described(
    cluster: Cluster, group: str, api: Api, body: dict[str, Any], deadline: Deadline
) -> Fields:
    response = request_coordinator(cluster, group, api, lambda version: body, deadline)
    return _entry(cluster, group, response.groups)


def _entry(cluster: Cluster, group: str, results: Iterable[Fields]) -> Fields:
    """Return the result of a group; raise its error."""
    for result in results:
        if result.group_id == group:
            check_group(cluster, group, result.error_code, result.get("error_message"))
            return result
    raise InvalidRequest(f"The response has no entry for group {group!r}.")


def _assigned(assignment: bytes | memoryview) -> tuple[TopicPartition, ...]:
    """Return the partitions of a classic member; none if the bytes are not Kafka's format."""
    try:
        topics = read_versioned(CONSUMER_ASSIGNMENT, assignment).assigned_partitions
    except InvalidRequest:
        return ()
    return tuple(
        TopicPartition(each.topic, number) for each in topics for number in sorted(each.partitions)
    )


def _partitions(topics: Sequence[Fields]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number)
        for topic in topics
        for number in sorted(topic.partitions)
    )


def delete_group(cluster: Cluster, group: str, timeout_s: float | None = None) -> None:
    """Delete a group without members, and its offsets."""

    def attempt(deadline: Deadline) -> None:
        response = request_coordinator(
            cluster, group, DELETE_GROUPS, lambda version: {"groups_names": [group]}, deadline
        )
        _entry(cluster, group, response.results)

    cluster.retry(timeout_s, attempt)


def all_committed_offsets(
    cluster: Cluster, group: str, timeout_s: float | None = None
) -> dict[TopicPartition, int | None]:
    """Return all committed offsets of a group."""

    def body(version: int) -> dict[str, Any]:
        wanted = {"group_id": group, "topics": None}
        return wanted if version < MANY_GROUPS_SINCE else {"groups": [wanted]}

    def attempt(deadline: Deadline) -> dict[TopicPartition, int | None]:
        response = request_coordinator(cluster, group, OFFSET_FETCH, body, deadline)
        found = response.groups[0] if response.groups else response
        check_group(cluster, group, found.error_code)
        return {
            TopicPartition(topic.name, entry.partition_index): entry.committed_offset
            for topic in found.topics
            for entry in topic.partitions
            if entry.committed_offset >= 0
        }

    return cluster.retry(timeout_s, attempt)


def delete_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[tuple[str, int]],
    timeout_s: float | None = None,
) -> None:
    """Delete the committed offsets of partitions that no member of the group consumes."""
    wanted: dict[tuple[str, int], dict[str, Any]] = {
        TopicPartition(*each): {} for each in partitions
    }
    body = {"group_id": group, "topics": by_topic(wanted)}

    def attempt(deadline: Deadline) -> None:
        response = request_coordinator(
            cluster, group, OFFSET_DELETE, lambda version: body, deadline
        )
        check_group(cluster, group, response.error_code)
        for _, _, retriable in checked_entries(response.topics, wanted):
            if retriable:
                raise retriable

    if wanted:
        cluster.retry(timeout_s, attempt)
