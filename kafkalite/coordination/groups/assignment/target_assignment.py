"""The target assignment of a consumer group: its computation, and the time of the next one.

A target is for one group epoch.  Members that come or go within the assignment interval (KIP-1263)
share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkalite.config.group import CONSUMER_ASSIGNMENT_INTERVAL_MS
from kafkalite.coordination.groups.assignment.assignors import (
    NO_OWNER,
    Assignor,
    Subscribers,
    target_of,
)
from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic
from kafkalite.coordination.groups.assignment.topic_partitions import Partitions
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.steps import PART_SIZE, Steps

SMALL_GROUP_SIZE = 100
"""A group of at most this size gets a new target at once, unless an interval is configured: it is
computed in microseconds."""
INLINE_SIZE_MAX = 5_000
"""The target of a group with at most this number of members and partitions, and a tenth of its
members' topics, is computed with the heartbeat that needs it, in some milliseconds."""
TOPICS_COMPARED = 10
"""Number of topics of equal subscriptions that are compared in the time of one partition."""


class TargetMember(NamedTuple):
    """A member, as far as an assignor needs it."""

    member_id: str
    instance_id: str | None
    topic_names: frozenset[str]
    pattern: str


class TargetInput(NamedTuple):
    """The input of the target of one group epoch; it does not change meanwhile."""

    epoch: int
    assignor: Assignor
    members: Sequence[TargetMember]
    topics: Sequence[KnownTopic]
    """The existing topics to which the members subscribe."""
    patterns: Mapping[str, frozenset[str]]
    """The names of the topics of each regular expression."""
    before: Mapping[str, Partitions]
    """The old target."""


def compute_target(target: TargetInput) -> Steps[dict[str, Partitions]]:
    """Return the target of each member, in steps."""
    members = target.members
    subscribers = Subscribers(
        [member.member_id for member in members],
        [member.instance_id for member in members],
        (yield from _subscribed_ids(target)),
    )
    yield len(members)
    counts = {topic.topic_id: topic.partition_count for topic in target.topics}
    owners = {topic_id: [NO_OWNER] * count for topic_id, count in counts.items()}
    cost = 0
    for number, member_id in enumerate(subscribers.member_ids):
        for topic_id, indexes in target.before.get(member_id, {}).items():
            known = owners.get(topic_id, [])
            for index in indexes:
                if index < len(known):
                    known[index] = number
            cost += len(indexes)
        cost += 1
        if cost >= PART_SIZE:
            yield cost
            cost = 0
    assignment = yield from target.assignor(subscribers, counts, owners)
    assigned = yield from target_of(assignment, len(members))
    return dict(zip(subscribers.member_ids, assigned, strict=True))


def _subscribed_ids(target: TargetInput) -> Steps[list[frozenset[bytes]]]:
    """Return the ids of the topics of each member; equal sets are one object."""
    ids_by_name = {topic.name: topic.topic_id for topic in target.topics}
    known: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
    shared: dict[frozenset[bytes], frozenset[bytes]] = {}
    subscribed = []
    cost = len(ids_by_name)
    for member in target.members:
        key = member.topic_names, member.pattern
        if key not in known:
            names = member.topic_names | target.patterns.get(member.pattern, frozenset())
            topic_ids = frozenset(ids_by_name[name] for name in ids_by_name.keys() & names)
            known[key] = shared.setdefault(topic_ids, topic_ids)
            cost += len(names)
        subscribed.append(known[key])
        cost += 1 + len(member.topic_names) // TOPICS_COMPARED
        if cost >= PART_SIZE:
            yield cost
            cost = 0
    yield cost
    return subscribed


def wait_ms(last_ms: int, wall_ms: int, settings: ConsumerGroupSettings, member_count: int) -> int:
    """Return how long the next target has to wait; `last_ms` is when the last one was computed.

    0 if there was none, or if the wall clock was set back since.
    """
    interval_ms = settings.assignment_interval_ms
    if interval_ms == CONSUMER_ASSIGNMENT_INTERVAL_MS.default and member_count <= SMALL_GROUP_SIZE:
        return 0
    elapsed_ms = wall_ms - last_ms
    if last_ms == 0 or elapsed_ms < 0:
        return 0
    return max(interval_ms - elapsed_ms, 0)
