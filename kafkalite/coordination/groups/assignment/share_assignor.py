"""The assignor `simple` of share groups (KIP-932): a partition may have several members.

P partitions and M members share so that each partition has ⌈M / P⌉ members, and the numbers of
partitions of two members differ by at most one.  Members with other subscriptions are assigned
topic by topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kafkalite.coordination.groups.assignment.assignors import Subscribers, subscribers_by_topic
from kafkalite.coordination.steps import result_of

Holders: TypeAlias = Mapping[bytes, Sequence[Sequence[int]]]
"""The member indexes of each partition, by topic id."""
SharedAssignment: TypeAlias = dict[bytes, list[list[int]]]


def assign_simple(
    members: Subscribers, partition_counts: Mapping[bytes, int], holders: Holders
) -> SharedAssignment:
    """Return the members of each partition of the subscribed topics.

    `holders` is the old target, of which as much as possible is kept; it may have topics that are
    gone, and other numbers of partitions.
    """
    subscribers = result_of(subscribers_by_topic(members, range(len(members.member_ids))))
    topic_ids = sorted(subscribers)
    shares = [topic_ids] if len({*members.topics}) == 1 else [[each] for each in topic_ids]
    assignment: SharedAssignment = {}
    for topics in shares:
        counts = [partition_counts[topic_id] for topic_id in topics]
        if not sum(counts):
            assignment.update((topic_id, []) for topic_id in topics)
            continue
        old: list[Sequence[int]] = []
        for topic_id, count in zip(topics, counts, strict=True):
            held = holders.get(topic_id, ())[:count]
            old += [*held, *[()] * (count - len(held))]
        shared = _share(subscribers[topics[0]], old)
        for topic_id, count in zip(topics, counts, strict=True):
            assignment[topic_id], shared = shared[:count], shared[count:]
    return assignment


def _share(members: Sequence[int], old: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the members of each partition; `old` has the previous ones."""
    sharing = -(-len(members) // len(old))
    total = sharing * len(old)
    ends = [-(-total * at // len(members)) for at in range(len(members) + 1)]
    left = {member: ends[at + 1] - ends[at] for at, member in enumerate(members)}
    shared: list[list[int]] = []
    for holders in old:
        kept: list[int] = []
        for member in holders:
            if len(kept) < sharing and left.get(member):
                kept.append(member)
                left[member] -= 1
        shared.append(kept)
    # The last one is the next to get a partition.
    receivers = [member for member in reversed(members) for _ in range(left[member])]
    for kept in shared:
        while len(kept) < sharing:
            places = range(len(receivers) - 1, -1, -1)
            at = next((at for at in places if receivers[at] not in kept), None)
            kept.append(receivers.pop(at) if at is not None else _exchange(receivers, kept, shared))
    return shared


def _exchange(receivers: list[int], kept: list[int], shared: list[list[int]]) -> int:
    """Move a member of another partition to one whose own members are the only receivers left.

    There is one: no member has two partitions more than another.
    """
    receiver = receivers.pop()
    for others in shared:
        if receiver not in others:
            for at, member in enumerate(others):
                if member not in kept:
                    others[at] = receiver
                    return member
    raise AssertionError("numbers of partitions differ by more than one")
