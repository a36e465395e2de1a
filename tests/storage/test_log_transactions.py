"""Transactions in a log: markers, last stable offset, transaction index, snapshots, recovery."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkalite.config.broker import PRODUCER_ID_EXPIRATION_MS
from kafkalite.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    TransactionCoordinatorFenced,
)
from kafkalite.records.batch import batches
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.segment.transaction_index import AbortedTransaction
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.simulation.disk import QuickDisk
from tests.storage.committed import aborted_between, read_committed
from tests.storage.factories import batch, close, open_log, produced

FENCING_EPOCH = (1 << 15) - 1


def add(log: Log, producer_id: int, sequence: int, epoch: int = 0, *, transactional: bool = True):
    """Append a client's batch of one record, verified."""
    content = batch(
        b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
        transactional=transactional,
    )  # fmt: skip
    return log.append(content, 0, guard=NOT_REQUIRED)


def end(log: Log, producer_id: int, *, commit: bool, epoch: int = 0, **fields: int) -> int:
    """Append a marker and return its offset."""
    coordinator_epoch = fields.pop("coordinator_epoch", 0)
    marker = TransactionMarker(producer_id, epoch, commit, coordinator_epoch, **fields)
    return log.append_marker(marker, 0).base_offset


def stable(log: Log, high_watermark: int | None = None) -> int:
    bound = log.end_offset if high_watermark is None else high_watermark
    return log.producers.transactions.last_stable_offset(bound, log.log_start_offset)


def aborted(log: Log) -> list[AbortedTransaction]:
    """Return all entries of the transaction indexes."""
    return [
        entry
        for segment in log.segments
        if segment.transaction_index is not None
        for entry in segment.transaction_index.from_offset(0)
    ]


def index_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.txnindex"))


# -- markers -------------------------------------------------------------------------------------


def test_marker_is_a_control_batch_of_78_bytes(tmp_path):
    log = open_log(tmp_path)
    end(log, 7, commit=True, epoch=3, coordinator_epoch=5)
    found = read(log, 0, 1000, log.end_offset)
    assert found is not None
    (marker,) = batches(found.read())
    assert len(marker) == 78
    header = marker.header
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    (record,) = marker.records()
    assert record.key == bytes.fromhex("0000 0001")
    assert record.value == bytes.fromhex("0000 00000005")


def test_marker_ends_the_open_transaction(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    assert stable(log) == 0
    end(log, 7, commit=True)
    assert stable(log) == 2
    assert [producer.txn_first_offset for producer in log.producers] == [-1]


def test_producer_with_an_open_transaction_does_not_expire(tmp_path):
    log = open_log(tmp_path, {PRODUCER_ID_EXPIRATION_MS: 1_000})
    add(log, 7, 0)
    (producer,) = log.producers
    idle_ms = producer.last_timestamp + 1_000
    log.producers.expire(idle_ms)
    assert [each.producer_id for each in log.producers] == [7]
    end(log, 7, commit=True)
    log.producers.expire(producer.last_timestamp + 1_000)
    assert not log.producers


def test_marker_of_an_older_epoch_is_refused(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0, epoch=4)
    for version in (0, 2):
        with pytest.raises(InvalidProducerEpoch):
            end(log, 7, commit=True, epoch=3, transaction_version=version)
    assert stable(log) == 0


def test_marker_of_version_2_has_a_newer_epoch_than_its_transaction(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0, epoch=4)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 7, commit=True, epoch=4, transaction_version=2)
    end(log, 7, commit=True, epoch=5, transaction_version=2)
    end(log, 7, commit=True, epoch=5, transaction_version=2)  # written again
    assert stable(log) == 3
    assert add(log, 7, 0, epoch=5).base_offset == 3


def test_marker_of_version_2_with_the_fencing_epoch_ends_its_transaction(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0, epoch=FENCING_EPOCH - 1)
    end(log, 7, commit=False, epoch=FENCING_EPOCH, transaction_version=2)
    end(log, 7, commit=False, epoch=FENCING_EPOCH, transaction_version=2)
    assert stable(log) == 3


def test_transaction_with_the_fencing_epoch_is_ended_by_a_marker_with_it(tmp_path):
    # No epoch is left above it: the marker of version 2 has that of its transaction.
    log = open_log(tmp_path)
    add(log, 7, 0, epoch=FENCING_EPOCH)
    end(log, 7, commit=False, epoch=FENCING_EPOCH, transaction_version=2)
    assert stable(log) == 2


def test_marker_of_an_older_coordinator_is_refused(tmp_path):
    log = open_log(tmp_path)
    end(log, 7, commit=True, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, 7, commit=True, coordinator_epoch=4)
    end(log, 7, commit=True, coordinator_epoch=5)


def test_marker_fences_the_producer_of_the_earlier_epoch(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    end(log, 7, commit=False, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        add(log, 7, 1)
    assert add(log, 7, 0, epoch=1).base_offset == 2


def test_marker_with_the_same_epoch_keeps_the_sequences(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    end(log, 7, commit=True)
    assert add(log, 7, 0).duplicate
    assert not add(log, 7, 1).duplicate


def test_marker_without_records_makes_no_index_entry(tmp_path):
    log = open_log(tmp_path)
    end(log, 7, commit=False)
    assert stable(log) == 1
    log.active.finish()
    assert not index_files(tmp_path)


# -- batches of clients --------------------------------------------------------------------------


def test_batch_that_begins_a_transaction_must_be_verified(tmp_path):
    log = open_log(tmp_path)
    how = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    with pytest.raises(InvalidTxnState):
        log.append(batch(b"v", base_sequence=0, **how), 0)
    log.append(batch(b"v", base_sequence=0, **how), 0, guard=NOT_REQUIRED)
    log.append(batch(b"v", base_sequence=1, **how), 0)
    assert log.end_offset == 2


def test_batch_outside_the_open_transaction_is_refused(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    with pytest.raises(InvalidTxnState):
        log.append(produced(1), 0)
    assert log.append(produced(0, producer_id=8), 0).base_offset == 1
    end(log, 7, commit=True)
    assert log.append(produced(1), 0).base_offset == 3


def test_repeated_batch_is_a_duplicate_after_its_transaction_ended(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    end(log, 7, commit=True)
    how = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    assert log.append(batch(b"v", base_sequence=0, **how), 0).duplicate


# -- last stable offset --------------------------------------------------------------------------


def test_last_stable_offset_waits_for_the_oldest_transaction(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    add(log, 2, 0)
    add(log, 3, 0, transactional=False)
    end(log, 2, commit=True)
    assert stable(log) == 0
    add(log, 2, 1)
    end(log, 1, commit=True)
    assert stable(log) == 4
    end(log, 2, commit=False)
    assert stable(log) == log.end_offset


def test_last_stable_offset_waits_for_the_marker_to_be_committed(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    marker = end(log, 1, commit=True)
    assert stable(log, high_watermark=marker) == 0
    assert stable(log, high_watermark=marker + 1) == marker + 1


def test_last_stable_offset_is_not_below_the_log_start(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    for sequence in range(5):
        add(log, 2, sequence, transactional=False)
    log.delete_records(4)
    assert stable(log) == 4


# -- transaction index ---------------------------------------------------------------------------


def test_transaction_index_has_the_bytes_of_the_format(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    add(log, 2, 0)
    end(log, 2, commit=False)
    end(log, 1, commit=False)
    log.active.finish()
    (path,) = index_files(tmp_path)
    assert path.name == "00000000000000000000.txnindex"
    assert path.read_bytes() == bytes.fromhex(
        "0000 0000000000000002 0000000000000001 0000000000000002 0000000000000000"
        "0000 0000000000000001 0000000000000000 0000000000000003 0000000000000004"
    )


def test_entry_is_in_the_segment_of_the_marker(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    log.roll()
    add(log, 1, 1)
    log.roll()
    end(log, 1, commit=False)
    log.active.finish()
    assert [path.name for path in index_files(tmp_path)] == ["00000000000000000002.txnindex"]
    for offset in range(3):
        assert aborted_between(log.segments.with_aborted(offset), offset, offset + 1) == [(1, 0)]


def test_lookup_ends_where_later_transactions_cannot_have_records(tmp_path):
    log = open_log(tmp_path)
    for number in range(50):
        add(log, number, 0)
        end(log, number, commit=False)
    found = aborted_between(log.segments.with_aborted(10), 10, 14)
    assert found == [(5, 10), (6, 12)]


def test_lookup_of_a_read_is_bounded_by_its_bytes(tmp_path):
    log = open_log(tmp_path)
    for number in range(200):
        add(log, number, 0)
        end(log, number, commit=False)
    assert len(read_committed(log, 0, 100, log.end_offset)[1]) < 10


def test_lookup_of_a_read_is_bounded_by_the_end_of_its_segment(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    end(log, 1, commit=False)
    log.roll()
    for number in range(2, 50):
        add(log, number, 0)
        end(log, number, commit=False)
    assert read_committed(log, 0, 1 << 20, log.end_offset)[1] == [(1, 0)]


def test_transaction_index_is_deleted_with_its_segment(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    end(log, 1, commit=False)
    log.roll()
    add(log, 2, 0)
    log.delete_records(2)
    assert not index_files(tmp_path)
    assert not log.segments.with_aborted(2)


def test_flush_covers_the_transaction_index_and_its_name(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    log.flush()
    end(log, 1, commit=False)
    flush = log.flush_begin()
    assert flush is not None
    assert str(index_files(tmp_path)[0]) in [file.path for file in flush.files]
    assert tmp_path in flush.directories


class FullDisk(QuickDisk):
    """A disk without room for transaction indexes while `is_full`."""

    is_full = False

    def pwrite(self, descriptor: int, content: bytes, position: int) -> int:
        if self.is_full and len(content) % 34 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(descriptor, content, position)


def test_flush_is_repeated_while_the_disk_has_no_room_for_the_index(tmp_path):
    disk = FullDisk()
    log = open_log(tmp_path, disk=disk)
    add(log, 1, 0)
    end(log, 1, commit=False)
    disk.is_full = True
    with pytest.raises(KafkaStorageError):
        log.flush_begin()
    assert log.durable_offset == 0
    disk.is_full = False
    log.flush()
    assert log.durable_offset == log.end_offset
    assert index_files(tmp_path)[0].stat().st_size == 34


# -- reopening -----------------------------------------------------------------------------------


def test_open_transactions_are_in_the_snapshot(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    add(log, 2, 0)
    end(log, 2, commit=True, epoch=1, coordinator_epoch=9)
    known = close(log)
    log = open_log(tmp_path, end=known)
    assert stable(log) == 0
    found = {each.producer_id: each for each in log.producers}
    assert found[1].txn_first_offset == 0
    assert (found[2].epoch, found[2].coordinator_epoch) == (1, 9)
    end(log, 1, commit=False)
    assert stable(log) == log.end_offset


@pytest.mark.parametrize("change", ["cut", "removed entry", "repeated entry", "garbage"])
def test_damaged_index_is_made_again_from_the_log(tmp_path, change):
    log = open_log(tmp_path)
    for number in range(5):
        add(log, number, 0)
        log.roll()
        end(log, number, commit=False)
    before = aborted(log)
    known = close(log)
    path = index_files(tmp_path)[2]
    content = path.read_bytes()
    if change == "cut":
        path.write_bytes(content[:-1])
    elif change == "removed entry":
        path.write_bytes(content[:20])
    elif change == "repeated entry":
        path.write_bytes(2 * content)
    else:
        path.write_bytes(bytes(34))
    log = open_log(tmp_path, end=known, recovery_point=log.end_offset)
    assert aborted(log) == before
    assert log.failure is None


def test_damage_of_an_index_is_noticed_again_after_a_crash_during_its_rebuild(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    end(log, 1, commit=False)
    before = aborted(log)
    known = close(log)
    (path,) = index_files(tmp_path)
    path.write_bytes(b"\xff" * 34)
    disk = FullDisk()
    disk.is_full = True
    open_log(tmp_path, end=known, recovery_point=2, disk=disk)
    assert path.read_bytes() == b"\xff" * 34
    log = open_log(tmp_path, recovery_point=2)
    assert aborted(log) == before


def test_incomplete_entry_without_aborted_transactions_is_removed(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    end(log, 1, commit=True)
    known = close(log)
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(bytes(20))
    log = open_log(tmp_path, end=known, recovery_point=2)
    assert aborted(log) == []
    assert path.read_bytes() == b""


def test_unflushed_index_is_rebuilt_after_a_crash(tmp_path):
    log = open_log(tmp_path)
    for number in range(5):
        add(log, number, 0)
        end(log, number, commit=False)
    before = aborted(log)
    assert not index_files(tmp_path)
    log = open_log(tmp_path)
    assert aborted(log) == before
    assert stable(log) == log.end_offset
    assert index_files(tmp_path)


def test_index_entries_above_the_scan_start_are_not_doubled(tmp_path):
    log = open_log(tmp_path)
    add(log, 1, 0)
    end(log, 1, commit=False)
    log.flush()
    add(log, 2, 0)
    end(log, 2, commit=False)
    log.active.write_indexes()
    before = aborted(log)
    log = open_log(tmp_path, recovery_point=2)
    assert aborted(log) == before


# -- any history ---------------------------------------------------------------------------------

producers = st.integers(1, 3)


class Entry(NamedTuple):
    """A batch of the model."""

    offset: int
    producer_id: int
    is_transactional: bool


class AnyHistory(RuleBasedStateMachine):
    """Appends, markers, rolls, deletions, clean and unclean restarts, against a list of batches."""

    @initialize()
    def begin(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.directory = Path(self.place.name) / "t-0"
        self.log = open_log(self.directory)
        self.entries: list[Entry] = []
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.durable = 0

    def teardown(self) -> None:
        self.log.release()
        self.place.cleanup()

    @rule(producer_id=producers, transactional=st.booleans())
    def add(self, producer_id: int, transactional: bool) -> None:
        offset = self.log.end_offset
        try:
            add(self.log, producer_id, self.sequences[producer_id], transactional=transactional)
        except KafkaError as error:
            assert isinstance(error, InvalidTxnState)
            assert producer_id in self.open and not transactional
            return
        assert transactional or producer_id not in self.open
        self.sequences[producer_id] += 1
        self.entries.append(Entry(offset, producer_id, transactional))
        if transactional:
            self.open.setdefault(producer_id, offset)

    @rule(producer_id=producers, commit=st.booleans())
    def end(self, producer_id: int, commit: bool) -> None:
        marker = end(self.log, producer_id, commit=commit)
        first = self.open.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append((producer_id, first, marker))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = self.log.end_offset

    @rule()
    def restart(self) -> None:
        known = close(self.log)
        self.log = open_log(self.directory, end=known, log_start_offset=self.log.log_start_offset)

    @rule()
    def crash(self) -> None:
        start = self.log.log_start_offset
        self.log.release()
        self.log = open_log(
            self.directory, recovery_point=max(self.durable, start), log_start_offset=start
        )

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        span = self.log.end_offset - self.log.log_start_offset
        self.log.delete_records(self.log.log_start_offset + int(share * span))

    @invariant()
    def last_stable_offset_is_the_first_offset_of_the_oldest(self) -> None:
        expected = min(self.open.values(), default=self.log.end_offset)
        assert stable(self.log) == max(expected, self.log.log_start_offset)

    @invariant()
    def index_has_the_aborted_transactions(self) -> None:
        first = self.log.segments[0].base_offset
        expected = [each for each in self.aborted if each[2] >= first]
        assert [each[:3] for each in aborted(self.log)] == expected

    @rule(data=st.data())
    def read_committed(self, data: st.DataObject) -> None:
        """Compare what a client shows with the model, from any offset."""
        log, upper = self.log, stable(self.log)
        if log.log_start_offset >= upper:
            return
        offset = data.draw(st.integers(log.log_start_offset, upper - 1))
        aborted_max = data.draw(st.sampled_from([0, 1, 3, 1 << 30]))
        shown: list[int] = []
        position = offset
        while position < upper:
            found, lookup = read_committed(log, position, 200, upper, aborted_max)
            assert found is not None
            assert len(lookup) <= max(1, aborted_max)
            skipped = dict(reversed(lookup))
            for whole in batches(found.read()):
                header = whole.header
                begun = skipped.get(header.producer_id, 1 << 62) <= header.last_offset
                if header.is_control:
                    ends = header.base_offset
                    rest = [
                        first
                        for producer_id, first in lookup
                        if producer_id == header.producer_id and first > ends
                    ]
                    if begun:
                        skipped[header.producer_id] = min(rest, default=1 << 62)
                elif not (begun and header.is_transactional):
                    shown += range(max(header.base_offset, offset), header.last_offset + 1)
                position = header.last_offset + 1
        expected = [
            entry.offset
            for entry in self.entries
            if offset <= entry.offset < upper
            and not (
                entry.is_transactional
                and any(
                    producer_id == entry.producer_id and first <= entry.offset < last
                    for producer_id, first, last in self.aborted
                )
            )
        ]
        assert shown == expected


AnyHistory.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestAnyHistory = AnyHistory.TestCase
