"""The sender against a model broker with faults: each record is written once and in order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.client.net.topology import PartitionMetadata, TopicMetadata
from kafkalite.client.producer import column_sender
from kafkalite.client.producer.arrow_columns import columns_of
from kafkalite.client.producer.column_batches import PartitionRows
from kafkalite.client.producer.partition_queue import (
    NO_SEQUENCE,
    SEQUENCES,
    max_sequence,
    sequence_after,
)
from kafkalite.errors import (
    InvalidRecord,
    MessageTooLarge,
    NetworkException,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    UnknownProducerId,
    UnknownTopicId,
)
from kafkalite.ids import NO_ID
from tests.simulation.producer import NODE, Harness, ListLane, ModelBroker

PASSING = (NotLeaderOrFollower.code, RequestTimedOut.code, NotEnoughReplicasAfterAppend.code)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    made.begin()
    yield made
    made.close()


def gather(harness: Harness, count: int, start: int = 0) -> list[bytes]:
    values = [b"%06d" % number for number in range(start, start + count)]
    for value in values:
        harness.gather(value)
    return values


def test_batches_are_sent_in_order_up_to_the_in_flight_limit(harness):
    gather(harness, 100)
    harness.push()
    assert len(harness.transport.frames) == harness.queue.in_flight_max == 5
    harness.serve()
    harness.hear()
    assert len(harness.transport.frames) == 5
    harness.finish()
    assert harness.log == [b"%06d" % number for number in range(100)]


def test_lost_transport_loses_and_duplicates_no_record(harness):
    values = gather(harness, 100)
    harness.push()
    harness.serve()
    harness.serve(has_responded=False)
    harness.lose()
    harness.finish()
    assert harness.log == values


def test_sequences_are_kept_after_a_lost_transport(harness):
    gather(harness, 30)
    harness.push()
    before = [(batch.sequence, batch.identity) for batch in harness.queue.batches[:5]]
    harness.lose()
    assert [(b.sequence, b.identity) for b in harness.queue.batches[:5]] == before


def test_sequence_of_a_rejected_batch_is_used_by_the_next(harness):
    values = gather(harness, 60)
    harness.push()
    identity = harness.state.identity
    first = harness.queue.batches[0]
    harness.serve(InvalidRecord.code, written=False)
    harness.hear()
    assert isinstance(first.error, InvalidRecord)
    harness.finish()
    assert harness.log == values[first.count :]
    assert harness.state.identity == identity, "no other identity was needed"


def test_batches_behind_a_moved_leader_are_resent_in_order(harness):
    values = gather(harness, 60)
    harness.push()
    harness.serve(NotLeaderOrFollower.code, written=False)
    for _ in range(4):
        harness.serve()
    harness.hear()
    assert harness.queue.in_flight == 5
    harness.finish()
    assert harness.log == values


def test_lost_producer_state_leads_to_a_new_producer_id(harness):
    values = gather(harness, 30)
    harness.finish()
    identity = harness.state.identity
    # Its producer state is older than the batches it acknowledged.
    harness.broker.producers.clear()
    harness.broker.producers.replay(0, 0, 0, 1, identity.producer_id, identity.epoch, 7_000)
    values += gather(harness, 30, start=30)
    harness.finish()
    assert harness.log == values
    assert harness.state.identity != identity


def test_unknown_producer_id_leads_to_a_new_producer_id(harness):
    values = gather(harness, 30)
    harness.push()
    identity = harness.state.identity
    harness.serve(UnknownProducerId.code, written=False)
    harness.hear()
    harness.finish()
    assert harness.log == values
    assert harness.state.identity != identity


def test_batch_too_large_for_the_topic_is_split(harness):
    values = gather(harness, 40)
    harness.push()
    first = harness.queue.batches[0]
    assert first.count > 2
    harness.serve(MessageTooLarge.code, written=False)
    harness.hear()
    harness.finish()
    assert harness.log == values
    assert first.done and first.error is None
    places = [first.part_of(place) for place in range(first.count)]
    offsets = [part.base_offset + place - begin for place, (begin, part) in enumerate(places)]
    assert offsets == list(range(1, first.count + 1))


def test_split_batches_are_split_again(harness):
    values = gather(harness, 8)
    harness.push()
    for _ in range(3):
        while harness.serve(MessageTooLarge.code, written=False):
            pass
        harness.hear()
    harness.finish()
    assert harness.log == values


def test_single_record_too_large_fails(harness):
    harness.gather(b"one")
    harness.push()
    harness.serve(MessageTooLarge.code, written=False)
    harness.hear()
    assert isinstance(harness.batches[0].error, MessageTooLarge)


def test_batch_expired_in_flight_leads_to_a_new_producer_id(harness):
    gather(harness, 60)
    harness.push()
    identity = harness.state.identity
    first = harness.queue.batches[0]
    fail = harness.state.fail
    harness.sender.locked(lambda: fail(first, RequestTimedOut("late"), unwritten=False))
    harness.finish()
    assert harness.state.identity != identity
    assert len(set(harness.log)) == len(harness.log)
    written = [value for value, batch in harness.sent if batch.error is None]
    assert [value for value in harness.log if value in written] == written


def test_batches_wait_for_room_in_a_full_transport(harness):
    harness.transport.frames_max = 2
    values = gather(harness, 60)
    harness.push()
    assert len(harness.transport.frames) == 2 and harness.transport.full
    harness.finish()
    assert harness.log == values


def test_interrupted_section_loses_no_record(harness):
    values = gather(harness, 60)
    harness.push()
    harness.serve(has_responded=False)

    def interrupted() -> None:
        harness.queue.in_flight = 3
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.sender.locked(interrupted)
    harness.sender.locked(lambda: None)
    assert harness.queue.in_flight == 0
    assert harness.accumulator.memory_left == harness.accumulator.memory_size - sum(
        batch.memory_size for batch in harness.queue.batches
    )
    harness.node.ring = harness.transport = ListLane()
    harness.finish()
    assert harness.log == values


@pytest.mark.parametrize("change", ["longer", "lying", "too large for the topic"])
def test_columns_changed_during_the_send_fail_alone(harness, change, monkeypatch):
    monkeypatch.setattr(column_sender, "GATHERED_SIZE_MAX", 0)  # few rows are sent like many
    offsets = np.array([0, 2, 4, 6], np.int32)
    value = pa.Array.from_buffers(
        pa.binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcdefgh")]
    )
    (columns,) = columns_of(pa.table({"value": value}))
    pieces = []
    harness.columns.send(PartitionRows(harness.queue, columns, None, 0, 3), 1, 0, 1.0, pieces)
    (batch,) = (piece.batch for piece in pieces)
    offsets[3] = -5 if change == "lying" else 8
    if change == "too large for the topic":
        harness.serve(MessageTooLarge.code, written=False)
    else:
        harness.lose()
    values = gather(harness, 20)
    harness.finish()
    assert isinstance(batch.error, InvalidRecord) and "columns" in str(batch.error)
    assert harness.log == values
    assert harness.accumulator.memory_left == harness.accumulator.memory_size


def test_small_columns_changed_after_measuring_are_rejected(harness):
    offsets = np.array([0, 2, 4, 6], np.int32)
    content = pa.py_buffer(bytes(1 << 20))
    value = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(offsets), content])
    (columns,) = columns_of(pa.table({"value": value}))
    offsets[3] = 1 << 20
    pieces = []
    with pytest.raises(InvalidRecord, match="columns"):
        harness.columns.send(PartitionRows(harness.queue, columns, None, 0, 3), 1, 0, 1.0, pieces)
    assert sum(piece.row_count for piece in pieces) == 2
    values = gather(harness, 20)
    harness.finish()
    assert harness.log == [bytes(2), bytes(2), *values]


def test_buffer_memory_is_released_completely(harness):
    gather(harness, 500)
    assert harness.accumulator.memory_left < harness.accumulator.memory_size
    harness.finish()
    assert harness.accumulator.memory_left == harness.accumulator.memory_size


def test_sequence_wraps_after_the_maximum(harness):
    queue = harness.queue
    last = SEQUENCES - 10
    queue.acknowledged_sequence = queue.next_sequence = last
    identity = harness.state.identity
    harness.broker.producers.replay(0, 0, 0, 1, identity.producer_id, 0, last - 1)
    values = gather(harness, 60)
    harness.push()
    harness.serve(has_responded=False)
    harness.lose()
    harness.finish()
    assert harness.log == values
    assert harness.state.identity == identity
    assert max_sequence(sequence_after(last, 20), last) == sequence_after(last, 20) == 10


Step = tuple[str, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("gather"), st.integers(1, 30)),
        st.tuples(st.just("push"), st.just(0)),
        st.tuples(st.just("serve"), st.just(0)),
        st.tuples(st.just("deaf"), st.just(0)),
        st.tuples(st.just("hear"), st.just(0)),
        st.tuples(st.just("lose"), st.just(0)),
        st.tuples(st.just("unwritten"), st.just(NotLeaderOrFollower.code)),
        st.tuples(st.just("written"), st.sampled_from(PASSING[1:])),
        st.tuples(st.just("unwritten"), st.just(InvalidRecord.code)),
        st.tuples(st.just("unwritten"), st.just(MessageTooLarge.code)),
        st.tuples(st.just("expire"), st.just(0)),
    ),
    max_size=60,
)


def play(harness: Harness, steps: list[Step]) -> None:
    count = 0
    for what, number in steps:
        if what == "gather":
            gather(harness, number, start=count)
            count += number
        elif what == "push":
            harness.push()
        elif what == "serve":
            harness.serve()
        elif what == "deaf":
            harness.serve(has_responded=False)
            harness.lose()
        elif what == "hear":
            harness.hear()
        elif what == "lose":
            harness.lose()
        elif what == "expire" and harness.queue.batches:
            first = harness.queue.batches[0]
            fault = RequestTimedOut("late")
            harness.sender.locked(
                lambda b=first, f=fault: harness.state.fail(b, f, unwritten=False)
            )
        elif what in ("written", "unwritten"):
            harness.serve(number, written=what == "written")
    harness.finish()


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_each_record_is_written_once_and_in_order(steps):
    directory = Path(tempfile.mkdtemp(prefix="kafkalite-sending-"))
    harness = Harness(directory)
    try:
        play(harness, steps)
        log = harness.log
        assert len(log) == len(set(log)), "a record is there twice"
        kept = [
            value
            for value, batch in harness.sent
            if all(leaf.error is None for leaf in batch.leaves())
        ]
        missing = set(kept) - set(log)
        assert not missing, "a record that was acknowledged is not there"
        assert [value for value in log if value in set(kept)] == kept, "the order is another"
        assert harness.accumulator.memory_left == harness.accumulator.memory_size
        assert not harness.state.active_queues
    finally:
        harness.close()
        shutil.rmtree(directory)


def test_model_broker_rejects_out_of_order_sequence(harness):
    gather(harness, 40)
    harness.push()
    harness.transport.frames.popleft()  # a frame that the broker never received
    harness.broker.producers.replay(0, 0, 0, 1, harness.state.identity.producer_id, 0, 0)
    harness.serve()
    assert harness.transport.came[0].error_code == OutOfOrderSequenceNumber.code
    assert harness.queue.batches[1].sequence != NO_SEQUENCE


def test_partition_queue_starts_with_one_batch(tmp_path):
    harness = Harness(tmp_path)
    values = gather(harness, 60)
    harness.push()
    # A broker accepts any first sequence: after a rejected first batch, that of the second.
    assert len(harness.transport.frames) == 1
    harness.serve(NotLeaderOrFollower.code, written=False)
    harness.hear()
    assert len(harness.transport.frames) == 1
    harness.finish()
    assert harness.log == values
    harness.close()


def test_partition_queue_of_a_recreated_topic_starts_with_one_batch(harness, tmp_path):
    harness.broker = ModelBroker(tmp_path)
    anew = TopicMetadata("t", b"j" * 16, {0: PartitionMetadata(NODE, 0)})
    harness.sender.locked(harness.sender.update_metadata, harness.queue.topic, anew)
    values = gather(harness, 60)
    harness.push()
    assert len(harness.transport.frames) == 1
    # Its worker does not know the new id yet; it would by the time of a second batch.
    harness.serve(UnknownTopicId.code, written=False)
    harness.serve()
    harness.hear()
    harness.finish()
    assert harness.log == values


def test_empty_partition_queue_is_not_stalled(harness):
    gather(harness, 1)
    harness.push()
    harness.serve(InvalidRecord.code, written=False)
    harness.sender.locked(harness.state.handle_responses, harness.transport.responses(), 0.0)
    assert not harness.queue.batches
    assert harness.queue.can_send_now


def test_records_after_close_are_rejected(harness):
    harness.sender.locked(harness.state.fail_all, RequestTimedOut("closed"))
    for way in (harness.sender.open_batch_in, harness.sender.add_batch):
        with pytest.raises(RequestTimedOut, match="closed"):
            harness.sender.locked(way, harness.queue, None, 200, 0)
    assert not harness.queue.batches


def test_topic_without_id_uses_no_ring(harness):
    # Brokers before Metadata 10 send none, and a ring frame names its topic only by id.
    harness.queue.topic.topic_id = NO_ID
    gather(harness, 1)
    harness.push()
    assert not harness.transport.frames
    assert harness.node.transport_for(harness.queue.batches[0]) is harness.node.tcp


def test_sequence_of_an_expired_written_batch_is_not_reused(harness):
    # A former leader may have written the batch all the same, and its sequence is used by now.
    gather(harness, 10)
    harness.sender.locked(harness.sender.end_batch, harness.queue)
    harness.serve(NotLeaderOrFollower.code, written=True)
    harness.sender.locked(harness.state.handle_responses, harness.transport.responses(), 0.0)
    harness.sender.locked(harness.state.expire, float("inf"))
    values = gather(harness, 10, start=100)
    harness.finish()
    assert harness.log[-10:] == values


def test_unacked_batch_is_retried_after_its_ring_failed(tmp_path):
    harness = Harness(tmp_path, **{"acks": 0, "enable.idempotence": False})
    lost = harness.transport

    def failing(*_):
        raise NetworkException("The ring ended.")

    lost.commit = failing
    harness.gather(b"one")
    harness.push()
    assert harness.node.ring is None
    harness.node.ring = harness.transport = ListLane()
    harness.push()
    harness.serve()
    assert harness.broker.log == [b"one"]
    assert [batch.error for batch in harness.batches] == [None]
    assert harness.accumulator.memory_left == harness.accumulator.memory_size
    harness.close()
