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

from kafkalite.client.consumer.direct_reader import PARTITIONS_MAX, DirectReader
from kafkalite.client.consumer.fetch_transport import NEVER, FetchOutcome, FetchTransport
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import ReadWindow
from kafkalite.client.consumer.tcp_fetcher import TcpFetcher
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

POLL_S_MAX = 1e6
"""Maximum duration of one poll in seconds; the caller repeats it."""
LOCAL_BACKOFF_MS = 1_000
LOCAL_BACKOFF_MAX_MS = 30_000

log = logging.getLogger(__name__)


class TransportPool:
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
        self._memory = ReadWindow()
        self._transports: dict[int, FetchTransport] = {}
        self._by_descriptor: dict[int, FetchTransport] = {}
        self._poll = select.poll()
        self._poll.register(waker, select.POLLIN)
        self._backoffs: defaultdict[int, Backoff] = defaultdict(
            lambda: Backoff(settings[RECONNECT_BACKOFF_MS], settings[RECONNECT_BACKOFF_MAX_MS])
        )
        self._local_backoffs: defaultdict[int, Backoff] = defaultdict(
            lambda: Backoff(LOCAL_BACKOFF_MS, LOCAL_BACKOFF_MAX_MS)
        )
        self.unreachable: set[int] = set()
        """Nodes that could not be reached over TCP; the owner removes them."""

    def fetch(self, positions: Iterable[Position], deadline: Deadline) -> float:
        """Request the next records of these positions from their leaders.

        Returns the seconds until an unreachable node may be retried.
        """
        by_leader: dict[int, list[Position]] = {}
        for position in positions:
            by_leader.setdefault(position.leader, []).append(position)
        wait_s = NEVER
        for node_id, wanted in by_leader.items():
            left_s = self._backoffs[node_id].left_s
            if left_s:
                wait_s = min(wait_s, left_s)
                continue
            if node_id not in self._transports and deadline.passed:
                wait_s = 0.0  # connections to other nodes have taken the time: try in the next call
                continue
            try:
                transport = self._transport(node_id, wanted, deadline)
                wanted_write = transport.wants_write
                transport.fetch(wanted)
                if transport.wants_write != wanted_write:
                    events = (
                        select.POLLIN | select.POLLOUT if transport.wants_write else select.POLLIN
                    )
                    self._poll.modify(transport.fileno(), events)
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._fail(node_id, error)
                wait_s = min(wait_s, self._backoffs[node_id].left_s)
        return wait_s

    def wait(self, timeout_s: float) -> list[FetchOutcome]:
        """Return what arrives before the timeout, or before the waker is set."""
        now = time.monotonic()
        due_s = min((transport.due_s for transport in self._transports.values()), default=NEVER)
        left_s = max(0.0, min(timeout_s, due_s - now, POLL_S_MAX))
        outcomes = []
        for descriptor, _ in self._poll.poll(math.ceil(left_s * 1000)):
            transport = self._by_descriptor.get(descriptor)
            if transport is None:
                continue
            try:
                outcomes += transport.receive()
            except NetworkException as error:
                self._fail(transport.node_id, error)
            else:
                self._backoffs[transport.node_id].succeeded()
                if isinstance(transport, DirectReader):
                    self._local_backoffs[transport.node_id].succeeded()
        if time.monotonic() >= due_s:
            self._fail_overdue()
        return outcomes

    def read_over_tcp(self, node_id: int) -> None:
        """Use TCP for a node for a while, since its files do not match its grants."""
        if isinstance(self._transports.get(node_id), DirectReader):
            self._fail(
                node_id,
                NetworkException(
                    "The segment file is shorter than the range that the node granted."
                ),
            )

    def close(self) -> None:
        for node_id in list(self._transports):
            self._drop(node_id)
        if self._memory.owner is not None:
            # The grant and the read buffer refer to each other, and so keep a descriptor open.
            self._memory.owner.close()

    @property
    def kinds(self) -> dict[int, str]:
        """The transport of each node: direct or tcp."""
        return {
            node_id: "direct" if isinstance(transport, DirectReader) else "tcp"
            for node_id, transport in self._transports.items()
        }

    # Opening and closing.

    def _transport(
        self, node_id: int, wanted: list[Position], deadline: Deadline
    ) -> FetchTransport:
        """Return the transport to a node that leads these positions; open one if needed."""
        transport = self._transports.get(node_id)
        # The local socket identifies topics by id, which an old broker may not have.
        direct = len(wanted) <= PARTITIONS_MAX and all(p.topic_id != NO_ID for p in wanted)
        if isinstance(transport, DirectReader) and not direct:
            self._drop(node_id)
            transport = None
        if transport is None:
            transport = self._open(node_id, deadline)
        if isinstance(transport, TcpFetcher) and direct:
            return self._direct_if_possible(transport)
        return transport

    def _open(self, node_id: int, deadline: Deadline) -> FetchTransport:
        connection = self._cluster.connection(node_id, self._purpose, deadline.left_s)
        try:
            transport = TcpFetcher(node_id, connection, self._settings, self.isolation_level)
        except BaseException:
            connection.close()
            raise
        self._add(transport)
        return transport

    def _direct_if_possible(self, transport: TcpFetcher) -> FetchTransport:
        """Return a direct transport in place of this one if possible, else this one."""
        node_id = transport.node_id
        if not transport.same_host or transport.is_busy or self._settings[NATIVE] == "off":
            return transport
        local_backoff = self._local_backoffs[node_id]
        if local_backoff.left_s:
            return transport
        port = self._cluster.node(node_id).port
        local = open_local(self._cluster.cluster_id, node_id, port, self._settings[CLIENT_ID])
        if local is None or not local.welcome.fields["reads"]:
            if local is not None:
                local.close()
            local_backoff.failed(
                NetworkException("The node has no local socket, or grants no reads over it.")
            )
            return transport
        self._drop(node_id)
        direct = DirectReader(node_id, local, self._memory, self._settings, self.isolation_level)
        self._add(direct)
        log.debug("Reading segment files directly.  node=%d", node_id)
        return direct

    def _add(self, transport: FetchTransport) -> None:
        self._transports[transport.node_id] = transport
        self._by_descriptor[transport.fileno()] = transport
        self._poll.register(transport.fileno(), select.POLLIN)

    def _drop(self, node_id: int) -> None:
        transport = self._transports.pop(node_id, None)
        if transport is None:
            return
        for descriptor, other in list(self._by_descriptor.items()):
            if other is transport:
                del self._by_descriptor[descriptor]
                self._poll.unregister(descriptor)
        transport.close()

    def _fail(self, node_id: int, error: KafkaError) -> None:
        """Close a transport that failed, and start the node's backoff."""
        if isinstance(self._transports.get(node_id), DirectReader):
            # The node may have closed only its local socket: try TCP at once.
            self._local_backoffs[node_id].failed(error)
        else:
            self._backoffs[node_id].failed(error)
            self.unreachable.add(node_id)
        log.debug("Fetch transport failed.  node=%d error=%s", node_id, error)
        self._drop(node_id)

    def _fail_overdue(self) -> None:
        now = time.monotonic()
        for transport in list(self._transports.values()):
            if now >= transport.due_s:
                self._fail(transport.node_id, NetworkException("The node did not respond in time."))
