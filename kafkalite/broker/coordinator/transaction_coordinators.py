"""TransactionCoordinators: the transaction coordinators of a node, hosted in `__transaction_state`.

They serve what the topic holds, also as a copy of another broker's data directory may have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from kafkalite.broker.coordinator.coordinator_host import (
    CoordinatorHost,
    CoordinatorKind,
    Coordinators,
)
from kafkalite.broker.coordinator.journal_loader import RecordCodec
from kafkalite.broker.coordinator.marker_channel import MarkerChannel
from kafkalite.broker.future import Future
from kafkalite.broker.replica.late_transactions import OrphanTransaction
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.config.broker import (
    TRANSACTION_MAX_TIMEOUT_MS,
    TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS,
    TRANSACTIONAL_ID_EXPIRATION_MS,
)
from kafkalite.coordination.features import TRANSACTION_VERSION, finalized_levels
from kafkalite.coordination.topic_names import TRANSACTION_STATE
from kafkalite.coordination.transaction import ProducerEpoch, was_committed
from kafkalite.coordination.transaction_coordinator import (
    InitOptions,
    TransactionCoordinator,
    TransactionLimits,
    check_init,
)
from kafkalite.errors import CoordinatorNotAvailable, KafkaError
from kafkalite.protocol.schemas import transaction_records

if TYPE_CHECKING:
    from kafkalite.broker.coordinator.producer_ids import ProducerIdBlocks
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.late_transactions import LateTransaction
    from kafkalite.broker.replica.marker_writer import MarkerWriter
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.image import ClusterImage
    from kafkalite.protocol.schemas.transaction_records import TopicPartition, TransactionRecord
    from kafkalite.transport.reactor import Reactor

TransactionHost: TypeAlias = CoordinatorHost[TransactionCoordinator]


def transaction_limits(settings: Settings, image: ClusterImage) -> TransactionLimits:
    """Return a coordinator's limits, from the broker's settings and the finalized features."""
    return TransactionLimits(
        timeout_max_ms=settings[TRANSACTION_MAX_TIMEOUT_MS],
        expiration_ms=settings[TRANSACTIONAL_ID_EXPIRATION_MS],
        expiration_check_ms=settings[TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS],
        transaction_version=finalized_levels(image).get(TRANSACTION_VERSION, 0),
    )


def record_units(record: TransactionRecord) -> int:
    """Return the number of partitions in a record, which has most of its size, or 1."""
    transaction = record.transaction
    return max(1, len(transaction.partitions)) if transaction is not None else 1


class SpareProducerId:
    """A producer id at hand for a decision, which cannot wait for one."""

    def __init__(self, producer_ids: ProducerIdBlocks) -> None:
        self._producer_ids = producer_ids
        self._spare: int | None = None
        self._prepared: Future[None] | None = None

    def take(self) -> int:
        """Return an id that no producer has had; raise CoordinatorNotAvailable if none is here."""
        self.prepare()
        producer_id, self._spare = self._spare, None
        if producer_id is None:
            raise CoordinatorNotAvailable("No producer id is available yet; retry later.")
        return producer_id

    def prepare(self) -> Future[None]:
        """Return once an id is at hand; CoordinatorNotAvailable if none can be allocated."""
        if self._spare is not None:
            return Future.of(None)
        if self._prepared is not None:
            return self._prepared
        prepared = self._prepared = Future()
        self._producer_ids.allocate().then(self._allocated)
        return prepared

    def _allocated(self, producer_id: int | None, error: KafkaError | None) -> None:
        assert self._prepared is not None
        prepared, self._prepared = self._prepared, None
        self._spare = producer_id
        if error is not None:
            prepared.fail(CoordinatorNotAvailable(str(error)))
        else:
            prepared.resolve(None)


class TransactionCoordinators(Coordinators[TransactionCoordinator]):
    """The transaction coordinators of a node, by partition of __transaction_state."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        producer_ids: ProducerIdBlocks,
        marker_writer: MarkerWriter,
        reactor: Reactor,
    ) -> None:
        self.markers = MarkerChannel(metadata, marker_writer, reactor)
        self._limits = transaction_limits(settings, metadata.image)
        self._spare = spare = SpareProducerId(producer_ids)
        kind = CoordinatorKind(
            TRANSACTION_STATE,
            RecordCodec(transaction_records.write, transaction_records.read),
            lambda: TransactionCoordinator(self._limits, spare.take),
        )
        super().__init__(kind, metadata, replicas, reactor)

    def check_init(self, transactional_id: str, options: InitOptions) -> None:
        """Raise what InitProducerId refuses before it looks for the coordinator."""
        check_init(transactional_id, options, self._limits)

    def prepare_producer_id(self) -> Future[None]:
        """Return once a producer id is at hand for the next decision."""
        return self._spare.prepare()

    def find_orphans(
        self, late: Sequence[LateTransaction]
    ) -> Future[Sequence[OrphanTransaction]]:
        """Return those of these open transactions that no coordinator will end; none of them while
        a coordinator is not loaded."""
        orphans: Future[Sequence[OrphanTransaction]] = Future()
        orphans.follow(in_steps(self._reactor, self._orphans(late)))
        return orphans

    def _orphans(self, late: Sequence[LateTransaction]) -> Work[Sequence[OrphanTransaction]]:
        self.open()  # also those of which no request has come yet
        hosts = [*self]
        topic = self._metadata.topic(TRANSACTION_STATE)
        if topic is not None and len(hosts) < len(topic.partitions):
            return []
        known: dict[int, set[TopicPartition]] = {each.producer_id: set() for each in late}
        for host in hosts:
            for _, transaction in host.machine.transactions():
                if transaction.producer_id in known:
                    known[transaction.producer_id] |= transaction.partitions
                yield
        committed = yield from self._committed(late)
        orphans: list[OrphanTransaction] = []
        for each in late:
            led = self._metadata.topic(each.topic_id)
            if led is not None and (led.name, each.partition) not in known[each.producer_id]:
                orphans.append(OrphanTransaction(each, each in committed))
        return orphans

    def _committed(self, late: Sequence[LateTransaction]) -> Work[set[LateTransaction]]:
        """Return those that were committed before a power cut, which took their markers."""
        uncertain: dict[int, list[LateTransaction]] = {}
        for each in late:
            if each.is_uncertain:
                uncertain.setdefault(each.producer_id, []).append(each)
        committed: set[LateTransaction] = set()
        for host in self:
            for completed in host.machine.recovered:
                for producer_id in {completed.producer_id, completed.previous_producer_id}:
                    for each in uncertain.get(producer_id, ()):
                        producer = ProducerEpoch(each.producer_id, each.producer_epoch)
                        if was_committed(completed, producer):
                            committed.add(each)
                yield
        return committed

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits or features; a coordinator that is loading gets them afterwards."""
        self._limits = transaction_limits(settings, self._metadata.image)
        for host in self:
            self._reconfigure(host)

    def _reconfigure(self, host: TransactionHost) -> None:
        host.machine.reconfigure(self._limits, host.now_ms())
        host.schedule()

    def _host_loaded(self, host: TransactionHost) -> None:
        partition = host.partition
        if partition.log.producers.transactions.uncertain_below:
            host.machine.keep_committed()
            if not partition.flushes_always:
                host.machine.replace_producer_ids()
        self._reconfigure(host)
        host.units_of, host.units_of_key = record_units, host.machine.partition_count
        self.markers.attach(host)
