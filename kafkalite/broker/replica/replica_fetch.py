"""ReplicaFetch: the fetch of one partition by a follower, the response, and its application.

    next fetch (log end offset, last epoch, durable offset) ─▶ leader ─▶ apply
        records       appended as they are; the high watermark follows the leader's
        diverging     the log is truncated to where both agree; the next fetch shows if that is all
                      (a node truncates it on a thread, and fetches again after that)
        out of range  the log restarts at the leader's log start, if the leader has deleted more

A response is applied only if the log and the leader epoch are those of its fetch.  A follower that
is elected does not truncate its log (KIP-101).  After an unclean election a leader may lack records
that a follower knows as committed: the follower's log is then set aside, and fetched from the start
(CommittedRecordsDiffer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kafkalite.broker.replica.divergence import LogRange, truncation_offset
from kafkalite.broker.replica.isr import UNKNOWN, FollowerFetch
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.state.leader_epochs import EpochEnd, LeaderEpochCache

PartitionKey = tuple[bytes, int]
"""The topic id and the index of a partition."""


class ReplicaFetch(NamedTuple):
    """A fetch of one partition."""

    leader_epoch: int
    last_fetched_epoch: int
    follower: FollowerFetch


class ReplicaFetchResponse(NamedTuple):
    """The response to a fetch: records, a diverging epoch, or the range of the leader's log."""

    log: LogRange
    high_watermark: int
    epoch_start: int
    """The leader's log end offset when its epoch began."""
    records: Any = None
    diverging: EpochEnd | None = None
    is_out_of_range: bool = False
    """True if the fetch offset is not in the leader's log."""


class CommittedRecordsDiffer(KafkaStorageError):
    """The leader lacks records that this follower knows as committed."""


class ReplicatedLog(Protocol):
    """The attributes of a log that its leader and its followers use (storage/log/log.py)."""

    leader_epochs: LeaderEpochCache
    log_start_offset: int

    @property
    def end_offset(self) -> int:
        """The log end offset."""

    @property
    def durable_offset(self) -> int:
        """The end of the flushed records, below the start of a leader epoch that is not flushed."""


class FollowerLog(ReplicatedLog, Protocol):
    """The methods of a log that a follower uses."""

    def append_replicated(self, batches: Any) -> Any:
        """Append batches of the leader as they are."""

    def truncate_to(self, offset: int) -> int:
        """Remove the records from an offset on."""

    def truncate_fully_and_start_at(self, offset: int) -> int:
        """Remove all records; the log begins at an offset."""

    def delete_records(self, offset: int) -> int:
        """Advance the log start offset."""


class FollowerReplication:
    """The replication of one partition by a follower, in one leader epoch."""

    __slots__ = ("_log", "_node_epoch", "_node_id", "high_watermark", "leader_epoch",
                 "leader_high_watermark", "restart_at", "truncate_to")  # fmt: skip

    def __init__(
        self,
        log: FollowerLog,
        leader_epoch: int,
        node_id: int,
        node_epoch: int,
        high_watermark: int,
    ) -> None:
        self._log = log
        self._node_id = node_id
        self._node_epoch = node_epoch
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.leader_high_watermark = UNKNOWN
        """As of the leader's last response in this epoch."""
        # A node begins these, and fetches again at their end (followed_partitions.py).
        self.truncate_to: Callable[[int], object] = log.truncate_to
        self.restart_at: Callable[[int], object] = log.truncate_fully_and_start_at

    def next_fetch(self) -> ReplicaFetch:
        """Return the fetch to send now."""
        log = self._log
        follower = FollowerFetch(
            self._node_id,
            self._node_epoch,
            log.end_offset,
            log.durable_offset,
            self.high_watermark,
            log.log_start_offset,
        )
        return ReplicaFetch(self.leader_epoch, log.leader_epochs.latest, follower)

    def apply(self, fetch: ReplicaFetch, response: ReplicaFetchResponse) -> bool:
        """Apply the response to a fetch; return False if the log or the epoch has changed since.

        Raises InvalidReplicatedBatch if a batch is invalid: those before it were appended.
        CommittedRecordsDiffer if the leader lacks records that this follower knows as committed.
        KafkaStorageError if the log cannot be written.
        """
        now = self.next_fetch()
        if fetch[:2] != now[:2] or fetch.follower.offset != now.follower.offset:
            return False
        if response.is_out_of_range:
            self._reset(response.log)
        elif response.diverging is not None:
            self._truncate(response.diverging)
        else:
            self._append(response)
        return True

    def _reset(self, leader: LogRange) -> None:
        """Restart at the leader's log start, if this log ends before it."""
        if leader.start_offset > self._log.end_offset:
            self.restart_at(leader.start_offset)
            self.high_watermark = leader.start_offset

    def _truncate(self, leader: EpochEnd) -> None:
        log = self._log
        offset = truncation_offset(leader, log.leader_epochs, log.end_offset)
        if offset < self.high_watermark:
            raise CommittedRecordsDiffer(
                f"The leader of epoch {self.leader_epoch} has other records from offset {offset}"
                f" on, and those below {self.high_watermark} were committed."
            )
        self.truncate_to(offset)

    def _append(self, response: ReplicaFetchResponse) -> None:
        log = self._log
        if log.end_offset == response.epoch_start and log.leader_epochs.latest < self.leader_epoch:
            # It has all that its leader had at its election: a recovery election must know it,
            # also if no record of this epoch follows.
            log.leader_epochs.assign(self.leader_epoch, log.end_offset)
        if response.records:
            log.append_replicated(response.records)
        self.leader_high_watermark = response.high_watermark
        reached = min(response.high_watermark, log.end_offset)
        self.high_watermark = max(self.high_watermark, reached)
        if log.log_start_offset < (start := min(response.log.start_offset, self.high_watermark)):
            log.delete_records(start)
