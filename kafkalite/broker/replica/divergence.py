"""Divergence of a reader's log from its leader's, by leader epochs (KIP-320, KIP-595).

    leader    epoch 3 [0, 40)   epoch 5 [40, …)
    follower  epoch 3 [0, 50)                       fetches at 50, last epoch 3
        leader ─▶ diverging: epoch 3 ends at 40     no records
        follower truncates to 40, fetches at 40

A consumer that fetches with its last epoch learns in the same way that records which it has read
were truncated.

A follower never truncates to its high watermark, which lags behind the leader's: it would lose
acknowledged records (KIP-101, KIP-279).
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalite.errors import OffsetOutOfRange
from kafkalite.storage.state.leader_epochs import NO_EPOCH, EpochEnd, LeaderEpochCache


class LogRange(NamedTuple):
    """The offsets of a log."""

    start_offset: int
    end_offset: int


def find_divergence(
    epochs: LeaderEpochCache, log: LogRange, fetch_offset: int, last_fetched_epoch: int
) -> EpochEnd | None:
    """Return where a reader's log diverges from this leader's; None if it does not.

    Raises OffsetOutOfRange if this log does not show it.
    """
    if fetch_offset < log.start_offset:
        raise OffsetOutOfRange()
    if last_fetched_epoch == NO_EPOCH:
        if fetch_offset > log.end_offset:
            raise OffsetOutOfRange()
        return None
    known = epochs.end_offset_for(last_fetched_epoch, log.end_offset)
    if known.epoch == NO_EPOCH:
        raise OffsetOutOfRange("The partition has no records of the last fetched epoch.")
    if known.epoch < last_fetched_epoch or known.end_offset < fetch_offset:
        return known
    return None


def truncation_offset(leader: EpochEnd, epochs: LeaderEpochCache, end_offset: int) -> int:
    """Return the offset to which a follower truncates its log; `leader` is the diverging epoch.

    The leader has sent it for a fetch with this log's latest epoch and end offset.  If this log
    does not have that epoch, the logs may still differ below the offset: the next fetch shows it.
    """
    assert leader.epoch <= epochs.latest, "the fetch had the latest epoch"
    own = epochs.end_offset_for(leader.epoch, end_offset)
    if own.epoch == leader.epoch:
        return min(leader.end_offset, own.end_offset, end_offset)
    return min(own.end_offset, end_offset)
