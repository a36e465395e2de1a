"""RecordBatch: round trips in every codec, and errors for changed bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext import record_batch
from kafkalite.errors import (
    CorruptMessage,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from kafkalite.records.batch import (
    Record,
    RecordBatch,
    TimestampType,
    batches,
    build,
    build_at,
)
from kafkalite.records.compression import Codec
from kafkalite.records.decode_steps import finish, recompress, scan_of, walk
from tests.twins import record_batch as twin

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
FIELD = st.none() | st.binary(max_size=300)
HEADER = st.tuples(st.text(max_size=10), FIELD)
RECORD = st.builds(
    Record,
    offset=st.just(-1),
    timestamp=st.integers(0, 1 << 50),
    key=FIELD,
    value=FIELD,
    headers=st.lists(HEADER, max_size=3).map(tuple),
)


def flights(count=50):
    return [
        Record(
            timestamp=1_700_000_000_000 + 7 * n,
            key=b"UA" if n % 3 else None,
            value=b'{"carrier": "UA", "flight": %d}' % n,
            headers=(("from", b"EWR"), ("gate", None)) if n % 5 == 0 else (),
        )
        for n in range(count)
    ]


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(RECORD, min_size=1, max_size=8),
    codec=st.sampled_from(Codec),
    base_offset=st.integers(0, 1 << 40),
)
def test_built_batch_is_read_with_offsets_from_its_base(records, codec, base_offset):
    batch = RecordBatch(build(records, codec=codec, base_offset=base_offset))
    assert batch.records() == [
        record._replace(offset=base_offset + place) for place, record in enumerate(records)
    ]
    assert batch.header.max_timestamp == max(record.timestamp for record in records)
    assert batch.header.codec is codec


@pytest.mark.parametrize("codec", Codec)
def test_built_batch_is_valid(codec):
    assert record_batch.check_client_batch(build(flights(), codec=codec)) == 0
    idempotent = build(flights(), codec=codec, producer_id=4, producer_epoch=0, base_sequence=9)
    assert record_batch.check_client_batch(idempotent) == 0


def test_built_batch_has_every_header_field():
    header = RecordBatch(
        build(
            flights(3),
            base_offset=1 << 40,
            leader_epoch=6,
            codec=Codec.LZ4,
            producer_id=1 << 33,
            producer_epoch=12,
            base_sequence=99,
            transactional=True,
            control=True,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
        )
    ).header
    assert (header.base_offset, header.last_offset) == (1 << 40, (1 << 40) + 2)
    assert (header.leader_epoch, header.magic, header.count) == (6, 2, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 33, 12, 99)
    assert header.is_transactional and header.is_control
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.delete_horizon_ms is None


@pytest.mark.parametrize("producer_id", [-1, 7])
def test_batch_of_pairs_is_that_of_the_same_records(producer_id):
    pairs = [(b"a", b"1"), (b"b", None), (b"", b"3")]
    options = {"producer_id": producer_id, "producer_epoch": 2, "transactional": producer_id >= 0}
    records = [Record(timestamp=5, key=key, value=value) for key, value in pairs]
    assert build_at(5, pairs, **options) == build(records, **options)


def test_records_have_the_append_time_of_a_stamped_batch():
    batch = bytearray(build(flights(4)))
    record_batch.stamp_append_time(batch, 1_800_000_000_000)
    stamped = RecordBatch(batch)
    assert {record.timestamp for record in stamped} == {1_800_000_000_000}
    assert [record.value for record in stamped] == [record.value for record in flights(4)]


def test_placed_batch_has_its_offsets_and_a_valid_checksum():
    batch = bytearray(build(flights(4)))
    record_batch.assign_offset(batch, 1_000, 3)
    placed = RecordBatch(batch)
    assert [record.offset for record in placed] == [1_000, 1_001, 1_002, 1_003]
    assert placed.header.leader_epoch == 3


def test_offset_gaps_of_compaction_are_kept():
    kept = [Record(offset, 5, b"k", b"v") for offset in (102, 105, 109)]
    batch = RecordBatch(build(kept, base_offset=100))
    assert batch.records() == kept
    assert batch.header.last_offset == 109
    assert record_batch.check_client_batch(bytes(batch)) == InvalidRecord.code, (
        "no client sends gaps"
    )


def test_header_name_that_is_not_utf8_is_kept_byte_for_byte():
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    (record,) = RecordBatch(build([Record(headers=((name, b"x"),))]))
    assert record.headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"crc": 1}, CorruptMessage),
        ({"batch_length": 48}, CorruptMessage),
        ({"batch_length": -1}, CorruptMessage),
        ({"magic": 1}, UnsupportedForMessageFormat),
    ],
    ids=str,
)
def test_invalid_batch_raises_its_error(wrong, error):
    with pytest.raises(error):
        RecordBatch(twin.build(b"\x0c\0\0\0\x01\x01\0", **wrong))


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 30, -1])
def test_wrong_record_count_raises_invalid_record(count):
    invalid = twin.build(bytes(RecordBatch(build(flights(2))).payload()), count=count)
    with pytest.raises(InvalidRecord):
        RecordBatch(invalid).records()


def test_unknown_codec_raises_unsupported_compression_type():
    with pytest.raises(UnsupportedCompressionType, match="5"):
        RecordBatch(twin.build(b"", attributes=5)).records()


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_payload_with_valid_checksum_raises_kafka_errors_only(codec):
    payload = bytes(RecordBatch(build(flights(), codec=codec)).view[61:])
    for at in range(len(payload)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(payload)
            damaged[at] ^= flip
            batch = twin.build(bytes(damaged), attributes=int(codec), count=50)
            struck = RecordBatch(batch)
            try:
                struck.records()
            except KafkaError as error:
                assert isinstance(error, CorruptMessage | InvalidRecord | MessageTooLarge)


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_recompress_changes_only_the_codec(source, target):
    batch = bytearray(
        build(
            flights(),
            codec=source,
            base_offset=77,
            leader_epoch=2,
            producer_id=5,
            producer_epoch=1,
            base_sequence=20,
            transactional=True,
        )
    )
    record_batch.stamp_append_time(batch, 1_800_000_000_000)
    before, after = RecordBatch(batch), RecordBatch(finish(recompress(RecordBatch(batch), target)))
    assert after.records() == before.records()
    assert after.header.codec is target
    changed = {"batch_length", "crc", "attributes"}
    for field, was in before.header._asdict().items():
        assert field in changed or getattr(after.header, field) == was
    assert after.header.attributes & ~7 == before.header.attributes & ~7


def test_higher_compression_level_makes_a_smaller_batch():
    batch = build(flights(2_000))
    for codec, low, high in ((Codec.GZIP, 1, 9), (Codec.ZSTD, 1, 19), (Codec.LZ4, 9, 12)):
        small = finish(recompress(RecordBatch(batch), codec, high))
        assert len(small) < len(finish(recompress(RecordBatch(batch), codec, low)))
        assert RecordBatch(small).records() == RecordBatch(batch).records()


def test_recompress_rejects_invalid_compressed_records():
    truncated = RecordBatch(build(flights(), codec=Codec.ZSTD)).view[61:-5]
    batch = twin.build(bytes(truncated), attributes=int(Codec.ZSTD), count=50, last_offset_delta=49)
    with pytest.raises(CorruptMessage):
        finish(recompress(RecordBatch(batch), Codec.LZ4))
    invalid = twin.build(b"\x0c\0\0\0\x01\x01\0" * 2, count=2, last_offset_delta=1)
    with pytest.raises(InvalidRecord):
        finish(recompress(RecordBatch(invalid), Codec.LZ4))


def test_recompress_limits_the_uncompressed_size():
    batch = build([Record(value=bytes(100_000))], codec=Codec.GZIP)
    with pytest.raises(MessageTooLarge):
        finish(recompress(RecordBatch(batch), Codec.ZSTD, size_max=50_000))


@pytest.mark.parametrize("codec", Codec)
def test_invalid_timestamps_are_reported_by_record_index(codec):
    times = [1_000, -1, 999, 2_000, 2_001, 1_500]
    batch = RecordBatch(build([Record(timestamp=time) for time in times], codec=codec))
    scan = scan_of(batch)
    scan.collect(1_000, 2_000, inside=False)
    finish(walk(batch, scan))
    assert (scan.hits, scan.max_timestamp) == ([(2, 999), (4, 2_001)], 2_001)


def test_record_set_ends_before_an_incomplete_batch():
    first, second = build(flights(3)), build(flights(2), base_offset=3)
    whole = first + second
    assert [batch.header.count for batch in batches(whole)] == [3, 2]
    for cut in range(len(first), len(whole)):
        assert [batch.header.count for batch in batches(whole[:cut])] == [3]
    for cut in range(len(first)):
        assert list(batches(whole[:cut])) == []


def test_invalid_batch_length_raises_corrupt_message():
    for length in (-(1 << 31), -13, -12, 0, 48):
        with pytest.raises(CorruptMessage):
            list(batches(twin.build(bytes(60), batch_length=length)))
