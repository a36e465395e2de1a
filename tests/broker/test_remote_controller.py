"""RemoteController, message by message, over a metadata log in files.

Messages from the supervisor are validated; invalid ones are dropped, and the files decide.  A
process whose image may be incomplete ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkalite import errors
from kafkalite.broker.controller.controller_client import HeartbeatState
from kafkalite.broker.controller.marker_messages import write_markers
from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.broker.controller.remote_controller import (
    CONTROLLER_TIMEOUT_MS,
    FORWARDED_SIZE_MAX,
    TRANSACTIONS_TIMEOUT_MS,
    RemoteController,
)
from kafkalite.broker.controller.share_messages import find_share_progress, read_progress
from kafkalite.broker.controller.snapshot import encode_batch, write_snapshot
from kafkalite.broker.future import Future
from kafkalite.broker.replica.marker_writer import MarkerTargets
from kafkalite.broker.replica.transaction_verifier import VerificationRequest
from kafkalite.clock import ManualClock
from kafkalite.config.settings import Settings
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import NodeImage, node_record
from kafkalite.coordination.partition_image import new_partition, partition_record
from kafkalite.coordination.share.share_partition import ShareProgress
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.errors import Fatal, Refusal
from kafkalite.protocol.schemas import bus, internal
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.internal import PRODUCER_IDS_BLOCK, REMOVE_NODE, TOPIC
from kafkalite.protocol.schemas.share_records import SharePartitionKey
from kafkalite.records.control import TransactionMarker
from kafkalite.transport.bus import Peer
from kafkalite.transport.reactor import Reactor

NOBODY = ("", 0)
PEER = Peer(1, 1)


def node(node_id: int) -> internal.TypedRecord:
    return node_record(NodeImage(node_id, "", 1))


class Followed:
    """A supervisor's metadata log files, and the changes that a worker reads from them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.end_offset = 0
        self.segment = 0
        self.sent: list[bus.TypedRecord] = []
        self.changes: list[int] = []
        self.markers: list[tuple[Sequence[MarkerTargets], Future[list[int]]]] = []
        self.appends: list[tuple[tuple[bytes, int, bytes], Future[None]]] = []
        self.takes = True

    def write(self, *records: internal.TypedRecord) -> None:
        """Append one more decision to the log."""
        batch = encode_batch(records, self.end_offset, now_ms=1)
        with (self.directory / f"{self.segment:020d}.log").open("ab") as file:
            file.write(batch)
        self.end_offset += len(records)

    def roll(self) -> None:
        self.segment = self.end_offset

    def begin(self) -> RemoteController:
        self.clock = ManualClock()
        self.reactor = Reactor(self.clock)
        controller = RemoteController(MetadataReader(self.directory), self.reactor, PEER)
        controller.load()
        controller.attach(
            settings=Settings.broker,
            heartbeat_state=lambda: HeartbeatState(
                controller.offset, led_count=0, size=0, unserved=[]
            ),
            on_welcome=lambda: None,
            write_markers=self.write_markers,
            share_progress_of=lambda keys: [
                ShareProgress(key.partition, 2, 1 << 20) for key in keys
            ],
            append_batch=self.append_batch,
            log_ends=tuple,
        )
        controller.on_change(lambda records, end_offset: self.changes.append(end_offset))
        controller.connect(self.send)
        controller.connection_changed(True)
        return controller

    def write_markers(self, targets: Sequence[MarkerTargets]) -> Future[list[int]]:
        self.markers.append((targets, codes := Future()))
        return codes

    def append_batch(self, topic_id: bytes, index: int, batch: bytes) -> Future[None]:
        self.appends.append(((topic_id, index, batch), done := Future()))
        return done

    def send(self, message: bus.TypedRecord) -> bool:
        self.sent.append(bus.read_frame(bus.write_frame(message)))
        return self.takes

    def kinds(self) -> list[str]:
        return [message.kind.name for message in self.sent]

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.reactor.tick(0)


def welcome(offset: int, incarnation: int = 1, heartbeat_ms: int = 100) -> bus.TypedRecord:
    return bus.WELCOME(
        incarnation=incarnation, image_offset=offset, heartbeat_ms=heartbeat_ms
    )  # fmt: skip


def delta(begin: int, *records: internal.TypedRecord, end: int | None = None) -> bus.TypedRecord:
    written = [internal.write(record) for record in records]
    end = begin + len(records) if end is None else end
    return bus.DELTA(begin_offset=begin, end_offset=end, records=written)


@pytest.fixture
def followed(tmp_path):
    made = Followed(tmp_path / "log")
    made.write(node(0), node(1))
    yield made
    made.reactor.close()


@pytest.fixture
def controller(followed):
    made = followed.begin()
    made.received(welcome(2))
    return made


def known(controller: RemoteController) -> list[int]:
    return sorted(controller.image.nodes)


def outcome(future: Future[Any]) -> list[Any]:
    came: list[Any] = []
    future.then(lambda value, fault: came.append(fault or value))
    return came


# -- the image -----------------------------------------------------------------------------------


def test_delta_is_applied_and_reported(followed, controller):
    controller.received(delta(2, node(2), node(3)))
    assert (known(controller), controller.offset) == ([0, 1, 2, 3], 4)
    assert followed.changes[-1] == 4


def test_known_records_of_a_delta_are_skipped(followed, controller):
    controller.received(delta(2, node(2)))
    for again in (delta(2, node(2)), delta(1, node(1), node(2)), delta(0, node(0))):
        controller.received(again)
    assert controller.offset == 3
    controller.received(delta(1, REMOVE_NODE(node_id=1), REMOVE_NODE(node_id=2), node(3)))
    assert (known(controller), controller.offset) == ([0, 1, 2, 3], 4)


def test_records_before_a_delta_are_read_from_the_log(followed, controller):
    followed.write(node(2))
    followed.roll()
    followed.write(node(3))
    controller.received(delta(3, node(3)))
    assert (known(controller), controller.offset) == ([0, 1, 2, 3], 4)


def test_log_is_read_up_to_the_announced_offset(followed, controller):
    """A new supervisor knows at least what was announced, but not what is still being written."""
    followed.write(node(2))
    followed.write(node(3))
    controller.received(welcome(3))
    assert controller.offset == 3


def test_welcome_below_the_known_offset_is_accepted(followed, controller):
    followed.write(node(2))
    controller.received(welcome(3))
    controller.received(welcome(2))
    assert controller.offset == 3


def test_supervisor_with_a_shorter_log_ends_the_worker(followed, controller):
    controller.received(delta(2, node(2)))
    with pytest.raises(Fatal, match="is shorter than before"):
        controller.received(welcome(2, incarnation=2))


def test_messages_of_an_older_supervisor_are_ignored(followed, controller):
    controller.received(welcome(2, incarnation=5))
    asked = outcome(controller.allocate_producer_ids(1))
    controller.received(welcome(0, incarnation=4))
    controller.received(welcome(9, incarnation=4))
    assert (asked, controller.offset) == ([], 2)


def test_delta_before_the_welcome_is_ignored(followed, controller):
    followed.write(node(2))
    controller.connection_changed(False)
    controller.connection_changed(True)
    controller.received(delta(2, node(2)))
    assert controller.offset == 2
    controller.received(welcome(3))
    assert known(controller) == [0, 1, 2]


@pytest.mark.parametrize(
    "lie",
    [
        delta(2, node(2), end=7),
        delta(2, node(2), end=2),
        delta(2, end=2),
        delta(-1, node(2), end=0),
        delta(2**63 - 2, node(2), end=-(2**63)),
        bus.DELTA(begin_offset=2**63 - 1, end_offset=-(2**63), records=[b""]),
        bus.HELLO(image_offset=7),
        bus.DESIRED_NODES(node_ids=[1], dedicated=[]),
    ],
)
def test_inconsistent_message_is_dropped(followed, controller, lie):
    controller.received(lie)
    assert (known(controller), controller.offset) == ([0, 1], 2)


@pytest.mark.parametrize(
    "lie",
    [
        delta(9, node(2)),
        welcome(9),
        bus.DELTA(begin_offset=2, end_offset=3, records=[b"\xff\xff"]),
        bus.DELTA(begin_offset=2, end_offset=3, records=[b""]),
    ],
)
def test_announced_records_missing_from_the_log_are_fatal(controller, lie):
    with pytest.raises(Fatal):
        controller.received(lie)


def test_undecodable_delta_is_read_from_the_log(followed, controller):
    followed.write(node(2))
    controller.received(bus.DELTA(begin_offset=2, end_offset=3, records=[b"\xff\xff"]))
    assert known(controller) == [0, 1, 2]


@pytest.mark.parametrize(
    "contradiction",
    [
        partition_record(b"?" * 16, 0, new_partition(1)),
        internal.REMOVE_TOPIC(topic_id=b"?" * 16),
        internal.CONFIG(resource_type=2, resource_name="?", name="a", value="b"),
    ],
)
def test_record_that_contradicts_the_image_ends_the_worker(followed, controller, contradiction):
    with pytest.raises(Fatal, match="contradicts"):
        controller.received(delta(2, node(2), contradiction))
    followed.write(node(2), contradiction)
    with pytest.raises(Refusal, match="contradicts"):
        followed.begin()


def test_duplicate_topic_record_ends_the_worker(controller):
    topic = TOPIC(name="a", topic_id=b"1" * 16)
    with pytest.raises(Fatal, match="contradicts"):
        controller.received(delta(2, topic, topic))


def test_producer_id_blocks_do_not_change_the_image(followed, controller):
    followed.write(PRODUCER_IDS_BLOCK(first_id=0, count=5, node_id=1))
    controller.received(welcome(3))
    assert controller.offset == 3


# -- the files -----------------------------------------------------------------------------------


def test_log_is_read_up_to_an_incomplete_batch(followed):
    followed.write(node(2), node(3))
    path = followed.directory / f"{0:020d}.log"
    whole = path.read_bytes()
    for end in range(len(whole) - 1, len(whole) - 40, -7):
        path.write_bytes(whole[:end])
        assert followed.begin().offset == 2
        followed.reactor.close()
    path.write_bytes(whole[:-3])
    controller = followed.begin()
    path.write_bytes(whole)
    controller.received(welcome(4))
    assert known(controller) == [0, 1, 2, 3]


def test_image_is_restored_from_snapshot_and_log(followed):
    machine = Controller()
    for record in (node(0), node(1)):
        machine.replay(record)
    write_snapshot(followed.directory / f"{2:020d}.checkpoint", machine.records(), now_ms=1)
    (followed.directory / f"{0:020d}.log").unlink()
    followed.roll()
    followed.write(node(2))
    assert known(followed.begin()) == [0, 1, 2]


def test_damaged_snapshot_is_skipped(followed):
    (followed.directory / f"{2:020d}.checkpoint").write_bytes(b"nothing of the kind")
    assert known(followed.begin()) == [0, 1]


def test_log_without_its_beginning_is_refused(followed):
    (followed.directory / f"{0:020d}.log").rename(followed.directory / f"{7:020d}.log")
    followed.reactor = Reactor(ManualClock())
    with pytest.raises(Refusal, match=r"begins at offset 7.*restore the data directory"):
        RemoteController(MetadataReader(followed.directory), followed.reactor, PEER).load()


# -- requests ------------------------------------------------------------------------------------


def test_only_hello_is_sent_before_the_welcome(followed):
    controller = followed.begin()
    controller.heartbeat()
    controller.forward(b"x", NOBODY, NOBODY)
    followed.pass_ms(5_000)
    assert followed.kinds() == ["Hello"]
    controller.received(welcome(2))
    assert followed.kinds()[1:] == ["SupportedFeatures", "RegisterNode", "Heartbeat", "Forward"]


def test_heartbeats_follow_the_interval_of_the_welcome(followed, controller):
    before = followed.kinds().count("Heartbeat")
    for _ in range(10):
        followed.pass_ms(100)
    assert followed.kinds().count("Heartbeat") == before + 10
    controller.received(welcome(2, heartbeat_ms=-5))
    followed.pass_ms(1)


def test_response_completes_its_own_request(followed, controller):
    future = [controller.forward(b"%d" % n, NOBODY, NOBODY) for n in range(3)]
    came = [outcome(each) for each in future]
    asked = {
        m.fields["frame"]: m.fields["request_id"] for m in followed.sent if "frame" in m.fields
    }
    for n in (2, 0, 1):
        request_id = asked[b"%d" % n]
        controller.received(answer(request_id, b"to %d" % n))
    assert came == [[b"to 0"], [b"to 1"], [b"to 2"]]


def test_forwarded_requests_are_bounded_by_their_bytes(followed, controller):
    frame = bytes(FORWARDED_SIZE_MAX // 2)
    first, second = (outcome(controller.forward(frame, NOBODY, NOBODY)) for _ in range(2))
    refused = outcome(controller.forward(b"x", NOBODY, NOBODY))
    assert isinstance(refused[0], errors.RequestTimedOut)
    controller.received(answer(followed.sent[-1].fields["request_id"], b"done"))
    assert second == [b"done"] and first == []
    waiting = outcome(controller.forward(frame, NOBODY, NOBODY))
    followed.pass_ms(CONTROLLER_TIMEOUT_MS)
    assert first and waiting
    large = outcome(controller.forward(bytes(FORWARDED_SIZE_MAX + 1), NOBODY, NOBODY))
    assert large == []


def answer(request_id: int, frame: bytes | None, error_code: int = 0) -> bus.TypedRecord:
    return bus.RESPONSE(
        request_id=request_id, error_code=error_code, error_message=None, frame=frame
    )  # fmt: skip


def ids(request_id: int, first_id: int, end_id: int) -> bus.TypedRecord:
    return bus.IDS(
        request_id=request_id, error_code=0, error_message=None, first_id=first_id, end_id=end_id
    )  # fmt: skip


def last_id(followed: Followed) -> int:
    return int(followed.sent[-1].fields["request_id"])


def test_unexpected_responses_are_dropped(followed, controller):
    came = outcome(controller.forward(b"x", NOBODY, NOBODY))
    for request_id in (-1, 0, 99, 2**63 - 1):
        controller.received(answer(request_id, b"y"))
        controller.received(ids(request_id, 0, 5))
    assert came == []
    request_id = last_id(followed)
    controller.received(ids(request_id, 0, 5))
    assert came == [], "ids are no answer to a request"
    controller.received(answer(request_id, b"y"))
    controller.received(answer(request_id, b"z"))
    assert came == [b"y"]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ((None, 0), errors.UnknownServerError),
        ((b"", 0), errors.UnknownServerError),
        ((None, 42), errors.InvalidRequest),
        ((b"x", 12_345), errors.UnknownServerError),
    ],
)
def test_response_without_frame_is_an_error(followed, controller, said, fault):
    came = outcome(controller.forward(b"x", NOBODY, NOBODY))
    controller.received(answer(last_id(followed), *said))
    assert [type(each) for each in came] == [fault]


@pytest.mark.parametrize(("first_id", "end_id"), [(0, 0), (5, 4), (-3, 2), (-1, -1)])
def test_empty_or_negative_id_block_is_an_error(followed, controller, first_id, end_id):
    came = outcome(controller.allocate_producer_ids(1))
    controller.received(ids(last_id(followed), first_id, end_id))
    assert [type(each) for each in came] == [errors.UnknownServerError]


def test_undecodable_response_is_an_error(followed, controller):
    future = controller.request(METADATA, {"topics": []}, client_id=None, timeout_ms=100)
    came = outcome(future)
    controller.received(answer(last_id(followed), b"\xff" * 9))
    assert len(came) == 1
    assert isinstance(came[0], errors.KafkaError)


def test_request_without_response_times_out(followed, controller):
    came = outcome(controller.forward(b"x", NOBODY, NOBODY))
    request_id = last_id(followed)
    followed.pass_ms(CONTROLLER_TIMEOUT_MS - 1)
    assert came == []
    followed.pass_ms(1)
    assert [type(each) for each in came] == [errors.RequestTimedOut]
    controller.received(answer(request_id, b"late"))


def test_request_to_a_full_bus_fails_at_once(followed, controller):
    followed.takes = False
    came = outcome(controller.forward(b"x", NOBODY, NOBODY))
    assert [type(each) for each in came] == [errors.RequestTimedOut]


def test_supervisor_change_fails_only_requests_sent_to_the_old_one(followed, controller):
    sent = outcome(controller.forward(b"sent", NOBODY, NOBODY))
    controller.connection_changed(False)
    kept = outcome(controller.forward(b"kept", NOBODY, NOBODY))
    controller.connection_changed(True)
    controller.received(welcome(2, incarnation=2))
    assert [type(each) for each in sent] == [errors.RequestTimedOut]
    assert (kept, followed.sent[-1].fields["frame"]) == ([], b"kept")


def markers(incarnation: int, request_id: int = 9) -> bus.TypedRecord:
    targets = [
        MarkerTargets(TransactionMarker(7, 3, True, 5, 2), [(b"a" * 16, 0), (b"a" * 16, 2)]),
        MarkerTargets(TransactionMarker(8, 0, False, 5, 0), [(b"b" * 16, 1)]),
    ]
    return bus.read_frame(bus.write_frame(write_markers(request_id, incarnation, targets)))


def test_markers_are_written_and_answered_once_they_are_committed(followed):
    controller = followed.begin()
    controller.received(welcome(2, incarnation=4))
    controller.received(markers(4))
    ((targets, codes),) = followed.markers
    assert targets == [
        (TransactionMarker(7, 3, True, 5, 2), [(b"a" * 16, 0), (b"a" * 16, 2)]),
        (TransactionMarker(8, 0, False, 5, 0), [(b"b" * 16, 1)]),
    ]
    assert "MarkersWritten" not in followed.kinds()
    codes.resolve([0, 6, 0])
    assert followed.sent[-1].fields == {
        "request_id": 9, "incarnation": 4, "error_codes": [0, 6, 0],
    }  # fmt: skip


def test_markers_of_an_older_request_are_dropped(followed):
    controller = followed.begin()
    controller.received(welcome(2, incarnation=4))
    for request_id in (9, 9, 8, 10):
        controller.received(markers(4, request_id))
    assert len(followed.markers) == 2
    controller.received(welcome(2, incarnation=5))
    controller.received(markers(5, 1))
    assert len(followed.markers) == 3


@pytest.mark.parametrize("incarnation", [3, 5])
def test_markers_of_another_supervisor_are_dropped(followed, incarnation):
    controller = followed.begin()
    controller.received(markers(4))  # before the Welcome
    controller.received(welcome(2, incarnation=4))
    controller.received(markers(incarnation))
    assert followed.markers == []


def test_share_progress_is_sent_to_the_supervisor_that_requests_it(followed):
    controller = followed.begin()
    places = [("g", 0), ("g", 3), ("h", 9)]
    keys = [SharePartitionKey(group_id, b"a" * 16, index) for group_id, index in places]
    query = find_share_progress(7, 4, keys)
    controller.received(query)  # before the Welcome
    assert "ShareProgress" not in followed.kinds()
    controller.received(welcome(2, incarnation=4))
    controller.received(query)
    sent = followed.sent[-1].fields
    assert (sent["request_id"], sent["incarnation"]) == (7, 4)
    assert read_progress(sent) == [ShareProgress(index, 2, (1 << 15) - 1) for index in (0, 3, 9)]


# -- batches -------------------------------------------------------------------------------------


def test_batch_for_this_node_gets_its_response_once_committed(followed):
    controller = followed.begin()
    message = bus.APPEND_BATCH(
        request_id=7, incarnation=4, topic_id=b"a" * 16, partition=3, batch=b"batch"
    )
    controller.received(message)  # before the Welcome
    assert followed.appends == []
    controller.received(welcome(2, incarnation=4))
    controller.received(message)
    ((appended, done),) = followed.appends
    assert appended == (b"a" * 16, 3, b"batch")
    assert "BatchAppended" not in followed.kinds()
    done.fail(errors.NotLeaderOrFollower("moved"))
    assert followed.sent[-1].fields == {
        "request_id": 7, "incarnation": 4, "error_code": 6, "error_message": "moved",
    }  # fmt: skip


@pytest.mark.parametrize("code", [0, 6])
def test_batch_for_another_node_is_sent_to_the_supervisor(followed, controller, code):
    came = outcome(controller.append_batch(b"a" * 16, 3, b"batch"))
    (message,) = [sent for sent in followed.sent if sent.kind is bus.APPEND_BATCH]
    assert (message.fields["partition"], message.fields["batch"]) == (3, b"batch")
    controller.received(
        bus.BATCH_APPENDED(
            request_id=last_id(followed), incarnation=-1, error_code=code, error_message=None
        )
    )
    assert [getattr(each, "code", None) for each in came] == [code or None]


# -- transactions --------------------------------------------------------------------------------

VERIFICATIONS = [
    VerificationRequest("a", ProducerEpoch(7, 3), True, [("t", 0), ("u", 5)]),
    VerificationRequest("b", ProducerEpoch(8, 0), False, [("t", 1)]),
]


def answered(request_id: int, codes: list[list[int]], error_code: int = 0) -> bus.TypedRecord:
    return bus.TRANSACTIONS_VERIFIED(
        request_id=request_id, error_code=error_code, error_message=None,
        transactions=[{"error_codes": each} for each in codes],
    )  # fmt: skip


def test_verifications_are_one_message_and_have_its_codes(followed, controller):
    came = outcome(controller.verify_transactions(VERIFICATIONS))
    (message,) = [sent for sent in followed.sent if sent.kind is bus.VERIFY_TRANSACTIONS]
    assert [each["transactional_id"] for each in message.fields["transactions"]] == ["a", "b"]
    controller.received(answered(last_id(followed), [[0, 51], [120]]))
    assert came == [[[0, 51], [120]]]


@pytest.mark.parametrize("codes", [[], [[0, 0]], [[0], [0]], [[0, 0], [0], [0]]])
def test_verification_response_that_does_not_fit_is_an_error(followed, controller, codes):
    came = outcome(controller.verify_transactions(VERIFICATIONS))
    controller.received(answered(last_id(followed), codes))
    assert [type(each) for each in came] == [errors.UnknownServerError]


def test_verifications_wait_for_the_supervisor_for_a_time(followed, controller):
    controller.connection_changed(False)
    came = outcome(controller.verify_transactions(VERIFICATIONS))
    followed.pass_ms(TRANSACTIONS_TIMEOUT_MS - 1)
    assert came == []
    followed.pass_ms(1)
    assert [type(each) for each in came] == [errors.RequestTimedOut]


def test_verifications_sent_to_a_dead_supervisor_fail(followed, controller):
    came = outcome(controller.verify_transactions(VERIFICATIONS))
    controller.received(welcome(2, incarnation=9))
    assert [type(each) for each in came] == [errors.RequestTimedOut]
