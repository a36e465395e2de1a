"""LeaderReplication: the followers of a partition that this node leads, and their fetches.

    fetch of a follower (offset, last epoch, node epoch, durable offset)
        diverging epoch     the logs differ: no records, and no progress is noted
        records             up to the log end offset; what precedes them is replicated

A fetch is the acknowledgement of all records before it, so it is noted only when the leader epochs
show that both logs are the same up to there.  The log end is taken before the log is read, and the
fetch is noted after: a follower is never counted as ahead of what it could have received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkalite.broker.replica.divergence import LogRange, find_divergence
from kafkalite.broker.replica.isr import InSyncReplicas, LogEnds, SessionRequests
from kafkalite.broker.replica.replica_fetch import (
    ReplicaFetch,
    ReplicaFetchResponse,
    ReplicatedLog,
)
from kafkalite.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from kafkalite.storage.log import log_reader


class LeaderReplication:
    """The replication of one partition by its leader, in one leader epoch."""

    __slots__ = ("_log", "_now_ms", "_on_progress", "_read", "isr")

    def __init__(
        self,
        isr: InSyncReplicas,
        log: ReplicatedLog,
        now_ms: Callable[[], int],
        read: Callable[..., Any] = log_reader.read,
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to lead; `read` reads the log as log_reader.read does.

        `on_progress()` is called when a fetch may have changed the high watermark, the ISR or the
        low watermark.
        """
        self.isr = isr
        self._on_progress = on_progress
        self._log = log
        self._now_ms = now_ms
        self._read = read

    def check_min_isr(self) -> None:
        """Raise NotEnoughReplicas if a record could not be committed now."""
        if not self.isr.has_min_isr:
            raise NotEnoughReplicas()

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the leader and the followers in sync."""
        return self.isr.low_watermark(self._log.log_start_offset)

    def advance(self) -> int:
        """Advance the high watermark to what is committed, and return it."""
        log = self._log
        self.isr.advance(LogEnds(log.end_offset, log.durable_offset), self._now_ms())
        return self.isr.high_watermark

    def read(
        self,
        fetch: ReplicaFetch,
        size_max: int,
        *,
        whole_first: bool,
        session: SessionRequests | None = None,
    ) -> ReplicaFetchResponse:
        """Return the records after a follower's log end, or where its log diverges.

        The later requests of the session repeat the fetch, until `InSyncReplicas.end_repetition`.

        Raises FencedLeaderEpoch and UnknownLeaderEpoch for another leader epoch, the latter also
        for a node that is no replica here, and NotLeaderOrFollower for an older process of it.
        """
        log, isr, follower = self._log, self.isr, fetch.follower
        if fetch.leader_epoch < isr.partition.leader_epoch:
            raise FencedLeaderEpoch()
        if fetch.leader_epoch > isr.partition.leader_epoch or not isr.has_follower(
            follower.node_id
        ):
            raise UnknownLeaderEpoch()  # its image is newer: it retries until this node has it
        span = LogRange(log.log_start_offset, log.end_offset)
        response = ReplicaFetchResponse(span, isr.high_watermark, isr.epoch_start)
        try:
            diverging = find_divergence(
                log.leader_epochs, span, follower.offset, fetch.last_fetched_epoch
            )
        except OffsetOutOfRange:
            return response._replace(is_out_of_range=True)
        if diverging is not None:
            return response._replace(diverging=diverging)
        records = self._read(
            log, follower.offset, size_max, span.end_offset, whole_first=whole_first
        )
        has_deleted = follower.log_start_offset != isr.log_start_of(follower.node_id)
        if not isr.fetched(follower, span.end_offset, self._now_ms(), session):
            raise NotLeaderOrFollower()
        reached = self.advance()
        is_joining = follower.node_id not in isr.partition.isr
        if reached != response.high_watermark or is_joining or has_deleted:
            self._on_progress()
        return response._replace(records=records, high_watermark=reached)
