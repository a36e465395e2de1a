"""Isolation: what read_committed costs a reader, in CPU time per record that it returns.

The same bytes are decoded in both isolation levels, in alternating runs of one process: a log of
transactions of 16 KiB batches, of which a share is aborted, in ranges as a fetch returns them.
Without aborted transactions both take the same steps.  Estimate for the rest: a skipped batch costs
its CRC, a tenth of its decoding, so one aborted in a hundred costs a thousandth of the time; its
marker and the search among the open transactions cost less than 1 us per batch.

    python -m benchmarks.bench_isolation
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import pytest

from kafkalite._ext.message_reader import RowBuilder
from kafkalite._ext.record_reader import KEY, OFFSET, TIMESTAMP, VALUE, ColumnBuilder
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import BufferedRange
from kafkalite.client.decoding.record_sets import Builder
from kafkalite.client.net.topology import TopicPartition
from kafkalite.records.batch import Record, build
from kafkalite.records.control import TransactionMarker

RECORD_COUNT = 160  # of 100 bytes: a batch of 16 KiB
BATCHES = 4  # of a transaction
SIZE_MAX = 1 << 20
REPEATS = 15
SHARES = (0.0, 0.01, 0.1)

MAKERS: dict[str, Callable[[], Builder]] = {
    "columns": lambda: ColumnBuilder(KEY | VALUE | OFFSET | TIMESTAMP),
    "rows": lambda: RowBuilder("a topic", 0),
}


def transactions(count: int, share: float) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Return a log of transactions, and those that are aborted: a share, evenly spread."""
    log, aborted, offset = [], [], 0
    records = [Record(timestamp=number, value=os.urandom(92)) for number in range(RECORD_COUNT)]
    for number in range(count):
        is_aborted = int((number + 1) * share) > int(number * share)
        if is_aborted:
            aborted.append((number, offset))
        for sequence in range(BATCHES):
            log.append(
                build(
                    records, base_offset=offset, producer_id=number, producer_epoch=0,
                    base_sequence=sequence * RECORD_COUNT, transactional=True,
                )
            )  # fmt: skip
            offset += RECORD_COUNT
        marker = bytearray(TransactionMarker(number, 0, not is_aborted, 0).batch(0))
        marker[:8] = offset.to_bytes(8, "big")
        log.append(bytes(marker))
        offset += 1
    return b"".join(log), tuple(aborted)


def read(log: bytes, aborted: tuple[tuple[int, int], ...], builder: Builder) -> int:
    """Decode a log, and return the number of records."""
    position = Position(TopicPartition("a topic", 0), 0)
    record_range = BufferedRange(position, 0, (0, 1 << 40), aborted, memoryview(log))
    count = 0
    while decode(record_range, builder, SIZE_MAX):
        count += builder.count
        builder.take()
    count += builder.count
    builder.take()
    return count


def committed_against_uncommitted(
    name: str, share: float, count: int, repeats: int = REPEATS
) -> float:
    """Return the records per CPU second of read_committed, where those of the other are 1.0."""
    log, aborted = transactions(count, share)
    builder = MAKERS[name]()
    ratios = []
    for _ in range(repeats):
        costs = []
        for listed in ((), aborted):
            began = time.process_time_ns()
            returned = read(log, listed, builder)
            costs.append((time.process_time_ns() - began) / returned)
        ratios.append(costs[0] / costs[1])
    return median(ratios)


def main() -> None:
    print("aborted    columns       rows")
    for share in SHARES:
        ratios = [committed_against_uncommitted(name, share, 200) for name in MAKERS]
        print(f"{share:6.0%}  " + "".join(f"{ratio:11.3f}" for ratio in ratios))


# Every benchmark is also a test, so that it does not break unnoticed.


@pytest.mark.parametrize("name", MAKERS)
def test_small_isolation(name):
    log, aborted = transactions(10, 0.2)
    assert len(aborted) == 2
    assert read(log, (), MAKERS[name]()) == 10 * BATCHES * RECORD_COUNT
    assert read(log, aborted, MAKERS[name]()) == 8 * BATCHES * RECORD_COUNT
    assert committed_against_uncommitted(name, 0.2, 5, repeats=1) > 0


if __name__ == "__main__":
    main()
