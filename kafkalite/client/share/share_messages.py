"""ShareMessage and ShareBatch: records of a share group, with methods to acknowledge them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite._ext.message_reader import Message
from kafkalite.client.share.acquired_partition import Acknowledgement, AcquiredPartition, Runs

if TYPE_CHECKING:
    import pyarrow as pa

REPR_LENGTH_MAX = 200


class AcquiredItem:
    """Records that are acknowledged together: a message or a batch.

    Acknowledgements are sent with the next calls of the consumer.  A record can be acknowledged
    once; its lock can be renewed before that by the consumer's renew().
    """

    __slots__ = ("acquired", "delivery_count", "is_acknowledged")

    def __init__(self, acquired: AcquiredPartition, delivery_count: int) -> None:
        """Create an item; consumers do.

        Args:
            acquired: The records that were acquired together.
            delivery_count: Number of deliveries, this one included.
        """
        self.acquired = acquired
        self.delivery_count = delivery_count
        """Number of deliveries of the records, this one included."""
        self.is_acknowledged = False
        """True after accept(), release() or reject(), also by the consumer."""

    @property
    def runs(self) -> Runs:
        """First and last offsets of the consecutive records."""
        raise AssertionError("every item has offsets")

    def accept(self) -> None:
        """Acknowledge the records as processed: they are not delivered again.

        Raises:
            RuntimeError: They are acknowledged already.
        """
        self.acknowledge(Acknowledgement.ACCEPT)

    def release(self) -> None:
        """Make the records available again, to this or another member.

        After as many deliveries as the group allows they are not delivered any more.

        Raises:
            RuntimeError: They are acknowledged already.
        """
        self.acknowledge(Acknowledgement.RELEASE)

    def reject(self) -> None:
        """Have the records not delivered again, although they were not processed.

        Raises:
            RuntimeError: They are acknowledged already.
        """
        self.acknowledge(Acknowledgement.REJECT)

    def acknowledge(self, kind: Acknowledgement, is_reported: bool = True) -> None:
        """Acknowledge the records.

        Args:
            kind: Type of the acknowledgement.
            is_reported: Whether the application learns the outcome.

        Raises:
            RuntimeError: They are acknowledged already.
        """
        if self.is_acknowledged:
            raise RuntimeError(f"{self!r} is acknowledged already.")
        self.is_acknowledged = True
        self.acquired.acknowledge(self.runs, kind, is_reported)


class ShareMessage(AcquiredItem):
    """A record of a share group: the attributes of a Message, and its acknowledgement.

    Args:
        acquired: The records that were acquired together.
        delivery_count: Number of deliveries, this one included.
        record: The record as it was read.
    """

    __slots__ = ("record",)

    def __init__(self, acquired: AcquiredPartition, delivery_count: int, record: Message) -> None:
        super().__init__(acquired, delivery_count)
        self.record = record
        """The record as a Message, without the means to acknowledge it."""

    @property
    def runs(self) -> Runs:
        """The offset of the record, as first and last one."""
        return ((self.record.offset, self.record.offset),)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """Partition number."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """Offset in the partition."""
        return self.record.offset

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970, or None for a record without a timestamp."""
        return self.record.timestamp

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime."""
        return self.record.timestamp_type

    @property
    def key(self) -> bytes | None:
        """Key bytes, or None."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """Value bytes, or None for a tombstone."""
        return self.record.value

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """List of (name, value) pairs; a new list on each access."""
        return self.record.headers

    def __repr__(self) -> str:
        return f"Share{self.record!r:.{REPR_LENGTH_MAX}} delivery_count={self.delivery_count}"


class ShareBatch(AcquiredItem):
    """Records of a share group as columns, all of one partition and with one delivery count.

    Args:
        acquired: The records that were acquired together.
        delivery_count: Number of deliveries, this one included.
        records: The records.
        runs: First and last offsets of consecutive records.
    """

    __slots__ = ("_runs", "records")

    def __init__(
        self,
        acquired: AcquiredPartition,
        delivery_count: int,
        records: pa.RecordBatch,
        runs: Runs,
    ) -> None:
        super().__init__(acquired, delivery_count)
        self.records = records
        """The records as a pyarrow.RecordBatch, with the columns of Consumer.batches()."""
        self._runs = runs

    @property
    def runs(self) -> Runs:
        """First and last offsets of the consecutive records."""
        return self._runs

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.acquired.partition.topic

    @property
    def partition(self) -> int:
        """Partition number."""
        return self.acquired.partition.partition

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self.records.num_rows)

    def __repr__(self) -> str:
        return (
            f"ShareBatch(topic={self.topic!r}, partition={self.partition}, runs={self.runs!r},"
            f" delivery_count={self.delivery_count})"
        )
