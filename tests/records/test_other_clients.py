"""Batches exchanged with kafka-python and aiokafka, both ways, by codec.

Both have a record builder and a reader of their own, written independently from the same format
(aiokafka's in C).  kafka-python's snappy needs a package that only wraps ours, so snappy is
compared with aiokafka only.
"""

import pytest

from kafkalite._ext import record_batch
from kafkalite.records.batch import Record, RecordBatch, TimestampType, batches, build
from kafkalite.records.compression import Codec

NOW = 1_700_000_000_000
RECORDS = [
    Record(0, NOW, b"key", b"value", ()),
    Record(1, NOW + 5, None, b"no key", (("one", b"1"), ("one", b"again"))),
    Record(2, NOW - 1_000, b"late and no value", None, ()),
    Record(3, NOW + (1 << 40), b"", b"", (("no value", None), ("", b""))),
    Record(4, NOW, b"k" * 64, b"v" * 20_000, (("a name of some length " * 9, b"h" * 300),)),
    *(Record(5 + n, NOW + n, b"%d" % n, b"carrier %d" % (n % 7), ()) for n in range(300)),
]


class KafkaPython:
    codecs = tuple(codec for codec in Codec if codec is not Codec.SNAPPY)

    def __init__(self):
        package = pytest.importorskip("kafka.record", reason="kafka-python is not installed")
        from kafka.record.default_records import DefaultRecordBatchBuilder

        self.reader = package.MemoryRecords
        self.builder = DefaultRecordBatchBuilder


class Aiokafka:
    codecs = tuple(Codec)

    def __init__(self):
        pytest.importorskip("aiokafka", reason="aiokafka is not installed")
        from aiokafka.record.default_records import DefaultRecordBatchBuilder
        from aiokafka.record.memory_records import MemoryRecords

        self.reader = MemoryRecords
        self.builder = DefaultRecordBatchBuilder


BOTH = [(package, codec) for package in (KafkaPython, Aiokafka) for codec in package.codecs]
EACH = pytest.mark.parametrize(
    ("package", "codec"), BOTH, ids=[f"{package.__name__}-{codec.name}" for package, codec in BOTH]
)


def theirs(package, codec, producer=(-1, -1, -1), transactional=False):
    producer_id, producer_epoch, base_sequence = producer
    builder = package().builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 20,
    )
    for record in RECORDS:
        taken = builder.append(
            record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
        assert taken is not None
    return bytes(builder.build())


def read_by(package, record_set):
    """Return every record that another package reads from these bytes."""
    reader = package().reader(record_set)
    found = []
    while reader.has_next():
        batch = reader.next_batch()
        assert batch.validate_crc()
        for record in batch:
            key, value = (None if it is None else bytes(it) for it in (record.key, record.value))
            found.append(
                Record(
                    record.offset, record.timestamp, key, value, tuple(map(tuple, record.headers))
                )
            )
    return found


@EACH
def test_batches_are_read_by_other_clients(package, codec):
    assert read_by(package, build(RECORDS, codec=codec)) == RECORDS


@EACH
def test_batches_of_other_clients_are_read(package, codec):
    batch = theirs(package, codec)
    assert record_batch.check_client_batch(batch) == 0
    assert RecordBatch(batch).header.codec is codec
    assert RecordBatch(batch).records() == RECORDS


@EACH
def test_idempotent_batch_of_other_clients_is_valid(package, codec):
    batch = theirs(package, codec, producer=(4_000, 3, 12), transactional=True)
    assert record_batch.check_client_batch(batch) == 0
    header = RecordBatch(batch).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4_000, 3, 12)
    assert header.is_transactional


@pytest.mark.parametrize("package", [KafkaPython, Aiokafka])
def test_uncompressed_batch_equals_other_clients(package):
    ours = bytearray(build(RECORDS))
    other = bytearray(theirs(package, Codec.NONE))
    # They leave the leader epoch at 0; the CRC does not cover it.
    record_batch.assign_offset(ours, 0, 0)
    record_batch.assign_offset(other, 0, 0)
    assert ours == other


@pytest.mark.parametrize("package", [KafkaPython, Aiokafka])
def test_record_set_of_several_batches_is_read_by_other_clients(package):
    unplaced = [record._replace(offset=-1) for record in RECORDS[:5]]
    record_set = b"".join(
        build(unplaced, base_offset=offset, codec=codec)
        for offset, codec in zip((0, 5, 10), (Codec.NONE, Codec.LZ4, Codec.ZSTD), strict=True)
    )
    ours = [record for batch in batches(record_set) for record in batch]
    assert read_by(package, record_set) == ours
    assert [record.offset for record in ours] == list(range(15))


@pytest.mark.parametrize("package", [KafkaPython, Aiokafka])
def test_append_time_is_read_by_other_clients(package):
    batch = bytearray(build(RECORDS, timestamp_type=TimestampType.CREATE_TIME))
    record_batch.stamp_append_time(batch, NOW + 99)
    assert {record.timestamp for record in read_by(package, bytes(batch))} == {NOW + 99}
