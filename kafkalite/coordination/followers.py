"""Followers: the nodes of a new partition's replicas other than its leader.

    leader 1   followers 2 3    3 2    2 3  …     each follower in turn, so that each is first
    leader 2   followers 3 1    1 3    3 1  …     among the replicas equally often

The replicas of a partition never share a node, and share a log directory (log.dirs) only if there
are fewer directories than replicas: a turn is searched for a node in an unused one, and ends if it
has none left.

Each leader has its followers in turns, in which each other node occurs once: all pairs of nodes are
used, and the partitions of a leader that fails are spread over all the others.  A turn begins with
the nodes that have the fewest replicas of the topic, then the fewest in all.  Nodes without a
running process come last.

The cost of a partition does not grow with the number of nodes: a turn is sorted once.

Left out: racks, which nodes of one host have for tests of clients only (broker.rack).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.partition_image import Nodes


class FollowerPlacement:
    """Places the followers of one decision's new partitions; each placement counts for the next."""

    def __init__(self, image: ClusterImage, nodes: Sequence[int]) -> None:
        self._image = image
        self._nodes = sorted(nodes)
        self._position = {node_id: at for at, node_id in enumerate(self._nodes)}
        self._total = {node_id: image.replica_count(node_id) for node_id in self._nodes}
        self._away = {node_id for node_id in self._nodes if not image.is_active(node_id)}
        homes = {n: image.nodes[n].log_directory for n in self._nodes if n in image.nodes}
        self._homes = homes if len({*homes.values()}) > 1 else {}
        """The log directory of each node, if there are several."""

    @property
    def node_count(self) -> int:
        """The number of nodes, and so the highest replication factor."""
        return len(self._nodes)

    def place(self, topic_id: bytes, leaders: Mapping[int, int], factor: int) -> dict[int, Nodes]:
        """Return the replicas of these new partitions of one topic, given their leaders.

        The leader is the first replica, unless only a follower's node is active.
        """
        assert 1 <= factor <= self.node_count
        of_topic = {n: self._image.replica_count(n, topic_id) for n in self._nodes}
        for leader in leaders.values():
            self._count(leader, of_topic)
        if factor == 1:
            return {index: (leader,) for index, leader in leaders.items()}
        turns: dict[int, deque[int]] = {leader: deque() for leader in leaders.values()}
        begun = Counter[int]()
        successors = {leader: self._behind(leader) for leader in turns}
        placed = {}
        for index, leader in leaders.items():
            followers: list[int] = []
            turn = turns[leader]
            while len(followers) < factor - 1:
                elsewhere = self._in_unused_directories(leader, followers)
                if not turn or (elsewhere and elsewhere.isdisjoint(turn)):
                    turn.clear()
                    turn += self._turn(leader, followers, of_topic, begun[leader])
                    begun[leader] += 1
                node_id = next((n for n in turn if n in elsewhere), turn[0])
                turn.remove(node_id)
                followers.append(node_id)
                self._count(node_id, of_topic)
            if len(followers) > 1:
                # By how often each was the first follower of this leader, then by its distance.
                ranks = successors[leader]
                followers.sort(key=ranks.__getitem__)
                ranks[followers[0]] += self.node_count
            placed[index] = self._active_first(leader, *followers)
        return placed

    def _in_unused_directories(self, leader: int, followers: Sequence[int]) -> set[int]:
        """Return the active nodes in log directories that no replica of a partition is in; none if
        there is only one directory."""
        if not self._homes:
            return set()
        used = {self._homes.get(node_id) for node_id in (leader, *followers)}
        return {n for n, home in self._homes.items() if home not in used and n not in self._away}

    def _behind(self, leader: int) -> dict[int, int]:
        """Return the distance of each node behind a leader."""
        start = self._position.get(leader, 0)
        return {n: (at - start) % self.node_count for n, at in self._position.items()}

    def _active_first(self, *replicas: int) -> Nodes:
        return tuple(sorted(replicas, key=self._away.__contains__)) if self._away else replicas

    def _count(self, node_id: int, of_topic: dict[int, int]) -> None:
        if node_id in of_topic:
            of_topic[node_id] += 1
            self._total[node_id] += 1

    def _turn(
        self,
        leader: int,
        taken: Collection[int],
        of_topic: Mapping[int, int],
        shift: int,
    ) -> list[int]:
        """Return the other nodes in the order in which they follow a leader next.

        Equally loaded ones begin with the node behind the leader, in later turns further on.  Those
        that the next partition has taken from the last turn come at the end.
        """
        start = self._position.get(leader, 0) + 1 + shift
        return sorted(
            (n for n in self._nodes if n != leader),
            key=lambda n: (
                n in taken,
                n in self._away,
                of_topic[n],
                self._total[n],
                (self._position[n] - start) % len(self._nodes),
            ),
        )
