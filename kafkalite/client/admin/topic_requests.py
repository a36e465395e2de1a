"""Requests that create, change and delete topics, and delete records.

The controller creates and deletes; brokers of KRaft clusters pass such requests on to it, older
ones respond with NOT_CONTROLLER.  Retriable errors are retried until the timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.offset_requests import by_topic, checked_entries
from kafkalite.client.net.topology import TopicPartition, error_of
from kafkalite.config.client import INT_MAX
from kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    NetworkException,
    Retriable,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS

NAMES_VERSION_MAX = 5
"""Last version of DeleteTopics that has a list of names alone."""


def create_topic(
    cluster: Cluster, topic: Mapping[str, Any], timeout_s: float | None = None
) -> None:
    """Create a topic, given as in a CreateTopics request."""
    _change(cluster, CREATE_TOPICS, {"topics": [topic]}, "topics", topic["name"], timeout_s)


def delete_topic(cluster: Cluster, name: str, timeout_s: float | None = None) -> None:
    """Delete a topic."""
    body = {"topic_names": [name]}
    _change(cluster, DELETE_TOPICS, body, "responses", name, timeout_s, NAMES_VERSION_MAX)


def create_partitions(
    cluster: Cluster, name: str, count: int, timeout_s: float | None = None
) -> None:
    """Let a topic have `count` partitions."""
    body = {"topics": [{"name": name, "count": count, "assignments": None}]}
    _change(cluster, CREATE_PARTITIONS, body, "results", name, timeout_s)


def delete_records(
    cluster: Cluster, before: Mapping[tuple[str, int], int], timeout_s: float | None = None
) -> dict[TopicPartition, int]:
    """Delete the records before each offset; return the log start offsets."""
    found: dict[TopicPartition, int] = {}

    def attempt(deadline: Deadline) -> dict[TopicPartition, int]:
        leaders: dict[int, dict[tuple[str, int], dict[str, int]]] = {}
        for place in before.keys() - found.keys():
            leader = cluster.leader(*place, deadline.left_s).leader
            leaders.setdefault(leader, {})[place] = {"offset": before[place]}
        errors: list[Retriable] = []
        for node_id, requested in leaders.items():
            body = {"topics": by_topic(requested), "timeout_ms": _milliseconds(deadline)}
            try:
                response = cluster.request(node_id, DELETE_RECORDS, body, timeout_s=deadline.left_s)
            except Retriable as error:
                errors.append(error)
                continue
            for place, entry, retriable in checked_entries(response.topics, requested):
                if retriable:
                    errors.append(retriable)
                else:
                    found[place] = entry.low_watermark
        if errors:
            stale = {topic for topic, _ in before.keys() - found.keys()}
            cluster.refresh(*stale, timeout_s=deadline.left_s)
            raise errors[0]
        return {place: found[place] for place in (TopicPartition(*each) for each in before)}

    return cluster.retry(timeout_s, attempt) if before else {}


def _change(
    cluster: Cluster,
    api: Api,
    body: Mapping[str, Any],
    results: str,
    name: str,
    timeout_s: float | None,
    at_most: int | None = None,
) -> None:
    """Send a request for one topic to the controller; raise the topic's error."""

    def attempt(deadline: Deadline) -> KafkaError | None:
        response = cluster.request(
            _controller(cluster, deadline),
            api,
            {**body, "timeout_ms": _milliseconds(deadline)},
            timeout_s=deadline.left_s,
            at_most=at_most,
        )
        return _topic_error(response[results], name)

    error = cluster.retry(timeout_s, attempt)
    if error is not None:
        raise error


def final_error(error: KafkaError) -> KafkaError:
    """Return an error that no retry changes; raise a retriable one.

    That a topic does not exist is retriable for a leader, which may learn of it later, but final
    for the controller.
    """
    if isinstance(error, Retriable) and not isinstance(error, UnknownTopicOrPartition):
        raise error
    return error


def _controller(cluster: Cluster, deadline: Deadline) -> int | None:
    """Return the node that the brokers name as the controller; None if they name none."""
    body = {"topics": [], "allow_auto_topic_creation": False}
    node_id: int = cluster.request(None, METADATA, body, timeout_s=deadline.left_s).controller_id
    try:
        cluster.node(node_id)
    except NetworkException:
        return None
    return node_id


def _topic_error(results: Iterable[Fields], name: str) -> KafkaError | None:
    """Return the error of a topic that no retry changes, or None; raise a retriable one."""
    for result in results:
        if result.name == name:
            if not result.error_code:
                return None
            message = result.get("error_message")
            return final_error(error_of(result.error_code, f"topic {name!r}", message))
    raise InvalidRequest(f"The response has no entry for topic {name!r}.")


def _milliseconds(deadline: Deadline) -> int:
    return min(int(deadline.left_s * 1000), INT_MAX)
