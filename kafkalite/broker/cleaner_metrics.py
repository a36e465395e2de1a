"""Metrics of the log cleaner: what operators of Kafka watch, by node.

The names are those of kafka.log:type=LogCleanerManager and type=LogCleaner.  Alarms should be on
dead threads and uncleanable partitions above 0, and on a time since the last run that grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkalite.broker.replica.partition import needs_cleaner
from kafkalite.config.log_cleaner import LOG_CLEANER_ENABLE, LOG_CLEANER_THREADS
from kafkalite.metrics import GAUGE, Family

if TYPE_CHECKING:
    from kafkalite.broker.node import Node

MANAGER = "kafka_log_logcleanermanager_"
CLEANER = "kafka_log_logcleaner_"


def cleaner_families(node: Node) -> Iterator[Family]:
    """Yield the metrics of a node's passes; nothing if it needs no log cleaner."""
    local = node.local_listener
    is_needed = any(partition.needs_cleaner for partition in list(node.replicas)) or any(
        needs_cleaner(partition.log) for partition in list(node.replication.followed)
    )
    if local is None or not is_needed:
        return
    jobs, now_ms = local.cleaning, node.clock.monotonic_ms()
    wanted = node.settings[LOG_CLEANER_THREADS] if node.settings[LOG_CLEANER_ENABLE] else 0
    last = jobs.last_pass
    counts = last.counts if last is not None else None
    read = counts.bytes_read if counts is not None else 0
    for name, help_text, value in (
        (f"{MANAGER}max_dirty_percent", "Largest dirty ratio of a log, in percent.",
         round(100 * jobs.max_dirty_ratio, 1)),
        (f"{MANAGER}time_since_last_run_ms", "Time since the cleaner looked for dirty logs.",
         now_ms - jobs.last_offer_ms if jobs.last_offer_ms >= 0 else 0),
        (f"{MANAGER}uncleanable_partitions_count", "Logs that cannot be compacted; see the log.",
         len(jobs.uncleanable)),
        (f"{MANAGER}uncleanable_bytes", "Size of the logs that cannot be compacted.",
         sum(log.size for log in jobs.uncleanable)),
        (f"{CLEANER}max_buffer_utilization_percent", "Use of the offset map in the last pass.",
         round(100 * counts.map_utilization, 1) if counts is not None else 0),
        (f"{CLEANER}cleaner_recopy_percent", "Bytes that the last pass kept.",
         round(100 * counts.bytes_written / read, 1) if counts is not None and read else 0),
        (f"{CLEANER}max_clean_time_secs", "Duration of the last pass.",
         last.duration_ms / 1_000 if last is not None else 0),
        (f"{CLEANER}max_compaction_delay_secs", "Longest time past max.compaction.lag.ms.",
         jobs.max_overdue_ms / 1_000),
        (f"{CLEANER}deadthreadcount", "Cleaner threads that are not connected to this node.",
         max(0, wanted - len(jobs.cleaners))),
    ):  # fmt: skip
        yield Family(name, GAUGE, help_text, [({}, value)])
