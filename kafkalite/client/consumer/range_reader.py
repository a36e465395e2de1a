"""Range reader: reads offset ranges of partitions as Arrow columns, one range after another.

    with RangeReader("127.0.0.1:9092") as reader:
        for batch in reader.read(("flights", 0), 0, 1_000_000):
            ...                                            # pyarrow.RecordBatch

    start ≤ offset < end        gaps may be anywhere, also at the end: compaction, transaction
                                markers, records of aborted transactions

Lost records are reported as RecordsLost, which is raised or passed to a callback; after the
callback the rest of the range is read:

    A  the log start offset is after the start    the start was deleted, maybe during the read
    B  the log ends before the range does         it was truncated or recreated
    C  the topic or the partition does not exist
    D  the topic has another id                   nothing of the range exists any more

When no records arrive for STALL_S, the leader is asked for the state of the log (log_state.py): a
range that ends in a gap ends, and one that waits for a transaction or a leader waits.

Connections are kept for the next range.  While a batch is processed the next fetch is in flight; no
fetch starts at or after the end of the range.  Not thread-safe, and not usable after a fork.

Left out: reading ranges in parallel; the first fetch of a range follows the last record of the one
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from kafkalite.client.consumer.assignment_reader import AssignmentReader
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.log_state import LogState, fetch_log_state
from kafkalite.client.consumer.positions import BoundedPosition
from kafkalite.client.consumer.record_range import RecordRange, ShortRead
from kafkalite.client.decoding.arrow_batches import ColumnReader, rows_below
from kafkalite.client.net import offset_requests
from kafkalite.client.net.arguments import checked_offset, checked_partition, checked_size
from kafkalite.client.net.cluster import ClientClosed, Cluster
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, ClientSettings, consumer_settings
from kafkalite.client.net.topology import TopicPartition, partition_name
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import CHECK_CRCS
from kafkalite.config.client_keywords import ConsumerConfig
from kafkalite.errors import (
    KafkaError,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE = 2 << 20
"""Default size of a batch in bytes, approximate."""

STALL_S = 1.0
"""Seconds without records before the state of the log is requested."""
LAG_S = 2.0
"""Seconds in which a node may not know a topic, or the high watermark, that others know."""
GAP_WAIT_MS = 2_000
"""Maximum wait at the leader for records before a gap is accepted: a leader that reads a segment
from remote storage first returns an empty response.
"""


class RecordsLost(Exception):
    """Records of an offset range do not exist any more.

    Args:
        partition: Partition of the range.
        start: First offset that was not read.
        end: First offset after the range.
        resumed_at: Offset at which the read continues if it is not ended; `end` if none of the
            remaining records exist.
        reason: The reason as text.
    """

    def __init__(
        self, partition: TopicPartition, start: int, end: int, resumed_at: int, reason: str
    ) -> None:
        super().__init__(
            f"Records of {partition_name(partition)} in the offsets {start} to {end - 1} are lost:"
            f" {reason.rstrip('.')}."
        )
        self.partition = partition
        self.start = start
        self.end = end
        self.resumed_at = resumed_at
        self.reason = reason


OnLost = Callable[[RecordsLost], None]


class RangeReader:
    """Reads offset ranges of partitions as Arrow record batches.

    Each range is read to its end, or an error is raised: unlike a consumer it has no position of
    its own, no group, and no reset to another offset.  One range is read at a time, in one thread;
    connections stay open for the next.

    Example:
        with RangeReader("127.0.0.1:9092") as reader:
            for batch in reader.read(("flights", 0), 0, 1000, columns=["offset", "value"]):
                print(batch.num_rows)
    """

    def __init__(self, bootstrap: Bootstrap = None, **settings: Unpack[ConsumerConfig]) -> None:
        """Create a reader; it connects when the first range is read.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys
                ("fetch.max.bytes": 1048576).
            settings: A consumer's keys with underscores (`isolation_level="read_committed"`).
                Those of groups and of resets have no effect.

        Raises:
            InvalidConfig: A setting is unknown, invalid or given twice.
            ModuleNotFoundError: pyarrow is not installed.
        """
        self._settings = consumer_settings(bootstrap, settings)
        require_pyarrow("Record batches of a RangeReader are Arrow columns")
        self._connections: RangeConnections | None = None
        self._reading: object | None = None
        """Identifies the read in progress."""
        self._closed = False

    def close(self) -> None:
        """Close the reader and its connections; a second call does nothing."""
        self._closed = True
        self._disconnect()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(
        self,
        partition: tuple[str, int],
        start: int,
        end: int,
        *,
        columns: Sequence[str] | None = None,
        timestamp_unit: str = "ms",
        max_bytes: int = BATCH_SIZE,
        topic_id: bytes | None = None,
        on_lost: OnLost | None = None,
        timeout: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the records of an offset range, in order.

        Args:
            partition: (topic, partition).
            start: First offset, at least 0.
            end: First offset that is left out.  Records that are not written yet are not waited
                for: an end after the log's is lost records.
            columns: Columns to decode, in the order given: some of key, value, topic, partition,
                offset, timestamp, timestamp_type and headers.  None: all.
            timestamp_unit: "ms", "us" or "ns".
            max_bytes: Approximate maximum size of a batch in bytes, at least 1; a record batch as
                sent by a producer is never split.
            topic_id: Expected id of the topic (16 bytes), as a guard against a recreated topic of
                the same name.  None: any.
            on_lost: Called with a RecordsLost instead of raising it, after which the records that
                still exist are read.  It may raise to end the read.
            timeout: Seconds without new records after which the read fails, not counting the time
                between two batches; None: default.api.timeout.ms.

        Returns:
            An iterator of pyarrow.RecordBatch.  Closing it early also closes the connections.

        Raises:
            RecordsLost: Records of the range were deleted or truncated, or the topic, its partition
                or its expected id does not exist.
            RequestTimedOut: No records arrived for `timeout` seconds.
            CorruptMessage: A batch is damaged.
            KafkaError: An error that is not retriable, such as TopicAuthorizationFailed.
            InvalidConfig: An unknown column or timestamp unit.
            ValueError: An offset or `max_bytes` is out of its bounds.
            RuntimeError: The iterator of another range has not ended.
            ClientClosed: The reader was closed.
        """
        place = checked_partition(partition)
        start, end = checked_offset(start, "start"), checked_offset(end, "end")
        wanted = self._column_reader(columns, timestamp_unit)
        max_bytes = checked_size(max_bytes, "max_bytes")
        timeout_s = self._settings.call_timeout_s if timeout is None else limit_s(timeout)
        read = RangeRead(BoundedPosition(place, start, end), topic_id, on_lost, timeout_s)
        names = wanted.schema.names
        if "offset" in names:
            return self._read(read, wanted, max_bytes)
        with_offset = self._column_reader([*names, "offset"], timestamp_unit)
        return (batch.select(names) for batch in self._read(read, with_offset, max_bytes))

    def _column_reader(self, columns: Sequence[str] | None, timestamp_unit: str) -> ColumnReader:
        if self._closed:
            raise ClientClosed
        return ColumnReader(columns, timestamp_unit, self._settings[CHECK_CRCS])

    def metrics(self) -> dict[str, Any]:
        """Return the reader's metrics.

        Returns:
            `transports`: the transport of each node id, "direct" or "tcp".
        """
        connections = self._connections
        return {"transports": {} if connections is None else connections.reader.transports.kinds}

    def _read(
        self, read: RangeRead, columns: ColumnReader, max_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        if read.done:
            return
        if self._closed:
            raise ClientClosed
        if self._reading is not None:
            raise RuntimeError(
                "A range reader reads one range at a time: read the current one to its end, or"
                " close its iterator."
            )
        self._reading = read
        is_idle = False
        """True once no fetch is in flight, which would disturb the next range."""
        try:
            connections = self._connections = self._connections or RangeConnections(self._settings)
            yield from read.batches(connections, columns, max_bytes)
            is_idle = read.position.ahead >= read.position.end
            connections.reader.assign(())
        finally:
            self._reading = None
            if not is_idle:
                self._disconnect()

    def _disconnect(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()


class RangeConnections:
    """The assignment reader of a range reader, with its connections."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster(settings)
        self._waker = Waker()
        self.reader = AssignmentReader(self.cluster, settings, "fetch", self._waker, strict=True)

    def close(self) -> None:
        self.reader.close()
        self.cluster.close()
        self._waker.close()


class LostRange(Exception):
    """Records of the range are lost; it continues at `resumed_at` (at its end: nowhere)."""

    def __init__(self, reason: str, resumed_at: int) -> None:
        super().__init__(reason)
        self.resumed_at = resumed_at


class RangeRead:
    """Read of one range."""

    def __init__(
        self,
        position: BoundedPosition,
        topic_id: bytes | None,
        on_lost: OnLost | None,
        timeout_s: float,
    ) -> None:
        assert position.offset is not None
        self.position = position
        self._start = position.offset
        self._topic_id = topic_id
        self._on_lost = on_lost
        self._timeout_s = timeout_s
        self._deadline = Deadline(timeout_s)
        self._short_until: Deadline | None = None
        """Deadline after which a log that is still too short counts as truncated."""
        self._stall_reason = "the leader does not respond"

    @property
    def done(self) -> bool:
        assert self.position.offset is not None
        return self.position.offset >= self.position.end

    def batches(
        self, connections: RangeConnections, columns: ColumnReader, max_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range."""
        self._deadline = Deadline(self._timeout_s)
        partition, end = self.position.partition, self.position.end
        assigned = False
        while not self.done:
            try:
                if not assigned:
                    self._assign(connections)
                    assigned = True
                self._step(connections, columns, max_bytes)
            except LostRange as lost:
                self._fail(lost)
            except UnknownTopicOrPartition as error:
                # A node with old metadata may return this during a range; a persistent error is
                # true.
                if assigned:
                    assigned, self._stall_reason = False, str(error)
                    self._check_deadline()
                    connections.cluster.sleep(0.1)
                else:
                    self._fail(LostRange(str(error), end))
            except UnknownTopicId as error:
                self._fail(LostRange(str(error), end))
            for batch in rows_below(columns.take(*partition), end):
                yield batch
                # Processing time does not count towards the timeout.
                self._deadline = Deadline(self._timeout_s)

    def _assign(self, connections: RangeConnections) -> None:
        """Wait for the topic's metadata, and check that it has the expected topic id."""
        lag = Deadline(LAG_S)
        while True:
            connections.reader.assign_position(self.position)
            try:
                connections.reader.await_offsets((), self._deadline)
                break
            except UnknownTopicOrPartition:
                if lag.passed:
                    raise
            connections.cluster.sleep(0.1)
        found = self.position.topic_id
        if self._topic_id and found != NO_ID and found != self._topic_id != NO_ID:
            topic = self.position.partition.topic
            raise LostRange(f"topic {topic!r} was deleted and recreated", self.position.end)

    def _step(self, connections: RangeConnections, columns: ColumnReader, max_bytes: int) -> None:
        """Decode the next records, or find out why there are none."""
        reader = connections.reader
        fetched: RecordRange | None = None
        try:
            fetched = reader.next_range(self._deadline.within(STALL_S))
            if fetched is None:
                self._explain_stall(connections)
                return
            more = decode(fetched, columns.builder, max_bytes)
            self._advance(fetched.first_offset)
            if not more or self.done:
                reader.release(fetched)
                if self.done:
                    self.position.ahead = fetched.first_offset
        except ShortRead:
            assert fetched is not None
            reader.refetch(fetched)
        except OffsetOutOfRange:
            self._check_bounds(connections.cluster)

    def _advance(self, offset: int) -> None:
        if offset != self.position.offset:
            self._deadline = Deadline(self._timeout_s)
            self._short_until = None
        self.position.offset = offset

    def _fail(self, found: LostRange) -> None:
        """Report lost records: raise RecordsLost, or continue after them."""
        position = self.position
        assert position.offset is not None
        resumed_at = min(found.resumed_at, position.end)
        lost = RecordsLost(
            position.partition, position.offset, position.end, resumed_at, str(found)
        )
        if self._on_lost is None:
            raise lost from None
        self._on_lost(lost)
        position.seek(resumed_at)

    # State of the log.

    def _check_bounds(self, cluster: Cluster) -> None:
        """Raise LostRange if the offset is out of the log's bounds; else retry."""
        position = self.position
        low, high = (
            offset_requests.list_offsets(
                cluster, {position.partition: which}, 0, self._deadline.left_s
            )[position.partition].offset
            for which in (EARLIEST, LATEST)
        )
        assert position.offset is not None
        if position.offset < low:
            raise LostRange(f"the log begins at offset {low}", low)
        if position.offset > high:
            self._check_short(high)
        self._check_deadline()
        position.rewind()
        cluster.sleep(0.1)

    def _check_short(self, high: int) -> None:
        """Raise LostRange if the log stays too short; a new leader may still have to catch up."""
        self._short_until = self._short_until or Deadline(LAG_S)
        if self._short_until.passed:
            raise LostRange(f"the log ends at offset {high}", self.position.end)

    def _explain_stall(self, connections: RangeConnections) -> None:
        """Handle a stall: end a range that ends in a gap, and detect a log that is too short."""
        self._check_deadline()
        position = self.position
        try:
            state = self._log_state(connections)
            after_wait = self._log_state(connections, GAP_WAIT_MS) if self._is_gap(state) else state
        except KafkaError as error:
            self._stall_reason = str(error)
            return
        is_gap = self._is_gap(state) and self._is_gap(after_wait)
        if is_gap and after_wait.log_start_offset == state.log_start_offset:
            position.offset = position.end
        elif state.holds_more or state.readable_end >= position.end:
            self._stall_reason = "the leader has more records, but sends none"
        elif state.high_watermark < position.end:
            self._stall_reason = f"the log ends at offset {state.high_watermark}"
            self._check_short(state.high_watermark)
        else:
            self._stall_reason = f"a transaction is open from offset {state.readable_end} on"

    def _is_gap(self, state: LogState) -> bool:
        """Return whether the range is readable, but has no more records at the leader."""
        return not state.holds_more and state.readable_end >= self.position.end

    def _log_state(self, connections: RangeConnections, max_wait_ms: int = 0) -> LogState:
        level = connections.reader.transports.isolation_level
        return fetch_log_state(
            connections.cluster, self.position, level, self._deadline.left_s, max_wait_ms
        )

    def _check_deadline(self) -> None:
        if self._deadline.passed:
            raise RequestTimedOut(
                f"{partition_name(self.position.partition)}: no records arrived for"
                f" {self._timeout_s:g} s at offset {self.position.offset} of the range"
                f" {self._start} to {self.position.end}: {self._stall_reason}."
            )
