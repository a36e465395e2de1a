"""ProducerStateManager: what each idempotent producer wrote last, so that a retry is no duplicate.

A producer numbers its records for each partition, and each batch carries the number of its first.
The last five batches of a producer are remembered, which is how many it may have under way:

    a batch remembered with these numbers        a retry; answered with its old offset
    the number after the last one                next
    another number                               OutOfOrderSequenceNumber
    an older producer epoch                      InvalidProducerEpoch
    a newer producer epoch                       must begin at 0
    a producer that is not known                 taken as it comes: its records were deleted, or it
                                                 was silent for producer.id.expiration.ms, or
                                                 wrote least recently of too many

Numbers go up to 2^31 - 1 and begin again at 0.

A snapshot tells of a producer's last batch only, and a producer may have five under way when its
partition moves or its node dies, and sends them again.  So a log that ends well hands on the others
(`remembered`, `recall`), and after a crash they are read from the log (recovery.py).

A `.snapshot` is Kafka's file: i16 version 1, u32 CRC-32C of the rest, i32 count, then for each
producer i64 id, i16 epoch, i32 last sequence, i64 last offset, i32 offset delta, i64 timestamp,
i32 coordinator epoch, i64 first offset of its open transaction or -1.  It holds a producer's last
batch only.  It is named by the offset it stands before.

Left out: checking transactions.  An open one is carried along as the log shows it, so that
snapshots are true; which markers may be written, and the last stable offset, are not here.
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
from kafkalite.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from kafkalite.storage import layout
from kafkalite.storage.disk import Disk, write_file

BATCHES_REMEMBERED = 5
FORGOTTEN_SHARE = 10
"""A tenth of the producers is forgotten when there are too many, so that the choice costs each new
producer some microseconds, and a known one nothing."""

HANDED_ON_MAX = 200
"""Of so many producers, those that wrote last, all batches are handed on: who has something under
way is one of them."""

UNBOUNDED = 1 << 62
SEQUENCE_MAX = (1 << 31) - 1
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct(">hI")
SNAPSHOT_COUNT = struct.Struct(">i")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class Remembered(NamedTuple):
    """A batch that may be sent again."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


Handed = list[tuple[int, list[Remembered]]]
"""Producers by their ids, each with the batches remembered of it."""


class Producer:
    """One producer: its epoch and its last batches."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id",
                 "txn_first_offset")  # fmt: skip

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[Remembered] = []
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.txn_first_offset = -1

    def packed(self) -> bytes:
        last = self.batches[-1] if self.batches else Remembered(-1, -1, -1, -1, -1)
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

    __slots__ = ("_count_max", "_directory", "_disk", "_expiration_ms", "_producers", "end_offset")

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._producers: dict[int, Producer] = {}
        self._count_max = self._expiration_ms = UNBOUNDED
        self.end_offset = 0

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def __len__(self) -> int:
        return len(self._producers)

    def judge(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> Remembered | None:
        """Refuse a batch that is not next; the old one when this is a retry, else None."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        if epoch == producer.epoch:
            batches = producer.batches
            last_sequence = batches[-1].last_sequence if batches else -1
            expected = last_sequence + 1 if last_sequence != SEQUENCE_MAX else 0
            if base_sequence == expected:
                return None
            last_sequence = after(base_sequence, last_offset_delta)
            for batch in batches:
                if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return batch
            raise OutOfOrderSequenceNumber(
                f"Producer {producer_id} sent sequence {base_sequence} where {expected} follows."
            )
        if epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"Producer {producer_id} sent epoch {epoch}, which {producer.epoch} has replaced."
            )
        if base_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"Producer {producer_id} began epoch {epoch} with sequence {base_sequence}, not 0."
            )
        return None

    def replay(
        self,
        base_offset: int,
        last_offset_delta: int,
        attributes: int,
        timestamp: int,
        producer_id: int,
        epoch: int,
        base_sequence: int,
    ) -> None:
        """A batch of this producer stands in the log."""
        producer = self._producers.get(producer_id)
        if producer is None:
            if len(self._producers) >= self._count_max:
                self._forget_some(self._count_max - 1)
            producer = self._producers[producer_id] = Producer(producer_id, epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.last_timestamp = timestamp
        if attributes & CONTROL:
            producer.txn_first_offset = -1
            return
        if attributes & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset = base_offset
        batches = producer.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        last_sequence = base_sequence + last_offset_delta
        if last_sequence > SEQUENCE_MAX:
            last_sequence -= SEQUENCE_MAX + 1
        batches.append(
            Remembered(
                base_sequence,
                last_sequence,
                base_offset,
                base_offset + last_offset_delta,
                timestamp,
            )
        )

    def expire(self, now_ms: int) -> None:
        """Forget producers silent for so long, by their records' own time, as Kafka does."""
        expiration_ms = self._expiration_ms
        silent = [
            producer.producer_id
            for producer in self._producers.values()
            if producer.txn_first_offset < 0 and now_ms - producer.last_timestamp >= expiration_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]

    def reconfigure(self, settings: Settings) -> None:
        """Take how many producers are remembered, and for how long, from these settings."""
        self._expiration_ms = settings[PRODUCER_ID_EXPIRATION_MS]
        self._count_max = settings[PRODUCER_STATE_MAX_PER_PARTITION]
        if len(self._producers) > self._count_max:
            self._forget_some(self._count_max)

    def _forget_some(self, count_left: int) -> None:
        """Forget those that wrote least recently, so that at most so many are left, and room."""
        surplus = len(self._producers) - count_left
        count = max(surplus, len(self._producers) // FORGOTTEN_SHARE)
        without = [each for each in self._producers.values() if each.txn_first_offset < 0]
        for producer in heapq.nsmallest(count, without, key=_last_offset):
            del self._producers[producer.producer_id]

    def clear(self) -> None:
        self._producers.clear()
        self.end_offset = 0

    # -- handed on ---------------------------------------------------------------------------

    def remembered(self) -> Handed:
        """What a snapshot does not tell: the batches before a producer's last."""
        several = [producer for producer in self if len(producer.batches) > 1]
        latest = heapq.nlargest(
            HANDED_ON_MAX, several, key=lambda producer: producer.batches[-1].last_offset
        )
        return [(producer.producer_id, producer.batches) for producer in latest]

    def recall(self, remembered: Handed) -> None:
        """Add what was handed on to what a snapshot told, where the two speak of the same."""
        for producer_id, entries in remembered:
            producer = self._producers.get(producer_id)
            batches = [Remembered(*entry) for entry in entries]
            if producer is None or not producer.batches or not batches:
                continue
            if batches[-1][:4] == producer.batches[-1][:4]:
                producer.batches = batches

    def lacks_batches(self, since_offset: int) -> bool:
        """Return whether a producer that wrote at `since_offset` or later is known to have written
        more than is remembered of it, and is remembered by fewer batches than it may be.

        Left out: numbers that have begun again at 0, exactly between two batches.
        """
        return any(
            producer.batches[-1].last_offset >= since_offset
            and len(producer.batches) < BATCHES_REMEMBERED
            and producer.batches[0].base_sequence > 0
            for producer in self
            if producer.batches
        )

    # -- snapshots ---------------------------------------------------------------------------

    def snapshots(self) -> list[int]:
        """The offsets for which there are snapshots, growing."""
        names = os.listdir(self._directory)
        offsets = (layout.offset_of(name, layout.SNAPSHOT) for name in names)
        return sorted(offset for offset in offsets if offset is not None)

    def snapshot_path(self, offset: int) -> Path:
        return self._directory / layout.file_name(offset, layout.SNAPSHOT)

    def encoded(self) -> bytes:
        """A snapshot's bytes."""
        rest = SNAPSHOT_COUNT.pack(len(self._producers))
        rest += b"".join(producer.packed() for producer in self._producers.values())
        return SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, crc32c(rest)) + rest

    def take_snapshot(self, offset: int) -> None:
        """Write what stands before this offset; not flushed, since a torn one is recognised."""
        write_file(self._disk, self.snapshot_path(offset), self.encoded())

    def load_snapshot(self, offset: int) -> bool:
        """Take up what a snapshot says; False when it does not check."""
        try:
            content = self.snapshot_path(offset).read_bytes()
            producers = {producer.producer_id: producer for producer in decoded(content)}
        except (OSError, ValueError):
            return False
        self._producers = producers
        self.end_offset = offset
        return True


def _last_offset(producer: Producer) -> int:
    return producer.batches[-1].last_offset if producer.batches else -1


def after(sequence: int, count: int) -> int:
    """The sequence number `count` after this one."""
    later = sequence + count
    return later if later <= SEQUENCE_MAX else later - SEQUENCE_MAX - 1


def decoded(snapshot: bytes) -> list[Producer]:
    """The producers of a snapshot; ValueError when its bytes do not check."""
    start = SNAPSHOT_HEADER.size
    if len(snapshot) < start + SNAPSHOT_COUNT.size:
        raise ValueError("shorter than its header")
    version, crc = SNAPSHOT_HEADER.unpack_from(snapshot)
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"version {version} is not known")
    if crc != crc32c(snapshot[start:]):
        raise ValueError("its CRC does not hold")
    (count,) = SNAPSHOT_COUNT.unpack_from(snapshot, start)
    start += SNAPSHOT_COUNT.size
    if len(snapshot) - start != count * SNAPSHOT_ENTRY.size:
        raise ValueError(f"it does not hold the {count} producers it announces")
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
) -> Producer:
    producer = Producer(producer_id, epoch)
    producer.last_timestamp = timestamp
    producer.coordinator_epoch = coordinator_epoch
    producer.txn_first_offset = txn_first_offset
    if last_offset >= 0:
        base_sequence = last_sequence - offset_delta
        if base_sequence < 0:
            base_sequence += SEQUENCE_MAX + 1
        producer.batches.append(
            Remembered(
                base_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp
            )
        )
    return producer
