"""Batches and records, damaged at random for as long as configured: `make fuzz`.

Each run damages a valid batch in a few places, by its seed, and passes it to the compiled functions
and their twins, which must agree; a codec may do anything except raise another error or exceed its
bound.  A failure prints its seed.  The bytes are passed in an array of their exact size, so that a
sanitizer detects a read past their end (tools/sanitize.py).

KAFKALITE_FUZZ_RUNS is the number of runs; the default takes about a minute.
"""

import os
import random
from array import array

import pytest

from kafkalite._ext import record_batch, records
from kafkalite.errors import KafkaError
from kafkalite.records.batch import Record, RecordBatch, batches, build
from kafkalite.records.compression import Codec, decompress
from kafkalite.records.decode_steps import finish, recompress
from tests.twins import record_batch as batch_twin
from tests.twins import records as records_twin

pytestmark = pytest.mark.fuzz

RUNS = int(os.environ.get("KAFKALITE_FUZZ_RUNS", "1000000"))
EDGES = (0, 1, 2, 6, 7, 0x0F, 0x10, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
SIZE_MAX = 1 << 16


def good_records(chance):
    field = (None, b"", b"k", b"value " * 30)
    return [
        Record(
            timestamp=chance.choice((0, 5, 1_700_000_000_000, (1 << 62))),
            key=chance.choice(field),
            value=chance.choice(field),
            headers=tuple(
                ("n" * chance.randrange(3), chance.choice(field))
                for _ in range(chance.randrange(3))
            ),
        )
        for _ in range(chance.randrange(1, 6))
    ]


def spoiled(chance, good):
    """Return the bytes with a few changes, each of a kind that readers get wrong."""
    data = bytearray(good)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            data[at : at + 1] = bytes([chance.choice(EDGES)])
        elif kind == 1:
            data[at : at + chance.randrange(9)] = b""
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randrange(9))
        elif kind == 3:
            del data[at:]
        elif data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
    return bytes(data)


def exact(data):
    return memoryview(array("B", data))


def test_mutated_records_are_read_as_the_twin_reads_them():
    for seed in range(RUNS):
        chance = random.Random(seed)
        given = good_records(chance)
        payload = spoiled(chance, bytes(RecordBatch(build(given)).payload()))
        count = len(given) + chance.choice((0, 0, 0, -1, 1))
        last = chance.choice((None, None, count, -1))
        found = records_twin.decode(payload, count, last)
        assert records.decode(exact(payload), count, last) == found, f"seed {seed}"
        code = found if isinstance(found, int) else 0
        assert records.validate(exact(payload), count, last) == code, f"seed {seed}"


def test_mutated_batches_are_validated_as_by_the_twin():
    for seed in range(RUNS // 10):
        chance = random.Random(seed)
        good = bytearray(build(good_records(chance), codec=chance.choice(list(Codec))))
        data = bytearray(spoiled(chance, good))
        if len(data) >= 61 and chance.random() < 0.7:
            data[8:12] = (len(data) - 12).to_bytes(4, "big")
            data[17:21] = record_batch.crc32c(data[21:]).to_bytes(4, "big")
        assert record_batch.check(exact(data)) == batch_twin.check(bytes(data)), f"seed {seed}"
        assert record_batch.check_client_batch(exact(data)) == batch_twin.check_client_batch(
            bytes(data)
        ), f"seed {seed}"
        try:
            for batch in batches(exact(data)):
                batch.records(SIZE_MAX)
                finish(recompress(batch, chance.choice(list(Codec)), size_max=SIZE_MAX))
        except KafkaError:
            pass


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_mutated_streams_raise_kafka_errors_within_the_bound(codec):
    for seed in range(RUNS // 10):
        chance = random.Random(seed)
        good = RecordBatch(build(good_records(chance), codec=codec)).view[61:]
        try:
            assert len(decompress(codec, exact(spoiled(chance, good)), SIZE_MAX)) <= SIZE_MAX
        except KafkaError:
            pass
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
