"""Transport pool: the open fetch transport of each node, and retry backoffs.

A node on this host is read through its local socket if it grants reads to this user and leads a
limited number of the partitions; every other node, and that one while its socket does not respond,
over TCP.  A change of transport is not visible to the application: requests without a response are
sent again from the same offset.

A node that cannot be reached is not retried during reconnect.backoff.ms; a local socket that closed
or does not exist has a backoff as well.
"""

from __future__ import annotations

import logging
import math
import select
import time
from collections import defaultdict
from collections.abc import Iterable

from kafkalite.client.consumer.direct_reader import PARTITIONS_MAX, DirectLane
from kafkalite.client.consumer.fetch_transport import NEVER, Lane, Outcome
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import Window
from kafkalite.client.consumer.tcp_fetcher import TcpLane
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Backoff, Deadline
from kafkalite.client.net.local_socket import open_local
from kafkalite.client.net.settings import ClientSettings
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import (
    CLIENT_ID,
    ISOLATION_LEVEL,
    NATIVE,
    RECONNECT_BACKOFF_MAX_MS,
    RECONNECT_BACKOFF_MS,
)
from kafkalite.errors import KafkaError, NetworkException
from kafkalite.ids import NO_ID

OPEN_S_MIN = 1.0
"""Minimum timeout of a connection attempt in seconds, however short a poll is."""
POLL_S_MAX = 1e6
"""Maximum duration of one poll in seconds; the caller repeats it."""
LOCAL_AGAIN_MS = 1_000
LOCAL_AGAIN_MAX_MS = 30_000

log = logging.getLogger(__name__)


class Lanes:
    """The fetch transports of one assignment reader, by node.

    Connections are separate for each `purpose`.
    """

    def __init__(
        self, cluster: Cluster, settings: ClientSettings, purpose: str, waker: Waker
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._purpose = purpose
        self.isolation_level = int(settings[ISOLATION_LEVEL] == "read_committed")
        self._memory = Window()
        self._lanes: dict[int, Lane] = {}
        self._by_descriptor: dict[int, Lane] = {}
        self._poll = select.poll()
        self._poll.register(waker, select.POLLIN)
        self._unreachable: defaultdict[int, Backoff] = defaultdict(
            lambda: Backoff(settings[RECONNECT_BACKOFF_MS], settings[RECONNECT_BACKOFF_MAX_MS])
        )
        self._no_local: defaultdict[int, Backoff] = defaultdict(
            lambda: Backoff(LOCAL_AGAIN_MS, LOCAL_AGAIN_MAX_MS)
        )
        self.lost: set[int] = set()
        """Nodes that could not be reached over TCP; the owner removes them."""

    def ask(self, positions: Iterable[Position], deadline: Deadline) -> float:
        """Request the next records of these positions from their leaders.

        Returns the seconds until an unreachable node may be retried.
        """
        by_leader: dict[int, list[Position]] = {}
        for position in positions:
            by_leader.setdefault(position.leader, []).append(position)
        rest_s = NEVER
        for node_id, wanted in by_leader.items():
            rest_left_s = self._unreachable[node_id].rest_left_s
            if rest_left_s:
                rest_s = min(rest_s, rest_left_s)
                continue
            try:
                lane = self._lane(node_id, wanted, deadline)
                wanted_room = lane.wants_room
                lane.ask(wanted)
                if lane.wants_room != wanted_room:
                    events = select.POLLIN | select.POLLOUT if lane.wants_room else select.POLLIN
                    self._poll.modify(lane.fileno(), events)
            except KafkaError as fault:
                if not fault.retriable:
                    raise
                self._lose(node_id, fault)
                rest_s = min(rest_s, self._unreachable[node_id].rest_left_s)
        return rest_s

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return what arrives before the timeout, or before the waker is set."""
        now = time.monotonic()
        due_s = min((lane.due_s for lane in self._lanes.values()), default=NEVER)
        left_s = max(0.0, min(timeout_s, due_s - now, POLL_S_MAX))
        outcomes = []
        for descriptor, _ in self._poll.poll(math.ceil(left_s * 1000)):
            lane = self._by_descriptor.get(descriptor)
            if lane is None:
                continue
            try:
                outcomes += lane.receive()
            except NetworkException as fault:
                self._lose(lane.node_id, fault)
            else:
                self._unreachable[lane.node_id].succeeded()
                if isinstance(lane, DirectLane):
                    self._no_local[lane.node_id].succeeded()
        if time.monotonic() >= due_s:
            self._lose_overdue()
        return outcomes

    def read_over_tcp(self, node_id: int) -> None:
        """Use TCP for a node for a while, since its files do not match its grants."""
        if isinstance(self._lanes.get(node_id), DirectLane):
            self._lose(node_id, NetworkException("Less was to be read than the node granted."))

    def close(self) -> None:
        for node_id in list(self._lanes):
            self._drop(node_id)
        if self._memory.owner is not None:
            # The grant and the read buffer refer to each other, and so keep a descriptor open.
            self._memory.owner.close()

    @property
    def ways(self) -> dict[int, str]:
        """The transport of each node: direct or tcp."""
        return {
            node_id: "direct" if isinstance(lane, DirectLane) else "tcp"
            for node_id, lane in self._lanes.items()
        }

    # Opening and closing.

    def _lane(self, node_id: int, wanted: list[Position], deadline: Deadline) -> Lane:
        """Return the transport to a node that leads these positions; open one if needed."""
        lane = self._lanes.get(node_id)
        # The local socket identifies topics by id, which an old broker may not have.
        direct = len(wanted) <= PARTITIONS_MAX and all(p.topic_id != NO_ID for p in wanted)
        if isinstance(lane, DirectLane) and not direct:
            self._drop(node_id)
            lane = None
        if lane is None:
            lane = self._open(node_id, deadline)
        if isinstance(lane, TcpLane) and direct:
            return self._direct_instead(lane)
        return lane

    def _open(self, node_id: int, deadline: Deadline) -> Lane:
        patience_s = max(deadline.left_s, OPEN_S_MIN)
        connection = self._cluster.connection(node_id, self._purpose, patience_s)
        try:
            lane = TcpLane(node_id, connection, self._settings, self.isolation_level)
        except BaseException:
            connection.close()
            raise
        self._enter(lane)
        return lane

    def _direct_instead(self, lane: TcpLane) -> Lane:
        """Return a direct transport in place of this one if possible, else this one."""
        node_id = lane.node_id
        if not lane.same_host or lane.busy or self._settings[NATIVE] == "off":
            return lane
        again = self._no_local[node_id]
        if again.rest_left_s:
            return lane
        port = self._cluster.node(node_id).port
        local = open_local(self._cluster.cluster_id, node_id, port, self._settings[CLIENT_ID])
        if local is None or not local.welcome.fields["reads"]:
            if local is not None:
                local.close()
            again.failed(NetworkException("There is no local socket, or no reading from it."))
            return lane
        self._drop(node_id)
        direct = DirectLane(node_id, local, self._memory, self._settings, self.isolation_level)
        self._enter(direct)
        log.debug("node %d is read directly", node_id)
        return direct

    def _enter(self, lane: Lane) -> None:
        self._lanes[lane.node_id] = lane
        self._by_descriptor[lane.fileno()] = lane
        self._poll.register(lane.fileno(), select.POLLIN)

    def _drop(self, node_id: int) -> None:
        lane = self._lanes.pop(node_id, None)
        if lane is None:
            return
        for descriptor, other in list(self._by_descriptor.items()):
            if other is lane:
                del self._by_descriptor[descriptor]
                self._poll.unregister(descriptor)
        lane.close()

    def _lose(self, node_id: int, fault: KafkaError) -> None:
        """Close a transport that failed, and start the node's backoff."""
        if isinstance(self._lanes.get(node_id), DirectLane):
            # The node may have closed only its local socket: try TCP at once.
            self._no_local[node_id].failed(fault)
        else:
            self._unreachable[node_id].failed(fault)
            self.lost.add(node_id)
        log.debug("node %d: %s", node_id, fault)
        self._drop(node_id)

    def _lose_overdue(self) -> None:
        now = time.monotonic()
        for lane in list(self._lanes.values()):
            if now >= lane.due_s:
                self._lose(lane.node_id, NetworkException("An answer did not come in time."))
