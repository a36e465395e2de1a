"""Client assignors: assignments that the leader of a classic group computes for its members.

    range                each topic's partitions in contiguous runs, members in order
    cooperative-sticky   balanced over all topics; members keep what they own (KIP-429)

`range` equals Kafka's.  `cooperative-sticky` is balanced like Kafka's; a partition that moves is
assigned to no member until its owner has revoked it, in the rebalance that follows.

The time is linear in the numbers of members, subscribed names and partitions, but for the heaps:
topics with the same subscribers are assigned together, and members are represented by their index.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kafkalite.client.net.topology import TopicPartition

RANGE = "range"
COOPERATIVE_STICKY = "cooperative-sticky"


class ClassicSubscription(NamedTuple):
    """A member's subscription: topics, what it owns, and the generation in which it got that."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1

    @property
    def order(self) -> tuple[bool, str]:
        """Sort key: members with an instance id first, by it, then the others by member id."""
        return self.instance_id is None, self.instance_id or self.member_id


Assignments = dict[str, list[TopicPartition]]
"""Partitions by member id."""


class TopicGroup(NamedTuple):
    """Topics with the same subscribers, which are indexes of members in order."""

    subscribers: list[int]
    topics: list[str]


def topic_groups(
    members: list[ClassicSubscription], partition_counts: Mapping[str, int]
) -> list[TopicGroup]:
    """Group the topics by their subscribers; leave out those without any."""
    alike: dict[frozenset[str], list[int]] = {}
    for index, member in enumerate(members):
        alike.setdefault(member.topics, []).append(index)
    subscriptions: dict[str, list[frozenset[str]]] = {}
    for subscription in alike:
        for topic in subscription:
            subscriptions.setdefault(topic, []).append(subscription)
    found: dict[frozenset[frozenset[str]], TopicGroup] = {}
    for topic in sorted(partition_counts.keys() & subscriptions.keys()):
        key = frozenset(subscriptions[topic])
        if key not in found:
            found[key] = TopicGroup(sorted(index for each in key for index in alike[each]), [])
        found[key].topics.append(topic)
    return list(found.values())


def assign_range(
    members: Iterable[ClassicSubscription], partition_counts: Mapping[str, int]
) -> Assignments:
    """Assign each topic's partitions in contiguous runs, the longer ones to the first members."""
    ordered = sorted(members, key=lambda member: member.order)
    assigned: Assignments = {member.member_id: [] for member in ordered}
    for subscribers, topics in topic_groups(ordered, partition_counts):
        for topic in topics:
            count = partition_counts[topic]
            size, longer = divmod(count, len(subscribers))
            first = 0
            for rank, index in enumerate(subscribers[:count]):
                end = first + size + (rank < longer)
                assigned[ordered[index].member_id] += [
                    TopicPartition(topic, number) for number in range(first, end)
                ]
                first = end
    return {member_id: sorted(partitions) for member_id, partitions in assigned.items()}


def assign_sticky(
    members: Iterable[ClassicSubscription], partition_counts: Mapping[str, int]
) -> Assignments:
    """Balance the partitions; those that would move are left out until they are revoked."""
    ordered = sorted(members, key=lambda member: member.order)
    owners = current_owners(ordered, partition_counts)
    balanced = balance(ordered, partition_counts, owners)
    return {
        member.member_id: sorted(p for p in partitions if owners.get(p, index) == index)
        for index, (member, partitions) in enumerate(zip(ordered, balanced, strict=True))
    }


def current_owners(
    members: list[ClassicSubscription], partition_counts: Mapping[str, int]
) -> dict[TopicPartition, int]:
    """Return the owner of each existing partition, by the claim of the latest generation.

    A partition that two members claim in the same generation has none of them as owner.
    """
    claims: dict[TopicPartition, tuple[int, int | None]] = {}
    for index, member in enumerate(members):
        for partition in member.owned:
            if not 0 <= partition.partition < partition_counts.get(partition.topic, 0):
                continue
            generation, owner = claims.get(partition, (-2, None))
            if member.generation > generation:
                claims[partition] = member.generation, index
            elif member.generation == generation and owner != index:
                claims[partition] = generation, None
    return {partition: owner for partition, (_, owner) in claims.items() if owner is not None}


def balance(
    members: list[ClassicSubscription],
    partition_counts: Mapping[str, int],
    owners: Mapping[TopicPartition, int],
) -> list[list[TopicPartition]]:
    """Assign every partition with a subscriber; keep owners unless the balance needs a move.

    Return the partitions of each member.
    """
    groups = sorted(topic_groups(members, partition_counts), key=lambda it: len(it.subscribers))
    counts = [0] * len(members)
    free = []
    held: list[dict[int, list[TopicPartition]]] = []
    for subscribers, topics in groups:
        holders: dict[int, list[TopicPartition]] = {index: [] for index in subscribers}
        without_owner = []
        for topic in topics:
            for number in range(partition_counts[topic]):
                partition = TopicPartition(topic, number)
                owner = owners.get(partition)
                if owner in holders:
                    holders[owner].append(partition)
                    counts[owner] += 1
                else:
                    without_owner.append(partition)
        held.append(holders)
        free.append(without_owner)
    for holders, without_owner in zip(held, free, strict=True):
        give(without_owner, holders, counts)
    while any(level(holders, counts) for holders in held):
        pass
    assigned: list[list[TopicPartition]] = [[] for _ in members]
    for holders in held:
        for index, partitions in holders.items():
            assigned[index] += partitions
    return assigned


def give(
    partitions: list[TopicPartition], holders: dict[int, list[TopicPartition]], counts: list[int]
) -> None:
    """Give partitions, one after the other, to the subscriber that has the fewest of all topics."""
    least = [(counts[index], index) for index in holders]
    heapq.heapify(least)
    for partition in partitions:
        count, index = least[0]
        holders[index].append(partition)
        counts[index] = count + 1
        heapq.heapreplace(least, (count + 1, index))


def level(holders: dict[int, list[TopicPartition]], counts: list[int]) -> bool:
    """Move partitions to subscribers that have two less than the holder; return whether any moved.

    A member that has given one up is never the next to get one, nor the other way round: the
    largest count falls and the smallest rises until they differ by one at most.  So each heap has
    to follow one side only.
    """
    least = [(counts[index], index) for index in holders]
    most = [(-counts[index], index) for index, partitions in holders.items() if partitions]
    heapq.heapify(least)
    heapq.heapify(most)
    has_moved = False
    while most and -most[0][0] - least[0][0] > 1:
        source, target = most[0][1], least[0][1]
        holders[target].append(holders[source].pop())
        counts[source] -= 1
        counts[target] += 1
        has_moved = True
        heapq.heapreplace(least, (counts[target], target))
        if holders[source]:
            heapq.heapreplace(most, (-counts[source], source))
        else:
            heapq.heappop(most)
    return has_moved


ASSIGNORS: Mapping[
    str, Callable[[Iterable[ClassicSubscription], Mapping[str, int]], Assignments]
] = {RANGE: assign_range, COOPERATIVE_STICKY: assign_sticky}
"""Assignors by the name of the protocol in JoinGroup."""
