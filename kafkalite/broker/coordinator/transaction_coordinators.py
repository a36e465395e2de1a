"""TransactionCoordinators: the transaction coordinators of a node, hosted in `__transaction_state`.

They serve what the topic holds, as a copy of another broker's data directory may have it.

Left out: the requests of producers, and with them the creation of the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kafkalite.broker.coordinator.coordinator_host import (
    CoordinatorHost,
    CoordinatorKind,
    Coordinators,
)
from kafkalite.broker.coordinator.marker_channel import MarkerChannel
from kafkalite.broker.coordinator.partition_journal import RecordCodec
from kafkalite.config.broker import (
    TRANSACTION_MAX_TIMEOUT_MS,
    TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS,
    TRANSACTIONAL_ID_EXPIRATION_MS,
)
from kafkalite.coordination.topic_names import TRANSACTION_STATE
from kafkalite.coordination.transaction_coordinator import (
    TransactionCoordinator,
    TransactionLimits,
)
from kafkalite.errors import CoordinatorNotAvailable
from kafkalite.protocol.schemas import transaction_records

if TYPE_CHECKING:
    from kafkalite.broker.coordinator.producer_ids import ProducerIdBlocks
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.marker_writer import MarkerWriter
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.config.settings import Settings
    from kafkalite.storage.flusher import Flusher
    from kafkalite.transport.reactor import Reactor

TransactionHost: TypeAlias = CoordinatorHost[TransactionCoordinator]

FINALIZED_VERSION = 0
"""The finalized level of the feature transaction.version."""


def transaction_limits(settings: Settings) -> TransactionLimits:
    """Return a coordinator's limits from the broker's settings."""
    return TransactionLimits(
        timeout_max_ms=settings[TRANSACTION_MAX_TIMEOUT_MS],
        expiration_ms=settings[TRANSACTIONAL_ID_EXPIRATION_MS],
        expiration_check_ms=settings[TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS],
        transaction_version=FINALIZED_VERSION,
    )


class SpareProducerId:
    """A producer id at hand for a decision, which cannot wait for one."""

    def __init__(self, producer_ids: ProducerIdBlocks) -> None:
        self._producer_ids = producer_ids
        self._spare: int | None = None
        self._is_requested = False

    def take(self) -> int:
        """Return an id that no producer has had; raise CoordinatorNotAvailable if none is here."""
        if self._spare is None:
            self._request()
        producer_id, self._spare = self._spare, None
        if producer_id is None:
            raise CoordinatorNotAvailable("No producer id is available yet; retry later.")
        return producer_id

    def _request(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self._producer_ids.allocate().then(self._allocated)

    def _allocated(self, producer_id: int | None, _: object) -> None:
        self._is_requested = False
        self._spare = producer_id


class TransactionCoordinators(Coordinators[TransactionCoordinator]):
    """The transaction coordinators of a node, by partition of __transaction_state."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        producer_ids: ProducerIdBlocks,
        marker_writer: MarkerWriter,
        flusher: Flusher,
        reactor: Reactor,
    ) -> None:
        self.markers = MarkerChannel(metadata, marker_writer, reactor)
        self._limits = transaction_limits(settings)
        spare = SpareProducerId(producer_ids)
        kind = CoordinatorKind(
            TRANSACTION_STATE,
            RecordCodec(transaction_records.write, transaction_records.read),
            lambda: TransactionCoordinator(self._limits, spare.take),
        )
        super().__init__(kind, metadata, replicas, flusher, reactor)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits; a coordinator that is loading gets them afterwards."""
        self._limits = transaction_limits(settings)
        for host in self:
            self._reconfigure(host)

    def _reconfigure(self, host: TransactionHost) -> None:
        host.machine.reconfigure(self._limits, host.now_ms())
        host.schedule()

    def _host_loaded(self, host: TransactionHost) -> None:
        self._reconfigure(host)
        self.markers.attach(host)
