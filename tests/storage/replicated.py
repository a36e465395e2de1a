"""Batches as a leader sends them, and the state of a log that follows from its batches."""

from __future__ import annotations

from typing import Any

from kafkalite._ext.record_batch import HEADER_SIZE, assign_offset, header
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log.log import Log
from tests.storage.factories import NOW, batch


def placed(content: bytes, base_offset: int, epoch: int = 0) -> bytes:
    """Return a batch as the leader of an epoch has appended it."""
    head = bytearray(content[:HEADER_SIZE])
    assign_offset(head, base_offset, epoch)
    return bytes(head) + content[HEADER_SIZE:]


def last_offset(content: bytes) -> int:
    fields = header(content)
    return int(fields[0] + fields[6])


def marker(producer_id: int, *, commit: bool) -> bytes:
    """Return a transaction marker."""
    return bytes(TransactionMarker(producer_id, 0, commit, 0, 0).batch(NOW))


def transactional(producer_id: int, sequence: int, value: bytes) -> bytes:
    return batch(
        value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        transactional=True,
    )  # fmt: skip


def state_of(log: Log) -> dict[str, Any]:
    """Return the producers, transactions, leader epochs and aborted transactions of a log."""
    return {
        "producers": {
            each.producer_id: (
                each.epoch, each.batches, each.last_timestamp, each.coordinator_epoch,
                each.txn_first_offset,
            )
            for each in log.producers
        },
        "open": list(log.producers.transactions),
        "stable": log.producers.transactions.last_stable_offset(
            log.end_offset, log.log_start_offset
        ),
        "epochs": (log.leader_epochs.epochs, log.leader_epochs.starts, log.leader_epochs.latest),
        "aborted": [
            entry for index in log.segments.transaction_indexes() for entry in index.from_offset(0)
        ],
    }  # fmt: skip


def bytes_of(log: Log) -> bytes:
    """Return the batches of all segments, as they are in the files."""
    return b"".join(segment.path.read_bytes()[: segment.size] for segment in log.segments)
