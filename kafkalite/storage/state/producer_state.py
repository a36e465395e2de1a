"""ProducerStateManager: the last batches of each idempotent producer, to detect duplicates.

A producer assigns sequences to its records for each partition, and each batch has the sequence of
its first record.  The last five batches of a producer are kept: the most it may have in flight.

    sequences of a kept batch                a retry; the response has the batch's old offset
    the sequence after the last one          the next batch
    another sequence                         OutOfOrderSequenceNumber
    an older producer epoch                  InvalidProducerEpoch
    a newer producer epoch                   must begin at sequence 0
    an unknown producer                      accepted with any sequence: its records were deleted,
                                             it expired (producer.id.expiration.ms), or it was
                                             evicted as one of those that wrote least recently

Sequences go up to 2^31 - 1 and continue at 0.

A snapshot holds only the last batch of each producer.  A producer may have five in flight when its
partition is transferred or its node crashes, and sends them again.  So a log that is closed cleanly
passes on the other batches (`retained_batches`, `restore_batches`), and after a crash they are read
from the log (recovery.py).

A `.snapshot` is Kafka's file: i16 version 1, u32 CRC-32C of the rest, i32 count, then for each
producer i64 id, i16 epoch, i32 last sequence, i64 last offset, i32 offset delta, i64 timestamp,
i32 coordinator epoch, i64 first offset of its open transaction or -1.  The file is named by the
offset before which it holds the state.

A transaction of a producer is open from its first transactional batch to its marker
(open_transactions.py).  A marker may raise the producer's epoch, which fences its earlier producer.
The first batch needs the guard of its verification (verification.py).
"""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafkalite._ext.record_batch import CONTROL, TRANSACTIONAL, crc32c
from kafkalite.config.broker import (
    PRODUCER_ID_EXPIRATION_MS,
    PRODUCER_STATE_MAX_PER_PARTITION,
)
from kafkalite.config.settings import Settings
from kafkalite.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
    UnknownServerError,
)
from kafkalite.records.control import ControlType, TransactionMarker
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import Disk, write_file
from kafkalite.storage.state.open_transactions import CompletedTransaction, OpenTransactions
from kafkalite.storage.state.verification import VerificationEntries, VerificationGuard

BATCHES_RETAINED = 5
EVICTED_SHARE = 10
"""A tenth of the producers is evicted when there are too many, so that the choice costs each new
producer some microseconds, and a known one nothing."""

RETAINED_PRODUCERS_MAX = 200
"""Number of producers whose batches are all passed on, those that wrote last: a producer with
batches in flight is one of them."""

UNBOUNDED = 1 << 62
SEQUENCE_MAX = (1 << 31) - 1
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct(">hI")
SNAPSHOT_COUNT = struct.Struct(">i")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")

MARKERS_RAISE_EPOCH_SINCE = 2
"""The transaction version from which a marker has a higher epoch than its transaction (KIP-890)."""
FENCING_EPOCH = (1 << 15) - 1
"""The epoch of a marker of version 2 when the producer's epochs are used up."""
NO_CONTROL_TYPE = -1
NO_PRODUCER_EPOCH = -1


class BatchMetadata(NamedTuple):
    """A batch that its producer may send again."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


RetainedBatches = list[tuple[int, list[BatchMetadata]]]
"""Producer ids, each with the kept batches of that producer."""


class ProducerStateEntry:
    """One producer: its epoch and its last batches."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id",
                 "txn_first_offset")  # fmt: skip

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[BatchMetadata] = []
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.txn_first_offset = -1

    def packed(self) -> bytes:
        last = self.batches[-1] if self.batches else BatchMetadata(-1, -1, -1, -1, -1)
        return SNAPSHOT_ENTRY.pack(
            self.producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.last_offset - last.base_offset,
            self.last_timestamp,
            self.coordinator_epoch,
            self.txn_first_offset,
        )


class ProducerStateManager:
    """The producers of one log."""

    __slots__ = ("_count_max", "_directory", "_disk", "_evicts_from", "_expiration_ms",
                 "_producers", "end_offset", "transactions", "verifications")  # fmt: skip

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._producers: dict[int, ProducerStateEntry] = {}
        self.transactions = OpenTransactions()
        self.verifications = VerificationEntries()
        self._count_max = self._expiration_ms = self._evicts_from = UNBOUNDED
        self.end_offset = 0

    def __iter__(self) -> Iterator[ProducerStateEntry]:
        return iter(self._producers.values())

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        """Return a producer, or None if it is unknown."""
        return self._producers.get(producer_id)

    def check_batch(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        *,
        transactional: int,
        guard: VerificationGuard | None,
    ) -> BatchMetadata | None:
        """Check a client's batch; return the kept batch if it was appended before.

        The guard is that of its verification, and allows it to begin a transaction.

        Raises:
            InvalidProducerEpoch: The producer has a newer epoch.
            OutOfOrderSequenceNumber: It is not the producer's next batch.
            InvalidTxnState: The producer has an open transaction and the batch is outside it, or
                the batch begins a transaction and the producer does not have this guard (any more).
        """
        producer = self._producers.get(producer_id)
        is_next = False
        if producer is not None and epoch == producer.epoch:
            batches = producer.batches
            last_sequence = batches[-1].last_sequence if batches else -1
            is_next = base_sequence == (last_sequence + 1 if last_sequence != SEQUENCE_MAX else 0)
            if not is_next:
                last_sequence = after(base_sequence, last_offset_delta)
                for batch in batches:
                    if batch.base_sequence == base_sequence and (
                        batch.last_sequence == last_sequence
                    ):
                        return batch
        is_open = producer is not None and producer.txn_first_offset >= 0
        if transactional and not (is_open and is_next):
            self.check_transactional(producer_id, epoch, guard)
        if self.verifications.entries:
            self._check_first_sequence(producer_id, epoch, base_sequence)
        if not is_next and producer is not None:
            _refuse_sequence(producer, epoch, base_sequence)
        if is_open and not transactional:
            raise InvalidTxnState(
                f"Producer {producer_id} has an open transaction in this partition; end it first."
            )
        return None

    def check_transactional(
        self, producer_id: int, epoch: int, guard: VerificationGuard | None
    ) -> None:
        """Check that records belong to an open transaction, or may begin one with this guard.

        Raises:
            InvalidProducerEpoch: The producer has a newer epoch.
            InvalidTxnState: They would begin a transaction, and the producer does not have this
                guard (any more).
        """
        if self.has_open_transaction(producer_id, epoch):
            return
        self.check_epoch(producer_id, epoch)
        if not self.verifications.matches(producer_id, guard):
            raise InvalidTxnState("The producer has not added this partition to a transaction.")

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether a producer has an open transaction, with this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.txn_first_offset >= 0 and producer.epoch == epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise InvalidProducerEpoch if the producer has a newer epoch."""
        producer = self._producers.get(producer_id)
        if producer is not None:
            _refuse_older(producer, epoch)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, is_implicit: bool
    ) -> VerificationGuard | None:
        """Return the guard to take before these records are verified; None if their transaction is
        open, so that they need no verification.

        Raises InvalidProducerEpoch if the producer has a newer epoch.
        """
        if self.has_open_transaction(producer_id, epoch):
            return None
        self.check_epoch(producer_id, epoch)
        return self.verifications.begin(
            producer_id, epoch, sequence, now_ms, is_implicit=is_implicit
        )

    def _check_first_sequence(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Raise OutOfOrderSequenceNumber if an earlier batch of the transaction is missing."""
        entry = self.verifications.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return
        producer = self._producers.get(producer_id)
        is_new = producer is None or not producer.batches
        if entry.is_implicit and is_new and base_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"Producer {producer_id} sent sequence {base_sequence} first; expected 0."
            )
        if base_sequence > entry.lowest_sequence:
            raise OutOfOrderSequenceNumber(
                f"Producer {producer_id} sent sequence {base_sequence};"
                f" its transaction begins with {entry.lowest_sequence}."
            )

    def replay(
        self,
        base_offset: int,
        last_offset_delta: int,
        attributes: int,
        timestamp: int,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        control_type: int = NO_CONTROL_TYPE,
        coordinator_epoch: int = -1,
    ) -> CompletedTransaction | None:
        """Note a batch of a producer that is in the log; return the transaction that it ends."""
        is_control = attributes & CONTROL
        if is_control and control_type not in (ControlType.ABORT, ControlType.COMMIT):
            return None  # emptied by compaction, or of a type that readers ignore
        producer = self._producers.get(producer_id)
        if producer is None:
            if len(self._producers) >= self._evicts_from:
                self._evict(self._count_max - 1)
            producer = self._producers[producer_id] = ProducerStateEntry(producer_id, epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.last_timestamp = timestamp
        if attributes & TRANSACTIONAL and self.verifications.entries:
            if is_control:
                self.verifications.transaction_ended(producer_id, epoch)
            else:
                self.verifications.transaction_began(producer_id, epoch)
        if is_control:
            producer.txn_first_offset = -1
            producer.coordinator_epoch = coordinator_epoch
            is_commit = control_type == ControlType.COMMIT
            return self.transactions.end(producer_id, base_offset, is_commit=is_commit)
        if attributes & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset = base_offset
            self.transactions.begin(producer_id, base_offset)
        batches = producer.batches
        if len(batches) == BATCHES_RETAINED:
            del batches[0]
        last_sequence = base_sequence + last_offset_delta
        if base_sequence < 0:  # a coordinator's records have no sequence
            last_sequence = base_sequence
        elif last_sequence > SEQUENCE_MAX:
            last_sequence -= SEQUENCE_MAX + 1
        batches.append(
            BatchMetadata(
                base_sequence,
                last_sequence,
                base_offset,
                base_offset + last_offset_delta,
                timestamp,
            )
        )
        return None

    def check_marker(self, marker: TransactionMarker) -> None:
        """Check that a marker may be written.

        With version 2 a marker has a higher epoch than its transaction.  One with the same epoch
        was written before, or its transaction has no records here; it changes nothing.

        Raises:
            UnknownServerError: A field is negative, as in Kafka.
            InvalidProducerEpoch: The producer has a newer epoch.
            TransactionCoordinatorFenced: A newer coordinator has written a marker.
        """
        if min(marker.producer_id, marker.producer_epoch, marker.transaction_version) < 0:
            raise UnknownServerError(
                f"A marker must have a producer id, an epoch and a transaction version: {marker}."
            )
        producer = self._producers.get(marker.producer_id)
        if producer is None:
            producer = ProducerStateEntry(marker.producer_id, NO_PRODUCER_EPOCH)
        epoch = marker.producer_epoch
        is_old = epoch < producer.epoch
        if marker.transaction_version >= MARKERS_RAISE_EPOCH_SINCE and epoch == producer.epoch:
            is_old = producer.txn_first_offset >= 0 and epoch != FENCING_EPOCH
        if is_old:
            raise InvalidProducerEpoch(
                f"The marker of producer {marker.producer_id} has epoch {epoch}; the producer has"
                f" epoch {producer.epoch}."
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"The marker has coordinator epoch {marker.coordinator_epoch}; a coordinator with"
                f" epoch {producer.coordinator_epoch} has written one."
            )

    def expire(self, now_ms: int) -> None:
        """Remove producers idle for producer.id.expiration.ms, by their records' timestamps, as
        Kafka does."""
        expiration_ms = self._expiration_ms
        silent = [
            producer.producer_id
            for producer in self._producers.values()
            if producer.txn_first_offset < 0 and now_ms - producer.last_timestamp >= expiration_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        self.verifications.expire(now_ms - expiration_ms)

    def reconfigure(self, settings: Settings) -> None:
        """Apply the maximum number of producers and their expiration from these settings."""
        self._expiration_ms = settings[PRODUCER_ID_EXPIRATION_MS]
        self._count_max = self._evicts_from = settings[PRODUCER_STATE_MAX_PER_PARTITION]
        if len(self._producers) > self._count_max:
            self._evict(self._count_max)

    def _evict(self, count_left: int) -> None:
        """Evict the producers that wrote least recently, leaving at most `count_left`, and room
        for new ones."""
        surplus = len(self._producers) - count_left
        count = max(surplus, len(self._producers) // EVICTED_SHARE)
        without = [each for each in self._producers.values() if each.txn_first_offset < 0]
        for producer in heapq.nsmallest(count, without, key=_last_offset):
            del self._producers[producer.producer_id]
        # All of these may have open transactions.  They are not looked through for each new one.
        left = len(self._producers)
        self._evicts_from = max(self._count_max, left + max(1, left // EVICTED_SHARE))

    def clear(self) -> None:
        self._producers.clear()
        self.transactions = OpenTransactions()
        self.verifications = VerificationEntries()
        self.end_offset = 0

    # -- passing on --------------------------------------------------------------------------

    def retained_batches(self) -> RetainedBatches:
        """Return the batches that a snapshot does not hold: those before a producer's last."""
        several = [producer for producer in self if len(producer.batches) > 1]
        latest = heapq.nlargest(
            RETAINED_PRODUCERS_MAX, several, key=lambda producer: producer.batches[-1].last_offset
        )
        return [(producer.producer_id, producer.batches) for producer in latest]

    def restore_batches(self, retained_batches: RetainedBatches) -> None:
        """Add batches that were passed on to those of a snapshot, if the last ones agree."""
        for producer_id, entries in retained_batches:
            producer = self._producers.get(producer_id)
            batches = [BatchMetadata(*entry) for entry in entries]
            if producer is None or not producer.batches or not batches:
                continue
            if batches[-1][:4] == producer.batches[-1][:4]:
                producer.batches = batches

    def lacks_batches(self, since_offset: int) -> bool:
        """Return whether the kept batches of a producer that wrote at `since_offset` or later are
        incomplete: fewer than the maximum, although it has written more.

        Left out: sequences that have wrapped to 0 exactly between two batches.
        """
        return any(
            producer.batches[-1].last_offset >= since_offset
            and len(producer.batches) < BATCHES_RETAINED
            and producer.batches[0].base_sequence > 0
            for producer in self
            if producer.batches
        )

    # -- snapshots ---------------------------------------------------------------------------

    def snapshots(self) -> list[int]:
        """Return the offsets of the snapshots, ascending."""
        names = os.listdir(self._directory)
        offsets = (layout.offset_of(name, layout.SNAPSHOT) for name in names)
        return sorted(offset for offset in offsets if offset is not None)

    def snapshot_path(self, offset: int) -> Path:
        return self._directory / layout.file_name(offset, layout.SNAPSHOT)

    def encoded(self) -> bytes:
        """Return the bytes of a snapshot."""
        rest = SNAPSHOT_COUNT.pack(len(self._producers))
        rest += b"".join(producer.packed() for producer in self._producers.values())
        return SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, crc32c(rest)) + rest

    def take_snapshot(self, offset: int) -> None:
        """Write a snapshot of the state before this offset; not flushed, since a torn one is
        detected by its CRC."""
        write_file(self._disk, self.snapshot_path(offset), self.encoded())

    def load_snapshot(self, offset: int) -> bool:
        """Replace the state by a snapshot's; return False if it is missing or damaged."""
        try:
            content = self.snapshot_path(offset).read_bytes()
            producers = {producer.producer_id: producer for producer in decoded(content)}
        except (OSError, ValueError):
            return False
        self._producers = producers
        self.transactions.restore(
            {
                producer_id: producer.txn_first_offset
                for producer_id, producer in producers.items()
                if producer.txn_first_offset >= 0
            }
        )
        self.end_offset = offset
        return True


def _last_offset(producer: ProducerStateEntry) -> int:
    return producer.batches[-1].last_offset if producer.batches else -1


def _refuse_older(producer: ProducerStateEntry, epoch: int) -> None:
    if epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"Producer {producer.producer_id} sent epoch {epoch},"
            f" older than its epoch {producer.epoch}."
        )


def _refuse_sequence(producer: ProducerStateEntry, epoch: int, base_sequence: int) -> None:
    """Raise the error of a batch that is not the producer's next; return if it begins an epoch."""
    _refuse_older(producer, epoch)
    if epoch > producer.epoch:
        if base_sequence == 0:
            return
        raise OutOfOrderSequenceNumber(
            f"Producer {producer.producer_id} sent sequence {base_sequence} first in epoch {epoch};"
            " expected 0."
        )
    last_sequence = producer.batches[-1].last_sequence if producer.batches else -1
    raise OutOfOrderSequenceNumber(
        f"Producer {producer.producer_id} sent sequence {base_sequence};"
        f" expected {after(last_sequence, 1)}."
    )


def after(sequence: int, count: int) -> int:
    """Return the sequence `count` after this one."""
    later = sequence + count
    return later if later <= SEQUENCE_MAX else later - SEQUENCE_MAX - 1


def is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence comes before another one, at most half of all sequences later."""
    return 0 < (other - sequence) % (SEQUENCE_MAX + 1) <= SEQUENCE_MAX // 2


def decoded(snapshot: bytes) -> list[ProducerStateEntry]:
    """Return the producers in a snapshot; raise ValueError if it is damaged."""
    start = SNAPSHOT_HEADER.size
    if len(snapshot) < start + SNAPSHOT_COUNT.size:
        raise ValueError("the snapshot is shorter than its header")
    version, crc = SNAPSHOT_HEADER.unpack_from(snapshot)
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"version {version} of the snapshot is not supported")
    if crc != crc32c(snapshot[start:]):
        raise ValueError("the CRC of the snapshot does not match")
    (count,) = SNAPSHOT_COUNT.unpack_from(snapshot, start)
    start += SNAPSHOT_COUNT.size
    if len(snapshot) - start != count * SNAPSHOT_ENTRY.size:
        raise ValueError(f"the snapshot does not have the {count} producers of its header")
    return [unpacked(*entry) for entry in SNAPSHOT_ENTRY.iter_unpack(snapshot[start:])]


def unpacked(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerStateEntry:
    producer = ProducerStateEntry(producer_id, epoch)
    producer.last_timestamp = timestamp
    producer.coordinator_epoch = coordinator_epoch
    producer.txn_first_offset = txn_first_offset
    if last_offset >= 0:
        base_sequence = last_sequence - offset_delta if last_sequence >= 0 else last_sequence
        if last_sequence >= 0 > base_sequence:
            base_sequence += SEQUENCE_MAX + 1
        producer.batches.append(
            BatchMetadata(
                base_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp
            )
        )
    return producer
