"""LeaderReplication: the followers of a partition that this node leads, and their fetches.

    fetch of a follower (offset, last epoch, node epoch, durable offset)
        diverging epoch     the logs differ: no records, and no progress is noted
        records             up to the log end offset; what precedes them is replicated

A fetch is the acknowledgement of all records before it, so it is noted only when the leader epochs
show that both logs are the same up to there.  The log end is taken before the log is read, and the
fetch is noted after: a follower is never counted as ahead of what it could have received.

Left out: a caller in the broker, which leads partitions with one replica only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.broker.replica.divergence import LogRange, find_divergence
from kafkalite.broker.replica.isr import FollowerFetch, InSyncReplicas, LogEnds
from kafkalite.errors import NotEnoughReplicas, NotLeaderOrFollower, UnknownLeaderEpoch
from kafkalite.storage.log.log_reader import read

if TYPE_CHECKING:
    from kafkalite.records.file_slice import FileSlice
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.state.leader_epochs import EpochEnd


class FollowerRead(NamedTuple):
    """The result of a follower's fetch."""

    records: FileSlice | None
    high_watermark: int
    log: LogRange
    diverging: EpochEnd | None = None


class LeaderReplication:
    """The replication of one partition by its leader, in one leader epoch."""

    __slots__ = ("_log", "_now_ms", "isr")

    def __init__(self, isr: InSyncReplicas, log: Log, now_ms: Callable[[], int]) -> None:
        self.isr = isr
        self._log = log
        self._now_ms = now_ms

    def check_min_isr(self) -> None:
        """Raise NotEnoughReplicas if a record could not be committed now."""
        if not self.isr.has_min_isr:
            raise NotEnoughReplicas()

    def advance(self) -> int:
        """Advance the high watermark to what is committed, and return it."""
        log = self._log
        self.isr.advance(LogEnds(log.end_offset, log.durable_offset), self._now_ms())
        return self.isr.high_watermark

    def read(
        self, fetch: FollowerFetch, last_fetched_epoch: int, size_max: int, *, whole_first: bool
    ) -> FollowerRead:
        """Return the records after a follower's log end, or where its log diverges.

        Raises UnknownLeaderEpoch for a node that is no replica here, NotLeaderOrFollower for an
        older process of it, and OffsetOutOfRange.
        """
        log = self._log
        if not self.isr.has_follower(fetch.node_id):
            raise UnknownLeaderEpoch()  # its image is newer: it retries until this node has it
        span = LogRange(log.log_start_offset, log.end_offset)
        found = find_divergence(log.leader_epochs, span, fetch.offset, last_fetched_epoch)
        if found is not None:
            return FollowerRead(None, self.isr.high_watermark, span, found)
        records = read(log, fetch.offset, size_max, span.end_offset, whole_first=whole_first)
        if not self.isr.fetched(fetch, span.end_offset, self._now_ms()):
            raise NotLeaderOrFollower()
        return FollowerRead(records, self.advance(), span)
