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

from kafkalite._ext.record_batch import CONTROL, TRANSACTIONAL, crc32c

_PREFIX = struct.Struct(">qiibI")
"""Base offset, length after it and this field, leader epoch, magic, CRC of the rest."""
_REST = struct.Struct(">hiqqqhii 5b hh b hi b")
"""The header from the attributes on, and the record: length of its 16 bytes, attributes, deltas of
timestamp and offset, key length, key, value length, value, number of headers."""
_LENGTH = _PREFIX.size + _REST.size - 12
_RECORD_LENGTH, _KEY_LENGTH, _VALUE_LENGTH = 2 * 16, 2 * 4, 2 * 6  # zigzag


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
        """Return the control batch of this marker.

        It is packed at once: there is one for each partition of each transaction.
        """
        rest = _REST.pack(
            TRANSACTIONAL | CONTROL, 0, timestamp_ms, timestamp_ms,
            self.producer_id, self.producer_epoch, -1, 1,
            _RECORD_LENGTH, 0, 0, 0, _KEY_LENGTH, 0, self.control_type,
            _VALUE_LENGTH, 0, self.coordinator_epoch, 0,
        )  # fmt: skip
        return _PREFIX.pack(0, _LENGTH, -1, 2, crc32c(rest)) + rest
