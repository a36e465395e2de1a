"""The ends of a node's replicas, which it reports when it registers.

The controller must not count with records that a replica has lost.  After a power cut every replica
may lack what was not flushed, and the leader is elected by the ends.  A replica is damaged if it
alone may have lost more than a power cut takes: its files are damaged below the recovery point, or
a write-back to its file system has failed.

Left out: a process that is killed after it has recovered such a log, and before it has registered,
finds no mark of the failed write-back at its next start, and reports the log as after a power cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafkalite.storage.log.log import Log


class ReplicaLogEndReport(NamedTuple):
    """The end of a replica's log."""

    topic_id: bytes
    partition: int
    last_epoch: int
    """The last leader epoch of the log, also if it has no record of it; -1 without any."""
    end_offset: int
    is_damaged: bool


def log_ends(logs: Iterable[Log]) -> list[ReplicaLogEndReport]:
    """Return the ends of these logs; those of partitions with one replica are not reported."""
    return [
        ReplicaLogEndReport(
            log.topic_id,
            log.partition,
            log.leader_epochs.latest,
            log.end_offset,
            log.is_quarantined or log.failure is not None or log.lost_write_back,
        )
        for log in logs
        if log.is_replicated
    ]
