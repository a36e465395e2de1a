"""Assembly of nodes: a single node, a node that hosts the controller, and a worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.broker.controller.node_racks import racks_of
from kafkalite.broker.controller.own_replicas import OwnReplicas
from kafkalite.broker.controller.remote_controller import RemoteController
from kafkalite.broker.node import Node
from kafkalite.broker.node_settings import effective_settings, placement_limits
from kafkalite.config.settings import Settings
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.nodes import NO_DIRECTORIES
from kafkalite.coordination.replication import leadership, registration
from kafkalite.coordination.replication.partition_change import RulesOf
from kafkalite.ids import METADATA_TOPIC
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.files.layout import directory_name
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.storage.manager.node_directories import evacuate, make_never_made
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from kafkalite.transport.reactor import Reactor

if TYPE_CHECKING:
    from kafkalite.transport.bus import Peer

log = logging.getLogger("kafkalite.broker")

EVACUATE_RETRY_MS = 1_000

Addresses = Mapping[int, tuple[str, int]]


def single_node(settings: Settings, reactor: Reactor, logs: LogManager, listener: socket) -> Node:
    """Return the only node of a cluster, with its controller; not opened yet."""
    controller = open_local_controller(logs, reactor)
    addresses = {SUPERVISOR_ID: listener.getsockname()[:2]}
    register_nodes(controller, logs.cluster_id, settings, addresses)
    create_missing_logs(controller, logs.data)
    node = controller_node(controller, settings, reactor, logs, listener, logs.data)
    _evacuate_others(node)
    return node


def _evacuate_others(node: Node) -> None:
    """Move the partitions in other nodes' directories here; retry later if the disk is full."""
    if not evacuate(
        node.root, {SUPERVISOR_ID}, node.directory_at, node.logs.file_system,
        is_deleted=node.is_deleted,
    ):  # fmt: skip
        node.reactor.call_later(EVACUATE_RETRY_MS, lambda: _evacuate_others(node))


def open_local_controller(
    logs: LogManager, reactor: Reactor, copied_to: Sequence[Path] = ()
) -> LocalController:
    """Return the controller with the state of its metadata log, which is copied to other log
    directories (`copied_to`).

    Raises Refusal if the log cannot be read.
    """
    logs.flusher = Flusher(file_system=logs.file_system)
    controller = LocalController(
        Controller(), logs.open_metadata(), logs.flusher, reactor.clock, reactor.call_later,
        copied_to,
    )  # fmt: skip
    controller.load()
    return controller


def register_nodes(
    controller: LocalController,
    cluster_id: str,
    settings: Settings,
    addresses: Addresses,
    *,
    log_directories: Mapping[int, str] = NO_DIRECTORIES,
    is_first_start: bool = True,
) -> None:
    """Start with exactly these nodes; partitions of other nodes are reassigned to them.

    `log_directories` has the log directory of each node, if there are several.
    `is_first_start`: the broker starts, so no node has a process that goes on.
    """
    controller.decide_at_start(lambda machine: machine.set_cluster_id(cluster_id))
    now = effective_settings(settings, controller.image, SUPERVISOR_ID)
    racks = racks_of(settings, controller.image, addresses)
    controller.decide_at_start(
        lambda machine: machine.register_nodes(
            addresses,
            racks,
            limits=placement_limits(now),
            log_directories=log_directories,
            is_first_start=is_first_start,
        )
    )


def take_leaders(controller: LocalController, ran_in_this_boot: bool, rules_of: RulesOf) -> None:
    """Take the leaders from replicated partitions when the broker starts: their next leaders are
    elected in another epoch, once their processes are registered.

    `ran_in_this_boot`: the last run was in this boot of the host, so no write was lost.
    """

    def decide(machine: Controller) -> DecisionResult[int]:
        if ran_in_this_boot:
            return registration.take_leaders(machine.image, rules_of)
        return leadership.begin_recovery(machine.image)

    while controller.decide_at_start(decide) == leadership.CHANGED_MAX:
        pass


def own_replicas(
    controller: LocalController, incarnation: int, rules_of: RulesOf
) -> OwnReplicas:
    """Have the controller's node lead and follow replicas, from its registration on; `incarnation`
    is the number of this process."""
    controller.own_replicas = OwnReplicas(controller, incarnation, rules_of)
    return controller.own_replicas


def create_missing_logs(controller: LocalController, data: Path) -> None:
    """Create empty logs for partitions reassigned before their first leader had created them.

    Only of partitions with one replica: any other gets its missing logs from its leader.  Must be
    called before any node runs.
    """
    moved = [
        (TopicIdPartition(topic.name, index, topic.topic_id), partition.replicas[0])
        for topic in controller.image.topics.values()
        for index, partition in topic.partitions.items()
        if partition.leader_epoch > 0 and partition.is_alone
    ]
    for path in make_never_made(data, moved):
        log.warning("Log is missing on all nodes; created it empty. directory=%s", path)


def controller_node(
    controller: LocalController,
    settings: Settings,
    reactor: Reactor,
    logs: LogManager,
    listener: socket,
    root: Path,
) -> Node:
    """Return the node that hosts the controller; not opened yet."""
    return Node(
        settings, reactor.clock, reactor, logs, listener, controller,
        local_controller=controller, root=root,
    )  # fmt: skip


def remote_controller(
    logs: LogManager, reactor: Reactor, root: Path, peer: Peer
) -> RemoteController:
    """Return another node's controller, with the image of the metadata log's files; `peer` is this
    process.

    Raises Refusal if they cannot be read.
    """
    logs.flusher = Flusher(file_system=logs.file_system)
    reader = MetadataReader(root / directory_name(METADATA_TOPIC, 0))
    controller = RemoteController(reader, reactor, peer)
    controller.load()
    return controller


def worker_node(
    controller: RemoteController,
    settings: Settings,
    reactor: Reactor,
    logs: LogManager,
    listener: socket,
    root: Path,
    node_id: int,
) -> Node:
    """Return a node that follows another node's controller; not opened yet."""
    return Node(
        settings, reactor.clock, reactor, logs, listener, controller,
        local_controller=None, root=root, node_id=node_id,
    )  # fmt: skip
