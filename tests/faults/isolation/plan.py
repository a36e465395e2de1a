"""The sizes of a run of isolation; the defaults are the full figures of `make faults`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IsolationPlan:
    """The amounts and rates of the load, which leave the broker processor time."""

    partitions: int = 5_000
    topics: int = 200
    """Topics created and deleted: one half one by one, the other half by one request."""
    topic_partitions: int = 8
    """Partitions of each topic of the second half."""
    topics_per_s: float = 2.0
    removed_bytes: int = 10 << 30
    """Bytes written, and removed by retention."""
    write_mib_per_s: float = 60.0
    consumers: int = 1_000
    consumer_partitions: int = 100
    wide_consumers: int = 4
    """Consumers of all of a worker's partitions, beside the others."""
    consumer_wait_ms: int = 5_000
    connects_per_s: int = 50
    records_per_s: float = 20.0
    """Records to the consumers' partitions; one wakes all consumers that read its partition."""
    time_lookups: int = 60
    """ListOffsets by time over every compressed batch of a worker."""
    lookup_partitions: int = 14
    lookup_records: int = 300_000
    lookups_per_s: float = 1.0
    sessions: int = 60
    session_partitions: int = 50_000
    """Unknown partitions, in the first Fetch of each session."""
    sessions_kept: int = 20
    sessions_per_s: float = 0.5
    alone_s: float = 10.0
    beside_s: float = 60.0
    """Minimum duration; the amounts above may take longer."""
    pace_ms: float = 10.0
    minutes_max: float = 8.0
    workers: int = 2
    durability: str = "os"
    """With fsync the healthy client waits for the disk that the load writes gigabytes to."""
    seed: int = 1

    @property
    def segment_bytes(self) -> int:
        """The default segment size for the full figures, smaller for others."""
        return min(1 << 30, max(2 << 20, self.removed_bytes // 10))
