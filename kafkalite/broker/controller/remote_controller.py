"""RemoteController: the controller as seen by a node that does not host it.

    start      the image is read from the metadata log's files, without any request
    Hello  ─▶  ◀─ Welcome         the end of the supervisor's log; missing records are read
               ◀─ Delta           records of the metadata log, as soon as they are durable
    Heartbeat ─▶                  the offset this node has applied, its load, missing partitions
    Forward   ─▶  ◀─ Answer       a request that only the controller serves, with its header
    AllocateIds ─▶ ◀─ Ids         producer ids
    RenewEpochs ─▶                partitions that need a new leader epoch; a Delta brings it

An image offset is an offset of the metadata log, so a delta that does not begin where this image
ends is detected: the missing records are read from the files.

While the supervisor is down the node serves everything else, and requests wait for the next
supervisor's Welcome.  What was sent to a supervisor that died has an unknown outcome: it fails with
REQUEST_TIMED_OUT, or if the response has no field for it, by closing the connection, as if the
client had been connected to the controller itself.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalite.broker.controller.controller_client import ControllerClient
from kafkalite.broker.later import Later
from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.producer_ids import ProducerIdBlock
from kafkalite.errors import (
    BY_CODE,
    CorruptMessage,
    Fatal,
    KafkaError,
    LeaderNotAvailable,
    RequestTimedOut,
    UnknownServerError,
    raise_for,
)
from kafkalite.protocol.frame import response_header, write_header
from kafkalite.protocol.schemas import bus, internal
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK, TypedRecord
from kafkalite.protocol.schemas.topics import CREATE_TOPICS

if TYPE_CHECKING:
    from kafkalite.broker.controller.controller_client import (
        HeartbeatState,
        MetadataListener,
        TopicOutcome,
    )
    from kafkalite.broker.controller.metadata_reader import MetadataReader
    from kafkalite.broker.scheduler import ScheduledCall, Scheduler
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.leader_epochs import EpochRenewal
    from kafkalite.protocol.record_kinds import RecordKind
    from kafkalite.protocol.schema import Api, Fields
    from kafkalite.transport.connection import Address

log = logging.getLogger("kafkalite.broker")

ANSWER_MS_MAX = 30_000
"""Maximum time that a client's request may wait for the supervisor."""

FORWARDED_SIZE_MAX = 64 << 20
"""Maximum total size of client requests that wait for the supervisor, over all connections."""

AUTO_CREATE_MS_MAX = 1_000
"""Time that Metadata waits for the controller: later responses on the connection wait as well."""

Send = Callable[[TypedRecord], bool]


@dataclass(slots=True)
class ControllerRequest:
    """A request to the supervisor without a response yet."""

    message: TypedRecord
    later: Later[Any]
    timer: Any
    size: int
    """Size of the client's frame."""
    sent: bool = False


class RemoteController(ControllerClient):
    """The cluster image of a worker, and its requests to the controller."""

    is_local = False

    def __init__(self, reader: MetadataReader, timers: Scheduler) -> None:
        self._image = ClusterImage()
        self._heartbeat_state: Callable[[], HeartbeatState] | None = None
        self._reader = reader
        self._timers = timers
        self._send: Send | None = None
        self._listeners: list[MetadataListener] = []
        self._on_welcome: Callable[[], object] = lambda: None
        self._supervisor = -1
        self._is_welcome = False
        self._heartbeat_ms = 0  # set by the supervisor's Welcome
        self._next_beat: ScheduledCall | None = None
        self._request_ids = itertools.count(1)
        self._asked: dict[int, ControllerRequest] = {}
        self._forwarded_size = 0

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
    ) -> None:
        """Attach the node; the controller's node has the settings that count there."""
        self._heartbeat_state = heartbeat_state
        self._on_welcome = on_welcome

    # -- messages of the supervisor ----------------------------------------------------------

    def connect(self, send: Send) -> None:
        """Set the function that sends a message to the supervisor."""
        self._send = send

    def reached(self, connected: bool) -> None:
        """Handle a new or lost connection to the supervisor."""
        self._is_welcome = False
        if connected and self._send is not None:
            self._send(bus.HELLO(image_offset=self.offset))

    def received(self, message: TypedRecord) -> None:
        """Handle a message of the supervisor."""
        take = self._RECEIVED.get(message.kind.key)
        if take is None:
            log.warning("a %s is nothing to a worker: dropped", message.kind)
            return
        take(self, message.fields)

    def _welcome(self, fields: dict[str, Any]) -> None:
        if fields["incarnation"] < self._supervisor:
            return  # sent by a supervisor that is dead
        if fields["incarnation"] != self._supervisor:
            if fields["image_offset"] < self.offset:
                raise Fatal(
                    f"the supervisor's metadata log came back shorter: it ends at"
                    f" {fields['image_offset']}, and this image stands for {self.offset}"
                )
            self._fail_sent()
            self._supervisor = fields["incarnation"]
        # The log of one supervisor only grows, and may have been read further since this was sent.
        self._heartbeat_ms = max(1, fields["heartbeat_ms"])
        if fields["image_offset"] > self.offset:
            self._read_up_to(fields["image_offset"])
        self._is_welcome = True
        self._beat()
        for request_id, asked in list(self._asked.items()):
            if not asked.sent:
                self._send_asked(request_id, asked)
        self._on_welcome()

    def _delta(self, fields: dict[str, Any]) -> None:
        if not self._is_welcome:
            return  # sent earlier, perhaps by a dead supervisor; a Welcome says how far to read
        begin, end = fields["begin_offset"], fields["end_offset"]
        if end - begin != len(fields["records"]):
            log.warning("a delta of %d to %d has %d records: dropped", begin, end,
                        len(fields["records"]))  # fmt: skip
            return
        if begin > self.offset:
            self._read_up_to(end)
            return
        try:
            records = [internal.read(value) for value in fields["records"][self.offset - begin :]]
        except KafkaError as fault:
            log.warning("a delta of %d to %d cannot be read: %s", begin, end, fault)
            self._read_up_to(end)
            return
        if not records:
            return
        try:
            for record in records:
                self._replay(record)
        except CorruptMessage as fault:
            # Part of it may be in the image, which cannot be used any more.
            raise Fatal(f"a delta of {begin} to {end} cannot be taken in: {fault}") from fault
        self._reader.offset = end
        self._tell(records)

    def _read_up_to(self, end_offset: int) -> None:
        """Read on in the files, which reach at least there.

        Not further: a new supervisor would then appear to know less than this image.
        """
        records: list[TypedRecord] = []

        def replay(record: TypedRecord) -> None:
            self._replay(record)
            records.append(record)

        try:
            self._reader.read_on(replay, end_offset)
        except (KafkaError, OSError) as fault:
            lost = f"the metadata log cannot be followed at offset {self.offset}"
            raise Fatal(f"{lost}: {fault}") from None
        if self.offset < end_offset:
            raise Fatal(f"the metadata log ends at {self.offset}, and should reach {end_offset}")
        self._tell(records)

    def _replay(self, record: TypedRecord) -> None:
        if record.kind is PRODUCER_IDS_BLOCK:
            return  # an image has no producer ids
        try:
            self._image.replay(record)
        except (AssertionError, LookupError) as fault:
            raise CorruptMessage(f"A {record.kind} contradicts the records before it.") from fault

    def _tell(self, records: Sequence[TypedRecord]) -> None:
        for listener in self._listeners:
            listener(records, self.offset)

    # -- heartbeats --------------------------------------------------------------------------

    def _beat(self) -> None:
        # The interval is that of the last Welcome; earlier timers are cancelled.
        if self._next_beat is not None:
            self._next_beat.cancel()
        self.heartbeat()
        self._next_beat = self._timers.call_later(self._heartbeat_ms, self._beat)

    def heartbeat(self) -> None:
        """Send a heartbeat now: the supervisor may be waiting for a change to be applied."""
        if not self._is_welcome or self._send is None or self._heartbeat_state is None:
            return
        state = self._heartbeat_state()
        self._send(
            bus.HEARTBEAT(
                image_offset=state.made_offset,
                led_count=state.led_count,
                size=state.size,
                unmade=[
                    {"topic_id": topic_id, "partition": index} for topic_id, index in state.unmade
                ],
            )
        )

    def report_applied(self, made_offset: int) -> None:
        """Send a heartbeat, which has this offset among the rest of the node's state."""
        self.heartbeat()

    # -- requests ----------------------------------------------------------------------------

    def forward(
        self,
        frame: bytes | memoryview,
        peer: Address,
        local: Address,
        wait_ms: int = ANSWER_MS_MAX,
    ) -> Later[bytes]:
        """Forward a client's request; return the controller's response with its header.

        A request is refused while the waiting ones have FORWARDED_SIZE_MAX bytes.
        """
        size = len(frame)
        if self._forwarded_size and self._forwarded_size + size > FORWARDED_SIZE_MAX:
            refused: Later[bytes] = Later()
            refused.fail(RequestTimedOut("Too many requests wait for the controller; try later."))
            return refused
        return self._ask(
            lambda request_id: bus.FORWARD(
                request_id=request_id,
                frame=bytes(frame),
                peer_host=peer[0],
                peer_port=peer[1],
                local_host=local[0],
                local_port=local[1],
            ),
            wait_ms,
            size,
        )

    def request(
        self, api: Api, request: dict[str, Any], *, client_id: str | None, wait_ms: int
    ) -> Later[Fields]:
        """Send a request of this node to the controller, in the API's newest version."""
        version = api.versions[1]
        header = write_header(api.key, version, 0, client_id, api.request_header_flexible(version))
        begin = len(response_header(0, api.response_header_flexible(version)))
        nobody = ("", 0)
        return self.forward(
            header + api.request.write(version, request), nobody, nobody, wait_ms
        ).map(lambda answer: api.response.read(version, answer, begin))

    def auto_create_topics(
        self, names: Sequence[str], client_id: str | None
    ) -> Later[Mapping[str, TopicOutcome]]:
        """Create topics with all defaults, by a CreateTopics request to the controller."""
        topics = [{"name": name, "num_partitions": -1, "replication_factor": -1} for name in names]
        outcomes: Later[Mapping[str, TopicOutcome]] = Later()

        def came(created: Fields | None, fault: KafkaError | None) -> None:
            if created is None:
                # The controller cannot be reached; the client retries, as for a topic in creation.
                outcomes.resolve(dict.fromkeys(names, LeaderNotAvailable(str(fault))))
            else:
                outcomes.resolve({topic.name: _error_of(topic) for topic in created.topics})

        self.request(
            CREATE_TOPICS, {"topics": topics, "timeout_ms": AUTO_CREATE_MS_MAX},
            client_id=client_id, wait_ms=AUTO_CREATE_MS_MAX,
        ).then(came)  # fmt: skip
        return outcomes

    def allocate_producer_ids(self, node_id: int) -> Later[ProducerIdBlock]:
        """Return the next block of producer ids for this node."""
        return self._ask(lambda request_id: bus.ALLOCATE_IDS(request_id=request_id), ANSWER_MS_MAX)

    def renew_epochs(self, node_id: int, wanted: Sequence[EpochRenewal]) -> None:
        """Request the next leader epochs of these partitions; deltas bring them.

        The request is repeated for partitions that lack one.
        """
        if self._is_welcome and self._send is not None:
            self._send(bus.RENEW_EPOCHS(partitions=[renewal._asdict() for renewal in wanted]))

    def _ask(
        self, message: Callable[[int], TypedRecord], wait_ms: int, size: int = 0
    ) -> Later[Any]:
        request_id = next(self._request_ids)
        later: Later[Any] = Later()
        timer = self._timers.call_later(wait_ms, lambda: self._fail(request_id))
        asked = self._asked[request_id] = ControllerRequest(message(request_id), later, timer, size)
        self._forwarded_size += size
        if self._is_welcome:
            self._send_asked(request_id, asked)
        return later

    def _send_asked(self, request_id: int, asked: ControllerRequest) -> None:
        assert self._send is not None
        asked.sent = True
        if not self._send(asked.message):
            self._fail(request_id)

    def _take(self, request_id: int) -> ControllerRequest:
        """Remove a request that is complete."""
        asked = self._asked.pop(request_id)
        self._forwarded_size -= asked.size
        asked.timer.cancel()
        return asked

    def _fail(self, request_id: int) -> None:
        asked = self._take(request_id)
        asked.later.fail(RequestTimedOut("The controller has not answered."))

    def _fail_sent(self) -> None:
        for request_id, asked in list(self._asked.items()):
            if asked.sent:
                self._fail(request_id)

    def _answered(
        self, question: RecordKind, fields: dict[str, Any], value: Callable[[], Any]
    ) -> None:
        asked = self._asked.get(fields["request_id"])
        if asked is None or asked.message.kind is not question:
            return  # it came too late, and the client got a timeout
        self._take(fields["request_id"])
        try:
            raise_for(fields["error_code"], fields["error_message"])
            came = value()
        except KafkaError as fault:
            asked.later.fail(fault)
        else:
            asked.later.resolve(came)

    def _answer(self, fields: dict[str, Any]) -> None:
        def response() -> bytes:
            if not fields["frame"]:
                raise UnknownServerError("The controller's answer is empty.")
            return bytes(fields["frame"])

        self._answered(bus.FORWARD, fields, response)

    def _ids(self, fields: dict[str, Any]) -> None:
        def block() -> ProducerIdBlock:
            if not 0 <= fields["first_id"] < fields["end_id"]:
                raise UnknownServerError("The controller's block of producer ids is empty.")
            return ProducerIdBlock(fields["first_id"], fields["end_id"])

        self._answered(bus.ALLOCATE_IDS, fields, block)

    _RECEIVED: dict[int, Callable[[RemoteController, dict[str, Any]], None]] = {
        bus.WELCOME.key: _welcome,
        bus.DELTA.key: _delta,
        bus.ANSWER.key: _answer,
        bus.IDS.key: _ids,
    }


def _error_of(result: Fields) -> KafkaError | None:
    """Return the error of one entry of a response, or None."""
    code = result.error_code
    return BY_CODE.get(code, UnknownServerError)(result.error_message) if code else None
