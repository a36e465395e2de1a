"""AcquiredPartition: the records of one partition that a member acquired by one response.

Each of them is acknowledged at most once, while its lock lasts: accepted, released for another
delivery, rejected, or, if there is no record at its offset, reported as a gap.  An acknowledgement
is first put into a queue, from any thread; the next call of the consumer sends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import KafkaError

TopicIdPartition = tuple[bytes, int]

LOCK_SHARE_LEFT = 10
"""Records are not delivered any more when less than one part in this many is left of the lock."""

Runs: TypeAlias = Sequence[tuple[int, int]]
"""First and last offsets of consecutive records."""


class Acknowledgement(IntEnum):
    """The type of an acknowledgement, as in the protocol."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgedRun(NamedTuple):
    """Consecutive records with the same acknowledgement.

    Only what the application acknowledged is reported to it.
    """

    acquired: AcquiredPartition
    first: int
    last: int
    kind: Acknowledgement
    is_reported: bool


class AcquiredPartition:
    """Records of a partition, their locks, and the queue for their acknowledgements."""

    __slots__ = (
        "__weakref__", "_queue", "_renewed", "error", "key", "lock_due_s", "lock_s", "node_id",
        "partition",
    )  # fmt: skip

    def __init__(
        self,
        partition: TopicPartition,
        key: TopicIdPartition,
        node_id: int,
        times_s: tuple[float, float],
        queue: deque[AcknowledgedRun],
    ) -> None:
        """`times_s`: when the records were requested, and the duration of their locks."""
        self.partition = partition
        self.key = key
        self.node_id = node_id
        self.lock_s = times_s[1]
        self.lock_due_s = sum(times_s)
        """Time at which the locks end at the earliest, without renewals."""
        self.error: KafkaError | None = None
        """The error by which the records were lost: the session or the leader has changed."""
        self._queue = queue
        self._renewed: list[tuple[int, int, float]] = []

    @property
    def give_until_s(self) -> float:
        """Time until which records are given to the application."""
        return self.lock_due_s - self.lock_s / LOCK_SHARE_LEFT

    def due_s(self, offset: int) -> float:
        """Return the time at which the lock of a record ends at the earliest."""
        for first, last, due_s in reversed(self._renewed):
            if first <= offset <= last:
                return due_s
        return self.lock_due_s

    def renewed(self, runs: Runs, due_s: float) -> None:
        """Note that the locks of these records were renewed."""
        self._renewed += [(first, last, due_s) for first, last in runs]

    def acknowledge(self, runs: Runs, kind: Acknowledgement, is_reported: bool = True) -> None:
        """Put an acknowledgement of these records into the queue."""
        for first, last in runs:
            self._queue.append(AcknowledgedRun(self, first, last, kind, is_reported))
