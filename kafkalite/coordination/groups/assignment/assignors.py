"""Assignors of consumer groups: they compute the target assignment (KIP-848).

    range     each topic's partitions in contiguous runs, the members in their order
    uniform   the same number of partitions for every member, and as few moves as possible

Members are indexes and topics are ids: there is no object per partition.  An assignor works in
steps, so that 10,000 members with 50,000 partitions do not hold up other requests.  The order of
the members decides which of several equal assignments is returned.

Left out: racks, which mean nothing on one host; Kafka's assignors ignore them as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple, Protocol, TypeAlias

from kafkalite.coordination.steps import PART_SIZE, Steps, parts

NO_OWNER = -1
ROUNDS_MAX = 16
"""Maximum number of rounds in which unequal subscriptions are balanced, as in Kafka."""

Owners: TypeAlias = Mapping[bytes, Sequence[int]]
"""The member index of each partition's owner by topic id, or NO_OWNER."""
Assignment: TypeAlias = dict[bytes, list[int]]


class Subscribers(NamedTuple):
    """The members of a group, by index."""

    member_ids: Sequence[str]
    instance_ids: Sequence[str | None]
    topics: Sequence[frozenset[bytes]]
    """The ids of each member's subscribed topics that exist; equal sets should be one object."""


class Assignor(Protocol):
    """An assignor: a function of the members, the partition counts and the old target."""

    def __call__(
        self, members: Subscribers, partition_counts: Mapping[bytes, int], owners: Owners
    ) -> Steps[Assignment]:
        """Return the owner of each partition of the subscribed topics, in steps.

        `partition_counts` has every subscribed topic.  `owners` is the old target; it may have
        topics that are gone, and other numbers of partitions.
        """


def target_of(owners: Owners, member_count: int) -> Steps[list[dict[bytes, list[int]]]]:
    """Return the partitions of each member by topic id, in their order."""
    target: list[dict[bytes, list[int]]] = [{} for _ in range(member_count)]
    for topic_id, indexes in owners.items():
        for begin, part in parts(indexes):
            for partition, owner in enumerate(part, begin):
                if owner != NO_OWNER:
                    target[owner].setdefault(topic_id, []).append(partition)
            yield len(part)
    return target


def subscribers_by_topic(
    members: Subscribers, order: Sequence[int]
) -> Steps[dict[bytes, list[int]]]:
    """Return the members that subscribe to each topic, in `order`; equal lists are one object."""
    by_subscription: dict[frozenset[bytes], list[int]] = {}
    for member in order:
        by_subscription.setdefault(members.topics[member], []).append(member)
    yield len(order)
    if len(by_subscription) == 1:
        ((topics, subscribers),) = by_subscription.items()
        return dict.fromkeys(topics, subscribers)
    subscriptions = [*by_subscription]
    by_topic: dict[bytes, list[int]] = {}
    for number, topics in enumerate(subscriptions):
        for topic_id in topics:
            by_topic.setdefault(topic_id, []).append(number)
        yield len(topics)
    position = {member: at for at, member in enumerate(order)}
    merged: dict[tuple[int, ...], list[int]] = {}
    result = {}
    for topic_id, numbers in by_topic.items():
        key = tuple(numbers)
        if key not in merged:
            lists = [by_subscription[subscriptions[number]] for number in numbers]
            merged[key] = sorted(chain.from_iterable(lists), key=position.__getitem__)
            yield len(merged[key])
        result[topic_id] = merged[key]
        yield len(key)
    return result


# -- range ---------------------------------------------------------------------------------------


def assign_range(
    members: Subscribers, partition_counts: Mapping[bytes, int], owners: Owners
) -> Steps[Assignment]:
    """Assign each topic in contiguous runs: members with an instance id first, then by member id.

    Partitions of the same number of equally large topics get the same member.  The old target does
    not matter: members keep their partitions by their instance ids.
    """
    order = sorted(
        range(len(members.member_ids)),
        key=lambda member: (
            members.instance_ids[member] is None,
            members.instance_ids[member] or "",
            members.member_ids[member],
        ),
    )
    yield len(order)
    assignment = {}
    subscribers_of = yield from subscribers_by_topic(members, order)
    for topic_id, subscribers in subscribers_of.items():
        quota, extra = divmod(partition_counts[topic_id], len(subscribers))
        assignment[topic_id] = [
            *chain.from_iterable(repeat(member, quota + 1) for member in subscribers[:extra]),
            *chain.from_iterable(
                repeat(member, quota) for member in (subscribers[extra:] if quota else ())
            ),
        ]
        yield len(assignment[topic_id])
    return assignment


# -- uniform -------------------------------------------------------------------------------------


def assign_uniform(
    members: Subscribers, partition_counts: Mapping[bytes, int], owners: Owners
) -> Steps[Assignment]:
    """Assign equally, with the fewest moves of partitions that the old target allows.

    With equal subscriptions, sizes differ by at most one.  Otherwise the subscribers of each topic
    are balanced, as far as moves of its own partitions can do that.
    """
    subscribers = yield from subscribers_by_topic(members, range(len(members.member_ids)))
    if len({*members.topics}) <= 1:
        topic_ids = sorted(subscribers)
        return (
            yield from _assign_equal(len(members.member_ids), topic_ids, partition_counts, owners)
        )
    balance = UnequalSubscriptions(members, subscribers, partition_counts)
    yield from balance.keep(owners)
    yield from balance.assign_rest()
    yield from balance.move()
    return balance.assignment


def _assign_equal(
    member_count: int, topic_ids: list[bytes], partition_counts: Mapping[bytes, int], owners: Owners
) -> Steps[Assignment]:
    """Assign partitions of topics to which every member subscribes."""
    flat: list[int] = []
    for topic_id in topic_ids:
        flat += _old_owners(owners, topic_id, partition_counts[topic_id])
    held = [0] * (member_count + 1)  # the last is that of NO_OWNER
    for _, part in parts(flat):
        for owner in part:
            held[owner] += 1
        yield len(part)
    quota, extra = divmod(len(flat), member_count or 1)
    left = [quota] * member_count
    # Members with more partitions get one more: no other choice moves fewer partitions.
    for member in sorted(range(member_count), key=held.__getitem__, reverse=True)[:extra]:
        left[member] += 1
    yield member_count
    unassigned = []
    for begin, part in parts(flat):
        for place, owner in enumerate(part, begin):
            if owner != NO_OWNER and left[owner]:
                left[owner] -= 1
            else:
                unassigned.append(place)
        yield len(part)
    # One at a time, so that the partitions of a topic are spread over the members.
    receivers = [member for member in range(member_count) if left[member]]
    places = iter(unassigned)
    while receivers:
        for _, part in parts(receivers):
            for member in part:
                flat[next(places)] = member
                left[member] -= 1
            yield len(part)
        receivers = [member for member in receivers if left[member]]
    assignment, start = {}, 0
    for topic_id in topic_ids:
        end = start + partition_counts[topic_id]
        assignment[topic_id] = flat[start:end]
        start = end
    return assignment


def _old_owners(owners: Owners, topic_id: bytes, count: int) -> list[int]:
    """Return the old owners of a topic that has now `count` partitions."""
    old = [*owners.get(topic_id, ())[:count]]
    return old + [NO_OWNER] * (count - len(old))


class UnequalSubscriptions:
    """An assignment in progress to members that subscribe to different topics."""

    def __init__(
        self,
        members: Subscribers,
        subscribers: dict[bytes, list[int]],
        partition_counts: Mapping[bytes, int],
    ) -> None:
        self.assignment: Assignment = {}
        self._members = members
        self._subscribers = subscribers
        self._counts = partition_counts
        self._load = [0] * len(members.member_ids)
        self._moved = 0

    def keep(self, owners: Owners) -> Steps[None]:
        """Keep the old owners that still subscribe."""
        load, topics = self._load, self._members.topics
        for topic_id in self._subscribers:
            kept = _old_owners(owners, topic_id, self._counts[topic_id])
            for partition, owner in enumerate(kept):
                if owner == NO_OWNER:
                    continue
                if topic_id in topics[owner]:
                    load[owner] += 1
                else:
                    kept[partition] = NO_OWNER
            self.assignment[topic_id] = kept
            yield len(kept)

    def assign_rest(self) -> Steps[None]:
        """Give each partition without an owner to the least loaded subscriber.

        The topics with the most partitions per subscriber are first.
        """
        load, member_count = self._load, len(self._load)
        heaps: dict[int, list[int]] = {}  # by subscribers: load * member_count + member
        for topic_id in sorted(self._subscribers, key=self._precedence):
            owners = self.assignment[topic_id]
            if NO_OWNER not in owners:
                continue
            subscribers = self._subscribers[topic_id]
            heap = heaps.get(id(subscribers))
            if heap is None:
                heap = heaps[id(subscribers)] = [
                    load[member] * member_count + member for member in subscribers
                ]
                heapq.heapify(heap)
                yield len(heap)
            for partition, owner in enumerate(owners):
                if partition % PART_SIZE == PART_SIZE - 1:
                    yield PART_SIZE
                if owner != NO_OWNER:
                    continue
                # A load only grows, by other topics too: an entry may be too low, never too high.
                while True:
                    entry = heap[0]
                    member = entry % member_count
                    now = load[member] * member_count + member
                    if entry == now:
                        break
                    heapq.heapreplace(heap, now)
                owners[partition] = member
                load[member] += 1
                heapq.heapreplace(heap, now + member_count)
            yield len(owners) % PART_SIZE

    def _precedence(self, topic_id: bytes) -> tuple[float, int, bytes]:
        count = len(self._subscribers[topic_id])
        return -self._counts[topic_id] / count, count, topic_id

    def move(self) -> Steps[None]:
        """Move partitions from the most to the least loaded subscribers of their topics."""
        topic_ids = sorted(
            topic_id
            for topic_id, subscribers in self._subscribers.items()
            if len(subscribers) > 1 and self._counts[topic_id]
        )
        lowest: dict[int, tuple[int, int]] = {}  # by subscribers: moves before it, the lowest load
        for _ in range(ROUNDS_MAX):
            moved = self._moved
            for topic_id in topic_ids:
                subscribers = self._subscribers[topic_id]
                known = lowest.get(id(subscribers))
                if known is None or known[0] != self._moved:
                    yield len(subscribers)
                    low = min(map(self._load.__getitem__, subscribers))
                    known = lowest[id(subscribers)] = self._moved, low
                high = max(map(self._load.__getitem__, self.assignment[topic_id]))
                yield self._counts[topic_id]
                if high - known[1] > 1:
                    yield from self._move_partitions(topic_id)
            if moved == self._moved:
                break

    def _move_partitions(self, topic_id: bytes) -> Steps[None]:
        """Move partitions of a topic while that makes two of its subscribers more equal."""
        load, owners = self._load, self.assignment[topic_id]
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            owned.setdefault(owner, []).append(partition)
        givers = [(-load[member], member) for member in owned]
        takers = [(load[member], member) for member in self._subscribers[topic_id]]
        heapq.heapify(givers)
        heapq.heapify(takers)
        yield len(owners) + len(takers)
        while givers and -givers[0][0] - takers[0][0] > 1:
            (high, giver), (low, taker) = givers[0], takers[0]
            # A member may be in both heaps and its other entry outdated, without effect: after a
            # move it is within one of the lowest load, so that it neither gives nor takes again.
            owners[owned[giver].pop()] = taker
            load[giver] -= 1
            load[taker] += 1
            self._moved += 1
            heapq.heapreplace(takers, (low + 1, taker))
            if owned[giver]:
                heapq.heapreplace(givers, (high + 1, giver))
            else:
                heapq.heappop(givers)
            yield 1


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by the names that clients use."""
