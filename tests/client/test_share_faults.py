"""Share consumers against a scripted broker: sessions, lost leaders, and invalid responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkalite.client.share.share_consumer import ShareConsumer
from kafkalite.errors import (
    CorruptMessage,
    GroupAuthorizationFailed,
    InvalidRecordState,
    InvalidShareSessionEpoch,
    NetworkException,
    NotLeaderOrFollower,
    ShareSessionNotFound,
    TopicAuthorizationFailed,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.cluster import API_VERSIONS, METADATA
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.share import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
)
from kafkalite.records.batch import Record, build
from tests.client.consuming import TIMEOUT_S, until
from tests.client.scripted_broker import CloseConnection, ScriptedBroker, metadata

TOPIC_ID = b"t".ljust(16, b".")
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "reconnect_backoff_ms": 1}
PARTITION = ("t", 0)


def records_at(offset: int, *rows: bytes) -> bytes:
    """Return one batch with these values, from this offset on."""
    built = bytearray(build([Record(timestamp=0, value=row) for row in rows]))
    built[:8] = offset.to_bytes(8, "big")
    return bytes(built)


def fetched(records: bytes, *ranges: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    """Return the response to a fetch: records and acquired ranges of the partition."""
    acquired = [
        {"first_offset": first, "last_offset": last, "delivery_count": counts[0] if counts else 1}
        for first, last, *counts in ranges
    ]
    entry = {"partition_index": 0, "records": records, "acquired_records": acquired}
    topics = [{"topic_id": TOPIC_ID, "partitions": [entry | fields]}]
    return {"acquisition_lock_timeout_ms": 30_000, "responses": topics}


NOTHING: dict[str, Any] = {"acquisition_lock_timeout_ms": 30_000}
TWO = records_at(0, b"a", b"b")


class ShareScript:
    """A broker with one member; the responses to its fetches and acknowledgements are scripted.

    After those that are scripted, fetches get nothing and acknowledgements succeed.
    """

    def __init__(self) -> None:
        self.fetches: list[Any] = []
        self.acknowledgements: list[Any] = []
        self.sent: list[tuple[int, int, list[tuple[int, int, list[int]]]]] = []
        """API key, session epoch and acknowledged batches of each request."""
        self.versions = (1, 2)
        self.broker = ScriptedBroker({
            FIND_COORDINATOR: lambda request: {"coordinators": [
                {"key": "g", "node_id": 0, "host": "127.0.0.1", "port": self.broker.port}
            ]},
            METADATA: lambda request: metadata({0: self.broker.port}, {"t": {0: (0, 1)}}),
            SHARE_GROUP_HEARTBEAT: self._heartbeat,
            SHARE_FETCH: self._fetch,
            SHARE_ACKNOWLEDGE: self._acknowledge,
        })  # fmt: skip
        self.assigned = [{"topic_id": TOPIC_ID, "partitions": [0]}]

    def consumer(self, **options: Any) -> ShareConsumer:
        return ShareConsumer(
            self.broker.address, topics="t", group="g", fetch_max_wait_ms=20, **QUICK, **options
        )

    def _heartbeat(self, request: Any) -> dict[str, Any]:
        return {
            "member_id": request.body.member_id,
            "member_epoch": max(0, request.body.member_epoch) or 1,
            "heartbeat_interval_ms": 1000,
            "assignment": {"topic_partitions": self.assigned},
        }

    def _note(self, request: Any) -> dict[tuple[bytes, int], bool]:
        """Note what a request acknowledges; return its partitions."""
        body = request.body
        entries = {
            (topic.topic_id, entry.partition_index): entry
            for topic in body.topics
            for entry in topic.partitions
        }
        batches = [
            (batch.first_offset, batch.last_offset, list(batch.acknowledge_types))
            for entry in entries.values()
            for batch in entry.acknowledgement_batches
        ]
        self.sent.append((request.api.key, body.share_session_epoch, batches))
        return {key: bool(entry.acknowledgement_batches) for key, entry in entries.items()}

    def _fetch(self, request: Any) -> Any:
        partitions = self._note(request)
        response = self.fetches.pop(0) if self.fetches else NOTHING
        if callable(response):
            response = response()
        if response is NOTHING and any(partitions.values()):
            return fetched(b"")
        return response

    def _acknowledge(self, request: Any) -> Any:
        keys = self._note(request)
        response = self.acknowledgements.pop(0) if self.acknowledgements else None
        if callable(response):
            response = response()
        if isinstance(response, dict):
            return response
        entries = [
            {"partition_index": index, "error_code": response or 0} for _, index in keys
        ]
        topics = [{"topic_id": TOPIC_ID, "partitions": entries}] if entries else []
        return {"acquisition_lock_timeout_ms": 30_000, "responses": topics}

    @property
    def acknowledged(self) -> list[tuple[int, int, list[int]]]:
        return [batch for _, _, batches in self.sent for batch in batches]


@pytest.fixture
def script() -> Iterator[ShareScript]:
    found = ShareScript()
    with found.broker:
        yield found


def closes() -> None:
    raise CloseConnection


# Sessions.


def test_session_epochs_count_up_and_end_with_minus_one(script):
    script.fetches += [fetched(TWO, (0, 1)), NOTHING]
    with script.consumer() as consumer:
        assert [m.value for m in consumer.consume(2, TIMEOUT_S)] == [b"a", b"b"]
        until(lambda: consumer.poll(0.01) is None and len(script.sent) > 1, "the second fetch")
    epochs = [epoch for _, epoch, _ in script.sent]
    assert epochs[:-1] == list(range(len(epochs) - 1))
    assert epochs[-1] == -1
    assert script.sent[1] == (SHARE_FETCH.key, 1, [(0, 1, [1])]), "they ride on the next fetch"


@pytest.mark.parametrize("error", [ShareSessionNotFound, InvalidShareSessionEpoch])
def test_lost_session_is_opened_again_and_its_acknowledgements_fail(script, error):
    again = records_at(0, b"a", b"b")
    script.fetches += [fetched(TWO, (0, 1)), {"error_code": error.code}, fetched(again, (0, 1, 2))]
    outcomes = []
    with script.consumer(
        share_acknowledgement_mode="explicit", on_acknowledge=lambda *each: outcomes.append(each)
    ) as consumer:
        first, second = consumer.consume(2, TIMEOUT_S)
        first.accept()
        third, fourth = consumer.consume(2, TIMEOUT_S)
        assert third.delivery_count == 2
        second.accept()  # of the session that is lost
        third.accept()
        found = consumer.commit(TIMEOUT_S)
    assert isinstance(found["t", 0], error)
    assert [(ranges, type(each)) for _, ranges, each in outcomes[:2]] == [
        ([range(1)], error), ([range(1, 2)], error),
    ]  # fmt: skip
    assert script.sent[2][1] == 0, "the session is opened again"
    assert script.acknowledged == [(0, 0, [1]), (0, 0, [1])], "the second was never sent"


def test_lost_connection_fails_what_was_not_confirmed(script):
    script.fetches += [fetched(TWO, (0, 1)), closes, fetched(TWO, (0, 1, 2))]
    with script.consumer() as consumer:
        consumer.consume(2, TIMEOUT_S)
        assert [m.delivery_count for m in consumer.consume(2, TIMEOUT_S)] == [2, 2]
        assert isinstance(consumer.commit(TIMEOUT_S)["t", 0], NetworkException)


def test_moved_leader_fails_the_acknowledgements_of_its_partition(script):
    moved = fetched(
        b"", error_code=NotLeaderOrFollower.code, acknowledge_error_code=NotLeaderOrFollower.code,
        current_leader={"leader_id": 0, "leader_epoch": 2},
    )  # fmt: skip
    script.fetches += [fetched(TWO, (0, 1)), moved, NOTHING, fetched(TWO, (0, 1, 2))]
    with script.consumer() as consumer:
        consumer.consume(2, TIMEOUT_S)
        assert [m.delivery_count for m in consumer.consume(2, TIMEOUT_S)] == [2, 2]
        assert isinstance(consumer.commit(TIMEOUT_S)["t", 0], NotLeaderOrFollower)


# Acknowledgements.


def test_acknowledgements_are_sent_alone_while_there_are_records(script):
    script.fetches += [fetched(TWO, (0, 1))]
    with script.consumer() as consumer:
        consumer.poll(TIMEOUT_S)
        assert consumer.commit(TIMEOUT_S) == {PARTITION: None}
        assert script.sent[1] == (SHARE_ACKNOWLEDGE.key, 1, [(0, 0, [1])])


def test_refused_acknowledgement_is_the_partitions_outcome(script):
    script.fetches += [fetched(TWO, (0, 1))]
    script.acknowledgements += [InvalidRecordState.code]
    with script.consumer() as consumer:
        consumer.consume(2, TIMEOUT_S)
        assert isinstance(consumer.commit(TIMEOUT_S)["t", 0], InvalidRecordState)


def test_response_without_the_result_is_an_error(script):
    script.fetches += [fetched(TWO, (0, 1))]
    script.acknowledgements += [{"acquisition_lock_timeout_ms": 30_000, "responses": []}]
    with script.consumer() as consumer:
        consumer.consume(2, TIMEOUT_S)
        assert consumer.commit(TIMEOUT_S)["t", 0] is not None


def test_close_sends_what_was_not_sent(script):
    script.fetches += [fetched(TWO, (0, 1))]
    with script.consumer() as consumer:
        consumer.consume(2, TIMEOUT_S)
    assert script.sent[-1] == (SHARE_ACKNOWLEDGE.key, -1, [(0, 1, [1])])


def test_renewal_is_refused_by_an_older_broker(script):
    script.broker.versions[SHARE_FETCH] = script.broker.versions[SHARE_ACKNOWLEDGE] = (1, 1)
    script.fetches += [fetched(TWO, (0, 1))]
    with script.consumer() as consumer:
        first = consumer.poll(TIMEOUT_S)
        with pytest.raises(UnsupportedVersion):
            consumer.renew(first)


def test_callback_that_raises_loses_no_message(script):
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    script.fetches += [fetched(TWO, (0, 1)), fetched(records_at(2, b"c"), (2, 2)) | {}]
    script.fetches[1]["responses"][0]["partitions"][0]["acknowledge_error_code"] = 0
    consumer = script.consumer(on_acknowledge=fails)
    assert len(consumer.consume(2, TIMEOUT_S)) == 2
    with pytest.raises(ZeroDivisionError):
        consumer.poll(TIMEOUT_S)
    assert consumer.poll(TIMEOUT_S).value == b"c"
    with pytest.raises(ZeroDivisionError):
        consumer.close()


# Records.


def test_only_acquired_offsets_are_delivered(script):
    script.fetches += [fetched(records_at(0, b"a", b"b", b"c", b"d"), (1, 1), (3, 3, 4))]
    with script.consumer() as consumer:
        found = consumer.consume(10, TIMEOUT_S)
        assert [(m.value, m.delivery_count) for m in found] == [(b"b", 1), (b"d", 4)]
    assert script.acknowledged == [(1, 1, [1]), (3, 3, [1])]


def test_acquired_offsets_without_a_record_are_gaps(script):
    both = records_at(0, b"a") + records_at(5, b"f")
    script.fetches += [fetched(both, (0, 5))]
    with script.consumer() as consumer:
        assert [m.offset for m in consumer.consume(10, TIMEOUT_S)] == [0, 5]
    assert script.acknowledged == [(0, 0, [1]), (1, 4, [0]), (5, 5, [1])]


def test_acquired_offsets_after_the_records_are_released(script):
    script.fetches += [fetched(TWO, (0, 1 << 62))]
    with script.consumer() as consumer:
        assert len(consumer.consume(10, TIMEOUT_S)) == 2
        assert consumer.poll(0.05) is None
    assert script.acknowledged == [(0, 1, [1]), (2, 1 << 62, [2])]


def test_damaged_batch_is_released_and_raised(script):
    damaged = bytearray(records_at(2, b"c"))
    damaged[-1] ^= 1
    script.fetches += [fetched(TWO + damaged, (0, 2)), fetched(records_at(2, b"c"), (2, 2, 2))]
    with script.consumer() as consumer:
        assert len(consumer.consume(10, TIMEOUT_S)) == 2
        with pytest.raises(CorruptMessage, match="t-0"):
            consumer.poll(TIMEOUT_S)
        assert consumer.poll(TIMEOUT_S).delivery_count == 2
    assert (2, 2, [2]) in script.acknowledged


def test_records_are_released_when_their_locks_are_about_to_end(script):
    def late() -> dict[str, Any]:
        time.sleep(0.002)  # the lock of 1 ms began with the request
        return fetched(TWO, (0, 1)) | {"acquisition_lock_timeout_ms": 1}

    script.fetches += [late, fetched(TWO, (0, 1, 2))]
    with script.consumer() as consumer:
        assert [m.delivery_count for m in consumer.consume(2, TIMEOUT_S)] == [2, 2]


def test_revoked_partition_is_not_delivered_any_more(script):
    script.fetches += [fetched(TWO, (0, 1))]
    with script.consumer() as consumer:
        assert consumer.poll(TIMEOUT_S).offset == 0
        script.assigned = []
        consumer.subscribe(["t", "u"])
        while consumer.assignment:
            message = consumer.poll(0.02)
            assert message is None or message.offset == 1
        script.fetches += [fetched(TWO, (0, 1))]
        assert consumer.poll(0.05) is None


INVALID: dict[str, Callable[[], dict[str, Any]]] = {
    "descending ranges": lambda: fetched(TWO, (1, 1), (0, 0)),
    "overlapping ranges": lambda: fetched(TWO, (0, 1), (1, 1)),
    "range that ends before it begins": lambda: fetched(TWO, (1, 0)),
    "negative offset": lambda: fetched(TWO, (-1, 1)),
    "no delivery": lambda: fetched(TWO, (0, 1, 0)),
    "no lock": lambda: fetched(TWO, (0, 1)) | {"acquisition_lock_timeout_ms": 0},
    "partition that was not requested": lambda: fetched(TWO, (0, 1), partition_index=7),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_response_closes_the_connection(script, what):
    script.fetches += [INVALID[what](), fetched(TWO, (0, 1))]
    with script.consumer() as consumer:
        assert [m.value for m in consumer.consume(2, TIMEOUT_S)] == [b"a", b"b"]
    assert [epoch for key, epoch, _ in script.sent if key == SHARE_FETCH.key][:2] == [0, 0]


# Errors.


@pytest.mark.parametrize("is_of_partition", [True, False])
def test_error_that_is_not_retriable_is_raised(script, is_of_partition):
    if is_of_partition:
        error: Any = TopicAuthorizationFailed
        script.fetches += [fetched(b"", error_code=error.code)]
    else:
        error = GroupAuthorizationFailed
        script.fetches += [{"error_code": error.code}]
    script.fetches += [fetched(TWO, (0, 1))]
    with script.consumer() as consumer:
        with pytest.raises(error):
            consumer.poll(TIMEOUT_S)
        assert consumer.poll(TIMEOUT_S).value == b"a"


def test_broker_without_share_groups_is_an_error():
    with ScriptedBroker({
        FIND_COORDINATOR: lambda request: {"coordinators": [
            {"key": "g", "node_id": 0, "host": "127.0.0.1", "port": there.port}
        ]},
        METADATA: lambda request: metadata({0: there.port}, {"t": {0: (0, 1)}}),
    }) as there:  # fmt: skip
        assert API_VERSIONS in there.versions
        with (
            ShareConsumer(there.address, topics="t", group="g", **QUICK) as consumer,
            pytest.raises(UnsupportedVersion, match="ShareGroupHeartbeat"),
        ):
            consumer.poll(TIMEOUT_S)
