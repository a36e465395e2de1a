"""Produce, through the dispatcher of a real node: appends, refused batches, waiting for flushes."""

from __future__ import annotations

import lz4.frame
import pytest
import xxhash

from kafkalite import errors
from kafkalite._ext.record_batch import crc32c
from kafkalite.broker.replica import append_queue
from kafkalite.broker.security import WRITE
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, RecordBatch, batches, build
from kafkalite.records.compression import Codec, compress, decompress
from kafkalite.storage.log.log_reader import read
from kafkalite.transport.connection import Disconnect
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying

NOBODY, LEADER, ALL = 0, 1, -1


def batch_of(*values: bytes, **fields) -> bytes:
    return build([Record(timestamp=1_000, value=value) for value in values], **fields)


def topic_data_of(
    node: InProcess, version: int, batch: bytes | None, topic="a", partition=0
) -> dict:
    """Return a produce request's topic_data for one partition, by name or by id."""
    by_id = node.node.image.topics[topic].topic_id if topic in node.node.image.topics else bytes(16)
    named = {"name": topic} if version < 13 else {"topic_id": by_id}
    return {**named, "partition_data": [{"index": partition, "records": batch}]}


def produce(node: InProcess, batch: bytes | None, version=13, acks=ALL, **where):
    """Produce a batch and return the partition's response."""
    topic_data = [topic_data_of(node, version, batch, **where)]
    answer = node.request(PRODUCE, version, acks=acks, timeout_ms=1_000, topic_data=topic_data)
    (entry,) = answer.responses[0].partition_responses
    return entry


def values_in(node: InProcess, topic="a", partition=0) -> list[bytes | None]:
    log = node.node.replicas.leader(topic, partition).log
    found = read(log, log.log_start_offset, 1 << 20, log.end_offset)
    if found is None:
        return []
    return [record.value for batch in batches(found.read()) for record in batch]


@pytest.fixture
def topic(broker):
    broker.create("a", 2)
    return broker


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_of_every_version_returns_the_offset(topic, version):
    assert produce(topic, batch_of(b"x", b"y"), version).base_offset == 0
    entry = produce(topic, batch_of(b"z"), version)
    assert (entry.error_code, entry.base_offset, entry.log_append_time_ms) == (0, 2, -1)
    assert values_in(topic) == [b"x", b"y", b"z"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_versions_0_to_2_close_the_connection(topic, version):
    frame = bytes([0, 0, 0, version, 0, 0, 0, 7, 0, 0]) + bytes(10)
    with pytest.raises(Disconnect):
        topic.send_frame(frame)


def test_append_changes_only_offset_and_leader_epoch(topic):
    batch = batch_of(b"x")
    produce(topic, batch_of(b"before"))
    produce(topic, batch)
    log = topic.node.replicas.leader("a", 0).log
    placed = read(log, 1, 1 << 20, 2).read()
    assert placed[16:] == batch[16:]
    header = RecordBatch(placed).header
    assert (header.base_offset, header.leader_epoch) == (1, 0)


def test_produce_with_acks_0_appends_without_response(topic):
    wire = topic.send(
        PRODUCE, 9, acks=NOBODY, timeout_ms=0, topic_data=[topic_data_of(topic, 9, batch_of(b"x"))]
    )
    assert wire.sent is None
    assert values_in(topic) == [b"x"]


def test_error_with_acks_0_closes_the_connection(topic):
    with pytest.raises(Disconnect):
        topic.send(
            PRODUCE,
            9,
            acks=NOBODY,
            timeout_ms=0,
            topic_data=[topic_data_of(topic, 9, b"", topic="none")],
        )


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_invalid_acks_append_nothing(topic, acks):
    entry = produce(topic, batch_of(b"x"), acks=acks)
    assert entry.error_code == errors.InvalidRequiredAcks.code
    assert values_in(topic) == []


@pytest.mark.parametrize(
    ("where", "version", "fault"),
    [
        ({"topic": "none"}, 12, errors.UnknownTopicOrPartition),
        ({"topic": "none"}, 13, errors.UnknownTopicId),
        ({"partition": 2}, 12, errors.UnknownTopicOrPartition),
        ({"partition": -1}, 12, errors.UnknownTopicOrPartition),
    ],
)
def test_produce_to_unknown_partition_fails(topic, where, version, fault):
    assert produce(topic, batch_of(b"x"), version, **where).error_code == fault.code


def cut(batch: bytes) -> bytes:
    return batch[:-1]


def flipped(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def of_magic_1(batch: bytes) -> bytes:
    return batch[:16] + b"\x01" + batch[17:]


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        (flipped(batch_of(b"x")), errors.CorruptMessage),
        (cut(batch_of(b"x")), errors.InvalidRecord),
        (batch_of(b"x") + b"\0", errors.InvalidRecord),
        (of_magic_1(batch_of(b"x")), errors.InvalidRecord),
        (batch_of(b"x") + batch_of(b"y"), errors.InvalidRecord),
        (b"", errors.InvalidRecord),
        (None, errors.InvalidRecord),
        (bytes(10), errors.InvalidRecord),
    ],
    ids=["crc", "cut", "a byte too many", "magic", "two batches", "empty", "null", "no header"],
)
def test_invalid_batch_is_rejected_and_the_next_is_appended(topic, batch, fault):
    assert produce(topic, batch).error_code == fault.code
    assert values_in(topic) == []
    assert produce(topic, batch_of(b"good")).base_offset == 0


def resealed(batch: bytes) -> bytes:
    """Return the batch with a valid CRC."""
    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def with_count(batch: bytes, count: int) -> bytes:
    return (
        batch[:23]
        + (count - 1).to_bytes(4, "big")
        + batch[27:57]
        + count.to_bytes(4, "big")
        + (batch[61:])
    )


@pytest.mark.parametrize(
    "batch",
    [
        resealed(with_count(batch_of(b"x", b"y"), 1)),
        resealed(with_count(batch_of(b"x", b"y"), 3)),
        resealed(batch_of(b"xx")[:61] + bytes(9)),
        resealed(batch_of(b"xx")[:61] + b"\xff" * 9),
    ],
    ids=["more records than counted", "fewer", "empty records", "garbage"],
)
def test_invalid_records_with_valid_checksum_are_rejected(topic, batch):
    assert produce(topic, batch).error_code == errors.InvalidRecord.code
    assert values_in(topic) == []


def packed(payload: bytes, codec: Codec, count: int) -> bytes:
    """Return a batch with a valid CRC that claims `count` and `codec` for any payload."""
    batch = bytearray(batch_of(b"x")[:61] + payload)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] = codec
    return resealed(with_count(bytes(batch), count))


COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_compressed_records_are_checked(topic, codec):
    two = build([Record(timestamp=1, value=b"x"), Record(timestamp=2, value=b"y")])[61:]
    for payload, count in (
        (b"twenty-one of garbage", 5),
        (compress(codec, two), 1),
        (compress(codec, two), 3),
        (compress(codec, two), 0x7FFFFFFF),
        (compress(codec, two)[:-1], 2),
        (compress(codec, two + b"more"), 2),
        (compress(codec, bytes(20)), 2),
    ):
        entry = produce(topic, packed(payload, codec, count))
        assert entry.error_code == errors.InvalidRecord.code, (payload, count)
    assert produce(topic, packed(compress(codec, two), codec, 2)).base_offset == 0
    assert values_in(topic) == [b"x", b"y"]


def test_compressed_records_are_not_validated_if_the_topic_disables_it(broker):
    broker.create("a", compressed_records_validate="false")
    assert produce(broker, packed(b"garbage", Codec.ZSTD, 5)).error_code == 0


UNREADABLE_LZ4 = {
    "linked blocks": lambda one, two: lz4.frame.compress(one + two, block_linked=True),
    "two frames": lambda one, two: compress(Codec.LZ4, one) + compress(Codec.LZ4, two),
    "a frame behind the last record": lambda one, two: (
        compress(Codec.LZ4, one + two) + compress(Codec.LZ4, b"")
    ),
    "a dictionary": lambda one, two: with_dictionary(compress(Codec.LZ4, one + two)),
}


def with_dictionary(frame: bytes) -> bytes:
    """Return the lz4 frame with a dictionary id in its header."""
    descriptor = bytes([frame[4] | 0x01, frame[5]]) + (7).to_bytes(4, "little")
    check = xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF
    return frame[:4] + descriptor + bytes([check]) + frame[7:]


@pytest.mark.parametrize("config", [{}, {"compression_type": "lz4"}, {"compression_type": "gzip"}])
@pytest.mark.parametrize("shape", UNREADABLE_LZ4)
def test_lz4_that_java_cannot_read_returns_invalid_record(broker, shape, config):
    """Kafka returns INVALID_RECORD or UNKNOWN_SERVER_ERROR; its consumers would stop here."""
    broker.create("a", **config)
    one, two = bytes(98_000), bytes(60_000)
    payload = build([Record(timestamp=1, value=one), Record(timestamp=1, value=two)])[61:]
    frames = UNREADABLE_LZ4[shape](payload[:98_020], payload[98_020:])
    assert decompress(Codec.LZ4, frames) == payload, "a lenient reader reads it"
    entry = produce(broker, packed(frames, Codec.LZ4, 2))
    assert entry.error_code == errors.InvalidRecord.code
    assert "Java" in entry.error_message
    assert produce(broker, packed(compress(Codec.LZ4, payload), Codec.LZ4, 2)).error_code == 0


def test_decompression_bomb_is_refused(topic):
    bomb = packed(compress(Codec.ZSTD, bytes(40 << 20)), Codec.ZSTD, 4)
    # It begins with records of length 0, which are invalid.
    assert produce(topic, bomb).error_code == errors.InvalidRecord.code
    large = build([Record(timestamp=1, value=bytes(1 << 20))] * 17, codec=Codec.ZSTD)
    assert len(large) < 8192
    assert produce(topic, large).error_code == errors.MessageTooLarge.code


@pytest.mark.parametrize("size", [15, 17, 31, 33, 40])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_decompressed_size_has_one_limit_and_one_error(broker, codec, size):
    broker.create("a")
    broker.create("b", compression_type="uncompressed", max_message_bytes=str(1 << 30))
    large = build([Record(timestamp=1, value=bytes(size << 20))], codec=codec)
    for topic, tells_key in (("a", True), ("b", False)):
        entry = produce(broker, large, topic=topic, acks=LEADER)
        if size < 16:
            assert entry.error_code == 0
            continue
        assert entry.error_code == errors.MessageTooLarge.code
        assert str(16 << 20) in entry.error_message
        assert ("compressed.records.validate" in entry.error_message) == tells_key
    assert len(values_in(broker)) == (size < 16)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("length", [1 << 20, 1 << 24, 1 << 25, (1 << 31) - 1])
def test_record_longer_than_its_payload_is_invalid(topic, codec, length):
    digits = bytearray()
    number = length << 1
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    payload = bytes([*digits, number]) + bytes(100)
    for cut in range(1, len(digits) + 2):
        sent = packed(compress(codec, payload[:cut]) + compress(codec, payload[cut:]), codec, 1)
        assert produce(topic, sent).error_code == errors.InvalidRecord.code


def test_max_timestamp_of_a_compressed_batch_is_corrected(topic):
    batch = bytearray(batch_of(b"x", codec=Codec.LZ4))
    batch[35:43] = (5_000).to_bytes(8, "big")
    assert produce(topic, resealed(bytes(batch))).error_code == 0
    log = topic.node.replicas.leader("a", 0).log
    (stored,) = batches(read(log, 0, 1 << 20, 1).read())
    assert stored.header.max_timestamp == 1_000


def test_large_batch_is_decompressed_on_a_thread_in_order(topic):
    large = build([Record(timestamp=1, value=bytes(12 << 20))], codec=Codec.GZIP)
    opener = topic.node.opener
    sent = [
        topic.send(
            PRODUCE, 13, acks=LEADER, timeout_ms=1_000, topic_data=[topic_data_of(topic, 13, batch)]
        )
        for batch in (large, batch_of(b"y"))
    ]
    assert opener.submitted_count == 1
    assert [wire.sent for wire in sent] == [None, None]
    # A batch for another partition does not wait.
    assert produce(topic, batch_of(b"z"), partition=1, acks=LEADER).base_offset == 0
    topic.until(lambda: all(wire.sent is not None for wire in sent))
    answers = [topic.response(wire, PRODUCE, 13) for wire in sent]
    assert [answer.responses[0].partition_responses[0].base_offset for answer in answers] == [0, 1]


def test_batch_from_the_future_is_opened_on_the_thread_without_validation_too(broker):
    broker.create("a", compressed_records_validate="false")
    late = broker.clock.wall_ms() + 10 * 86_400_000
    large = build([Record(timestamp=late, value=bytes(12 << 20))], codec=Codec.GZIP)
    entry = produce(broker, large, acks=LEADER)
    assert (entry.error_code, [each.batch_index for each in entry.record_errors]) == (
        errors.InvalidTimestamp.code, [0],
    )  # fmt: skip
    assert broker.node.opener.submitted_count == 1


def test_batch_is_refused_while_too_many_bytes_wait_for_decompression(topic, monkeypatch):
    large = build([Record(timestamp=1, value=bytes(12 << 20))], codec=Codec.GZIP)
    monkeypatch.setattr(append_queue, "WAITING_SIZE_MAX", len(large) + len(batch_of(b"y")))
    sent = [
        topic.send(
            PRODUCE, 13, acks=LEADER, timeout_ms=1_000, topic_data=[topic_data_of(topic, 13, batch)]
        )
        for batch in (large, batch_of(b"y"))
    ]
    # These two use up the limit, for all partitions.
    timed_out = errors.RequestTimedOut.code
    assert produce(topic, batch_of(b"w"), acks=LEADER).error_code == timed_out
    assert produce(topic, large, partition=1, acks=LEADER).error_code == timed_out
    with pytest.raises(Disconnect):
        topic.send(
            PRODUCE, 13, acks=NOBODY, timeout_ms=1_000,
            topic_data=[topic_data_of(topic, 13, batch_of(b"w"))],
        )  # fmt: skip
    # An uncompressed batch needs no decompression and does not wait.
    assert produce(topic, batch_of(b"z"), partition=1, acks=LEADER).error_code == 0
    topic.until(lambda: all(wire.sent is not None for wire in sent))
    assert topic.node.replicas.append_queue._waiting_size == 0
    assert produce(topic, large, partition=1, acks=LEADER).error_code == 0
    topic.until(lambda: not topic.node.replicas.append_queue._waiting_size)
    assert len(values_in(topic)) == 2


def test_large_batch_is_recompressed_on_the_thread(broker):
    broker.create("a", compression_type="gzip")
    entry = produce(broker, batch_of(bytes(500_000)))
    assert (entry.error_code, broker.node.opener.submitted_count) == (0, 1)
    log = broker.node.replicas.leader("a", 0).log
    (stored,) = batches(read(log, 0, 1 << 20, 1).read())
    assert stored.header.codec is Codec.GZIP


def test_control_batch_from_a_client_returns_invalid_record(topic):
    control = build(
        [Record(timestamp=1, key=b"\0\0\0\0", value=bytes(6))], control=True, producer_id=1,
        producer_epoch=0,
    )  # fmt: skip
    assert produce(topic, control).error_code == errors.InvalidRecord.code
    assert values_in(topic) == []


def test_error_of_one_partition_does_not_affect_others(topic):
    good, bad = batch_of(b"x"), flipped(batch_of(b"y"))
    partition_data = [{"index": 0, "records": bad}, {"index": 1, "records": good}]
    answer = topic.request(
        PRODUCE, 9, acks=ALL, timeout_ms=1_000,
        topic_data=[{"name": "a", "partition_data": partition_data}],
    )  # fmt: skip
    codes = {e.index: e.error_code for e in answer.responses[0].partition_responses}
    assert codes == {0: errors.CorruptMessage.code, 1: 0}
    assert values_in(topic, partition=1) == [b"x"]


def test_batch_above_max_message_bytes_is_refused(broker):
    broker.create("a", max_message_bytes="200")
    assert produce(broker, batch_of(bytes(300))).error_code == errors.MessageTooLarge.code


def test_record_from_the_future_is_reported_by_its_index(broker):
    broker.create("a", message_timestamp_after_max_ms="1000")
    later = broker.clock.wall_ms() + 5_000
    batch = build([Record(timestamp=0, value=b"x"), Record(timestamp=later, value=b"y")])
    entry = produce(broker, batch)
    assert entry.error_code == errors.InvalidTimestamp.code
    assert [wrong.batch_index for wrong in entry.record_errors] == [1]


def test_log_append_time_is_written_and_returned(broker):
    broker.create("a", message_timestamp_type="LogAppendTime")
    assert produce(broker, batch_of(b"x")).log_append_time_ms == broker.clock.wall_ms()


def test_duplicate_batch_gets_its_offset_and_sequence_gap_is_rejected(topic):
    first = batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    assert produce(topic, first).base_offset == 0
    assert produce(topic, first).base_offset == 0
    gap = batch_of(b"z", producer_id=5, producer_epoch=0, base_sequence=2)
    assert produce(topic, gap).error_code == errors.OutOfOrderSequenceNumber.code
    assert values_in(topic) == [b"x"]


def test_produce_without_authorization_fails(topic):
    topic.node.authorizer = Denying(WRITE)
    assert produce(topic, batch_of(b"x")).error_code == errors.TopicAuthorizationFailed.code


# -- durability ----------------------------------------------------------------------------------


@pytest.fixture
def careful(tmp_path):
    """Yield a node that completes a flush only when the test runs it."""
    node = InProcess(tmp_path / "data", durability="fsync")
    node.create("a")
    yield node
    node.close()


def waiting(node: InProcess, acks: int, timeout_ms=1_000):
    return node.send(
        PRODUCE,
        9,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[topic_data_of(node, 9, batch_of(b"x"))],
    )


def test_acks_all_responds_after_the_flush(careful):
    partition = careful.node.replicas.leader("a", 0)
    wire = waiting(careful, ALL)
    assert wire.sent is None
    assert partition.high_watermark == 0
    careful.until(lambda: wire.sent is not None)
    assert partition.log.durable_offset == partition.high_watermark == 1


def test_acks_1_responds_before_records_are_readable(careful):
    partition = careful.node.replicas.leader("a", 0)
    wire = waiting(careful, LEADER)
    assert wire.sent is not None
    assert partition.high_watermark == 0
    careful.until(lambda: partition.high_watermark == 1)


def test_produce_completes_when_durability_is_lowered(careful):
    careful.node.flusher.submit = lambda flushes: None
    wire = waiting(careful, ALL)
    careful.reactor.tick(0)
    assert wire.sent is None
    configs = [{"name": "durability", "config_operation": 0, "value": "os"}]
    careful.node.local_controller.journal.push = careful.node.local_controller.journal.flush_now
    asked = {"resource_type": 2, "resource_name": "a", "configs": configs}
    careful.send(INCREMENTAL_ALTER_CONFIGS, 1, resources=[asked])
    careful.until(lambda: wire.sent is not None)
    answer = careful.response(wire, PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_partition_committed_while_another_batch_is_opened_delays_no_response(careful):
    careful.create("b", 2)
    opener = careful.node.opener
    careful.reactor.unwatch(opener.fileno())  # the batch is opened when the test says so
    large = build([Record(timestamp=1, value=bytes(12 << 20))], codec=Codec.GZIP)
    topic_data = topic_data_of(careful, 9, batch_of(b"x"), "b")
    topic_data["partition_data"].append({"index": 1, "records": large})
    wire = careful.send(PRODUCE, 9, acks=ALL, timeout_ms=1_000, topic_data=[topic_data])
    first, second = (careful.node.replicas.leader("b", index) for index in (0, 1))
    careful.until(lambda: first.high_watermark == 1)
    assert (opener.submitted_count, wire.sent, second.log.end_offset) == (1, None, 0)
    careful.reactor.watch(opener.fileno(), opener.collect)
    # The clock does not advance, so the request cannot time out.
    careful.until(lambda: wire.sent is not None)
    results = careful.response(wire, PRODUCE, 9).responses[0].partition_responses
    assert [(each.index, each.error_code, each.base_offset) for each in results] == [
        (0, 0, 0), (1, 0, 0),
    ]  # fmt: skip


def test_partition_deleted_while_another_batch_is_opened_gets_its_error(careful):
    careful.create("b")
    opener = careful.node.opener
    careful.reactor.unwatch(opener.fileno())
    careful.node.flusher.submit = lambda flushes: None
    large = build([Record(timestamp=1, value=bytes(12 << 20))], codec=Codec.GZIP)
    topic_data = [topic_data_of(careful, 9, batch_of(b"x"), "b"), topic_data_of(careful, 9, large)]
    wire = careful.send(PRODUCE, 9, acks=ALL, timeout_ms=1_000, topic_data=topic_data)
    careful.node.replicas.remove(careful.node.replicas.leader("b", 0))
    opened = careful.node.replicas.leader("a", 0)
    careful.reactor.watch(opener.fileno(), opener.collect)
    careful.until(lambda: opened.log.end_offset == 1)
    assert wire.sent is None
    careful.node.replicas.remove(opened)
    codes = [
        each.partition_responses[0].error_code
        for each in careful.response(wire, PRODUCE, 9).responses
    ]
    assert codes == [errors.UnknownTopicOrPartition.code] * 2


def test_slow_flush_times_out(careful):
    careful.node.flusher.submit = lambda flushes: None
    wire = waiting(careful, ALL, timeout_ms=50)
    careful.clock.advance(100)
    careful.until(lambda: wire.sent is not None)
    answer = careful.response(wire, PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].error_code == errors.RequestTimedOut.code


def test_produce_completes_when_its_topic_is_deleted(careful):
    careful.node.flusher.submit = lambda flushes: None
    wire = waiting(careful, ALL)
    careful.reactor.tick(0)
    careful.node.replicas.remove(careful.node.replicas.leader("a", 0))
    answer = careful.response(wire, PRODUCE, 9)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == errors.UnknownTopicOrPartition.code


def test_appends_during_a_flush_share_the_next_flush(careful):
    submitted = []
    submit = careful.node.flusher.submit
    careful.node.flusher.submit = lambda flushes: (submitted.append(len(flushes)), submit(flushes))
    wires = [waiting(careful, ALL)]
    careful.node.replicas.settle()
    wires += [waiting(careful, ALL) for _ in range(20)]
    careful.until(lambda: all(wire.sent is not None for wire in wires))
    assert len(submitted) == 2
