"""LogConfig: the settings of one log, read once when they change and not with every append."""

from __future__ import annotations

from dataclasses import dataclass

from kafkalite.config.settings import Settings
from kafkalite.config.topic import (
    CLEANUP_POLICY,
    COMPACT,
    DELETE,
    DELETE_RETENTION_MS,
    FILE_DELETE_DELAY_MS,
    INDEX_INTERVAL_BYTES,
    MAX_COMPACTION_LAG_MS,
    MIN_CLEANABLE_DIRTY_RATIO,
    MIN_COMPACTION_LAG_MS,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_INDEX_BYTES,
    SEGMENT_JITTER_MS,
    SEGMENT_MS,
)
from kafkalite.storage.state.durability import Durability


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of a topic that its logs use; those of batches are in BatchValidator."""

    settings: Settings
    is_metadata_log: bool
    """True for the metadata log: every append is flushed, whatever the topic's durability."""
    durability: Durability
    compacts: bool
    """True if the log cleaner keeps the last record of each key only."""
    deletes: bool
    """True if retention removes segments by time and size."""
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_bytes: int
    retention_ms: int
    file_delete_delay_ms: int
    min_cleanable_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int

    @classmethod
    def of(cls, settings: Settings, *, is_metadata_log: bool = False) -> LogConfig:
        policy = settings[CLEANUP_POLICY]
        compacts = COMPACT in policy and not is_metadata_log
        segment_ms = settings[SEGMENT_MS]
        return cls(
            settings=settings,
            is_metadata_log=is_metadata_log,
            durability=Durability.FSYNC if is_metadata_log else Durability.of(settings),
            compacts=compacts,
            deletes=DELETE in policy,
            segment_bytes=settings[SEGMENT_BYTES],
            # The active segment is not compacted.
            segment_ms=min(segment_ms, settings[MAX_COMPACTION_LAG_MS]) if compacts else segment_ms,
            segment_jitter_ms=settings[SEGMENT_JITTER_MS],
            segment_index_bytes=settings[SEGMENT_INDEX_BYTES],
            index_interval_bytes=settings[INDEX_INTERVAL_BYTES],
            retention_bytes=settings[RETENTION_BYTES],
            retention_ms=settings[RETENTION_MS],
            file_delete_delay_ms=settings[FILE_DELETE_DELAY_MS],
            min_cleanable_ratio=settings[MIN_CLEANABLE_DIRTY_RATIO],
            min_compaction_lag_ms=settings[MIN_COMPACTION_LAG_MS],
            max_compaction_lag_ms=settings[MAX_COMPACTION_LAG_MS],
            delete_retention_ms=settings[DELETE_RETENTION_MS],
        )
