"""Offsets by timestamp and committed offsets of a group, by a member or without membership.

    list_offsets(cluster, {("flights", 0): LATEST, ("flights", 1): 1_700_000_000_000})
    commit_offsets(cluster, "readers", {("flights", 0): 1312})
    committed_offsets(cluster, "readers", [("flights", 0)])

Each call sends requests to the leaders or the coordinator, and retries retriable errors, such as a
changed leader or coordinator, until its timeout.  Other errors of a partition are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.topology import TopicPartition, error_of
from kafkalite.config.client import INT_MAX
from kafkalite.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
    NetworkException,
    NotCoordinator,
    Retriable,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.groups import OFFSET_COMMIT, OFFSET_FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS, MAX_TIMESTAMP

T = TypeVar("T")

MAX_TIMESTAMP_SINCE = 7
REQUIRE_STABLE_SINCE = 7
"""The version of OffsetFetch since which a broker can wait for open transactions (KIP-447)."""

CONSUMER = -1
"""Replica id of a consumer."""

MEMBER_EPOCH_SINCE = 9
"""The version of OffsetFetch that has a member's id and epoch (KIP-848)."""
VERSION_MAX = {OFFSET_COMMIT: 9, OFFSET_FETCH: 9}
"""Last versions that name topics by name: offsets are committed under topic names."""

PartitionKey = tuple[str, int]
Offsets: TypeAlias = Mapping[PartitionKey, int | tuple[int, str | None]]
"""Offset, or offset and metadata, by partition."""


class OffsetAt(NamedTuple):
    """An offset and its record's timestamp in ms; both -1 if no record is at or after the time."""

    offset: int
    timestamp: int


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[PartitionKey, int],
    isolation_level: int = 0,
    timeout_s: float | None = None,
) -> dict[TopicPartition, OffsetAt]:
    """Return the first offset at or after each timestamp, or what EARLIEST and the like stand for.

    LATEST with an isolation level of 1 is the last stable offset.
    """
    found: dict[TopicPartition, OffsetAt] = {}

    def attempt(deadline: Deadline) -> dict[TopicPartition, OffsetAt]:
        leaders: dict[int, dict[PartitionKey, dict[str, int]]] = {}
        for address in wanted.keys() - found.keys():
            leader, epoch = cluster.leader(*address, deadline.left_s)
            sought = {"timestamp": wanted[address], "current_leader_epoch": epoch}
            leaders.setdefault(leader, {})[address] = sought
        errors: list[Retriable] = []
        for node_id, requested in leaders.items():
            try:
                response = request_offsets(cluster, node_id, requested, isolation_level, deadline)
            except Retriable as error:
                errors.append(error)
                continue
            for address, entry, retriable in checked_entries(response.topics, requested):
                if retriable:
                    errors.append(retriable)
                else:
                    found[address] = OffsetAt(entry.offset, entry.timestamp)
        if errors:
            stale = {topic for topic, _ in wanted.keys() - found.keys()}
            cluster.refresh(*stale, timeout_s=deadline.left_s)
            raise errors[0]
        return {address: found[address] for address in (TopicPartition(*each) for each in wanted)}

    return cluster.retry(timeout_s, attempt) if wanted else {}


def request_offsets(
    cluster: Cluster,
    node_id: int,
    sought: Mapping[PartitionKey, Mapping[str, int]],
    isolation_level: int,
    deadline: Deadline,
) -> Fields:
    """Return one leader's ListOffsets response for these partitions."""
    connection = cluster.connection(node_id, timeout_s=deadline.left_s)
    earliest = min(each["timestamp"] for each in sought.values())
    if earliest <= MAX_TIMESTAMP and connection.version(LIST_OFFSETS) < MAX_TIMESTAMP_SINCE:
        raise UnsupportedVersion(
            "The broker does not support a lookup of the greatest timestamp (Kafka 3.0)."
        )
    timeout_ms = min(int(deadline.left_s * 1000), INT_MAX)
    body = {
        "replica_id": CONSUMER,
        "isolation_level": isolation_level,
        "topics": by_topic(sought),
        "timeout_ms": timeout_ms,
    }
    return cluster.request(node_id, LIST_OFFSETS, body, timeout_s=deadline.left_s)


def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Offsets,
    timeout_s: float | None = None,
    *,
    member: GroupMetadata | None = None,
) -> None:
    """Commit an offset, or an offset and metadata, for each partition of the group.

    A `member` commits in its generation; without one, the group must have no members.
    """
    identity = member or GroupMetadata(group)
    entries = {}
    for address, given in offsets.items():
        offset, metadata = given if isinstance(given, tuple) else (given, "")
        entries[address] = {"committed_offset": offset, "committed_metadata": metadata}
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": identity.generation_id,
        "member_id": identity.member_id,
        "topics": by_topic(entries),
    }

    if identity.group_instance_id is not None:
        body["group_instance_id"] = identity.group_instance_id

    def attempt(deadline: Deadline) -> KafkaError | None:
        response = request_coordinator(
            cluster, group, OFFSET_COMMIT, lambda version: body, deadline
        )
        errors = [
            retriable for _, _, retriable in checked_entries(response.topics, entries) if retriable
        ]
        for error in errors:
            if isinstance(error, UnknownTopicOrPartition):
                return error  # authoritative from a coordinator; not retried, as in Kafka
        if errors:
            raise errors[0]
        return None

    error = cluster.retry(timeout_s, attempt) if entries else None
    if error is not None:
        raise error


def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[PartitionKey],
    timeout_s: float | None = None,
    *,
    require_stable: bool = False,
    member: GroupMetadata | None = None,
) -> dict[TopicPartition, int | None]:
    """Return the committed offset of each partition, or None.

    With `require_stable`, wait for the end of transactions that may change one (KIP-447).  The
    coordinator checks the epoch of a `member` (KIP-848).
    """
    addresses = [TopicPartition(*address) for address in partitions]
    topics: dict[str, list[int]] = {}
    for topic, partition in addresses:
        topics.setdefault(topic, []).append(partition)
    requested = [{"name": topic, "partition_indexes": them} for topic, them in topics.items()]

    def body(version: int) -> dict[str, Any]:
        stable = {"require_stable": require_stable} if version >= REQUIRE_STABLE_SINCE else {}
        if version < 8:
            return {"group_id": group, "topics": requested, **stable}
        entry: dict[str, Any] = {"group_id": group, "topics": requested}
        if member is not None and version >= MEMBER_EPOCH_SINCE:
            entry |= {"member_id": member.member_id, "member_epoch": member.generation_id}
        return {"groups": [entry], **stable}

    def attempt(deadline: Deadline) -> dict[TopicPartition, int | None]:
        response = request_coordinator(cluster, group, OFFSET_FETCH, body, deadline)
        in_group = response.groups[0] if response.groups else response
        check_group(cluster, group, in_group.error_code)
        offsets: dict[TopicPartition, int | None] = {}
        for address, entry, retriable in checked_entries(in_group.topics, dict.fromkeys(addresses)):
            if retriable:
                raise retriable
            offsets[address] = entry.committed_offset if entry.committed_offset >= 0 else None
        return {address: offsets[address] for address in addresses}

    return cluster.retry(timeout_s, attempt) if addresses else {}


def request_coordinator(
    cluster: Cluster,
    group: str,
    api: Api,
    body: Callable[[int], dict[str, Any]],
    deadline: Deadline,
) -> Fields:
    """Return the coordinator's response; forget the coordinator if it is lost or has moved."""
    node_id = cluster.coordinator(group, deadline.left_s)
    try:
        connection = cluster.connection(node_id, timeout_s=deadline.left_s)
        version = connection.version(api, VERSION_MAX.get(api))
        response = connection.request(api, body(version), deadline.left_s, version)
    except NetworkException:
        cluster.drop_coordinator(group)
        raise
    for topic in response.get("topics", ()):
        for partition in topic.partitions:
            if partition.error_code in (NotCoordinator.code, CoordinatorNotAvailable.code):
                check_group(cluster, group, partition.error_code)
    return response


def check_group(cluster: Cluster, group: str, code: int, message: str | None = None) -> None:
    """Raise the error of the whole group, if there is one."""
    if code in (NotCoordinator.code, CoordinatorNotAvailable.code):
        cluster.drop_coordinator(group)
    if code:
        raise error_of(code, f"group {group!r}", message)


def by_topic(entries: Mapping[PartitionKey, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return entries by partition grouped under their topics, as in the protocol."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), entry in entries.items():
        topics.setdefault(topic, []).append({"partition_index": partition, **entry})
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]


def checked_entries(
    topics: Iterable[Fields], requested: Mapping[PartitionKey, Any]
) -> list[tuple[TopicPartition, Fields, Retriable | None]]:
    """Return the entry of each requested partition, with its error if that is retriable.

    Raises the first error that is not.
    """
    received = {
        (topic.name, partition.partition_index): partition
        for topic in topics
        for partition in topic.partitions
    }
    result: list[tuple[TopicPartition, Fields, Retriable | None]] = []
    for each in requested:
        address = TopicPartition(*each)
        subject = f"partition {address.partition} of topic {address.topic!r}"
        entry = received.get(address)
        if entry is None:
            raise InvalidRequest(f"The response has no entry for {subject}.")
        retriable = None
        if entry.error_code:
            error = error_of(entry.error_code, subject)
            if not isinstance(error, Retriable):
                raise error
            retriable = error
        result.append((address, entry, retriable))
    return result
