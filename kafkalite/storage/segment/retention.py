"""Retention: the number of a log's first segments that may be removed.

Three reasons, as in Kafka: every record is older than retention.ms, by the records' timestamps;
the log is at least retention.bytes large without it; or it is below the log start offset.  Only the
last reason applies to a log whose cleanup.policy is not `delete`.  Only whole segments are removed,
from the log's beginning, and never past the readable offset, which is not above the high watermark
of a replicated log.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.state.log_config import LogConfig


def before(segments: Sequence[LogSegment], offset: int) -> int:
    """Return the number of segments that end at or before an offset, without the last one."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= offset:
        count += 1
    return count


def removable(
    segments: Sequence[LogSegment],
    config: LogConfig,
    now_ms: int,
    log_start_offset: int,
    readable_offset: int,
    end_offset: int,
) -> int:
    """Return the number of segments that may be removed; if all, the active one must be rolled."""
    if not config.deletes:
        return before(segments, log_start_offset)
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    allowed = 0
    while allowed < len(segments) and ends[allowed] <= readable_offset and segments[allowed].size:
        allowed += 1
    candidates = segments[:allowed]
    return max(
        before(segments, log_start_offset),
        by_time(candidates, config.retention_ms, now_ms),
        by_size(candidates, config.retention_bytes, sum(segment.size for segment in segments)),
    )


def by_time(candidates: Sequence[LogSegment], retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    while count < len(candidates) and now_ms - candidates[count].largest_timestamp > retention_ms:
        count += 1
    return count


def by_size(candidates: Sequence[LogSegment], retention_size: int, size: int) -> int:
    if retention_size < 0:
        return 0
    count = 0
    while count < len(candidates) and size - candidates[count].size >= retention_size:
        size -= candidates[count].size
        count += 1
    return count
