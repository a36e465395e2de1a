"""Placement: which nodes lead and follow which partition, and which moves balance the cluster.

A new partition goes to the node with the fewest partitions of its topic; among those, to the one
with the fewest in all, then with the fewest bytes, then with the lowest id.  So topics are spread
first, then the load as a whole.  That node leads; followers.py chooses those of other replicas.

Only ordinary workers take part (ClusterImage.placeable): node 0 leads nothing while there are
workers, and partitions of a dedicated one stay there.  At most `workers.leading` workers lead,
those with the lowest ids, and by default one in each log directory; the others are standbys, which
follow, and replace a leading worker that is drained.  All results are deterministic functions of
the arguments.

Left out: moves of partitions with several replicas.

The partition of an internal topic for a coordinator's key is Kafka's, so that Kafka and kafkalite
read each other's logs of groups alike.

`sizes` has the known sizes of partitions in bytes; an unknown size counts as 0.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from kafkalite.config.broker import WORKER_DEDICATED_MAX, WORKERS_MAX
from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.topic_names import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)

PartitionId = tuple[bytes, int]
"""A partition: topic id and partition index."""

PartitionSizes = Mapping[PartitionId, int]
NO_SIZES: PartitionSizes = {}

SWAP_RATIO_MAX = 0.9
"""Two partitions are swapped if the size of the fuller node drops to at most this share of it."""


class PartitionMove(NamedTuple):
    """A partition to move from its leader to another node."""

    topic_id: bytes
    partition: int
    from_node: int
    to_node: int


class CoordinatorType(IntEnum):
    """Kafka's types of coordinator keys: group id, transactional id, share group partition."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


COORDINATOR_TOPICS = {
    CoordinatorType.GROUP: CONSUMER_OFFSETS,
    CoordinatorType.TRANSACTION: TRANSACTION_STATE,
    CoordinatorType.SHARE: SHARE_GROUP_STATE,
}
"""The internal topics of the coordinators that are served."""


class PlacementLimits(NamedTuple):
    """Limits of the cluster on where partitions are placed."""

    dedicated_max: int = WORKER_DEDICATED_MAX.default
    leading_max: int = WORKERS_MAX
    leads_in_each_directory: bool = False
    """True if at least one worker in each log directory leads, too."""


NO_LIMITS = PlacementLimits()
"""All workers lead, and dedicated workers have the default limit."""


def leading(image: ClusterImage, nodes: Sequence[int], limits: PlacementLimits) -> Sequence[int]:
    """Return those of these nodes, in the order of their ids, that may lead partitions."""
    chosen = nodes[: limits.leading_max]
    if not limits.leads_in_each_directory:
        return chosen
    homes = {n: image.nodes[n].log_directory for n in nodes if n in image.nodes}
    used = {homes.get(n) for n in chosen}
    for node_id, home in homes.items():
        if home not in used:
            used.add(home)
            chosen = [*chosen, node_id]
    return sorted(chosen)


class NodeLoads:
    """Partition counts and sizes of nodes, including the partitions it places."""

    def __init__(self, image: ClusterImage, nodes: Iterable[int], sizes: PartitionSizes) -> None:
        self._image = image
        self._count = {node_id: image.led_count(node_id) for node_id in sorted(nodes)}
        self._size = dict.fromkeys(self._count, 0)
        for (topic_id, index), size in sizes.items():
            topic = image.topics_by_id.get(topic_id)
            leader = topic.partitions[index].leader if topic and index in topic.partitions else -1
            if leader in self._size:
                self._size[leader] += size

    def place(self, topic_id: bytes, sizes: Sequence[int]) -> list[int]:
        """Return a node for each of these new partitions of one topic, given their sizes.

        A second call for the same topic does not count them unless they are in the image.
        """
        of_topic = dict.fromkeys(self._count, 0)
        topic = self._image.topics_by_id.get(topic_id)
        for partition in topic.partitions.values() if topic else ():
            if partition.leader in of_topic:
                of_topic[partition.leader] += 1
        heap = [(of_topic[n], self._count[n], self._size[n], n) for n in self._count]
        heapq.heapify(heap)
        placed = []
        for size in sizes:
            of_this, count, full, node_id = heap[0]
            heapq.heapreplace(heap, (of_this + 1, count + 1, full + size, node_id))
            placed.append(node_id)
            self._count[node_id] += 1
            self._size[node_id] += size
        return placed


def drain_moves(
    image: ClusterImage, node_id: int, sizes: PartitionSizes, limits: PlacementLimits = NO_LIMITS
) -> list[PartitionMove]:
    """Return the moves that leave a worker without partitions; none for a dedicated one."""
    if image.nodes[node_id].dedicated:
        return []
    others = leading(image, [other for other in image.placeable if other != node_id], limits)
    load = NodeLoads(image, others, sizes)
    moves = []
    for topic in image.topics.values():
        leaving = [
            index
            for index, partition in topic.partitions.items()
            if partition.leader == node_id and not partition.is_replicated
        ]
        if not leaving or not others or topic.internal:
            continue
        # Large partitions first: the small ones then even out the differences.
        leaving.sort(key=lambda index: -sizes.get((topic.topic_id, index), 0))
        placed = load.place(topic.topic_id, [sizes.get((topic.topic_id, i), 0) for i in leaving])
        moves += [
            PartitionMove(topic.topic_id, index, node_id, to_node)
            for index, to_node in sorted(zip(leaving, placed, strict=True))
        ]
    return moves


def rebalance_moves(
    image: ClusterImage, sizes: PartitionSizes, limits: PlacementLimits = NO_LIMITS
) -> list[PartitionMove]:
    """Return the moves that balance the leading workers, by count and then by size.

    Counts then differ by at most one, and standbys lose their partitions.  Balancing the counts
    takes the fewest moves, first of topics that have many partitions here and few there; then
    partitions are swapped while a swap reduces the fuller of two nodes by a tenth and spreads no
    topic worse.  Draining workers are left to drain_moves.
    """
    arrangement = TentativeAssignment(image, sizes, limits)
    arrangement.level_counts()
    if sizes:
        arrangement.level_sizes()
    return list(arrangement.moves())


class TentativeAssignment:
    """A tentative assignment of partitions to the placeable workers."""

    def __init__(self, image: ClusterImage, sizes: PartitionSizes, limits: PlacementLimits) -> None:
        self._image = image
        self._sizes = sizes
        self._leading = leading(image, image.placeable, limits)
        self._leaders: dict[PartitionId, int] = {}
        # by node and topic, the sizes and indexes of its partitions, sorted
        self._partitions: dict[int, dict[bytes, list[tuple[int, int]]]] = {
            node_id: {} for node_id in image.placeable
        }
        self._count = dict.fromkeys(self._partitions, 0)
        self._size = dict.fromkeys(self._partitions, 0)
        for topic in image.topics.values():
            for index, partition in topic.partitions.items():
                is_movable = not (topic.internal or partition.is_replicated)
                if is_movable and partition.leader in self._partitions:
                    self._put((topic.topic_id, index), partition.leader)

    def moves(self) -> Iterator[PartitionMove]:
        """Yield the differences from the image."""
        for (topic_id, index), node_id in self._leaders.items():
            leader = self._image.topics_by_id[topic_id].partitions[index].leader
            if leader != node_id:
                yield PartitionMove(topic_id, index, leader, node_id)

    def _put(self, partition: PartitionId, node_id: int) -> None:
        topic_id, index = partition
        size = self._sizes.get(partition, 0)
        before = self._leaders.get(partition)
        if before is not None:
            self._partitions[before][topic_id].remove((size, index))
            self._count[before] -= 1
            self._size[before] -= size
        insort(self._partitions[node_id].setdefault(topic_id, []), (size, index))
        self._count[node_id] += 1
        self._size[node_id] += size
        self._leaders[partition] = node_id

    def _of_topic(self, topic_id: bytes, node_id: int) -> int:
        return len(self._partitions[node_id].get(topic_id, ()))

    # -- by count ----------------------------------------------------------------------------

    def level_counts(self) -> None:
        """Balance the partition counts to within one, with the fewest moves."""
        fair, left = divmod(sum(self._count.values()), len(self._leading))
        fullest_first = sorted(self._count, key=lambda node_id: (-self._count[node_id], node_id))
        due = dict.fromkeys(fullest_first, 0)
        for rank, node_id in enumerate(n for n in fullest_first if n in self._leading):
            due[node_id] = fair + (rank < left)
        capacity = {n: due[n] - self._count[n] for n in sorted(due) if due[n] > self._count[n]}
        for node_id in fullest_first:
            if self._count[node_id] > due[node_id]:
                self._unload(node_id, due[node_id], capacity)

    def _unload(self, node_id: int, count: int, capacity: dict[int, int]) -> None:
        """Move partitions from a node with more than `count` to nodes that have capacity."""

        def spread(topic_id: bytes) -> int:
            """Return how many more partitions of a topic are here than where it has fewest.

            The value decreases with every move.
            """
            rarest = min(self._of_topic(topic_id, other) for other in capacity)
            return self._of_topic(topic_id, node_id) - rarest

        name_of = self._image.topics_by_id
        partitions = self._partitions[node_id]
        there = [topic_id for topic_id, entries in partitions.items() if entries]
        heap = [(-spread(topic_id), name_of[topic_id].name, topic_id) for topic_id in there]
        heapq.heapify(heap)
        while self._count[node_id] > count:
            promised, name, topic_id = heapq.heappop(heap)
            if not self._of_topic(topic_id, node_id):
                continue
            if -spread(topic_id) != promised:
                heapq.heappush(heap, (-spread(topic_id), name, topic_id))
                continue
            to_node = min(
                capacity,
                key=lambda n: (self._of_topic(topic_id, n), -capacity[n], self._size[n], n),
            )
            heavier = self._size[node_id] > self._size[to_node]
            _, index = self._partitions[node_id][topic_id][-1 if heavier else 0]
            self._put((topic_id, index), to_node)
            heapq.heappush(heap, (promised, name, topic_id))
            capacity[to_node] -= 1
            if not capacity[to_node]:
                del capacity[to_node]

    # -- by bytes ----------------------------------------------------------------------------

    def level_sizes(self) -> None:
        """Swap partitions of the fullest node with others' while a swap is worth it."""
        # Each swap reduces the sum of the squared sizes; the loop bound limits the time.
        for _ in range(len(self._leaders)):
            emptiest_first = sorted(self._leading, key=lambda n: (self._size[n], n))
            full = emptiest_first.pop()
            for other in emptiest_first:
                swap = self._best_swap(full, other)
                if swap is not None:
                    self._put(swap[0], other)
                    self._put(swap[1], full)
                    break
            else:
                return

    def _best_swap(self, full: int, other: int) -> tuple[PartitionId, PartitionId] | None:
        """Return the best pair of partitions to swap between two nodes, or None."""
        gap = self._size[full] - self._size[other]
        if not gap:
            return None
        best: tuple[int, PartitionId, PartitionId] | None = None
        for outgoing, incoming in self._exchangeable(full, other):
            sizes = [size for size, _ in incoming]
            for size, partition in outgoing:
                # The nearest to half the gap: the size difference moves from one node to the other.
                at = bisect_left(sizes, size - gap // 2)
                for size_back, partition_back in incoming[max(0, at - 1) : at + 1]:
                    off = abs(gap - 2 * (size - size_back))
                    if best is None or off < best[0]:
                        best = off, partition, partition_back
        if best is None:
            return None
        fuller = (self._size[full] + self._size[other] + best[0]) // 2
        return best[1:] if fuller <= SWAP_RATIO_MAX * self._size[full] else None

    def _exchangeable(
        self, full: int, other: int
    ) -> Iterator[tuple[list[tuple[int, PartitionId]], list[tuple[int, PartitionId]]]]:
        """Yield what two nodes may swap without spreading a topic worse, sorted by size.

        Two partitions of one topic, or any two that each come from where their topic has more.
        """
        outgoing, incoming = [], []
        for topic_id, here in self._partitions[full].items():
            there = self._partitions[other].get(topic_id, [])
            if here and there:
                yield _placed(topic_id, here), _placed(topic_id, there)
            if len(here) > len(there):
                outgoing += _placed(topic_id, here)
        for topic_id, there in self._partitions[other].items():
            if len(there) > self._of_topic(topic_id, full):
                incoming += _placed(topic_id, there)
        if outgoing and incoming:
            yield outgoing, sorted(incoming)


def _placed(topic_id: bytes, partitions: list[tuple[int, int]]) -> list[tuple[int, PartitionId]]:
    return [(size, (topic_id, index)) for size, index in partitions]


def coordinator_of(image: ClusterImage, key_type: CoordinatorType, key: str) -> int | None:
    """Return the node that coordinates a key, or None until the internal topic exists.

    It is the leader of the key's partition of the internal topic.
    """
    topic = image.topics.get(COORDINATOR_TOPICS[key_type])
    if topic is None:
        return None
    return topic.partitions[coordinator_partition(key, len(topic.partitions))].leader


@lru_cache(maxsize=10_000)
def coordinator_partition(key: str, count: int) -> int:
    """Return the partition of an internal topic that stores `key`, such as a group id.

    It is Kafka's rule: Java's String.hashCode, 31 h + c over the UTF-16 units in 32 bits, without
    its sign (-2^31 counts as 0), modulo `count`.
    """
    if count == 1:
        return 0
    hashed = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    return min(hashed, (1 << 32) - hashed) % (1 << 31) % count
