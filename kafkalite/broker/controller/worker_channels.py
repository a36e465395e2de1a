"""Interfaces of what sends messages to workers, as the WorkerManager uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.replica.marker_writer import MarkerTargets
    from kafkalite.coordination.share.share_partition import ShareProgress
    from kafkalite.errors import KafkaError
    from kafkalite.protocol.schemas.bus import TypedRecord
    from kafkalite.protocol.schemas.share_records import SharePartitionKey


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


class BatchSink(Protocol):
    """Appends batches to partitions of all nodes (BatchAppends)."""

    def connect(self, send: Callable[[int, int, bytes, int, bytes], bool]) -> None:
        """Send batches to workers by `send(node_id, request_id, topic_id, partition, batch)`."""

    def append(self, topic_id: bytes, index: int, batch: bytes) -> Future[None]:
        """Append a batch to a partition."""

    def received(self, node_id: int, request_id: int, error: KafkaError | None) -> None:
        """Handle a worker's response."""
