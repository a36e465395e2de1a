"""WorkerManager: the supervisor's view of the workers, and its end of the bus.

    launcher   ─▶ Nodes        the running processes, each with its incarnation
    worker     ─▶ Hello        ─▶ Welcome: the end of the metadata log; deltas follow
    worker     ─▶ Heartbeat    the metadata offset it has applied; extends its session
    metadata   ─▶ changed      ─▶ Delta to every worker that was welcomed
    worker     ─▶ Forward      ─▶ Response, as if the client had connected here
    markers of transactions    ─▶ WriteMarkers; the worker responds with MarkersWritten
    worker     ─▶ VerifyTransactions ─▶ TransactionsVerified, by the coordinators on this node
    worker     ─▶ ShareStates  ─▶ ShareOutcomes, by the share coordinators on this node
    progress of share groups   ─▶ FindShareProgress; the worker responds with ShareProgress
    worker     ─▶ RegisterNode, AlterPartitions, ShutDownNode (replicated_nodes.py)
    worker     ─▶ AppendBatch  ─▶ BatchAppended, by this node or the worker that leads the partition

Only messages of the incarnation that the launcher started last are accepted; those of an older one
are refused.  Until it is welcomed a worker sends only Hello, so no request of it is lost before
that.  A worker whose session has expired is fenced: the launcher kills and reaps it before it
starts another one on the same files, so two processes never write them.  A worker whose process is
running is busy, and its session is extended (coordination/sessions.py).

After a restart the supervisor knows no worker.  It sends Welcome to each process that the launcher
reports, repeatedly until it could be queued, so metadata changes go out again at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kafkalite.broker.controller.append_messages import (
    append_batch,
    append_error,
    batch_appended,
)
from kafkalite.broker.controller.marker_messages import write_markers
from kafkalite.broker.controller.share_messages import (
    find_share_progress,
    read_progress,
    share_outcomes,
)
from kafkalite.broker.controller.share_messages import read_requests as read_state_requests
from kafkalite.broker.controller.verification_messages import (
    read_requests,
    transactions_verified,
)
from kafkalite.broker.error_responses import outcome_fields
from kafkalite.broker.future import Future
from kafkalite.broker.replica.late_transactions import (
    FindOrphans,
    LateTransaction,
    OrphanTransaction,
)
from kafkalite.broker.served_apis import SERVED, ServingNode
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.leader_epochs import EpochRenewal
from kafkalite.coordination.producer_ids import ProducerIdBlock
from kafkalite.errors import Fatal, InvalidRequest, KafkaError
from kafkalite.protocol.schemas import bus, internal
from kafkalite.transport.bus import Peer, identity_of, peer_of
from kafkalite.transport.connection import Disconnect

if TYPE_CHECKING:
    from kafkalite.broker.client_context import ClientConnection
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.controller.worker_channels import (
        BatchSink,
        MarkerSource,
        NodeReplicas,
        ShareProgressSource,
        WorkerSender,
    )
    from kafkalite.broker.replica.marker_writer import MarkerTargets
    from kafkalite.broker.replica.transaction_verifier import SendVerifications, VerificationResults
    from kafkalite.coordination.features import SupportedLevels
    from kafkalite.coordination.sessions import NodeSessions
    from kafkalite.coordination.share.state_requests import Outcome, StateRequest
    from kafkalite.protocol.record_kinds import RecordKind
    from kafkalite.protocol.schemas.bus import TypedRecord
    from kafkalite.protocol.schemas.share_records import SharePartitionKey
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

APPLY_WAIT_MS_MAX = 5_000
"""Maximum wait for workers to apply a decision; the decision is valid in any case."""
CHECK_MS = 50
"""Interval between checks for expired sessions and workers that were not welcomed."""
LATE_CHECK_MS = 500
"""A check that is late by this much means that this process itself did not run."""

ABOUT_REPLICAS = (
    bus.REGISTER_NODE, bus.ALTER_PARTITIONS, bus.REPLICAS_FAILED, bus.SHUT_DOWN_NODE,
)  # fmt: skip
STARTING, READY, ENDING, BACKOFF = "starting", "ready", "ending", "backoff"

DecideShareStates: TypeAlias = "Callable[[Sequence[StateRequest]], Future[list[Outcome]]]"
"""Returns the outcome of each request (ShareCoordinators.outcomes)."""


class ProcessReport(NamedTuple):
    """A node's process, as reported by the launcher."""

    incarnation: int
    pid: int
    host: str
    port: int
    state: str


@dataclass(slots=True)
class Worker:
    """A worker of the current incarnation, with the state from its heartbeats."""

    peer: Peer
    welcomed: bool = False
    reconciled_offset: int = -1
    led_count: int = 0
    size: int = 0
    unserved: frozenset[tuple[bytes, int]] = frozenset()
    features: SupportedLevels | None = None
    """The highest levels of features that it supports; None until it has reported them."""


@dataclass(slots=True, eq=False)
class ApplyWait:
    """A response that waits until all workers have applied the metadata log up to an offset."""

    end_offset: int
    future: Future[None]
    timer: Any = None
    for_new_nodes: bool = False


class WorkerManager:
    """The supervisor's end of the bus."""

    def __init__(
        self,
        controller: LocalController,
        serve: Callable[[ClientConnection, memoryview], Any],
        sessions: NodeSessions,
        reactor: Reactor,
        *,
        send: WorkerSender,
        fence: Callable[[Peer], None],
        is_running: Callable[[int], bool],
        verify_transactions: SendVerifications,
        incarnation: int,
        heartbeat_ms: int,
    ) -> None:
        self.processes: dict[int, ProcessReport] = {}
        self.workers: dict[int, Worker] = {}
        self.heartbeat_listeners: list[Callable[[], object]] = []
        """Called after each heartbeat."""
        self.refused = 0
        """Number of refused messages, such as those of an older incarnation."""
        self._controller = controller
        self._serve = serve
        self._sessions = sessions
        self._reactor = reactor
        self._send = send
        self._fence = fence
        self._is_running = is_running
        self._verify_transactions = verify_transactions
        self._busy: set[int] = set()
        self._incarnation = incarnation
        self._heartbeat_ms = heartbeat_ms
        self._apply_waits: list[ApplyWait] = []
        self._markers: MarkerSource | None = None
        self._find_orphans: FindOrphans | None = None
        self._decide_share_states: DecideShareStates | None = None
        self._progress: ShareProgressSource | None = None
        self._appends: BatchSink | None = None
        self._replication: NodeReplicas | None = None
        self._checked_ms = reactor.clock.monotonic_ms()
        controller.on_change(self._changed)
        controller.applied_everywhere = self.applied_everywhere
        controller.worker_features = self._features
        reactor.call_later(CHECK_MS, self._check)

    def serve_shares(
        self, decide: DecideShareStates, progress: ShareProgressSource, appends: BatchSink
    ) -> None:
        """Pass requests of workers to the share coordinators; query workers for `progress`, and
        have them append batches for `appends`."""
        self._decide_share_states = decide
        self._appends = appends
        appends.connect(self._send_batch)
        self._progress = progress
        progress.connect(self._send_progress_query)

    def serve_transactions(self, markers: MarkerSource, find_orphans: FindOrphans) -> None:
        """Pass messages between the transaction coordinators and the workers."""
        self._markers = markers
        self._find_orphans = find_orphans
        markers.connect(self._send_markers)

    def serve_replication(self, replication: NodeReplicas) -> None:
        """Pass the processes of nodes, and their messages about replicas, to the controller."""
        self._replication = replication

    # -- processes and sessions --------------------------------------------------------------

    def update_processes(self, processes: dict[int, ProcessReport]) -> None:
        """Apply the launcher's list of all worker processes."""
        for node_id, worker in list(self.workers.items()):
            process = processes.get(node_id)
            if (
                process is None
                or process.state == BACKOFF  # it is dead, and the next one not started yet
                or process.incarnation != worker.peer.incarnation
            ):
                self._sessions.end(*worker.peer)
                del self.workers[node_id]
        for node_id, process in processes.items():
            if process.state != BACKOFF and node_id not in self.workers:
                peer = Peer(node_id, process.incarnation)
                self._sessions.begin(*peer)
                self.workers[node_id] = Worker(peer)
            if process.state in (READY, ENDING) and not self._was_serving(node_id, process):
                # Its listener responds, so its session can expire from now on.
                now_ms = self._reactor.clock.monotonic_ms()
                self._sessions.extend(node_id, process.incarnation, now_ms)
        self.processes = processes
        if self._replication is not None:
            self._replication.update_processes(
                {
                    (node_id, process.incarnation)
                    for node_id, process in processes.items()
                    if process.state != BACKOFF
                }
            )
        self._release()

    def _was_serving(self, node_id: int, process: ProcessReport) -> bool:
        known = self.processes.get(node_id)
        return known is not None and known[:2] == process[:2] and known.state in (READY, ENDING)

    def has_applied(self, node_id: int, topic_id: bytes, partition: int, end_offset: int) -> bool:
        """Return whether a node leads a partition that it was assigned before `end_offset`."""
        worker = self.workers.get(node_id)
        return (
            worker is not None
            and worker.reconciled_offset >= end_offset
            and (topic_id, partition) not in worker.unserved
        )

    def _check(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        late_ms = now_ms - self._checked_ms - CHECK_MS
        if late_ms >= LATE_CHECK_MS:
            # While this process was stopped it received nothing: extend all sessions.
            self._sessions.extend_all(late_ms)
        self._checked_ms = now_ms
        for node_id, incarnation in self._sessions.expire(now_ms, self._is_busy):
            log.warning("Node %d missed its heartbeats and is fenced. node=%d", node_id, node_id)
            self._fence(Peer(node_id, incarnation))
        for worker in self.workers.values():
            if not worker.welcomed:
                self._welcome(worker)
        self._reactor.call_later(CHECK_MS, self._check)

    def _is_busy(self, node_id: int) -> bool:
        """Return whether a node that missed its heartbeats has a running process."""
        process = self.processes.get(node_id)
        if process is None or not self._is_running(process.pid):
            return False
        if node_id not in self._busy:
            self._busy.add(node_id)
            log.warning(
                "Node %d misses its heartbeats, but its process runs; waiting."
                " node=%d pid=%d tick_timeout_ms=%d",
                node_id, node_id, process.pid, self._sessions.tick_timeout_ms,
            )  # fmt: skip
        return True

    def _welcome(self, worker: Worker) -> None:
        worker.welcomed = self._send(
            identity_of(worker.peer),
            bus.WELCOME(
                incarnation=self._incarnation,
                image_offset=self._controller.log.end_offset,
                heartbeat_ms=self._heartbeat_ms,
            ),
            quiet=True,  # it may not be connected to the bus yet
        )
        if worker.welcomed and self._markers is not None:
            self._markers.node_connected(worker.peer.node_id)

    # -- messages from workers ---------------------------------------------------------------

    def received(self, identity: bytes, message: TypedRecord) -> None:
        """Handle a worker's message; refuse one of an older incarnation."""
        peer = peer_of(identity)
        worker = self.workers.get(peer.node_id) if peer is not None else None
        if peer is None or (worker is not None and worker.peer.incarnation > peer.incarnation):
            self._refuse(identity, message.kind, "the sender's process has ended")
            return
        if worker is None or worker.peer != peer:
            return  # it is earlier than the launcher's report, after which it is welcomed
        handle = self._HANDLERS.get(message.kind.key)
        if message.kind in ABOUT_REPLICAS:
            handle = partial(WorkerManager._about_replicas, kind=message.kind)
        if handle is None:
            self._refuse(identity, message.kind, "the supervisor handles no such message")
            return
        self._sessions.extend(*peer, self._reactor.clock.monotonic_ms())
        self._busy.discard(peer.node_id)
        handle(self, worker, message.fields)

    def _refuse(self, identity: bytes, kind: RecordKind, reason: str) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # log the first, second, fourth … only
            log.warning(
                "Message of a worker is dropped: %s. kind=%s identity=%r dropped=%d",
                reason, kind, identity, self.refused,
            )  # fmt: skip

    def _hello(self, worker: Worker, fields: dict[str, Any]) -> None:
        self._welcome(worker)

    def _heartbeat(self, worker: Worker, fields: dict[str, Any]) -> None:
        if fields["image_offset"] > self._controller.log.end_offset:
            self._refuse(
                identity_of(worker.peer), bus.HEARTBEAT, "its offset is past the metadata log"
            )
            return
        worker.reconciled_offset = fields["image_offset"]
        worker.led_count = fields["led_count"]
        worker.size = fields["size"]
        worker.unserved = frozenset(
            (entry["topic_id"], entry["partition"]) for entry in fields["unserved"]
        )
        self._release()
        for on_heartbeat in self.heartbeat_listeners:
            on_heartbeat()

    def _forward(self, worker: Worker, fields: dict[str, Any]) -> None:
        request_id, peer = fields["request_id"], worker.peer

        def respond(frame: bytes | None, error: KafkaError | None = None) -> None:
            self._send(
                identity_of(peer),
                bus.RESPONSE(
                    request_id=request_id,
                    **outcome_fields(error),
                    frame=frame,
                ),
            )

        connection = ForwardedConnection(
            (fields["peer_host"], fields["peer_port"]),
            (fields["local_host"], fields["local_port"]),
            respond,
        )
        api_key = int.from_bytes(fields["frame"][:2], "big")
        handler = SERVED.get(api_key)
        if handler is None or handler.at is not ServingNode.CONTROLLER:
            respond(None, InvalidRequest("Only requests for the controller are forwarded."))
            return
        try:
            chunks = self._serve(connection, memoryview(fields["frame"]))
        except (AssertionError, Fatal):
            raise
        except Disconnect as reason:
            respond(None, InvalidRequest(str(reason)))
        except Exception:
            log.exception(
                "Forwarded request failed. node=%d client=%s:%d api_key=%d",
                peer.node_id, *connection.peer, api_key,
            )  # fmt: skip
            connection.close()
        else:
            if isinstance(chunks, list):
                connection.send(chunks)
            self._reactor.end_step(api_key)

    def _allocate_ids(self, worker: Worker, fields: dict[str, Any]) -> None:
        def respond(block: ProducerIdBlock | None, error: KafkaError | None) -> None:
            self._send(
                identity_of(worker.peer),
                bus.IDS(
                    request_id=fields["request_id"],
                    **outcome_fields(error),
                    first_id=block.first_id if block is not None else -1,
                    end_id=block.end_id if block is not None else -1,
                ),
            )

        self._controller.allocate_producer_ids(worker.peer.node_id).then(respond)

    def _renew_epochs(self, worker: Worker, fields: dict[str, Any]) -> None:
        wanted = [EpochRenewal(**partition) for partition in fields["partitions"]]
        self._controller.renew_epochs(worker.peer.node_id, wanted)

    def _supported_features(self, worker: Worker, fields: dict[str, Any]) -> None:
        worker.features = {each["name"]: each["level_max"] for each in fields["features"]}
        self._controller.finalize_features()

    def _features(self) -> dict[int, SupportedLevels]:
        """Return the supported levels of the workers that have reported them."""
        return {
            node_id: worker.features
            for node_id, worker in self.workers.items()
            if worker.features is not None
        }

    def _late_transactions(self, worker: Worker, fields: dict[str, Any]) -> None:
        def respond(
            orphans: Sequence[OrphanTransaction] | None, error: KafkaError | None
        ) -> None:
            self._send(
                identity_of(worker.peer),
                bus.ORPHANS(
                    request_id=fields["request_id"],
                    **outcome_fields(error),
                    transactions=[each.transaction._asdict() for each in orphans or ()],
                    committed=[
                        position for position, each in enumerate(orphans or ()) if each.is_committed
                    ],
                ),
            )

        if self._find_orphans is not None:
            late = [LateTransaction(**each) for each in fields["transactions"]]
            self._find_orphans(late).then(respond)

    def _markers_written(self, worker: Worker, fields: dict[str, Any]) -> None:
        if self._markers is not None and fields["incarnation"] == self._incarnation:
            self._markers.written(
                worker.peer.node_id, fields["request_id"], fields["error_codes"]
            )

    def _verification_requested(self, worker: Worker, fields: dict[str, Any]) -> None:
        def respond(results: VerificationResults | None, error: KafkaError | None) -> None:
            response = transactions_verified(fields["request_id"], results, error)
            self._send(identity_of(worker.peer), response)

        self._verify_transactions(read_requests(fields)).then(respond)

    def _share_states(self, worker: Worker, fields: dict[str, Any]) -> None:
        def respond(outcomes: Sequence[Outcome] | None, error: KafkaError | None) -> None:
            self._send(identity_of(worker.peer), share_outcomes(fields, outcomes, error))

        if self._decide_share_states is not None:
            self._decide_share_states(read_state_requests(fields)).then(respond)

    def _share_progress_found(self, worker: Worker, fields: dict[str, Any]) -> None:
        if self._progress is not None and fields["incarnation"] == self._incarnation:
            found = read_progress(fields)
            self._progress.received(worker.peer.node_id, fields["request_id"], found)

    def _append_requested(self, worker: Worker, fields: dict[str, Any]) -> None:
        def respond(_: None, error: KafkaError | None) -> None:
            self._send(identity_of(worker.peer), batch_appended(fields, error))

        if self._appends is not None:
            target = fields["topic_id"], fields["partition"]
            self._appends.append(*target, bytes(fields["batch"])).then(respond)

    def _batch_appended(self, worker: Worker, fields: dict[str, Any]) -> None:
        if self._appends is not None and fields["incarnation"] == self._incarnation:
            error = append_error(fields)
            self._appends.received(worker.peer.node_id, fields["request_id"], error)

    def _about_replicas(self, worker: Worker, fields: dict[str, Any], kind: RecordKind) -> None:
        if self._replication is not None:
            identity = identity_of(worker.peer)
            self._replication.received(
                worker.peer, kind, fields, lambda message: self._send(identity, message)
            )

    _HANDLERS: dict[int, Callable[[WorkerManager, Worker, dict[str, Any]], None]] = {
        bus.HELLO.key: _hello,
        bus.HEARTBEAT.key: _heartbeat,
        bus.FORWARD.key: _forward,
        bus.ALLOCATE_IDS.key: _allocate_ids,
        bus.RENEW_EPOCHS.key: _renew_epochs,
        bus.SUPPORTED_FEATURES.key: _supported_features,
        bus.MARKERS_WRITTEN.key: _markers_written,
        bus.VERIFY_TRANSACTIONS.key: _verification_requested,
        bus.FIND_ORPHANS.key: _late_transactions,
        bus.SHARE_STATES.key: _share_states,
        bus.SHARE_PROGRESS.key: _share_progress_found,
        bus.APPEND_BATCH.key: _append_requested,
        bus.BATCH_APPENDED.key: _batch_appended,
    }

    # -- messages to workers -----------------------------------------------------------------

    def _changed(self, records: Sequence[internal.TypedRecord], end_offset: int) -> None:
        delta = bus.DELTA(
            begin_offset=end_offset - len(records),
            end_offset=end_offset,
            records=[internal.write(record) for record in records],
        )
        for worker in self.workers.values():
            if worker.welcomed:
                # A worker to which sending failed gets another Welcome, and reads the log files;
                # a removed one is about to end, or has ended.
                removed = worker.peer.node_id not in self._controller.image.nodes
                worker.welcomed = self._send(identity_of(worker.peer), delta, quiet=removed)

    def _send_markers(
        self, node_id: int, request_id: int, targets: Sequence[MarkerTargets]
    ) -> bool:
        return self._send_to(node_id, write_markers(request_id, self._incarnation, targets))

    def _send_progress_query(
        self, node_id: int, request_id: int, keys: Sequence[SharePartitionKey]
    ) -> bool:
        return self._send_to(node_id, find_share_progress(request_id, self._incarnation, keys))

    def _send_batch(
        self, node_id: int, request_id: int, topic_id: bytes, partition: int, batch: bytes
    ) -> bool:
        message = append_batch(request_id, self._incarnation, topic_id, partition, batch)
        return self._send_to(node_id, message)

    def _send_to(self, node_id: int, message: TypedRecord) -> bool:
        """Send a message to a worker; return False if it cannot receive it now."""
        worker = self.workers.get(node_id)
        if worker is None or not worker.welcomed:
            return False
        return self._send(identity_of(worker.peer), message, quiet=True)

    def applied_everywhere(self, end_offset: int) -> Future[None]:
        """Complete when every running worker has applied this offset, or after the maximum wait."""
        wait = ApplyWait(end_offset, Future())
        wait.timer = self._reactor.call_later(APPLY_WAIT_MS_MAX, lambda: self._complete(wait))
        self._apply_waits.append(wait)
        self._release()
        return wait.future

    def _release(self) -> None:
        if not self._apply_waits:
            return
        if self._awaits_nodes():
            for wait in self._apply_waits:
                wait.for_new_nodes = True
            return
        offsets = (worker.reconciled_offset for worker in self.workers.values())
        reconciled_offset = min(offsets, default=1 << 62)
        for wait in list(self._apply_waits):
            if wait.for_new_nodes:
                # The listeners of the new nodes have to be known everywhere, too.
                wait.for_new_nodes = False
                wait.end_offset = self._controller.log.end_offset
            if wait.end_offset <= reconciled_offset:
                self._complete(wait)

    def _awaits_nodes(self) -> bool:
        """Return whether a new node, such as a dedicated one, has no known listener yet.

        A node in back-off does not count: it may never start.
        """
        return any(
            node_id != SUPERVISOR_ID
            and not node.port
            and (node_id not in self.processes or self.processes[node_id].state != BACKOFF)
            for node_id, node in self._controller.image.nodes.items()
        )

    def _complete(self, wait: ApplyWait) -> None:
        self._apply_waits.remove(wait)
        wait.timer.cancel()
        wait.future.resolve(None)


class ForwardedConnection:
    """Represents a client of another node in the dispatcher."""

    def __init__(
        self,
        peer: tuple[str, int],
        local: tuple[str, int],
        respond: Callable[..., None],
    ) -> None:
        self.peer = peer
        self.local = local
        self.abandoned: Callable[[], None] | None = None
        self._respond = respond

    def defer(self) -> ForwardedConnection:
        """Respond later, by `send`."""
        return self

    def send(self, chunks: Sequence[Any]) -> None:
        """Send the response: fetches are not forwarded, so it consists of bytes only."""
        self._respond(b"".join(chunks))

    def on_close(self, callback: Callable[[], object]) -> None:
        """Refuse: no state of this node depends on a connection at another one."""
        raise AssertionError("requests for leaders are not forwarded")

    def close(self) -> None:
        """Respond with an error: the client's connection is to be closed."""
        self._respond(None, InvalidRequest("The controller closed the connection."))
