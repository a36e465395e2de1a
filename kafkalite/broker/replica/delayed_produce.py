"""DelayedProduce: a Produce with acks=all that waits until its records are committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkalite.broker.replica.delayed_operation import DelayedOperation, WatchedPartition
from kafkalite.errors import KafkaError, NotEnoughReplicasAfterAppend, RequestTimedOut
from kafkalite.protocol.results import PartitionAppendResult, ProduceResponse

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition


class UncommittedAppend:
    """The result of one partition whose records are not yet below the high watermark."""

    __slots__ = ("last_offset", "partition", "position", "results")

    def __init__(
        self,
        partition: Partition,
        last_offset: int,
        results: list[PartitionAppendResult],
        position: int,
    ) -> None:
        self.partition = partition
        self.last_offset = last_offset
        self.results = results
        self.position = position

    def fail(self, error: KafkaError) -> None:
        """Replace the result by one with this error."""
        index = self.results[self.position].partition_index
        self.results[self.position] = PartitionAppendResult.failed(index, error)


class DelayedProduce(DelayedOperation):
    """A produce with acks=all whose records are not yet below the high watermark.

    Complete when, for every partition that it wrote to,
    A  the high watermark has passed its last record, or
    B  the partition has failed or is no longer led here (its result has the error), or
    C  too few replicas are in sync although the high watermark has passed it (its result has
       NOT_ENOUGH_REPLICAS_AFTER_APPEND), or
    D  the request has timed out: open results get REQUEST_TIMED_OUT (their records may still be
       committed later; the client retries with the same sequence).

    The results are those in the lists of `uncommitted`; `response`, if given, is made of them.
    """

    is_urgent = True

    def __init__(
        self, uncommitted: Iterable[UncommittedAppend], response: ProduceResponse | None = None
    ) -> None:
        self._response = response
        self._uncommitted: dict[WatchedPartition, list[UncommittedAppend]] = {}
        for append in uncommitted:
            self._uncommitted.setdefault(append.partition, []).append(append)
        self.partitions = list(self._uncommitted)

    def check(self, partition: WatchedPartition) -> bool:
        appends = self._uncommitted.get(partition, ())
        still_open = [append for append in appends if not self._is_complete(append)]
        if still_open:
            self._uncommitted[partition] = still_open
        else:
            self._uncommitted.pop(partition, None)
        return not self._uncommitted

    def check_all(self) -> bool:
        """Check all partitions, which may have changed since the appends; return whether the
        request is complete."""
        for partition in self.partitions:
            self.check(partition)
        return not self._uncommitted

    def build_response(self) -> ProduceResponse | None:
        for appends in self._uncommitted.values():
            for append in appends:
                if not self._is_complete(append):
                    self._fail(append, RequestTimedOut())  # D
        return self._response

    def _is_complete(self, append: UncommittedAppend) -> bool:
        partition = append.partition
        if partition.high_watermark > append.last_offset:  # A
            replication = partition.replication
            if replication is not None and not replication.isr.may_have_min_isr:  # C
                self._fail(append, NotEnoughReplicasAfterAppend())
            return True
        if partition.error is not None:  # B
            self._fail(append, partition.error)
            return True
        return False

    def _fail(self, append: UncommittedAppend, error: KafkaError) -> None:
        append.fail(error)
        if self._response is not None:
            self._response.has_errors = True
