"""DelayedDeleteRecords: a DeleteRecords that waits until the in-sync replicas have deleted, too.

Left out: replicas that are not in sync; Kafka waits for all that are alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kafkalite.broker.replica.delayed_operation import DelayedOperation, WatchedPartition
from kafkalite.errors import RequestTimedOut

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition


class DelayedDeleteRecords(DelayedOperation):
    """A DeleteRecords of partitions whose followers may still have the deleted records.

    Complete when, for every partition,
    A  the log of each in-sync replica starts at the offset or later, so that the records remain
       deleted whichever of them leads next, or
    B  the partition has failed or is no longer led here (its entry has the error), or
    C  the request has timed out: open entries get REQUEST_TIMED_OUT; followers still delete.
    """

    is_urgent = True

    def __init__(self, entries: Iterable[tuple[Partition, dict[str, Any]]], response: Any) -> None:
        """`entries`: partitions, and their part of the response, with the new log start offset."""
        self._response = response
        self._open: dict[WatchedPartition, list[tuple[Partition, dict[str, Any]]]] = {}
        for partition, entry in entries:
            self._open.setdefault(partition, []).append((partition, entry))
        self.partitions = list(self._open)

    def check(self, partition: WatchedPartition) -> bool:
        left = [each for each in self._open.get(partition, ()) if not self._is_complete(*each)]
        if left:
            self._open[partition] = left
        else:
            self._open.pop(partition, None)
        return not self._open

    def check_all(self) -> bool:
        """Check all partitions; return whether the request is complete."""
        for partition in self.partitions:
            self.check(partition)
        return not self._open

    def build_response(self) -> Any:
        for entries in self._open.values():
            for partition, entry in entries:
                if not self._is_complete(partition, entry):
                    entry["error_code"] = RequestTimedOut.code  # C
        return self._response

    def _is_complete(self, partition: Partition, entry: dict[str, Any]) -> bool:
        if partition.error is not None:  # B
            entry["error_code"], entry["low_watermark"] = partition.error.code, -1
            return True
        replication = partition.replication
        return replication is None or replication.low_watermark >= entry["low_watermark"]  # A
