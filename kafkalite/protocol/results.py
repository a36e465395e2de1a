"""Results of Produce and Fetch: one per partition, and the responses made of them.

The replica manager creates them, and handlers, purgatory and ring host pass them on; the TCP codec
and the rings encode the same objects.  Python code reads them by name; only ext/codec/wire.pyx
reads the fields of a partition's result by index, in the order in which they are declared here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kafkalite.errors import KafkaError

Topic = str | bytes
"""A topic as in a request: its name, or its id of 16 bytes."""

LeaderAndEpoch = tuple[int, int]
NodeEndpoint = tuple[int, str, int, str | None]
"""Node id, host, port and rack."""


new_tuple = tuple.__new__
"""Creates a named tuple from a tuple of all its fields, in half of the 300 ns of the constructor;
for what is created for each partition of a request."""


class PartitionAppendResult(NamedTuple):
    """The result of a Produce for one partition."""

    partition_index: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    """-1 if the records keep the times of their producer."""
    log_start_offset: int
    record_errors: Sequence[tuple[int, str | None]] = ()
    """(index in the batch, message) of each record for which the batch was rejected."""
    error_message: str | None = None
    current_leader: LeaderAndEpoch | None = None

    @classmethod
    def failed(
        cls, partition_index: int, error: KafkaError, current_leader: LeaderAndEpoch | None = None
    ) -> PartitionAppendResult:
        """Return the result of a batch that was not appended, or not committed in time."""
        errors = error.record_errors
        return cls(partition_index, error.code, -1, -1, -1, errors, str(error), current_leader)


class PartitionFetchResult(NamedTuple):
    """The result of a Fetch for one partition."""

    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: Sequence[tuple[int, int]] | None
    """(producer id, first offset); None if the client did not request them (read_uncommitted)."""
    preferred_read_replica: int
    records: Any
    """None, bytes, or a FileSlice, which the connection sends from the file."""
    current_leader: LeaderAndEpoch | None = None
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, end offset) if the reader's log diverges from this one (KIP-595)."""
    epoch_start: int = -1
    """For a follower: the log end offset at which the leader's epoch began."""

    @classmethod
    def failed(
        cls,
        partition_index: int,
        error: KafkaError,
        aborted_transactions: Sequence[tuple[int, int]] | None = None,
    ) -> PartitionFetchResult:
        """Return the result of a partition that cannot be read."""
        return cls(partition_index, error.code, -1, -1, -1, aborted_transactions, -1, None)


class ProduceResponse:
    """The response to a Produce."""

    __slots__ = ("has_errors", "node_endpoints", "topics")

    error_code = 0
    """Produce has no error of the whole request."""

    def __init__(self, topics: Sequence[tuple[Topic, list[PartitionAppendResult]]]) -> None:
        self.topics = topics
        self.has_errors = False
        self.node_endpoints: Sequence[NodeEndpoint] = ()
        """Addresses of the current leaders in the results (KIP-951)."""


class FetchResponse:
    """The response to a Fetch."""

    __slots__ = ("error_code", "has_errors", "node_endpoints", "session_id", "topics")

    def __init__(
        self,
        topics: Sequence[tuple[Topic, list[PartitionFetchResult]]],
        session_id: int = 0,
        error_code: int = 0,
    ) -> None:
        self.topics = topics
        self.session_id = session_id
        self.error_code = error_code
        self.has_errors = error_code != 0
        self.node_endpoints: Sequence[NodeEndpoint] = ()
        """Addresses of the current leaders in the results (KIP-951)."""

    @classmethod
    def failed(cls, error: KafkaError) -> FetchResponse:
        """Return the response for an error of the whole request."""
        return cls([], error_code=error.code)
