"""MarkerWriter: markers in the logs of a real node, their commit, and their errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalite import errors
from kafkalite.broker.replica.marker_writer import COORDINATOR_WAIT_MS, MarkerTargets
from kafkalite.records.control import TransactionMarker
from tests.handlers.conftest import InProcess

MARKER = TransactionMarker(7, 0, True, 0)


@pytest.fixture
def flushing(tmp_path) -> Iterator[InProcess]:
    """Yield a node whose topic has to be flushed."""
    node = InProcess(tmp_path / "data", durability="fsync")
    node.create("a", 2)
    yield node
    node.close()


def write(node: InProcess, *targets: MarkerTargets) -> list[int]:
    codes = node.node.marker_writer.write(targets)
    answered: list[list[int]] = []
    codes.then(lambda value, _: answered.append(value or []))
    node.until(lambda: answered)
    return answered[0]


def leader(node: InProcess, index: int):
    return node.node.replicas.leader("a", index)


def test_markers_are_answered_in_order_once_they_are_committed(flushing):
    codes = write(
        flushing,
        MarkerTargets(MARKER, [("a", 1), ("a", 0), ("a", 2)]),
        MarkerTargets(MARKER._replace(producer_id=-1), [("a", 0)]),
        MarkerTargets(MARKER._replace(producer_id=8), [(b"x" * 16, 0), ("b", 0), ("a", 0)]),
    )
    unknown = errors.UnknownTopicOrPartition.code
    assert codes == [
        0, 0, unknown, errors.UnknownServerError.code, errors.UnknownTopicId.code, unknown, 0,
    ]  # fmt: skip
    assert [leader(flushing, index).high_watermark for index in (0, 1)] == [2, 1]


def test_marker_that_is_not_committed_in_time_has_timed_out(flushing, monkeypatch):
    monkeypatch.setattr(leader(flushing, 0).log, "flush_begin", lambda: None)
    codes = flushing.node.marker_writer.write([MarkerTargets(MARKER, [("a", 0), ("a", 1)])])
    flushing.until(lambda: leader(flushing, 1).high_watermark == 1)
    assert not codes.settled
    flushing.clock.advance(COORDINATOR_WAIT_MS)
    flushing.until(lambda: codes.settled)
    codes.then(lambda value, _: check_codes(value))
    assert leader(flushing, 0).log.end_offset == 1


def check_codes(codes) -> None:
    assert codes == [errors.RequestTimedOut.code, 0]


def test_marker_for_a_failed_partition_has_its_error(flushing):
    leader(flushing, 0).error = errors.KafkaStorageError("failed")
    codes = write(flushing, MarkerTargets(MARKER, [("a", 0), ("a", 1)]))
    assert codes == [errors.KafkaStorageError.code, 0]


def test_markers_committed_before_the_last_one_is_appended_need_no_further_change(
    flushing, monkeypatch
):
    monkeypatch.setattr("kafkalite.broker.stepping.STEP_MS", -1)  # each marker has its own tick
    codes = flushing.node.marker_writer.write([MarkerTargets(MARKER, [("a", 0), ("b", 0)])])
    flushing.until(lambda: leader(flushing, 0).high_watermark == 1)
    assert not codes.settled
    for _ in range(5):
        flushing.clock.advance(1)
        flushing.reactor.tick(0)
    assert codes.settled


def test_requests_are_handled_in_the_order_of_their_arrival(flushing, monkeypatch):
    monkeypatch.setattr("kafkalite.broker.stepping.STEP_MS", -1)
    done: list[int] = []
    for number in range(3):
        targets = [MarkerTargets(MARKER._replace(producer_id=number), [("a", 0), ("a", 1)])]
        codes = flushing.node.marker_writer.write(targets)
        codes.then(lambda _, __, number=number: done.append(number))
    for _ in range(20):
        flushing.clock.advance(1)
        flushing.reactor.tick(0)
    flushing.until(lambda: len(done) == 3)
    assert done == [0, 1, 2]
    producers = [each.producer_id for each in leader(flushing, 0).log.producers]
    assert producers == [0, 1, 2]


def test_first_request_of_a_tick_is_handled_at_once(flushing):
    flushing.reactor.tick(0)
    for number in range(2):
        targets = [MarkerTargets(MARKER._replace(producer_id=number), [("a", 0)])]
        flushing.node.marker_writer.write(targets)
    assert leader(flushing, 0).log.end_offset == 1
    flushing.until(lambda: leader(flushing, 0).high_watermark == 2)


def test_unexpected_error_fails_only_its_request(flushing, monkeypatch):
    append = flushing.node.replicas.append_marker

    def fail(partition, marker):
        if marker.producer_id == 9:
            raise ValueError("unexpected")
        return append(partition, marker)

    monkeypatch.setattr(flushing.node.replicas, "append_marker", fail)
    first = flushing.node.marker_writer.write(
        [MarkerTargets(MARKER._replace(producer_id=9), [("a", 0)])]
    )
    assert write(flushing, MarkerTargets(MARKER, [("a", 0)])) == [0]
    outcome = []
    first.then(lambda _, error: outcome.append(error))
    assert isinstance(outcome[0], errors.UnknownServerError)
