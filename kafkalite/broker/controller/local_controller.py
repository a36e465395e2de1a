"""LocalController: the controller on the node that hosts it.

A decision holds once it is durable, and takes effect once the nodes it concerns have applied it:
`execute` completes then.  With a single process both are the same moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kafkalite.broker.controller.controller_client import ControllerClient
from kafkalite.broker.controller.metadata_log import MetadataLog
from kafkalite.broker.controller.topic_creation import create_internal_topic, create_topics
from kafkalite.broker.future import Future
from kafkalite.broker.machine_host import MachineHost
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.features import SUPPORTED_LEVELS, SupportedLevels
from kafkalite.coordination.image import SUPERVISOR_ID, ClusterImage
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.producer_ids import ProducerIdBlock
from kafkalite.coordination.topics import NewTopic
from kafkalite.errors import KafkaError, Refusal

if TYPE_CHECKING:
    from kafkalite.broker.controller.controller_client import (
        HeartbeatState,
        LogEnds,
        ShareProgressOf,
        TopicOutcome,
        WriteMarkers,
    )
    from kafkalite.broker.replica.batch_appends import AppendBatch
    from kafkalite.broker.replica.late_transactions import LateTransaction, OrphanTransaction
    from kafkalite.broker.replica.transaction_verifier import (
        VerificationRequest,
        VerificationResults,
    )
    from kafkalite.clock import Clock
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.leader_epochs import EpochRenewal
    from kafkalite.coordination.replication.alter_partition import (
        AlteredPartition,
        PartitionProposal,
    )
    from kafkalite.coordination.replication.registration import RegisteredLog
    from kafkalite.coordination.share.state_requests import Outcome, StateRequest
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.log.log import Log
    from kafkalite.transport.connection import Address

T = TypeVar("T")


class OwnReplicaDecisions(Protocol):
    """The decisions about the replicas of the controller's own node (OwnReplicas)."""

    @property
    def node_epoch(self) -> int | None:
        """The node epoch of this process; None before it is registered."""

    def register(self, logs: Sequence[RegisteredLog]) -> None:
        """Register this process, whose logs are open."""

    def attach(
        self,
        *,
        recover: Callable[[int, Sequence[RegisteredLog]], object],
        replicas_failed: Callable[[int, int, Collection[tuple[bytes, int]]], object],
    ) -> None:
        """Begin with the decisions that follow the registration (NodeLifecycle)."""

    def alter_partitions(
        self, node_epoch: int, proposals: Sequence[PartitionProposal]
    ) -> Future[list[AlteredPartition]]:
        """Decide about other in-sync replicas."""

    def report_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Have other nodes lead partitions whose logs here have failed."""


class PendingApply(NamedTuple):
    """A response that waits until this node's logs match the metadata log up to an offset."""

    end_offset: int
    future: Future[None]


class LocalController(MachineHost[Controller], ControllerClient):
    """Hosts the controller's state machine and its journal."""

    is_local = True
    journal: MetadataLog
    applied_everywhere: Callable[[int], Future[None]] | None = None
    """Completes when all workers have applied the log up to an offset; set by WorkerManager.
    Without workers, completes when the attached node has; None before a node is attached."""

    def __init__(
        self,
        machine: Controller,
        log: Log,
        flusher: Flusher,
        clock: Clock,
        call_later: Callable[[int, Callable[[], object]], object],
        copied_to: Sequence[Path] = (),
    ) -> None:
        super().__init__(machine, MetadataLog(log, flusher, clock, call_later, copied_to))
        self.call_later = call_later
        self.worker_features: Callable[[], Mapping[int, SupportedLevels]] = dict
        """Returns the supported levels of features by worker; set by the WorkerManager."""
        self.own_replicas: OwnReplicaDecisions | None = None
        """The replicas of this node; None in a cluster of one process."""
        self._reconciled_offset = 0
        self._pending_applies: deque[PendingApply] = deque()

    @property
    def log(self) -> Log:
        """The metadata log."""
        return self.journal.log

    @property
    def image(self) -> ClusterImage:
        """The cluster metadata, with all decisions so far."""
        return self.machine.image

    @property
    def offset(self) -> int:
        """The metadata log offset of the image."""
        return self.log.end_offset

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
        """Attach the node, and register its process; its state is read by `report_applied` only."""
        self._settings = settings
        if self.own_replicas is not None:
            self.own_replicas.register(log_ends())
        if self.applied_everywhere is None:
            self.applied_everywhere = self._applied_here
        self.finalize_features()

    def load(self) -> None:
        """Restore the machine from its log; raise Refusal if it cannot be read."""
        self.journal.load(self.machine)

    def decide_at_start(self, decision: Callable[[Controller], DecisionResult[T]]) -> T:
        """Make a durable decision before serving; raise Refusal if that fails."""
        try:
            result = decision(self.machine)
            if result.records:
                self.write(result.records)
        except KafkaError as error:
            raise Refusal(
                f"the metadata log in {self.log.directory} cannot be updated:"
                f" {str(error).rstrip('.')}"
            ) from None
        self.journal.flush_now()
        return result.response

    def execute(self, decision: Callable[[Controller], DecisionResult[T]]) -> Future[T]:
        """Make a decision; complete when every running node has applied it.

        The wait for a slow node is bounded (WorkerManager): the decision holds, and that node
        applies it later.
        """
        before = self.log.end_offset
        decided = self.decide(decision)
        if self.applied_everywhere is None or self.log.end_offset == before:
            return decided
        applied = self.applied_everywhere(self.log.end_offset)
        response: Future[T] = Future()

        def pass_on(value: T | None, error: KafkaError | None) -> None:
            if error is not None:
                response.fail(error)
            else:
                applied.then(lambda *_: response.resolve(value))  # type: ignore[arg-type]

        decided.then(pass_on)
        return response

    def _applied_here(self, end_offset: int) -> Future[None]:
        """Return a Future that resolves once the logs of this node match an offset."""
        if end_offset <= self._reconciled_offset:
            return Future.of(None)
        future: Future[None] = Future()
        self._pending_applies.append(PendingApply(end_offset, future))
        return future

    def report_applied(self, reconciled_offset: int) -> None:
        """Complete the responses that waited for the logs of this node."""
        self._reconciled_offset = reconciled_offset
        while self._pending_applies and self._pending_applies[0].end_offset <= reconciled_offset:
            self._pending_applies.popleft().future.resolve(None)

    def forward(self, frame: bytes | memoryview, peer: Address, local: Address) -> Future[bytes]:
        """Refuse: the dispatcher serves these requests on this node."""
        raise AssertionError("the controller's own node forwards no request")

    def verify_transactions(
        self, requests: Sequence[VerificationRequest]
    ) -> Future[VerificationResults]:
        """Refuse: the transaction coordinators are on this node."""
        raise AssertionError("the controller's own node calls its coordinators directly")

    def share_states(self, requests: Sequence[StateRequest]) -> Future[list[Outcome]]:
        """Refuse: the share coordinators are on this node."""
        raise AssertionError("the controller's own node calls its coordinators directly")

    def append_batch(self, topic_id: bytes, partition: int, batch: bytes) -> Future[None]:
        """Refuse: this node sends batches to the workers itself."""
        raise AssertionError("the controller's own node calls its BatchAppends")

    def find_orphans(self, late: Sequence[LateTransaction]) -> Future[Sequence[OrphanTransaction]]:
        """Refuse: the coordinators are on this node."""
        raise AssertionError("the controller's own node calls its coordinators directly")

    def auto_create_topics(
        self, names: Sequence[str], client_id: str | None, config: Mapping[str, str] = {}
    ) -> Future[Mapping[str, TopicOutcome]]:
        """Create topics with default numbers of partitions and replicas."""
        wanted = [NewTopic(name, config=config) for name in names]
        return create_topics(self, self._settings(), wanted).map(dict)

    def features_by_node(self) -> dict[int, SupportedLevels]:
        """Return the levels of features that this node and the workers support, as far as known."""
        return {SUPERVISOR_ID: SUPPORTED_LEVELS, **self.worker_features()}

    def finalize_features(self) -> None:
        """Finalize the new features that every node supports."""
        by_node = self.features_by_node()
        if by_node[SUPERVISOR_ID].keys() - self.image.features.keys():
            self.decide(lambda machine: machine.finalize_features(by_node))

    def open_internal_topic(self, name: str) -> Future[None]:
        """Create a coordinator's topic, unless it exists; complete once this node leads it."""
        created = create_internal_topic(self, self._settings(), name)
        end_offset = self.log.end_offset
        opened: Future[None] = Future()

        def follow(_: None, error: KafkaError | None) -> None:
            if error is not None:
                opened.fail(error)
            else:
                opened.follow(self._applied_here(end_offset))

        created.then(follow)
        return opened

    @property
    def node_epoch(self) -> int | None:
        """The node epoch of this process; None in a cluster of one process."""
        return self.own_replicas.node_epoch if self.own_replicas is not None else None

    def alter_partitions(
        self, node_epoch: int, proposals: Sequence[PartitionProposal]
    ) -> Future[list[AlteredPartition]]:
        """Decide about other in-sync replicas of partitions that this node leads."""
        assert self.own_replicas is not None, "it leads partitions with several replicas"
        return self.own_replicas.alter_partitions(node_epoch, proposals)

    def report_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Have other nodes lead replicated partitions whose logs here have failed."""
        assert self.own_replicas is not None, "it has partitions with several replicas"
        self.own_replicas.report_failed(partitions)

    def renew_epochs(self, node_id: int, wanted: Sequence[EpochRenewal]) -> None:
        """Decide on the next leader epochs of these partitions."""
        self.decide(lambda machine: machine.renew_epochs(node_id, wanted))

    def allocate_producer_ids(self, node_id: int) -> Future[ProducerIdBlock]:
        """Return the next block of producer ids."""
        return self.decide(lambda machine: machine.allocate_producer_ids(node_id))
