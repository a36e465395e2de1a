"""Requests that read, set and delete the offsets of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kafkalite.client.admin.topic_requests import final_error
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.offset_requests import check_group, request_coordinator
from kafkalite.client.net.topology import TopicPartition, error_of, partition_name
from kafkalite.errors import InvalidRequest, KafkaError
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)


class ShareOffset(NamedTuple):
    """The progress of a share group in a partition.

    Args:
        start_offset: Offset below which all records are processed; some after it can be, too.
            None before the first acknowledgement.
        lag: Number of records that are not processed; None if the broker does not know it.
        leader_epoch: Epoch of the leader that wrote the state last; None if there is none.
        in_flight: Number of records that members have acquired and not acknowledged.
        deliveries: Greatest delivery count of the records that are not processed.  Both are None
            if the partition's leader has not loaded the group, and on brokers other than kafkalite.
    """

    start_offset: int | None
    lag: int | None
    leader_epoch: int | None
    in_flight: int | None = None
    deliveries: int | None = None


def share_offsets(
    cluster: Cluster, group: str, timeout_s: float | None = None
) -> dict[TopicPartition, ShareOffset]:
    """Return the offsets of all partitions of a share group."""
    body = {"groups": [{"group_id": group, "topics": None}], "includes_delivery_counts": True}

    def attempt(deadline: Deadline) -> dict[TopicPartition, ShareOffset]:
        response = _requested(cluster, group, DESCRIBE_SHARE_GROUP_OFFSETS, body, deadline)
        for found in response.groups:
            if found.group_id == group:
                check_group(cluster, group, found.error_code, found.error_message)
                return dict(_entries(found.topics))
        raise InvalidRequest(f"The response has no entry for group {group!r}.")

    return cluster.retry(timeout_s, attempt)


def alter_share_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, int],
    timeout_s: float | None = None,
) -> None:
    """Set the start offsets of a share group without members."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        entry = {"partition_index": partition, "start_offset": offset}
        topics.setdefault(topic, []).append(entry)
    requested = [{"topic_name": name, "partitions": entries} for name, entries in topics.items()]
    body = {"group_id": group, "topics": requested}

    def attempt(deadline: Deadline) -> KafkaError | None:
        response = _requested(cluster, group, ALTER_SHARE_GROUP_OFFSETS, body, deadline)
        check_group(cluster, group, response.error_code, response.error_message)
        for topic in response.responses:
            for entry in topic.partitions:
                name = partition_name(TopicPartition(topic.topic_name, entry.partition_index))
                if entry.error_code:
                    return _error(entry, f"group {group!r}, {name}")
        return None

    error = cluster.retry(timeout_s, attempt) if requested else None
    if error is not None:
        raise error


def delete_share_offsets(
    cluster: Cluster, group: str, topics: Collection[str], timeout_s: float | None = None
) -> None:
    """Delete the offsets of topics of a share group without members."""
    body = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}

    def attempt(deadline: Deadline) -> KafkaError | None:
        response = _requested(cluster, group, DELETE_SHARE_GROUP_OFFSETS, body, deadline)
        check_group(cluster, group, response.error_code, response.error_message)
        for entry in response.responses:
            if entry.error_code:
                return _error(entry, f"group {group!r}, topic {entry.topic_name!r}")
        return None

    error = cluster.retry(timeout_s, attempt) if topics else None
    if error is not None:
        raise error


def _requested(
    cluster: Cluster, group: str, api: Api, body: dict[str, Any], deadline: Deadline
) -> Fields:
    return request_coordinator(cluster, group, api, lambda version: body, deadline)


def _entries(topics: Iterable[Fields]) -> Iterable[tuple[TopicPartition, ShareOffset]]:
    for topic in topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.topic_name, entry.partition_index)
            if entry.error_code:
                raise _error(entry, partition_name(partition))
            values = (
                entry.start_offset, entry.get("lag", -1), entry.leader_epoch,
                entry.get("in_flight_count", -1), entry.get("delivery_count", -1),
            )  # fmt: skip
            yield partition, ShareOffset(*(value if value >= 0 else None for value in values))


def _error(entry: Fields, subject: str) -> KafkaError:
    """Return the error of an entry; raise it if a retry can change it."""
    return final_error(error_of(entry.error_code, subject, entry.error_message))
