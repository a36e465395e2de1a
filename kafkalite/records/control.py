"""Control records: the markers that end a transaction in the log of one of its partitions.

    batch     transactional and control bits set, producer id and epoch, base sequence -1, 1 record
    key       i16 version 0, i16 type: 0 abort, 1 commit; readers ignore other types
    value     i16 version 0, i32 epoch of the transaction coordinator

A batch is read by `_ext.record_batch.control_record`.

Source: KIP-98; EndTxnMarker of Apache Kafka.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from kafkalite.records import batch as record_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """Type of a control record."""

    ABORT = 0
    COMMIT = 1


class TransactionMarker(NamedTuple):
    """A marker, as a coordinator sends it to the leader of a partition."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = 0

    @property
    def control_type(self) -> ControlType:
        return ControlType.COMMIT if self.is_commit else ControlType.ABORT

    def batch(self, timestamp_ms: int) -> bytes:
        """Return the control batch of this marker."""
        record = record_batch.Record(
            timestamp=timestamp_ms,
            key=_KEY.pack(0, self.control_type),
            value=_VALUE.pack(0, self.coordinator_epoch),
        )
        return record_batch.build(
            [record],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transactional=True,
            control=True,
        )
