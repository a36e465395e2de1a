"""ControllerClient: the controller as seen by the other parts of a node.

    node that hosts the controller   LocalController    decides itself
    every other node                 RemoteController   follows the metadata log; uses the bus

Which of the two a node has is decided once, where the node is assembled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.replica.batch_appends import AppendBatch
    from kafkalite.broker.replica.late_transactions import LateTransaction, OrphanTransaction
    from kafkalite.broker.replica.marker_writer import MarkerTargets
    from kafkalite.broker.replica.transaction_verifier import (
        VerificationRequest,
        VerificationResults,
    )
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.image import ClusterImage, TopicImage
    from kafkalite.coordination.leader_epochs import EpochRenewal
    from kafkalite.coordination.producer_ids import ProducerIdBlock
    from kafkalite.coordination.replication.alter_partition import (
        AlteredPartition,
        PartitionProposal,
    )
    from kafkalite.coordination.replication.registration import RegisteredLog
    from kafkalite.coordination.share.share_partition import ShareProgress
    from kafkalite.coordination.share.state_requests import Outcome, StateRequest
    from kafkalite.errors import KafkaError
    from kafkalite.protocol.record_kinds import TypedRecord
    from kafkalite.protocol.schemas.share_records import SharePartitionKey
    from kafkalite.transport.connection import Address

MetadataListener: TypeAlias = "Callable[[Sequence[TypedRecord], int], None]"
"""`listener(records, end_offset)`: the records of the metadata log up to an offset."""

WriteMarkers: TypeAlias = "Callable[[Sequence[MarkerTargets]], Future[list[int]]]"
"""Writes transaction markers; returns the error code of each partition, in order."""

ShareProgressOf: TypeAlias = "Callable[[Sequence[SharePartitionKey]], Sequence[ShareProgress]]"
"""Returns the progress of share partitions of the node, in order."""

LogEnds: TypeAlias = "Callable[[], Sequence[RegisteredLog]]"
"""Returns the ends of the node's logs of replicated partitions."""

TopicOutcome: TypeAlias = "TopicImage | KafkaError | None"
"""The new topic, an error, or None if the topic was created and is not in this image yet."""


class HeartbeatState(NamedTuple):
    """The state of a node in its heartbeat."""

    reconciled_offset: int
    """Offset of the metadata log that its logs match, except those of `unserved`."""
    led_count: int
    size: int
    unserved: Sequence[tuple[bytes, int]]
    """Partitions, by topic id and index, that it is to lead and cannot lead yet."""


class ControllerClient(ABC):
    """The interface of LocalController and RemoteController; see the module."""

    is_local: ClassVar[bool]
    """True if this node hosts the controller: its image is never older than the decisions."""

    @property
    @abstractmethod
    def image(self) -> ClusterImage:
        """The cluster metadata of this node."""

    @property
    @abstractmethod
    def offset(self) -> int:
        """The metadata log offset of the image."""

    @abstractmethod
    def on_change(self, listener: MetadataListener) -> None:
        """Call `listener(records, end_offset)` for each change of the image."""

    @abstractmethod
    def attach(
        self,
        *,
        settings: Callable[[], Settings],
        heartbeat_state: Callable[[], HeartbeatState],
        on_welcome: Callable[[], object],
        write_markers: WriteMarkers,
        share_progress_of: ShareProgressOf,
        append_batch: AppendBatch,
        log_ends: LogEnds,
    ) -> None:
        """Attach the node.

        Args:
            settings: Returns the effective settings of the node.
            heartbeat_state: Returns its state; called for each heartbeat.
            on_welcome: Called each time a controller on another node has confirmed the image.
            write_markers: Called for the markers of transaction coordinators on that node.
            share_progress_of: Returns the progress of share partitions of the node, in order.
            append_batch: Appends a batch to a partition of the node.
            log_ends: Returns the ends of the node's logs of replicated partitions, when its process
                is to be registered.
        """

    @abstractmethod
    def report_applied(self, reconciled_offset: int) -> None:
        """Report that the logs of this node match the metadata log up to an offset."""

    @abstractmethod
    def forward(self, frame: bytes | memoryview, peer: Address, local: Address) -> Future[bytes]:
        """Forward a client's request; return the controller's response with its header.

        Not called on the controller's node.
        """

    @abstractmethod
    def auto_create_topics(
        self, names: Sequence[str], client_id: str | None, config: Mapping[str, str] = {}
    ) -> Future[Mapping[str, TopicOutcome]]:
        """Create topics with default numbers of partitions and replicas, for a Metadata request or
        this node; an error is each topic's own."""

    @abstractmethod
    def allocate_producer_ids(self, node_id: int) -> Future[ProducerIdBlock]:
        """Return the next block of producer ids for this node."""

    @abstractmethod
    def verify_transactions(
        self, requests: Sequence[VerificationRequest]
    ) -> Future[VerificationResults]:
        """Have the transaction coordinators, on the controller's node, verify partitions.

        Not called on that node.
        """

    @abstractmethod
    def share_states(self, requests: Sequence[StateRequest]) -> Future[list[Outcome]]:
        """Have the share coordinators, on the controller's node, read and write states.

        Reads are first in the requests, then changes.  Not called on that node.
        """

    @abstractmethod
    def append_batch(self, topic_id: bytes, partition: int, batch: bytes) -> Future[None]:
        """Have the supervisor append a batch to a partition of any other node.

        Not called on the controller's node.
        """

    @property
    @abstractmethod
    def node_epoch(self) -> int | None:
        """The node epoch of this process; None while it is not registered.

        It leads and follows replicated partitions only while it is.
        """

    @abstractmethod
    def alter_partitions(
        self, node_epoch: int, proposals: Sequence[PartitionProposal]
    ) -> Future[list[AlteredPartition]]:
        """Propose other in-sync replicas of partitions that this node leads.

        The response is awaited as long as the supervisor runs, since a copy of a proposal could be
        applied after it was refused.  If it ends before, RequestTimedOut.
        """

    @abstractmethod
    def report_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Report replicated partitions, by topic id and index, whose logs here have failed."""

    @abstractmethod
    def renew_epochs(self, node_id: int, wanted: Sequence[EpochRenewal]) -> None:
        """Request the next leader epochs of these partitions; the image brings them."""

    @abstractmethod
    def find_orphans(
        self, late: Sequence[LateTransaction]
    ) -> Future[Sequence[OrphanTransaction]]:
        """Return those of these open transactions that no coordinator will end.

        Not called on the controller's node, which hosts the coordinators.
        """
