"""Local listener: a Unix socket that gives programs of the same host rings and segment grants.

    HELLO  ──▶ authenticate by the socket's peer credentials; check cluster and node id
    ATTACH ──▶ a ring to produce through            ring_host.py
    READ   ──▶ segment grants to read               direct_reads.py
    OFFER … ─▶ jobs of the log cleaner              cleaning_session.py

Rings and grants last as long as the connection.  A connection that sends invalid, malformed or
unexpected packets is closed and counted, with rate-limited logging; its client continues over TCP,
as does a client that finds no local listener.

The permissions of the run directory admit only processes of the broker's user and of root.  Their
packets are validated all the same, and limits apply to connections, waiting reads, rings, and the
time until HELLO.

The socket exists from the time at which the node serves clients; its file replaces that of a
process that was killed.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.local.cleaning_jobs import CleaningJobs
from kafkalite.broker.local.cleaning_session import CleaningSession
from kafkalite.broker.local.direct_reads import DirectReads
from kafkalite.broker.local.ring_host import HostedRing, RingHost
from kafkalite.broker.security import TRANSACTIONAL_ID, WRITE, principal_of
from kafkalite.config.broker import NATIVE_ENABLE
from kafkalite.config.log_cleaner import LOG_CLEANER_ENABLE
from kafkalite.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    CorruptMessage,
    InconsistentClusterId,
    InvalidRequest,
    KafkaError,
    Refusal,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas import local
from kafkalite.protocol.schemas.local import REQUEST_SIZE_MAX, TypedRecord, write_packet
from kafkalite.transport.connection import Disconnect
from kafkalite.transport.packet_socket import PacketConnection, PacketListener
from kafkalite.transport.run_directory import cleaner_path, local_path

if TYPE_CHECKING:
    from kafkalite.broker.local.local_node import LocalNode
    from kafkalite.transport.reactor import Timer

log = logging.getLogger("kafkalite.broker")

CONNECTIONS_MAX = 1_000
HELLO_TIMEOUT_MS = 10_000
"""Timeout for the HELLO of a new connection."""
PENDING_READS_MAX = 1_000
"""Maximum number of waiting reads of one connection."""


class LocalListener:
    """The local listener of a node and its rings; see the module."""

    def __init__(self, node: LocalNode, path: Path) -> None:
        self.node = node
        # Random, so that a client of an earlier process does not mistake this one for it.
        self.generation = int.from_bytes(os.urandom(8), "big") >> 1
        self.counts: Counter[str] = Counter()
        """Counters by name: packets, reads, granted bytes, and the reads waiting now."""
        self.listener = PacketListener(
            node.reactor,
            path,
            self._accept,
            size_max=REQUEST_SIZE_MAX,
            connections_max=CONNECTIONS_MAX,
        )
        self.rings = RingHost(node)
        self.cleaning = CleaningJobs(node)
        node.reactor.at_commit(self.rings.settle)

    @property
    def work(self) -> int:
        """A counter that grows with each packet and each ring frame."""
        return self.counts["packets"] + self.rings.counts["frames"]

    def _accept(self, connection: PacketConnection) -> None:
        LocalConnection(self, connection)

    def close(self) -> None:
        """Close the listener and the rings; producers resend unconsumed frames another way."""
        self.listener.close()
        self.rings.close()


class LocalConnection:
    """One connection of a local program: its principal, its ring and its reads."""

    def __init__(self, listener: LocalListener, connection: PacketConnection) -> None:
        self._listener = listener
        self._node = listener.node
        self._connection = connection
        self._client: ClientContext | None = None
        self._ring: HostedRing | None = None
        self._reads: DirectReads | None = None
        self._cleaning: CleaningSession | None = None
        self._hello_timer: Timer = listener.node.reactor.call_later(
            HELLO_TIMEOUT_MS, self._hello_timed_out
        )
        connection.received = self._received
        connection.on_close = self._closed

    def _received(self, packet: memoryview) -> None:
        self._listener.counts["packets"] += 1
        try:
            message = local.read_packet(packet)
        except (CorruptMessage, UnsupportedVersion) as error:
            raise Disconnect(str(error)) from None
        if self._client is None:
            if message.kind is not local.HELLO:
                raise Disconnect(f"its first packet is a {message.kind}, not a HELLO")
            self._hello_timer.cancel()
            self._hello(message.fields)
        elif message.kind is local.ATTACH:
            self._attach(**message.fields)
        elif message.kind is local.READ:
            self._read(message.fields)
        else:
            self._clean(message)

    def _hello_timed_out(self) -> None:
        self._connection.end("no HELLO was received before the timeout", kind="silent")

    def _send(self, message: TypedRecord, *descriptors: Any) -> None:
        self._connection.send(write_packet(message), descriptors)

    def _closed(self) -> None:
        self._hello_timer.cancel()
        if self._reads is not None:
            self._reads.close()
        if self._cleaning is not None:
            self._cleaning.close()
        if self._ring is not None:
            self._ring.end()

    # -- HELLO -------------------------------------------------------------------------------

    def _hello(self, hello: dict[str, Any]) -> None:
        node, uid = self._node, self._connection.uid
        error = self._identity_error(hello)
        self._send(
            local.WELCOME(
                error_code=error.code if error else 0,
                error_message=str(error) if error else None,
                cluster_id=node.cluster_id,
                node_id=node.node_id,
                port=node.listener.getsockname()[1],
                generation=self._listener.generation,
                reads=uid == os.geteuid(),
            )
        )
        if error is not None:
            self._connection.close()
            return
        self._client = ClientContext(
            node.authorizer,
            version=0,
            client_id=hello["client_id"],
            principal=principal_of(uid),
        )

    def _identity_error(self, hello: dict[str, Any]) -> KafkaError | None:
        """Return an error if HELLO has another cluster id or node id, else None."""
        if hello["cluster_id"] != self._node.cluster_id:
            return InconsistentClusterId(f"This node belongs to cluster {self._node.cluster_id}.")
        if hello["node_id"] != self._node.node_id:
            return BrokerNotAvailable(
                f"This socket belongs to node {self._node.node_id}; refresh the metadata."
            )
        return None

    # -- ATTACH ------------------------------------------------------------------------------

    def _attach(self, request_id: int, transactional_id: str | None) -> None:
        assert self._client is not None
        try:
            if transactional_id is not None:
                self._client.must(WRITE, TRANSACTIONAL_ID, transactional_id)
            if self._ring is not None:
                raise InvalidRequest("This connection already has a ring.")
            self._ring = ring = self._listener.rings.attach(
                self._client, transactional_id, self._ring_failed
            )
        except KafkaError as error:
            self._send(_attached(request_id, error))
            return
        self._send(_attached(request_id, None, ring.size, ring.frame_size_max), *ring.descriptors)
        # If it is blocked, the descriptors stay open until the ring is closed.
        if not self._connection.is_blocked:
            ring.sent()

    def _ring_failed(self, reason: str) -> None:
        self._connection.end(f"its ring was closed: {reason}", kind="ring")

    # -- the log cleaner ---------------------------------------------------------------------

    def _clean(self, message: TypedRecord) -> None:
        if self._connection.uid != os.geteuid():
            raise Disconnect(f"a {message.kind} packet of another user")
        if self._cleaning is None:
            node = self._node
            self._cleaning = CleaningSession(
                self._listener.cleaning, lambda: node.settings, self._send
            )
        self._cleaning.received(message)

    # -- READ --------------------------------------------------------------------------------

    def _read(self, read: dict[str, Any]) -> None:
        assert self._client is not None
        if self._reads is None:
            self._reads = DirectReads(self._node, self._client, self._listener.counts, self._send)
        if self._reads.pending_count >= PENDING_READS_MAX:
            raise Disconnect(f"more than {PENDING_READS_MAX} reads wait")
        if self._connection.uid != os.geteuid():
            # A descriptor gives access to the whole file, not only to the granted range.
            self._reads.refuse(
                read,
                ClusterAuthorizationFailed("Only the broker's own user may read segment files."),
            )
        else:
            self._reads.read(read)


def _attached(
    request_id: int, error: KafkaError | None, ring_size: int = 0, frame_size_max: int = 0
) -> TypedRecord:
    return local.ATTACHED(
        request_id=request_id,
        error_code=error.code if error else 0,
        error_message=str(error) if error else None,
        ring_size=ring_size,
        frame_size_max=frame_size_max,
    )


def open_local_listener(node: LocalNode, run_directory: Path) -> LocalListener | None:
    """Open a node's local listener in the run directory.

    Returns None if it is disabled or cannot be opened: local programs are then served over TCP.
    With native.enable=false it has a path that only the log cleaner looks for.
    """
    is_native = node.settings[NATIVE_ENABLE]
    if not is_native and not node.settings[LOG_CLEANER_ENABLE]:
        return None
    path = local_path if is_native else cleaner_path
    try:
        return LocalListener(node, path(run_directory, node.node_id))
    except Refusal as refusal:
        log.warning(
            "Local listener is not available; local programs are served over TCP only. error=%r",
            str(refusal),
        )
        return None
