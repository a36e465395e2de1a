"""Other replicas for partitions, or the end of such a change: kafkalite replica move.

AlterPartitionReassignments (KIP-455) and the wait for it; librdkafka has no such request.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from typing import Any

from kafkalite.cli.command import print_stderr
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.wire import WireClient
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.errors import BY_CODE, Refusal
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
)

MOVED, CANCELLED, IN_PROGRESS, FAILED = "moved", "cancelled", "in progress", "failed"
INCOMPLETE = (IN_PROGRESS, FAILED)
POLL_S = 0.1
REPORT_S = 2.0
"""Interval of the messages about what is left."""


def node_ids(text: str) -> tuple[int, ...]:
    """Parse 1,2,3; an argument type."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise ArgumentTypeError(f"{text!r} is not a list of node ids, such as 1,2,3")
    return tuple(map(int, parts))


def seconds(text: str) -> float:
    """Parse a number of seconds; an argument type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def moved(
    wire: WireClient,
    wanted: Mapping[PartitionKey, list[int] | None],
    timeout: float | None,
) -> list[dict[str, Any]]:
    """Give partitions these replicas, or cancel such a change where they are None; return the
    outcome of each partition, after waiting up to `timeout` seconds."""
    errors = requested(wire, wanted)
    begun = [key for key, replicas in wanted.items() if replicas and key not in errors]
    left = awaited(wire, begun, timeout) if begun else set()

    def outcome(key: PartitionKey, replicas: list[int] | None) -> str:
        if key in errors:
            return FAILED
        if replicas is None:
            return CANCELLED
        return IN_PROGRESS if key in left else MOVED

    return [
        {
            "topic": key[0], "partition": key[1], "outcome": outcome(key, replicas),
            "replicas": replicas, "error": errors.get(key),
        }
        for key, replicas in wanted.items()
    ]  # fmt: skip


def rotated(topic: str, nodes: tuple[int, ...], number: int) -> list[int]:
    """Return the nodes with another first one for each number; for an internal topic another first
    follower, since its leader stays."""
    kept = int(topic in INTERNAL_TOPICS)
    leader, turning = nodes[:kept], nodes[kept:]
    first = number % max(1, len(turning))
    return [*leader, *turning[first:], *turning[:first]]


def requested(
    wire: WireClient, wanted: Mapping[PartitionKey, list[int] | None]
) -> dict[PartitionKey, str]:
    """Request new replicas of partitions, None for a cancellation; return the errors."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), replicas in wanted.items():
        entry = {"partition_index": index, "replicas": replicas}
        topics.setdefault(topic, []).append(entry)
    response = wire.request(
        ALTER_PARTITION_REASSIGNMENTS,
        {"topics": [{"name": name, "partitions": each} for name, each in topics.items()]},
    )
    if response.error_code:
        raise Refusal(text_of(response.error_code, response.error_message))
    return {
        (topic.name, each.partition_index): text_of(each.error_code, each.error_message)
        for topic in response.responses
        for each in topic.partitions
        if each.error_code
    }


def text_of(code: int, message: str | None) -> str:
    """Return the text of an error of the broker, without its full stop."""
    known = BY_CODE.get(code)
    return (message or (str(known()) if known else f"error {code}")).rstrip(".")


def awaited(
    wire: WireClient, keys: Sequence[PartitionKey], timeout: float | None
) -> set[PartitionKey]:
    """Wait until partitions have their new replicas; return those that do not have them."""
    begun = reported = time.monotonic()
    left = set(keys)
    try:
        while left := left & in_progress(wire):
            now = time.monotonic()
            if timeout is not None and now - begun >= timeout:
                break
            if now - reported >= REPORT_S:
                reported = now
                print_stderr(f"{len(left):,} of {len(keys):,} partitions left to move")
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        print_stderr("the broker continues the moves (see: kafkalite replica list)")
    return left


def in_progress(wire: WireClient) -> set[PartitionKey]:
    """Return the partitions whose replicas are being replaced."""
    response = wire.request(LIST_PARTITION_REASSIGNMENTS, {"topics": None})
    if response.error_code:
        raise Refusal(text_of(response.error_code, response.error_message))
    return {
        (topic.name, each.partition_index) for topic in response.topics for each in topic.partitions
    }
