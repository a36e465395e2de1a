"""A log against a list: random appends, rolls, reads, deletions, clean closes and crashes.

The model is a list of (value, timestamp) under offsets from its start.  A crash cuts the last
segment's file anywhere above what was flushed, or writes garbage behind it; the recovered log must
be a prefix that holds everything that was flushed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import OffsetOutOfRange, OutOfOrderSequenceNumber
from kafkalite.records.batch import Codec
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.segment.segment import LogSegment
from tests.simulation.disk import QuickDisk
from tests.storage.factories import NOW, batch, close, found_since, open_log, produced, records_of

PRODUCER = 7


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="log-machine-"))
        self.clock = ManualClock()
        self.records: list[tuple[bytes, int]] = []  # from offset 0 on
        self.sent: list[tuple[int, int, int]] = []  # (offset, first sequence, count)
        self.start = 0
        self.flushed = 0

    def teardown(self) -> None:
        self.log.release()
        shutil.rmtree(self.directory)

    @initialize(fsync=st.booleans(), interval=st.sampled_from([0, 150, 4096]))
    def begin(self, fsync: bool, interval: int) -> None:
        self.values = {
            keys.DURABILITY: "fsync" if fsync else "os",
            keys.INDEX_INTERVAL_BYTES: interval,
            keys.SEGMENT_BYTES: 700,
        }
        self.log = open_log(self.directory, self.values, self.clock)

    @property
    def end(self) -> int:
        return len(self.records)

    # -- appends -----------------------------------------------------------------------------

    @rule(
        values=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
        late=st.integers(-1000, 1000),
        codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    )
    def append(self, values: list[bytes], late: int, codec: Codec) -> None:
        timestamp = NOW + late
        placed = self.log.append(batch(*values, timestamp=timestamp, codec=codec), 0)
        assert (placed.base_offset, placed.last_offset) == (self.end, self.end + len(values) - 1)
        self.records += [(value, timestamp + i) for i, value in enumerate(values)]

    @rule(count=st.integers(1, 4))
    def append_idempotent(self, count: int) -> None:
        sequence = self.sent[-1][1] + self.sent[-1][2] if self.sent else 0
        values = [b"p%d" % (sequence + i) for i in range(count)]
        placed = self.log.append(produced(sequence, *values, producer_id=PRODUCER), 0)
        assert not placed.duplicate
        self.sent.append((placed.base_offset, sequence, count))
        self.records += [(value, NOW + i) for i, value in enumerate(values)]

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 6))
    def append_again(self, back: int) -> None:
        offset, sequence, count = self.sent[-1 - min(back, len(self.sent) - 1)]
        again = produced(sequence, *[b"again"] * count, producer_id=PRODUCER)
        if back < 5 or len(self.sent) <= 5:
            try:
                placed = self.log.append(again, 0)
            except OutOfOrderSequenceNumber:
                # A snapshot holds only the last batch of a producer, as in Kafka.
                assert back > 0 and self.reopened
            else:
                assert (placed.base_offset, placed.duplicate) == (offset, True)

    reopened = False

    # -- rolls, flushes and deletions --------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def settle(self) -> None:
        self.log.write_index_page()

    @rule()
    def flush(self) -> None:
        flush = self.log.flush_begin()
        if flush is not None:
            flush.run(QuickDisk())
            self.log.flush_end(flush)
        self.flushed = self.end

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        before = self.start + int(share * (self.end - self.start))
        assert self.log.delete_records(before) == max(self.start, before)
        self.start = max(self.start, before)

    @rule(size=st.sampled_from([0, 500, 2000]))
    def retain(self, size: int) -> None:
        self.log.reconfigure(
            self.log.config.settings.replacing({**self.values, keys.RETENTION_BYTES: size})
        )
        self.log.flush()
        self.flushed = self.end
        self.log.retain()
        assert self.start <= self.log.log_start_offset <= self.end
        assert self.log.size - self.log.segments[0].size < max(size, 1)
        self.start = self.log.log_start_offset

    # -- closes and crashes ------------------------------------------------------------------

    @rule()
    def close_and_open(self) -> None:
        end = close(self.log)
        assert end is not None
        self.flushed = self.end
        self.log = open_log(
            self.directory, self.values, self.clock, end=end, log_start_offset=self.start
        )
        self.reopened = True

    @rule(share=st.floats(0, 1), garbage=st.binary(max_size=80))
    def crash(self, share: float, garbage: bytes) -> None:
        active: LogSegment = self.log.active
        size, kept = active.size, active.boundary(max(self.flushed, active.base_offset))
        assert kept is not None
        self.log.release()
        # Nothing flushed is lost; a part of the rest is, and its last batch is torn.
        os.truncate(active.path, kept + int(share * (size - kept)))
        with active.path.open("ab") as file:
            file.write(garbage)
        self.log = open_log(
            self.directory, self.values, self.clock,
            recovery_point=self.flushed, log_start_offset=self.start,
        )  # fmt: skip
        assert self.flushed <= self.log.end_offset <= self.end
        del self.records[self.log.end_offset :]
        self.sent = [entry for entry in self.sent if entry[0] < self.end]
        if self.start > self.flushed and self.log.size == 0 and not self.log.producers:
            self.sent.clear()  # deleted, and then lost before a snapshot held it
        self.start = min(self.start, self.end)
        self.flushed = self.end
        self.reopened = True

    # -- invariants --------------------------------------------------------------------------

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.log_start_offset, self.log.end_offset) == (self.start, self.end)
            assert self.log.durable_offset <= self.log.end_offset

    @rule(share=st.floats(0, 1))
    def read(self, share: float) -> None:
        offset = self.start + int(share * (self.end - self.start))
        found = [(record.value, record.timestamp) for record in records_of(self.log, offset)]
        assert found == self.records[offset:]

    @rule(offset=st.integers(-2, 100))
    def read_outside(self, offset: int) -> None:
        if not self.start <= offset <= self.end:
            with pytest.raises(OffsetOutOfRange):
                read(self.log, offset, 100, self.end)

    @rule(late=st.integers(-1001, 1005))
    def find_timestamp(self, late: int) -> None:
        found = found_since(self.log, NOW + late)
        wanted = next(
            (
                offset
                for offset, (_, when) in enumerate(self.records)
                if offset >= self.start and when >= NOW + late
            ),
            None,
        )
        assert (None if found is None else found.offset) == wanted


LogMachine.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestLogAgainstAList = LogMachine.TestCase


@pytest.mark.faults
class TestLogAgainstALongList(LogMachine.TestCase):
    settings = hypothesis_settings(max_examples=2000, stateful_step_count=60, deadline=None)
