"""Interfaces of what sends messages to workers, as the WorkerManager uses it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.replica.marker_writer import MarkerTargets
    from kafkalite.coordination.share.share_partition import ShareProgress
    from kafkalite.errors import KafkaError
    from kafkalite.protocol.record_kinds import RecordKind
    from kafkalite.protocol.schemas.bus import TypedRecord
    from kafkalite.protocol.schemas.share_records import SharePartitionKey
    from kafkalite.transport.bus import Peer


class WorkerSender(Protocol):
    """Queues a message to a worker (BusServer.send)."""

    def __call__(self, identity: bytes, message: TypedRecord, *, quiet: bool = False) -> bool:
        """Return False if the worker is not connected or its queue is full."""


class MarkerSource(Protocol):
    """The transaction coordinators' markers (MarkerChannel)."""

    def connect(self, send: Callable[[int, int, Sequence[MarkerTargets]], bool]) -> None:
        """Send markers to workers by `send(node_id, request_id, targets)` from now on."""

    def written(self, node_id: int, request_id: int, codes: Sequence[int]) -> None:
        """Handle a worker's response."""

    def node_connected(self, node_id: int) -> None:
        """Handle the welcome of a worker, which may have lost what was sent before."""


class ShareProgressSource(Protocol):
    """The progress of share partitions of the workers (ShareProgressFinder)."""

    def connect(self, send: Callable[[int, int, Sequence[SharePartitionKey]], bool]) -> None:
        """Send messages to workers by `send(node_id, request_id, keys)` from now on."""

    def received(self, node_id: int, request_id: int, progress: Sequence[ShareProgress]) -> None:
        """Handle a worker's response."""


class NodeReplicas(Protocol):
    """The controller's decisions about nodes and their replicas (ReplicatedNodes)."""

    def update_processes(self, running: Collection[tuple[int, int]]) -> None:
        """Handle the launcher's list of processes, by node id and incarnation."""

    def received(
        self,
        peer: Peer,
        kind: RecordKind,
        fields: dict[str, Any],
        respond: Callable[[TypedRecord], object],
    ) -> None:
        """Handle a message of a node's running process."""


class BatchSink(Protocol):
    """Appends batches to partitions of all nodes (BatchAppends)."""

    def connect(self, send: Callable[[int, int, bytes, int, bytes], bool]) -> None:
        """Send batches to workers by `send(node_id, request_id, topic_id, partition, batch)`."""

    def append(self, topic_id: bytes, index: int, batch: bytes) -> Future[None]:
        """Append a batch to a partition."""

    def received(self, node_id: int, request_id: int, error: KafkaError | None) -> None:
        """Handle a worker's response."""
