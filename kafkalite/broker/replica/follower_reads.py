"""Reads of followers at the leader, in the results of Fetch (replica_fetch.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite.broker.replica.isr import UNKNOWN
from kafkalite.broker.replica.replica_fetch import ReplicaFetch
from kafkalite.errors import OffsetOutOfRange, UnknownLeaderEpoch
from kafkalite.protocol.results import PartitionFetchResult

if TYPE_CHECKING:
    from kafkalite.broker.replica.fetch_item import FetchItem
    from kafkalite.broker.replica.isr import FollowerFetch
    from kafkalite.broker.replica.leader_replication import LeaderReplication
    from kafkalite.broker.replica.partition import Partition


def read_for_follower(
    item: FetchItem, size_left: int, *, whole_first: bool
) -> PartitionFetchResult:
    """Return the result of a follower's fetch, which acknowledges the records before its offset.

    Raises the errors of LeaderReplication.read, and that of a partition that has failed or was not
    found.
    """
    if item.partition is None:
        assert item.error is not None
        raise item.error
    assert item.follower is not None, "it is of a follower"
    fetch = ReplicaFetch(item.current_leader_epoch, item.last_fetched_epoch, item.follower)
    size_max = max(0, min(item.size_max, size_left))
    response = _replication(item.partition).read(fetch, size_max, whole_first=whole_first)
    return PartitionFetchResult(
        item.partition_index,
        OffsetOutOfRange.code if response.is_out_of_range else 0,
        response.high_watermark,
        -1,
        response.log.start_offset,
        None,
        -1,
        response.records,
        diverging_epoch=response.diverging,
        epoch_start=response.epoch_start,
    )


def available_for_follower(partition: Partition, follower: FollowerFetch) -> int:
    """Return 1 if a waiting fetch of a follower has something to return: records, a high watermark
    that the follower does not know (KIP-1166), or a later log start; otherwise 0."""
    high_watermark = _replication(partition).isr.high_watermark
    log = partition.log
    if follower.offset > log.end_offset:
        return 1  # the log was truncated since
    return int(
        follower.offset < log.end_offset
        or follower.high_watermark < high_watermark
        or UNKNOWN < follower.log_start_offset < log.log_start_offset
    )


def _replication(partition: Partition) -> LeaderReplication:
    if partition.error is not None:
        raise partition.error.copy()
    if partition.replication is None:
        raise UnknownLeaderEpoch()  # the follower's image is newer: it has another replica
    return partition.replication
