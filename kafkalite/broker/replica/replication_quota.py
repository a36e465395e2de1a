"""ReplicationQuota: the rate of throttled replication on one side of a node (KIP-73).

    topic config `*.replication.throttled.replicas` ─▶ throttles(): is this replica throttled
    broker config `*.replication.throttled.rate`    ─▶ ReplicationQuota: is the rate exceeded

A leader and a follower have a quota each.  The bytes of all throttled replicas count, in sync or
not; only those that are not in sync wait while the rate is exceeded, so that a throttle removes no
replica from an ISR.  The rate is checked before records are read or requested: a batch that is
larger than a quota is sent whole, and the next one waits until the average is below the quota.

The rate is that of Kafka: the bytes of the last `replication.quota.window.num` samples, of
`replication.quota.window.size.seconds` each, by the time since the first of them began, or by the
duration of one sample if that is longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache

from kafkalite.config.topic import ALL_REPLICAS

SECOND_MS = 1_000

WAIT_MS_MIN = 20
"""Minimum delay before throttled partitions are checked again."""


def throttles(entries: tuple[str, ...], node_id: int, index: int) -> bool:
    """Return whether a topic's throttled replicas have the partition's replica on a node."""
    if not entries:
        return False
    return entries == (ALL_REPLICAS,) or index in _throttled_at(entries, node_id)


@lru_cache(maxsize=64)  # it is asked for each partition of a topic
def _throttled_at(entries: tuple[str, ...], node_id: int) -> frozenset[int]:
    """Return the partitions whose replica on a node is throttled."""
    replicas = (entry.partition(":") for entry in entries if entry)
    return frozenset(int(index) for index, _, node in replicas if int(node) == node_id)


class RateSample:
    """The bytes of one part of the window."""

    __slots__ = ("begun_ms", "last_ms", "size")

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = self.last_ms = begun_ms
        self.size = 0


class WindowRate:
    """A rate in bytes per second over a sliding window."""

    def __init__(self, sample_count: int, sample_ms: int) -> None:
        self._sample_ms = sample_ms
        self._window_ms = sample_count * sample_ms
        self._samples: deque[RateSample] = deque()
        self._size = 0
        """Bytes of all samples."""

    def record(self, size: int, now_ms: int) -> None:
        """Add bytes that were sent or received now."""
        samples = self._samples
        if not samples or now_ms - samples[-1].begun_ms >= self._sample_ms:
            samples.append(RateSample(now_ms))
        samples[-1].size += size
        samples[-1].last_ms = now_ms
        self._size += size

    def per_second(self, now_ms: int) -> float:
        """Return the rate."""
        samples = self._samples
        while samples and now_ms - samples[0].last_ms >= self._window_ms:
            self._size -= samples.popleft().size
        if not samples:
            return 0.0
        return self._size * SECOND_MS / max(now_ms - samples[0].begun_ms, self._sample_ms)

    def falls_at(self, rate: float) -> int:
        """Return the first time in ms at which the rate is not above another one, without further
        bytes; 0 if it has been so from the start."""
        size, time_ms = self._size, 0
        for sample in self._samples:
            if size <= 0:
                break
            expires_ms = sample.last_ms + self._window_ms
            if rate > 0:
                below_ms = sample.begun_ms + int(size * SECOND_MS / rate) + 1
                if below_ms <= expires_ms:
                    return max(time_ms, below_ms)
            time_ms = max(time_ms, expires_ms)
            size -= sample.size
        return time_ms


class ReplicationQuota:
    """The quota of a node as leader, or as follower; see the module."""

    def __init__(
        self, now_ms: Callable[[], int], sample_count: int = 11, sample_ms: int = SECOND_MS
    ) -> None:
        self._now_ms = now_ms
        self._rate = WindowRate(sample_count, sample_ms)
        self._listeners: list[Callable[[], object]] = []
        self.rate_max: int | None = None
        """The maximum rate in bytes per second; None if there is none."""
        self.size = 0
        """Bytes of all throttled replicas since the start."""

    def add_listener(self, listener: Callable[[], object]) -> None:
        """Call `listener()` when the maximum has changed."""
        self._listeners.append(listener)

    def set_rate_max(self, rate_max: int | None) -> None:
        """Set the maximum rate, in bytes per second."""
        if rate_max != self.rate_max:
            self.rate_max = rate_max
            for listener in self._listeners:
                listener()

    def record(self, size: int) -> None:
        """Count bytes of a throttled replica."""
        self.size += size
        self._rate.record(size, self._now_ms())

    @property
    def byte_rate(self) -> float:
        """The rate now, in bytes per second."""
        return self._rate.per_second(self._now_ms())

    @property
    def is_exceeded(self) -> bool:
        """True if throttled replicas that are not in sync wait now."""
        return self.rate_max is not None and self.byte_rate > self.rate_max

    @property
    def wait_ms(self) -> int:
        """The delay after which to check the quota again, while it is exceeded."""
        if self.rate_max is None:
            return WAIT_MS_MIN
        return max(WAIT_MS_MIN, self._rate.falls_at(self.rate_max) - self._now_ms())
