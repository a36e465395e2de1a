"""Record batches: the cost of validating a batch and of decoding its records.

Both are compared with a copy of the same bytes.  Every produced byte passes `check_client_batch`
once, and most of its time is the CRC.  Estimate: the instruction takes 8 bytes per cycle when three
streams keep it busy, about 25 GB/s, where a copy of bytes in the cache runs at two or three times
that.  Below 0.2 of a copy the check would be the broker's bottleneck.  A single stream,
which waits 3 cycles for each result, reaches a third of it; a table, 2 GB/s.

Records are decoded only by clients, tools and topics with a codec of their own: about 60 ns each
for the objects, and a seventh of that where they are only checked.

    python -m benchmarks.bench_record_batch
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from benchmarks.harness import best_ns
from kafkalite._ext import record_batch, records
from kafkalite.records.batch import Record, RecordBatch, build
from kafkalite.records.compression import Codec, compress, decompress

SIZES = (100, 1 << 10, 16 << 10, 1 << 20)
RECORD_COUNT = 160  # of 100 bytes: a batch of 16 KiB
REPEATS = 30


def batch_of(count: int) -> bytes:
    return build([Record(timestamp=n, value=os.urandom(92)) for n in range(count)])


def crc_against_copy(size: int, repeats: int = REPEATS) -> tuple[float, float]:
    """Return the CRC's nanoseconds, and its speed where a copy of the same bytes is 1.0."""
    payload = bytearray(os.urandom(size))
    crc = best_ns(repeats, lambda: record_batch.crc32c(payload))
    return crc, best_ns(repeats, lambda: bytes(payload)) / crc


def table_against_instruction(size: int, repeats: int = REPEATS) -> float:
    """Return the speed of the table where the implementation chosen at load is 1.0."""
    payload = os.urandom(size)
    chosen = best_ns(repeats, lambda: record_batch.crc32c(payload))
    return chosen / best_ns(repeats, lambda: record_batch.crc32c_by(0, payload))


def check_against_copy(count: int, repeats: int = REPEATS) -> tuple[float, float]:
    batch = bytearray(batch_of(count))
    check_ns = best_ns(repeats, lambda: record_batch.check_client_batch(batch))
    return check_ns, best_ns(repeats, lambda: bytes(batch)) / check_ns


def records_ns(count: int, repeats: int = REPEATS) -> dict[str, float]:
    """Return nanoseconds per record, by operation."""
    payload = bytes(RecordBatch(batch_of(count)).payload())
    whole = batch_of(count)
    decoded = records.decode(payload, count)
    assert isinstance(decoded, list)
    ways: dict[str, Callable[[], object]] = {
        "validate": lambda: records.validate(payload, count),
        "decode": lambda: records.decode(payload, count),
        "encode": lambda: records.encode(decoded),
        "RecordBatch.records": lambda: RecordBatch(whole).records(),
    }
    return {name: best_ns(repeats, way) / count for name, way in ways.items()}


def codecs_mb_s(size: int, repeats: int = REPEATS) -> dict[str, tuple[float, float]]:
    """Return megabytes of text per second, compressing and decompressing."""
    line = '{"carrier": "UA", "flight": %d, "delay": %d}\n'
    text = "".join(line % (n, n * n % 97) for n in range(size // 40)).encode()[:size]
    speeds = {}
    for codec in Codec:
        if codec is not Codec.NONE:
            packed = compress(codec, text)
            packing = best_ns(repeats, lambda codec=codec: compress(codec, text))
            unpacking = best_ns(repeats, lambda codec=codec, it=packed: decompress(codec, it))
            speeds[codec.name.lower()] = (1e3 * size / packing, 1e3 * size / unpacking)
    return speeds


def main() -> None:
    print("CRC-32C      ns      of a copy   table against instruction")
    for size in SIZES:
        crc, ratio = crc_against_copy(size)
        print(f"{size:8d}{crc:10.0f}{ratio:10.2f}{table_against_instruction(size):16.2f}")
    check_ns, ratio = check_against_copy(RECORD_COUNT)
    print(f"check of a 16 KiB batch: {check_ns:.0f} ns, {ratio:.2f} of a copy")
    for name, spent in records_ns(RECORD_COUNT).items():
        print(f"{name:20s}{spent:8.1f} ns a record")
    for name, (packing, unpacking) in codecs_mb_s(16 << 10).items():
        print(
            f"{name:8s} packs {packing:6.0f} MB/s, unpacks {unpacking:6.0f} MB/s, 16 KiB at a time"
        )


# Every benchmark is also a test, so that it does not break unnoticed.


def test_validation_of_a_16_kib_batch_is_within_fifty_copies():
    _, ratio = check_against_copy(RECORD_COUNT, repeats=3)
    assert ratio > 0.02


@pytest.mark.parametrize("size", SIZES)
def test_small_crc(size):
    spent, ratio = crc_against_copy(size, repeats=1)
    assert spent > 0 and ratio > 0
    assert table_against_instruction(size, repeats=1) > 0


def test_small_records():
    assert all(spent > 0 for spent in records_ns(10, repeats=1).values())


def test_small_codecs():
    assert len(codecs_mb_s(1 << 10, repeats=1)) == 4


if __name__ == "__main__":
    main()
