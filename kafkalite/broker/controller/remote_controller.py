"""RemoteController: the controller as seen by a node that does not host it.

    start      the image is read from the metadata log's files, without any request
    Hello  ─▶  ◀─ Welcome         the end of the supervisor's log; missing records are read
               ◀─ Delta           records of the metadata log, as soon as they are durable
    SupportedFeatures ─▶          the highest levels of features that this node supports
    RegisterNode ─▶               the ends of its logs, if the supervisor has not registered it
    ReplicasFailed ─▶             replicas whose logs here have failed
    AlterPartitions ─▶ ◀─ PartitionsAltered  in-sync replicas of partitions that this node leads
    Heartbeat ─▶                  the offset this node has applied, its load, missing partitions
    Forward   ─▶  ◀─ Response     a request that only the controller serves, with its header
    AllocateIds ─▶ ◀─ Ids         producer ids
    VerifyTransactions ─▶            partitions of transactions, to be verified or added
              ◀─ TransactionsVerified
    RenewEpochs ─▶                partitions that need a new leader epoch; a Delta brings it
               ◀─ WriteMarkers    transaction markers for partitions of this node
    MarkersWritten ─▶             the error code of each, once they are committed
    FindOrphans ─▶ ◀─ Orphans     open transactions that no coordinator ends
               ◀─ FindShareProgress  share partitions of this node
    ShareProgress ─▶              their high watermarks and what members have acquired
    ShareStates ─▶ ◀─ ShareOutcomes  states of share partitions, to be read or written
    AppendBatch ─▶ ◀─ BatchAppended  a batch for a partition of another node, or the other way

An image offset is an offset of the metadata log, so a delta that does not begin where this image
ends is detected: the missing records are read from the files.

While the supervisor is down the node serves everything else, and requests wait for the next
supervisor's Welcome.  What was sent to a supervisor that died has an unknown outcome: it fails with
REQUEST_TIMED_OUT, or if the response has no field for it, by closing the connection, as if the
client had been connected to the controller itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.broker.controller.append_messages import (
    NO_INCARNATION,
    append_batch,
    batch_appended,
)
from kafkalite.broker.controller.controller_client import ControllerClient
from kafkalite.broker.controller.marker_messages import read_markers
from kafkalite.broker.controller.replication_messages import (
    alter_partitions,
    register_node,
    replicas_failed,
)
from kafkalite.broker.controller.replication_messages import read_outcomes as read_altered
from kafkalite.broker.controller.share_messages import (
    read_outcomes,
    read_progress_keys,
    share_progress,
    share_states,
)
from kafkalite.broker.controller.supervisor_requests import SupervisorRequests
from kafkalite.broker.controller.verification_messages import read_results, verify_transactions
from kafkalite.broker.error_responses import error_of
from kafkalite.broker.future import Future
from kafkalite.broker.replica.late_transactions import LateTransaction, OrphanTransaction
from kafkalite.coordination.features import SUPPORTED_LEVELS
from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.producer_ids import ProducerIdBlock
from kafkalite.coordination.replication.registration import is_registered
from kafkalite.errors import (
    CorruptMessage,
    Fatal,
    KafkaError,
    LeaderNotAvailable,
    RequestTimedOut,
    UnknownServerError,
)
from kafkalite.protocol.frame import response_header, write_header
from kafkalite.protocol.schemas import bus, internal
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK, TypedRecord
from kafkalite.protocol.schemas.topics import CREATE_TOPICS

if TYPE_CHECKING:
    from kafkalite.broker.controller.controller_client import (
        HeartbeatState,
        LogEnds,
        MetadataListener,
        ShareProgressOf,
        TopicOutcome,
        WriteMarkers,
    )
    from kafkalite.broker.controller.metadata_reader import MetadataReader
    from kafkalite.broker.replica.batch_appends import AppendBatch
    from kafkalite.broker.replica.transaction_verifier import (
        VerificationRequest,
        VerificationResults,
    )
    from kafkalite.broker.scheduler import ScheduledCall, Scheduler
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.leader_epochs import EpochRenewal
    from kafkalite.coordination.replication.alter_partition import (
        AlteredPartition,
        PartitionProposal,
    )
    from kafkalite.coordination.share.state_requests import Outcome, StateRequest
    from kafkalite.protocol.schema import Api, Fields
    from kafkalite.transport.bus import Peer
    from kafkalite.transport.connection import Address

log = logging.getLogger("kafkalite.broker")

CONTROLLER_TIMEOUT_MS = 30_000
"""Maximum time that a client's request may wait for the supervisor."""

FORWARDED_SIZE_MAX = 64 << 20
"""Maximum total size of client requests that wait for the supervisor, over all connections."""

AUTO_CREATE_MS_MAX = 1_000
"""Time that Metadata waits for the controller: later responses on the connection wait as well."""

TRANSACTIONS_TIMEOUT_MS = 5_000
"""Maximum wait for the transaction coordinators; the producer then repeats its request."""

SHARE_STATES_TIMEOUT_MS = 5_000
"""Maximum wait for the share coordinators; an acknowledgement fails then."""

APPEND_TIMEOUT_MS = 15_000
"""Maximum wait for a batch that another node is to append; longer than the supervisor's own."""

Send = Callable[[TypedRecord], bool]


class RemoteController(ControllerClient):
    """The cluster image of a worker, and its requests to the controller."""

    is_local = False

    def __init__(self, reader: MetadataReader, timers: Scheduler, peer: Peer) -> None:
        """`peer`: the node id and the incarnation of this process."""
        self._peer = peer
        self._image = ClusterImage()
        self._heartbeat_state: Callable[[], HeartbeatState] | None = None
        self._reader = reader
        self._timers = timers
        self._send: Send | None = None
        self._listeners: list[MetadataListener] = []
        self._on_welcome: Callable[[], object] = lambda: None
        self._write_markers: WriteMarkers | None = None
        self._share_progress_of: ShareProgressOf | None = None
        self._append_batch: AppendBatch | None = None
        self._log_ends: LogEnds = tuple
        self._was_welcomed = False
        self._failed: dict[tuple[bytes, int], None] = {}
        """Partitions of which this process has no usable log."""
        self._marker_request_id = 0
        self._supervisor = -1
        self._is_welcomed = False
        self._heartbeat_ms = 0  # set by the supervisor's Welcome
        self._heartbeat_timer: ScheduledCall | None = None
        self._requests = SupervisorRequests(timers)

    @property
    def image(self) -> ClusterImage:
        """The cluster metadata, up to `offset`."""
        return self._image

    @property
    def offset(self) -> int:
        """The metadata log offset of this image."""
        return self._reader.offset

    def load(self) -> None:
        """Read the image from the files; raise Refusal if they cannot be read."""
        self._reader.load(self._replay)

    def on_change(self, listener: MetadataListener) -> None:
        """Call `listener(records, end_offset)` with the records of each delta."""
        self._listeners.append(listener)

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
        """Attach the node; of its settings, those that determine features are reported."""
        self._heartbeat_state = heartbeat_state
        self._on_welcome = on_welcome
        self._write_markers = write_markers
        self._share_progress_of = share_progress_of
        self._append_batch = append_batch
        self._log_ends = log_ends

    # -- messages of the supervisor ----------------------------------------------------------

    def connect(self, send: Send) -> None:
        """Set the function that sends a message to the supervisor."""
        self._send = send

    def connection_changed(self, connected: bool) -> None:
        """Handle a new or lost connection to the supervisor."""
        self._is_welcomed = False
        self._requests.stop_sending()
        if connected and self._send is not None:
            self._send(bus.HELLO(image_offset=self.offset))

    def received(self, message: TypedRecord) -> None:
        """Handle a message of the supervisor."""
        handle = self._HANDLERS.get(message.kind.key)
        if handle is None:
            log.warning(
                "Message of an unknown kind is dropped. kind=%s", message.kind
            )
            return
        handle(self, message.fields)

    def _welcome(self, fields: dict[str, Any]) -> None:
        if fields["incarnation"] < self._supervisor:
            return  # sent by a supervisor that is dead
        if fields["incarnation"] != self._supervisor:
            if fields["image_offset"] < self.offset:
                raise Fatal(
                    f"the supervisor's metadata log is shorter than before: it ends at"
                    f" offset {fields['image_offset']}, and this node has applied {self.offset}"
                )
            self._requests.fail_sent()
            self._supervisor = fields["incarnation"]
            self._marker_request_id = 0
        # The log of one supervisor only grows, and may have been read further since this was sent.
        self._heartbeat_ms = max(1, fields["heartbeat_ms"])
        if fields["image_offset"] > self.offset:
            self._read_up_to(fields["image_offset"])
        self._is_welcomed = self._was_welcomed = True
        self._send_features()
        self._register()
        self.report_failed(())
        self._send_heartbeats()
        if self._send is not None:
            self._requests.begin_sending(self._send)
        self._on_welcome()

    def _send_features(self) -> None:
        if self._send is None:
            return
        features = [{"name": name, "level_max": level} for name, level in SUPPORTED_LEVELS.items()]
        self._send(bus.SUPPORTED_FEATURES(features=features))

    def _register(self) -> None:
        """Have this process registered, unless the image shows that it is."""
        if self.node_epoch is None and self._send is not None:
            self._send(register_node(self._log_ends()))

    @property
    def node_epoch(self) -> int | None:
        """The node epoch of this process; None while it is not registered."""
        # Before the first Welcome the image may be of an earlier run of the broker.
        node_id, incarnation = self._peer
        if self._was_welcomed and is_registered(self._image, node_id, incarnation):
            return self._image.nodes[node_id].node_epoch
        return None

    def _delta(self, fields: dict[str, Any]) -> None:
        if not self._is_welcomed:
            # Sent earlier, perhaps by a dead supervisor; a Welcome has the offset to read to.
            return
        begin, end = fields["begin_offset"], fields["end_offset"]
        if end - begin != len(fields["records"]):
            log.warning(
                "Delta is dropped: wrong record count. begin_offset=%d end_offset=%d records=%d",
                begin, end, len(fields["records"]),
            )  # fmt: skip
            return
        if begin > self.offset:
            self._read_up_to(end)
            return
        try:
            records = [internal.read(value) for value in fields["records"][self.offset - begin :]]
        except KafkaError as error:
            log.warning(
                "Delta cannot be decoded; reading the metadata log instead. begin_offset=%d"
                " end_offset=%d error=%r",
                begin, end, str(error),
            )  # fmt: skip
            self._read_up_to(end)
            return
        if not records:
            return
        try:
            for record in records:
                self._replay(record)
        except CorruptMessage as error:
            # Part of it may be in the image, which cannot be used any more.
            raise Fatal(
                f"the delta from offset {begin} to {end} cannot be applied: {error}"
            ) from error
        self._reader.offset = end
        self._notify(records)

    def _read_up_to(self, end_offset: int) -> None:
        """Read on in the files, which reach at least there.

        Not further: a new supervisor would then appear to know less than this image.
        """
        records: list[TypedRecord] = []

        def replay(record: TypedRecord) -> None:
            self._replay(record)
            records.append(record)

        try:
            self._reader.read_to(replay, end_offset)
        except (KafkaError, OSError) as error:
            lost = f"the metadata log cannot be read at offset {self.offset}"
            raise Fatal(f"{lost}: {error}") from None
        if self.offset < end_offset:
            raise Fatal(f"the metadata log ends at offset {self.offset} instead of {end_offset}")
        self._notify(records)

    def _replay(self, record: TypedRecord) -> None:
        if record.kind is PRODUCER_IDS_BLOCK:
            return  # an image has no producer ids
        try:
            self._image.replay(record)
        except (AssertionError, LookupError) as error:
            raise CorruptMessage(f"A {record.kind} contradicts the records before it.") from error

    def _markers(self, fields: dict[str, Any]) -> None:
        """Write the markers of the supervisor that has welcomed this node, and respond."""
        incarnation, request_id = fields["incarnation"], fields["request_id"]
        if not self._is_welcomed or incarnation != self._supervisor or self._write_markers is None:
            return  # sent by a supervisor that is dead; the next one sends them again
        if request_id <= self._marker_request_id:
            return  # an older request; a later one for its markers may be answered already
        self._marker_request_id = request_id

        def respond(codes: list[int] | None, error: KafkaError | None) -> None:
            if codes is not None and self._is_welcomed and self._send is not None:
                self._send(
                    bus.MARKERS_WRITTEN(
                        request_id=request_id,
                        incarnation=incarnation,
                        error_codes=codes,
                    )
                )

        self._write_markers(read_markers(fields)).then(respond)

    def _share_progress(self, fields: dict[str, Any]) -> None:
        """Respond with the progress of share partitions of this node."""
        progress_of, send = self._share_progress_of, self._send
        if self._is_welcomed and progress_of is not None and send is not None:
            send(share_progress(fields, progress_of(read_progress_keys(fields))))

    def _append(self, fields: dict[str, Any]) -> None:
        """Append a batch to a partition of this node, and respond."""
        if not self._is_welcomed or self._append_batch is None:
            return  # sent by a supervisor that is dead

        def respond(_: None, error: KafkaError | None) -> None:
            if self._is_welcomed and self._send is not None:
                self._send(batch_appended(fields, error))

        target = fields["topic_id"], fields["partition"]
        self._append_batch(*target, bytes(fields["batch"])).then(respond)

    def _notify(self, records: Sequence[TypedRecord]) -> None:
        for listener in self._listeners:
            listener(records, self.offset)

    # -- heartbeats --------------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        # The interval is that of the last Welcome; earlier timers are cancelled.
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self.heartbeat()
        self._heartbeat_timer = self._timers.call_later(self._heartbeat_ms, self._send_heartbeats)

    def heartbeat(self) -> None:
        """Send a heartbeat now: the supervisor may be waiting for a change to be applied."""
        if not self._is_welcomed or self._send is None or self._heartbeat_state is None:
            return
        state = self._heartbeat_state()
        self._send(
            bus.HEARTBEAT(
                image_offset=state.reconciled_offset,
                led_count=state.led_count,
                size=state.size,
                unserved=[
                    {"topic_id": topic_id, "partition": index} for topic_id, index in state.unserved
                ],
            )
        )

    def report_applied(self, reconciled_offset: int) -> None:
        """Send a heartbeat, which has this offset among the rest of the node's state."""
        self.heartbeat()

    # -- requests ----------------------------------------------------------------------------

    def forward(
        self,
        frame: bytes | memoryview,
        peer: Address,
        local: Address,
        timeout_ms: int = CONTROLLER_TIMEOUT_MS,
    ) -> Future[bytes]:
        """Forward a client's request; return the controller's response with its header.

        A request is rejected while the waiting ones have FORWARDED_SIZE_MAX bytes.
        """
        size = len(frame)
        if self._requests.size and self._requests.size + size > FORWARDED_SIZE_MAX:
            rejected: Future[bytes] = Future()
            rejected.fail(
                RequestTimedOut("Too many requests wait for the controller; retry.")
            )
            return rejected
        return self._requests.add(
            lambda request_id: bus.FORWARD(
                request_id=request_id,
                frame=bytes(frame),
                peer_host=peer[0],
                peer_port=peer[1],
                local_host=local[0],
                local_port=local[1],
            ),
            timeout_ms,
            size,
        )

    def request(
        self, api: Api, request: dict[str, Any], *, client_id: str | None, timeout_ms: int
    ) -> Future[Fields]:
        """Send a request of this node to the controller, in the API's newest version."""
        version = api.versions[1]
        header = write_header(api.key, version, 0, client_id, api.request_header_flexible(version))
        begin = len(response_header(0, api.response_header_flexible(version)))
        no_address = ("", 0)
        return self.forward(
            header + api.request.write(version, request), no_address, no_address, timeout_ms
        ).map(lambda response: api.response.read(version, response, begin))

    def auto_create_topics(
        self, names: Sequence[str], client_id: str | None, config: Mapping[str, str] = {}
    ) -> Future[Mapping[str, TopicOutcome]]:
        """Create topics by a CreateTopics request to the controller."""
        configs = [{"name": key, "value": value} for key, value in config.items()]
        counts = {"num_partitions": -1, "replication_factor": -1}
        topics = [{"name": name, **counts, "configs": configs} for name in names]
        outcomes: Future[Mapping[str, TopicOutcome]] = Future()

        def on_response(created: Fields | None, error: KafkaError | None) -> None:
            if created is None:
                # The controller cannot be reached; the client retries, as for a topic in creation.
                outcomes.resolve(dict.fromkeys(names, LeaderNotAvailable(str(error))))
            else:
                outcomes.resolve(
                    {topic.name: error_of(topic.error_code, topic.error_message)
                     for topic in created.topics}
                )  # fmt: skip

        self.request(
            CREATE_TOPICS, {"topics": topics, "timeout_ms": AUTO_CREATE_MS_MAX},
            client_id=client_id, timeout_ms=AUTO_CREATE_MS_MAX,
        ).then(on_response)  # fmt: skip
        return outcomes

    def allocate_producer_ids(self, node_id: int) -> Future[ProducerIdBlock]:
        """Return the next block of producer ids for this node."""
        return self._requests.add(
            lambda request_id: bus.ALLOCATE_IDS(request_id=request_id), CONTROLLER_TIMEOUT_MS
        )

    def verify_transactions(
        self, requests: Sequence[VerificationRequest]
    ) -> Future[VerificationResults]:
        """Have the transaction coordinators verify partitions.

        Fails with RequestTimedOut if there is no supervisor for TRANSACTIONS_TIMEOUT_MS, or if it
        dies.
        """
        return self._requests.add(
            lambda request_id: verify_transactions(request_id, requests), TRANSACTIONS_TIMEOUT_MS
        )

    def share_states(self, requests: Sequence[StateRequest]) -> Future[list[Outcome]]:
        """Have the share coordinators read and write states.

        Fails with RequestTimedOut if there is no supervisor for SHARE_STATES_TIMEOUT_MS, or if it
        dies.
        """
        return self._requests.add(
            lambda request_id: share_states(request_id, requests), SHARE_STATES_TIMEOUT_MS
        )

    def append_batch(self, topic_id: bytes, partition: int, batch: bytes) -> Future[None]:
        """Have the supervisor append a batch to a partition of any other node."""
        return self._requests.add(
            lambda request_id: append_batch(request_id, NO_INCARNATION, topic_id, partition, batch),
            APPEND_TIMEOUT_MS,
        )

    def alter_partitions(
        self, node_epoch: int, proposals: Sequence[PartitionProposal]
    ) -> Future[list[AlteredPartition]]:
        """Propose other in-sync replicas of partitions that this node leads."""
        return self._requests.add(
            lambda request_id: alter_partitions(request_id, node_epoch, proposals), None
        )

    def report_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Report replicas whose logs have failed, now and after each Welcome."""
        self._failed |= dict.fromkeys(partitions)
        node_epoch = self.node_epoch
        if self._failed and self._is_welcomed and self._send and node_epoch is not None:
            self._send(replicas_failed(node_epoch, self._failed))

    def shut_down(self, timeout_ms: int) -> Future[None]:
        """Have other nodes lead the replicated partitions of this one; complete when they do."""
        return self._requests.add(
            lambda request_id: bus.SHUT_DOWN_NODE(request_id=request_id), timeout_ms
        )

    def _node_shut_down(self, fields: dict[str, Any]) -> None:
        self._requests.complete(bus.SHUT_DOWN_NODE, fields, lambda: None)

    def find_orphans(
        self, late: Sequence[LateTransaction]
    ) -> Future[Sequence[OrphanTransaction]]:
        """Return those of these open transactions that no coordinator will end."""
        return self._requests.add(
            lambda request_id: bus.FIND_ORPHANS(
                request_id=request_id, transactions=[each._asdict() for each in late]
            ),
            CONTROLLER_TIMEOUT_MS,
        )

    def renew_epochs(self, node_id: int, wanted: Sequence[EpochRenewal]) -> None:
        """Request the next leader epochs of these partitions; deltas bring them.

        The request is repeated for partitions that lack one.
        """
        if self._is_welcomed and self._send is not None:
            self._send(bus.RENEW_EPOCHS(partitions=[renewal._asdict() for renewal in wanted]))

    def _forward_response(self, fields: dict[str, Any]) -> None:
        def response() -> bytes:
            if not fields["frame"]:
                raise UnknownServerError("The controller sent an empty response.")
            return bytes(fields["frame"])

        self._requests.complete(bus.FORWARD, fields, response)

    def _producer_ids(self, fields: dict[str, Any]) -> None:
        def block() -> ProducerIdBlock:
            if not 0 <= fields["first_id"] < fields["end_id"]:
                raise UnknownServerError("The controller sent an empty block of producer ids.")
            return ProducerIdBlock(fields["first_id"], fields["end_id"])

        self._requests.complete(bus.ALLOCATE_IDS, fields, block)

    def _transactions_verified(self, fields: dict[str, Any]) -> None:
        request = self._requests.find(fields["request_id"])
        if request is not None:
            self._requests.complete(
                bus.VERIFY_TRANSACTIONS, fields, lambda: read_results(request.message, fields)
            )

    def _share_outcomes(self, fields: dict[str, Any]) -> None:
        request = self._requests.find(fields["request_id"])
        if request is not None:
            self._requests.complete(
                bus.SHARE_STATES, fields, lambda: read_outcomes(request.message, fields)
            )

    def _batch_appended(self, fields: dict[str, Any]) -> None:
        self._requests.complete(bus.APPEND_BATCH, fields, lambda: None)

    def _partitions_altered(self, fields: dict[str, Any]) -> None:
        request = self._requests.find(fields["request_id"])
        if request is not None:
            self._requests.complete(
                bus.ALTER_PARTITIONS, fields, lambda: read_altered(request.message, fields)
            )

    def _orphans(self, fields: dict[str, Any]) -> None:
        def orphans() -> list[OrphanTransaction]:
            committed = {*fields["committed"]}
            return [
                OrphanTransaction(LateTransaction(**each), position in committed)
                for position, each in enumerate(fields["transactions"])
            ]

        self._requests.complete(bus.FIND_ORPHANS, fields, orphans)

    _HANDLERS: dict[int, Callable[[RemoteController, dict[str, Any]], None]] = {
        bus.WELCOME.key: _welcome,
        bus.DELTA.key: _delta,
        bus.RESPONSE.key: _forward_response,
        bus.IDS.key: _producer_ids,
        bus.WRITE_MARKERS.key: _markers,
        bus.FIND_SHARE_PROGRESS.key: _share_progress,
        bus.TRANSACTIONS_VERIFIED.key: _transactions_verified,
        bus.ORPHANS.key: _orphans,
        bus.PARTITIONS_ALTERED.key: _partitions_altered,
        bus.NODE_SHUT_DOWN.key: _node_shut_down,
        bus.SHARE_OUTCOMES.key: _share_outcomes,
        bus.APPEND_BATCH.key: _append,
        bus.BATCH_APPENDED.key: _batch_appended,
    }
