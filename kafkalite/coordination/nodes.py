"""Nodes: the controller's decisions about nodes and the partitions they lead.

    node 0      the supervisor; it leads all partitions while there are no workers
    workers     share the partitions of ordinary topics
    dedicated   each leads one partition of a topic with worker.dedicated; created and removed
                with the topic

Each function reads the image and returns a response and its records.  A partition that gets another
leader gets the next leader epoch.

Left out: leaders of partitions with several replicas, which replication/ decides about.  A worker
that is drained loses such replicas by reassignments, and is not removed while it has any.

The ids of the nodes registered at start come from outside the controller, so the id of a removed
worker may be used again at a later start; only ids that the controller chose are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from kafkalite.config.broker import WORKERS_MAX
from kafkalite.coordination.followers import FollowerPlacement
from kafkalite.coordination.image import (
    NO_PROCESS,
    SUPERVISOR_ID,
    ClusterImage,
    NodeImage,
    TopicImage,
    change_records,
    node_record,
)
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.partition_image import Nodes
from kafkalite.coordination.placement import (
    NodeLoads,
    PartitionMove,
    PartitionSizes,
    PlacementLimits,
    leading,
)
from kafkalite.coordination.replication.reassignment import check_replaceable
from kafkalite.errors import InvalidRequest, PolicyViolation
from kafkalite.protocol.schemas.internal import REMOVE_NODE, TypedRecord

Addresses = Mapping[int, tuple[str, int]]
"""The host and port of each node's listener."""

Racks = Mapping[int, str | None]
"""The rack of each node; a node that is absent has none."""

NO_DIRECTORIES: Mapping[int, str] = {}
"""There is only one log directory."""


class Placer:
    """Places the partitions of one decision; each placement counts for the next ones."""

    def __init__(
        self,
        image: ClusterImage,
        nodes: Sequence[int],
        sizes: PartitionSizes,
        limits: PlacementLimits,
        *,
        dedicated_count: int,
        next_node_id: int,
    ) -> None:
        self.dedicates = SUPERVISOR_ID not in nodes
        """True if dedicated workers are possible; a cluster without workers has none."""
        self.dedicated_max = limits.dedicated_max
        self.dedicated_left = max(0, limits.dedicated_max - dedicated_count)
        self.created: list[NodeImage] = []
        """The dedicated nodes that this decision creates."""
        self._load = NodeLoads(image, leading(image, nodes, limits), sizes)
        self._followers = FollowerPlacement(image, nodes)
        self._sizes = sizes
        self._next_node_id = next_node_id

    @classmethod
    def over(cls, image: ClusterImage, sizes: PartitionSizes, limits: PlacementLimits) -> Placer:
        """Return a Placer for the nodes of an image."""
        assert image.nodes, "nodes are settled first"
        return cls(
            image,
            image.placeable,
            sizes,
            limits,
            dedicated_count=sum(node.dedicated for node in image.nodes.values()),
            next_node_id=image.next_node_id,
        )

    def share(self, topic_id: bytes, indexes: Sequence[int]) -> dict[int, int]:
        """Return a shared worker for each of these partitions of a topic."""
        sizes = [self._sizes.get((topic_id, index), 0) for index in indexes]
        return dict(zip(indexes, self._load.place(topic_id, sizes), strict=True))

    @property
    def factor_max(self) -> int:
        """The highest replication factor: replicas of a partition are on different nodes."""
        return self._followers.node_count

    def replicate(self, topic_id: bytes, indexes: Sequence[int], factor: int) -> dict[int, Nodes]:
        """Return the nodes of the replicas of each of these partitions of a topic."""
        return self._followers.place(topic_id, self.share(topic_id, indexes), factor)

    def dedicate(self, indexes: Sequence[int]) -> dict[int, int]:
        """Create a dedicated node for each partition."""
        assert self.dedicates and len(indexes) <= self.dedicated_left
        self.dedicated_left -= len(indexes)
        placed = dict(zip(indexes, count(self._next_node_id)))
        self._next_node_id += len(indexes)
        self.created += [NodeImage(node_id, "", 0, dedicated=True) for node_id in placed.values()]
        return placed


# -- start ---------------------------------------------------------------------------------------


def register(
    image: ClusterImage,
    addresses: Addresses,
    racks: Racks,
    sizes: PartitionSizes,
    limits: PlacementLimits,
    *,
    log_directories: Mapping[int, str] = NO_DIRECTORIES,
    is_first_start: bool = False,
) -> DecisionResult[None]:
    """Have exactly these nodes, and give every partition a leader among them.

    At the first start no process of a node is registered (replication/registration.py).  Raises
    Refusal if a node with replicas of a replicated partition would be removed.

    A single node 0 leads all partitions.  With workers it leads only the internal topics; dedicated
    nodes without an address stay and wait for their listeners.

    Raises InvalidRequest if a node with one of several replicas of a partition is not among them,
    or one with partitions in a log directory of its own.
    """
    assert SUPERVISOR_ID in addresses
    nodes = _settled_nodes(image, addresses, racks, log_directories)
    _check_replicas_stay(image, nodes)
    if is_first_start:
        nodes |= {
            node_id: node._replace(fenced=True, shutting_down=False, incarnation=NO_PROCESS)
            for node_id, node in nodes.items()
            if node_id != SUPERVISOR_ID
        }
    shared = [node_id for node_id in _workers(nodes) if not nodes[node_id].draining]
    placer = Placer(
        image,
        shared or [SUPERVISOR_ID],
        sizes,
        limits,
        dedicated_count=sum(node.dedicated for node in nodes.values()),
        next_node_id=max(image.next_node_id, *(node_id + 1 for node_id in nodes)),
    )
    moved: list[TypedRecord] = []
    for topic in image.topics.values():
        leaders = _settled_leaders(topic, nodes, placer)
        changed = {
            index: topic.partitions[index].led_by(node_id) for index, node_id in leaders.items()
        }
        moved += change_records(topic, changed)
    nodes |= {node.node_id: node for node in placer.created}
    changed_nodes = [node for node in nodes.values() if image.nodes.get(node.node_id) != node]
    removed = [REMOVE_NODE(node_id=node_id) for node_id in image.nodes if node_id not in nodes]
    return DecisionResult(None, [*map(node_record, changed_nodes), *moved, *removed])


def _settled_nodes(
    image: ClusterImage,
    addresses: Addresses,
    racks: Racks,
    log_directories: Mapping[int, str],
) -> dict[int, NodeImage]:
    nodes = {}
    for node_id, (host, port) in sorted(addresses.items()):
        known = image.nodes.get(node_id, NodeImage(node_id, host, port))
        nodes[node_id] = known._replace(
            host=host,
            port=port,
            rack=racks.get(node_id),
            log_directory=log_directories.get(node_id, ""),
        )
    workers = _workers(nodes)
    if not workers:
        return {SUPERVISOR_ID: nodes[SUPERVISOR_ID]}
    if all(nodes[node_id].draining for node_id in workers):
        # The workers that were to take over their partitions did not come back.
        for node_id in workers:
            nodes[node_id] = nodes[node_id]._replace(draining=False)
    for node in image.nodes.values():
        if node.dedicated and node.node_id not in nodes:
            nodes[node.node_id] = node._replace(port=0)
    return nodes


def _check_replicas_stay(image: ClusterImage, nodes: Mapping[int, NodeImage]) -> None:
    for node_id in image.nodes:
        if node_id in nodes:
            continue
        count = image.replica_count(node_id) - image.sole_replica_count(node_id)
        if count:
            workers = len(_workers(image.nodes))
            raise InvalidRequest(
                f"Node {node_id} has one of several replicas of {count} partitions, and would be"
                f" removed; start with --workers {workers} or more."
            )
        # Their logs could not be transferred by a rename.
        home, count = image.nodes[node_id].log_directory, image.sole_replica_count(node_id)
        if count and any(nodes[other].log_directory != home for other in _workers(nodes)):
            workers = len(_workers(image.nodes))
            raise InvalidRequest(
                f"Node {node_id} leads {count} partitions in another log directory than other"
                f" workers, and would be removed; start with --workers {workers} or more, and drain"
                f" it: kafkalite node drain {node_id}."
            )


def _workers(nodes: Mapping[int, NodeImage]) -> list[int]:
    return [n for n, node in nodes.items() if n != SUPERVISOR_ID and not node.dedicated]


def _settled_leaders(
    topic: TopicImage, nodes: Mapping[int, NodeImage], placer: Placer
) -> dict[int, int]:
    """Return the new leaders of the partitions of a topic whose leader has to change."""
    leaders = {
        index: partition.leader
        for index, partition in topic.partitions.items()
        if not partition.is_replicated
    }
    if topic.internal or not placer.dedicates:
        return {i: SUPERVISOR_ID for i, leader in leaders.items() if leader != SUPERVISOR_ID}
    alone: list[int] = []
    if topic.dedicated:
        alone = [i for i, leader in leaders.items() if not _is_dedicated(nodes, leader)]
        alone = alone[: placer.dedicated_left]
    lost = [
        index
        for index, leader in leaders.items()
        if index not in alone and (leader == SUPERVISOR_ID or leader not in nodes)
    ]
    return placer.dedicate(alone) | placer.share(topic.topic_id, lost)


def _is_dedicated(nodes: Mapping[int, NodeImage], node_id: int) -> bool:
    return node_id in nodes and nodes[node_id].dedicated


# -- changes while running -----------------------------------------------------------------------


def set_address(
    image: ClusterImage,
    node_id: int,
    host: str,
    port: int,
    rack: str | None,
    log_directory: str = "",
) -> DecisionResult[None]:
    """Set a node's listener address and log directory; ignore a node that was removed meanwhile."""
    node = image.nodes.get(node_id)
    if node is None:
        return DecisionResult(None)
    located = node._replace(host=host, port=port, rack=rack, log_directory=log_directory)
    return DecisionResult(None, [] if located == node else [node_record(located)])


def set_racks(image: ClusterImage, racks: Racks) -> DecisionResult[None]:
    """Set the racks of nodes, and of those that are not named none."""
    moved = (node._replace(rack=racks.get(n)) for n, node in image.nodes.items())
    return DecisionResult(
        None, [node_record(node) for node in moved if node != image.nodes[node.node_id]]
    )


def add(image: ClusterImage) -> DecisionResult[int]:
    """Add a worker; its listener address follows when its process runs."""
    workers = image.workers
    if not workers:
        raise InvalidRequest("The cluster runs without workers; start it with --workers 1 or more.")
    if len(workers) >= WORKERS_MAX:
        raise PolicyViolation(f"The cluster has the maximum of {WORKERS_MAX} workers.")
    node = NodeImage(image.next_node_id, "", 0)
    return DecisionResult(node.node_id, [node_record(node)])


def remove(image: ClusterImage, node_id: int) -> DecisionResult[None]:
    """Remove a worker that leads no partitions and has no replicas."""
    node = _worker(image, node_id)
    led_count = image.led_count(node_id)
    if node.dedicated:
        raise InvalidRequest(_goes_with_its_topic(image, node_id))
    if led_count:
        raise InvalidRequest(
            f"Node {node_id} still leads {led_count} partitions; drain it first:"
            f" kafkalite node drain {node_id}."
        )
    replica_count = image.replica_count(node_id)
    if replica_count:
        raise InvalidRequest(
            f"Node {node_id} has replicas of {replica_count} partitions; drain it first:"
            f" kafkalite node drain {node_id}."
        )
    _check_others(image, node_id)
    return DecisionResult(None, [REMOVE_NODE(node_id=node_id)])


def set_draining(image: ClusterImage, node_id: int, draining: bool) -> DecisionResult[None]:
    """Set whether a worker is draining: it gets no new partitions and loses those it has."""
    node = _worker(image, node_id)
    if node.dedicated:
        raise InvalidRequest(_goes_with_its_topic(image, node_id))
    if node.draining == draining:
        return DecisionResult(None)
    if draining:
        check_replaceable(image, node_id)
        _check_others(image, node_id)
    return DecisionResult(None, [node_record(node._replace(draining=draining))])


def _worker(image: ClusterImage, node_id: int) -> NodeImage:
    if node_id == SUPERVISOR_ID:
        raise InvalidRequest("Node 0 is the supervisor; it cannot be drained or removed.")
    node = image.nodes.get(node_id)
    if node is None:
        workers = ", ".join(map(str, image.workers)) or "none"
        raise InvalidRequest(f"There is no node {node_id}; the workers are: {workers}.")
    return node


def _goes_with_its_topic(image: ClusterImage, node_id: int) -> str:
    names = [
        topic.name
        for topic in image.topics.values()
        if any(partition.leader == node_id for partition in topic.partitions.values())
    ]
    return f"Node {node_id} is dedicated to topic {names[0]}; it is removed with that topic."


def _check_others(image: ClusterImage, node_id: int) -> None:
    if not set(image.placeable) - {node_id}:
        raise InvalidRequest(
            f"No other worker can lead the partitions of node {node_id}; add one first:"
            " kafkalite node add."
        )


def move(
    image: ClusterImage, moves: Sequence[PartitionMove]
) -> DecisionResult[list[PartitionMove]]:
    """Move partitions to other workers; return the moves that are still valid.

    A partition stays if it has another leader by now, is deleted, has several replicas, or is led
    by a dedicated worker; a node that may not get partitions is no target.
    """
    targets = set(image.workers) & set(image.placeable)
    granted: dict[tuple[bytes, int], PartitionMove] = {}
    records: list[TypedRecord] = []
    for wanted in moves:
        topic = image.topics_by_id.get(wanted.topic_id)
        partition = topic.partitions.get(wanted.partition) if topic is not None else None
        if (
            topic is not None
            and partition is not None
            and partition.leader == wanted.from_node != wanted.to_node
            and wanted.to_node in targets
            and not (topic.internal or partition.is_replicated)
            and not _is_dedicated(image.nodes, wanted.from_node)
            and wanted[:2] not in granted
        ):
            granted[wanted[:2]] = wanted
            changed = {wanted.partition: partition.led_by(wanted.to_node)}
            records += change_records(topic, changed)
    return DecisionResult(list(granted.values()), records)
